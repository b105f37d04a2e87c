//! Tests of several communicators and threads, and of the log messages about choices.

use std::ffi::c_int;

use crate::library::{Call, Communicator, VERSIONS, Version};
use crate::oracle::outcome;

const TABLE: &str = "\
# fabric, profile
allreduce,0,65535,tree,ll,2,1,4
allreduce,65536,18446744073709551615,ring,simple,24,1,4
allreduce,0,18446744073709551615,nvls,simple,16,1,8
allgather,0,1023,ring,ll,1,-1,-1,-1,1
allgather,0,18446744073709551615,pat,simple,-1,2,-1
broadcast,0,18446744073709551615,collnet_chain,simple,8,-1,-1
";

fn call(function: c_int, bytes: usize, registered: c_int) -> Call {
    Call { function, bytes, operations: 1, registered }
}

#[test]
fn communicators_have_their_own_rows_and_threads_share_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("table.csv");
    std::fs::write(&path, TABLE).unwrap();
    let communicators: Vec<(Communicator, i64, i64)> = [(4, 1), (8, 1), (16, 2), (4, 1), (3, 3)]
        .into_iter()
        .enumerate()
        .map(|(i, (ranks, nodes))| {
            let created = Communicator::new(VERSIONS[i % VERSIONS.len()], Some(&path), ranks as usize, nodes as usize);
            (created, ranks, nodes)
        })
        .collect();
    // The file is read only when a communicator is created.
    std::fs::write(&path, "nonsense").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8_usize {
            let communicators = &communicators;
            scope.spawn(move || {
                for round in 0..2000_usize {
                    let (communicator, ranks, nodes) = &communicators[(thread + round) % communicators.len()];
                    let call = call((round % 5) as c_int, 1 << (round % 33), (round % 2) as c_int);
                    let mut costs = [7.0_f32; 21];
                    costs[(thread + round / 7) % 21] = -1.0;
                    let expected = outcome(TABLE, *nodes, *ranks, call, &costs);
                    assert_eq!(communicator.ask(call, &costs, 7, 3), expected, "{call:?}");
                }
            });
        }
    });
}

#[test]
fn choices_and_obstacles_are_logged_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("table.csv");
    std::fs::write(&path, TABLE).unwrap();
    let communicator = Communicator::new(Version::Five, Some(&path), 4, 1);
    assert!(
        communicator.messages[0].1.contains("4 of 6 rows are for 4 ranks on 1 nodes"),
        "{:?}",
        communicator.messages
    );
    let ((), messages) = crate::library::with_file("FABRICAST_TUNER_FILE", None, || {
        let costs = [7.0; 21];
        let mut without_chain = costs;
        without_chain[3 * 3 + 2] = -1.0;
        for _ in 0..3 {
            communicator.ask(call(4, 100, 0), &costs, 7, 3);
            communicator.ask(call(4, 200, 0), &costs, 7, 3);
            communicator.ask(call(4, 1 << 20, 0), &costs, 7, 3);
            communicator.ask(call(3, 1 << 20, 0), &costs, 7, 3);
            communicator.ask(call(0, 64, 0), &costs, 7, 3);
            communicator.ask(call(0, 64, 0), &without_chain, 7, 3);
        }
    });
    let messages: Vec<&str> = messages
        .iter()
        .map(|(level, text)| {
            assert_eq!(*level, 3);
            text.as_str()
        })
        .collect();
    assert_eq!(
        messages,
        [
            "TUNER/fabricast: AllReduce of 100 bytes: Tree LL on 2 channels (line 2)",
            "TUNER/fabricast: AllReduce of 1048576 bytes: Ring Simple on 24 channels (line 3)",
            "TUNER/fabricast: ReduceScatter of 1048576 bytes: the table has no row; NCCL chooses",
            "TUNER/fabricast: Broadcast of 64 bytes: CollNetChain Simple, channels selected by NCCL (line 7)",
            "TUNER/fabricast: Broadcast of 64 bytes: not CollNetChain Simple (line 7): NCCL cannot run it here",
        ]
    );
}
