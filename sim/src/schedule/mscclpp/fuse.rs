//! What goes through a switch, as plans say it: a load that the switch combines and the store of its result to everybody are
//! one operation (`glres`), which is the only way that MSCCL++'s executor loads through the switch.

use crate::schedule::format::WriteError;
use crate::schedule::plain::{Plain, PlainOp};
use crate::schedule::{OpKind, Rank, Schedule};

/// The groups of a schedule, and which loads are done together with a store.
pub(super) struct Fused<'a> {
    teams: &'a [Vec<Rank>],
    /// By operation: a load whose result is stored at once.
    stored: Vec<bool>,
}

impl<'a> Fused<'a> {
    /// Puts stores that follow a load from the same GPUs into the load; what is left of them moves nothing.
    ///
    /// # Errors
    /// [`WriteError`]: a load whose result stays with its rank.
    pub(super) fn new(schedule: &'a Schedule, plain: &mut Plain) -> Result<Self, WriteError> {
        let mut stored = vec![false; plain.ops.len()];
        // The load that each store is done with.
        let mut load_of: Vec<Option<u32>> = vec![None; plain.ops.len()];
        for (id, op) in plain.ops.iter().enumerate().filter(|(_, op)| op.kind == OpKind::MulticastPut) {
            let is_load = |load: &&u32| {
                let before: &PlainOp = &plain.ops[**load as usize];
                before.kind == OpKind::MulticastReduce
                    && (before.rank, before.channel, before.peer) == (op.rank, op.channel, op.peer)
                    && before.dst == op.src
                    && op.src == op.dst
                    && !stored[**load as usize]
            };
            if let Some(&load) = op.after.iter().find(is_load) {
                stored[load as usize] = true;
                load_of[id] = Some(load);
            }
        }
        let kept = |(id, op): &(usize, &PlainOp)| op.kind == OpKind::MulticastReduce && !stored[*id];
        if let Some((id, _)) = plain.ops.iter().enumerate().find(kept) {
            let why = "MSCCL++ loads through the switch only what it stores to all of its GPUs at once";
            return Err(plain.unsupported(id as u32, why));
        }
        for (store, load) in load_of.iter().enumerate().filter_map(|(store, load)| Some((store, (*load)?))) {
            let after = std::mem::take(&mut plain.ops[store].after);
            plain.ops[store].kind = OpKind::Wait;
            plain.ops[load as usize].after.extend(after);
        }
        if load_of.iter().any(Option::is_some) {
            for (id, op) in plain.ops.iter_mut().enumerate() {
                op.after.iter_mut().for_each(|on| *on = load_of[*on as usize].unwrap_or(*on));
                op.after.sort_unstable();
                op.after.dedup();
                op.after.retain(|&on| on as usize != id);
            }
        }
        Ok(Self { teams: &schedule.header().teams, stored })
    }

    /// The GPUs of the group that an operation goes to or comes from; none where it has none.
    pub(super) fn members(&self, op: &PlainOp) -> &'a [Rank] {
        let team = op.kind.is_multicast().then(|| self.teams.get(op.peer as usize)).flatten();
        team.map_or(&[], Vec::as_slice)
    }

    /// The GPUs of a group.
    pub(super) fn team(&self, team: u32) -> &'a [Rank] {
        self.teams.get(team as usize).map_or(&[], Vec::as_slice)
    }

    /// Whether an operation loads what the switch combines.
    pub(super) fn loads(&self, op: &PlainOp) -> bool {
        op.kind == OpKind::MulticastReduce
    }

    /// Whether it stores to all of its group.
    pub(super) fn stores(&self, id: u32, op: &PlainOp) -> bool {
        op.kind == OpKind::MulticastPut || self.stored.get(id as usize).copied().unwrap_or(false)
    }
}
