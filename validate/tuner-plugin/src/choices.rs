//! A table laid out for one communicator: for each function, and each kind of call that rows tell apart, sorted sizes, and at each
//! size the rows that speak of it, in the file's order.
//!
//! Looking up is a binary search. In the example plugin of NCCL (`ext-tuner/example/plugin.c`) the first row that fits and that NCCL
//! can do wins, and rows after it are tried where NCCL cannot; so of all rows that fit a size the first of each algorithm and
//! protocol is kept, which is at most 21, and nearly always one.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU8;
use std::sync::atomic::{AtomicU8, Ordering};

use fabricast_planner::library::nccl::{Algo, Function, Proto};

/// What of a table concerns a communicator, in the table's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The collective.
    pub function: Function,
    /// The smallest size, as NCCL counts it for its tuner: of all_gather and reduce_scatter the bytes of all ranks.
    pub least: u64,
    /// The largest, included.
    pub most: u64,
    /// The algorithm.
    pub algorithm: Algo,
    /// The protocol.
    pub protocol: Proto,
    /// Thread blocks; `None`: as many as NCCL takes.
    pub channels: Option<NonZeroU8>,
    /// Only of groups of so many operations.
    pub operations: Option<i32>,
    /// Only where NCCL says that buffers are registered (1) or are not (0).
    pub registered: Option<i32>,
    /// Where it stands in its file.
    pub line: u32,
}

impl Row {
    /// Where its cell is in a table of costs: of an algorithm and a protocol.
    #[must_use]
    pub fn cell(&self) -> (usize, usize) {
        (self.algorithm as usize, self.protocol as usize)
    }
}

/// A table that takes more than this to lay out is refused: it has tens of thousands of rows for as many numbers of operations.
const MOST_WORK: usize = 1 << 22;

/// A table that cannot be laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooIntricate;

/// The table of one communicator.
#[derive(Debug, Default)]
pub struct Choices {
    rows: Box<[Row]>,
    told: Box<[AtomicU8]>,
    functions: [Kinds; Function::ALL.len()],
}

/// Sizes of one function by kind of call. Kinds are told apart by numbers that rows name; the last of each is any other.
#[derive(Debug, Default)]
struct Kinds {
    operations: Box<[i32]>,
    registered: Box<[i32]>,
    sizes: Box<[Sizes]>,
}

/// What rows say of sizes.
#[derive(Debug, Default)]
struct Sizes {
    /// Where something else begins.
    starts: Box<[u64]>,
    /// From where in `candidates` on what begins there is told; one more than there are starts.
    spans: Box<[u32]>,
    /// Places of rows.
    candidates: Box<[u32]>,
}

impl Choices {
    /// Lays rows out.
    ///
    /// # Errors
    /// [`TooIntricate`].
    pub fn new(rows: Vec<Row>) -> Result<Self, TooIntricate> {
        let mut functions: [Kinds; Function::ALL.len()] = Default::default();
        let mut work = 0;
        for (kinds, function) in functions.iter_mut().zip(Function::ALL) {
            let own: Vec<u32> =
                (0_u32..).zip(&rows).filter(|(_, row)| row.function == function).map(|(at, _)| at).collect();
            *kinds = Kinds::new(&rows, &own, &mut work)?;
        }
        let told = rows.iter().map(|_| AtomicU8::new(0)).collect();
        Ok(Self { rows: rows.into(), told, functions })
    }

    /// How many rows there are.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// The rows that fit a call, in order, each with its place. `function` is NCCL's number.
    pub fn of(
        &self,
        function: i32,
        bytes: u64,
        operations: i32,
        registered: i32,
    ) -> impl Iterator<Item = (usize, &Row)> {
        let kinds = usize::try_from(function).ok().and_then(|function| self.functions.get(function));
        let candidates = kinds.map_or(&[][..], |kinds| kinds.of(bytes, operations, registered));
        candidates.iter().filter_map(|&at| Some((at as usize, self.rows.get(at as usize)?)))
    }

    /// Whether something of a row is told for the first time: `what` is a bit.
    pub fn is_news(&self, row: usize, what: u8) -> bool {
        self.told.get(row).is_some_and(|told| {
            // Nearly always it was told: looking is cheaper than changing what other threads look at.
            told.load(Ordering::Relaxed) & what == 0 && told.fetch_or(what, Ordering::Relaxed) & what == 0
        })
    }
}

impl Kinds {
    fn new(rows: &[Row], own: &[u32], work: &mut usize) -> Result<Self, TooIntricate> {
        let named = |of: fn(&Row) -> Option<i32>| {
            let mut named: Vec<i32> = own.iter().filter_map(|&at| rows.get(at as usize).and_then(of)).collect();
            named.sort_unstable();
            named.dedup();
            named
        };
        let (operations, registered) = (named(|row| row.operations), named(|row| row.registered));
        let others = |named: &[i32]| named.iter().copied().map(Some).chain([None]).collect::<Vec<_>>();
        let mut sizes = Vec::new();
        for number in others(&operations) {
            for state in others(&registered) {
                *work += own.len();
                if *work > MOST_WORK {
                    return Err(TooIntricate);
                }
                let fits = |row: &Row| {
                    row.operations.is_none_or(|of| Some(of) == number)
                        && row.registered.is_none_or(|of| Some(of) == state)
                };
                let fitting = own.iter().copied().filter(|&at| rows.get(at as usize).is_some_and(fits));
                sizes.push(Sizes::new(rows, fitting.collect()));
            }
        }
        Ok(Self { operations: operations.into(), registered: registered.into(), sizes: sizes.into() })
    }

    fn of(&self, bytes: u64, operations: i32, registered: i32) -> &[u32] {
        let kind = |named: &[i32], number: i32| named.binary_search(&number).unwrap_or(named.len());
        let (number, state) = (kind(&self.operations, operations), kind(&self.registered, registered));
        let sizes = self.sizes.get(number * (self.registered.len() + 1) + state);
        sizes.map_or(&[], |sizes| sizes.of(bytes))
    }
}

impl Sizes {
    /// Sweeps over sizes; `own` are places of rows, in order.
    fn new(rows: &[Row], own: Vec<u32>) -> Self {
        let row = |at: u32| rows.get(at as usize);
        let mut bounds: Vec<u64> = Vec::with_capacity(2 * own.len());
        let mut begins: Vec<(u64, u32, &Row)> = Vec::with_capacity(own.len());
        for at in own {
            let Some(row) = row(at).filter(|row| row.least <= row.most) else { continue };
            bounds.push(row.least);
            bounds.extend(row.most.checked_add(1));
            begins.push((row.least, at, row));
        }
        bounds.sort_unstable();
        bounds.dedup();
        begins.sort_unstable_by_key(|&(least, at, _)| (least, at));
        // Of each cell the rows that have begun, the first of them on top; what has ended is taken away when it comes up.
        let mut begun: [[BinaryHeap<Reverse<u32>>; Proto::ALL.len()]; Algo::ALL.len()] = Default::default();
        let mut begins = begins.into_iter().peekable();
        let (mut starts, mut spans, mut candidates) = (Vec::new(), vec![0], Vec::new());
        let mut now: Vec<u32> = Vec::new();
        for bound in bounds {
            while let Some((_, at, row)) = begins.next_if(|&(least, ..)| least <= bound) {
                let (algorithm, protocol) = row.cell();
                if let Some(heap) = begun.get_mut(algorithm).and_then(|heaps| heaps.get_mut(protocol)) {
                    heap.push(Reverse(at));
                }
            }
            let before = std::mem::take(&mut now);
            for heap in begun.as_flattened_mut() {
                while heap.peek().is_some_and(|&Reverse(at)| row(at).is_none_or(|row| row.most < bound)) {
                    heap.pop();
                }
                now.extend(heap.peek().map(|&Reverse(at)| at));
            }
            now.sort_unstable();
            if now != before {
                starts.push(bound);
                candidates.extend_from_slice(&now);
                spans.push(candidates.len() as u32);
            }
        }
        Self { starts: starts.into(), spans: spans.into(), candidates: candidates.into() }
    }

    fn of(&self, bytes: u64) -> &[u32] {
        let Some(at) = self.starts.partition_point(|&start| start <= bytes).checked_sub(1) else { return &[] };
        let Some(&[from, to]) = self.spans.get(at..at + 2) else { return &[] };
        self.candidates.get(from as usize..to as usize).unwrap_or(&[])
    }
}
