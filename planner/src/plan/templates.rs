//! Schedules that are lowered and folded once, and timed or bounded for many sizes, channel counts and protocols.
//!
//! A strategy's schedule is looked up by what its first thread block does in one loop, or in two where it makes more: a
//! schedule of that many loops is written for it, whatever its own size. All ways of timing a schedule say the same, so it does
//! not matter which size or thread is first.

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

/// The chunks of the schedules that are looked at: large enough that nothing is rounded away.
const CHUNK: Bytes = Bytes(1 << 20);

/// Something that is worked out once, by the first who asks.
type Once<T> = Arc<OnceLock<T>>;

/// A schedule that is looked at: a strategy's, its protocol aside, of so many loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    collective: Collective,
    algorithm: Algorithm,
    channels: u16,
    loops: u32,
    /// How many of its chunks a message may take, as a power of two, where programs depend on that.
    room: Room,
}

/// A power of two.
type Room = u32;

/// Channels on which it shows whether all of them do the same.
const ENOUGH_CHANNELS: u16 = 4;

/// No call has more room than this.
const MOST_ROOM: Room = 31;

/// Templates by protocol, what their blocks do, and loops.
type Made = Mutex<FxHashMap<(Protocol, Fingerprint, u32), Once<Option<Template>>>>;

/// What is known of the schedules of a request.
pub(super) struct Templates<'a> {
    pub(super) request: &'a PlanRequest<'a>,
    pub(super) abilities: Abilities,
    /// On more channels their blocks share SMs, and do no longer what one block does.
    roomy_channels: u16,
    /// What is known of outlines; nothing where a schedule has none.
    known: Mutex<FxHashMap<Key, Once<Option<Known>>>>,
    outlines: Recent<Key>,
    made: Made,
    one_rank: Option<OneRank<'a>>,
}

/// A template, and the number of blocks that do what it does.
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

    /// What a schedule takes at least on the device, by what its first rank puts on others.
    pub(super) fn least_of_first_rank(&self, generator: &dyn Generate) -> Picos {
        self.one_rank.as_ref().map_or(Picos::ZERO, |one| one.least(generator, Rank(0)))
    }

    /// The template of a strategy's schedule; nothing where it has none. The schedule at hand is the strategy's, or one of
    /// so many times its channels.
    ///
    /// # Errors
    /// As [`Template::of`].
    pub(super) fn of(
        &self,
        call: &Call,
        strategy: Strategy,
        (times, header): (u16, &Header),
    ) -> Result<Option<Found>, SimulateError> {
        // Templates of an all_to_allv are those of equal blocks.
        let is_uneven = call.collective == Collective::AllToAllV && !header.layout.is_even();
        if strategy.channels > self.roomy_channels || is_uneven {
            return Ok(None);
        }
        let room = self.room(call, strategy, header);
        let chunks = header.layout.chunks() / u32::from(times.max(1));
        // (What is known of one loop is told without a template of it.)
        let Some((_, _, one)) = self.known(call, strategy, (1, room)) else { return Ok(None) };
        let loops = if one.chunks() == chunks { (1, room) } else { (2, 0) };
        self.of_loops(call, strategy, loops)
    }

    /// The room in the messages of a schedule of one loop.
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
                // (Another thread may be making the same; the first one's stays.)
                let template = Template::of(&outline, strategy.protocol, loops, self.setting())?;
                made.get_or_init(|| template);
            }
        }
        Ok(Some(Found { made, blocks: print.blocks() }))
    }

    /// What a strategy's schedule is known by, chunks and protocol aside; the schedule whose outline tells it, and what is known
    /// of that one.
    fn known(&self, call: &Call, strategy: Strategy, (loops, room): (u32, Room)) -> Option<(Key, Known, Fingerprint)> {
        let Strategy { algorithm, channels, .. } = strategy;
        // What is alike on four channels is alike on more: no algorithm takes longer to show how channels differ.
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

    /// What a schedule does, chunks and protocol aside.
    fn outline(&self, call: &Call, strategy: Strategy, (key, known): (Key, Option<&Known>)) -> Option<Arc<Outline>> {
        let generator = self.generator(call, strategy, (key.loops, key.room))?;
        let outline = Arc::new(Outline::again(generator.as_ref(), self.setting(), known)?);
        self.outlines.keep(key, outline.clone());
        Some(outline)
    }

    /// A schedule of a strategy that makes so many loops of large chunks, with room for more of them in a message.
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

/// The most channels with which every block has an SM to itself.
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

/// The place for something in a table.
fn once<K: std::hash::Hash + Eq, T>(table: &Mutex<FxHashMap<K, Once<T>>>, key: K) -> Once<T> {
    table.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default().clone()
}

impl<'a> PlanRequest<'a> {
    /// The call of a collective of a size.
    pub(super) fn call(&self, collective: Collective, bytes: Bytes) -> Call {
        Call { collective, bytes, ranks: self.placement.len() as u32, root: Rank(self.root), buffers: self.buffers }
    }

    /// What a strategy for a call asks of its algorithm; an all_to_allv's matrix aside.
    pub(super) fn shape(&self, call: Call, strategy: Strategy, abilities: &Abilities) -> Shape {
        Shape {
            grid: self.fabric.host_grid().to_vec(),
            ..strategy.shape(call, self.profile, self.ranks_per_node, abilities)
        }
    }

    /// Where schedules run.
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
