//! Loads that operations put on capacities, counted along the routes by the definitions of the profile.

use std::collections::HashMap;

use super::capacities::BYTES_OF_A_PICOSECOND;
use crate::testbed::{Testbed, sending_warps};
use fabricast_sim::lower::Resource;
use fabricast_sim::profile::{ChannelLimit, NetworkCosts, largest_message};
use fabricast_sim::schedule::{
    BlockSplit, Buffer, BufferUse, ChunkMessages, Collective, Dependency, OpKind, Operation, Protocol, Rank, RunId,
    Schedule,
};
use fabricast_topologies::route::{Hop, Participants, Router};
use fabricast_topologies::{LinkKind, NodeId, NodeKind};
/// Computes the load that operations put on capacities, from the routes and the profile's definitions.
pub(super) struct Ledger<'a> {
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
    pub(super) fn new(testbed: &'a Testbed, schedule: &'a Schedule) -> Self {
        let placement = testbed.placement();
        Self { testbed, schedule, router: testbed.router(), participants: Participants::new(&placement), placement }
    }

    /// Returns the bytes of an operation's chunks.
    pub(super) fn payload(&self, op: &Operation) -> f64 {
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
    pub(super) fn flag_read_load(&self, payload: f64) -> f64 {
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
    pub(super) fn operation_loads(&self, op: &Operation) -> Vec<(Resource, f64)> {
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
    pub(super) fn totals(&self) -> HashMap<Resource, TotalLoad> {
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
pub(super) struct TotalLoad {
    pub bytes: f64,
    /// Bytes by which the simulated load may be smaller, because times are rounded.
    pub rounded_down: f64,
}
