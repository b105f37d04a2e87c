//! Assumptions for machines that lack or do not state what a job needs.

use super::*;

/// NCCL does not support AMD GPUs: any strategy is allowed there, and the answer notes it.
#[test]
fn unsupported_libraries_allow_any_strategy() {
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

/// Offloaded data uses CPU memory: a Grace has 120 GB for its GPU in GH200; L40S hosts do not state their memory.
#[test]
fn offloaded_data_counts_against_known_cpu_memory() {
    let study = |fabric: &str, concurrency: u32| {
        let answer = Made::of(&format!(
            "[[candidate]]\nname = \"a\"\nfabric = \"{fabric}\"\n\
             [[job]]\nname = \"j\"\nkind = \"inference\"\nprompt_tokens = 30000\noutput_tokens = 200\nconcurrency = {concurrency}\n\
             parallel = {{ tp = 1 }}\nkv_tier = \"host\"\n\
             model = {{ layers = 32, hidden = 4096, heads = 32, kv_heads = 8, ffn = 14336, gated = true, vocab = 32000 }}\n"
        ))
        .answer();
        let row = answer.results[0].clone();
        (row.fits, row.host_memory_beyond_gb, row.requests_that_fit, row.notes.len(), answer.ranking[0].beyond.clone())
    };
    // 3.96 GB per request: 30 requests on each of four GPUs.
    assert_eq!(study("gh200", 120), (true, None, Some(120), 0, vec![]));
    let (fits, beyond, most, _, why) = study("gh200", 65_536);
    assert!(!fits && most == Some(120) && beyond > Some(60_000.0), "{beyond:?} {most:?}");
    assert!(why[0].ends_with("GB of a GPU's part of the CPUs' memory (concurrency = 120 would fit)"), "{why:?}");
    let (fits, beyond, .., said, _) = study("l40s-pcie", 4096);
    assert_eq!((fits, beyond, said), (true, None, 1));
}

/// A rack of 72 GPUs leaves eight idle if the job does not divide among all. The answer notes it, the whole rack is
/// paid for, and the time equals that of an explicit placement on 64.
#[test]
fn indivisible_racks_leave_gpus_idle() {
    let answer = Made::of(
        "[[candidate]]\nname = \"rack\"\nfabric = \"gb200-nvl72\"\nprice_usd = 3e6\npower_kw = 120\n\
         [[job]]\nname = \"auto\"\nglobal_batch = 64\nparallel = \"auto\"\nMODEL\n\
         [[job]]\nname = \"named\"\nglobal_batch = 64\nparallel = \"auto\"\nplacement = \"0-63\"\nMODEL\n"
            .replace("MODEL", "model = { layers = 8, hidden = 4096, heads = 32, vocab = 32000, seq = 2048 }")
            .as_str(),
    )
    .answer();
    let [auto, named] = answer.results.as_slice() else { panic!("{:?}", answer.results) };
    assert_eq!((auto.ranks, auto.step_time_s, auto.cost_per_hour), (64, named.step_time_s, named.cost_per_hour));
    // (72 sequences are an eighth more than 64.)
    let said = "8 of 72 GPUs are spares: nothing divides the job among more, and all are paid for (all would be at work with global_batch = 72)";
    assert_eq!((auto.notes.as_slice(), named.notes.len()), ([said.to_owned()].as_slice(), 0));
    assert_eq!(answer.notes, [format!("{said}: auto on rack")]);
}

/// Runs cached under another job name yield the same answer, including rejected ones.
#[test]
fn cached_runs_do_not_contain_names() {
    let study = |name: &str| {
        Made::of(&format!(
            "{MACHINES}[[job]]\nname = \"{name}\"\nglobal_batch = 8000000\nparallel = {{ tp = 1 }}\nrecompute = \"selective\"\nflash_attention = true\n\
             model = {{ layers = 2, hidden = 2048, heads = 8, vocab = 512, seq = 512 }}\n"
        ))
    };
    let (before, after) = (study("before"), study("after"));
    let [kept, anew] =
        [&before.runs, &after.runs].map(|runs| serde_json::to_string(&after.answer_of(runs).unwrap()).unwrap());
    assert_eq!(kept, anew);
    assert!(
        anew.contains("after: 8000000 micro-batches") && anew.contains("changes nothing") && !anew.contains("before"),
        "{anew}"
    );
}
