//! Compares the verifier with a naive one on correct schedules with one change: an operation dropped, doubled,
//! exchanged with another, sent to another rank, given another chunk or kind, or a dependency removed. A change that
//! the verifier accepts must be one that the naive verifier proves harmless.

use std::collections::{BTreeMap, BTreeSet};

use fabricast_sim::schedule::{
    Buffer, BufferUse, ChunkRef, Collective, Dependency, Header, OpKind, Program, Rank, Run, Schedule,
    ScheduleGenerator, Walk,
};
use fabricast_sim::verify::{VerifyOptions, verify};
use proptest::prelude::*;

use crate::generators::cases;

/// One operation of one rank, written out in full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Action {
    pub(crate) kind: OpKind,
    pub(crate) peer: u32,
    src: ChunkRef,
    dst: ChunkRef,
    span: u32,
}

/// A schedule as a list of single operations.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    header: Header,
    /// Executing rank, action, and the operations waited for (as indices) of each operation.
    pub(crate) operations: Vec<(u32, Action, Vec<usize>)>,
}

impl Script {
    pub(crate) fn new(schedule: &Schedule) -> Self {
        let operations = schedule.operations().map(|op| {
            let action = Action {
                kind: op.kind,
                peer: op.team.map_or(op.peer.0, |team| team.0),
                src: op.src,
                dst: op.dst,
                span: op.span,
            };
            (
                op.rank.0,
                action,
                schedule.awaited_operations(op.run, op.index).map(|dependency| dependency.0 as usize).collect(),
            )
        });
        Self { header: schedule.header().clone(), operations: operations.collect() }
    }

    /// Builds a schedule with one run per operation.
    fn schedule(&self) -> Schedule {
        Schedule::build(self).unwrap()
    }

    fn ranks(&self) -> u32 {
        self.header.call.ranks
    }
}

impl ScheduleGenerator for Script {
    fn header(&self) -> &Header {
        &self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        let mut numbers = vec![0u32; self.ranks() as usize];
        let names: Vec<(u32, u32)> = self
            .operations
            .iter()
            .map(|&(rank, ..)| {
                numbers[rank as usize] += 1;
                (rank, numbers[rank as usize] - 1)
            })
            .collect();
        for (_, action, awaited) in self.operations.iter().filter(|op| op.0 == rank.0) {
            let run = Run {
                len: 1,
                kind: action.kind,
                channel: fabricast_sim::schedule::Channel(0),
                peer: Walk::fixed(action.peer),
                src_buffer: action.src.buffer,
                src: Walk::fixed(action.src.index),
                dst_buffer: action.dst.buffer,
                dst: Walk::fixed(action.dst.index),
                span: action.span,
            };
            let dependencies: Vec<Dependency> =
                awaited.iter().map(|&op| Dependency::on_operation(Rank(names[op].0), names[op].1, 0)).collect();
            program.push(run, &dependencies);
        }
    }
}

/// A chunk of a rank's memory: rank, buffer and chunk index; in place, input is output.
type Location = (u32, Buffer, u32);
/// Memory accesses of an operation on one of its chunks: the sum of all locations read is written to each location.
struct Access {
    read: Vec<Location>,
    written: Vec<Location>,
}

/// Number of times that each (rank, chunk) of the input is contained in a value.
type Value = BTreeMap<(u32, u32), u32>;

/// Reference verifier, written directly from the definition.
pub(crate) struct Naive<'a> {
    script: &'a Script,
    chunks: u32,
    in_place: bool,
}

impl Naive<'_> {
    pub(crate) fn proves(script: &Script) -> bool {
        let in_place = script.header.call.buffers == BufferUse::InPlace;
        Naive { script, chunks: script.header.layout.chunks(), in_place }.run().is_some()
    }

    fn location(&self, rank: u32, chunk: ChunkRef, i: u32) -> Location {
        let buffer = if self.in_place && chunk.buffer == Buffer::Input { Buffer::Output } else { chunk.buffer };
        (rank, buffer, chunk.index + i)
    }

    /// Returns the block that contains a chunk, with one block per rank.
    fn block(&self, chunk: u32) -> u32 {
        chunk / (self.chunks / self.script.ranks())
    }

    /// Returns sender, receiver and bytes of the all_to_allv block that contains a chunk.
    fn pair(&self, chunk: u32) -> (u32, u32, u64) {
        let (mut segment, mut first) = (0, 0);
        let segments = self.script.header.layout.segments();
        while first + segments[segment].parts <= chunk {
            first += segments[segment].parts;
            segment += 1;
        }
        let ranks = self.script.ranks();
        (segment as u32 / ranks, segment as u32 % ranks, segments[segment].bytes.0)
    }

    fn holds_input(&self, rank: u32, chunk: u32) -> bool {
        let call = &self.script.header.call;
        match call.collective {
            Collective::AllGather | Collective::Gather => self.block(chunk) == rank,
            Collective::Broadcast | Collective::Scatter => rank == call.root.0,
            Collective::AllToAllV => self.pair(chunk).0 == rank,
            _ => true,
        }
    }

    fn expected_value(&self, rank: u32, chunk: u32) -> Option<Value> {
        let call = &self.script.header.call;
        let (ranks, root) = (self.script.ranks(), call.root.0);
        let single = |rank, chunk| Some(Value::from([((rank, chunk), 1)]));
        let sum = || Some((0..ranks).map(|rank| ((rank, chunk), 1)).collect());
        match call.collective {
            Collective::AllReduce => sum(),
            Collective::Reduce if rank == root => sum(),
            Collective::ReduceScatter if self.block(chunk) == rank => sum(),
            Collective::AllGather => single(self.block(chunk), chunk),
            Collective::Gather if rank == root => single(self.block(chunk), chunk),
            Collective::Broadcast => single(root, chunk),
            Collective::Scatter if self.block(chunk) == rank => single(root, chunk),
            Collective::AllToAll => {
                let per_block = self.chunks / ranks;
                single(self.block(chunk), rank * per_block + chunk % per_block)
            }
            Collective::AllToAllV => {
                let (sender, receiver, bytes) = self.pair(chunk);
                if receiver == rank && bytes > 0 { single(sender, chunk) } else { None }
            }
            Collective::SendRecv => single((rank + ranks - 1) % ranks, chunk),
            _ => None,
        }
    }

    /// Returns an order of the operations that respects dependencies; `None` if they are circular.
    fn order(&self) -> Option<Vec<usize>> {
        let operations = &self.script.operations;
        let (mut done, mut order) = (vec![false; operations.len()], Vec::new());
        while order.len() < operations.len() {
            let previous_len = order.len();
            for (i, (_, _, awaited)) in operations.iter().enumerate() {
                if !done[i] && awaited.iter().all(|&dependency| done[dependency]) {
                    done[i] = true;
                    order.push(i);
                }
            }
            if order.len() == previous_len {
                return None;
            }
        }
        Some(order)
    }

    /// Returns the memory accesses of an operation, chunk by chunk.
    fn accesses(&self, op: usize) -> Vec<Access> {
        let (rank, action, _) = &self.script.operations[op];
        let kind = action.kind;
        if !kind.moves_data() {
            return Vec::new();
        }
        if kind.is_multicast() {
            return self.team_accesses(*rank, *action);
        }
        let source = if kind.reads_peer() { action.peer } else { *rank };
        let target = if kind.writes_peer() { action.peer } else { *rank };
        (0..action.span)
            .map(|i| {
                let written = self.location(target, action.dst, i);
                let mut read = vec![self.location(source, action.src, i)];
                match kind {
                    OpKind::PutReduceInput => {
                        read.push(self.location(target, ChunkRef { buffer: Buffer::Input, ..action.dst }, i));
                    }
                    OpKind::PutReduce | OpKind::GetReduce | OpKind::Reduce => read.push(written),
                    _ => {}
                }
                Access { read, written: vec![written] }
            })
            .collect()
    }

    fn team_accesses(&self, rank: u32, action: Action) -> Vec<Access> {
        let members = &self.script.header.teams[action.peer as usize];
        let access = |i| {
            let (from, to) = (|r| self.location(r, action.src, i), |r| self.location(r, action.dst, i));
            let (sources, targets) =
                (members.iter().map(|member| from(member.0)), members.iter().map(|member| to(member.0)));
            match action.kind {
                OpKind::MulticastReduce => Access { read: sources.collect(), written: vec![to(rank)] },
                OpKind::SwitchAllReduce => Access { read: sources.collect(), written: targets.collect() },
                _ => {
                    let written = targets.filter(|&location| location != from(rank)).collect();
                    Access { read: vec![from(rank)], written }
                }
            }
        };
        (0..action.span).map(access).collect()
    }

    /// Returns `Some` if the schedule is correct.
    fn run(&self) -> Option<()> {
        let operations = &self.script.operations;
        let order = self.order()?;
        if operations
            .iter()
            .any(|(rank, action, _)| action.kind.moves_data() && !action.kind.is_transfer() && action.peer != *rank)
        {
            return None;
        }
        let mut predecessors: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); operations.len()];
        for &op in &order {
            let mut op_predecessors = BTreeSet::new();
            for &dependency in &operations[op].2 {
                op_predecessors.insert(dependency);
                op_predecessors.extend(&predecessors[dependency]);
            }
            predecessors[op] = op_predecessors;
        }
        if self.script.header.call.collective == Collective::Barrier {
            let waits_for = |rank: u32, other: u32| {
                let operations_of = |rank: u32| (0..operations.len()).filter(move |&op| operations[op].0 == rank);
                operations_of(rank).any(|last| operations_of(other).any(|first| predecessors[last].contains(&first)))
            };
            let ranks = 0..self.script.ranks();
            let mut pairs = ranks.clone().flat_map(|rank| ranks.clone().map(move |other| (rank, other)));
            if !pairs.all(|(rank, other)| rank == other || waits_for(rank, other)) {
                return None;
            }
        }
        // Chunks of one operation are moved in any order.
        let has_no_overlap = |op: usize| {
            let accesses = self.accesses(op);
            accesses.iter().enumerate().all(|(i, access)| {
                let mut others = accesses.iter().enumerate().filter(|&(j, _)| j != i);
                let is_apart = |written: &Location, other: &Access| {
                    !other.written.contains(written) && !other.read.contains(written)
                };
                others.all(|(_, other)| access.written.iter().all(|written| is_apart(written, other)))
            })
        };
        if !(0..operations.len()).all(has_no_overlap) {
            return None;
        }
        // Conflicting accesses must be ordered.
        let mut touched: BTreeMap<Location, Vec<(usize, bool)>> = BTreeMap::new();
        for op in 0..operations.len() {
            for access in self.accesses(op) {
                for location in access.read {
                    touched.entry(location).or_default().push((op, false));
                }
                for location in access.written {
                    touched.entry(location).or_default().push((op, true));
                }
            }
        }
        for accesses in touched.values() {
            for (i, &(a, a_writes)) in accesses.iter().enumerate() {
                for &(b, b_writes) in &accesses[..i] {
                    if a != b
                        && (a_writes || b_writes)
                        && !predecessors[a].contains(&b)
                        && !predecessors[b].contains(&a)
                    {
                        return None;
                    }
                }
            }
        }
        // This part computes values, and checks that all written values are read.
        let mut memory: BTreeMap<Location, Value> = BTreeMap::new();
        for rank in 0..self.script.ranks() {
            for chunk in (0..self.chunks).filter(|&chunk| self.holds_input(rank, chunk)) {
                let input = ChunkRef { buffer: Buffer::Input, index: chunk };
                memory.insert(self.location(rank, input, 0), Value::from([((rank, chunk), 1)]));
            }
        }
        let mut unread: BTreeSet<Location> = BTreeSet::new();
        for &op in &order {
            for Access { read, written } in self.accesses(op) {
                let mut value = Value::new();
                for location in &read {
                    unread.remove(location);
                    for (key, count) in memory.get(location)? {
                        *value.entry(*key).or_default() += count;
                    }
                }
                let chunks: BTreeSet<u32> = value.keys().map(|key| key.1).collect();
                if chunks.len() != 1 || value.values().any(|&count| count != 1) {
                    return None;
                }
                for written in written {
                    let forbidden = match written.1 {
                        Buffer::Input => true,
                        Buffer::Output => self.expected_value(written.0, written.2).is_none(),
                        Buffer::Scratch => false,
                    };
                    if forbidden || !unread.insert(written) {
                        return None;
                    }
                    memory.insert(written, value.clone());
                }
            }
        }
        for rank in 0..self.script.ranks() {
            for chunk in 0..self.chunks {
                if let Some(expected) = self.expected_value(rank, chunk) {
                    let location = (rank, Buffer::Output, chunk);
                    if memory.get(&location) != Some(&expected) {
                        return None;
                    }
                    unread.remove(&location);
                }
            }
        }
        unread.is_empty().then_some(())
    }
}

/// One change to a script. Operations are given as indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// Removes an operation; operations that waited for it wait for its dependencies.
    Drop(usize),
    /// Repeats an operation after the same dependencies, with no operation waiting for the repetition.
    Double(usize),
    /// Exchanges two operations of a rank.
    Exchange(usize, usize),
    /// Changes the peer of an operation.
    Retarget(usize, u32),
    /// Changes the source chunk of an operation.
    Source(usize, ChunkRef),
    /// Changes the destination chunk of an operation.
    Destination(usize, ChunkRef),
    /// Changes the kind of an operation from a reduction to a copy, or from a copy to a reduction.
    Kind(usize, OpKind),
    /// Removes a dependency, given by its index, of an operation.
    Rush(usize, usize),
}

impl Mutation {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Drop(_) => "dropped",
            Self::Double(_) => "doubled",
            Self::Exchange(..) => "exchanged",
            Self::Retarget(..) => "retargeted",
            Self::Source(..) => "other source",
            Self::Destination(..) => "other destination",
            Self::Kind(..) => "other kind",
            Self::Rush(..) => "dependency left out",
        }
    }

    /// Returns all changes to a script; of other ranks and chunks only neighbours are used.
    pub(crate) fn all(script: &Script) -> Vec<Self> {
        let mut mutations = Vec::new();
        let limit = |buffer| match buffer {
            Buffer::Scratch => script.header.scratch_chunks,
            _ => script.header.layout.chunks(),
        };
        let neighbours = |chunk: ChunkRef, span: u32| {
            let with_index = |index: u32| ChunkRef { index, ..chunk };
            let mut others = vec![with_index(chunk.index + 1), with_index(chunk.index.wrapping_sub(1))];
            let buffers = [Buffer::Input, Buffer::Output, Buffer::Scratch];
            others
                .extend(buffers.into_iter().filter(|&b| b != chunk.buffer).map(|buffer| ChunkRef { buffer, ..chunk }));
            others.retain(|c| c.index.checked_add(span).is_some_and(|end| end <= limit(c.buffer)));
            others
        };
        for (i, (rank, action, awaited)) in script.operations.iter().enumerate() {
            mutations.push(Self::Drop(i));
            mutations.extend((0..awaited.len()).map(|dependency| Self::Rush(i, dependency)));
            if !action.kind.moves_data() {
                continue;
            }
            mutations.push(Self::Double(i));
            let exchanged = |j: &usize| script.operations[*j].0 == *rank && script.operations[*j].1 != *action;
            mutations.extend((i + 1..script.operations.len()).filter(exchanged).take(2).map(|j| Self::Exchange(i, j)));
            mutations.extend(
                (0..script.ranks())
                    .filter(|peer| *peer != action.peer && !action.kind.is_multicast())
                    .take(3)
                    .map(|peer| Self::Retarget(i, peer)),
            );
            mutations.extend(neighbours(action.src, action.span).into_iter().map(|chunk| Self::Source(i, chunk)));
            mutations.extend(neighbours(action.dst, action.span).into_iter().map(|chunk| Self::Destination(i, chunk)));
            let kinds = match action.kind {
                OpKind::Put | OpKind::PutReduce | OpKind::PutReduceInput => {
                    &[OpKind::Put, OpKind::PutReduce, OpKind::PutReduceInput][..]
                }
                kind if kind.is_multicast() => {
                    &[OpKind::MulticastPut, OpKind::MulticastReduce, OpKind::SwitchAllReduce]
                }
                _ => &[OpKind::Copy, OpKind::Reduce],
            };
            mutations.extend(kinds.iter().filter(|&&kind| kind != action.kind).map(|&kind| Self::Kind(i, kind)));
        }
        mutations
    }

    /// Returns true if the change is equivalent to the original. In place, input is output; adding a value to the input
    /// or to the output is the same; and operations with the same dependencies and dependents have no order.
    pub(crate) fn is_equivalent(self, script: &Script) -> bool {
        let in_place = script.header.call.buffers == BufferUse::InPlace;
        let is_same_memory = |a: ChunkRef, b: ChunkRef| {
            let memory = |c: ChunkRef| (in_place && c.buffer == Buffer::Input || c.buffer == Buffer::Output, c.buffer);
            a.index == b.index && in_place && memory(a).0 && memory(b).0
        };
        match self {
            // Operations that waited for a removed wait then wait for its dependencies.
            Self::Drop(i) => !script.operations[i].1.kind.moves_data(),
            Self::Source(i, chunk) => is_same_memory(script.operations[i].1.src, chunk),
            Self::Destination(i, chunk) => is_same_memory(script.operations[i].1.dst, chunk),
            Self::Kind(i, kind) => {
                let action = script.operations[i].1;
                in_place && action.kind.reduces() && kind.reduces() && action.dst.buffer != Buffer::Scratch
            }
            Self::Exchange(i, j) => {
                let awaited = |i: usize| BTreeSet::from_iter(&script.operations[i].2);
                let dependents = |i: usize| -> BTreeSet<usize> {
                    (0..script.operations.len()).filter(|&k| script.operations[k].2.contains(&i)).collect()
                };
                awaited(i) == awaited(j) && dependents(i) == dependents(j)
            }
            _ => false,
        }
    }

    pub(crate) fn apply(self, script: &Script) -> Script {
        let mut changed = script.clone();
        let operations = &mut changed.operations;
        match self {
            Self::Drop(i) => {
                let (.., inherited) = operations.remove(i);
                for (.., awaited) in operations.iter_mut() {
                    if awaited.contains(&i) {
                        awaited.retain(|&dependency| dependency != i);
                        awaited.extend(&inherited);
                    }
                    for dependency in awaited.iter_mut() {
                        *dependency -= usize::from(*dependency > i);
                    }
                }
            }
            Self::Double(i) => operations.push(operations[i].clone()),
            Self::Exchange(i, j) => {
                let (first, second) = (operations[i].1, operations[j].1);
                operations[i].1 = second;
                operations[j].1 = first;
            }
            Self::Retarget(i, peer) => operations[i].1.peer = peer,
            Self::Source(i, chunk) => operations[i].1.src = chunk,
            Self::Destination(i, chunk) => operations[i].1.dst = chunk,
            Self::Kind(i, kind) => operations[i].1.kind = kind,
            Self::Rush(i, dependency) => {
                operations[i].2.remove(dependency);
            }
        }
        changed
    }
}

pub(crate) fn verifies(script: &Script) -> bool {
    verify(&script.schedule(), &VerifyOptions::default()).is_ok()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn both_verifiers_agree_on_mutated_schedules(case in cases(6), picks in prop::collection::vec(any::<prop::sample::Index>(), 6)) {
        let script = Script::new(&case.schedule());
        prop_assume!(!script.operations.is_empty() && script.operations.len() < 400);
        let mutations = Mutation::all(&script);
        for pick in picks {
            let mutation = *pick.get(&mutations);
            let changed = mutation.apply(&script);
            prop_assert_eq!(verifies(&changed), Naive::proves(&changed), "{:?}", mutation);
        }
    }

    #[test]
    fn both_verifiers_agree_on_twice_mutated_schedules(case in cases(5), picks in prop::collection::vec(any::<prop::sample::Index>(), 2)) {
        let mut script = Script::new(&case.schedule());
        prop_assume!(!script.operations.is_empty() && script.operations.len() < 300);
        for pick in picks {
            let mutations = Mutation::all(&script);
            prop_assume!(!mutations.is_empty());
            script = pick.get(&mutations).apply(&script);
        }
        prop_assert_eq!(verifies(&script), Naive::proves(&script));
    }
}
