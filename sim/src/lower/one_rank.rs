//! What one rank's program tells of the time of a schedule: a bound that needs neither the other ranks nor folding. It pays where every
//! rank sends to thousands, or on so many channels that those differ.

use std::sync::{Mutex, PoisonError};

use fabricast_topologies::fabric::NodeKind;
use fabricast_topologies::route::{BufferPlace, Ecmp};
use fabricast_topologies::{Fabric, LinkId, LinkKind, Picos};
use rustc_hash::FxHashMap;

use super::capacities::scaled;
use super::devices::share_of;
use super::effort::BLOCK_TIME;
use super::{Effort, Framing, Setting, is_in_one_segment, payload, sized_by};
use crate::profile::{NetworkCosts, Role};
use crate::quantity::Work;
use crate::schedule::{Generate, Program, Rank, Workplace};
use crate::sharing::WHOLE;

/// Bounds by one rank's program, on a fabric where what ranks send to other hosts passes their proxies.
pub struct OneRank<'a> {
    setting: Setting<'a>,
    /// Of each rank's device, of which some are joined by the network alone.
    islands: Vec<u32>,
    /// What ways take of their links, in units of [`WHOLE`].
    ways: Mutex<FxHashMap<Way, Shares>>,
}

/// From one rank to another, and the channel where ways are chosen by hash.
type Way = (Rank, Rank, u64);
/// Links, and what a way takes of each.
type Shares = Vec<(LinkId, u64)>;

/// What a rank puts on others, and reads from them.
#[derive(Default)]
struct Sent {
    /// What its proxy has to do for it.
    posted: Work,
    /// On the wire.
    by_way: FxHashMap<Way, Work>,
}

/// Programs of more chunks for each rank, on all channels and in all loops, take as long to write as their first loop takes to fold.
const MOST_CHUNKS: u32 = 1024;
/// A run of more operations that differ in size is left out: the rest is a bound as well.
const MOST_DIFFERENT: u32 = 4096;

impl<'a> OneRank<'a> {
    /// `None` where nothing passes a proxy, or what does depends on more than who sends to whom.
    #[must_use]
    pub fn new(setting: Setting<'a>) -> Option<Self> {
        let Setting { fabric, router, placement, profile, .. } = setting;
        let is_free = profile.network == NetworkCosts::FREE || profile.messages.is_some();
        if is_free || router.options().buffers != BufferPlace::Device {
            return None;
        }
        let islands: Vec<u32> = placement.iter().map(|&device| router.island_of(device)).collect();
        let is_several = islands.iter().any(|island| Some(island) != islands.first());
        let ways = Mutex::default();
        (is_several && networks_are_named(fabric)).then_some(Self { setting, islands, ways })
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
        let Sent { posted, by_way } = self.sent(generator, &effort, rank);
        let passes = self.passing(by_way).into_iter().map(|(link, work)| {
            let link = self.setting.fabric.link(link);
            let rate = link.bandwidth.map(|nominal| scaled(nominal, self.setting.profile.links.of(link.kind)));
            rate.map_or(0, |rate| work.0 / u128::from(rate.0.max(1)))
        });
        let needed = passes.max().unwrap_or(0).max(posted.0 / u128::from(BLOCK_TIME.0));
        // (What takes longer than can be told is left to the engine, which says so.)
        u64::try_from(needed).map_or(Picos::ZERO, |needed| effort.startup() + Picos(needed))
    }

    fn sent(&self, generator: &dyn Generate, effort: &Effort<'_>, rank: Rank) -> Sent {
        let header = generator.header();
        let framing = Framing::new(self.setting.profile.protocol(header.protocol).wire_efficiency);
        let is_hashed = matches!(self.setting.router.options().ecmp, Ecmp::Hashed { .. });
        let island = |rank: u32| self.islands.get(rank as usize);
        let home = island(rank.0);
        let mut scratch = Program::default();
        let program = generator.read(rank, &mut scratch);
        let mut sent = Sent::default();
        for (number, run) in (0..).zip(program.runs()).filter(|(_, run)| run.len > 0) {
            let (writes, reads) = (run.kind.writes_peer(), run.kind.reads_peer());
            if !writes && !reads {
                continue;
            }
            let order = effort.order(rank, number, run, program.dependencies(number as usize));
            // (What the proxy has to do does not depend on the role.)
            let task = Effort::task(run, Role::Send, order);
            let label = if is_hashed { run.channel.0.into() } else { 0 };
            let sizes = sized_by(run);
            let at = |i: u32| {
                let on_wire = framing.on_wire(payload(header, sizes.at(i), run.span));
                let proxy = effort.of(task, framing.payload(on_wire), on_wire).crossing.proxy;
                (on_wire.0, on_wire.0 * u128::from(proxy) / u128::from(WHOLE))
            };
            let mut add = |peer: u32, (on_wire, posting): (u128, u128), times: u32| {
                let peer = Rank(peer);
                let way = if reads { (peer, rank, label) } else { (rank, peer, label) };
                sent.by_way.entry(way).or_default().0 += on_wire * u128::from(times);
                // (What is read is posted by the peers.)
                if writes && island(peer.0) != home {
                    sent.posted.0 += posting * u128::from(times);
                }
            };
            let is_same =
                header.layout.segments().len() <= 1 || sizes.is_fixed() || is_in_one_segment(header, sizes, run);
            match (is_same, run.peer.is_fixed()) {
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

    /// What passes each link.
    fn passing(&self, by_way: FxHashMap<Way, Work>) -> FxHashMap<LinkId, Work> {
        let Setting { router, placement, .. } = self.setting;
        let device = |rank: Rank| placement.get(rank.0 as usize).copied();
        let mut ways = self.ways.lock().unwrap_or_else(PoisonError::into_inner);
        let mut links: FxHashMap<LinkId, Work> = FxHashMap::default();
        for ((from, to, label), work) in by_way {
            let way = ways.entry((from, to, label)).or_insert_with(|| {
                let mut hops = Vec::new();
                let ends = device(from).zip(device(to));
                let is_joined = ends.is_some_and(|(from, to)| router.route_into(from, to, label, &mut hops).is_ok());
                hops.iter().filter(|_| is_joined).map(|hop| (hop.link, share_of(hop))).collect()
            });
            for &(link, share) in way.iter() {
                links.entry(link).or_default().0 += work.0 * u128::from(share) / u128::from(WHOLE);
            }
        }
        links
    }
}

/// Whether all links that leave islands (`route::islands`: those between NICs and switches) are of a kind for which lowering charges
/// proxies (`network::crosses`).
fn networks_are_named(fabric: &Fabric) -> bool {
    fabric.links().all(|(id, link)| {
        let (from, to) = fabric.ends(id);
        let kinds = [from, to].map(|node| fabric.node(node).kind);
        let is_outside =
            matches!(kinds, [NodeKind::Nic, NodeKind::Nic | NodeKind::Switch] | [NodeKind::Switch, NodeKind::Nic]);
        !is_outside || matches!(link.kind, LinkKind::Infiniband | LinkKind::Ethernet)
    })
}
