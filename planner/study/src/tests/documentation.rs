//! Test that all study keys are documented. The readers' error for an unknown key lists all known keys.

use super::super::read_study;

const PAGE: &str = include_str!("../../../../docs/studies.md");

const CANDIDATE: &str = "[[candidate]]\nname = \"a\"\nfabric = \"dgx-a100\"\n";
const JOB: &str = "[[job]]\nname = \"j\"\nglobal_batch = 8\n";
const MODEL: &str = "layers = 2, hidden = 64, heads = 2, vocab = 64, seq = 8";

/// Returns the keys that the error for an unknown key lists as expected: the words in backquotes after "expected", or
/// plain words if there are none in backquotes.
fn expected(text: &str) -> Vec<String> {
    let error = read_study(text, "s.toml").unwrap_err().to_string();
    let (_, known) = error.split_once("expected").unwrap_or_else(|| panic!("{error}"));
    let quoted: Vec<_> = known.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    if !quoted.is_empty() {
        return quoted;
    }
    let words = known.split([' ', ',', '\n']).filter(|word| !["", "or", "one", "of"].contains(word));
    words.map(str::to_owned).collect()
}

#[test]
fn all_study_keys_are_documented() {
    let texts = [
        "wrong = 1\n".to_owned(),
        format!("{CANDIDATE}wrong = 1\n"),
        format!("{CANDIDATE}network = {{ wrong = 1 }}\n{JOB}model = {{ {MODEL} }}\nparallel = \"auto\"\n"),
        format!("{CANDIDATE}{JOB}wrong = 1\n"),
        format!("{CANDIDATE}{JOB}model = {{ {MODEL}, wrong = 1 }}\n"),
        format!("{CANDIDATE}{JOB}model = {{ {MODEL}, latent = {{ wrong = 1 }} }}\n"),
        format!("{CANDIDATE}{JOB}parallel = {{ wrong = 1 }}\n"),
        format!("{CANDIDATE}{JOB}kv_tier = \"wrong\"\n"),
        format!("{CANDIDATE}{JOB}processes = \"wrong\"\n"),
        format!("{CANDIDATE}{JOB}collectives = \"wrong\"\n"),
        format!("{CANDIDATE}[[measured]]\nwrong = 1\n"),
        "[efficiency]\nwrong = 1\n".to_owned(),
        "[constraints]\nwrong = 1\n".to_owned(),
        "[assumptions]\nwrong = 1\n".to_owned(),
        "[sensitivity]\nwrong = 1\n".to_owned(),
        "[reliability]\nwrong = 1\n".to_owned(),
        format!("{CANDIDATE}reliability = {{ wrong = 1 }}\n"),
        format!("{CANDIDATE}{JOB}checkpoint = {{ wrong = 1 }}\n"),
        format!("{CANDIDATE}{JOB}checkpoint = {{ write = \"wrong\" }}\n"),
        format!("{CANDIDATE}{JOB}disaggregation = {{ wrong = 1 }}\n"),
        format!("{CANDIDATE}{JOB}disaggregation = {{ prefill_gpus = 8, transfer = \"wrong\" }}\n"),
        format!("{CANDIDATE}{JOB}disaggregation = {{ prefill_gpus = 8, first_token = \"wrong\" }}\n"),
    ];
    let mut missing = Vec::new();
    for text in &texts {
        let known = expected(text);
        assert!(known.len() > 1, "{text}: {known:?}");
        // The page has `[[job]]` and `[assumptions]` in brackets, and string values in quotes.
        let is_documented = |key: &str| {
            [format!("`{key}`"), format!("`[[{key}]]`"), format!("`[{key}]`"), format!("`\"{key}\"`")]
                .iter()
                .any(|form| PAGE.contains(form))
        };
        missing.extend(known.into_iter().filter(|key| !is_documented(key)));
    }
    assert!(missing.is_empty(), "{missing:?}");
}
