//! Placement of the messages of a round, and the notifications that ranks need in addition to the messages.
//!
//! Each message has a slot at the receiver. If the message format is **flags**, a message may be written directly to
//! its destination, provided that the receiver does not read that memory afterwards. Vector clocks over the messages
//! determine this, and also which ranks are known to have entered the call.
//!
//! **Two sets of slots are sufficient.** Calls alternate between the two sets, so call k + 2 writes to the slots that
//! call k read. Rank A may write to rank P in call k + 2 only after P has left call k. Suppose that before A left call
//! k + 1, messages implied that P had entered call k + 1. Kernels of a rank run one after another, so P had left call
//! k. If the messages of a call do not imply this, P notifies A by a flag when it enters, and A checks the flag before
//! it leaves ([`MessageExchange::close`]). Writing to the caller's output requires more: P must have entered the same call. If
//! messages do not imply this, A checks the same flag before it begins ([`MessageExchange::enter`]).

use super::local_operations::Moves;
use super::program::{Instruction, RankProgram, UserChunk};
use super::{Carrier, KernelError};

/// Placement of the messages of a round, and the notifications between ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MessageExchange {
    /// Destination, in the receiver's output, of every message of the schedule that is written directly; `None` for a
    /// message that uses a slot.
    pub(super) direct: Vec<Option<UserChunk>>,
    /// For every rank, bit set of the ranks that must have entered the call before it begins.
    pub(super) enter: Vec<u64>,
    /// For every rank, bit set of the ranks to which it sends and whose entry into the call is not implied by any
    /// message.
    pub(super) close: Vec<u64>,
    /// For every rank, bit set of the ranks whose entry into the call is implied by messages.
    pub(super) known_entered: Vec<u64>,
}

/// Maximum number of ranks, because a set of ranks is a 64-bit word.
pub(super) const MAX_RANKS: u32 = 64;

/// Determines the placement and notifications of a round, and removes the store operations of messages that are written
/// directly.
///
/// # Errors
/// [`KernelError::Deadlock`] if receives wait for each other, which a verified schedule never causes.
pub(super) fn exchange(
    moves: &Moves,
    programs: &mut [RankProgram],
    carrier: Carrier,
) -> Result<MessageExchange, KernelError> {
    let ranks = programs.len();
    let mut result = MessageExchange {
        direct: vec![None; moves.messages.len()],
        enter: vec![0; ranks],
        close: vec![0; ranks],
        known_entered: vec![0; ranks],
    };
    // Number of instructions of each rank that each rank knows to be complete, and this knowledge at the time of each
    // send.
    let mut completed = vec![vec![0u32; ranks]; ranks];
    let mut sent: Vec<Option<Vec<u32>>> = vec![None; moves.messages.len()];
    let mut next = vec![0usize; ranks];
    let mut sends_to = vec![0u64; ranks];
    loop {
        let mut moved = false;
        for rank in 0..ranks {
            while let Some(&instruction) = programs[rank].instructions.get(next[rank]) {
                match instruction {
                    Instruction::Send { message, .. } => {
                        sends_to[rank] |= 1 << moves.messages[message as usize].to;
                        sent[message as usize] = Some(completed[rank].clone());
                    }
                    Instruction::Receive { message, .. } => {
                        let Some(sender_view) = &sent[message as usize] else { break };
                        for (own_view, sender_view) in completed[rank].iter_mut().zip(sender_view) {
                            *own_view = (*own_view).max(*sender_view);
                        }
                    }
                    _ => {}
                }
                next[rank] += 1;
                completed[rank][rank] = next[rank] as u32;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    if (0..ranks).any(|rank| next[rank] < programs[rank].instructions.len()) {
        return Err(KernelError::Deadlock);
    }
    for rank in 0..ranks {
        let entered = completed[rank].iter().enumerate().filter(|(_, count)| **count > 0);
        result.known_entered[rank] = entered.fold(0, |set, (peer, _)| set | 1 << peer);
        result.close[rank] = sends_to[rank] & !result.known_entered[rank];
    }
    if carrier == Carrier::Flags {
        for (rank, program) in programs.iter_mut().enumerate() {
            store_on_arrival(moves, program, rank, &sent, &mut result);
        }
    }
    Ok(result)
}

/// Finds the messages to `rank` that may be written directly to their destination, and removes their store operations.
fn store_on_arrival(
    moves: &Moves,
    program: &mut RankProgram,
    rank: usize,
    sent: &[Option<Vec<u32>>],
    result: &mut MessageExchange,
) {
    let mut removed = Vec::new();
    for instruction in &program.instructions {
        let Instruction::Receive { message, value } = *instruction else { continue };
        let stored = program.instructions.iter().enumerate().find_map(|(i, candidate)| match *candidate {
            Instruction::Store { place, value: stored } if stored == value => Some((i, place)),
            _ => None,
        });
        let (Some((store, place)), Some(Some(knew))) = (stored, sent.get(message as usize)) else { continue };
        let loads =
            |candidate: &Instruction| matches!(*candidate, Instruction::Load { place: loaded, .. } if loaded == place);
        let read_at = program.instructions.iter().rposition(loads);
        if read_at.is_some_and(|index| knew[rank] <= index as u32) {
            continue;
        }
        result.direct[message as usize] = Some(place);
        removed.push(store);
        if knew[rank] == 0 {
            result.enter[moves.messages[message as usize].from as usize] |= 1 << rank;
        }
    }
    let mut index = 0;
    program.instructions.retain(|_| {
        index += 1;
        !removed.contains(&(index - 1))
    });
}
