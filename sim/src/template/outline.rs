//! Outline of a schedule: the programs of its first group, generated once, and their fingerprint.

use std::sync::{Arc, OnceLock};

use super::{LongestChain, loop_sizes};
use crate::fold::{Colours, Signature};
use crate::lower::{Environment, RankClasses, ScheduleInstance, find_representative_group, size_walk};
use crate::schedule::{Header, Program, Schedule, ScheduleGenerator, StoredPrograms};

/// Key of a template: valid for all schedules whose groups have this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    program: Signature,
    /// Number of groups of the schedule.
    groups: u16,
    /// Number of chunks of one group.
    pub(super) chunks: u32,
}

/// Programs of a schedule; only those of its first group if all groups are equivalent. The templates for each protocol
/// are derived from an outline.
#[derive(Debug)]
pub struct Outline {
    pub(super) header: Header,
    /// Programs of the first group, or of the whole schedule if its groups differ, by rank or by class of ranks.
    pub(super) programs: Vec<Program>,
    /// Classes of ranks that behave alike; `None` if each rank has its own program.
    pub(super) classes: Option<Arc<RankClasses>>,
    pub(super) known: OutlineSummary,
    pub(super) extent: OutlineExtent,
    /// Distinct numbers of chunks that operations move.
    pub(super) spans: Vec<u32>,
}

/// Ranks whose operations an outline has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutlineExtent {
    /// All ranks, or a representative of each class.
    AllRanks,
    /// The ranks on a longest chain of dependencies. Operations that are alike in this part may differ in the whole
    /// schedule.
    LongestChain,
}

/// Part of an outline that is retained after its programs are dropped. Programs are fast to generate again.
#[derive(Clone, Debug)]
pub struct OutlineSummary {
    /// Fingerprint of the schedule.
    pub print: Fingerprint,
    /// Equivalence classes, as determined for the first protocol.
    pub(super) colours: Arc<OnceLock<Colours>>,
}

impl Outline {
    /// Creates the outline of a schedule; `None` if its chunks differ in size or it exceeds [`Schedule::MAX_RUNS`].
    #[must_use]
    pub fn new(generator: &dyn ScheduleGenerator, setting: Environment<'_>) -> Option<Self> {
        Self::with_summary(generator, setting, None)
    }

    /// Creates the outline of the ranks on a longest chain of dependencies. Its templates give lower bounds
    /// ([`Template::first_group_lower_bound`](super::Template::first_group_lower_bound)), and no times.
    #[must_use]
    pub fn of_longest_chain(chain: &LongestChain<'_>, setting: Environment<'_>) -> Option<Self> {
        Some(Self { extent: OutlineExtent::LongestChain, ..Self::new(chain, setting)? })
    }

    /// Variant of [`Self::new`] that reuses the summary `known` of an earlier outline of the same schedule.
    #[must_use]
    pub fn with_summary(
        generator: &dyn ScheduleGenerator,
        setting: Environment<'_>,
        known: Option<&OutlineSummary>,
    ) -> Option<Self> {
        let header = generator.header();
        if !loop_sizes(header).is_some_and(|sizes| sizes.full == sizes.last) || setting.has_delays() {
            return None;
        }
        let party = ScheduleInstance::new(generator, setting);
        let classes = RankClasses::find(&party);
        let one =
            find_representative_group(&party, classes.as_deref()).map(|one| (one.groups() as u16, one.into_programs()));
        let (groups, programs) = one.map_or_else(|| Some((1, written(generator, classes.as_deref())?)), Some)?;
        let stored = StoredPrograms { header, programs: &programs, classes: classes.as_deref() };
        let spans = distinct_spans(&stored)?;
        let extent = OutlineExtent::AllRanks;
        if let Some(known) = known {
            return Some(Self { header: header.clone(), programs, classes, known: known.clone(), extent, spans });
        }
        let chunks = header.layout.chunks();
        if !chunks.is_multiple_of(groups.into()) {
            return None;
        }
        let print = Fingerprint { program: schedule_signature(&stored), groups, chunks: chunks / u32::from(groups) };
        let known = OutlineSummary { print, colours: Arc::default() };
        Some(Self { header: header.clone(), programs, classes, known, extent, spans })
    }

    /// Returns the number of runs in the programs of all ranks.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.programs.iter().map(|program| program.runs().len()).sum()
    }

    /// Returns the fingerprint of the schedule.
    #[must_use]
    pub fn print(&self) -> Fingerprint {
        self.known.print
    }

    /// Returns the summary for a later call of [`Self::with_summary`].
    #[must_use]
    pub fn known(&self) -> &OutlineSummary {
        &self.known
    }
}

/// Generates the programs of all ranks, or of the first rank of each class; `None` if there are more than
/// [`Schedule::MAX_RUNS`] runs.
fn written(generator: &dyn ScheduleGenerator, classes: Option<&RankClasses>) -> Option<Vec<Program>> {
    let mut scratch = Program::default();
    // A clone has no unused capacity.
    let mut runs = 0;
    let write = |rank| {
        let program = generator.read(rank, &mut scratch);
        runs += program.runs().len();
        (!program.is_truncated() && runs <= Schedule::MAX_RUNS).then(|| program.clone())
    };
    RankClasses::lowered_ranks(classes, generator.header().call.ranks).map(write).collect()
}

impl Fingerprint {
    /// Returns the fingerprint for another number of groups, each with separate chunks.
    #[must_use]
    pub fn with_groups(self, groups: u16) -> Self {
        Self { groups, ..self }
    }

    /// Returns the fingerprint of a single group, which is the key of a template.
    #[must_use]
    pub fn single_group(self) -> Self {
        Self { groups: 1, ..self }
    }

    /// Returns the number of chunks of the schedule.
    #[must_use]
    pub fn chunks(self) -> u32 {
        self.chunks * u32::from(self.groups)
    }

    /// Returns the number of equivalent groups of the schedule.
    #[must_use]
    pub fn groups(self) -> u16 {
        self.groups
    }
}

/// Returns a hash of call, block split, teams and programs, without bytes and chunk indices.
fn schedule_signature(generator: &StoredPrograms<'_>) -> Signature {
    let header = generator.header();
    let call = &header.call;
    let mut signature = Signature::new();
    let fields = [call.collective as u64, call.ranks.into(), call.root.0.into(), call.buffers as u64];
    let split = u64::from(header.blocks.split.channels());
    for field in fields.into_iter().chain([split, header.teams.len() as u64]) {
        signature = signature.with(field);
    }
    for team in &header.teams {
        signature = team.iter().fold(signature.with(team.len() as u64), |all, rank| all.with(rank.0.into()));
    }
    let mut scratch = Program::default();
    signature = signature.with(generator.classes.map_or(1, RankClasses::size).into());
    for rank in RankClasses::lowered_ranks(generator.classes, header.call.ranks) {
        let program = generator.read(rank, &mut scratch);
        signature = signature.with(rank.0.into()).with(program.runs().len() as u64);
        for (number, run) in program.runs().iter().enumerate() {
            let peer = run.peer;
            let location_bits = u64::from(run.channel.0) << 48
                | (run.kind as u64) << 32
                | (run.src_buffer as u64) << 16
                | run.dst_buffer as u64;
            signature = signature
                .with(location_bits)
                .with(u64::from(run.len) << 32 | u64::from(run.span))
                .with(u64::from(peer.base) << 32 | u64::from(peer.start))
                .with(u64::from(peer.step) << 32 | u64::from(peer.modulus))
                .with(peer.stride.into());
            let awaited = program.dependencies(number);
            signature = signature.with(awaited.len() as u64);
            for one in awaited {
                signature = signature
                    .with(u64::from(one.rank.0) << 32 | u64::from(one.run))
                    .with(u64::from(one.start as u32) << 32 | u64::from(one.step));
            }
        }
    }
    signature
}

/// Returns the distinct numbers of chunks that operations move; `None` if an operation's chunks are not contiguous.
fn distinct_spans(generator: &StoredPrograms<'_>) -> Option<Vec<u32>> {
    let header = generator.header();
    let chunks = header.layout.chunks();
    let mut spans = Vec::new();
    let mut scratch = Program::default();
    for rank in RankClasses::lowered_ranks(generator.classes, header.call.ranks) {
        let program = generator.read(rank, &mut scratch);
        for run in program.runs().iter().filter(|run| run.kind.moves_data() && run.len > 0) {
            if run.span == 0 || (size_walk(run).at(0) % chunks).checked_add(run.span)? > chunks {
                return None;
            }
            if spans.last() != Some(&run.span) && !spans.contains(&run.span) {
                spans.push(run.span);
            }
        }
    }
    Some(spans)
}
