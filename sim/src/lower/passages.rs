//! Routes of operations over capacities (passages): one per pair of ranks and, if the rate of channels is limited, per
//! channel.

use std::borrow::Cow;

use fabricast_topologies::NodeId;
use fabricast_topologies::route::BufferLocation;
use rustc_hash::FxHashMap;

use super::buffer_access::{BufferAccess, MigratedChunks, RunBufferAccess};
use super::capacities::{Capacities, SharedCapacities};
use super::devices::{BufferRoutes, ChannelUse, Devices, MemoryAccess, PlaceholderRecovery, TransferSpec};
use super::network::Crossing;
use super::operation_cost::RunCosts;
use super::pieces::{Ranges, RunWork};
use super::{Environment, Framing, LowerError, Resource, Traffic};
use crate::engine::{PerOp, RouteLatency, Workload};
use crate::quantity::Work;
use crate::schedule::{Header, OpKind, Processor, Rank, Run, TeamId};
use crate::sharing::System;

/// Properties of an operation that determine its passage; operations with equal keys share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    from: Rank,
    to: Rank,
    /// Rank that executes the operation: sender or receiver.
    executor: Rank,
    channel_use: Option<ChannelUse>,
    flavour: MemoryAccess,
    /// Additional costs if the operation leaves its host.
    crossing: Crossing,
    /// Accesses to buffers outside the devices.
    access: BufferAccess,
    /// Channel of the operation if routes are hashed; otherwise 0.
    label: u64,
}

pub(super) struct PassageBuilder<'a> {
    /// Node that executes each rank's operations.
    placement: Cow<'a, [NodeId]>,
    /// Node whose memory holds each rank's buffers; empty if buffers lie on the rank's own device.
    buffer_devices: Vec<NodeId>,
    workplace: Processor,
    /// Chunks of managed memory read before.
    touched: MigratedChunks,
    /// Ranks of each multicast team.
    teams: &'a [Vec<Rank>],
    devices: Devices<'a>,
    /// Table entries of the passages created for the current rank. They are cleared for each rank, since ranks
    /// share few passages.
    known: FxHashMap<Key, u32>,
    last: Option<(Key, u32)>,
    /// Ranges of the workload's passages for the current rank.
    ranges: Ranges<u32>,
    traffic: Traffic,
}

impl<'a> PassageBuilder<'a> {
    pub(super) fn new(
        setting: Environment<'a>,
        header: &'a Header,
        capacities: Capacities<'a>,
        traffic: Traffic,
    ) -> Result<Self, LowerError> {
        let devices = setting.placement.iter().take(header.call.ranks as usize);
        let in_device_memory = setting.router.options().buffers == BufferLocation::Device;
        let (placement, buffer_devices) = match header.blocks.processor {
            Processor::Device if in_device_memory => (Cow::Borrowed(setting.placement), Vec::new()),
            workplace => {
                let buffer_devices = devices.clone().map(|&device| setting.router.buffer_device(device));
                let buffer_devices = buffer_devices.collect::<Result<_, _>>()?;
                let placement = match workplace {
                    Processor::Device => Cow::Borrowed(setting.placement),
                    Processor::Host => {
                        devices.map(|&device| setting.router.nearest_cpu(device)).collect::<Result<_, _>>()?
                    }
                };
                (placement, buffer_devices)
            }
        };
        Ok(Self {
            placement,
            buffer_devices,
            workplace: header.blocks.processor,
            touched: MigratedChunks::default(),
            teams: &header.teams,
            devices: Devices::for_schedule(setting, header, capacities),
            known: FxHashMap::default(),
            last: None,
            ranges: Ranges::default(),
            traffic,
        })
    }

    pub(super) fn framing(&self) -> Framing {
        self.devices.framing()
    }

    /// Starts the next rank. Its passages are not shared with those of earlier ranks.
    pub(super) fn next_rank(&mut self) {
        self.known.clear();
        self.ranges.clear();
    }

    /// Returns the accesses of a run's operations to buffers outside the devices. `access`: the accesses that apply if
    /// the buffers are in host memory.
    pub(super) fn run_access(
        &mut self,
        header: &Header,
        rank: Rank,
        run: &Run,
        access: BufferAccess,
    ) -> RunBufferAccess {
        match self.devices.buffers() {
            BufferLocation::Device if self.workplace == Processor::Host => RunBufferAccess::Same(access),
            BufferLocation::Device => RunBufferAccess::Same(BufferAccess::default()),
            BufferLocation::Managed => RunBufferAccess::at_first_touch(access, header, rank, run, &mut self.touched),
            _ => RunBufferAccess::Same(access),
        }
    }

    /// Returns the passages of a run's operations, and adds their work to the traffic of the capacities.
    pub(super) fn add_run_passages(
        &mut self,
        rank: Rank,
        run: &Run,
        access: &RunBufferAccess,
        run_costs: &RunCosts,
        work: &RunWork,
        workload: &mut Workload,
    ) -> Result<PerOp, LowerError> {
        if run.len == 0 {
            // No data moves: the peer may be unreachable, and no capacity is used.
            let access = BufferAccess::default();
            let nowhere = Key {
                from: rank,
                to: rank,
                executor: rank,
                access,
                channel_use: None,
                flavour: MemoryAccess::Notify,
                crossing: Crossing::default(),
                label: 0,
            };
            return self.passage(nowhere, workload).map(PerOp::Same);
        }
        let is_even = run_costs.is_even() && run_costs.has_equal_crossings();
        let is_one_way = run.peer.is_fixed() && access.is_same();
        if (is_one_way && is_even) || run.len == 1 {
            let entry = self.passage(self.key(rank, run, 0, access, run_costs), workload)?;
            let total = work.total(run.len, &workload.works);
            self.count(workload.passages.get(entry as usize), total, &workload.system);
            return Ok(PerOp::Same(entry));
        }
        if let Some(pieces) = work.pieces.as_ref().filter(|_| is_one_way) {
            let mut entries = Vec::new();
            for (start, len) in pieces.starts().zip(pieces.lengths()) {
                let entry = self.passage(self.key(rank, run, start, access, run_costs), workload)?;
                let total = Work(workload.works[work.work.entry(start)].0 * u128::from(len));
                self.count(workload.passages.get(entry as usize), total, &workload.system);
                entries.push(entry);
            }
            let values = pieces.with_values(entries.into_iter());
            let table = &mut workload.passages;
            let first = self.ranges.find_or_add(values, |values| {
                let first = table.len() as u32;
                for &(entry, len) in values {
                    let passage = table.get(entry as usize);
                    for _ in 0..len {
                        table.push(passage);
                    }
                }
                first
            });
            return Ok(PerOp::Each(first));
        }
        let before = workload.passages.len() as u32;
        let entries = (0..run.len)
            .map(|i| self.passage(self.key(rank, run, i, access, run_costs), workload))
            .collect::<Result<Vec<_>, _>>()?;
        for (i, &entry) in (0..).zip(&entries) {
            self.count(workload.passages.get(entry as usize), workload.works[work.work.entry(i)], &workload.system);
        }
        // Newly created passages are contiguous already.
        if entries.iter().copied().eq(before..before + run.len) {
            return Ok(PerOp::Each(before));
        }
        let first = workload.passages.len() as u32;
        for entry in entries {
            workload.passages.push(workload.passages.get(entry as usize));
        }
        Ok(PerOp::Each(first))
    }

    /// Returns the recoverability of placeholder costs.
    pub(super) fn codes(&self) -> PlaceholderRecovery {
        self.devices.codes()
    }

    /// Returns the capacities and their traffic.
    pub(super) fn finish(self) -> ((Vec<Resource>, SharedCapacities), Traffic) {
        (self.devices.into_capacities(), self.traffic)
    }

    fn count(&mut self, passage: RouteLatency, work: Work, system: &System) {
        if let Some(route) = passage.route {
            self.traffic.add(route, work, system);
        }
    }

    fn key(&self, rank: Rank, run: &Run, index: u32, access: &RunBufferAccess, run_costs: &RunCosts) -> Key {
        let peer = Rank(run.peer.at(index));
        let flavour = match run.kind {
            OpKind::Put | OpKind::Get => MemoryAccess::Move,
            OpKind::PutReduce | OpKind::PutReduceInput | OpKind::GetReduce => MemoryAccess::MoveAndReduce,
            OpKind::MulticastPut => MemoryAccess::Spread(TeamId(peer.0)),
            OpKind::MulticastReduce => MemoryAccess::Gather(TeamId(peer.0)),
            OpKind::SwitchAllReduce => MemoryAccess::AllReduce(TeamId(peer.0)),
            OpKind::Copy => MemoryAccess::Copy,
            OpKind::Reduce => MemoryAccess::Reduce,
            OpKind::Signal | OpKind::Wait => MemoryAccess::Notify,
        };
        let (from, to) = match run.kind {
            OpKind::Get | OpKind::GetReduce => (peer, rank),
            OpKind::Copy
            | OpKind::Reduce
            | OpKind::Wait
            | OpKind::MulticastPut
            | OpKind::MulticastReduce
            | OpKind::SwitchAllReduce => (rank, rank),
            OpKind::Put | OpKind::PutReduce | OpKind::PutReduceInput | OpKind::Signal => (rank, peer),
        };
        // Network adapters send and receive the data of an all_reduce in the switches of a network, not thread blocks.
        let uses_block = !matches!(flavour, MemoryAccess::Notify | MemoryAccess::AllReduce(_));
        let limited = self.devices.limits_channels() && uses_block;
        let label = self.devices.label(run.channel);
        let channel_use =
            limited.then(|| ChannelUse { rank, channel: run.channel, coefficient: run_costs.channel_cost(index) });
        // Charged if the route uses the network, which also happens between GPUs of one host if links have failed.
        let crossing = run_costs.crossing(index);
        Key { from, to, executor: rank, channel_use, flavour, crossing, access: access.at(index), label }
    }

    /// Returns the table entry of a passage; creates it if new.
    fn passage(&mut self, key: Key, workload: &mut Workload) -> Result<u32, LowerError> {
        if let Some((_, entry)) = self.last.filter(|&(last, _)| last == key) {
            return Ok(entry);
        }
        let entry = match self.known.get(&key) {
            Some(&entry) => entry,
            None => {
                let Key { channel_use, flavour, crossing, label, .. } = key;
                let (from, to, executor) = (self.device(key.from)?, self.device(key.to)?, self.device(key.executor)?);
                let buffer_device =
                    |rank: Rank, device| self.buffer_devices.get(rank.0 as usize).copied().unwrap_or(device);
                let buffer_routes = BufferRoutes {
                    from: buffer_device(key.from, from),
                    to: buffer_device(key.to, to),
                    access: key.access,
                };
                let spec = TransferSpec { from, to, executor, flavour, channel_use, crossing, buffer_routes, label };
                let passage = match flavour {
                    MemoryAccess::Spread(team) | MemoryAccess::Gather(team) => {
                        let members = self.members(team)?;
                        self.devices.make_team(spec, &members, &mut workload.system)?
                    }
                    MemoryAccess::AllReduce(team) => {
                        let members = self.members(team)?;
                        self.devices.make_network_team(spec, &members, &mut workload.system)?
                    }
                    _ => self.devices.make_passage(spec, &mut workload.system)?,
                };
                let entry = workload.passages.push(passage);
                self.known.insert(key, entry);
                entry
            }
        };
        self.last = Some((key, entry));
        Ok(entry)
    }

    /// Returns the devices of a team.
    fn members(&self, team: TeamId) -> Result<Vec<NodeId>, LowerError> {
        let ranks = self.teams.get(team.0 as usize).ok_or(LowerError::NoSuchTeam { team })?;
        ranks.iter().map(|&rank| self.device(rank)).collect()
    }

    fn device(&self, rank: Rank) -> Result<NodeId, LowerError> {
        let devices = &self.placement;
        let too_few_devices = LowerError::TooFewDevices { ranks: rank.0.saturating_add(1), devices: devices.len() };
        devices.get(rank.0 as usize).copied().ok_or(too_few_devices)
    }
}
