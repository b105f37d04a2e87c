//! Templates of schedules: a schedule is lowered and folded once and then timed or bounded for many sizes, channel
//! counts and protocols.
//!
//! Schedules share a template if the first thread blocks of all ranks have the same operations in one loop (or in two
//! loops, which give the times of any number of loops). To determine this, a schedule with that number of loops is generated,
//! regardless of the actual size. A schedule has the same time with and without a template, so the result does not
//! depend on the order of sizes or threads.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use fabricast_sim::SimulateError;
use fabricast_sim::lower::{Environment, RankBound, RankSends};
use fabricast_sim::schedule::{Call, Collective, Header, Protocol, Rank, ScheduleGenerator};
use fabricast_sim::template::{Fingerprint, LongestChain, Outline, OutlineSummary, Template};
use fabricast_topologies::fabric::Figures;
use fabricast_topologies::{Bytes, NodeId, Picos};
use rustc_hash::FxHashMap;

use super::PlanRequest;
use super::outline_cache::OutlineCache;
use crate::candidates::candidates;
use fabricast_collectives::algorithm::{self, Algorithm, Shape};
use fabricast_collectives::capabilities::FabricCapabilities;
use fabricast_collectives::strategy::Strategy;

/// Chunk size of the generated schedules: large enough to make rounding irrelevant.
const CHUNK: Bytes = Bytes(1 << 20);

/// Value computed once, by the first thread that needs it.
type SharedValue<T> = Arc<OnceLock<T>>;

/// Key of a generated schedule. Protocols share a schedule, so the key does not contain the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct TemplateKey {
    collective: Collective,
    algorithm: Algorithm,
    channels: u16,
    part: SchedulePart,
    loops: u32,
    /// Base-2 logarithm of the number of chunks that fit in a message; 0 if the schedule's steps do not depend on this
    /// number.
    room: RoomLog2,
}

/// Part of a schedule that a template represents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum SchedulePart {
    /// All ranks.
    Whole,
    /// The ranks on a longest chain of dependencies ([`LongestChain`]).
    LongestChain,
}

/// Part of a schedule, and its number of loops.
#[derive(Clone, Copy, Debug)]
struct LoopedPart {
    part: SchedulePart,
    loops: u32,
}

/// Key of the program of the first rank. Protocols share programs, and so do sizes with equally many chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FirstRankKey {
    collective: Collective,
    algorithm: Algorithm,
    channels: u16,
    chunks: u32,
    room: RoomLog2,
}

/// Base-2 logarithm of the number of chunks that fit in a message.
type RoomLog2 = u32;

/// Number of channels that is sufficient to detect whether all channels of an algorithm are equal.
const ENOUGH_CHANNELS: u16 = 4;

/// Largest number of ranks up to which a template is used for channels with different rank orders. Above it, folding
/// such a template takes longer than its reuse for other sizes and protocols saves. Also the largest number of ranks on
/// a chain whose template is computed.
pub(super) const MAX_TEMPLATE_RANKS: u32 = 1024;

/// Largest value of `TemplateKey::room`. Calls with room for more chunks use this value.
const MAX_ROOM: RoomLog2 = 31;

/// Templates by protocol, part of the schedule, block fingerprint and number of loops.
type TemplateTable = Mutex<FxHashMap<(Protocol, SchedulePart, Fingerprint, u32), SharedValue<Option<Template>>>>;

/// Cache of the schedules of a request.
pub(super) struct Templates<'a> {
    pub(super) request: &'a PlanRequest<'a>,
    pub(super) capabilities: FabricCapabilities,
    /// Largest number of channels at which each channel has its own SM. Templates are not valid for more channels.
    max_exclusive_channels: u16,
    /// Summaries of outlines; `None` if a schedule has no outline.
    summaries: Mutex<FxHashMap<TemplateKey, SharedValue<Option<OutlineSummary>>>>,
    outlines: OutlineCache<TemplateKey>,
    templates: TemplateTable,
    rank_bound: Option<RankBound<'a>>,
    first_rank_sends: Mutex<FxHashMap<FirstRankKey, SharedValue<RankSends>>>,
}

/// Template of one group of channels, and the number of such groups in the schedule.
pub(super) struct GroupTemplate {
    shared: SharedValue<Option<Template>>,
    pub(super) groups: u16,
}

impl GroupTemplate {
    pub(super) fn template(&self) -> Option<&Template> {
        self.shared.get().and_then(Option::as_ref)
    }
}

impl<'a> Templates<'a> {
    pub(super) fn new(request: &'a PlanRequest<'a>, capabilities: FabricCapabilities) -> Self {
        Self {
            request,
            capabilities,
            max_exclusive_channels: max_exclusive_channels(request),
            summaries: Mutex::default(),
            outlines: OutlineCache::default(),
            templates: Mutex::default(),
            rank_bound: RankBound::new(request.setting()),
            first_rank_sends: Mutex::default(),
        }
    }

    /// Lower bound on a schedule's time on the device, from the load of its first rank on shared resources. The first
    /// rank's program is read once for all sizes and protocols.
    pub(super) fn first_rank_bound(&self, call: &Call, strategy: Strategy, generator: &dyn ScheduleGenerator) -> Picos {
        let Some(rank_bound) = &self.rank_bound else { return Picos::ZERO };
        let (header, algorithm) = (generator.header(), strategy.algorithm);
        // The blocks of an all_to_allv, and trees that depend on the size, may differ with equally many chunks.
        let is_determined = call.collective != Collective::AllToAllV && !algorithm.has_size_dependent_trees();
        if !is_determined || !header.layout.is_even() {
            return rank_bound.lower_bound(generator, Rank(0));
        }
        let key = FirstRankKey {
            collective: call.collective,
            algorithm,
            channels: strategy.channels,
            chunks: header.layout.chunks(),
            room: self.room(call, strategy, header),
        };
        let shared = entry(&self.first_rank_sends, key);
        rank_bound.lower_bound_of_sends(header, shared.get_or_init(|| rank_bound.sends(generator, Rank(0))))
    }

    /// Returns the template of a strategy's schedule; `None` if the schedule has no template. `header` is the header of
    /// this schedule, or of a schedule with `times` times as many channels.
    ///
    /// # Errors
    /// Errors of [`Template::new`].
    pub(super) fn template(
        &self,
        call: &Call,
        strategy: Strategy,
        times: u16,
        header: &Header,
    ) -> Result<Option<GroupTemplate>, SimulateError> {
        let chunks = header.layout.chunks() / u32::from(times.max(1));
        self.part_template(call, strategy, SchedulePart::Whole, header, chunks)
    }

    /// Returns the template of the ranks on a longest chain of dependencies of a schedule with this header, for lower
    /// bounds; `None` if the schedule has no such template.
    ///
    /// # Errors
    /// Errors of [`Template::new`].
    pub(super) fn chain_template(
        &self,
        call: &Call,
        strategy: Strategy,
        header: &Header,
    ) -> Result<Option<GroupTemplate>, SimulateError> {
        self.part_template(call, strategy, SchedulePart::LongestChain, header, header.layout.chunks())
    }

    fn part_template(
        &self,
        call: &Call,
        strategy: Strategy,
        part: SchedulePart,
        header: &Header,
        chunks: u32,
    ) -> Result<Option<GroupTemplate>, SimulateError> {
        // A template serves all sizes, and these trees depend on the size.
        if strategy.algorithm.has_size_dependent_trees() {
            return Ok(None);
        }
        // Templates of an all_to_allv are valid only for equal blocks.
        let is_uneven = call.collective == Collective::AllToAllV && !header.layout.is_even();
        if strategy.channels > self.max_exclusive_channels || is_uneven {
            return Ok(None);
        }
        let room = self.room(call, strategy, header);
        // The summary of one loop can be computed without its template.
        let one_loop = LoopedPart { part, loops: 1 };
        let Some((_, _, summary)) = self.fingerprint(call, strategy, one_loop, room) else { return Ok(None) };
        match summary.chunks() == chunks {
            true => self.loop_template(call, strategy, one_loop, room),
            false => self.loop_template(call, strategy, LoopedPart { part, loops: 2 }, 0),
        }
    }

    /// Returns the base-2 logarithm of the number of chunks that fit in a message of a schedule with one loop; 0 if the
    /// schedule's steps do not depend on it.
    fn room(&self, call: &Call, strategy: Strategy, header: &Header) -> RoomLog2 {
        if !strategy.algorithm.has_size_dependent_steps() {
            return 0;
        }
        let shape = self.request.shape(*call, strategy, &self.capabilities);
        let Some(chunk) = shape.chunk else { return MAX_ROOM };
        let fitting = u128::from(chunk.0) * u128::from(header.layout.chunks()) / u128::from(call.bytes.0.max(1));
        fitting.max(1).ilog2().min(MAX_ROOM)
    }

    fn loop_template(
        &self,
        call: &Call,
        strategy: Strategy,
        part: LoopedPart,
        room: RoomLog2,
    ) -> Result<Option<GroupTemplate>, SimulateError> {
        let Some((key, summary, fingerprint)) = self.fingerprint(call, strategy, part, room) else {
            return Ok(None);
        };
        let loops = part.loops;
        let shared = entry(&self.templates, (strategy.protocol, key.part, fingerprint.single_group(), loops));
        if shared.get().is_none() {
            let reduced = Strategy { channels: key.channels, ..strategy };
            let outline = match self.outlines.get(&key) {
                Some(outline) => Some(outline),
                None => self.outline(call, reduced, key, Some(&summary)),
            };
            if let Some(outline) = outline {
                // Another thread may compute the same template; the first result is retained.
                let template = Template::new(&outline, strategy.protocol, loops, self.setting())?;
                shared.get_or_init(|| template);
            }
        }
        Ok(Some(GroupTemplate { shared, groups: fingerprint.groups() }))
    }

    /// Returns the key of the outline that describes a strategy's schedule, independent of chunks and protocol, with
    /// its summary and the schedule's fingerprint.
    fn fingerprint(
        &self,
        call: &Call,
        strategy: Strategy,
        part: LoopedPart,
        room: RoomLog2,
    ) -> Option<(TemplateKey, OutlineSummary, Fingerprint)> {
        let Strategy { algorithm, channels, .. } = strategy;
        let LoopedPart { part, loops } = part;
        // Four channels are sufficient to detect whether all channels are equal, for all algorithms.
        if channels > ENOUGH_CHANNELS && part == SchedulePart::Whole {
            let reduced = Strategy { channels: ENOUGH_CHANNELS, ..strategy };
            let (key, summary, fingerprint) = self.fingerprint(call, reduced, LoopedPart { part, loops }, room)?;
            if fingerprint.groups() == ENOUGH_CHANNELS {
                return Some((key, summary, fingerprint.with_groups(channels)));
            }
        }
        let key = TemplateKey { collective: call.collective, algorithm, channels, part, loops, room };
        let slot = entry(&self.summaries, key);
        let summary = slot.get_or_init(|| Some(self.outline(call, strategy, key, None)?.known().clone()));
        let summary = summary.clone()?;
        let fingerprint = summary.print;
        Some((key, summary, fingerprint))
    }

    /// Returns the outline of a schedule, independent of chunks and protocol.
    fn outline(
        &self,
        call: &Call,
        strategy: Strategy,
        key: TemplateKey,
        summary: Option<&OutlineSummary>,
    ) -> Option<Arc<Outline>> {
        let generator = self.generator(call, strategy, key.loops, key.room)?;
        let outline = match key.part {
            SchedulePart::Whole => Outline::with_summary(generator.as_ref(), self.setting(), summary)?,
            SchedulePart::LongestChain => {
                let chain = LongestChain::find(generator.as_ref(), self.setting(), MAX_TEMPLATE_RANKS as usize)?;
                Outline::of_longest_chain(&chain, self.setting())?
            }
        };
        let outline = Arc::new(outline);
        self.outlines.insert(key, outline.clone());
        Some(outline)
    }

    /// Generates a strategy's schedule with `loops` loops of large chunks, and room for 2^`room` chunks in a message.
    fn generator(
        &self,
        call: &Call,
        strategy: Strategy,
        loops: u32,
        room: RoomLog2,
    ) -> Option<Box<dyn ScheduleGenerator + Send + Sync>> {
        let generate = |bytes: u64, chunk: Option<Bytes>| {
            let shape = self.request.shape(Call { bytes: Bytes(bytes), ..*call }, strategy, &self.capabilities);
            let buffers = self.request.router.options().buffers;
            algorithm::timing_generator(strategy.algorithm, &Shape { chunk, ..shape }, buffers).ok()
        };
        let per_loop = generate(1 << 40, None)?.header().layout.chunks();
        let chunks = per_loop.checked_mul(loops)?;
        let generator = generate(u64::from(chunks) * CHUNK.0, Some(Bytes(CHUNK.0 << room)))?;
        (generator.header().layout.chunks() == chunks).then_some(generator)
    }

    pub(super) fn setting(&self) -> Environment<'a> {
        self.request.setting()
    }
}

/// Largest number of channels at which every thread block has its own SM.
fn max_exclusive_channels(request: &PlanRequest<'_>) -> u16 {
    let mut ranks: FxHashMap<NodeId, u32> = FxHashMap::default();
    for &device in request.placement {
        *ranks.entry(device).or_default() += 1;
    }
    let room = ranks.into_iter().filter_map(|(device, ranks)| match &request.fabric.node(device).figures {
        Figures::Gpu(figures) => Some(figures.sm_count.filter(|&sms| sms > 0)? / ranks),
        _ => None,
    });
    room.min().map_or(u16::MAX, |max| u16::try_from(max).unwrap_or(u16::MAX))
}

/// Returns the entry of a table, and creates the entry if there is none.
fn entry<K: std::hash::Hash + Eq, T>(table: &Mutex<FxHashMap<K, SharedValue<T>>>, key: K) -> SharedValue<T> {
    table.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default().clone()
}

impl<'a> PlanRequest<'a> {
    /// Returns the call of a collective with a message size.
    #[must_use]
    pub fn call(&self, collective: Collective, bytes: Bytes) -> Call {
        Call { collective, bytes, ranks: self.placement.len() as u32, root: Rank(self.root), buffers: self.buffers }
    }

    /// Returns the candidates of a call: those of the restriction, with the variants of packed trees that may be the
    /// fastest, and those of the library with its chunks.
    #[must_use]
    pub fn candidates(&self, call: Call, capabilities: &FabricCapabilities) -> BTreeSet<Strategy> {
        let software = self.profile.software();
        let found = candidates(call.collective, capabilities, self.restriction, software, call.bytes);
        let found = Strategy::with_variants_of_trees(found, call, self.profile, capabilities);
        let with_chunk = |strategy| match self.library {
            Some(chooser) => chooser.with_chunk(&call, strategy, self.profile),
            None => strategy,
        };
        found.into_iter().map(with_chunk).collect()
    }

    /// Returns the shape of a strategy for a call, without the matrix of an all_to_allv.
    pub(super) fn shape(&self, call: Call, strategy: Strategy, abilities: &FabricCapabilities) -> Shape {
        Shape {
            grid: self.fabric.host_grid().to_vec(),
            ..strategy.shape(call, self.profile, self.ranks_per_node, abilities)
        }
    }

    /// Returns the environment (fabric, ranks, profile, launch) in which schedules run.
    pub(super) fn setting(&self) -> Environment<'a> {
        Environment {
            fabric: self.fabric,
            router: self.router,
            placement: self.placement,
            profile: self.profile,
            delays: &[],
        }
    }
}
