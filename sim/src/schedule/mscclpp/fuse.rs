//! Fusion of switch operations for MSCCL++ plans. A multicast reduce and the store of its result to the whole group
//! become one operation (`glres`), which is the only load through the switch that MSCCL++'s executor supports.

use crate::schedule::file_format::WriteError;
use crate::schedule::flat::{FlatOp, FlatSchedule};
use crate::schedule::lists::Lists;
use crate::schedule::{OpKind, Rank, Schedule};

/// Teams of a schedule, and the loads that are fused with a store.
pub(super) struct FusedSwitchOps<'a> {
    teams: &'a [Vec<Rank>],
    /// True, by operation, for a load whose result is stored by the same instruction.
    stored: Vec<bool>,
}

impl<'a> FusedSwitchOps<'a> {
    /// Fuses stores with the preceding load from the same GPUs. The remaining store operation moves no data.
    ///
    /// # Errors
    /// [`WriteError`] for a load whose result stays with its rank, which MSCCL++ does not support.
    pub(super) fn new(schedule: &'a Schedule, flat: &mut FlatSchedule) -> Result<Self, WriteError> {
        let mut stored = vec![false; flat.ops.len()];
        // Load that each store operation is fused with.
        let mut fused_load: Vec<Option<u32>> = vec![None; flat.ops.len()];
        for (id, op) in (0u32..).zip(&flat.ops).filter(|(_, op)| op.kind == OpKind::MulticastPut) {
            let is_load = |load: &&u32| {
                let load_op: &FlatOp = &flat.ops[**load as usize];
                load_op.kind == OpKind::MulticastReduce
                    && (load_op.rank, load_op.channel, load_op.peer) == (op.rank, op.channel, op.peer)
                    && load_op.dst == op.src
                    && op.src == op.dst
                    && !stored[**load as usize]
            };
            if let Some(&load) = flat.dependencies(id).iter().find(is_load) {
                stored[load as usize] = true;
                fused_load[id as usize] = Some(load);
            }
        }
        let is_unfused = |(id, op): &(usize, &FlatOp)| op.kind == OpKind::MulticastReduce && !stored[*id];
        if let Some((id, _)) = flat.ops.iter().enumerate().find(is_unfused) {
            let reason = "MSCCL++ loads through the switch only what it stores to all of its GPUs at once";
            return Err(flat.unsupported(id as u32, reason));
        }
        if fused_load.iter().any(Option::is_some) {
            let mut fused_store: Vec<Option<u32>> = vec![None; flat.ops.len()];
            for (store, load) in (0u32..).zip(&fused_load) {
                load.iter().for_each(|&load| fused_store[load as usize] = Some(store));
            }
            let mut waits = Lists::with_capacity(flat.ops.len());
            for (id, store) in (0u32..).zip(&fused_store) {
                let own_waits = if fused_load[id as usize].is_some() { &[][..] } else { flat.dependencies(id) };
                let store_waits = store.map_or(&[][..], |store| flat.dependencies(store));
                let merged_waits = own_waits.iter().chain(store_waits).map(|&on| fused_load[on as usize].unwrap_or(on));
                waits.extend(merged_waits.filter(|&on| on != id));
                waits.close_sorted();
            }
            flat.waits = waits;
            let fused = fused_load.iter().zip(&mut flat.ops).filter(|(load, _)| load.is_some());
            fused.for_each(|(_, store)| store.kind = OpKind::Wait);
        }
        Ok(Self { teams: &schedule.header().teams, stored })
    }

    /// Returns the GPUs of an operation's group; empty if the operation is not multicast.
    pub(super) fn members(&self, op: &FlatOp) -> &'a [Rank] {
        let team = op.kind.is_multicast().then(|| self.teams.get(op.peer as usize)).flatten();
        team.map_or(&[], Vec::as_slice)
    }

    /// Returns the GPUs of a team, in ascending order.
    pub(super) fn team(&self, team: u32) -> &'a [Rank] {
        self.teams.get(team as usize).map_or(&[], Vec::as_slice)
    }

    /// Returns true if an operation loads data that the switch reduces.
    pub(super) fn loads(&self, op: &FlatOp) -> bool {
        op.kind == OpKind::MulticastReduce
    }

    /// Returns true if an operation stores data to its whole group.
    pub(super) fn stores(&self, id: u32, op: &FlatOp) -> bool {
        op.kind == OpKind::MulticastPut || self.stored.get(id as usize).copied().unwrap_or(false)
    }
}
