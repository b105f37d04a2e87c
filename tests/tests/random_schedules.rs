//! Random schedules: the same operations on all ranks, but for a few ranks that differ.

use fabricast_sim::schedule::{
    Blocks, Buffer, BufferUse, Call, Channel, Collective, Dependency, Header, Layout, OpKind, Program, Protocol, Rank,
    Run, ScheduleGenerator, Segment, Walk,
};
use fabricast_topologies::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// Operation that every rank runs, relative to the rank.
#[derive(Clone, Debug)]
struct RelativeOperation {
    kind: OpKind,
    len: u32,
    /// Distance of the peer in ranks, and its increment per operation.
    peer: (u32, u32),
    channel: u16,
    chunk: (u32, u32),
    span: u32,
    awaits: Vec<Await>,
}

/// Dependency on the operation `earlier` positions before (0: the operation itself), on the rank that is `further`
/// ranks ahead.
#[derive(Clone, Debug)]
struct Await {
    earlier: usize,
    further: u32,
    shift: i32,
    step: u32,
}

/// Difference of a rank from the others.
#[derive(Clone, Debug)]
enum Deviation {
    Longer,
    OtherPeer,
    OtherChunk,
    WaitsForOneMore(Await),
    WaitsForNothing,
    Silent,
}

/// Schedule whose ranks do the same, except for a few deviations.
#[derive(Clone, Debug)]
pub(crate) struct RandomSchedule {
    operations: Vec<RelativeOperation>,
    deviations: Vec<(prop::sample::Index, prop::sample::Index, Deviation)>,
    segments: Vec<(u32, u32)>,
    protocol: Protocol,
    /// True if operations may wait for later ones, which can deadlock.
    may_deadlock: bool,
}

fn awaits() -> impl Strategy<Value = Await> {
    (0usize..3, 0u32..4, -3i32..3, 0u32..3).prop_map(|(earlier, further, shift, step)| Await {
        earlier,
        further,
        shift,
        step,
    })
}

pub(crate) fn random_schedules() -> impl Strategy<Value = RandomSchedule> {
    const KINDS: [OpKind; 9] = [
        OpKind::Put,
        OpKind::PutReduce,
        OpKind::PutReduceInput,
        OpKind::Get,
        OpKind::GetReduce,
        OpKind::Copy,
        OpKind::Reduce,
        OpKind::Signal,
        OpKind::Wait,
    ];
    let operation = (
        select(KINDS.to_vec()),
        0u32..6,
        (0u32..4, 0u32..3),
        0u16..3,
        (0u32..6, 0u32..3),
        1u32..3,
        vec(awaits(), 0..3),
    )
        .prop_map(|(kind, len, peer, channel, chunk, span, awaits)| RelativeOperation {
            kind,
            len,
            peer,
            channel,
            chunk,
            span,
            awaits,
        });
    let deviation = prop_oneof![
        Just(Deviation::Longer),
        Just(Deviation::OtherPeer),
        Just(Deviation::OtherChunk),
        awaits().prop_map(Deviation::WaitsForOneMore),
        Just(Deviation::WaitsForNothing),
        Just(Deviation::Silent),
    ];
    let deviation = (any::<prop::sample::Index>(), any::<prop::sample::Index>(), deviation);
    let deviations = prop_oneof![1 => Just(0usize), 1 => 1usize..=2].prop_flat_map(move |n| vec(deviation.clone(), n));
    let segments = vec((1u32..2_000_000, 1u32..4), 1..=2);
    let protocol = select(vec![Protocol::Ll, Protocol::Simple, Protocol::Symmetric]);
    (vec(operation, 1..5), deviations, segments, protocol, prop::bool::weighted(0.1)).prop_map(
        |(operations, deviations, segments, protocol, may_deadlock)| RandomSchedule {
            operations,
            deviations,
            segments,
            protocol,
            may_deadlock,
        },
    )
}

/// Random schedule with all operations of all ranks written out.
#[derive(Debug)]
pub(crate) struct MaterializedSchedule {
    header: Header,
    programs: Vec<Program>,
}

impl RandomSchedule {
    pub(crate) fn materialize(&self, ranks: u32) -> MaterializedSchedule {
        let segments = self.segments.iter().map(|&(bytes, parts)| Segment { bytes: Bytes(bytes.into()), parts });
        let layout = Layout::new(segments.collect());
        let call = Call {
            collective: Collective::AllReduce,
            bytes: layout.bytes(),
            ranks,
            root: Rank(0),
            buffers: BufferUse::OutOfPlace,
        };
        let mut operations = vec![self.operations.clone(); ranks as usize];
        for (rank, position, deviation) in &self.deviations {
            let operations = &mut operations[rank.index(ranks as usize)];
            let operation = position.index(operations.len());
            deviation.apply(&mut operations[operation]);
        }
        let chunks = layout.chunks();
        let program = |rank: u32| {
            let mut program = Program::default();
            for (number, operation) in operations[rank as usize].iter().enumerate() {
                let chunk = Walk::cyclic(
                    0,
                    operation.chunk.0,
                    operation.chunk.1,
                    chunks - (operation.span - 1).min(chunks - 1),
                );
                let is_local = matches!(operation.kind, OpKind::Copy | OpKind::Reduce | OpKind::Wait);
                let peer = if is_local {
                    Walk::fixed(rank)
                } else {
                    Walk::cyclic(0, rank + operation.peer.0, operation.peer.1, ranks)
                };
                let run = Run {
                    len: operation.len,
                    kind: operation.kind,
                    channel: Channel(operation.channel),
                    peer,
                    src_buffer: Buffer::Input,
                    src: chunk,
                    dst_buffer: Buffer::Output,
                    dst: chunk,
                    span: operation.span.min(chunks),
                };
                let dependencies: Vec<Dependency> = operation
                    .awaits
                    .iter()
                    .map(|wait| wait.dependency(rank, ranks, number, self.may_deadlock))
                    .collect();
                program.push(run, &dependencies);
            }
            program
        };
        let programs = (0..ranks).map(program).collect();
        let name = "drawn".to_owned();
        MaterializedSchedule {
            header: Header {
                name,
                call,
                protocol: self.protocol,
                channels: 3,
                blocks: Blocks::default(),
                layout,
                scratch_chunks: 0,
                teams: Vec::new(),
                certificate: None,
            },
            programs,
        }
    }
}

impl Await {
    fn dependency(&self, rank: u32, ranks: u32, number: usize, may_deadlock: bool) -> Dependency {
        let run = number.saturating_sub(self.earlier);
        // Among operations of one index, only those with a smaller operation index are safe to wait for.
        let (shift, step) =
            if run == number && !may_deadlock { (-1 - self.shift.abs(), 1) } else { (self.shift, self.step) };
        Dependency { rank: Rank((rank + self.further) % ranks), run: run as u32, start: shift, step }
    }
}

impl Deviation {
    fn apply(&self, operation: &mut RelativeOperation) {
        match self {
            Self::Longer => operation.len += 1,
            Self::OtherPeer => operation.peer.0 += 1,
            Self::OtherChunk => operation.chunk.0 += 1,
            Self::WaitsForOneMore(wait) => operation.awaits.push(wait.clone()),
            Self::WaitsForNothing => operation.awaits.clear(),
            Self::Silent => operation.len = 0,
        }
    }
}

impl ScheduleGenerator for MaterializedSchedule {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        let source = &self.programs[rank.0 as usize];
        for (number, run) in source.runs().iter().enumerate() {
            program.push(*run, source.dependencies(number));
        }
    }
}
