//! What one rank's program tells of the time of a schedule: a bound that needs neither the other ranks nor folding. It pays where every
//! rank sends to thousands, or on so many channels that those differ.

use std::sync::{Mutex, PoisonError};

use fabricast_topologies::route::{BufferPlace, Participants};
use fabricast_topologies::{LinkId, Picos};
use rustc_hash::FxHashMap;

use super::capacities::scaled;
use super::devices::{label, share_of};
use super::effort::BLOCK_TIME;
use super::network::crosses;
use super::{Effort, Framing, Setting, is_surely_even, payload, sized_by};
use crate::profile::{NetworkCosts, Role};
use crate::quantity::Work;
use crate::schedule::{Generate, Program, Rank, Workplace};
use crate::sharing::WHOLE;

/// Bounds by one rank's program, on a fabric where what ranks send to other hosts passes their proxies.
pub struct OneRank<'a> {
    setting: Setting<'a>,
    /// Who may stand in for a missing NVLink; nobody where no GPU could.
    participants: Participants,
    ways: Mutex<FxHashMap<Ends, Way>>,
}

/// From one rank to another, and the channel where ways are chosen by hash.
type Ends = (Rank, Rank, u64);

/// How data get from one rank to another; empty where they do not.
#[derive(Debug, Default)]
struct Way {
    /// Links, and what it takes of each, in units of [`WHOLE`].
    links: Vec<(LinkId, u64)>,
    leaves_host: bool,
}

/// What goes from one rank to another.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    on_wire: Work,
    /// What the rank's proxy has to do for it if it leaves the host; nothing for what is read, which the peers' proxies post.
    posting: Work,
}

/// Programs of more chunks for each rank, on all channels and in all loops, take as long to write as their first loop takes to fold.
const MOST_CHUNKS: u32 = 1024;
/// A run of more operations that differ in size is left out: the rest is a bound as well.
const MOST_DIFFERENT: u32 = 4096;

impl<'a> OneRank<'a> {
    /// `None` where nothing passes a proxy, or what does depends on more than who sends to whom.
    #[must_use]
    pub fn new(setting: Setting<'a>) -> Option<Self> {
        let Setting { router, placement, profile, .. } = setting;
        let is_free = profile.network == NetworkCosts::FREE || profile.messages.is_some();
        if is_free || router.options().buffers != BufferPlace::Device {
            return None;
        }
        let mut islands = placement.iter().map(|&device| router.island_of(device));
        let first = islands.next();
        islands.any(|island| Some(island) != first).then(|| Self {
            setting,
            participants: if router.has_relays() { Participants::new(placement) } else { Participants::default() },
            ways: Mutex::default(),
        })
    }

    /// What a call takes at least: start-up, and what the rank's proxy has to post, or what passes a link that its data take.
    /// Lowering charges the same for each operation that puts data on a peer, rounded up where this is rounded down, and nothing is
    /// sent before start-up. Zero where nothing can be said.
    #[must_use]
    pub fn least(&self, generator: &dyn Generate, rank: Rank) -> Picos {
        let header = generator.header();
        let chunks_of_rank = header.layout.chunks() / header.call.ranks.max(1);
        if header.blocks.workplace != Workplace::Device || chunks_of_rank > MOST_CHUNKS {
            return Picos::ZERO;
        }
        let effort = Effort::new(self.setting.profile, header);
        let (posted, links) = self.passing(&self.sent(generator, &effort, rank));
        let passes = links.into_iter().map(|(link, work)| {
            let link = self.setting.fabric.link(link);
            let rate = link.bandwidth.map(|nominal| scaled(nominal, self.setting.profile.links.of(link.kind)));
            rate.map_or(0, |rate| work.0 / u128::from(rate.0.max(1)))
        });
        let needed = passes.max().unwrap_or(0).max(posted.0 / u128::from(BLOCK_TIME.0));
        // (What takes longer than can be told is left to the engine, which says so.)
        u64::try_from(needed).map_or(Picos::ZERO, |needed| effort.startup() + Picos(needed))
    }

    fn sent(&self, generator: &dyn Generate, effort: &Effort<'_>, rank: Rank) -> FxHashMap<Ends, Sent> {
        let header = generator.header();
        let framing = Framing::new(self.setting.profile.protocol(header.protocol).wire_efficiency);
        let mut scratch = Program::default();
        let program = generator.read(rank, &mut scratch);
        let mut sent: FxHashMap<Ends, Sent> = FxHashMap::default();
        // (Of a program that is cut this is what its first runs send: no more than all of it does.)
        for (number, run) in (0..).zip(program.runs()).filter(|(_, run)| run.len > 0) {
            let (writes, reads) = (run.kind.writes_peer(), run.kind.reads_peer());
            if !writes && !reads {
                continue;
            }
            let order = effort.order(rank, number, run, program.dependencies(number as usize));
            // (What the proxy has to do does not depend on the role, nor on how many are sent to.)
            let task = Effort::task(run, (Role::Send, order), 1);
            let label = label(self.setting.router, run.channel);
            let sizes = sized_by(run);
            let at = |i: u32| {
                let on_wire = framing.on_wire(payload(header, sizes.at(i), run.span));
                let proxy = effort.of(task, framing.payload(on_wire), on_wire).crossing.proxy;
                let posting = if writes { on_wire.0 * u128::from(proxy) / u128::from(WHOLE) } else { 0 };
                Sent { on_wire, posting: Work(posting) }
            };
            let mut add = |peer: u32, one: Sent, times: u32| {
                let peer = Rank(peer);
                let all = sent.entry(if reads { (peer, rank, label) } else { (rank, peer, label) }).or_default();
                all.on_wire.0 += one.on_wire.0 * u128::from(times);
                all.posting.0 += one.posting.0 * u128::from(times);
            };
            match (is_surely_even(header, run), run.peer.is_fixed()) {
                (true, true) => add(run.peer.at(0), at(0), run.len),
                (true, false) => {
                    let one = at(0);
                    (0..run.len).for_each(|i| add(run.peer.at(i), one, 1));
                }
                (false, _) if run.len > MOST_DIFFERENT => {}
                (false, _) => (0..run.len).for_each(|i| add(run.peer.at(i), at(i), 1)),
            }
        }
        sent
    }

    /// What the proxy has to do, and what passes each link.
    fn passing(&self, sent: &FxHashMap<Ends, Sent>) -> (Work, FxHashMap<LinkId, Work>) {
        let mut ways = self.ways.lock().unwrap_or_else(PoisonError::into_inner);
        let mut posted = Work(0);
        let mut links: FxHashMap<LinkId, Work> = FxHashMap::default();
        for (&ends, Sent { on_wire, posting }) in sent {
            let way = ways.entry(ends).or_insert_with(|| self.way(ends));
            if way.leaves_host {
                posted.0 += posting.0;
            }
            for &(link, share) in &way.links {
                links.entry(link).or_default().0 += on_wire.0 * u128::from(share) / u128::from(WHOLE);
            }
        }
        (posted, links)
    }

    fn way(&self, (from, to, label): Ends) -> Way {
        let Setting { fabric, router, placement, .. } = self.setting;
        let device = |rank: Rank| placement.get(rank.0 as usize).copied();
        let mut hops = Vec::new();
        let ends = device(from).zip(device(to));
        match ends.map(|ends| router.route_among(&self.participants, ends, label, &mut hops)) {
            Some(Ok(_)) => Way {
                leaves_host: crosses(fabric, &hops),
                links: hops.iter().map(|hop| (hop.link, share_of(hop))).collect(),
            },
            Some(Err(_)) | None => Way::default(),
        }
    }
}
