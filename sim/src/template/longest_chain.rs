//! Ranks on the longest chain of dependencies of a schedule. Their programs alone bound the time of the schedule from
//! below: other ranks only add load and waiting. A tree over thousands of hosts has a chain of a few dozen ranks, so
//! that its bound needs neither the lowering of all ranks nor their memory.

use std::collections::BTreeMap;

use rustc_hash::FxHashSet;

use crate::lower::Environment;
use crate::schedule::{Dependency, Header, Program, Rank, Run, Schedule, ScheduleGenerator};

/// Number of a run among the runs that are searched; [`NONE`] if there is none.
type Position = u32;

/// Placeholder for a missing run.
const NONE: Position = u32::MAX;

/// Schedule of the ranks on a longest chain of dependencies. The runs that they wait for on other ranks have no
/// operations, and all other ranks have no runs.
#[derive(Debug)]
pub struct LongestChain<'a> {
    header: &'a Header,
    programs: BTreeMap<Rank, Program>,
}

impl<'a> LongestChain<'a> {
    /// Finds the longest chain among the runs of the first thread block of each rank: the one that enters hosts most
    /// often and, among those, passes most ranks. `None` if it has a single step, which the program of one rank bounds,
    /// if it passes more than `max_ranks` ranks, or if the schedule is too large.
    ///
    /// The result also includes a rank for each kind of run that occurs, because some costs depend on whether any rank
    /// has such a run.
    #[must_use]
    pub fn find(generator: &'a dyn ScheduleGenerator, setting: Environment<'_>, max_ranks: usize) -> Option<Self> {
        let header = generator.header();
        let search = ChainSearch::new(generator)?;
        let mut ranks = search.longest(setting).filter(|ranks| ranks.len() <= max_ranks)?;
        ranks.extend(search.examples);
        let mut programs: BTreeMap<Rank, Program> = BTreeMap::new();
        let mut scratch = Program::default();
        for &rank in &ranks {
            programs.insert(rank, generator.read(rank, &mut scratch).clone());
        }
        let awaited: FxHashSet<Rank> =
            programs.values().flat_map(|program| &program.dependencies).map(|dependency| dependency.rank).collect();
        for rank in awaited {
            programs.entry(rank).or_insert_with(|| without_operations(generator.read(rank, &mut scratch)));
        }
        Some(Self { header, programs })
    }
}

impl ScheduleGenerator for LongestChain<'_> {
    fn header(&self) -> &Header {
        self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        if let Some(known) = self.programs.get(&rank) {
            program.clone_from(known);
        }
    }

    fn read<'a>(&'a self, rank: Rank, scratch: &'a mut Program) -> &'a Program {
        scratch.clear();
        self.programs.get(&rank).unwrap_or(scratch)
    }
}

/// Returns the runs of a program without operations and dependencies.
fn without_operations(program: &Program) -> Program {
    let mut empty = Program::default();
    for run in program.runs() {
        empty.push(Run { len: 0, ..*run }, &[]);
    }
    empty
}

/// Length of a chain: the number of times that it enters a host, then the number of times that it enters a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct ChainLength {
    hosts: u32,
    ranks: u32,
}

/// Runs of the first thread block of each rank, and their dependencies.
struct ChainSearch {
    /// Rank and number within the rank of each run, in this order.
    runs: Vec<(Rank, u32)>,
    dependencies: Vec<Dependency>,
    /// `dependencies[starts[i]..starts[i + 1]]` belong to run i.
    starts: Vec<u32>,
    /// First rank that has each kind of run: operation, and buffers that it reads and writes.
    examples: Vec<Rank>,
}

impl ChainSearch {
    /// Reads the programs of all ranks; `None` if there are more than [`Schedule::MAX_RUNS`] runs.
    fn new(generator: &dyn ScheduleGenerator) -> Option<Self> {
        let header = generator.header();
        let mut search = Self { runs: Vec::new(), dependencies: Vec::new(), starts: vec![0], examples: Vec::new() };
        let mut kinds = Vec::new();
        let mut scratch = Program::default();
        let mut count = 0;
        for rank in (0..header.call.ranks).map(Rank) {
            let program = generator.read(rank, &mut scratch);
            count += program.runs().len();
            if program.is_truncated() || count > Schedule::MAX_RUNS {
                return None;
            }
            let known = kinds.len();
            for run in program.runs().iter().filter(|run| run.len > 0) {
                let kind = (run.kind, run.src_buffer, run.dst_buffer);
                if !kinds.contains(&kind) {
                    kinds.push(kind);
                }
            }
            if kinds.len() > known {
                search.examples.push(rank);
            }
            let in_first_block = |run: &Run| run.channel.0 < header.blocks.split.channels() && run.len > 0;
            for (number, run) in (0..).zip(program.runs()).filter(|(_, run)| in_first_block(run)) {
                search.runs.push((rank, number));
                let other_runs = |awaited: &&Dependency| {
                    (awaited.rank, awaited.run) != (rank, number) && awaited.has_target(run.len)
                };
                search.dependencies.extend(program.dependencies(number as usize).iter().filter(other_runs));
                search.starts.push(u32::try_from(search.dependencies.len()).ok()?);
            }
        }
        Some(search)
    }

    /// Returns the ranks of the longest chain, without duplicates; `None` if it has a single step. Of runs that wait for each other in a cycle, the
    /// dependency that closes the cycle is ignored.
    fn longest(&self, setting: Environment<'_>) -> Option<Vec<Rank>> {
        let host = |rank: Rank| setting.placement.get(rank.0 as usize).map(|&device| setting.fabric.node(device).host);
        let mut lengths: Vec<Option<(ChainLength, Position)>> = vec![None; self.runs.len()];
        let mut is_open = vec![false; self.runs.len()];
        let mut stack: Vec<Position> = Vec::new();
        for last in 0..self.runs.len() as Position {
            stack.push(last);
            while let Some(&position) = stack.last() {
                let index = position as usize;
                let is_known = |awaited: Position| lengths[awaited as usize].is_some();
                if !is_open[index] {
                    is_open[index] = true;
                    stack.extend(
                        self.awaited(position).filter(|&awaited| !is_open[awaited as usize] && !is_known(awaited)),
                    );
                    continue;
                }
                stack.pop();
                if is_known(position) {
                    continue;
                }
                let rank = self.runs[index].0;
                let length = |awaited: Position| {
                    let (length, _) = lengths[awaited as usize]?;
                    let before = self.runs[awaited as usize].0;
                    let enters = |is_other: bool, count: u32| count + u32::from(is_other);
                    let hosts = enters(host(before) != host(rank), length.hosts);
                    Some((ChainLength { hosts, ranks: enters(before != rank, length.ranks) }, awaited))
                };
                let longest = self.awaited(position).filter_map(length).max_by_key(|&(length, _)| length);
                lengths[index] = Some(longest.unwrap_or((ChainLength::default(), NONE)));
            }
        }
        let ends = (0..).zip(&lengths).filter_map(|(position, length)| Some(((*length)?.0, position)));
        let (length, mut position) = ends.max_by_key(|&(length, _)| length)?;
        if length.ranks < 2 {
            return None;
        }
        let mut ranks = Vec::new();
        while let Some((&(rank, _), known)) = self.runs.get(position as usize).zip(lengths.get(position as usize)) {
            ranks.push(rank);
            position = known.map_or(NONE, |(_, before)| before);
        }
        ranks.sort_unstable();
        ranks.dedup();
        Some(ranks)
    }

    /// Returns the searched runs that a run waits for.
    fn awaited(&self, position: Position) -> impl Iterator<Item = Position> + '_ {
        let range = self.starts[position as usize] as usize..self.starts[position as usize + 1] as usize;
        self.dependencies[range].iter().filter_map(|awaited| {
            self.runs.binary_search(&(awaited.rank, awaited.run)).ok().map(|position| position as Position)
        })
    }
}
