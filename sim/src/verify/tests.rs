//! Tests of schedules written by hand, which are valid or have one fault each.

use fabricast_topologies::Bytes;

use super::{Fault, FaultKind, VerifyOptions, verify};
use crate::schedule::{
    Blocks, Buffer, BufferUse, Call, Channel, Collective, Dependency, Header, Layout, OpId, OpKind, Program, Protocol,
    Rank, Run, Schedule, ScheduleGenerator, Segment, Walk,
};

/// Generator whose programs a test writes.
pub(super) struct Scripted {
    header: Header,
    programs: Vec<Program>,
}

impl Scripted {
    fn new(collective: Collective, ranks: u32, chunks: u32) -> Self {
        Self {
            header: Header {
                name: "scripted".to_owned(),
                call: Call { collective, bytes: Bytes(64), ranks, root: Rank(0), buffers: BufferUse::OutOfPlace },
                protocol: Protocol::Simple,
                channels: 1,
                blocks: Blocks::default(),
                layout: Layout::equal(Bytes(64), chunks),
                scratch_chunks: 4,
                teams: Vec::new(),
                certificate: None,
            },
            programs: vec![Program::default(); ranks as usize],
        }
    }

    /// Returns an all_reduce without data, for tests of the order of operations only.
    pub(super) fn waits(ranks: u32) -> Self {
        let mut script = Self::new(Collective::AllReduce, ranks, 1);
        script.header.layout = Layout::default();
        script
    }

    pub(super) fn push(&mut self, rank: Rank, run: Run, dependencies: &[Dependency]) {
        self.programs[rank.0 as usize].push(run, dependencies);
    }

    fn verify(&self) -> Result<u64, Fault> {
        verify(&Schedule::build(self).unwrap(), &VerifyOptions::default()).map(|v| v.operations)
    }

    fn fault(&self) -> Fault {
        let fault = self.verify().unwrap_err();
        assert!(!fault.to_string().contains('@'));
        fault
    }
}

impl ScheduleGenerator for Scripted {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        program.clone_from(&self.programs[rank.0 as usize]);
    }
}

/// Returns a run with a single operation that moves no data.
pub(super) fn wait_run(kind: OpKind) -> Run {
    Run { span: 0, ..run(kind, 0, (Buffer::Input, 0), (Buffer::Output, 0)) }
}

fn run(kind: OpKind, peer: u32, src: (Buffer, u32), dst: (Buffer, u32)) -> Run {
    Run {
        len: 1,
        kind,
        channel: Channel(0),
        peer: Walk::fixed(peer),
        src_buffer: src.0,
        src: Walk::fixed(src.1),
        dst_buffer: dst.0,
        dst: Walk::fixed(dst.1),
        span: 1,
    }
}

const INPUT: (Buffer, u32) = (Buffer::Input, 0);
const OUTPUT: (Buffer, u32) = (Buffer::Output, 0);
const SCRATCH: (Buffer, u32) = (Buffer::Scratch, 0);

/// Returns a schedule of two ranks: the input of rank 1 is reduced at rank 0, and the sum is sent back.
fn pair() -> Scripted {
    let mut script = Scripted::new(Collective::AllReduce, 2, 1);
    script.push(Rank(1), run(OpKind::PutReduceInput, 0, INPUT, OUTPUT), &[]);
    script.push(Rank(0), run(OpKind::Put, 1, OUTPUT, OUTPUT), &[Dependency::on_operation(Rank(1), 0, 0)]);
    script
}

#[test]
fn valid_schedule_is_proven() {
    assert_eq!(pair().verify(), Ok(2));
}

#[test]
fn sum_without_dependency_is_a_race() {
    let mut script = Scripted::new(Collective::AllReduce, 2, 1);
    script.push(Rank(1), run(OpKind::PutReduceInput, 0, INPUT, OUTPUT), &[]);
    script.push(Rank(0), run(OpKind::Put, 1, OUTPUT, OUTPUT), &[]);
    // Rank 0's operation has id 0 and reads before anything is written.
    assert_eq!(script.fault().kind, FaultKind::ReadUnwritten);
    let mut script = Scripted::new(Collective::AllReduce, 2, 1);
    script.push(Rank(0), run(OpKind::PutReduceInput, 1, INPUT, OUTPUT), &[]);
    script.push(Rank(1), run(OpKind::Put, 0, OUTPUT, OUTPUT), &[]);
    let fault = script.fault();
    assert_eq!((fault.kind, fault.operation, fault.rank), (FaultKind::ReadRace, Some(OpId(1)), Rank(1)));
    assert_eq!(
        fault.to_string(),
        "operation 1 (rank 1, channel 0, put to rank 0): reads output chunk 0 of rank 1, which may still change: \
         found operation 0 (rank 0, channel 0, put and reduce with the input of rank 1), which writes it, and neither \
         waits for the other, expected one to wait for the other"
    );
}

#[test]
fn unordered_later_write_is_reported_at_the_reader() {
    let mut script = Scripted::new(Collective::Broadcast, 2, 1);
    script.push(Rank(0), run(OpKind::Copy, 0, INPUT, SCRATCH), &[]);
    script.push(Rank(0), run(OpKind::Put, 1, SCRATCH, OUTPUT), &[Dependency::on_operation(Rank(0), 0, 0)]);
    script.push(Rank(0), run(OpKind::Copy, 0, INPUT, OUTPUT), &[]);
    script.push(Rank(0), run(OpKind::Copy, 0, INPUT, SCRATCH), &[Dependency::on_operation(Rank(0), 0, 0)]);
    let fault = script.fault();
    assert_eq!((fault.kind, fault.operation), (FaultKind::ReadRace, Some(OpId(1))));
}

#[test]
fn unordered_accumulations_race() {
    let mut script = Scripted::new(Collective::Reduce, 3, 1);
    script.push(Rank(1), run(OpKind::PutReduceInput, 0, INPUT, OUTPUT), &[]);
    script.push(Rank(2), run(OpKind::PutReduce, 0, INPUT, OUTPUT), &[]);
    let fault = script.fault();
    assert_eq!((fault.kind, fault.operation), (FaultKind::WriteRace, Some(OpId(1))));
    let mut script = Scripted::new(Collective::Reduce, 3, 1);
    script.push(Rank(1), run(OpKind::PutReduceInput, 0, INPUT, OUTPUT), &[]);
    script.push(Rank(2), run(OpKind::PutReduce, 0, INPUT, OUTPUT), &[Dependency::on_operation(Rank(1), 0, 0)]);
    assert_eq!(script.verify(), Ok(2));
}

#[test]
fn duplicate_and_missing_contributions_are_faults() {
    let mut script = pair();
    script.push(Rank(1), run(OpKind::PutReduce, 0, INPUT, OUTPUT), &[Dependency::on_operation(Rank(0), 0, 0)]);
    assert_eq!(script.fault().kind, FaultKind::CountedTwice);
    let mut script = Scripted::new(Collective::AllReduce, 2, 1);
    script.push(Rank(0), run(OpKind::Copy, 0, INPUT, OUTPUT), &[]);
    script.push(Rank(1), run(OpKind::Copy, 1, INPUT, OUTPUT), &[]);
    let fault = script.fault();
    assert_eq!(fault.kind, FaultKind::WrongResult);
    assert_eq!(
        (fault.found.as_str(), fault.expected.as_str()),
        ("input chunk 0 of rank 0", "input chunk 0 of ranks 0-1")
    );
}

#[test]
fn reducing_or_copying_a_different_chunk_is_a_fault() {
    let mut script = Scripted::new(Collective::AllReduce, 2, 2);
    script.push(Rank(1), run(OpKind::PutReduceInput, 0, (Buffer::Input, 1), OUTPUT), &[]);
    assert_eq!(script.fault().kind, FaultKind::MixedChunks);
    let mut script = Scripted::new(Collective::SendRecv, 1, 2);
    script.push(Rank(0), run(OpKind::Copy, 0, (Buffer::Input, 1), OUTPUT), &[]);
    assert_eq!(script.fault().kind, FaultKind::WrongResult);
}

#[test]
fn writes_to_input_or_unexpected_output_are_faults() {
    let mut script = pair();
    script.push(Rank(1), run(OpKind::Put, 0, INPUT, INPUT), &[]);
    assert_eq!(script.fault().kind, FaultKind::ForbiddenWrite);
    let mut script = Scripted::new(Collective::Reduce, 2, 1);
    script.push(Rank(0), run(OpKind::PutReduceInput, 1, INPUT, OUTPUT), &[]);
    let fault = script.fault();
    assert_eq!((fault.kind, fault.owner), (FaultKind::ForbiddenWrite, Rank(1)));
}

#[test]
fn reading_missing_input_is_a_fault() {
    let mut script = Scripted::new(Collective::Broadcast, 2, 1);
    script.push(Rank(1), run(OpKind::Put, 0, INPUT, OUTPUT), &[]);
    assert_eq!(script.fault().kind, FaultKind::ReadUnwritten);
}

#[test]
fn unread_data_is_a_fault() {
    let mut script = pair();
    script.push(Rank(1), run(OpKind::Put, 0, INPUT, SCRATCH), &[]);
    let fault = script.fault();
    assert_eq!((fault.kind, fault.operation), (FaultKind::Unread, Some(OpId(2))));
    // The data is overwritten before it is read.
    let mut script = pair();
    script.push(Rank(0), run(OpKind::Put, 1, OUTPUT, OUTPUT), &[Dependency::on_operation(Rank(0), 0, 0)]);
    let fault = script.fault();
    assert_eq!((fault.kind, fault.operation), (FaultKind::Unread, Some(OpId(0))));
}

#[test]
fn dependency_cycles_are_deadlocks() {
    let mut script = Scripted::waits(2);
    script.push(Rank(0), wait_run(OpKind::Wait), &[]);
    script.push(Rank(0), wait_run(OpKind::Wait), &[Dependency::on_operation(Rank(1), 1, 0)]);
    script.push(Rank(1), wait_run(OpKind::Wait), &[Dependency::on_operation(Rank(0), 1, 0)]);
    script.push(Rank(1), wait_run(OpKind::Signal), &[Dependency::on_operation(Rank(1), 0, 0)]);
    let fault = script.fault();
    assert_eq!((fault.kind, fault.operation), (FaultKind::Deadlock, Some(OpId(1))));
    assert!(fault.found.contains("1 -> 3 -> 2 -> 1"), "{}", fault.found);
}

#[test]
fn overlapping_spans_race_with_themselves() {
    let mut script = Scripted::new(Collective::SendRecv, 1, 1);
    script.push(Rank(0), run(OpKind::Copy, 0, INPUT, SCRATCH), &[]);
    let overlapping = Run { span: 2, ..run(OpKind::Copy, 0, SCRATCH, (Buffer::Scratch, 1)) };
    script.push(Rank(0), overlapping, &[Dependency::on_operation(Rank(0), 0, 0)]);
    assert_eq!(script.fault().kind, FaultKind::ReadRace);
}

#[test]
fn copies_of_a_chunk_to_itself_change_nothing_but_are_writes() {
    let on = |rank, operation| Dependency::on_operation(Rank(rank), operation, 0);
    // Rank 0 sends its input to the scratch chunk of rank 1, which copies it to itself and then to the output.
    let script = |last: &[Dependency]| {
        let mut script = Scripted::new(Collective::SendRecv, 2, 1);
        script.push(Rank(0), run(OpKind::Put, 1, INPUT, SCRATCH), &[]);
        script.push(Rank(1), run(OpKind::Put, 0, INPUT, OUTPUT), &[]);
        script.push(Rank(1), run(OpKind::Copy, 1, SCRATCH, SCRATCH), &[on(0, 0)]);
        script.push(Rank(1), run(OpKind::Copy, 1, SCRATCH, OUTPUT), last);
        script
    };
    assert_eq!(script(&[on(0, 0), on(1, 1)]).verify(), Ok(4));
    assert_eq!(script(&[on(0, 0)]).fault().kind, FaultKind::ReadRace);
    // Nothing was received that could be copied.
    let mut script = Scripted::new(Collective::SendRecv, 1, 1);
    script.push(Rank(0), run(OpKind::Copy, 0, OUTPUT, OUTPUT), &[]);
    assert_eq!(script.fault().kind, FaultKind::ReadUnwritten);
}

#[test]
fn blocks_and_peers_are_checked() {
    let mut script = Scripted::new(Collective::AllGather, 2, 3);
    script.push(Rank(0), run(OpKind::Copy, 0, INPUT, OUTPUT), &[]);
    assert_eq!(script.fault().kind, FaultKind::UnevenBlocks);
    let mut script = Scripted::new(Collective::SendRecv, 2, 1);
    script.push(Rank(0), run(OpKind::Copy, 1, INPUT, OUTPUT), &[]);
    assert_eq!(script.fault().kind, FaultKind::LocalOperationWithPeer);
    assert_eq!(Scripted::new(Collective::SendRecv, 2, 1).fault().operation, None);
}

#[test]
fn full_fifos_deadlock_if_the_first_put_is_not_consumed() {
    // Two puts use one connection, and the receiver consumes the second one first.
    let mut script = Scripted::new(Collective::Broadcast, 2, 2);
    for chunk in 0..2 {
        script.push(Rank(0), run(OpKind::Put, 1, (Buffer::Input, chunk), (Buffer::Scratch, chunk)), &[]);
        script.push(Rank(0), run(OpKind::Copy, 0, (Buffer::Input, chunk), (Buffer::Output, chunk)), &[]);
    }
    let take = |chunk| run(OpKind::Copy, 1, (Buffer::Scratch, chunk), (Buffer::Output, chunk));
    script.push(Rank(1), take(1), &[Dependency::on_operation(Rank(0), 2, 0)]);
    script.push(Rank(1), take(0), &[Dependency::on_operation(Rank(0), 0, 0), Dependency::on_operation(Rank(1), 0, 0)]);
    let schedule = Schedule::build(&script).unwrap();
    let with_depth = |depth| verify(&schedule, &VerifyOptions { fifo_depth: Some(depth) });
    assert_eq!(with_depth(2).map(|v| v.operations), Ok(6));
    assert_eq!(with_depth(1).unwrap_err().kind, FaultKind::FifoDeadlock { depth: 1 });
    assert_eq!(with_depth(0).unwrap_err().kind, FaultKind::FifoDeadlock { depth: 0 });
}

#[test]
fn faults_serialize_to_json() {
    let json = serde_json::to_value(pair_without_return().fault()).unwrap();
    assert_eq!(json["kind"], "wrong_result");
    assert_eq!(json["operation"], serde_json::Value::Null);
    assert_eq!(json["rank"], 1);
    assert_eq!(json["chunk"]["buffer"], "output");
    assert_eq!(json["found"], "nothing");
}

fn pair_without_return() -> Scripted {
    let mut script = Scripted::new(Collective::AllReduce, 2, 1);
    script.push(Rank(1), run(OpKind::PutReduceInput, 0, INPUT, OUTPUT), &[]);
    script
}

/// Returns a schedule of two ranks: rank 0 sends 6 bytes; rank 1 sends 2 bytes and keeps 1.
fn uneven() -> Scripted {
    let mut script = Scripted::new(Collective::AllToAllV, 2, 1);
    let segment = |bytes| Segment { bytes: Bytes(bytes), parts: 1 };
    script.header.layout = Layout::new([0, 6, 2, 1].map(segment).to_vec());
    script.header.call.bytes = Bytes(9);
    script
}

#[test]
fn all_to_allv_blocks_must_reach_their_receivers() {
    let block = |buffer, index| (buffer, index);
    let put = |from: u32, to: u32| run(OpKind::Put, 1, block(Buffer::Input, from), block(Buffer::Output, to));
    let keep = run(OpKind::Copy, 1, block(Buffer::Input, 3), block(Buffer::Output, 3));
    let back = run(OpKind::Put, 0, block(Buffer::Input, 2), block(Buffer::Output, 2));
    let mut script = uneven();
    script.push(Rank(0), put(1, 1), &[]);
    script.push(Rank(1), back, &[]);
    assert_eq!(
        script.fault().to_string(),
        "nothing writes output chunk 3 of rank 1: found nothing, expected input chunk 3 of rank 1"
    );
    script.push(Rank(1), keep, &[]);
    // The empty block needs no operation.
    assert_eq!(script.verify(), Ok(3));
    let mut script = uneven();
    script.push(Rank(0), put(1, 3), &[]);
    let fault = script.fault();
    assert_eq!(fault.kind, FaultKind::DoesNotFit);
    assert_eq!(
        fault.to_string(),
        "operation 0 (rank 0, channel 0, put to rank 1): moves data to output chunk 3 of rank 1, which is smaller: \
         found 6 bytes, expected at most 1 bytes"
    );
    // Scratch slot 2 is as large as chunk 2.
    let mut script = uneven();
    script.push(Rank(0), run(OpKind::Put, 1, (Buffer::Input, 1), (Buffer::Scratch, 2)), &[]);
    assert_eq!(script.fault().kind, FaultKind::DoesNotFit);
    let mut script = uneven();
    script.push(Rank(0), put(0, 0), &[]);
    assert_eq!(script.fault().kind, FaultKind::ForbiddenWrite);
    let mut script = uneven();
    script.header.layout = Layout::equal(Bytes(9), 4);
    let fault = script.fault();
    assert_eq!(fault.kind, FaultKind::UnevenBlocks);
    assert!(fault.to_string().contains("found 1 segments, expected one for each of 2 × 2 pairs of ranks"), "{fault}");
}

#[test]
fn barriers_must_wait_for_every_rank() {
    let signal = |peer| Run { peer: Walk::fixed(peer), ..wait_run(OpKind::Signal) };
    let mut script = Scripted::waits(2);
    script.header.call.collective = Collective::Barrier;
    script.push(Rank(0), signal(1), &[]);
    script.push(Rank(1), signal(0), &[Dependency::on_operation(Rank(0), 0, 0)]);
    let fault = script.fault();
    assert_eq!((fault.kind, fault.rank, fault.operation), (FaultKind::BarrierNotAwaited, Rank(0), None));
    assert_eq!(
        fault.to_string(),
        "a rank may exit before another has entered: found nothing of rank 1 before the end of rank 0, expected something of \
         every rank"
    );
    script.push(Rank(0), wait_run(OpKind::Wait), &[Dependency::on_operation(Rank(1), 0, 0)]);
    assert_eq!(script.verify(), Ok(3));
    // A rank without operations leaves immediately.
    let mut script = Scripted::waits(300);
    script.header.call.collective = Collective::Barrier;
    let fault = script.fault();
    assert_eq!((fault.kind, fault.rank), (FaultKind::BarrierNotAwaited, Rank(0)));
}
