//! Chakra execution traces: one file per rank, with length-delimited protocol buffers (MLCommons,
//! github.com/mlcommons/chakra, `schema/protobuf/et_def.proto`).
//!
//! A `GlobalMetadata` message comes first and is skipped. `Node` messages follow:
//!
//! | field | name | meaning |
//! |---|---|---|
//! | 1, 2 | `id`, `name` | |
//! | 3 | `type` | 4: computation; 5: send; 6: receive; 7: collective; others have no duration |
//! | 4, 5 | `ctrl_deps`, `data_deps` | predecessors |
//! | 7 | `duration_micros` | duration of a computation |
//! | 10 | `attr`: `is_cpu_op` | computation on the host thread, concurrent with the GPU |
//! | 10 | `attr`: `comm_type`, `comm_size`, `comm_src`, `comm_dst`, `comm_tag`, `pg_name` | of communication |
//!
//! Start times (field 6) are those of the traced machine and are ignored. A collective without `pg_name` spans all
//! ranks; with it, the ranks whose traces contain that name. The n-th collective of a group is the same call on all of
//! its ranks. `comm_size` of an all_gather is the contribution of each rank, as in ASTRA-sim; otherwise it is the
//! larger buffer.
//!
//! A send does not wait for its receiver: it starts when its predecessors are done, and ends when the data has arrived.
//! A receive ends when its predecessors are done and the data has arrived (ASTRA-sim,
//! `CommonNetworkApi::process_chunk_arrival`). If sends waited for receivers, a ring in which each rank sends and then
//! receives would deadlock.

use std::collections::BTreeMap;
use std::sync::Arc;

use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, Picos, SourceLocation};
use rustc_hash::FxHashMap;

use super::messages::{Endpoint, Messages, message};
use super::wire::{Field, Reader, Value, WireError, zigzag};
use super::{Call, Event, EventKind, MAX_EVENTS, Processor, Trace};
use crate::job::JobError;

/// Collectives in the numeric order of Chakra's `CollectiveCommType`; `None` represents a barrier.
const COLLECTIVES: [Option<Collective>; 10] = [
    Some(Collective::AllReduce),
    Some(Collective::Reduce),
    Some(Collective::AllGather),
    Some(Collective::Gather),
    Some(Collective::Scatter),
    Some(Collective::Broadcast),
    Some(Collective::AllToAll),
    Some(Collective::ReduceScatter),
    Some(Collective::ReduceScatter),
    None,
];

/// Fields of a Chakra node that the reader uses.
#[derive(Debug, Default)]
struct ChakraNode {
    id: u64,
    name: String,
    kind: u64,
    after: Vec<u64>,
    micros: u64,
    numbers: BTreeMap<String, i128>,
    group: String,
    on: Processor,
    offset: usize,
}

/// Trace file of one rank.
pub struct RankFile<'a> {
    /// Name of the file, for errors.
    pub source: &'a str,
    /// Contents of the file.
    pub bytes: &'a [u8],
}

/// Reads the traces of ranks 0, 1, … from one file per rank into one trace.
///
/// # Errors
/// [`JobError`] with the file and the byte offset: an invalid message, a node with an unknown predecessor, or ranks
/// whose collectives do not match.
pub fn read_chakra(files: &[RankFile<'_>]) -> Result<Trace, JobError> {
    let mut all = Vec::with_capacity(files.len());
    let mut count = 0;
    for file in files {
        let nodes = nodes(file.bytes).map_err(|broken| {
            JobError::at(&SourceLocation::from_source(file.source), format!("byte {}: {}", broken.at, broken.message))
        })?;
        count += nodes.len();
        if count > MAX_EVENTS {
            return Err(JobError::at(
                &SourceLocation::from_source(file.source),
                format!("more than {MAX_EVENTS} nodes"),
            ));
        }
        all.push(nodes);
    }
    let source = files.first().map_or("", |file| file.source);
    let mut builder = ChakraTraceBuilder { files, groups: groups(&all), ..ChakraTraceBuilder::default() };
    for (rank, nodes) in (0u32..).zip(&all) {
        builder.add(rank, nodes)?;
    }
    builder.check_complete()?;
    let mut ignored = Vec::new();
    if builder.idle > 0 {
        ignored.push(format!("{} nodes of memory, storage, metadata and barriers have no duration", builder.idle));
    }
    Trace::new(builder.events, ignored, source)
}

/// Reads the nodes of a file, which follow its metadata.
///
/// # Errors
/// [`WireError`] for an invalid message.
fn nodes(bytes: &[u8]) -> Result<Vec<ChakraNode>, WireError> {
    let mut file = Reader::new(bytes);
    if file.is_empty() {
        return Err(file.error("empty: expected Chakra's metadata and nodes"));
    }
    let mut metadata = file.delimited()?;
    while metadata.field()?.is_some() {}
    let mut nodes = Vec::new();
    while !file.is_empty() {
        let mut message = file.delimited()?;
        nodes.push(node(&mut message)?);
    }
    Ok(nodes)
}

fn node(message: &mut Reader<'_>) -> Result<ChakraNode, WireError> {
    let mut node = ChakraNode { offset: message.at(), ..ChakraNode::default() };
    while let Some(Field { number: field, value, at }) = message.field()? {
        match (field, value) {
            (1, Value::Varint(id)) => node.id = id,
            (2, Value::Bytes(name)) => node.name = String::from_utf8_lossy(name).into_owned(),
            (3, Value::Varint(kind)) => node.kind = kind,
            (4 | 5, value) => node.after.extend(value.numbers(at)?),
            (7, Value::Varint(micros)) => node.micros = micros,
            (10, Value::Bytes(bytes)) => attribute(&mut Reader::nested(bytes, at), &mut node)?,
            (1 | 3 | 7 | 10, _) => {
                return Err(WireError {
                    at,
                    message: format!("field {field} of a node has another type than Chakra's"),
                });
            }
            _ => {}
        }
    }
    Ok(node)
}

/// Reads an `AttributeProto` into its node: name in field 1; `int32` in 7, `int64` in 9, `uint32` in 11, `uint64` in
/// 13, `sint32` in 15, `sint64` in 17; `fixed32`, `fixed64`, `sfixed32` and `sfixed64` in 19 to 25; `bool` in 27; text
/// in 29.
fn attribute(message: &mut Reader<'_>, node: &mut ChakraNode) -> Result<(), WireError> {
    let (mut name, mut number, mut text) = (String::new(), None, None);
    while let Some(Field { number: field, value, .. }) = message.field()? {
        match (field, value) {
            (1, Value::Bytes(bytes)) => name = String::from_utf8_lossy(bytes).into_owned(),
            (7, Value::Varint(value)) => number = Some(i128::from(value as i32)),
            (9, Value::Varint(value)) => number = Some(i128::from(value as i64)),
            (11 | 13 | 27, Value::Varint(value)) => number = Some(i128::from(value)),
            (15 | 17, Value::Varint(value)) => number = Some(i128::from(zigzag(value))),
            (19, Value::Fixed32(value)) => number = Some(i128::from(value)),
            (21, Value::Fixed64(value)) => number = Some(i128::from(value)),
            (23, Value::Fixed32(value)) => number = Some(i128::from(value as i32)),
            (25, Value::Fixed64(value)) => number = Some(i128::from(value as i64)),
            (29, Value::Bytes(bytes)) => text = Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => {}
        }
    }
    match (name.as_str(), number, text) {
        ("pg_name" | "comm_group", _, Some(text)) => node.group = text,
        ("pg_name" | "comm_group", Some(number), None) => node.group = number.to_string(),
        ("is_cpu_op", Some(1), _) => node.on = Processor::Cpu,
        (_, Some(number), _) => {
            node.numbers.insert(name, number);
        }
        _ => {}
    }
    Ok(())
}

/// Returns the ranks of each group by its name: the ranks whose collectives contain the name. The empty name is the
/// group of all ranks.
fn groups(all: &[Vec<ChakraNode>]) -> BTreeMap<String, Arc<[u32]>> {
    let mut groups: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for (rank, nodes) in (0u32..).zip(all) {
        for node in nodes.iter().filter(|node| node.kind == 7) {
            let ranks = groups.entry(node.group.clone()).or_default();
            if ranks.last() != Some(&rank) {
                ranks.push(rank);
            }
        }
    }
    if let Some(everyone) = groups.get_mut("") {
        *everyone = (0..all.len() as u32).collect();
    }
    groups.into_iter().map(|(name, ranks)| (name, ranks.into())).collect()
}

#[derive(Default)]
struct ChakraTraceBuilder<'a> {
    files: &'a [RankFile<'a>],
    groups: BTreeMap<String, Arc<[u32]>>,
    events: Vec<Event>,
    /// Collectives of each group in order: index of the event, and collective and message size as recorded by the first
    /// rank.
    calls: FxHashMap<String, Vec<(u32, Collective, u64)>>,
    /// Number of collectives that each rank has made in a group so far.
    call_counts: BTreeMap<(String, u32), usize>,
    /// Messages recorded so far, by sender, receiver and tag.
    messages: FxHashMap<(u32, u32, i128), Messages>,
    idle: u64,
}

impl ChakraTraceBuilder<'_> {
    fn fail(&self, rank: u32, node: &ChakraNode, message: &str) -> JobError {
        let source = self.files.get(rank as usize).map_or("", |file| file.source);
        JobError::at(
            &SourceLocation::from_source(source),
            format!("byte {}: node {} `{}`: {message}", node.offset, node.id, node.name),
        )
    }

    fn add(&mut self, rank: u32, nodes: &[ChakraNode]) -> Result<(), JobError> {
        let mut event_by_id: FxHashMap<u64, u32> = FxHashMap::default();
        for node in nodes {
            let event = match node.kind {
                4 => {
                    let time = Picos(node.micros.saturating_mul(1_000_000).min(1 << 60));
                    self.event(rank, node, EventKind::Compute { ranks: [rank].into(), on: node.on, time })
                }
                5 => self.message(rank, node, Endpoint::Sender)?,
                6 => {
                    let message = self.message(rank, node, Endpoint::Receiver)?;
                    let wait = self.event(rank, node, EventKind::Wait([rank].into()));
                    self.add_predecessor(wait, message);
                    wait
                }
                7 => self.call(rank, node)?,
                _ => {
                    self.idle += 1;
                    self.event(rank, node, EventKind::Wait([rank].into()))
                }
            };
            if event_by_id.insert(node.id, event).is_some() {
                return Err(self.fail(rank, node, "another node has the same id"));
            }
        }
        for node in nodes {
            let Some(&event) = event_by_id.get(&node.id) else { continue };
            for before in &node.after {
                let Some(&before) = event_by_id.get(before) else {
                    return Err(self.fail(rank, node, &format!("depends on node {before}, which does not exist")));
                };
                self.add_predecessor(event, before);
            }
        }
        Ok(())
    }

    fn add_predecessor(&mut self, event: u32, before: u32) {
        if let Some(successor) = self.events.get_mut(event as usize)
            && !successor.after.contains(&before)
        {
            successor.after.push(before);
        }
    }

    fn event(&mut self, rank: u32, node: &ChakraNode, kind: EventKind) -> u32 {
        let source = self.files.get(rank as usize).map_or("", |file| file.source);
        let location = SourceLocation::from_source(source);
        self.events.push(Event { name: node.name.clone(), kind, after: Vec::new(), start: Picos::ZERO, location });
        self.events.len() as u32 - 1
    }

    fn number(&self, rank: u32, node: &ChakraNode, name: &str) -> Result<i128, JobError> {
        let value = node.numbers.get(name).copied();
        value.ok_or_else(|| self.fail(rank, node, &format!("no attribute `{name}` that is a number")))
    }

    fn size(&self, rank: u32, node: &ChakraNode) -> Result<u64, JobError> {
        let bytes = self.number(rank, node, "comm_size")?;
        let fault = if bytes < 0 { "negative" } else { "too large" };
        let size = u64::try_from(bytes).ok().filter(|size| *size < 1 << 56);
        size.ok_or_else(|| self.fail(rank, node, &format!("comm_size {bytes} is {fault}")))
    }

    fn call(&mut self, rank: u32, node: &ChakraNode) -> Result<u32, JobError> {
        let kind = self.number(rank, node, "comm_type")?;
        let collective = usize::try_from(kind).ok().and_then(|kind| COLLECTIVES.get(kind).copied());
        let Some(collective) = collective else {
            return Err(self.fail(rank, node, &format!("comm_type {kind} is none of Chakra's 0 to 9")));
        };
        let group = self.groups.get(&node.group).cloned().unwrap_or_else(|| [rank].into());
        // A barrier counts as the smallest all_reduce. In a group of one rank it has no effect.
        let (collective, bytes) = match collective {
            Some(collective) => (collective, self.size(rank, node)?),
            None => (Collective::AllReduce, 4),
        };
        if group.len() < 2 {
            self.idle += 1;
            return Ok(self.event(rank, node, EventKind::Wait(group)));
        }
        let parts = if collective == Collective::AllGather { group.len() as u64 } else { 1 };
        let bytes = bytes.saturating_mul(parts);
        let count = self.call_counts.entry((node.group.clone(), rank)).or_default();
        let index = *count;
        *count += 1;
        let known = self.calls.get(&node.group).and_then(|calls| calls.get(index)).copied();
        match known {
            Some((event, other, size)) if other == collective && size == bytes => Ok(event),
            Some((_, other, size)) => {
                let first = group.first().copied().unwrap_or_default();
                let message = format!(
                    "call {} of this group is {collective} of {bytes} bytes here, and {other} of {size} bytes in the trace of rank {first}",
                    index + 1
                );
                Err(self.fail(rank, node, &message))
            }
            None => {
                let event_kind = EventKind::Call(Call { group, collective, bytes: Bytes(bytes) });
                let event = self.event(rank, node, event_kind);
                self.calls.entry(node.group.clone()).or_default().push((event, collective, bytes));
                Ok(event)
            }
        }
    }

    /// Returns the index of the event of a message that this rank sends or receives.
    ///
    /// # Errors
    /// [`JobError`] if the peer is invalid, or sender and receiver record different sizes.
    fn message(&mut self, rank: u32, node: &ChakraNode, side: Endpoint) -> Result<u32, JobError> {
        let peer = match side {
            Endpoint::Sender => "comm_dst",
            Endpoint::Receiver => "comm_src",
        };
        let bytes = self.size(rank, node)?;
        let peer = self.number(rank, node, peer)?;
        let peer = u32::try_from(peer).ok().filter(|peer| (*peer as usize) < self.files.len() && *peer != rank);
        let Some(peer) = peer else {
            return Err(self.fail(
                rank,
                node,
                &format!("its peer is none of the other {} ranks", self.files.len() - 1),
            ));
        };
        let tag = node.numbers.get("comm_tag").copied().unwrap_or_default();
        let (from, to) = match side {
            Endpoint::Sender => (rank, peer),
            Endpoint::Receiver => (peer, rank),
        };
        let messages = self.messages.entry((from, to, tag)).or_default();
        let Some(event) = messages.next(side, self.events.len() as u32) else {
            return Ok(self.event(rank, node, message(from, to, bytes)));
        };
        let recorded =
            self.events.get(event as usize).and_then(|event| event.kind.call()).map_or(0, |call| call.bytes.0);
        match recorded == bytes {
            true => Ok(event),
            false => {
                let message = format!("a message of {bytes} bytes here, and of {recorded} in the trace of rank {peer}");
                Err(self.fail(rank, node, &message))
            }
        }
    }

    /// Checks that every rank of a group made all calls of the group, and that every receive has a send.
    ///
    /// # Errors
    /// [`JobError`] with the file otherwise.
    fn check_complete(&self) -> Result<(), JobError> {
        let missing = self.messages.iter().filter(|(_, messages)| messages.missing() > 0);
        if let Some(((from, to, tag), messages)) = missing.min_by_key(|(key, _)| **key) {
            let source = self.files.get(*to as usize).map_or("", |file| file.source);
            let message = format!(
                "receives {} more messages from rank {from} under comm_tag {tag} than it sends",
                messages.missing()
            );
            return Err(JobError::at(&SourceLocation::from_source(source), message));
        }
        for (name, calls) in &self.calls {
            let group = self.groups.get(name).cloned().unwrap_or_else(|| [].into());
            for &rank in &*group {
                let count = self.call_counts.get(&(name.clone(), rank)).copied().unwrap_or_default();
                if count < calls.len() {
                    let source = self.files.get(rank as usize).map_or("", |file| file.source);
                    let group_name = if name.is_empty() { "all ranks".to_owned() } else { format!("group `{name}`") };
                    let message = format!("{count} calls of {group_name}; other ranks made {}", calls.len());
                    return Err(JobError::at(&SourceLocation::from_source(source), message));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Step of an MLP on four ranks, encoded with Google's protobuf library; see planner/data/traces/README.md.
    const MLP: [&[u8]; 4] = [
        include_bytes!("../../../data/traces/mlp-hybrid.0.et"),
        include_bytes!("../../../data/traces/mlp-hybrid.1.et"),
        include_bytes!("../../../data/traces/mlp-hybrid.2.et"),
        include_bytes!("../../../data/traces/mlp-hybrid.3.et"),
    ];
    const PIPELINE: [&[u8]; 2] =
        [include_bytes!("../../../data/traces/pipeline.0.et"), include_bytes!("../../../data/traces/pipeline.1.et")];

    /// Ring all_reduce on eight ranks, from ASTRA-sim; see planner/data/traces/README.md.
    const RING: [&[u8]; 8] = [
        include_bytes!("../../../data/traces/astra-ring.0.et"),
        include_bytes!("../../../data/traces/astra-ring.1.et"),
        include_bytes!("../../../data/traces/astra-ring.2.et"),
        include_bytes!("../../../data/traces/astra-ring.3.et"),
        include_bytes!("../../../data/traces/astra-ring.4.et"),
        include_bytes!("../../../data/traces/astra-ring.5.et"),
        include_bytes!("../../../data/traces/astra-ring.6.et"),
        include_bytes!("../../../data/traces/astra-ring.7.et"),
    ];

    fn read(files: &[&[u8]]) -> Result<Trace, JobError> {
        let names: Vec<String> = (0..files.len()).map(|rank| format!("t.{rank}.et")).collect();
        let files: Vec<RankFile<'_>> =
            names.iter().zip(files).map(|(source, bytes)| RankFile { source, bytes }).collect();
        read_chakra(&files)
    }

    fn calls(trace: &Trace) -> Vec<(&str, Vec<u32>, u64)> {
        let summary = |call: &Call| (call.collective.name(), call.group.to_vec(), call.bytes.0);
        trace.events.iter().filter_map(|event| event.kind.call()).map(summary).collect()
    }

    #[test]
    fn converter_traces_are_read() {
        let trace = read(&MLP).unwrap();
        assert_eq!((trace.ranks, trace.ignored.len()), (4, 0));
        let everyone = vec![0, 1, 2, 3];
        let actual = calls(&trace);
        // Three layers, two passes: activations are gathered in the forward pass; gradients of weights are reduced, and
        // gradients of inputs except for the first layer.
        assert_eq!(actual.len(), 2 * (3 + 2 + 3));
        assert!(actual.iter().all(|(_, group, _)| *group == everyone));
        assert_eq!(actual[0], ("all_gather", everyone.clone(), 4 * 65_536));
        let reduced: u64 = actual.iter().filter(|call| call.0 == "all_reduce").map(|call| call.2).sum();
        assert_eq!(reduced, 2 * (3 * 1_048_576 + 2 * 65_536));
        // Every rank computes three layers forward and backward, with both gradients.
        let computed: u64 = trace
            .events
            .iter()
            .filter_map(|event| match &event.kind {
                EventKind::Compute { time, .. } => Some(time.0 / 1_000_000),
                _ => None,
            })
            .sum();
        assert_eq!(computed, 4 * 2 * 3 * (100 + 110 + 120));
    }

    #[test]
    fn groups_and_messages_are_read() {
        let trace = read(&PIPELINE).unwrap();
        assert_eq!(
            calls(&trace),
            [("send_recv", vec![0, 1], 4096), ("send_recv", vec![1, 0], 4096), ("all_reduce", vec![0, 1], 64)]
        );
        let after: Vec<usize> = trace.events.iter().map(|event| event.after.len()).collect();
        // Eight dependencies are from the files, and each of two receives depends on its message.
        assert_eq!(after.iter().sum::<usize>(), 10);
        assert!(trace.ignored[0].starts_with("2 nodes"), "{:?}", trace.ignored);
    }

    /// In the trace, each rank sends to the next rank and then receives from the previous one, fourteen times, and
    /// reduces seven of the messages.
    #[test]
    fn astra_sim_ring_is_read() {
        let trace = read(&RING).unwrap();
        let actual = calls(&trace);
        assert_eq!((trace.ranks, actual.len()), (8, 8 * 14));
        for (name, group, bytes) in &actual {
            assert_eq!((*name, group[1], *bytes), ("send_recv", (group[0] + 1) % 8, (1 << 20) / 8));
        }
        // A message that is received but never sent.
        let error = read(&[RING[0], RING[1], RING[2], RING[3], RING[4], RING[5], RING[6], MLP[0]]).unwrap_err();
        assert!(error.to_string().contains("more messages from rank 7 under comm_tag 0"), "{error}");
    }

    /// Sender and receiver must agree on the size of a message.
    #[test]
    fn message_size_mismatch_is_rejected() {
        let offset = RING[1].windows(3).rposition(|bytes| bytes == [0x80, 0x80, 0x08]).unwrap();
        let mut changed = RING[1].to_vec();
        changed[offset + 2] = 0x09;
        let error = read(&[RING[0], &changed, RING[2], RING[3], RING[4], RING[5], RING[6], RING[7]]).unwrap_err();
        let expected = "a message of 147456 bytes here, and of 131072 in the trace of rank 0";
        assert!(error.to_string().starts_with("t.1.et: byte ") && error.to_string().ends_with(expected), "{error}");
    }

    /// Encodes an `AttributeProto` with a name and one more field.
    fn encoded_attribute(name: &str, field: &[u8]) -> Vec<u8> {
        [&[0x0a, name.len() as u8][..], name.as_bytes(), field].concat()
    }

    /// Numbers of each type of Chakra, encoded as by Google's protobuf library, are read with their sign.
    #[test]
    fn numbers_of_attributes_keep_their_sign() {
        let minus_one = [&[0xff_u8; 9][..], &[0x01][..]].concat();
        let cases: [(&[u8], &[u8], i128); 11] = [
            (&[0x38], &minus_one, -1),
            (&[0x48], &minus_one, -1),
            (&[0x58], &[0x03], 3),
            (&[0x68], &minus_one, i128::from(u64::MAX)),
            (&[0x78], &[0x01], -1),
            (&[0x88, 0x01], &[0x06], 3),
            (&[0x88, 0x01], &minus_one, i128::from(i64::MIN)),
            (&[0x9d, 0x01], &[0xff; 4], i128::from(u32::MAX)),
            (&[0xa9, 0x01], &[0xff; 8], i128::from(u64::MAX)),
            (&[0xbd, 0x01], &[0xff; 4], -1),
            (&[0xc9, 0x01], &[0xff; 8], -1),
        ];
        for (tag, value, expected) in cases {
            let mut node = ChakraNode::default();
            let bytes = encoded_attribute("comm_tag", &[tag, value].concat());
            attribute(&mut Reader::new(&bytes), &mut node).unwrap();
            assert_eq!(node.numbers.get("comm_tag"), Some(&expected), "{tag:x?} {value:x?}");
        }
    }

    #[test]
    fn negative_sizes_are_rejected() {
        // Node 1, an all_reduce of −4 bytes (sint64), after empty metadata.
        let mut node = vec![0x08, 1, 0x18, 7];
        for attribute in [encoded_attribute("comm_type", &[0x38, 0]), encoded_attribute("comm_size", &[0x88, 0x01, 7])]
        {
            node.extend([0x52, attribute.len() as u8]);
            node.extend(attribute);
        }
        let file = [&[0, node.len() as u8][..], &node[..]].concat();
        let error = read(&[&file]).unwrap_err().to_string();
        assert!(error.ends_with("comm_size -4 is negative"), "{error}");
    }

    #[test]
    fn damaged_traces_are_rejected_with_byte_offset() {
        for cut in 1..MLP[0].len() {
            // A file that is cut between two messages gives a shorter trace, which lacks collectives of the other
            // ranks.
            let error = read(&[&MLP[0][..cut], MLP[1], MLP[2], MLP[3]]).unwrap_err().to_string();
            assert!(error.starts_with("t."), "{cut}: {error}");
        }
        assert!(read(&[b""]).unwrap_err().to_string().starts_with("t.0.et: byte 0: empty"));
        assert!(read(&[b"hello, this is text"]).unwrap_err().to_string().starts_with("t.0.et: byte "));
        let error = read(&[MLP[0], PIPELINE[0]]).unwrap_err().to_string();
        assert!(error.contains("t.1.et: ") && !error.is_empty(), "{error}");
        // A damaged byte must not cause a panic.
        for offset in 0..MLP[0].len() {
            let mut damaged = MLP[0].to_vec();
            damaged[offset] ^= 0x55;
            let _ = read(&[&damaged, MLP[1], MLP[2], MLP[3]]);
        }
    }
}
