//! Tests of conservation: the bytes on every capacity equal a count along the routes, rates stay below capacities, busy
//! time matches bytes, and times respect lower bounds.

mod capacities;

use std::collections::HashMap;

use fabricast_collectives::algorithm::{Algorithm, Shape};
use fabricast_collectives::bound::{Bounds, RateEfficiency};
use fabricast_sim::lower::Resource;
use fabricast_sim::profile::{ChannelLimit, NetworkCosts, Profile, largest_message};
use fabricast_sim::schedule::{
    BlockSplit, Buffer, BufferUse, Call, ChunkMessages, Collective, Dependency, OpKind, Operation, Protocol, Rank,
    RunId, Schedule,
};
use fabricast_sim::sharing::WHOLE;
use fabricast_sim::{Folding, Timeline};
use fabricast_topologies::fabric::Figures;
use fabricast_topologies::route::{GpuDirect, Hop, Participants, PeerAccess, Pxn, Router};
use fabricast_topologies::{
    Bandwidth, Bytes, FabricBuilder, FabricRequest, LinkKind, LinkSpec, NodeId, NodeKind, Picos, load,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::generators::Case;
use crate::testbed::{Testbed, buffer_locations, call_templates, scenes, sending_warps, single_channel_case, switch};
use capacities::{BYTES_OF_A_PICOSECOND, capacity};

/// Computes the load that operations put on capacities, from the routes and the profile's definitions.
struct Ledger<'a> {
    testbed: &'a Testbed,
    schedule: &'a Schedule,
    router: Router<'a>,
    placement: Vec<NodeId>,
    participants: Participants,
}

/// Additional work of a block in the passes of an operation.
#[derive(Clone, Copy)]
enum AdditionalWork {
    Nothing,
    AddsAnother,
    SendsTheSame,
    DoneByAnother,
}

impl<'a> Ledger<'a> {
    fn new(testbed: &'a Testbed, schedule: &'a Schedule) -> Self {
        let placement = testbed.placement();
        Self { testbed, schedule, router: testbed.router(), participants: Participants::new(&placement), placement }
    }

    /// Returns the bytes of an operation's chunks.
    fn payload(&self, op: &Operation) -> f64 {
        let layout = &self.schedule.header().layout;
        // A scratch slot is as large as the chunk that is stored in it.
        let first = if op.dst.buffer == Buffer::Scratch { op.src.index } else { op.dst.index };
        let sizes = (first..first + op.span).map(|chunk| layout.size(chunk));
        sizes.map(|size| size.numerator as f64 / f64::from(size.denominator)).sum()
    }

    /// Returns the load of an operation on its channel: its payload, or, for a block that works in passes, the time of
    /// the passes after the first. The load is zero if the retained data is copied in the same pass.
    fn channel_load(&self, op: &Operation, payload: f64) -> f64 {
        let header = self.schedule.header();
        let costs = self.testbed.profile.protocol(header.protocol);
        let ChannelLimit::Passes(passes) = costs.channel_limit else { return payload };
        // Retained data is copied in the same pass, or by other blocks if every pair of ranks exchanges its own data.
        let pairs = matches!(
            self.schedule.header().call.collective,
            Collective::AllToAll
                | Collective::AllToAllV
                | Collective::SendRecv
                | Collective::Gather
                | Collective::Scatter
        );
        if op.kind == OpKind::Copy {
            return 0.0;
        }
        let block = header.blocks.threads.unwrap_or(costs.threads);
        let warps = block.div_ceil(32).max(2);
        let reducing = ((f64::from(warps) * costs.split) as u16).clamp(1, warps - 1);
        if pairs && header.blocks.split == BlockSplit::OneChannel {
            return self.exchange_load(op, payload, block);
        }
        let threads = match (header.blocks.split, op.channel.0 % 2) {
            (BlockSplit::OneChannel, _) => block,
            (BlockSplit::ReduceAndCopy, 0) => 32 * reducing,
            (BlockSplit::ReduceAndCopy, _) => 32 * (warps - reducing),
        };
        // An operation forwards arriving data if its run waits for another rank, or in a split block for a run on the
        // same channel.
        let run = self.schedule.run(op.run);
        let arrives = self.schedule.dependencies(op.run).iter().any(|dependency| {
            let channel = self.schedule.run(self.schedule.run_id(dependency.rank, dependency.run)).channel;
            dependency.rank != op.rank && (header.blocks.split == BlockSplit::OneChannel || channel == op.channel)
        });
        let forwards = arrives && run.src_buffer != Buffer::Input;
        let pass = if forwards { passes.forward } else { passes.send };
        // Sent data is also retained: results in transit, and a rank's own part of the result.
        let call = &header.call;
        let stores_own_part = matches!(call.collective, Collective::AllGather | Collective::Broadcast)
            && call.buffers == BufferUse::OutOfPlace;
        let stores = !op.kind.reduces() && op.kind != OpKind::MulticastReduce && (forwards || stores_own_part);
        let pass = if stores { pass + passes.store } else { pass };
        let synchronization = f64::from(threads.div_ceil(32)) * passes.per_warp.0 as f64;
        let pass = match self.additional_work(op) {
            AdditionalWork::Nothing => pass.0 as f64 + synchronization,
            AdditionalWork::AddsAnother => {
                (pass.0 + passes.receive.0.saturating_sub(passes.store.0)) as f64 + synchronization
            }
            AdditionalWork::SendsTheSame => passes.store.0 as f64,
            AdditionalWork::DoneByAnother => 0.0,
        };
        let quantum = passes.bytes_per_thread.0 as f64 * f64::from(threads);
        let passes = (payload - 1e-9).ceil() / quantum;
        // Protocols with flags in their lines use whole passes.
        let passes = if costs.stream.is_some() { passes.ceil() } else { passes };
        (passes - 1.0).max(0.0) * pass * BYTES_OF_A_PICOSECOND
    }

    /// Returns the additional work of a tree block that receives from several children and sends to several: it adds
    /// both inputs while it sends the sum, and stores loaded data once per child.
    fn additional_work(&self, op: &Operation) -> AdditionalWork {
        if self.schedule.header().blocks.split == BlockSplit::OneChannel {
            return AdditionalWork::Nothing;
        }
        let on_block = self.schedule.rank_runs(op.rank).filter(|&run| self.schedule.run(run).channel == op.channel);
        let others: Vec<_> = on_block.filter(|&run| run != op.run && self.schedule.run(run).len > op.index).collect();
        let waits_for = |run, dependency| {
            let runs = self.schedule.dependencies(run).iter().map(|wait| self.schedule.run_id(wait.rank, wait.run));
            runs.into_iter().any(|run| run == dependency)
        };
        let kind = |run| self.schedule.run(run).kind;
        let sends_same_source = |&run: &RunId| {
            let other = self.schedule.run(run);
            run.0 < op.run.0 && kind(run) == OpKind::Put && other.src.at(op.index) == op.src.index
        };
        match op.kind {
            OpKind::Reduce if others.iter().any(|&run| kind(run).is_transfer() && waits_for(run, op.run)) => {
                AdditionalWork::DoneByAnother
            }
            _ if others.iter().any(|&run| kind(run) == OpKind::Reduce && waits_for(op.run, run)) => {
                AdditionalWork::AddsAnother
            }
            OpKind::Put if others.iter().any(sends_same_source) => AdditionalWork::SendsTheSame,
            _ => AdditionalWork::Nothing,
        }
    }

    /// Returns the load of one of the messages to a peer on a block of which one half sends and the other half
    /// receives: a pass of each half, or the stated pass of both. A message without flags in its lines is first sent
    /// alone, in half that time. Data for other hosts is copied in the sender's memory, at the pace of a receiving pass,
    /// and the first message to a NIC is complete before it is sent.
    fn exchange_load(&self, op: &Operation, payload: f64, block: u16) -> f64 {
        let costs = self.testbed.profile.protocol(self.schedule.header().protocol);
        let ChannelLimit::Passes(passes) = costs.channel_limit else { return payload };
        let half = (block / 2).max(1);
        let warps = u64::from(half.div_ceil(32)) * passes.per_warp.0;
        // Pass times are whole picoseconds.
        let quantum = passes.bytes_per_thread.0 as f64 * f64::from(half);
        let pass_time = |pass: u64| ((payload - 1e-9).ceil() * pass as f64 / quantum + 1e-9).floor();
        let island = |rank: Rank| self.router.island_of(self.placement[rank.0 as usize]);
        let leaves = island(op.rank) != island(op.peer);
        let send = if leaves { passes.send.min(passes.receive) } else { passes.send };
        let both = match passes.exchange {
            Some(pass) if send == passes.send => pass_time(pass.0),
            Some(pass) => {
                let synchronization = u64::from(block.div_ceil(32)) * passes.per_warp.0;
                pass_time(pass.0 * (send.0 + synchronization) / (passes.send.0 + synchronization))
            }
            None => pass_time(send.0 + warps) + pass_time(passes.receive.0 + warps),
        };
        // Several peers that share a block have fewer warps that copy.
        let copying = |peers| sending_warps(block, peers, costs.stream.is_some()) as f64;
        let both = (both * copying(1) / copying(self.block_peers(op)) + 1e-9).floor();
        let messages = if self.is_serialized(op) { f64::from(self.schedule.run(op.run).len) } else { 1.0 };
        let first = if costs.stream.is_some() { 0.0 } else { ((both / 2.0).floor() / messages).floor() };
        let has_costs = self.testbed.profile.network != NetworkCosts::FREE || self.testbed.profile.messages.is_some();
        let complete = if leaves && has_costs { first } else { 0.0 };
        (both - first - complete) * BYTES_OF_A_PICOSECOND
    }

    /// Returns the number of peers among which the block of an operation divides its warps: all on its channel in a call
    /// over several hosts, and on one host as many of a group of eight as the channels do not suffice for.
    fn block_peers(&self, op: &Operation) -> usize {
        let (header, peers) = (self.schedule.header(), self.concurrent_peers(op));
        let ranks = &self.placement[..header.call.ranks as usize];
        let is_on_one_host = ranks.iter().all(|&gpu| self.router.island_of(gpu) == self.router.island_of(ranks[0]));
        if is_on_one_host { peers.min(8).div_ceil(usize::from(header.channels)) } else { peers }
    }

    /// Returns the number of peers to which the block of an operation sends concurrently, without waiting for other
    /// ranks or runs.
    fn concurrent_peers(&self, op: &Operation) -> usize {
        let waits_for_nobody = |run: RunId| {
            let waits = self.schedule.dependencies(run);
            waits
                .iter()
                .all(|wait| self.schedule.run_id(wait.rank, wait.run) == run && (wait.start, wait.step) == (-1, 1))
        };
        if !waits_for_nobody(op.run) {
            return 1;
        }
        let on_block = self.schedule.rank_runs(op.rank).filter(|&run| self.schedule.run(run).channel == op.channel);
        let mut peers = std::collections::HashSet::new();
        for id in on_block.filter(|&run| waits_for_nobody(run)) {
            let run = self.schedule.run(id);
            let one_at_a_time = run.peer.is_fixed() || !self.schedule.dependencies(id).is_empty();
            let count = if one_at_a_time { run.len.min(1) } else { run.len };
            peers.extend((0..count).filter(|_| run.kind.is_transfer()).map(|index| run.peer.at(index)));
        }
        peers.len().max(1)
    }

    /// Returns true if an operation is one of several serialized messages on a connection.
    fn is_serialized(&self, op: &Operation) -> bool {
        let run = self.schedule.run(op.run);
        let is_previous = |dependency: &Dependency| (dependency.start, dependency.step) == (-1, 1);
        let is_previous_of_run = |dependency: &Dependency| {
            self.schedule.run_id(dependency.rank, dependency.run) == op.run && is_previous(dependency)
        };
        run.peer.is_fixed() && run.len > 1 && self.schedule.dependencies(op.run).iter().any(is_previous_of_run)
    }

    /// Returns the time to read the flags of LL in a payload, in the unit of [`BYTES_OF_A_PICOSECOND`].
    fn flag_read_load(&self, payload: f64) -> f64 {
        let protocol = self.schedule.header().protocol;
        let efficiency = self.testbed.profile.protocol(protocol).wire_efficiency;
        match self.testbed.profile.network.scan {
            Some(rate) if protocol == Protocol::Ll => {
                payload / efficiency / rate.0 as f64 * 1e12 * BYTES_OF_A_PICOSECOND
            }
            _ => 0.0,
        }
    }

    /// Returns the time that the proxy thread spends on an operation, in the unit of [`BYTES_OF_A_PICOSECOND`]: a cost
    /// per message (a slice, or a slot of the connection's buffer), plus the time to read the flags of LL.
    fn proxy_load(&self, op: &Operation, payload: f64) -> f64 {
        let protocol = self.schedule.header().protocol;
        let costs = self.testbed.profile.protocol(protocol);
        // The sum of up to 64 blocks has a relative error of at most 64 roundings, 64 × 2⁻⁵³ < 10⁻¹³.
        let bytes = (payload * (1.0 - 1e-13)).ceil();
        // Serialized messages of one connection are not sliced, and neither are chunks that are one message.
        let is_whole = self.schedule.header().blocks.chunk_messages == ChunkMessages::One;
        let slices = if self.is_serialized(op) || is_whole { 1 } else { costs.slices };
        let slice = (bytes / f64::from(slices)).ceil().min(largest_message(protocol).0 as f64).max(1.0);
        let network = &self.testbed.profile.network;
        let scanned = self.flag_read_load(payload);
        (bytes / slice).ceil() * network.message.0 as f64 * BYTES_OF_A_PICOSECOND + scanned
    }

    /// Returns the load that one operation puts on each capacity. Links carry their part of the bytes, including
    /// framing. Memories have a read and a write, or two reads and a write where a reduction arrives; host memory in
    /// which data is staged has a write and a read. For channels see [`Self::channel_load`].
    fn operation_loads(&self, op: &Operation) -> Vec<(Resource, f64)> {
        if !op.kind.moves_data() {
            return vec![];
        }
        let payload = self.payload(op);
        let device = |rank: Rank| self.placement[rank.0 as usize];
        let lane_load = self.channel_load(op, payload);
        let mut loads = vec![(Resource::Channel(op.rank, op.channel), lane_load)];
        loads.push((Resource::Processors(device(op.rank)), lane_load));
        if !op.kind.is_transfer() {
            let times = if op.kind == OpKind::Reduce { 3.0 } else { 2.0 };
            loads.push((Resource::Memory(device(op.rank)), times * payload));
            return loads;
        }
        let (from, to) = if op.kind.reads_peer() { (op.peer, op.rank) } else { (op.rank, op.peer) };
        // A route that replaces another after a failure puts on each capacity the larger load of the two.
        let own = self.route_loads(op, &self.router, (device(from), device(to)), payload);
        let built = self.router.as_built();
        let built = built.map(|router| self.route_loads(op, router, (device(from), device(to)), payload));
        let mut larger = own;
        for (resource, load) in built.unwrap_or_default() {
            let slot = larger.entry(resource).or_default();
            *slot = slot.max(load);
        }
        loads.extend(larger);
        if device(from) == device(to) {
            let times = if op.kind.reduces() { 3.0 } else { 2.0 };
            loads.push((Resource::Memory(device(to)), times * payload));
            return loads;
        }
        let accesses = if op.kind.reduces() { 3.0 } else { 1.0 };
        loads.push((Resource::Memory(device(from)), payload));
        loads.push((Resource::Memory(device(to)), accesses * payload));
        loads
    }

    /// Returns the load that an operation puts on the links, switches, memories and engines of its route, by one router.
    fn route_loads(
        &self,
        op: &Operation,
        router: &Router<'_>,
        (from, to): (NodeId, NodeId),
        payload: f64,
    ) -> HashMap<Resource, f64> {
        let on_wire = payload / self.testbed.profile.protocol(self.schedule.header().protocol).wire_efficiency;
        let mut loads: Vec<(Resource, f64)> = Vec::new();
        // If routes are chosen by hash, every channel is a separate flow.
        let mut hops = Vec::new();
        let path = router.route_for_participants(&self.participants, from, to, op.channel.0.into(), &mut hops).unwrap();
        let fabric = &self.testbed.fabric;
        let by_nvlink = |hop: &Hop| fabric.link(hop.link).kind == LinkKind::Nvlink;
        let is_network = |kind| matches!(kind, LinkKind::Infiniband | LinkKind::Ethernet);
        let uses_network = hops.iter().any(|hop| is_network(fabric.link(hop.link).kind));
        let by_sms = self.schedule.header().protocol != Protocol::CopyEngine && !uses_network;
        for hop in &hops {
            let bytes = on_wire * hop.share.fraction();
            // Loads and stores of GPUs over PCIe use smaller packets, which need more of the link.
            let is_packed = by_sms && fabric.link(hop.link).kind == LinkKind::Pcie;
            let part = if is_packed { self.testbed.profile.links.pcie_peers } else { 1.0 };
            loads.push((Resource::Link(hop.link), bytes / part));
            let node = fabric.ends(hop.link).1;
            loads.push((Resource::Crossbar(node), bytes));
            // A GPU that relays over NVLink writes the bytes to its memory and reads them again.
            let relays = hops.iter().any(|next| by_nvlink(next) && fabric.ends(next.link).0 == node);
            if node != to && fabric.node(node).kind == NodeKind::Gpu && (by_nvlink(hop) || relays) {
                loads.push((Resource::Memory(node), 2.0 * bytes));
            }
        }
        if uses_network {
            loads.push((Resource::Proxy(from), self.proxy_load(op, payload)));
        }
        for cpu in path.staging.cpus() {
            loads.push((Resource::Memory(cpu), 2.0 * on_wire));
        }
        if self.schedule.header().protocol == Protocol::CopyEngine && from != to {
            let executor = self.placement[op.rank.0 as usize];
            let is_staged = path.staging.cpus().next().is_some();
            let engines = [from, to].into_iter().filter(|&end| is_staged || end == executor);
            loads.extend(engines.map(|end| (Resource::CopyEngines(end), payload)));
        }
        let mut totals: HashMap<Resource, f64> = HashMap::new();
        for (resource, load) in loads {
            *totals.entry(resource).or_default() += load;
        }
        totals
    }

    /// Returns the total load of every used capacity.
    fn totals(&self) -> HashMap<Resource, TotalLoad> {
        let mut totals: HashMap<Resource, TotalLoad> = HashMap::new();
        for (resource, bytes) in self.schedule.operations().flat_map(|op| self.operation_loads(&op)) {
            let total = totals.entry(resource).or_default();
            total.bytes += bytes;
            // The time of a block for an operation is a whole number of picoseconds, rounded down.
            if matches!(resource, Resource::Channel(..) | Resource::Processors(_)) {
                total.rounded_down += BYTES_OF_A_PICOSECOND;
            }
        }
        totals
    }
}

/// Load of a capacity in bytes.
#[derive(Clone, Copy, Default)]
struct TotalLoad {
    bytes: f64,
    /// Bytes by which the simulated load may be smaller, because times are rounded.
    rounded_down: f64,
}

fn is_close(a: f64, b: f64) -> bool {
    // The tolerance covers efficiencies, which are counted in millionths and in parts of WHOLE.
    (a - b).abs() <= 1e-3 + 2e-5 * b.abs()
}

/// Simulates the schedule; returns `None` if the broken fabric does not connect its ranks.
fn run(testbed: &Testbed, case: &Case) -> Option<(Schedule, Timeline)> {
    let schedule = case.schedule();
    testbed.run(&schedule, Folding::WhereProved).ok().map(|timeline| (schedule, timeline))
}

/// Asserts that every capacity carries the load that the schedule puts on its routes, and no more than its limit.
fn check_loads(testbed: &Testbed, case: &Case) -> Result<(), TestCaseError> {
    let Some((schedule, timeline)) = run(testbed, case) else { return Ok(()) };
    let ledger = Ledger::new(testbed, &schedule);
    let mut expected = ledger.totals();
    let wire_efficiency = testbed.profile.protocol(schedule.header().protocol).wire_efficiency;
    let total_bytes = schedule.operations().map(|op| ledger.payload(&op)).sum::<f64>() / wire_efficiency;
    for used in &timeline.utilization {
        let TotalLoad { bytes, rounded_down } = expected.remove(&used.resource).unwrap_or_default();
        // The load of each operation on a block is rounded to a whole number of parts of its bytes.
        let rounded = match used.resource {
            Resource::Channel(..) | Resource::Processors(_) => total_bytes / WHOLE as f64,
            // The flags of a payload are read in whole bytes.
            Resource::Proxy(_) => {
                total_bytes / WHOLE as f64 + schedule.operation_count() as f64 * ledger.flag_read_load(1.0)
            }
            _ => 0.0,
        };
        let bytes = bytes + (used.bytes - bytes).clamp(-rounded_down, rounded);
        prop_assert!(is_close(used.bytes, bytes), "{:?}: {} and {bytes} bytes", used.resource, used.bytes);
        prop_assert!((0.0..=1.0 + 1e-9).contains(&used.fraction), "{used:?}");
    }
    // Omitted capacities are no limit: they are unlimited, or they are memories that their own links cannot saturate.
    for (resource, TotalLoad { bytes, rounded_down }) in expected {
        let is_memory = matches!(resource, Resource::Memory(_));
        let limit = capacity(testbed, &schedule, resource);
        prop_assert!(is_memory || bytes <= rounded_down || limit.is_none(), "{resource:?}: {bytes} bytes of {limit:?}");
    }
    Ok(())
}

/// Returns an all_reduce over hosts with `gpus` GPUs each.
fn all_reduce_over_hosts(
    algorithm: Algorithm,
    (hosts, gpus): (u32, u32),
    protocol: Protocol,
    channels: u16,
    (bytes, chunk): (u64, u64),
) -> (Testbed, Case) {
    let network = (hosts > 1).then(|| "rail,nics_per_node=8,nic=400Gb/s".parse().unwrap());
    let request = FabricRequest { nodes: Some(hosts), gpus: Some(gpus), network, ..FabricRequest::new("hgx-h200") };
    let fabric = load(&request).unwrap();
    let profile = Profile::for_fabric(&fabric).unwrap();
    let testbed = Testbed { profile, ..Testbed::ideal(fabric) };
    let case = single_channel_case(algorithm, Collective::AllReduce, hosts * gpus, bytes);
    let shape = Shape { protocol, channels, ranks_per_node: gpus, chunk: Some(Bytes(chunk)), ..case.shape };
    (testbed, Case { shape, ..case })
}

/// The tree of this call includes ranks with several children.
#[test]
fn tree_blocks_over_hosts_carry_the_load_of_their_primitives() {
    for hosts in [(2, 1), (2, 2), (5, 1), (6, 2), (8, 3)] {
        for protocol in [Protocol::Ll, Protocol::Ll128, Protocol::Simple] {
            let (testbed, case) = all_reduce_over_hosts(Algorithm::Tree, hosts, protocol, 2, (3_000_000, 400_000));
            check_loads(&testbed, &case).unwrap();
        }
    }
}

/// Peers on the own host divide the warps of a block in calls over several hosts as those on other hosts do, and on one
/// host if there are fewer channels than peers.
#[test]
fn blocks_of_exchanges_carry_the_load_of_their_warps() {
    for (hosts, channels) in [((2, 8), 2), ((3, 2), 3), ((2, 3), 1), ((1, 8), 8), ((1, 8), 3), ((1, 4), 1)] {
        let (testbed, case) = all_reduce_over_hosts(Algorithm::Direct, hosts, Protocol::Simple, channels, (0, 100_000));
        let call = Call { collective: Collective::AllToAll, bytes: Bytes(20_000_000), ..case.shape.call };
        let nics_per_node = if hosts.0 > 1 { 8 } else { 0 };
        let shape = Shape { call, nics_per_node, ..case.shape };
        check_loads(&testbed, &Case { shape, ..case }).unwrap();
    }
}

/// Chunks are serialized over hosts: the additions of a tree block do not precede the sends of earlier chunks, and a
/// ring block sends one chunk after the other. Therefore large calls take no more time per byte than smaller ones.
#[test]
fn time_per_byte_over_hosts_does_not_grow_with_size() {
    let tree = (Algorithm::Tree, (8, 8), Protocol::Ll128, 512 << 10, 256 << 20);
    let ring = (Algorithm::Ring, (4, 8), Protocol::Simple, 2 << 20, 1 << 30);
    for (algorithm, hosts, protocol, chunk, min_bytes) in [tree, ring] {
        let time = |bytes: u64| {
            let (testbed, case) = all_reduce_over_hosts(algorithm, hosts, protocol, 16, (bytes, chunk));
            testbed.run(&case.schedule(), Folding::WhereProved).unwrap().time.0 as f64
        };
        let (small, large) = (time(min_bytes), time(4 * min_bytes));
        assert!(large < 4.0 * small, "{algorithm:?}: {large} after {small}");
    }
}

/// A block with one peer sends a chunk completely before the next; a block with several peers sends to all of them.
#[test]
fn ring_blocks_send_one_chunk_at_a_time() {
    for (hosts, protocol) in [((3, 4), Protocol::Simple), ((2, 3), Protocol::Ll128), ((2, 8), Protocol::Ll)] {
        let overlaps = |algorithm| {
            let (testbed, case) = all_reduce_over_hosts(algorithm, hosts, protocol, 2, (40_000_000, 300_000));
            let schedule = case.schedule();
            let timeline = testbed.run(&schedule, Folding::Off).unwrap();
            let mut sent: HashMap<_, Vec<(Picos, Picos)>> = HashMap::new();
            for (op, span) in schedule.operations().zip(timeline.spans.iter()).filter(|(op, _)| op.kind.writes_peer()) {
                sent.entry((op.rank, op.channel)).or_default().push((span.flowing, span.done));
            }
            sent.values_mut().for_each(|flows| flows.sort_unstable());
            sent.values().flat_map(|flows| flows.windows(2)).filter(|pair| pair[1].0 < pair[0].1).count()
        };
        assert_eq!(overlaps(Algorithm::Ring), 0, "{hosts:?} {protocol}");
        assert!(overlaps(Algorithm::Tree) > 0, "{hosts:?} {protocol}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    /// Every capacity carries the load that the schedule puts on its routes, and no more than its limit.
    #[test]
    fn capacities_carry_the_load_of_the_schedule(scene in scenes(16), template in call_templates()) {
        let testbed = scene.testbed();
        check_loads(&testbed, &template.case_for_ranks(testbed.ranks(), testbed.per_host()))?;
    }

    /// Over any interval, the bytes of transfers that begin and end within it do not exceed the capacity's rate times
    /// the interval.
    #[test]
    fn no_interval_exceeds_a_capacity(scene in scenes(8), template in call_templates()) {
        let testbed = scene.testbed();
        let case = template.case_for_ranks(testbed.ranks(), testbed.per_host());
        let Some((schedule, timeline)) = run(&testbed, &case) else { return Ok(()) };
        prop_assume!(schedule.operation_count() < 1500);
        let ledger = Ledger::new(&testbed, &schedule);
        let mut flows: HashMap<Resource, Vec<(Picos, Picos, f64)>> = HashMap::new();
        for (op, span) in schedule.operations().zip(timeline.spans.iter()) {
            prop_assert!(span.ready <= span.flowing && span.flowing <= span.done && span.done <= timeline.time);
            for (resource, bytes) in ledger.operation_loads(&op) {
                flows.entry(resource).or_default().push((span.flowing, span.done, bytes));
            }
        }
        for used in &timeline.utilization {
            let rate = capacity(&testbed, &schedule, used.resource).unwrap();
            let mut flows = flows.remove(&used.resource).unwrap_or_default();
            flows.sort_unstable_by_key(|flow| flow.1);
            for &(begin, _, _) in &flows {
                let mut inside = 0.0;
                for &(_, end, bytes) in flows.iter().filter(|flow| flow.0 >= begin) {
                    inside += bytes;
                    // The tolerance covers a picosecond of rounding, and the efficiencies, which are in millionths.
                    let max_bytes = rate * ((end - begin).0 + 1) as f64;
                    prop_assert!(inside <= max_bytes * (1.0 + 1e-5) + 1e-3, "{:?} from {begin:?} to {end:?}", used.resource);
                }
            }
        }
    }

    /// On equal links where every transfer has a link of its own, busy time × rate equals bytes, to a picosecond per
    /// transfer.
    #[test]
    fn busy_time_is_bytes_over_rate(gpus in 2u32..10, gb_per_s in 1u64..2000, bytes in 1u64..1 << 24, index in 0usize..3) {
        let testbed = Testbed::ideal(switch(gpus, Bandwidth(gb_per_s * 1_000_000_000), Picos(350_000)));
        let (algorithm, collective) = [
            (Algorithm::Ring, Collective::AllReduce),
            (Algorithm::Ring, Collective::Broadcast),
            (Algorithm::TwoShot, Collective::AllReduce),
        ][index];
        let case = single_channel_case(algorithm, collective, gpus, bytes);
        let Some((schedule, timeline)) = run(&testbed, &case) else { return Ok(()) };
        let ledger = Ledger::new(&testbed, &schedule);
        let mut busy: HashMap<Resource, Vec<(Picos, Picos)>> = HashMap::new();
        for (op, span) in schedule.operations().zip(timeline.spans.iter()) {
            for (resource, _) in ledger.operation_loads(&op) {
                busy.entry(resource).or_default().push((span.flowing, span.done));
            }
        }
        for used in &timeline.utilization {
            let spans = busy.remove(&used.resource).expect("only capacities in use are listed");
            let transfers = spans.len() as f64;
            let busy = union(spans);
            let rate = capacity(&testbed, &schedule, used.resource).unwrap();
            let excess = busy.0 as f64 - used.bytes / rate;
            prop_assert!(-1e-3 <= excess && excess <= transfers + 1e-6 * transfers, "{used:?}: busy {busy:?}, {excess} more");
            let fraction = busy.0 as f64 / timeline.time.0 as f64;
            let rounding = transfers / timeline.time.0 as f64;
            prop_assert!((used.fraction - fraction).abs() <= rounding, "{used:?} against {fraction}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// No schedule is faster than the lower bound, with or without software costs, for any routing options and
    /// placement (including several ranks per device), nor than the bound at achievable instead of nominal rates.
    #[test]
    fn no_time_is_below_the_lower_bound(
        scene in scenes(24),
        template in call_templates(),
        device_indices in prop_oneof![2 => Just(vec![]), 1 => vec(any::<Index>(), 1..12)],
        (p2p, gdr, pxn) in prop_oneof![2 => Just((true, true, true)), 1 => any::<(bool, bool, bool)>()],
        buffers in buffer_locations(),
    ) {
        let mut testbed = scene.testbed().with_buffers(buffers);
        testbed.routes.p2p = if p2p { PeerAccess::Allowed } else { PeerAccess::Off };
        testbed.routes.gdr = if gdr { GpuDirect::Allowed } else { GpuDirect::Off };
        testbed.routes.pxn = if pxn { Pxn::Allowed } else { Pxn::Off };
        let (placement, per_host) = match &device_indices[..] {
            [] => (testbed.placement(), testbed.per_host()),
            device_indices => (device_indices.iter().map(|index| *index.get(testbed.fabric.gpus())).collect(), 1),
        };
        testbed.delays.resize(placement.len(), Picos::ZERO);
        let case = template.case_for_ranks(placement.len() as u32, per_host);
        let call = case.shape.call;
        let router = testbed.router();
        let in_network = case.algorithm.in_network();
        let bounds = Bounds::new(&testbed.fabric, &router, &placement, call.root.0)
            .with_in_network(in_network)
            .with_matrix(case.shape.matrix.as_ref());
        let bound = bounds.bound(&call);
        let costs = testbed.profile.protocol(case.shape.protocol);
        let links = testbed.profile.links;
        let best = [links.nvlink, links.c2c, links.pcie, links.upi, links.network].into_iter().fold(0.0, f64::max);
        let achievable = bounds.time_at_efficiency(&call, in_network, RateEfficiency { wire: costs.wire_efficiency, links: best });
        prop_assert!(achievable.0 as f64 >= bound.time.0 as f64 * (1.0 - 1e-12), "{achievable:?} below {bound:?}");
        if let Ok(timeline) = testbed.run_with_placement(&placement, &*case.generator(), Folding::WhereProved) {
            prop_assert!(timeline.time >= bound.time, "{:?} below {bound:?}", timeline.time);
            prop_assert!(timeline.time >= achievable, "{:?} below {achievable:?}", timeline.time);
        }
    }
}

#[test]
fn silent_pairs_need_no_route() {
    // The GPUs form a line, whose ends need not be connected for a chain.
    let mut builder = FabricBuilder::new("line");
    let host = builder.host("a");
    let gpus = [0, 1, 2, 3].map(|i| builder.node(&format!("gpu{i}"), NodeKind::Gpu, host, Figures::None).unwrap());
    for pair in gpus.windows(2) {
        builder.link(pair[0], pair[1], &LinkSpec::symmetric(LinkKind::Nvlink, Bandwidth(1_000_000_000), Picos(0)));
    }
    let testbed = Testbed::ideal(builder.finish());
    assert!(testbed.router().path(gpus[3], gpus[0]).is_err());
    let case = single_channel_case(Algorithm::Ring, Collective::Broadcast, 4, 1000);
    assert_eq!(testbed.run(&*case.generator(), Folding::Off).unwrap().time, Picos(3_000_000));
}

/// Returns the total time covered by at least one interval.
fn union(mut spans: Vec<(Picos, Picos)>) -> Picos {
    spans.sort_unstable();
    let (mut covered, mut until) = (Picos::ZERO, Picos::ZERO);
    for (begin, end) in spans {
        covered += end - begin.max(until);
        until = until.max(end);
    }
    covered
}
