//! Tests of the placement of ranks that a job states.

use super::*;

/// An explicit placement in rank order equals the default, in the answer and in keys. Another placement changes both,
/// and the link loads change accordingly.
#[test]
fn placement_is_part_of_key_and_answer() {
    let run_study = |placement: &str| {
        let jobs = [
            "global_batch = 8\nparallel = { tp = 2 }",
            "kind = \"inference\"\nprompt_tokens = 300\noutput_tokens = 20\nconcurrency = 8\nkv_tier = \"peer\"\nparallel = { tp = 2 }",
        ];
        let model = "model = { layers = 2, hidden = 2048, heads = 8, vocab = 512, seq = 512 }";
        let machine = "[[candidate]]\nname = \"two\"\nfabric = \"hgx-h100\"\nnodes = 2\ngpus = 2\n";
        let jobs =
            jobs.iter().enumerate().map(|(i, job)| format!("[[job]]\nname = \"j{i}\"\n{model}\n{placement}{job}\n"));
        CompletedStudy::new(&format!("{machine}{}", jobs.collect::<String>()))
    };
    let json =
        |completed: &CompletedStudy| serde_json::to_string(&Answer { jobs: Vec::new(), ..completed.answer() }).unwrap();
    let plain = run_study("");
    for placement in ["placement = [0, 1, 2, 3]\n", "placement = \"0-3\"\n", "placement = \"block\"\n"] {
        let same = run_study(placement);
        assert_eq!(same.cases.study(), plain.cases.study());
        assert_eq!(json(&same), json(&plain));
        assert!(same.answer().jobs.iter().all(|job| job.placement.is_none()));
    }
    let cyclic = run_study("placement = \"cyclic\"\n");
    assert_ne!(cyclic.cases.study(), plain.cases.study());
    let answers = [plain.answer(), cyclic.answer()];
    for (near, far) in answers[0].results.iter().zip(&answers[1].results) {
        assert!(far.step_time_s > near.step_time_s, "{far:?} {near:?}");
        for (near_call, far_call) in near.calls.iter().zip(&far.calls) {
            assert_eq!(
                (near_call.bytes, near_call.ranks, near_call.groups, near_call.times),
                (far_call.bytes, far_call.ranks, far_call.groups, far_call.times)
            );
        }
    }
    assert_eq!(answers[1].jobs[0].placement.as_deref(), Some("cyclic"));
    // Only tensor-parallel calls of the inference job cross hosts, and only with cyclic placement.
    let cable_load = |completed: &CompletedStudy| -> f64 {
        let (fabric, job) = (&completed.fabrics[0], &completed.study.jobs[1]);
        let prediction = completed.answer().saved_prediction("two", job.name()).unwrap();
        let load = link_utilization::compute_utilization(job, &prediction, fabric).unwrap();
        let cables = fabric.links().filter(|(_, link)| link.kind == fabricast_topologies::LinkKind::Infiniband);
        cables.map(|(id, _)| load[id.0 as usize]).sum()
    };
    assert!(cable_load(&plain) == 0.0 && cable_load(&cyclic) > 0.0, "{} {}", cable_load(&plain), cable_load(&cyclic));
}

#[test]
fn invalid_placements_are_rejected_before_runs() {
    let error_message = |placement: &str| {
        let text = PAIR.replacen("parallel = { tp = 2 }", &format!("placement = {placement}\nparallel = \"auto\""), 1);
        let study = read_study(&text, "s.toml").unwrap();
        let fabrics: Vec<_> = study.candidates.iter().map(|candidate| load(&candidate.fabric).unwrap()).collect();
        match check(&study, &fabrics) {
            Err(error @ StudyError::Job { .. }) => error.to_string(),
            other => panic!("{other:?}"),
        }
    };
    assert!(
        error_message("[0, 9, 1, 2]")
            .starts_with("s.toml:17:17: placement: GPU 9 of rank 1: the candidate has 4 GPUs, 0 to 3")
    );
    assert!(error_message("\"0-4\"").starts_with("s.toml:17:13: placement: 5 ranks, and the candidate has 4 GPUs"));
    assert!(error_message("\"0-4\"").ends_with("(candidate `two`)"));
}
