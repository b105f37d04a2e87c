//! What no schedule can beat: every rank, and every host, must get its bytes through its ports.
//!
//! For a set of ranks that talks to the rest through links of bandwidth `in` and `out`, a collective forces bytes
//! across whatever the schedule. The bound takes the ranks one by one and the hosts one by one as such sets; without
//! in-network reduction an all_reduce over k sets moves at least 2(k−1) times the buffer in all, as a reduction and a
//! broadcast each move it k−1 times (Patarasuk & Yuan, *Bandwidth optimal all-reduce algorithms*, JPDC 2009, §3). The
//! first of these bytes needs the latency of the shortest route into (out of) the set; the latency between two given
//! ranks bounds nothing, since a third may pass data on. Only links that lie on a route between ranks count as ports.

use fabricast_sim::schedule::{Call, Collective};
use fabricast_topologies::route::{Ecmp, RouteOptions, Router};
use fabricast_topologies::{Fabric, NodeId, Picos};

/// Up to this many ranks, ports are read off the routes between all pairs. Above, each rank looks at the ranks at
/// distances 1, 2, 4, … in its host and at its own place and the next one in the next host: on hosts of equal GPUs that
/// finds every port.
const ALL_PAIRS_LIMIT: usize = 256;

/// Bytes per second through a number of links; `None` is unlimited.
#[derive(Clone, Copy, Debug)]
struct Throughput(Option<u64>);

impl Default for Throughput {
    fn default() -> Self {
        Self(Some(0))
    }
}

impl Throughput {
    fn add(&mut self, bandwidth: Option<u64>) {
        self.0 = self.0.zip(bandwidth).map(|(sum, one)| sum.saturating_add(one));
    }
}

/// One direction through the ports of a set.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    through: Throughput,
    /// Latency of the shortest route that crosses; none where no route does.
    nearest: Option<Picos>,
}

impl Way {
    fn add_route(&mut self, latency: Picos) {
        self.nearest = Some(self.nearest.map_or(latency, |nearest| nearest.min(latency)));
    }

    /// What these bytes need to cross, rounded down (a bound must not exceed the truth).
    fn bound(&self, bytes: u128, set_by: BoundSource) -> Bound {
        let time = self.through.0.map_or(0, |bandwidth| bytes * 1_000_000_000_000 / u128::from(bandwidth.max(1)));
        let transfer = Picos(u64::try_from(time).unwrap_or(u64::MAX));
        let set_by = if transfer == Picos::ZERO { BoundSource::Latency } else { set_by };
        Bound { time: self.nearest.unwrap_or(Picos::ZERO) + transfer, transfer, set_by }
    }
}

/// A set of ranks and what passes into it and out of it.
#[derive(Clone, Copy, Debug, Default)]
struct Port {
    into: Way,
    out: Way,
    /// Ranks inside.
    ranks: u32,
    has_root: bool,
}

/// Sets of ranks and their ports, ready to bound any call.
#[derive(Clone, Debug)]
pub struct Bounds {
    ranks: Vec<Port>,
    hosts: Vec<Port>,
}

/// A bound and the kind of set it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// No schedule takes less.
    pub time: Picos,
    /// The part of it that bytes need, at nominal link rates.
    pub transfer: Picos,
    /// What sets it.
    pub set_by: BoundSource,
}

/// What sets a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundSource {
    /// Latency alone.
    Latency,
    /// The ports of a rank.
    RankPorts,
    /// The ports of a host.
    HostPorts,
}

impl Bounds {
    /// Reads the ports of `placement` (the device of each rank) off the routes between them.
    #[must_use]
    pub fn new(fabric: &Fabric, router: &Router<'_>, placement: &[NodeId], root: u32) -> Self {
        // Flows that are told apart by hash use, between them, every equal way: count the links of all.
        let spread = match router.options() {
            options @ RouteOptions { ecmp: Ecmp::Hashed { .. }, .. } => {
                Some(Router::new(fabric, RouteOptions { ecmp: Ecmp::Averaged, ..options }))
            }
            _ => None,
        };
        let router = spread.as_ref().unwrap_or(router);
        let mut survey = Survey::new(fabric, placement);
        for (rank, &device) in placement.iter().enumerate() {
            survey.add_routes(router, rank, device);
        }
        survey.into_bounds(root)
    }

    /// The bound of a call over all ranks.
    #[must_use]
    pub fn of(&self, call: &Call) -> Bound {
        if call.ranks < 2 {
            return Bound { time: Picos::ZERO, transfer: Picos::ZERO, set_by: BoundSource::Latency };
        }
        let mut bound = Bound { time: Picos::ZERO, transfer: Picos::ZERO, set_by: BoundSource::Latency };
        for (sets, set_by) in [(&self.ranks, BoundSource::RankPorts), (&self.hosts, BoundSource::HostPorts)] {
            if sets.len() > 1 {
                bound = each_set(sets, call, set_by).chain(all_sets(sets, call, set_by)).fold(bound, later);
            }
        }
        bound
    }
}

/// Bytes that all ranks together must receive, whatever the schedule, without in-network reduction.
#[must_use]
pub fn least_traffic(call: &Call) -> u128 {
    let (bytes, n) = (u128::from(call.bytes.0), u128::from(call.ranks));
    let others = n.saturating_sub(1);
    match call.collective {
        Collective::AllReduce => 2 * others * bytes,
        Collective::AllGather
        | Collective::ReduceScatter
        | Collective::AllToAll
        | Collective::Broadcast
        | Collective::Reduce => others * bytes,
        Collective::Gather | Collective::Scatter => others * bytes / n.max(1),
        // A rank by itself may already hold what it gets.
        Collective::SendRecv if n < 2 => 0,
        Collective::SendRecv => n * bytes,
    }
}

/// The later of two bounds, the first of equals.
fn later(a: Bound, b: Bound) -> Bound {
    if b.time > a.time { b } else { a }
}

/// What each set needs for the bytes that must cross its ports, whatever the schedule.
fn each_set<'a>(sets: &'a [Port], call: &Call, set_by: BoundSource) -> impl Iterator<Item = Bound> + 'a {
    let (collective, bytes, n) = (call.collective, u128::from(call.bytes.0), u128::from(call.ranks));
    sets.iter().flat_map(move |set| {
        let inside = u128::from(set.ranks);
        let outside = n - inside.min(n);
        // `bytes` is the larger buffer of a rank.
        let block = |ranks: u128| bytes * ranks / n;
        let (into, out) = match collective {
            Collective::AllReduce => (Some(bytes), Some(bytes)),
            Collective::AllGather => (Some(block(outside)), Some(block(inside))),
            Collective::ReduceScatter => (Some(block(inside)), Some(block(outside))),
            Collective::AllToAll => (Some(block(outside * inside)), Some(block(outside * inside))),
            Collective::Broadcast if set.has_root => (None, Some(bytes)),
            Collective::Broadcast => (Some(bytes), None),
            Collective::Reduce if set.has_root => (Some(bytes), None),
            Collective::Reduce => (None, Some(bytes)),
            Collective::Gather if set.has_root => (Some(block(outside)), None),
            Collective::Gather => (None, Some(block(inside))),
            Collective::Scatter if set.has_root => (None, Some(block(outside))),
            Collective::Scatter => (Some(block(inside)), None),
            // Each rank sends to the next: a set of neighbours sends at least one buffer and gets one.
            Collective::SendRecv => (Some(bytes), Some(bytes)),
        };
        let into = into.map(|bytes| set.into.bound(bytes, set_by));
        let out = out.map(|bytes| set.out.bound(bytes, set_by));
        into.into_iter().chain(out)
    })
}

/// What all sets together need for the bytes that must cross between them, into and out of them.
fn all_sets(sets: &[Port], call: &Call, set_by: BoundSource) -> Vec<Bound> {
    if call.collective != Collective::AllReduce {
        return Vec::new();
    }
    let moved = 2 * u128::from(call.bytes.0) * (sets.len() as u128).saturating_sub(1);
    let together = |way: fn(&Port) -> Way| {
        let mut all = Way { nearest: sets.iter().filter_map(|set| way(set).nearest).min(), ..Way::default() };
        for set in sets {
            all.through.add(way(set).through.0);
        }
        all.bound(moved, set_by)
    };
    vec![together(|set| set.into), together(|set| set.out)]
}

/// Collects the links on routes between ranks.
struct Survey<'a> {
    fabric: &'a Fabric,
    placement: &'a [NodeId],
    used: Vec<bool>,
    devices: Vec<Port>,
    hosts: Vec<Port>,
}

impl<'a> Survey<'a> {
    fn new(fabric: &'a Fabric, placement: &'a [NodeId]) -> Self {
        Self {
            fabric,
            placement,
            used: vec![false; fabric.link_count()],
            devices: vec![Port::default(); fabric.node_count()],
            hosts: vec![Port::default(); fabric.hosts().len()],
        }
    }

    fn add_routes(&mut self, router: &Router<'_>, rank: usize, device: NodeId) {
        let ranks = self.placement.len();
        let others: Vec<usize> =
            if ranks <= ALL_PAIRS_LIMIT { (0..ranks).collect() } else { self.sample(rank).collect() };
        let mut hops = Vec::new();
        for other in others {
            if other == rank || self.placement[other] == device {
                continue;
            }
            hops.clear();
            if let Ok(summary) = router.route_into(device, self.placement[other], 0, &mut hops) {
                self.add_route(device, self.placement[other], summary.latency);
                for hop in &hops {
                    self.used[hop.link.0 as usize] = true;
                }
            }
        }
    }

    /// Ranks whose routes show the ports of `rank` in a large fabric.
    fn sample(&self, rank: usize) -> impl Iterator<Item = usize> + use<'_> {
        let ranks = self.placement.len();
        let host = move |r: usize| self.fabric.node(self.placement[r]).host;
        let (mut first, mut end) = (rank, rank + 1);
        while first > 0 && rank - first < ALL_PAIRS_LIMIT && host(first - 1) == host(rank) {
            first -= 1;
        }
        while end < ranks && end - rank < ALL_PAIRS_LIMIT && host(end) == host(rank) {
            end += 1;
        }
        let size = end - first;
        let inside = (0..u32::BITS).map(|k| 1usize << k).take_while(move |&d| d < size);
        let inside = inside.map(move |distance| first + (rank - first + distance) % size);
        let across = [rank - first, rank - first + 1].map(move |place| (end + place % size) % ranks);
        inside.chain(across)
    }

    fn add_route(&mut self, from: NodeId, to: NodeId, latency: Picos) {
        self.devices[from.0 as usize].out.add_route(latency);
        self.devices[to.0 as usize].into.add_route(latency);
        let (from, to) = (self.fabric.node(from).host, self.fabric.node(to).host);
        if from != to {
            self.hosts[from.0 as usize].out.add_route(latency);
            self.hosts[to.0 as usize].into.add_route(latency);
        }
    }

    /// One pass over the links adds each to the ports of the devices and hosts that it leaves and enters.
    fn into_bounds(self, root: u32) -> Bounds {
        let Self { fabric, placement, used, mut devices, mut hosts } = self;
        for (rank, &device) in placement.iter().enumerate() {
            let host = fabric.node(device).host;
            for port in [&mut devices[device.0 as usize], &mut hosts[host.0 as usize]] {
                port.ranks += 1;
                port.has_root |= rank as u32 == root;
            }
        }
        for (id, link) in fabric.links().filter(|(id, _)| used[id.0 as usize]) {
            let (from, to) = fabric.ends(id);
            let bandwidth = link.bandwidth.map(|b| b.0);
            devices[from.0 as usize].out.through.add(bandwidth);
            devices[to.0 as usize].into.through.add(bandwidth);
            let (from, to) = (fabric.node(from).host, fabric.node(to).host);
            if from != to {
                hosts[from.0 as usize].out.through.add(bandwidth);
                hosts[to.0 as usize].into.through.add(bandwidth);
            }
        }
        if placement.len() > ALL_PAIRS_LIMIT {
            // Not every route was looked at; the shortest of all is short enough for each.
            level(&mut devices);
            level(&mut hosts);
        }
        let occupied = |ports: Vec<Port>| ports.into_iter().filter(|port| port.ranks > 0).collect();
        Bounds { ranks: occupied(devices), hosts: occupied(hosts) }
    }
}

/// Gives every set the shortest latency of any.
fn level(sets: &mut [Port]) {
    let shortest = |way: fn(&Port) -> Way| sets.iter().filter_map(|set| way(set).nearest).min();
    let (into, out) = (shortest(|set| set.into), shortest(|set| set.out));
    for set in sets {
        (set.into.nearest, set.out.nearest) = (into, out);
    }
}
