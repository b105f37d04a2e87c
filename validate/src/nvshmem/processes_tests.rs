//! Tests with processes that end, hang, send invalid messages or behave correctly: shell scripts whose standard input
//! is the socket.

use super::*;

const SOON: Duration = Duration::from_secs(20);

fn shell(scripts: &'static [&'static str]) -> Processes {
    Processes::start(scripts.len(), |rank| {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", scripts[rank]]);
        command
    })
    .unwrap()
}

/// Messages of the ranks, without a condition that ends the wait early.
fn receive_all(processes: &mut Processes, ranks: &[usize], limit: Duration) -> Result<Vec<String>, NvshmemError> {
    Ok(processes.receive(ranks, limit, |_| false)?.into_iter().map(|(_, message)| message).collect())
}

fn is_gone(id: u32) -> bool {
    // A reaped process has no entry in /proc.
    !std::path::Path::new(&format!("/proc/{id}")).exists()
}

#[test]
fn messages_are_returned_in_rank_order() {
    let mut processes = shell(&[
        r#"read line; echo "{\"said\":\"one got $line\"}" >&0; read line"#,
        r#"echo '"alive"' >&0; echo '{"said":"two"}' >&0; read line"#,
    ]);
    processes.send(0, &7).unwrap();
    assert_eq!(receive_all(&mut processes, &[0, 1], SOON).unwrap(), ["one got 7", "two"]);
}

#[test]
fn dead_process_is_reported_with_its_output() {
    let mut processes = shell(&["read line; exit 0", "echo 'the library says: no such device' >&2; exit 7"]);
    let ids: Vec<u32> = processes.all.iter().map(|started| started.child.id()).collect();
    let error = receive_all(&mut processes, &[0, 1], SOON).unwrap_err().to_string();
    assert!(error.contains("rank 1") && error.contains("exit code 7") && error.contains("no such device"), "{error}");
    drop(processes);
    assert!(ids.into_iter().all(is_gone));
}

#[test]
fn killed_process_is_reported_with_signal() {
    let mut processes = shell(&["kill -9 $$"]);
    let error = receive_all(&mut processes, &[0], SOON).unwrap_err().to_string();
    assert!(error.contains("rank 0") && error.contains("signal 9"), "{error}");
}

#[test]
fn silent_process_times_out_and_is_killed() {
    let mut processes = shell(&[r#"echo '{"said":"here"}' >&0; read line"#, "exec sleep 600"]);
    let ids: Vec<u32> = processes.all.iter().map(|started| started.child.id()).collect();
    let error = receive_all(&mut processes, &[0, 1], Duration::from_millis(300)).unwrap_err();
    assert!(matches!(&error, NvshmemError::Silent { waiting, .. } if *waiting == [1]), "{error}");
    drop(processes);
    assert!(ids.into_iter().all(is_gone));
}

#[test]
fn signs_of_life_restart_time_limit() {
    let mut processes = shell(&[
        r#"for i in 1 2 3 4 5 6; do sleep 0.2; echo '"alive"' >&0; done; echo '{"said":"done"}' >&0; read line"#,
    ]);
    assert_eq!(receive_all(&mut processes, &[0], Duration::from_secs(1)).unwrap(), ["done"]);
}

#[test]
fn garbage_is_reported_with_rank() {
    let mut processes = shell(&["read line", "echo 'Segmentation fault? {' >&0; read line"]);
    let error = receive_all(&mut processes, &[0, 1], SOON).unwrap_err().to_string();
    assert!(error.contains("rank 1") && error.contains("Segmentation fault?"), "{error}");
    // A message of the wrong type and an additional message are rejected as well.
    let mut processes = shell(&[r#"echo '{"said":7}' >&0; read line"#]);
    assert!(matches!(receive_all(&mut processes, &[0], SOON).unwrap_err(), NvshmemError::Garbage { .. }));
    let mut processes = shell(&[r#"echo '{"said":"a"}' >&0; echo '{"said":"b"}' >&0; read line"#, "read line"]);
    assert!(matches!(receive_all(&mut processes, &[0, 1], SOON).unwrap_err(), NvshmemError::Garbage { rank: 0, .. }));
}

#[test]
fn failed_start_names_rank() {
    let error = Processes::start(2, |_| Command::new("/nowhere/fabricast")).unwrap_err().to_string();
    assert!(error.contains("rank 0") && error.contains("cannot be started"), "{error}");
}

#[test]
fn sending_to_dead_process_reports_its_exit() {
    let mut processes = shell(&["exit 3"]);
    while processes.send(0, &"hello").is_ok() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let error = processes.send(0, &"hello").unwrap_err().to_string();
    assert!(error.contains("rank 0") && error.contains("exit code 3"), "{error}");
}

#[test]
fn ending_message_stops_the_wait() {
    let mut processes = shell(&["exec sleep 600", r#"echo '{"said":"it failed"}' >&0; read line"#]);
    let received = processes.receive::<String>(&[0, 1], SOON, |message| message.contains("failed")).unwrap();
    assert_eq!(received, [(1, "it failed".to_owned())]);
}

#[test]
fn multicast_is_disabled() {
    assert!(environment().contains(&("NVSHMEM_DISABLE_NVLS", "1")));
}
