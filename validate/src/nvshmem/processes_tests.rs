//! Processes that die, hang, talk nonsense or do as they should: shell scripts, whose standard input is the socket.

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

/// What ranks say, with nothing that ends the waiting.
fn hear(processes: &mut Processes, ranks: &[usize], limit: Duration) -> Result<Vec<String>, NvshmemError> {
    Ok(processes.hear(ranks, limit, |_| false)?.into_iter().map(|(_, said)| said).collect())
}

fn is_gone(id: u32) -> bool {
    // A process that was waited for has no entry any more.
    !std::path::Path::new(&format!("/proc/{id}")).exists()
}

#[test]
fn what_processes_say_is_heard_in_their_order() {
    let mut processes = shell(&[
        r#"read line; echo "{\"said\":\"one got $line\"}" >&0; read line"#,
        r#"echo '"alive"' >&0; echo '{"said":"two"}' >&0; read line"#,
    ]);
    processes.tell(0, &7).unwrap();
    assert_eq!(hear(&mut processes, &[0, 1], SOON).unwrap(), ["one got 7", "two"]);
}

#[test]
fn a_process_that_dies_is_named_with_what_it_wrote() {
    let mut processes = shell(&["read line; exit 0", "echo 'the library says: no such device' >&2; exit 7"]);
    let ids: Vec<u32> = processes.all.iter().map(|started| started.child.id()).collect();
    let error = hear(&mut processes, &[0, 1], SOON).unwrap_err().to_string();
    assert!(error.contains("rank 1") && error.contains("exit code 7") && error.contains("no such device"), "{error}");
    drop(processes);
    assert!(ids.into_iter().all(is_gone));
}

#[test]
fn a_process_that_is_killed_is_named_with_the_signal() {
    let mut processes = shell(&["kill -9 $$"]);
    let error = hear(&mut processes, &[0], SOON).unwrap_err().to_string();
    assert!(error.contains("rank 0") && error.contains("signal 9"), "{error}");
}

#[test]
fn a_process_that_says_nothing_is_given_up_and_killed() {
    let mut processes = shell(&[r#"echo '{"said":"here"}' >&0; read line"#, "exec sleep 600"]);
    let ids: Vec<u32> = processes.all.iter().map(|started| started.child.id()).collect();
    let error = hear(&mut processes, &[0, 1], Duration::from_millis(300)).unwrap_err();
    assert!(matches!(&error, NvshmemError::Silent { waiting, .. } if *waiting == [1]), "{error}");
    drop(processes);
    assert!(ids.into_iter().all(is_gone));
}

#[test]
fn whoever_is_alive_gets_time_anew() {
    let mut processes = shell(&[
        r#"for i in 1 2 3 4 5 6; do sleep 0.2; echo '"alive"' >&0; done; echo '{"said":"done"}' >&0; read line"#,
    ]);
    assert_eq!(hear(&mut processes, &[0], Duration::from_secs(1)).unwrap(), ["done"]);
}

#[test]
fn garbage_is_shown_with_its_rank() {
    let mut processes = shell(&["read line", "echo 'Segmentation fault? {' >&0; read line"]);
    let error = hear(&mut processes, &[0, 1], SOON).unwrap_err().to_string();
    assert!(error.contains("rank 1") && error.contains("Segmentation fault?"), "{error}");
    // Neither is a message of the wrong kind, nor one too many.
    let mut processes = shell(&[r#"echo '{"said":7}' >&0; read line"#]);
    assert!(matches!(hear(&mut processes, &[0], SOON).unwrap_err(), NvshmemError::Garbage { .. }));
    let mut processes = shell(&[r#"echo '{"said":"a"}' >&0; echo '{"said":"b"}' >&0; read line"#, "read line"]);
    assert!(matches!(hear(&mut processes, &[0, 1], SOON).unwrap_err(), NvshmemError::Garbage { rank: 0, .. }));
}

#[test]
fn what_cannot_be_started_is_named() {
    let error = Processes::start(2, |_| Command::new("/nowhere/fabricast")).unwrap_err().to_string();
    assert!(error.contains("rank 0") && error.contains("cannot be started"), "{error}");
}

#[test]
fn saying_something_to_a_dead_process_is_its_death() {
    let mut processes = shell(&["exit 3"]);
    while processes.tell(0, &"hello").is_ok() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let error = processes.tell(0, &"hello").unwrap_err().to_string();
    assert!(error.contains("rank 0") && error.contains("exit code 3"), "{error}");
}

#[test]
fn a_message_that_ends_the_waiting_does() {
    let mut processes = shell(&["exec sleep 600", r#"echo '{"said":"it failed"}' >&0; read line"#]);
    let heard = processes.hear::<String>(&[0, 1], SOON, |said| said.contains("failed")).unwrap();
    assert_eq!(heard, [(1, "it failed".to_owned())]);
}

#[test]
fn multicast_stays_off() {
    assert!(environment().contains(&("NVSHMEM_DISABLE_NVLS", "1")));
}
