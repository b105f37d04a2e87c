//! What one rank's program tells of the time of a schedule: a bound that needs none of the others, nor folding, where every rank
//! sends to thousands, or on so many channels that those differ.

use fabricast_topologies::fabric::NodeKind;
use fabricast_topologies::route::{BufferPlace, Ecmp};
use fabricast_topologies::{Fabric, LinkId, LinkKind, NodeId, Picos};
use rustc_hash::FxHashMap;

use super::capacities::scaled;
use super::devices::share_of;
use super::effort::BLOCK_TIME;
use super::{Effort, Framing, Setting, payload, sized_by};
use crate::profile::{NetworkCosts, Role};
use crate::quantity::Work;
use crate::schedule::{Generate, Program, Rank, Run, Workplace};
use crate::sharing::WHOLE;

/// Bounds by one rank's program, on a fabric where what ranks send to other hosts passes their proxies.
pub struct OneRank<'a> {
    setting: Setting<'a>,
    /// Of each rank's device, of which some are joined by the network alone.
    islands: Vec<u32>,
}

/// What a rank puts on others.
#[derive(Default)]
struct Sent {
    /// What its proxy has to do for it.
    posted: Work,
    /// What passes each link of its ways to peers that stay the same.
    links: FxHashMap<LinkId, Work>,
}

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
        (is_several && networks_are_named(fabric)).then_some(Self { setting, islands })
    }

    /// What a call takes at least: start-up, and what the rank's proxy has to post, or what passes the links that its data take.
    #[must_use]
    pub fn least(&self, generator: &dyn Generate, rank: Rank) -> Picos {
        let header = generator.header();
        let Some(&device) = self.setting.placement.get(rank.0 as usize) else { return Picos::ZERO };
        if header.blocks.workplace != Workplace::Device {
            return Picos::ZERO;
        }
        let effort = Effort::new(self.setting.profile, header);
        let Sent { posted, links } = self.sent(generator, &effort, (rank, device));
        let passes = links.into_iter().map(|(link, work)| {
            let link = self.setting.fabric.link(link);
            let rate = link.bandwidth.map(|nominal| scaled(nominal, self.setting.profile.links.of(link.kind)));
            rate.map_or(0, |rate| work.0 / u128::from(rate.0.max(1)))
        });
        let needed = passes.max().unwrap_or(0).max(posted.0 / u128::from(BLOCK_TIME.0));
        effort.startup() + Picos(u64::try_from(needed).unwrap_or(u64::MAX))
    }

    fn sent(&self, generator: &dyn Generate, effort: &Effort<'_>, (rank, device): (Rank, NodeId)) -> Sent {
        let header = generator.header();
        let framing = Framing::new(self.setting.profile.protocol(header.protocol).wire_efficiency);
        let island = |rank: u32| self.islands.get(rank as usize);
        let home = island(rank.0);
        let mut scratch = Program::default();
        let program = generator.read(rank, &mut scratch);
        let mut sent = Sent::default();
        for (number, run) in (0..).zip(program.runs()).filter(|(_, run)| run.kind.writes_peer()) {
            let order = effort.order(rank, number, run, program.dependencies(number as usize));
            // (Its role says how soon a message is whole, not what it takes of the proxy.)
            let task = Effort::task(run, Role::Send, order);
            let sizes = sized_by(run);
            let (mut all, mut before) = (Work(0), None);
            for i in 0..run.len {
                let on_wire = framing.on_wire(payload(header, sizes.at(i), run.span));
                all.0 += on_wire.0;
                if island(run.peer.at(i)) == home {
                    continue;
                }
                // Of operations that are as large as the one before the proxy has as much to do.
                let one = match before {
                    Some((size, one)) if size == on_wire => one,
                    _ => {
                        let proxy = effort.of(task, framing.payload(on_wire), on_wire).crossing.proxy;
                        on_wire.0 * u128::from(proxy) / u128::from(WHOLE)
                    }
                };
                before = Some((on_wire, one));
                sent.posted.0 += one;
            }
            self.count(run, device, all, &mut sent.links);
        }
        sent
    }

    /// Adds what a run with one peer sends to the links on its way.
    fn count(&self, run: &Run, device: NodeId, work: Work, links: &mut FxHashMap<LinkId, Work>) {
        let Setting { router, placement, .. } = self.setting;
        let peer = placement.get(run.peer.at(0) as usize).filter(|_| run.peer.is_fixed() && run.len > 0);
        let label = if matches!(router.options().ecmp, Ecmp::Hashed { .. }) { run.channel.0.into() } else { 0 };
        let mut hops = Vec::new();
        if peer.is_some_and(|&peer| router.route_into(device, peer, label, &mut hops).is_ok()) {
            for hop in hops {
                links.entry(hop.link).or_default().0 += work.0 * u128::from(share_of(&hop)) / u128::from(WHOLE);
            }
        }
    }
}

/// Whether all links between NICs and switches are those of a network, as they are for who pays for crossing them.
fn networks_are_named(fabric: &Fabric) -> bool {
    fabric.links().all(|(id, link)| {
        let (from, to) = fabric.ends(id);
        let kinds = [from, to].map(|node| fabric.node(node).kind);
        let is_outside =
            matches!(kinds, [NodeKind::Nic, NodeKind::Nic | NodeKind::Switch] | [NodeKind::Switch, NodeKind::Nic]);
        !is_outside || matches!(link.kind, LinkKind::Infiniband | LinkKind::Ethernet)
    })
}
