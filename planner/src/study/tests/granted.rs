//! What figures take for granted where a machine lacks what a job asks for, or does not say.

use super::*;

/// NCCL is not for AMD's GPUs: calls take what is fastest there, whatever a job keeps to, and the answer says so.
#[test]
fn libraries_are_kept_to_where_they_run() {
    let study = |collectives: &str| {
        let answer = Made::of(&format!(
            "[[candidate]]\nname = \"amd\"\nfabric = \"mi300x\"\n[[candidate]]\nname = \"nvidia\"\nfabric = \"hgx-h100\"\n\
             [[job]]\nname = \"j\"\nglobal_batch = 8\nparallel = {{ tp = 8, sequence = true }}\ncollectives = \"{collectives}\"\n\
             model = {{ layers = 4, hidden = 4096, heads = 32, vocab = 32000, seq = 2048 }}\n"
        ))
        .answer();
        let time = |name: &str| answer.results.iter().find(|row| row.candidate == name).unwrap().step_time_s;
        let times = ["amd", "nvidia"].map(time);
        (times, answer.results.iter().map(|row| row.notes.len()).collect::<Vec<_>>(), answer.notes)
    };
    let (kept, said, notes) = study("library");
    let (any, unsaid, _) = study("any");
    assert_eq!(kept[0], any[0]);
    assert!(kept[1] > any[1]);
    assert_eq!((said, unsaid), (vec![1, 0], vec![0, 0]));
    let note = notes.iter().find(|note| note.contains("does not run on these GPUs")).unwrap();
    assert!(note.starts_with("nccl-") && note.ends_with(": amd"), "{note}");
}
