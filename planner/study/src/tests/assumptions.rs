//! Tests of assumptions for machines that lack, or do not state, a property that a job needs.

use super::*;

/// Each machine uses the library of its vendor. The library's strategies are not faster than the fastest strategy.
#[test]
fn machines_use_the_library_of_their_vendor() {
    let study = |collectives: &str| {
        let answer = CompletedStudy::new(&format!(
            "[[candidate]]\nname = \"amd\"\nfabric = \"mi300x\"\n[[candidate]]\nname = \"nvidia\"\nfabric = \"hgx-h100\"\n\
             [[job]]\nname = \"j\"\nglobal_batch = 8\nparallel = {{ tp = 8, sequence = true }}\ncollectives = \"{collectives}\"\n\
             model = {{ layers = 4, hidden = 4096, heads = 32, vocab = 32000, seq = 2048 }}\n"
        ))
        .answer();
        let time = |name: &str| answer.results.iter().find(|row| row.candidate == name).unwrap().step_time_s;
        let times = ["amd", "nvidia"].map(time);
        (times, answer.results.iter().map(|row| row.notes.len()).collect::<Vec<_>>(), answer.notes)
    };
    let (library_times, library_notes, notes) = study("library");
    let (any_times, any_notes, _) = study("any");
    assert!(library_times[0] >= any_times[0], "{library_times:?} {any_times:?}");
    assert!(library_times[1] > any_times[1]);
    assert_eq!((library_notes, any_notes), (vec![0, 0], vec![0, 0]));
    assert!(!notes.iter().any(|note| note.contains("does not run on these GPUs")), "{notes:?}");
}

/// Offloaded data uses CPU memory. In GH200, a Grace CPU has 120 GB for its GPU; L40S hosts do not state their memory.
#[test]
fn offloaded_data_counts_against_known_cpu_memory() {
    let study = |fabric: &str, concurrency: u32| {
        let answer = CompletedStudy::new(&format!(
            "[[candidate]]\nname = \"a\"\nfabric = \"{fabric}\"\n\
             [[job]]\nname = \"j\"\nkind = \"inference\"\nprompt_tokens = 30000\noutput_tokens = 200\nconcurrency = {concurrency}\n\
             parallel = {{ tp = 1 }}\nkv_tier = \"host\"\n\
             model = {{ layers = 32, hidden = 4096, heads = 32, kv_heads = 8, ffn = 14336, gated = true, vocab = 32000 }}\n"
        ))
        .answer();
        let row = answer.results[0].clone();
        (
            row.fits,
            row.host_memory_excess_gb,
            row.requests_that_fit,
            row.notes.iter().filter(|note| note.contains("CPU") || note.contains("wait")).count(),
            answer.ranking[0].violations.clone(),
        )
    };
    // 3.96 GB per request: 30 requests on each of four GPUs.
    assert_eq!(study("gh200", 120), (true, None, Some(120), 0, vec![]));
    // The other requests wait.
    assert_eq!(study("gh200", 65_536), (true, None, Some(120), 1, vec![]));
    let (fits, excess, .., note_count, _) = study("l40s-pcie", 4096);
    assert_eq!((fits, excess, note_count), (true, None, 1));
}

/// A rack of 72 GPUs leaves eight GPUs idle if the job cannot be divided among all of them. The answer notes it, the
/// whole rack is paid for, and the time equals that of an explicit placement on 64 GPUs.
#[test]
fn indivisible_racks_leave_gpus_idle() {
    let answer = CompletedStudy::new(
        "[[candidate]]\nname = \"rack\"\nfabric = \"gb200-nvl72\"\nprice_usd = 3e6\npower_kw = 120\n\
         [[job]]\nname = \"auto\"\nglobal_batch = 64\nparallel = \"auto\"\nMODEL\n\
         [[job]]\nname = \"named\"\nglobal_batch = 64\nparallel = \"auto\"\nplacement = \"0-63\"\nMODEL\n"
            .replace("MODEL", "model = { layers = 8, hidden = 4096, heads = 32, vocab = 32000, seq = 2048 }")
            .as_str(),
    )
    .answer();
    let [auto, named] = answer.results.as_slice() else { panic!("{:?}", answer.results) };
    assert_eq!((auto.ranks, auto.step_time_s, auto.cost_per_hour), (64, named.step_time_s, named.cost_per_hour));
    // 72 sequences are an eighth more than 64.
    let note =
        "8 of 72 GPUs are idle: no layout of the job uses more, and all are paid for (global_batch = 72 would use all)";
    assert_eq!((auto.notes.as_slice(), named.notes.len()), ([note.to_owned()].as_slice(), 0));
    assert_eq!(answer.notes, [format!("{note}: auto on rack")]);
}

/// Runs that were cached under another job name give the same answer, including rejected runs.
#[test]
fn cached_runs_do_not_contain_names() {
    let study = |name: &str| {
        CompletedStudy::new(&format!(
            "{MACHINES}[[job]]\nname = \"{name}\"\nglobal_batch = 8000000\nparallel = {{ tp = 1 }}\nrecompute = \"selective\"\nflash_attention = true\n\
             model = {{ layers = 2, hidden = 2048, heads = 8, vocab = 512, seq = 512 }}\n"
        ))
    };
    let (before, after) = (study("before"), study("after"));
    let [cached, recomputed] =
        [&before.runs, &after.runs].map(|runs| serde_json::to_string(&after.answer_from_runs(runs).unwrap()).unwrap());
    assert_eq!(cached, recomputed);
    assert!(
        recomputed.contains("after: 8000000 micro-batches")
            && recomputed.contains("has no effect")
            && !recomputed.contains("before"),
        "{recomputed}"
    );
}
