//! Lower bound on a schedule's completion time from the program of one rank. It needs neither the programs of other
//! ranks nor folding, which saves time if every rank sends to thousands of peers, or uses so many channels that the
//! channels differ.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use fabricast_topologies::route::{BufferLocation, Participants};
use fabricast_topologies::{LinkId, Picos};
use rustc_hash::FxHashMap;

use super::block_time::BLOCK_TIME;
use super::capacities::scaled;
use super::devices::{hop_coefficient, label};
use super::network::crosses;
use super::operation_cost::Task;
use super::pieces::PieceStarts;
use super::{Environment, Framing, OperationCosts, is_surely_even, payload, size_walk};
use crate::profile::{NetworkCosts, Role};
use crate::quantity::{Rate, Work};
use crate::schedule::{Header, Processor, Program, Rank, ScheduleGenerator};
use crate::sharing::WHOLE;

/// Lower bounds on completion times from the program of one rank, on a fabric where data for other hosts passes the
/// sending rank's proxy.
pub struct RankBound<'a> {
    setting: Environment<'a>,
    /// Ranks that may relay data between two GPUs without NVLink; none if no GPU can relay.
    participants: Participants,
    routes: Mutex<FxHashMap<RankFlow, RankRoute>>,
}

/// Flow of data from one rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct RankFlow {
    from: Rank,
    to: Rank,
    /// Channel that carries the flow, if routes are hashed; otherwise 0.
    label: u64,
}

/// Route between two ranks; empty if there is none.
#[derive(Debug, Default)]
struct RankRoute {
    /// Links, and the share of the data on each, in units of [`WHOLE`].
    links: Vec<(LinkId, u64)>,
    leaves_host: bool,
}

/// Data sent from one rank to another.
#[derive(Clone, Copy, Debug, Default)]
struct PairTraffic {
    on_wire: Work,
    /// Proxy time of the sending rank if the data leave the host; 0 for reads, which the peers' proxies post.
    posting: Work,
}

/// Operations with which a rank sends data, without their sizes and costs. They are the same for all schedules with
/// chunks of one size in which the rank has the same program, whatever the protocol.
#[derive(Clone, Debug, Default)]
pub struct RankSends {
    /// Operations that the rank's proxy posts.
    posted: Vec<EqualOperations>,
    /// Distinct loads of links, without those of links with unlimited rate.
    loads: Vec<LinkLoad>,
}

/// Equal operations of a rank.
#[derive(Clone, Copy, Debug)]
struct EqualOperations {
    /// Task of the operations; `None` for reads, which the peers' proxies post.
    task: Option<Task>,
    /// Number of chunks that an operation moves.
    span: u32,
    operations: u64,
}

impl EqualOperations {
    /// Adds operations to a list, which has one entry for each task and number of chunks.
    fn add_to(self, list: &mut Vec<Self>) {
        match list.iter_mut().find(|known| (known.task, known.span) == (self.task, self.span)) {
            Some(known) => known.operations += self.operations,
            None => list.push(self),
        }
    }
}

/// Load of a link.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LinkLoad {
    rate: Rate,
    /// Shares of operations that pass the link, in units of [`WHOLE`], by number of chunks per operation.
    shares: BTreeMap<u32, u128>,
}

/// Limit on chunks per rank. Generating larger programs, on all channels and in all loops, is as slow as folding their
/// first loop.
const MAX_CHUNKS: u32 = 1024;
/// Limit on the number of operations of a run that differ in size. Longer runs are omitted; the remaining runs still
/// give a lower bound.
const MAX_DIFFERENT: u32 = 4096;

impl<'a> RankBound<'a> {
    /// Creates the lower bounds for an environment; `None` if no data passes a proxy, or if proxy time depends on more
    /// than sender and receiver.
    #[must_use]
    pub fn new(setting: Environment<'a>) -> Option<Self> {
        let Environment { router, placement, profile, .. } = setting;
        let is_free = profile.network == NetworkCosts::FREE || profile.messages.is_some();
        if is_free || router.options().buffers != BufferLocation::Device {
            return None;
        }
        let mut islands = placement.iter().map(|&device| router.island_of(device));
        let first = islands.next();
        islands.any(|island| Some(island) != first).then(|| Self {
            setting,
            participants: if router.has_relays() { Participants::new(placement) } else { Participants::default() },
            routes: Mutex::default(),
        })
    }

    /// Lower bound on the completion time of a call: the start-up, plus the longer of the rank's proxy time and the
    /// time of the busiest link that its data pass. It is a lower bound because lowering charges the same costs to each
    /// operation that puts data on a peer, rounded up where this function rounds down, and because nothing is sent
    /// before the start-up has ended. Returns 0 if no bound is available.
    #[must_use]
    pub fn lower_bound(&self, generator: &dyn ScheduleGenerator, rank: Rank) -> Picos {
        let header = generator.header();
        if header.layout.is_even() {
            return self.lower_bound_of_sends(header, &self.sends(generator, rank));
        }
        if !has_bound(header) {
            return Picos::ZERO;
        }
        let operation_costs = OperationCosts::new(self.setting.profile, header);
        let (posted, links) = self.proxy_and_link_work(&self.pair_traffic(generator, &operation_costs, rank));
        let passes = links.into_iter().map(|(link, work)| {
            let link = self.setting.fabric.link(link);
            let rate = link.bandwidth.map(|nominal| scaled(nominal, self.setting.profile.links.for_kind(link.kind)));
            rate.map_or(0, |rate| work.0 / u128::from(rate.0.max(1)))
        });
        start_after(&operation_costs, passes.max().unwrap_or(0).max(posted.0 / u128::from(BLOCK_TIME.0)))
    }

    /// Returns the operations with which a rank sends data in a schedule whose chunks have one size; none if
    /// [`Self::lower_bound`] is not available.
    #[must_use]
    pub fn sends(&self, generator: &dyn ScheduleGenerator, rank: Rank) -> RankSends {
        let header = generator.header();
        if !has_bound(header) {
            return RankSends::default();
        }
        let operation_costs = OperationCosts::new(self.setting.profile, header);
        let mut scratch = Program::default();
        let program = generator.read(rank, &mut scratch);
        let mut flows: FxHashMap<RankFlow, Vec<EqualOperations>> = FxHashMap::default();
        for (number, run) in (0..).zip(program.runs()).filter(|(_, run)| run.len > 0) {
            let (writes, reads) = (run.kind.writes_peer(), run.kind.reads_peer());
            if !writes && !reads {
                continue;
            }
            let order = operation_costs.order(rank, number, run, program.dependencies(number as usize));
            let task = writes.then(|| OperationCosts::task(run, Role::Send, order, 1));
            let label = label(self.setting.router, run.channel);
            let mut add = |peer: u32, operations: u32| {
                let (from, to) = if reads { (Rank(peer), rank) } else { (rank, Rank(peer)) };
                let sent = flows.entry(RankFlow { from, to, label }).or_default();
                EqualOperations { task, span: run.span, operations: operations.into() }.add_to(sent);
            };
            match run.peer.is_fixed() {
                true => add(run.peer.at(0), run.len),
                false => (0..run.len).for_each(|i| add(run.peer.at(i), 1)),
            }
        }
        self.sends_of_flows(&flows)
    }

    /// Returns the operations that the proxy posts, and the loads of links.
    fn sends_of_flows(&self, flows: &FxHashMap<RankFlow, Vec<EqualOperations>>) -> RankSends {
        let Environment { fabric, profile, .. } = self.setting;
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut posted = Vec::new();
        let mut shares: FxHashMap<LinkId, BTreeMap<u32, u128>> = FxHashMap::default();
        for (&flow, sent) in flows {
            let route = routes.entry(flow).or_insert_with(|| self.route(flow));
            for one in sent {
                if route.leaves_host && one.task.is_some() {
                    one.add_to(&mut posted);
                }
                for &(link, share) in &route.links {
                    *shares.entry(link).or_default().entry(one.span).or_default() +=
                        u128::from(share) * u128::from(one.operations);
                }
            }
        }
        let loads = shares.into_iter().filter_map(|(link, shares)| {
            let link = fabric.link(link);
            let rate = scaled(link.bandwidth?, profile.links.for_kind(link.kind));
            Some(LinkLoad { rate, shares })
        });
        let mut loads: Vec<LinkLoad> = loads.collect();
        loads.sort_unstable();
        loads.dedup();
        RankSends { posted, loads }
    }

    /// Lower bound on the completion time of a schedule with chunks of one size in which a rank sends this data, as
    /// [`Self::lower_bound`].
    #[must_use]
    pub fn lower_bound_of_sends(&self, header: &Header, sends: &RankSends) -> Picos {
        if !has_bound(header) {
            return Picos::ZERO;
        }
        let operation_costs = OperationCosts::new(self.setting.profile, header);
        let framing = Framing::new(self.setting.profile.protocol(header.protocol).wire_efficiency);
        let on_wire = |span: u32| framing.on_wire(payload(header, 0, span));
        let posting = |one: &EqualOperations| {
            let on_wire = on_wire(one.span);
            let cost = one.task.map(|task| operation_costs.operation_cost(task, framing.payload(on_wire), on_wire));
            let proxy = cost.map_or(0, |cost| cost.crossing.proxy);
            on_wire.0 * u128::from(proxy) / u128::from(WHOLE) * u128::from(one.operations)
        };
        let passing = |load: &LinkLoad| {
            // A share may exceed 64 bits, and its product with an amount 128.
            let passed = |(&span, &share): (&u32, &u128)| {
                let (whole, part) = (share / u128::from(WHOLE), share % u128::from(WHOLE));
                on_wire(span).0 * whole + on_wire(span).0 * part / u128::from(WHOLE)
            };
            load.shares.iter().map(passed).sum::<u128>() / u128::from(load.rate.0.max(1))
        };
        let posted: u128 = sends.posted.iter().map(posting).sum();
        let passes = sends.loads.iter().map(passing).max().unwrap_or(0);
        start_after(&operation_costs, passes.max(posted / u128::from(BLOCK_TIME.0)))
    }

    fn pair_traffic(
        &self,
        generator: &dyn ScheduleGenerator,
        operation_costs: &OperationCosts<'_>,
        rank: Rank,
    ) -> FxHashMap<RankFlow, PairTraffic> {
        let header = generator.header();
        let framing = Framing::new(self.setting.profile.protocol(header.protocol).wire_efficiency);
        let mut scratch = Program::default();
        let program = generator.read(rank, &mut scratch);
        let mut sent: FxHashMap<RankFlow, PairTraffic> = FxHashMap::default();
        // A truncated program contains only its first runs. They send no more data than all runs, so the result is
        // still a lower bound.
        for (number, run) in (0..).zip(program.runs()).filter(|(_, run)| run.len > 0) {
            let (writes, reads) = (run.kind.writes_peer(), run.kind.reads_peer());
            if !writes && !reads {
                continue;
            }
            let order = operation_costs.order(rank, number, run, program.dependencies(number as usize));
            // Proxy time depends neither on the role nor on the number of partners.
            let task = OperationCosts::task(run, Role::Send, order, 1);
            let label = label(self.setting.router, run.channel);
            let sizes = size_walk(run);
            let at = |i: u32| {
                let on_wire = framing.on_wire(payload(header, sizes.at(i), run.span));
                let proxy = operation_costs.operation_cost(task, framing.payload(on_wire), on_wire).crossing.proxy;
                let posting = if writes { on_wire.0 * u128::from(proxy) / u128::from(WHOLE) } else { 0 };
                PairTraffic { on_wire, posting: Work(posting) }
            };
            let mut add = |peer: u32, one: PairTraffic, times: u32| {
                let peer = Rank(peer);
                let (from, to) = if reads { (peer, rank) } else { (rank, peer) };
                let all = sent.entry(RankFlow { from, to, label }).or_default();
                all.on_wire.0 += one.on_wire.0 * u128::from(times);
                all.posting.0 += one.posting.0 * u128::from(times);
            };
            let mut add_equal = |operations: std::ops::Range<u32>, one: PairTraffic| match run.peer.is_fixed() {
                true => add(run.peer.at(0), one, operations.end - operations.start),
                false => operations.for_each(|i| add(run.peer.at(i), one, 1)),
            };
            if is_surely_even(header, run) {
                add_equal(0..run.len, at(0));
            } else if let Some(pieces) = PieceStarts::find(header, run) {
                for (start, len) in pieces.starts().zip(pieces.lengths()) {
                    add_equal(start..start + len, at(start));
                }
            } else if run.len <= MAX_DIFFERENT {
                (0..run.len).for_each(|i| add_equal(i..i + 1, at(i)));
            }
        }
        sent
    }

    /// Returns the total proxy time of the rank, and the work that passes each link.
    fn proxy_and_link_work(&self, sent: &FxHashMap<RankFlow, PairTraffic>) -> (Work, FxHashMap<LinkId, Work>) {
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut posted = Work(0);
        let mut links: FxHashMap<LinkId, Work> = FxHashMap::default();
        for (&flow, PairTraffic { on_wire, posting }) in sent {
            let route = routes.entry(flow).or_insert_with(|| self.route(flow));
            if route.leaves_host {
                posted.0 += posting.0;
            }
            for &(link, share) in &route.links {
                links.entry(link).or_default().0 += on_wire.0 * u128::from(share) / u128::from(WHOLE);
            }
        }
        (posted, links)
    }

    fn route(&self, flow: RankFlow) -> RankRoute {
        let Environment { fabric, router, placement, .. } = self.setting;
        let device = |rank: Rank| placement.get(rank.0 as usize).copied();
        let mut hops = Vec::new();
        let ends = device(flow.from).zip(device(flow.to));
        match ends.map(|(from, to)| router.route_for_participants(&self.participants, from, to, flow.label, &mut hops))
        {
            Some(Ok(_)) => RankRoute {
                leaves_host: crosses(fabric, &hops),
                links: hops.iter().map(|hop| (hop.link, hop_coefficient(hop))).collect(),
            },
            Some(Err(_)) | None => RankRoute::default(),
        }
    }
}

/// Returns false for schedules without a lower bound.
fn has_bound(header: &Header) -> bool {
    let chunks_per_rank = header.layout.chunks() / header.call.ranks.max(1);
    header.blocks.processor == Processor::Device && chunks_per_rank <= MAX_CHUNKS
}

/// Returns the start-up followed by `needed` picoseconds. Overflow is left to the engine, which reports an error.
fn start_after(operation_costs: &OperationCosts<'_>, needed: u128) -> Picos {
    u64::try_from(needed).map_or(Picos::ZERO, |needed| operation_costs.startup() + Picos(needed))
}
