//! Tests with shell scripts instead of the processes. The scripts answer, fail, or end unexpectedly.

use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank};

use super::*;
use crate::execute::nvshmem::NvshmemMethod;

const BEGUN: &str = r#"read line; echo '{"said":{"begun":{"version":"3.4.5","id":[1]}}}' >&0;"#;
const JOINED: &str = r#"read line; echo '{"said":{"joined":{"nccl":null}}}' >&0;"#;
const DONE: &str = r#"read line; echo '{"said":{"performed":{"shape":null,"raw":null}}}' >&0;"#;

fn ranks(scripts: &[String], patience: Duration) -> NvshmemRanks {
    let setting = LaunchSettings {
        library: None,
        ranks: scripts.len(),
        largest_call: Bytes(64),
        offset: Bytes(0),
        time_limit: patience,
    };
    let scripts = scripts.to_vec();
    NvshmemRanks::new(setting, move |rank| {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &scripts[rank]]);
        command
    })
}

fn schedule() -> Schedule {
    let call = Call {
        collective: Collective::AllReduce,
        bytes: Bytes(64),
        ranks: 2,
        root: Rank(0),
        buffers: BufferUse::OutOfPlace,
    };
    Schedule::build(generator(Algorithm::OneShot, &Shape::new(call, Protocol::Symmetric)).unwrap().as_ref()).unwrap()
}

fn run_all_reduce(ranks: &mut NvshmemRanks) -> Result<RunResult, ExecuteError> {
    let request = RunRequest {
        method: NvshmemMethod::Puts,
        carrier: None,
        shape: None,
        offset: Bytes(0),
        rounds: vec![1],
        series_calls: 0,
        seed: 1,
        effort: None,
    };
    ranks.run(&schedule(), DataType::F32, ReduceOp::Sum, &request)
}

#[test]
fn consecutive_runs_share_processes() {
    let script = format!("{BEGUN} {JOINED} {DONE} {DONE} read line");
    let mut ranks = ranks(&[script.clone(), script], Duration::from_secs(20));
    for _ in 0..2 {
        assert_eq!(run_all_reduce(&mut ranks).unwrap(), RunResult { shape: None, times: None });
    }
    assert_eq!(ranks.version(), Some("3.4.5"));
}

#[test]
fn unsupported_run_keeps_processes_alive() {
    let refused = r#"read line; echo '{"said":{"unsupported":{"reason":"no such type"}}}' >&0;"#;
    let script = format!("{BEGUN} {JOINED} {refused} {DONE} read line");
    let mut ranks = ranks(&[script.clone(), script], Duration::from_secs(20));
    let error = run_all_reduce(&mut ranks).unwrap_err();
    assert!(matches!(&error, ExecuteError::Unsupported { reason, .. } if reason == "no such type"), "{error}");
    assert!(run_all_reduce(&mut ranks).is_ok());
}

#[test]
fn failure_is_reported_despite_hanging_peers_and_processes_restart() {
    let wrong = r#"{"said":{"failed":{"wrong":{"rank":1,"index":3,"count":2,"found":1,"expected":2,"number":2}}}}"#;
    let failing = format!("{BEGUN} {JOINED} read line; echo '{wrong}' >&0; read line");
    let hanging = format!("{BEGUN} {JOINED} exec sleep 600");
    let mut ranks = ranks(&[hanging, failing], Duration::from_secs(20));
    for _ in 0..2 {
        let error = run_all_reduce(&mut ranks).unwrap_err();
        assert!(matches!(error, ExecuteError::Wrong { rank: 1, index: 3, .. }), "{error}");
    }
}

#[test]
fn dead_process_is_reported_with_signal_and_output() {
    let dying = format!("{BEGUN} {JOINED} read line; echo 'GPU fell off the bus' >&2; kill -11 $$");
    let hanging = format!("{BEGUN} {JOINED} exec sleep 600");
    let mut ranks = ranks(&[hanging, dying], Duration::from_secs(20));
    let error = run_all_reduce(&mut ranks).unwrap_err().to_string();
    assert!(error.contains("rank 1") && error.contains("signal 11") && error.contains("off the bus"), "{error}");
}

#[test]
fn missing_library_message_is_passed_on() {
    let missing = r#"read line; echo '{"said":{"failed":{"other":{"message":"NVSHMEM is not on this machine"}}}}' >&0; read line"#;
    let error =
        run_all_reduce(&mut ranks(&[missing.to_owned(), missing.to_owned()], Duration::from_secs(20))).unwrap_err();
    assert!(error.to_string().contains("NVSHMEM is not on this machine"), "{error}");
}

#[test]
fn unexpected_answers_are_rejected() {
    let error = run_all_reduce(&mut ranks(&[JOINED.to_owned()], Duration::from_secs(20))).unwrap_err();
    assert!(error.to_string().contains("unexpected response"), "{error}");
    let error =
        run_all_reduce(&mut ranks(&["echo nonsense >&0; read line".to_owned()], Duration::from_secs(20))).unwrap_err();
    assert!(error.to_string().contains("nonsense"), "{error}");
}
