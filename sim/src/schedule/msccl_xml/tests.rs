//! Tests with published files, and with files that have one error each.

use super::from_xml;
use crate::schedule::{OpKind, Schedule};
use crate::verify::{FaultKind, VerifyOptions, verify};
use proptest::prelude::*;

fn sample(name: &str) -> Schedule {
    let path = format!("{}/../tests/data/schedules/{name}", env!("CARGO_MANIFEST_DIR"));
    from_xml(&std::fs::read_to_string(path).unwrap(), name).unwrap()
}

fn count(schedule: &Schedule, kind: OpKind) -> usize {
    schedule.operations().filter(|op| op.kind == kind).count()
}

#[test]
fn published_files_compute_their_collective() {
    for (name, operations, kinds) in [
        ("msccl-alltoall-8n-0-9kb.xml", 64, [(OpKind::Put, 56), (OpKind::Copy, 8)]),
        ("msccl-allreduce-allpairs-8n-ll-32tb.xml", 2240, [(OpKind::Put, 448), (OpKind::Reduce, 1792)]),
        ("msccl-all-reduce-ring-ll.xml", 11_520, [(OpKind::PutReduceInput, 5760), (OpKind::Put, 5760)]),
    ] {
        let schedule = sample(name);
        let verified = verify(&schedule, &VerifyOptions { fifo_depth: Some(8) });
        assert_eq!(verified.map(|v| v.operations).map_err(|fault| fault.to_string()), Ok(operations), "{name}");
        for (kind, expected) in kinds {
            assert_eq!(count(&schedule, kind), expected, "{name} {kind:?}");
        }
    }
}

/// Returns a file for two GPUs, with the thread blocks of each.
fn pair(collective: &str, in_place: bool, blocks: [&str; 2]) -> String {
    let (inside, outside) = (u8::from(in_place), u8::from(!in_place));
    let gpu =
        |id: usize| format!("<gpu id=\"{id}\" i_chunks=\"1\" o_chunks=\"1\" s_chunks=\"1\">\n{}</gpu>\n", blocks[id]);
    format!(
        "<algo name=\"pair\" proto=\"LL\" nchannels=\"1\" nchunksperloop=\"1\" ngpus=\"2\" coll=\"{collective}\" \
         inplace=\"{inside}\" outofplace=\"{outside}\" minBytes=\"0\" maxBytes=\"64\">\n{}{}</algo>\n",
        gpu(0),
        gpu(1)
    )
}

/// Returns a thread block that sends to and receives from one GPU. Steps are `type src dst`, optionally followed by the
/// `tb step` that they wait for.
fn block(id: u32, peer: i32, steps: &[&str]) -> String {
    let mut text = format!("<tb id=\"{id}\" send=\"{peer}\" recv=\"{peer}\" chan=\"{id}\">\n");
    for (s, step) in steps.iter().enumerate() {
        let words: Vec<&str> = step.split(' ').collect();
        let (depid, deps) = (words.get(3).unwrap_or(&"-1"), words.get(4).unwrap_or(&"-1"));
        text.push_str(&format!(
            "<step s=\"{s}\" type=\"{}\" srcbuf=\"{}\" srcoff=\"0\" dstbuf=\"{}\" dstoff=\"0\" cnt=\"1\" \
             depid=\"{depid}\" deps=\"{deps}\" hasdep=\"1\"/>\n",
            words[0], words[1], words[2]
        ));
    }
    text + "</tb>\n"
}

/// Returns the file of an all_reduce on two GPUs: GPU 1 adds its input to that of GPU 0 and sends the sum back.
fn sum() -> String {
    pair("allreduce", false, [&block(0, 1, &["s i o", "r i o"]), &block(0, 0, &["rrcs i o"])])
}

fn outcome(text: &str) -> Result<u64, FaultKind> {
    let schedule = from_xml(text, "test").unwrap_or_else(|error| panic!("{error}\n{text}"));
    verify(&schedule, &VerifyOptions { fifo_depth: Some(8) }).map(|v| v.operations).map_err(|fault| fault.kind)
}

fn error(text: &str) -> String {
    from_xml(text, "f.xml").expect_err(text).to_string()
}

#[test]
fn receive_reduce_send_becomes_two_transfers() {
    let schedule = from_xml(&sum(), "sum").unwrap();
    let kinds: Vec<OpKind> = schedule.operations().map(|op| op.kind).collect();
    assert_eq!(kinds, [OpKind::PutReduceInput, OpKind::Put]);
    assert_eq!(outcome(&sum()), Ok(2));
    assert_eq!(schedule.header().call.bytes.0, 64);
}

#[test]
fn receive_reduce_send_does_not_write_memory() {
    // A sum stored in GPU 1's output would be added again by its second step.
    let text = pair(
        "allreduce",
        false,
        [&block(0, 1, &["s i o", "rrc i o", "s i o"]), &block(0, 0, &["rrs i o", "cpy i o", "r i s", "re s o"])],
    );
    assert_eq!(outcome(&text), Err(FaultKind::CountedTwice));
    let text = text.replace("type=\"rrc\"", "type=\"r\"");
    assert_eq!(outcome(&text), Ok(5));
}

#[test]
fn receiver_order_protects_its_memory() {
    // GPU 1 copies its input before it receives GPU 0's in its place; it then forwards the copy.
    let swap = |steps: &[&str]| pair("sendrecv", true, [&block(0, 1, &["s o o"]), &block(0, 0, steps)]);
    let one_way = |steps: &[&str], copied_at: u32| {
        let (return_block, forward) = (block(1, 1, &["r o o 0 0"]), format!("s s o 0 {copied_at}"));
        pair(
            "sendrecv",
            true,
            [&(block(0, 1, &["s o o"]) + &return_block), &(block(0, 0, steps) + &block(1, 0, &[&forward]))],
        )
    };
    assert_eq!(outcome(&one_way(&["cpy o s", "r o o"], 0)), Ok(3));
    // In the reverse order it copies the received data.
    assert_eq!(outcome(&one_way(&["r o o", "cpy o s"], 1)), Err(FaultKind::WrongResult));
    // The copy and the receive are in different thread blocks and therefore unordered.
    assert!(from_xml(&swap(&["r o o"]), "swap").is_ok());
    let separate = pair(
        "sendrecv",
        true,
        [
            &(block(0, 1, &["s o o"]) + &block(1, 1, &["r o o 0 0"])),
            &(block(0, 0, &["r o o"]) + &block(1, 0, &["cpy o s", "s s o"])),
        ],
    );
    assert_eq!(outcome(&separate), Err(FaultKind::ReadRace));
}

#[test]
fn data_that_must_stay_in_the_fifo_gets_a_scratch_slot() {
    // Both GPUs send, then both receive into the same memory: neither can put its data before the other has.
    let text = pair("sendrecv", true, [&block(0, 1, &["s o o", "r o o"]), &block(0, 0, &["s o o", "r o o"])]);
    let schedule = from_xml(&text, "swap").unwrap();
    let count = |kind| count(&schedule, kind);
    assert_eq!([count(OpKind::Put), count(OpKind::Copy)], [2, 2]);
    assert_eq!(schedule.header().scratch_chunks, 2);
    assert_eq!(outcome(&text), Ok(4));
}

#[test]
fn dependency_cycles_are_rejected_with_their_steps() {
    let text = pair("sendrecv", false, [&block(0, 1, &["r i o", "s i o"]), &block(0, 0, &["r i o", "s i o"])]);
    assert_eq!(
        error(&text),
        "f.xml:4:1: step 0 (r) of thread block 0 of gpu 0 waits for itself through step 1 (s) of thread block 0 of gpu 1, \
         step 0 (r) of thread block 0 of gpu 1, step 1 (s) of thread block 0 of gpu 0"
    );
}

#[test]
fn errors_name_line_column_and_step() {
    let valid = sum();
    let gpu_1 = "step 0 (rrcs) of thread block 0 of gpu 1";
    let cases = [
        (
            "ngpus=\"2\"",
            "ngpus=\"4000000000\"",
            "f.xml:1:70: ngpus: `4000000000`; expected a whole number from 1 to 1048576",
        ),
        ("ngpus=\"2\"", "ngpus=\"1000000\"", "f.xml:1:70: ngpus: 1000000, but there are 2 <gpu> elements"),
        ("gpu id=\"1\"", "gpu id=\"0\"", "f.xml:8:10: gpu 0 is given twice"),
        ("gpu id=\"1\"", "gpu id=\"7\"", "f.xml:8:10: gpu 7 of 2"),
        ("gpu id=\"1\"", "cpu id=\"1\"", "ngpus: 2, but there are 1 <gpu> elements"),
        ("coll=\"allreduce\"", "coll=\"allreduced\"", "f.xml:1:79: coll: unknown collective `allreduced`"),
        ("proto=\"LL\"", "proto=\"LL64\"", "proto: `LL64`; expected Simple, LL or LL128"),
        ("outofplace=\"1\"", "outofplace=\"0\"", "neither in place nor out of place"),
        ("tb id=\"0\" send=\"0\"", "tb id=\"1\" send=\"0\"", "f.xml:9:9: thread block 1 of gpu 1; expected 0"),
        ("send=\"0\"", "send=\"1\"", "f.xml:9:18: send: gpu 1 is the thread block's own"),
        ("send=\"0\"", "send=\"9\"", "f.xml:9:18: send: gpu 9 of 2"),
        ("send=\"0\"", "send=\"-1\"", &format!("f.xml:10:1: {gpu_1} needs a peer, but send of the thread block is -1")),
        (
            "type=\"rrcs\"",
            "type=\"glres\"",
            "f.xml:10:19: step 0 (glres) of thread block 0 of gpu 1 is of no known type",
        ),
        (
            "type=\"rrcs\" srcbuf=\"i\"",
            "type=\"rrcs\" srcbuf=\"x\"",
            &format!("{gpu_1}: srcbuf is `x`; expected i, o or s"),
        ),
        (
            "type=\"rrcs\" srcbuf=\"i\" srcoff=\"0\"",
            "type=\"rrcs\" srcbuf=\"i\" srcoff=\"3\"",
            &format!("f.xml:10:44: {gpu_1} uses input chunk 3 of 1"),
        ),
        (" s=\"1\"", " s=\"2\"", "f.xml:5:10: step 1 (r) of thread block 0 of gpu 0 is numbered 2"),
        ("cnt=\"1\"", "cnt=\"0\"", "step 0 (s) of thread block 0 of gpu 0 moves no chunk"),
        ("cnt=\"1\"", "cnt=\"x\"", "cnt: `x`; expected a whole number from 0 to 4294967295"),
        (
            "depid=\"-1\" deps=\"-1\"",
            "depid=\"5\" deps=\"0\"",
            "f.xml:4:1: step 0 (s) of thread block 0 of gpu 0 waits for step 0 of thread block 5, which does not exist",
        ),
        ("depid=\"-1\" deps=\"-1\"", "depid=\"4294967295\" deps=\"4294967295\"", "which does not exist"),
        (
            "type=\"rrcs\"",
            "type=\"rrc\"",
            "f.xml:5:1: step 1 (r) of thread block 0 of gpu 0 receives from gpu 1, which sends nothing to it on channel 0",
        ),
        (
            "type=\"r\"",
            "type=\"cpy\"",
            "f.xml:10:1: step 0 (rrcs) of thread block 0 of gpu 1 sends to gpu 0, which does not receive it on channel 0",
        ),
        (
            "chan=\"0\"",
            "chan=\"3\"",
            "f.xml:4:1: step 0 (s) of thread block 0 of gpu 0 sends to gpu 1, which does not receive it on channel 3",
        ),
        (" cnt=\"1\"", "", "f.xml:4:1: <step> needs the attribute `cnt`"),
        (" cnt=\"1\"", " cnt=\"1\" cnt=\"1\"", "the attribute `cnt` is given twice"),
        ("</algo>", "", "the file ends within an element"),
        ("<algo", "<topology", "<topology>; an MSCCL file is one <algo>"),
    ];
    for (from, to, expected) in cases {
        assert!(valid.contains(from), "{from}");
        let text = valid.replacen(from, to, 1);
        let message = error(&text);
        assert!(message.contains(expected), "{message}\nexpected {expected}");
    }
    assert!(error("").contains("no <algo>"), "{}", error(""));
}

#[test]
fn two_thread_blocks_on_one_connection_are_rejected() {
    let twice = block(0, 1, &["s i o"]) + &block(1, 1, &["s i o"]).replace("chan=\"1\"", "chan=\"0\"");
    let text = pair("allreduce", false, [&twice, &block(0, 0, &["r i o"])]);
    let expected = "thread block 1 of gpu 0 sends to gpu 1 on channel 0, as thread block 0 does";
    assert!(error(&text).contains(expected), "{}", error(&text));
}

#[test]
fn largest_numbers_do_not_overflow() {
    let largest = sum().replace("_chunks=\"1\"", "_chunks=\"4294967295\"");
    assert_eq!(outcome(&largest), Err(FaultKind::TooLarge));
    let moved = largest.replace("cnt=\"1\"", "cnt=\"4294967295\"");
    assert!(error(&moved).contains("chunks moved in all; expected at most"), "{}", error(&moved));
    let deep = "<algo>".repeat(1_000_000);
    assert!(from_xml(&deep, "deep").is_err());
    let wide = format!("<algo {}/>", (0..100_000).map(|i| format!("a{i}=\"\" ")).collect::<String>());
    assert!(error(&wide).contains("more than 32 attributes"));
}

proptest! {
    #[test]
    fn arbitrary_text_does_not_panic(text in ".{0,200}") {
        let _ = from_xml(&text, "any");
    }

    #[test]
    fn corruption_does_not_panic(start in any::<prop::sample::Index>(), len in 0usize..20, replacement in "[0-9a-z\"</> =-]{0,8}") {
        let mut chars: Vec<char> = sum().chars().collect();
        let start = start.index(chars.len());
        let end = (start + len).min(chars.len());
        chars.splice(start..end, replacement.chars());
        let text: String = chars.into_iter().collect();
        if let Ok(schedule) = from_xml(&text, "damaged")
            && schedule.header().layout.chunks().max(schedule.header().scratch_chunks) < 10_000
        {
            let _ = verify(&schedule, &VerifyOptions { fifo_depth: Some(1) });
            if let Ok(written) = super::to_xml(&schedule) {
                prop_assert!(from_xml(&written, "written").is_ok(), "{written}");
            }
        }
    }
}
