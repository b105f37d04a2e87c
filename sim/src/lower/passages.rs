//! Routes of operations over capacities, one per pair of ranks (and lane, if lanes are limited).

use std::borrow::Cow;

use fabricast_topologies::NodeId;
use fabricast_topologies::route::BufferPlace;
use rustc_hash::FxHashMap;

use super::capacities::{Capacities, Shared};
use super::devices::{Codes, Devices, Flavour, LaneUse, Legs, Trip};
use super::effort::Efforts;
use super::network::Crossing;
use super::pieces::{Ranges, RunWork};
use super::reaches::{Reaches, RunReaches, Touched};
use super::{Framing, LowerError, Resource, Setting, Traffic};
use crate::engine::{Passage, PerOp, Workload};
use crate::quantity::Work;
use crate::schedule::{Header, OpKind, Rank, Run, TeamId, Workplace};
use crate::sharing::System;

/// Everything that determines the passage of an operation; operations with equal keys share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    from: Rank,
    to: Rank,
    /// Rank that executes the operation: one of the two.
    by: Rank,
    lane: Option<LaneUse>,
    flavour: Flavour,
    /// Costs if the operation leaves the host.
    crossing: Crossing,
    /// Accesses to buffers outside the devices.
    reaches: Reaches,
    /// Channel, if routes are hashed.
    label: u64,
}

pub(super) struct Passages<'a> {
    /// Node that executes each rank's operations.
    placement: Cow<'a, [NodeId]>,
    /// Node whose memory holds each rank's buffers; empty if buffers lie on the rank's own device.
    places: Vec<NodeId>,
    workplace: Workplace,
    /// Chunks of managed memory read before.
    touched: Touched,
    /// Ranks of each multicast team.
    teams: &'a [Vec<Rank>],
    devices: Devices<'a>,
    /// Entries of the workload's passages for the current rank; ranks share hardly any.
    known: FxHashMap<Key, u32>,
    last: Option<(Key, u32)>,
    /// Ranges of the workload's passages for the current rank.
    ranges: Ranges<u32>,
    traffic: Traffic,
}

impl<'a> Passages<'a> {
    pub(super) fn new(
        setting: Setting<'a>,
        header: &'a Header,
        capacities: Capacities<'a>,
        traffic: Traffic,
    ) -> Result<Self, LowerError> {
        let devices = setting.placement.iter().take(header.call.ranks as usize);
        let in_device_memory = setting.router.options().buffers == BufferPlace::Device;
        let (placement, places) = match header.blocks.workplace {
            Workplace::Device if in_device_memory => (Cow::Borrowed(setting.placement), Vec::new()),
            workplace => {
                let places = devices.clone().map(|&device| setting.router.place_of_buffers(device));
                let places = places.collect::<Result<_, _>>()?;
                let placement = match workplace {
                    Workplace::Device => Cow::Borrowed(setting.placement),
                    Workplace::Host => {
                        devices.map(|&device| setting.router.nearest_cpu(device)).collect::<Result<_, _>>()?
                    }
                };
                (placement, places)
            }
        };
        Ok(Self {
            placement,
            places,
            workplace: header.blocks.workplace,
            touched: Touched::default(),
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

    /// Begins the next rank.
    pub(super) fn next_rank(&mut self) {
        self.known.clear();
        self.ranges.clear();
    }

    /// Returns the accesses of a run's operations to buffers outside the devices. `reaches`: accesses if the buffers
    /// were in host memory.
    pub(super) fn reaches(&mut self, header: &Header, rank: Rank, run: &Run, reaches: Reaches) -> RunReaches {
        match self.devices.buffers() {
            BufferPlace::Device if self.workplace == Workplace::Host => RunReaches::Same(reaches),
            BufferPlace::Device => RunReaches::Same(Reaches::default()),
            BufferPlace::Managed => RunReaches::at_first_touch(reaches, header, (rank, run), &mut self.touched),
            _ => RunReaches::Same(reaches),
        }
    }

    /// Returns the passages of a run's operations, and adds their work to the traffic of the capacities.
    pub(super) fn of_run(
        &mut self,
        (rank, run): (Rank, &Run),
        (reaches, efforts): (&RunReaches, &Efforts),
        work: &RunWork,
        workload: &mut Workload,
    ) -> Result<PerOp, LowerError> {
        if run.len == 0 {
            // No data moves: the peer may be unreachable, and no capacity is used.
            let reaches = Reaches::default();
            let nowhere = Key {
                from: rank,
                to: rank,
                by: rank,
                reaches,
                lane: None,
                flavour: Flavour::Notify,
                crossing: Crossing::default(),
                label: 0,
            };
            return self.passage(nowhere, workload).map(PerOp::Same);
        }
        let is_even = efforts.is_even() && efforts.cross_alike();
        let is_one_way = run.peer.is_fixed() && reaches.is_same();
        if (is_one_way && is_even) || run.len == 1 {
            let entry = self.passage(self.key((rank, run), 0, (reaches, efforts)), workload)?;
            let total = work.total(run.len, &workload.works);
            self.count(workload.passages.get(entry as usize), total, &workload.system);
            return Ok(PerOp::Same(entry));
        }
        if let Some(pieces) = work.pieces.as_ref().filter(|_| is_one_way) {
            let mut entries = Vec::new();
            for (start, len) in pieces.starts().zip(pieces.lengths()) {
                let entry = self.passage(self.key((rank, run), start, (reaches, efforts)), workload)?;
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
            .map(|i| self.passage(self.key((rank, run), i, (reaches, efforts)), workload))
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
    pub(super) fn codes(&self) -> Codes {
        self.devices.codes()
    }

    /// Returns the capacities and their traffic.
    pub(super) fn finish(self) -> ((Vec<Resource>, Shared), Traffic) {
        (self.devices.into_capacities(), self.traffic)
    }

    fn count(&mut self, passage: Passage, work: Work, system: &System) {
        if let Some(route) = passage.route {
            self.traffic.add(route, work, system);
        }
    }

    fn key(&self, (rank, run): (Rank, &Run), index: u32, (reaches, efforts): (&RunReaches, &Efforts)) -> Key {
        let peer = Rank(run.peer.at(index));
        let flavour = match run.kind {
            OpKind::Put | OpKind::Get => Flavour::Move,
            OpKind::PutReduce | OpKind::PutReduceInput | OpKind::GetReduce => Flavour::MoveAndReduce,
            OpKind::MulticastPut => Flavour::Spread(TeamId(peer.0)),
            OpKind::MulticastReduce => Flavour::Gather(TeamId(peer.0)),
            OpKind::Copy => Flavour::Copy,
            OpKind::Reduce => Flavour::Reduce,
            OpKind::Signal | OpKind::Wait => Flavour::Notify,
        };
        let (from, to) = match run.kind {
            OpKind::Get | OpKind::GetReduce => (peer, rank),
            OpKind::Copy | OpKind::Reduce | OpKind::Wait | OpKind::MulticastPut | OpKind::MulticastReduce => {
                (rank, rank)
            }
            OpKind::Put | OpKind::PutReduce | OpKind::PutReduceInput | OpKind::Signal => (rank, peer),
        };
        let limited = self.devices.has_lanes() && flavour != Flavour::Notify;
        let label = self.devices.label(run.channel);
        let lane = limited.then(|| LaneUse { rank, channel: run.channel, coefficient: efforts.lane(index) });
        // Charged if the route uses the network, which also happens within a host if links have failed.
        let crossing = efforts.crossing(index);
        Key { from, to, by: rank, lane, flavour, crossing, reaches: reaches.at(index), label }
    }

    /// Returns the table entry of a passage; creates it if new.
    fn passage(&mut self, key: Key, workload: &mut Workload) -> Result<u32, LowerError> {
        if let Some((_, entry)) = self.last.filter(|&(last, _)| last == key) {
            return Ok(entry);
        }
        let entry = match self.known.get(&key) {
            Some(&entry) => entry,
            None => {
                let Key { lane, flavour, crossing, label, .. } = key;
                let (from, to, by) = (self.device(key.from)?, self.device(key.to)?, self.device(key.by)?);
                let place = |rank: Rank, device| self.places.get(rank.0 as usize).copied().unwrap_or(device);
                let legs = Legs { from: place(key.from, from), to: place(key.to, to), reaches: key.reaches };
                let trip = Trip { from, to, by, flavour, lane, crossing, legs, label };
                let passage = match flavour {
                    Flavour::Spread(team) | Flavour::Gather(team) => {
                        let members = self.members(team)?;
                        self.devices.make_team(trip, &members, &mut workload.system)?
                    }
                    _ => self.devices.make(trip, &mut workload.system)?,
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
        let too_few = LowerError::TooFewDevices { ranks: rank.0.saturating_add(1), devices: devices.len() };
        devices.get(rank.0 as usize).copied().ok_or(too_few)
    }
}
