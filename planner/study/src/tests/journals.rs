//! Tests of the journal of runs: resumption from a truncated file, and errors for damaged lines.

use super::*;

#[test]
fn truncated_journal_resumes_to_the_same_answer() {
    let completed = CompletedStudy::new(PAIR);
    let text: String = completed.runs.iter().map(|run| journal::line(run).unwrap()).collect();
    let expected = serde_json::to_string(&completed.answer()).unwrap();
    let mut last_count = None;
    for cut in 0..=text.len() {
        let restored = journal::read(&text.as_bytes()[..cut], "runs.jsonl").unwrap();
        let complete = text[..cut].matches('\n').count();
        // A line that lacks only its final line break counts as complete.
        let ends_at_newline = text.as_bytes().get(cut) == Some(&b'\n');
        assert_eq!(restored.runs.len(), complete + usize::from(ends_at_newline), "{cut}");
        assert_eq!(
            restored.incomplete_line.is_some(),
            !ends_at_newline && cut > 0 && !text[..cut].ends_with('\n'),
            "{cut}"
        );
        assert!(restored.runs == completed.runs[..restored.runs.len()] && restored.complete_bytes <= cut);
        // The same number of restored runs gives the same answer.
        if last_count.replace(restored.runs.len()) == Some(restored.runs.len()) {
            continue;
        }
        assert_eq!(completed.answer_from_runs(&restored.runs).is_some(), restored.runs.len() == completed.runs.len());
        let missing =
            completed.runs.iter().filter(|run| restored.runs.iter().all(|other| other.key != run.key)).cloned();
        let runs: Vec<Run> = restored.runs.iter().cloned().chain(missing).collect();
        assert_eq!(runs.len(), completed.runs.len());
        assert_eq!(serde_json::to_string(&completed.answer_from_runs(&runs).unwrap()).unwrap(), expected);
    }
}

/// A shard without runs writes an empty line, and merges with the others.
#[test]
fn empty_lines_of_a_journal_are_skipped() {
    let completed = CompletedStudy::new(PAIR);
    let lines: String = completed.runs.iter().map(|run| format!("\n{}\r\n", journal::line(run).unwrap())).collect();
    let restored = journal::read(lines.as_bytes(), "runs.jsonl").unwrap();
    assert_eq!((restored.runs, restored.complete_bytes), (completed.runs, lines.len()));
    assert_eq!(journal::read(b"\n", "runs.jsonl").unwrap().runs, []);
}

#[test]
fn invalid_journal_lines_are_errors_with_line_number() {
    let completed = CompletedStudy::new(PAIR);
    let lines: Vec<String> = completed.runs.iter().map(|run| journal::line(run).unwrap()).collect();
    let insert_line = |line: &str| format!("{}{line}\n{}", lines[0], lines[1]);
    let later_format = lines[0].replacen("\"run\":2", "\"run\":3,\"hosts\":1", 1);
    let digit = lines[0].replacen("\"ranks\":4", "\"ranks\":5", 1);
    assert!(digit != lines[0]);
    let [key, other] = [0, 1].map(|index: usize| completed.runs[index].key.to_string());
    let moved = lines[0].replacen(&key, &other, 1);
    let retitled = lines[0].replacen(&completed.runs[0].title, "another title", 1);
    assert!(moved != lines[0] && retitled != lines[0]);
    for (line, expected) in [
        ("-", "runs.jsonl:2: not a run of a study"),
        ("{\"a\":1}", "runs.jsonl:2: not a run of a study"),
        ("hello", "runs.jsonl:2: not a run of a study: expected value, column 1"),
        (&lines[0][..lines[0].len() / 2], "runs.jsonl:2: not a run of a study"),
        (later_format.trim_end(), "runs.jsonl:2: format 3, but this version of fabricast reads format 2"),
        (digit.trim_end(), "runs.jsonl:2: damaged"),
        // The outcome is stored under the key of another run.
        (moved.trim_end(), "runs.jsonl:2: damaged"),
        (retitled.trim_end(), "runs.jsonl:2: damaged"),
    ] {
        let error = journal::read(insert_line(line).as_bytes(), "runs.jsonl").unwrap_err().to_string();
        assert!(error.starts_with(expected), "{line}: {error}");
    }
    let error = journal::read(b"\xff\xfe\n", "runs.jsonl").unwrap_err().to_string();
    assert!(error.contains("no text"), "{error}");
    assert_eq!(journal::read(b"\xff\xfe", "r").unwrap().incomplete_line, Some(1));
    assert_eq!(journal::read(b"", "r").unwrap(), journal::Journal::default());
    assert_eq!(journal::read(lines.concat().as_bytes(), "r").unwrap().runs, completed.runs);
    // The checksum of format 1 did not cover the key, so its lines are dropped and their runs are executed again.
    let outdated = lines.concat().replacen("\"run\":2", "\"run\":1", 1);
    let restored = journal::read(outdated.as_bytes(), "r").unwrap();
    assert_eq!(
        (restored.runs.as_slice(), restored.outdated, restored.complete_bytes),
        (&completed.runs[1..], 1, outdated.len())
    );
}

/// A line of a journal is read as a prediction from which the same line is made: training and inference with exchanges
/// of experts' tokens, inference that does not fit, and a trace.
#[test]
fn journal_lines_are_rewritten_unchanged() {
    let machine = "[[candidate]]\nname = \"two\"\nfabric = \"hgx-h100\"\nnodes = 2\ngpus = 2\n";
    let experts = "model = { layers = 4, hidden = 2048, heads = 16, vocab = 32000, seq = 1024, experts = 16, experts_per_token = 2 }\n";
    let text = format!(
        "{machine}[[job]]\nname = \"train\"\nglobal_batch = 32\nzero = 1\ndispatcher = \"deepep\"\nparallel = {{ dp = 4, ep = 4 }}\n{experts}\
         [[job]]\nname = \"serve\"\nkind = \"inference\"\nprompt_tokens = 100\noutput_tokens = 100\nconcurrency = 8\ndispatcher = \"deepep\"\n\
         parallel = {{ dp = 4, ep = 4 }}\n{experts}\
         [[job]]\nname = \"large\"\nkind = \"inference\"\nprompt_tokens = 100\noutput_tokens = 100\nconcurrency = 8\nttft_s = 1e-6\n\
         parallel = {{ tp = 4 }}\nmodel = {{ layers = 200, hidden = 16384, heads = 128, vocab = 32000, seq = 1024 }}\n\
         [[job]]\nname = \"log\"\nkind = \"trace\"\nfile = \"t.csv\"\nranks = 4\n"
    );
    let trace = b"collective,ranks,bytes,time_us\ncompute,0-1,,900.25\nall_reduce,,64MiB,\n";
    let completed = CompletedStudy::with_traces(&text, &|name| Ok(vec![(name.to_owned(), trace.to_vec())]));
    let lines: Vec<String> = completed.runs.iter().map(|run| journal::line(run).unwrap()).collect();
    let restored = journal::read(lines.concat().as_bytes(), "r").unwrap();
    assert_eq!(restored.runs.iter().map(|run| journal::line(run).unwrap()).collect::<Vec<_>>(), lines);
    let answer = |runs: &[Run]| serde_json::to_string(&completed.answer_from_runs(runs).unwrap()).unwrap();
    assert_eq!(answer(&restored.runs), answer(&completed.runs));
    let rows = completed.answer().results;
    assert_eq!(rows.len(), 4);
    assert!(rows.iter().any(|row| !row.exchanges.is_empty()) && rows.iter().any(|row| row.memory_excess_gb.is_some()));
}
