//! Tests with published plans, and with plans that have one error each.

use proptest::prelude::*;

use super::{from_plan, to_plan};
use crate::schedule::{OpKind, Schedule};
use crate::verify::{VerifyOptions, verify};

fn text(name: &str) -> String {
    let path = format!("{}/../tests/data/schedules/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

fn sample(name: &str) -> Schedule {
    from_plan(&text(name), name).unwrap()
}

fn outcome(schedule: &Schedule) -> Result<u64, String> {
    verify(schedule, &VerifyOptions::default()).map(|v| v.operations).map_err(|fault| fault.to_string())
}

#[test]
fn published_plans_compute_their_collective() {
    for (name, operations) in
        [("mscclpp-allreduce.json", 64), ("mscclpp-allreduce_packet.json", 12), ("mscclpp-transfer_pack.json", 5)]
    {
        assert_eq!(outcome(&sample(name)), Ok(operations), "{name}");
    }
}

#[test]
fn published_reduce_is_valid_without_its_unused_copy() {
    // GPU 0 copies chunks 2 and 3 into its scratch buffer, but GPU 1 reads them in the input of GPU 0.
    let text = text("mscclpp-reduce.json");
    let fault = outcome(&from_plan(&text, "reduce").unwrap()).unwrap_err();
    assert!(
        fault.starts_with(
            "operation 0 (rank 0, channel 0, local copy): writes scratch chunk 2 of rank 0, which is never read"
        ),
        "{fault}"
    );
    let mut plan: serde_json::Value = serde_json::from_str(&text).unwrap();
    let ops = plan["gpus"][0]["threadblocks"][0]["ops"].as_array_mut().unwrap();
    assert_eq!(ops.remove(0)["name"], "copy");
    assert_eq!(outcome(&from_plan(&plan.to_string(), "reduce").unwrap()), Ok(13));
}

/// Returns a plan for two GPUs with the given thread blocks. Each GPU has a channel to the other and access to all its
/// buffers.
fn pair(collective: &str, blocks: [&[&[&str]]; 2]) -> String {
    let gpu = |id: usize| {
        let block = |(number, ops): (usize, &&[&str])| {
            format!(
                r#"{{"id": {number}, "ops": [{}], "channels": [{{"channel_type": "memory", "channel_ids": [0]}}],
                "remote_buffer_refs": [{{"access_channel_type": "memory", "remote_buffer_ids": [0, 1, 2]}}]}}"#,
                ops.join(",\n")
            )
        };
        let blocks: Vec<String> = blocks[id].iter().enumerate().map(block).collect();
        let peer = 1 - id;
        let remote = |letter| format!(r#"{{"rank": {peer}, "type": "{letter}", "access_channel_types": ["memory"]}}"#);
        format!(
            r#"{{"id": {id}, "input_chunks": 2, "output_chunks": 2, "scratch_chunks": 2,
            "channels": [{{"channel_type": "memory", "connected_to": [{peer}]}}],
            "remote_buffers": [{}, {}, {}], "semaphores": [{{"init_value": 0}}],
            "threadblocks": [{}]}}"#,
            remote("i"),
            remote("o"),
            remote("s"),
            blocks.join(",\n")
        )
    };
    format!(
        r#"{{"name": "pair", "collective": "{collective}", "protocol": "Simple", "inplace": false,
        "gpus": [{},
        {}], "min_message_size": 0, "max_message_size": 64}}"#,
        gpu(0),
        gpu(1)
    )
}

const SIGNAL: &str = r#"{"name": "signal", "channel_ids": [0], "channel_type": "memory"}"#;
const WAIT: &str = r#"{"name": "wait", "channel_ids": [0], "channel_type": "memory"}"#;
const RELEASE: &str = r#"{"name": "sem_release", "semaphore_ids": [0]}"#;
const ACQUIRE: &str = r#"{"name": "sem_acquire", "semaphore_ids": [0]}"#;
const BARRIER: &str = r#"{"name": "barrier", "barrier_id": 0, "num_threadblocks": 2}"#;

/// Returns an operation on both chunks. `put i o` moves them from the first buffer to the second buffer of the peer;
/// `get` moves them in the other direction.
fn op(words: &str) -> String {
    let words: Vec<&str> = words.split(' ').collect();
    let local = |letter: &str| format!(r#"{{"type": "{letter}", "index": 0, "size": 2}}"#);
    let remote = |letter: &str| format!(r#"{{"buffer_id": {}, "index": 0, "size": 2}}"#, "ios".find(letter).unwrap());
    let (src, dst) = match words[0] {
        "put" => (local(words[1]), remote(words[2])),
        "get" => (remote(words[1]), local(words[2])),
        _ => (local(words[1]), local(words[2])),
    };
    let channel = if words[0] == "copy" { "" } else { r#", "channel_type": "memory""# };
    format!(r#"{{"name": "{}", "src_buff": [{src}], "dst_buff": [{dst}]{channel}}}"#, words[0])
}

/// Returns a plan in which each GPU puts its input into the output of the other.
fn swap() -> String {
    let put = op("put i o");
    let ops: &[&[&str]] = &[&[put.as_str(), SIGNAL, WAIT]];
    pair("sendrecv", [ops, ops])
}

fn kinds(text: &str) -> Vec<OpKind> {
    from_plan(text, "test").unwrap_or_else(|error| panic!("{error}")).operations().map(|op| op.kind).collect()
}

fn error(text: &str) -> String {
    from_plan(text, "f.json").unwrap_err().to_string()
}

#[test]
fn signal_after_store_is_carried_by_the_store() {
    assert_eq!(kinds(&swap()), [OpKind::Put, OpKind::Wait, OpKind::Put, OpKind::Wait]);
    assert_eq!(outcome(&from_plan(&swap(), "swap").unwrap()), Ok(4));
}

#[test]
fn signal_after_local_work_is_a_separate_operation() {
    let (copy, get) = (op("copy i s"), op("get s o"));
    let ops: &[&[&str]] = &[&[copy.as_str(), SIGNAL, WAIT, get.as_str()]];
    let text = pair("sendrecv", [ops, ops]);
    assert_eq!(kinds(&text)[..3], [OpKind::Copy, OpKind::Signal, OpKind::Get]);
    assert_eq!(outcome(&from_plan(&text, "text").unwrap()), Ok(6));
    // Without the wait, no order with the copy of the peer is defined.
    let unsynchronized: &[&[&str]] = &[&[copy.as_str(), SIGNAL, get.as_str()]];
    let fault = outcome(&from_plan(&pair("sendrecv", [unsynchronized, unsynchronized]), "blind").unwrap()).unwrap_err();
    assert!(fault.contains("reads scratch chunk 0 of rank 1, which"), "{fault}");
}

#[test]
fn barriers_and_semaphores_synchronize_thread_blocks() {
    let (copy, put) = (op("copy i s"), op("put s o"));
    for (first, second) in [(RELEASE, ACQUIRE), (BARRIER, BARRIER)] {
        let synchronized: &[&[&str]] = &[&[copy.as_str(), first], &[second, put.as_str(), SIGNAL, WAIT]];
        assert!(
            outcome(&from_plan(&pair("sendrecv", [synchronized, synchronized]), "synchronized").unwrap()).is_ok(),
            "{first}"
        );
        let unsynchronized: &[&[&str]] = &[&[copy.as_str()], &[put.as_str(), SIGNAL, WAIT]];
        let fault =
            outcome(&from_plan(&pair("sendrecv", [unsynchronized, unsynchronized]), "untold").unwrap()).unwrap_err();
        assert!(fault.contains("which may still change"), "{fault}");
    }
}

#[test]
fn thread_blocks_that_share_chunks_move_one_part_each() {
    let half = |id: u32| {
        op("put i o").replace("\"name\"", &format!("\"tbg_info\": {{\"tb_id\": {id}, \"tbg_size\": 3}}, \"name\""))
    };
    let parts = [half(0), half(1), half(2)];
    let blocks: Vec<Vec<&str>> = parts.iter().map(|part| vec![part.as_str()]).collect();
    let blocks: Vec<&[&str]> = blocks.iter().map(Vec::as_slice).collect();
    let schedule = from_plan(&pair("sendrecv", [&blocks, &blocks]), "shared").unwrap();
    assert_eq!((schedule.header().layout.chunks(), schedule.operation_count()), (6, 6));
    assert_eq!(outcome(&schedule), Ok(6));
}

/// Returns the plan that MSCCL++'s `SwitchChannel` language construct generates for two GPUs that each reduce and store
/// their chunk through the switch (as in the tests of its executor), with a signal and a wait on both GPUs before and
/// after.
fn through_switch(collective: &str, ops: [&str; 2]) -> String {
    let gpu = |id: usize| {
        let peer = 1 - id;
        let signal = SIGNAL.replace("signal", "rlxsignal");
        let wait = WAIT.replace("wait", "rlxwait");
        format!(
            r#"{{"id": {id}, "input_chunks": 2, "output_chunks": 2, "scratch_chunks": 0,
            "threadblocks": [{{"id": 0, "ops": [{signal}, {{"name": "nop"}}, {wait}, {}, {{"name": "nop"}}, {signal}, {wait}],
            "channels": [{{"channel_type": "memory", "channel_ids": [0]}}, {{"channel_type": "switch", "channel_ids": [0]}}],
            "remote_buffer_refs": []}}],
            "channels": [{{"channel_type": "memory", "connected_to": [{peer}]}},
            {{"channel_type": "switch", "buffer_type": "i", "rank_groups": [{{"size": 2, "ranks": [0, 1]}}]}}],
            "remote_buffers": [], "semaphores": []}}"#,
            ops[id]
        )
    };
    format!(
        r#"{{"name": "switch", "collective": "{collective}", "protocol": "Simple", "inplace": true,
        "gpus": [{},
        {}], "min_message_size": 0, "max_message_size": 64}}"#,
        gpu(0),
        gpu(1)
    )
}

/// Returns a reduction of chunk `index` of all GPUs whose result is stored to all.
fn glres(index: u32) -> String {
    let chunks = format!(r#"{{"switch_channel_id": 0, "index": {index}, "size": 1}}"#);
    format!(
        r#"{{"name": "glres", "src_buff": [{chunks}], "dst_buff": [{chunks}], "channel_type": "switch", "reduce_op": "sum"}}"#
    )
}

#[test]
fn switch_operations_round_trip() {
    let text = through_switch("allreduce", [&glres(0), &glres(1)]);
    let multicasts = kinds(&text).into_iter().filter(|kind| kind.is_multicast()).collect::<Vec<_>>();
    assert_eq!(multicasts, [OpKind::MulticastReduce, OpKind::MulticastPut].repeat(2));
    let schedule = from_plan(&text, "switch").unwrap();
    assert!(outcome(&schedule).is_ok(), "{:?}", outcome(&schedule));
    let written = to_plan(&schedule).unwrap();
    assert_eq!(written.matches("\"glres\"").count(), 2, "{written}");
    let reparsed = from_plan(&written, "written").unwrap_or_else(|error| panic!("{error}\n{written}"));
    assert_eq!(to_plan(&reparsed).unwrap(), written);
    // The same reduction in a pipeline, and as two operations.
    let piped = |i| {
        format!(
            r#"{{"name": "pipeline", "iter_context": {{"unit_size": 1024, "num_chunks": 1}}, "ops": [{}]}}"#,
            glres(i)
        )
    };
    assert!(outcome(&from_plan(&through_switch("allreduce", [&piped(0), &piped(1)]), "piped").unwrap()).is_ok());
    let separate = |i| {
        let local = format!(r#"{{"type": "i", "index": {i}, "size": 1}}"#);
        let switch = format!(r#"{{"switch_channel_id": 0, "index": {i}, "size": 1}}"#);
        let op = |name, src, dst| {
            format!(r#"{{"name": "{name}", "src_buff": [{src}], "dst_buff": [{dst}], "channel_type": "switch"}}"#)
        };
        format!("{}, {}", op("glre", &switch, &local), op("gstore", &local, &switch))
    };
    let separate = from_plan(&through_switch("allreduce", [&separate(0), &separate(1)]), "apart").unwrap();
    assert_eq!(to_plan(&separate).unwrap(), written);
}

#[test]
fn invalid_switch_operations_are_rejected() {
    let valid = through_switch("allreduce", [&glres(0), &glres(1)]);
    // Both GPUs reduce the same chunk, and the other chunk is missing from the result.
    let twice = from_plan(&through_switch("allreduce", [&glres(0), &glres(0)]), "twice").unwrap();
    assert!(outcome(&twice).unwrap_err().contains("multicast"), "{:?}", outcome(&twice));
    // No GPU reads data that another one wrote; signals only report that results are complete.
    let unsynchronized = valid.replace("rlxwait", "nop").replace("rlxsignal", "nop");
    let fault = outcome(&from_plan(&unsynchronized, "blind").unwrap());
    assert!(fault.is_ok(), "{fault:?}");
    let op = "operation 3 (glres) of thread block 0 of gpu 0";
    for (from, to, expected) in [
        (
            "\"ranks\": [0, 1]",
            "\"ranks\": [1]",
            "a switch channel of gpu 0 joins gpus [1]; expected different ones of 2, gpu 0 too".to_owned(),
        ),
        ("\"ranks\": [0, 1]", "\"ranks\": [0, 0, 1]", "joins gpus [0, 0, 1]".to_owned()),
        ("\"ranks\": [0, 1]", "\"ranks\": [0, 7]", "joins gpus [0, 7]".to_owned()),
        ("\"ranks\": [0, 1]", "\"ranks\": [0]", "which gpu 0 does not have".to_owned()),
        ("\"buffer_type\": \"i\", ", "", "a switch channel of gpu 0 has no buffer_type".to_owned()),
        (
            "\"buffer_type\": \"i\"",
            "\"buffer_type\": \"s\"",
            format!("{op} uses switch channel 0, which gpu 1 does not have"),
        ),
        (
            "\"switch_channel_id\": 0",
            "\"switch_channel_id\": 3",
            format!("{op} uses switch channel 3 of its thread block, which has no such channel"),
        ),
        ("\"switch_channel_id\": 0", "\"type\": \"i\"", format!("{op} names no switch channel")),
        (
            "\"index\": 0, \"size\": 1",
            "\"index\": 2, \"size\": 1",
            format!("{op} uses 1 input chunks from 2 on of gpu 0, which has 2"),
        ),
        ("\"src_buff\"", "\"sources\"", format!("{op} has 0 sources and 1 destinations; expected 1 and 1")),
    ] {
        assert!(valid.contains(from), "{from}");
        let message = match expected.contains("gpu 0 does not have") {
            // The groups of the two GPUs differ.
            true => error(&valid.replacen(from, to, 1)).replace("gpu 1", "gpu 0"),
            false => error(&valid.replacen(from, to, 1)),
        };
        assert!(message.starts_with("f.json:") && message.contains(&expected), "{message}\nexpected {expected}");
    }
    // The inputs of an all_gather are different chunks of the collective on each GPU.
    let gathered = error(
        &through_switch("allgather", [&glres(0), &glres(1)])
            .replace("put_chunks\": 2", "put_chunks\": 1")
            .replace("\"output_chunks\": 1", "\"output_chunks\": 2"),
    );
    assert!(gathered.contains("that are different ones of the collective"), "{gathered}");
}

#[test]
fn errors_name_line_column_and_operation() {
    let valid = swap();
    let put = "operation 0 (put) of thread block 0 of gpu 0";
    let wait = "operation 2 (wait) of thread block 0 of gpu 0";
    let cases = [
        ("\"collective\": \"sendrecv\"", "\"collective\": \"sendrecvs\"", "f.json:1:18: collective: unknown collective `sendrecvs`".to_owned()),
        ("\"Simple\"", "\"Hard\"", "protocol: `Hard`; expected Simple or LL".to_owned()),
        ("\"connected_to\": [1]", "\"connected_to\": [0]", "gpu 0 is joined to gpu 0; expected another one of 2".to_owned()),
        ("\"connected_to\": [1]", "\"connected_to\": [4000000000]", "gpu 0 is joined to gpu 4000000000".to_owned()),
        ("\"id\": 0", "\"id\": 3", "gpu 3 at position 0; expected gpus in order".to_owned()),
        ("\"name\": \"put\"", "\"name\": \"glres\"", "operation 0 (glres) of thread block 0 of gpu 0 names no switch channel".to_owned()),
        ("\"name\": \"put\"", "\"name\": \"pull\"", "operation 0 (pull) of thread block 0 of gpu 0 is of no known type".to_owned()),
        ("\"buffer_id\": 1", "\"buffer_id\": 7", format!("{put} uses remote buffer 7 of its thread block, which has no such buffer")),
        ("\"buffer_id\": 1", "\"type\": \"o\"", format!("{put} uses its own memory as a peer's")),
        ("\"buffer_id\": 1", "\"switch_channel_id\": 1", format!("{put} uses a switch channel, which only glre, glres and gstore do")),
        ("\"index\": 0, \"size\": 2", "\"index\": 1, \"size\": 2", format!("{put} uses 2 input chunks from 1 on of gpu 0, which has 2")),
        ("\"index\": 0, \"size\": 2", "\"index\": 0, \"size\": 1", format!("{put} moves 1 chunks to where there are 2 (in pieces)")),
        ("\"index\": 0, \"size\": 2", "\"index\": 0, \"size\": 4294967295", "input chunks from 0 on of gpu 0, which has 2".to_owned()),
        ("\"index\": 0, \"size\": 2", "\"index\": 0", "missing field `size`".to_owned()),
        ("\"name\": \"wait\", \"channel_ids\": [0]", "\"name\": \"wait\", \"channel_ids\": [1]", format!("{wait} uses channel 1 of its thread block, which has no such channel")),
        ("\"name\": \"signal\"", "\"name\": \"nop\"", "operation 2 (wait) of thread block 0 of gpu 1 waits for signal 0 from gpu 0, which sends 0 by that channel".to_owned()),
        ("\"name\": \"signal\"", "\"name\": \"sem_acquire\", \"semaphore_ids\": [0]", "operation 1 (sem_acquire) of thread block 0 of gpu 0 acquires semaphore 0, which is released 0 times only".to_owned()),
        ("\"name\": \"signal\"", "\"name\": \"sem_acquire\", \"semaphore_ids\": [5]", "uses semaphore 5 of 1".to_owned()),
        ("\"name\": \"signal\"", "\"name\": \"barrier\", \"num_threadblocks\": 3", "waits at barrier 0 for 3 thread blocks, and 1 arrive".to_owned()),
        ("\"name\": \"put\"", "\"name\": \"rppkt\"", "operation 0 (rppkt) of thread block 0 of gpu 0 reads packets in input; expected scratch".to_owned()),
    ];
    for (from, to, expected) in cases {
        assert!(valid.contains(from), "{from}");
        let message = error(&valid.replacen(from, to, 1));
        assert!(message.starts_with("f.json:") && message.contains(&expected), "{message}\nexpected {expected}");
    }
    let unsent = pair(
        "sendrecv",
        [
            &[&[]],
            &[&[
                r#"{"name": "upkt", "src_buff": [{"type": "s", "index": 0, "size": 1}], "dst_buff": [{"type": "o", "index": 0, "size": 1}]}"#,
            ]],
        ],
    );
    assert!(
        error(&unsent).contains("operation 0 (upkt) of thread block 0 of gpu 1 waits for packets in scratch chunk 0"),
        "{}",
        error(&unsent)
    );
    let message = error(&valid.replacen("\"name\": \"put\"", "\"name\": \"pull\"", 1));
    assert!(message.starts_with("f.json:5:48: "), "{message}");
}

#[test]
fn largest_numbers_do_not_overflow() {
    let largest =
        swap().replace("put_chunks\": 2", "put_chunks\": 4294967295").replace("\"size\": 2", "\"size\": 4294967295");
    assert!(error(&largest).contains("moves more than the 4194304 chunks"), "{}", error(&largest));
    let grouped = swap().replacen(
        "\"name\": \"put\"",
        "\"tbg_info\": {\"tb_id\": 0, \"tbg_size\": 4294967295}, \"name\": \"put\"",
        1,
    );
    assert!(error(&grouped).contains("chunks cannot be cut so"), "{}", error(&grouped));
    assert!(from_plan(&"[".repeat(1_000_000), "deep").is_err());
    let deep = swap().replacen("\"ops\": [", &format!("\"ops\": [{}", "[".repeat(1_000_000)), 1);
    assert!(from_plan(&deep, "deep").is_err());
}

proptest! {
    #[test]
    fn arbitrary_text_does_not_panic(text in ".{0,200}") {
        let _ = from_plan(&text, "any");
    }

    #[test]
    fn corruption_does_not_panic(start in any::<prop::sample::Index>(), len in 0usize..20, replacement in "[0-9a-z\"{}:,-]{0,8}") {
        let mut chars: Vec<char> = swap().chars().collect();
        let start = start.index(chars.len());
        let end = (start + len).min(chars.len());
        chars.splice(start..end, replacement.chars());
        let text: String = chars.into_iter().collect();
        if let Ok(schedule) = from_plan(&text, "damaged")
            && schedule.header().layout.chunks().max(schedule.header().scratch_chunks) < 10_000
        {
            let _ = verify(&schedule, &VerifyOptions { fifo_depth: Some(1) });
            if let Ok(written) = to_plan(&schedule) {
                prop_assert!(from_plan(&written, "written").is_ok(), "{written}");
            }
        }
    }
}
