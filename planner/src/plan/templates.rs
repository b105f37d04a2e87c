//! Templates of schedules: lowered and folded once, then timed or bounded for many sizes, channel counts and protocols.
//!
//! A template is found by what a strategy's first thread block does in one loop, or in two if it makes more. For this a
//! schedule of that many loops is generated, whatever the actual size. All methods of timing a schedule give the same
//! time, so the result does not depend on which size or thread comes first.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use fabricast_sim::SimulateError;
use fabricast_sim::lower::{OneRank, Setting};
use fabricast_sim::schedule::{Call, Collective, Generate, Header, Protocol, Rank};
use fabricast_sim::template::{Fingerprint, Known, Outline, Template};
use fabricast_topologies::fabric::Figures;
use fabricast_topologies::{Bytes, NodeId, Picos};
use rustc_hash::FxHashMap;

use super::PlanRequest;
use super::recent::Recent;
use crate::abilities::Abilities;
use crate::algorithm::{self, Algorithm, Shape};
use crate::strategy::Strategy;

/// Chunk size of the generated schedules: large enough to make rounding irrelevant.
const CHUNK: Bytes = Bytes(1 << 20);

/// Value computed once, by the first thread that needs it.
type Once<T> = Arc<OnceLock<T>>;

/// Key of a generated schedule: the strategy without its protocol, and the number of loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    collective: Collective,
    algorithm: Algorithm,
    channels: u16,
    loops: u32,
    /// Number of chunks that fit a message, as a power of two, if programs depend on it.
    room: Room,
}

/// Exponent of a power of two.
type Room = u32;

/// Number of channels that shows whether all channels do the same.
const ENOUGH_CHANNELS: u16 = 4;

/// Largest room of any call.
const MOST_ROOM: Room = 31;

/// Templates by protocol, block fingerprint and number of loops.
type Made = Mutex<FxHashMap<(Protocol, Fingerprint, u32), Once<Option<Template>>>>;

/// Cache of the schedules of a request.
pub(super) struct Templates<'a> {
    pub(super) request: &'a PlanRequest<'a>,
    pub(super) abilities: Abilities,
    /// Largest number of channels without shared SMs; templates are valid only up to it.
    roomy_channels: u16,
    /// Summaries of outlines; `None` if a schedule has no outline.
    known: Mutex<FxHashMap<Key, Once<Option<Known>>>>,
    outlines: Recent<Key>,
    made: Made,
    one_rank: Option<OneRank<'a>>,
}

/// Template, and the number of blocks that it represents.
pub(super) struct Found {
    made: Once<Option<Template>>,
    pub(super) blocks: u16,
}

impl Found {
    pub(super) fn template(&self) -> Option<&Template> {
        self.made.get().and_then(Option::as_ref)
    }
}

impl<'a> Templates<'a> {
    pub(super) fn new(request: &'a PlanRequest<'a>, abilities: Abilities) -> Self {
        Self {
            request,
            abilities,
            roomy_channels: roomy_channels(request),
            known: Mutex::default(),
            outlines: Recent::default(),
            made: Mutex::default(),
            one_rank: OneRank::new(request.setting()),
        }
    }

    /// Lower bound on a schedule's time on the device, from the load of its first rank on shared resources.
    pub(super) fn least_of_first_rank(&self, generator: &dyn Generate) -> Picos {
        self.one_rank.as_ref().map_or(Picos::ZERO, |one| one.least(generator, Rank(0)))
    }

    /// Returns the template of a strategy's schedule; `None` if it has none. `header` is that of the strategy's
    /// schedule, or of one with `times` times its channels.
    ///
    /// # Errors
    /// Errors of [`Template::of`].
    pub(super) fn of(
        &self,
        call: &Call,
        strategy: Strategy,
        (times, header): (u16, &Header),
    ) -> Result<Option<Found>, SimulateError> {
        // Templates of an all_to_allv are valid only for equal blocks.
        let is_uneven = call.collective == Collective::AllToAllV && !header.layout.is_even();
        if strategy.channels > self.roomy_channels || is_uneven {
            return Ok(None);
        }
        let room = self.room(call, strategy, header);
        let chunks = header.layout.chunks() / u32::from(times.max(1));
        // The summary of one loop is available without its template.
        let Some((_, _, one)) = self.known(call, strategy, (1, room)) else { return Ok(None) };
        let loops = if one.chunks() == chunks { (1, room) } else { (2, 0) };
        self.of_loops(call, strategy, loops)
    }

    /// Returns the room in the messages of a schedule of one loop.
    fn room(&self, call: &Call, strategy: Strategy, header: &Header) -> Room {
        if !strategy.algorithm.fills_messages() {
            return 0;
        }
        let shape = self.request.shape(*call, strategy, &self.abilities);
        let Some(chunk) = shape.chunk else { return MOST_ROOM };
        let fitting = u128::from(chunk.0) * u128::from(header.layout.chunks()) / u128::from(call.bytes.0.max(1));
        fitting.max(1).ilog2().min(MOST_ROOM)
    }

    fn of_loops(
        &self,
        call: &Call,
        strategy: Strategy,
        (loops, room): (u32, Room),
    ) -> Result<Option<Found>, SimulateError> {
        let Some((key, known, print)) = self.known(call, strategy, (loops, room)) else { return Ok(None) };
        let made = once(&self.made, (strategy.protocol, print.of_block(), loops));
        if made.get().is_none() {
            let few = Strategy { channels: key.channels, ..strategy };
            let outline = match self.outlines.get(&key) {
                Some(outline) => Some(outline),
                None => self.outline(call, few, (key, Some(&known))),
            };
            if let Some(outline) = outline {
                // Another thread may compute the same template; the first result is retained.
                let template = Template::of(&outline, strategy.protocol, loops, self.setting())?;
                made.get_or_init(|| template);
            }
        }
        Ok(Some(Found { made, blocks: print.blocks() }))
    }

    /// Returns the key of the outline that describes a strategy's schedule, independent of chunks and protocol, with
    /// its summary and the schedule's fingerprint.
    fn known(&self, call: &Call, strategy: Strategy, (loops, room): (u32, Room)) -> Option<(Key, Known, Fingerprint)> {
        let Strategy { algorithm, channels, .. } = strategy;
        // Four channels show whether all channels are equal: no algorithm needs more channels to show a difference.
        if channels > ENOUGH_CHANNELS {
            let few = Strategy { channels: ENOUGH_CHANNELS, ..strategy };
            let (key, known, print) = self.known(call, few, (loops, room))?;
            if print.blocks() == ENOUGH_CHANNELS {
                return Some((key, known, print.on_blocks(channels)));
            }
        }
        let key = Key { collective: call.collective, algorithm, channels, loops, room };
        let place = once(&self.known, key);
        let known = place.get_or_init(|| Some(self.outline(call, strategy, (key, None))?.known().clone()));
        let known = known.clone()?;
        let print = known.print;
        Some((key, known, print))
    }

    /// Returns the outline of a schedule, independent of chunks and protocol.
    fn outline(&self, call: &Call, strategy: Strategy, (key, known): (Key, Option<&Known>)) -> Option<Arc<Outline>> {
        let generator = self.generator(call, strategy, (key.loops, key.room))?;
        let outline = Arc::new(Outline::again(generator.as_ref(), self.setting(), known)?);
        self.outlines.keep(key, outline.clone());
        Some(outline)
    }

    /// Generates a strategy's schedule with `loops` loops of large chunks, and room for 2^`room` chunks in a message.
    fn generator(
        &self,
        call: &Call,
        strategy: Strategy,
        (loops, room): (u32, Room),
    ) -> Option<Box<dyn Generate + Send + Sync>> {
        let written = |bytes: u64, chunk: Option<Bytes>| {
            let shape = self.request.shape(Call { bytes: Bytes(bytes), ..*call }, strategy, &self.abilities);
            let buffers = self.request.router.options().buffers;
            algorithm::timed(strategy.algorithm, &Shape { chunk, ..shape }, buffers).ok()
        };
        let per_loop = written(1 << 40, None)?.header().layout.chunks();
        let chunks = per_loop.checked_mul(loops)?;
        let generator = written(u64::from(chunks) * CHUNK.0, Some(Bytes(CHUNK.0 << room)))?;
        (generator.header().layout.chunks() == chunks).then_some(generator)
    }

    pub(super) fn setting(&self) -> Setting<'a> {
        self.request.setting()
    }
}

/// Largest number of channels at which every block has an SM to itself.
fn roomy_channels(request: &PlanRequest<'_>) -> u16 {
    let mut ranks: FxHashMap<NodeId, u32> = FxHashMap::default();
    for &device in request.placement {
        *ranks.entry(device).or_default() += 1;
    }
    let room = ranks.into_iter().filter_map(|(device, ranks)| match &request.fabric.node(device).figures {
        Figures::Gpu(figures) => Some(figures.sm_count.filter(|&sms| sms > 0)? / ranks),
        _ => None,
    });
    room.min().map_or(u16::MAX, |most| u16::try_from(most).unwrap_or(u16::MAX))
}

/// Returns the entry of a table, which it creates if needed.
fn once<K: std::hash::Hash + Eq, T>(table: &Mutex<FxHashMap<K, Once<T>>>, key: K) -> Once<T> {
    table.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default().clone()
}

impl<'a> PlanRequest<'a> {
    /// Returns the call of a collective with a message size.
    pub(super) fn call(&self, collective: Collective, bytes: Bytes) -> Call {
        Call { collective, bytes, ranks: self.placement.len() as u32, root: Rank(self.root), buffers: self.buffers }
    }

    /// Returns the shape of a strategy for a call, without the matrix of an all_to_allv.
    pub(super) fn shape(&self, call: Call, strategy: Strategy, abilities: &Abilities) -> Shape {
        Shape {
            grid: self.fabric.host_grid().to_vec(),
            ..strategy.shape(call, self.profile, self.ranks_per_node, abilities)
        }
    }

    /// Returns the environment in which schedules run.
    pub(super) fn setting(&self) -> Setting<'a> {
        Setting {
            fabric: self.fabric,
            router: self.router,
            placement: self.placement,
            profile: self.profile,
            delays: &[],
        }
    }
}
