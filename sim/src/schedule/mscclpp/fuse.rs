//! Fusion of switch operations for plans: a multicast reduce and the store of its result to the whole group become one
//! operation (`glres`), the only load through the switch that MSCCL++'s executor supports.

use crate::schedule::format::WriteError;
use crate::schedule::lists::Lists;
use crate::schedule::plain::{Plain, PlainOp};
use crate::schedule::{OpKind, Rank, Schedule};

/// The teams of a schedule, and the loads that are fused with a store.
pub(super) struct Fused<'a> {
    teams: &'a [Vec<Rank>],
    /// For each operation, true for a load whose result is stored by the same instruction.
    stored: Vec<bool>,
}

impl<'a> Fused<'a> {
    /// Fuses stores with the preceding load from the same GPUs; the remaining store operation moves no data.
    ///
    /// # Errors
    /// [`WriteError`]: a load whose result stays with its rank.
    pub(super) fn new(schedule: &'a Schedule, plain: &mut Plain) -> Result<Self, WriteError> {
        let mut stored = vec![false; plain.ops.len()];
        // The load that each store is fused with.
        let mut load_of: Vec<Option<u32>> = vec![None; plain.ops.len()];
        for (id, op) in (0u32..).zip(&plain.ops).filter(|(_, op)| op.kind == OpKind::MulticastPut) {
            let is_load = |load: &&u32| {
                let before: &PlainOp = &plain.ops[**load as usize];
                before.kind == OpKind::MulticastReduce
                    && (before.rank, before.channel, before.peer) == (op.rank, op.channel, op.peer)
                    && before.dst == op.src
                    && op.src == op.dst
                    && !stored[**load as usize]
            };
            if let Some(&load) = plain.after(id).iter().find(is_load) {
                stored[load as usize] = true;
                load_of[id as usize] = Some(load);
            }
        }
        let kept = |(id, op): &(usize, &PlainOp)| op.kind == OpKind::MulticastReduce && !stored[*id];
        if let Some((id, _)) = plain.ops.iter().enumerate().find(kept) {
            let why = "MSCCL++ loads through the switch only what it stores to all of its GPUs at once";
            return Err(plain.unsupported(id as u32, why));
        }
        if load_of.iter().any(Option::is_some) {
            let mut store_of: Vec<Option<u32>> = vec![None; plain.ops.len()];
            for (store, load) in (0u32..).zip(&load_of) {
                load.iter().for_each(|&load| store_of[load as usize] = Some(store));
            }
            let mut waits = Lists::with_capacity(plain.ops.len());
            for (id, store) in (0u32..).zip(&store_of) {
                let own = if load_of[id as usize].is_some() { &[][..] } else { plain.after(id) };
                let of_store = store.map_or(&[][..], |store| plain.after(store));
                let after = own.iter().chain(of_store).map(|&on| load_of[on as usize].unwrap_or(on));
                waits.extend(after.filter(|&on| on != id));
                waits.close_sorted();
            }
            plain.waits = waits;
            let fused = load_of.iter().zip(&mut plain.ops).filter(|(load, _)| load.is_some());
            fused.for_each(|(_, store)| store.kind = OpKind::Wait);
        }
        Ok(Self { teams: &schedule.header().teams, stored })
    }

    /// The GPUs of an operation's group; empty if it is not multicast.
    pub(super) fn members(&self, op: &PlainOp) -> &'a [Rank] {
        let team = op.kind.is_multicast().then(|| self.teams.get(op.peer as usize)).flatten();
        team.map_or(&[], Vec::as_slice)
    }

    /// The GPUs of a group.
    pub(super) fn team(&self, team: u32) -> &'a [Rank] {
        self.teams.get(team as usize).map_or(&[], Vec::as_slice)
    }

    /// Returns true if an operation loads data reduced by the switch.
    pub(super) fn loads(&self, op: &PlainOp) -> bool {
        op.kind == OpKind::MulticastReduce
    }

    /// Returns true if an operation stores to its whole group.
    pub(super) fn stores(&self, id: u32, op: &PlainOp) -> bool {
        op.kind == OpKind::MulticastPut || self.stored.get(id as usize).copied().unwrap_or(false)
    }
}
