//! Look-up structure of a table for one communicator. A look-up neither allocates nor locks.
//!
//! Rows are grouped into *layers* by their conditions other than size. The sizes of a layer are divided into segments,
//! each with the first row that matches it. A call reads at most four layers (with its number of pipeline operations or
//! any, with its kind of buffers or any) and uses the row that is first in the file.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU16;

use super::{Buffers, Table};
use fabricast_libraries::nccl::{Algo, Function, Proto};

/// Strategy that a table selects for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableEntry {
    /// Algorithm that the row names.
    pub algo: Algo,
    /// Protocol that the row names.
    pub proto: Proto,
    /// Number of channels; `None` leaves the number to the library.
    pub channels: Option<NonZeroU16>,
    /// Index of the row in the table, from 0.
    pub row: u32,
}

/// Rows of a table for one communicator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lookup {
    /// Layers with the spans of their segments, sorted by key.
    layers: Vec<(LayerKey, Span)>,
    /// Segments of all layers, concatenated; sorted by first size within each.
    segments: Vec<Segment>,
    entries: Vec<TableEntry>,
}

/// Conditions of the rows of a layer, other than size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LayerKey {
    function: Function,
    pipe_ops: Option<u32>,
    buffers: Buffers,
}

/// Range of segments of a layer, as indices `start..end` (`end` exclusive).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    start: u32,
    end: u32,
}

/// Message sizes in bytes, from `first` up to the next segment's `first` (exclusive), with one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    first: u64,
    /// Index into `entries`; [`NONE`] if no row matches.
    entry: u32,
}

const NONE: u32 = u32::MAX;

/// Row of a table that matches the communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LayerRow {
    /// Layer of the row.
    key: LayerKey,
    /// Index into the entries of the lookup.
    entry: u32,
    /// Smallest message size, in bytes.
    min_bytes: u64,
    /// Largest message size, in bytes.
    max_bytes: u64,
}

impl Lookup {
    /// Creates the lookup for a communicator of `nodes` nodes and `ranks` ranks. O(n log n) for n rows.
    #[must_use]
    pub fn new(table: &Table, nodes: u32, ranks: u32) -> Self {
        let mut rows: Vec<LayerRow> = Vec::new();
        let mut lookup = Self::default();
        for (index, row) in table.rows.iter().enumerate().filter(|(_, row)| row.matches(nodes, ranks)) {
            let key = LayerKey { function: row.function, pipe_ops: row.pipe_ops, buffers: row.buffers };
            let entry = lookup.entries.len() as u32;
            rows.push(LayerRow { key, entry, min_bytes: row.min_bytes.0, max_bytes: row.max_bytes.0 });
            let Ok(index) = u32::try_from(index) else { break };
            lookup.entries.push(TableEntry { algo: row.algo, proto: row.proto, channels: row.channels, row: index });
        }
        // The sort is stable: rows of a layer stay in file order.
        rows.sort_by_key(|row| row.key);
        for layer in rows.chunk_by(|a, b| a.key == b.key) {
            let Some(&LayerRow { key, .. }) = layer.first() else { continue };
            let from = lookup.segments.len() as u32;
            build_segments(layer, &mut lookup.segments);
            lookup.layers.push((key, Span { start: from, end: lookup.segments.len() as u32 }));
        }
        lookup
    }

    /// Returns true if no row matches this communicator.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of rows that match this communicator.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the table's entry for a call; `None` if no row matches. Any `buffers` except [`Buffers::Registered`]
    /// count as plain. Neither allocates nor locks.
    #[must_use]
    pub fn find(&self, function: Function, bytes: u64, pipe_ops: u32, buffers: Buffers) -> Option<TableEntry> {
        let buffers = if buffers == Buffers::Registered { Buffers::Registered } else { Buffers::Plain };
        let mut first: Option<u32> = None;
        for pipe_ops in [None, Some(pipe_ops)] {
            for buffers in [Buffers::Any, buffers] {
                let entry = self.find_in_layer(LayerKey { function, pipe_ops, buffers }, bytes);
                first = match (first, entry) {
                    (Some(known), Some(new)) => Some(known.min(new)),
                    (known, new) => known.or(new),
                };
            }
        }
        self.entries.get(first? as usize).copied()
    }

    /// Returns the rows that the segments of a function refer to, if all of its rows are in one layer, so that no other
    /// layer can take precedence. Otherwise `None`.
    pub(super) fn rows_of_single_layer(&self, function: Function) -> Option<impl Iterator<Item = u32>> {
        let mut layers = self.layers.iter().filter(|layer| layer.0.function == function);
        let (Some((_, Span { start: from, end: to })), None) = (layers.next(), layers.next()) else { return None };
        let segments = self.segments.get(*from as usize..*to as usize)?;
        Some(segments.iter().filter_map(|segment| self.entries.get(segment.entry as usize)).map(|entry| entry.row))
    }

    /// Returns the numbers of pipeline operations that rows of a function require, and one further number that no row
    /// requires.
    pub(super) fn pipe_op_counts(&self, function: Function) -> Vec<u32> {
        let layers = self.layers.iter().filter(|layer| layer.0.function == function);
        let mut counts: Vec<u32> = layers.filter_map(|layer| layer.0.pipe_ops).collect();
        counts.sort_unstable();
        counts.dedup();
        let unused = (0..).find(|number| !counts.contains(number));
        counts.extend(unused);
        counts
    }

    /// Iterates over the first sizes of all segments of a function, unordered.
    pub(super) fn segment_starts(&self, function: Function) -> impl Iterator<Item = u64> {
        let layers = self.layers.iter().filter(move |layer| layer.0.function == function);
        let segments = layers.filter_map(|layer| self.segments.get(layer.1.start as usize..layer.1.end as usize));
        segments.flatten().map(|segment| segment.first)
    }

    fn find_in_layer(&self, key: LayerKey, bytes: u64) -> Option<u32> {
        let index = self.layers.binary_search_by(|layer| layer.0.cmp(&key)).ok()?;
        let Span { start: from, end: to } = self.layers.get(index)?.1;
        let segments = self.segments.get(from as usize..to as usize)?;
        let after = segments.partition_point(|segment| segment.first <= bytes);
        let segment = segments.get(after.checked_sub(1)?)?;
        (segment.entry != NONE).then_some(segment.entry)
    }
}

/// Cuts the sizes of a layer into segments, each with the first row that matches it.
fn build_segments(layer: &[LayerRow], segments: &mut Vec<Segment>) {
    let start = segments.len();
    let mut rows_by_start = layer.to_vec();
    rows_by_start.sort_unstable_by_key(|row| (row.min_bytes, row.entry));
    let ends = layer.iter().filter_map(|row| row.max_bytes.checked_add(1));
    let mut boundaries: Vec<u64> = layer.iter().map(|row| row.min_bytes).chain(ends).collect();
    boundaries.sort_unstable();
    boundaries.dedup();
    // Rows that contain the current size; the row that is first in the file is on top.
    let mut active: BinaryHeap<Reverse<(u32, u64)>> = BinaryHeap::new();
    let mut pending = rows_by_start.into_iter().peekable();
    for first in boundaries {
        while let Some(row) = pending.next_if(|row| row.min_bytes == first) {
            active.push(Reverse((row.entry, row.max_bytes)));
        }
        while active.peek().is_some_and(|Reverse((_, max))| *max < first) {
            active.pop();
        }
        let entry = active.peek().map_or(NONE, |Reverse((entry, _))| *entry);
        let last = segments.get(start..).and_then(<[Segment]>::last);
        if last.is_none_or(|last| last.entry != entry) {
            segments.push(Segment { first, entry });
        }
    }
}

#[cfg(test)]
mod tests {
    use fabricast_topologies::Bytes;
    use proptest::prelude::*;

    use super::super::TunerRow;
    use super::*;

    fn row() -> impl Strategy<Value = TunerRow> {
        let optional = |max: u32| prop_oneof![Just(None), (1..=max).prop_map(Some)];
        let buffers = prop_oneof![Just(Buffers::Any), Just(Buffers::Plain), Just(Buffers::Registered)];
        let size = prop_oneof![4 => 0u64..40, 1 => Just(u64::MAX)];
        (0usize..2, (size.clone(), size), 0usize..7, optional(3), optional(3), optional(2), buffers).prop_map(
            |(function, (a, b), algo, nodes, ranks, pipe_ops, buffers)| TunerRow {
                function: Function::ALL[function],
                min_bytes: Bytes(a.min(b)),
                max_bytes: Bytes(a.max(b)),
                algo: Algo::ALL[algo],
                proto: Proto::Simple,
                channels: None,
                nodes,
                ranks,
                pipe_ops,
                buffers,
            },
        )
    }

    proptest! {
        /// A lookup finds the first matching row in file order, as the plugin's linear search does.
        #[test]
        fn lookup_matches_linear_search(rows in prop::collection::vec(row(), 0..24)) {
            let table = Table { rows, ..Table::default() };
            for (nodes, ranks) in [(1, 1), (1, 2), (2, 3)] {
                let lookup = Lookup::new(&table, nodes, ranks);
                for function in [Function::Broadcast, Function::Reduce] {
                    for bytes in (0..44).chain([1 << 40, u64::MAX - 1, u64::MAX]) {
                        for (pipe_ops, buffers) in [(0, Buffers::Plain), (1, Buffers::Plain), (2, Buffers::Registered)] {
                            let expected = table.rows.iter().position(|row| {
                                row.function == function
                                    && (row.min_bytes.0..=row.max_bytes.0).contains(&bytes)
                                    && row.matches(nodes, ranks)
                                    && row.pipe_ops.is_none_or(|required| required == pipe_ops)
                                    && (row.buffers == Buffers::Any || row.buffers == buffers)
                            });
                            let result = lookup.find(function, bytes, pipe_ops, buffers);
                            prop_assert_eq!(result.map(|entry| entry.row as usize), expected);
                        }
                    }
                }
            }
        }
    }
}
