//! Time per call of back-to-back calls of send_recv, in which every rank sends to the next one and receives from the
//! one before it.
//!
//! A rank begins a call when it has sent and received the data of the call before. It does not wait for the rank to
//! which it sends, so ranks behind a slow connection run later than those before it. Three kinds of cycles limit the
//! time per call (cycles of a max-plus system, see [`super`]):
//!
//! - a rank's own time to send;
//! - the cycle of all ranks: each receives from the rank before it, and the first from the last. n calls need the sum of
//!   all n receives, so a few slow connections count with their share of all connections;
//! - a connection over a network. A proxy begins the send of a call when that of the call before has been acknowledged,
//!   and only then may the block write into the buffer of the connection, which all connections share (NCCL 2.30.7
//!   src/proxy.cc, `ProxyAppend`: `nextPeer`; src/transport/net.cc, `sendProxyProgress`: `sendHead`, `recvConnect`:
//!   `NCCL_MODE_OFFSET`). The messages of a call, from the start of the copy to the arrival, and the acknowledgement of
//!   the last one follow each other. The start of the kernel is not part of this cycle.

use fabricast_topologies::Picos;

use crate::lower::{Environment, LoweredWorkload};
use crate::profile::NetworkCosts;
use crate::schedule::{Program, Protocol, ScheduleGenerator};

/// Times of one call of send_recv whose ranks start at the same time.
#[derive(Clone, Debug, Default)]
struct RankTimes {
    /// Time at which each rank has received and stored its data.
    received: Vec<Picos>,
    /// Rank to which each rank sends; `None` if it sends to none or to several.
    receiver: Vec<Option<u32>>,
}

impl RankTimes {
    fn new(generator: &dyn ScheduleGenerator, lowered: &LoweredWorkload, run_ends: &[Picos]) -> Self {
        let ranks = generator.header().call.ranks;
        let mut times = Self { received: vec![Picos::ZERO; ranks as usize], receiver: vec![None; ranks as usize] };
        let mut scratch = Program::default();
        for (rank, &first) in (0..ranks).zip(&lowered.rank_starts) {
            let program = generator.read(crate::schedule::Rank(rank), &mut scratch);
            for (number, run) in (first as usize..).zip(program.runs()).filter(|(_, run)| run.len > 0) {
                let end = run_ends.get(number).copied().unwrap_or_default();
                let at = if run.kind.is_transfer() { run.peer.at(0) } else { rank };
                if let Some(received) = times.received.get_mut(at as usize) {
                    *received = end.max(*received);
                }
                if run.kind.is_transfer() {
                    times.receiver[rank as usize] = Some(at);
                }
            }
        }
        times
    }

    /// Returns the longest mean time per receive of all cycles of ranks, each of which sends to the next one. A rank
    /// receives from one rank at most.
    fn mean_of_cycles(&self) -> Picos {
        let mut is_counted = vec![false; self.receiver.len()];
        let mut longest = Picos::ZERO;
        for first in 0..self.receiver.len() {
            let (mut rank, mut sum, mut count) = (first, 0_u128, 0_u128);
            while !std::mem::replace(&mut is_counted[rank], true) {
                let Some(next) = self.receiver[rank].map(|next| next as usize).filter(|&next| next < is_counted.len())
                else {
                    break;
                };
                sum += u128::from(self.received[next].0);
                count += 1;
                rank = next;
            }
            if rank == first && count > 0 {
                longest = longest.max(Picos(u64::try_from(sum / count).unwrap_or(u64::MAX)));
            }
        }
        longest
    }
}

/// Returns the time on the devices by which calls of send_recv advance. `sending`: longest time of a rank to send.
/// `None` if a connection has no path.
pub(super) fn step(
    generator: &dyn ScheduleGenerator,
    setting: Environment<'_>,
    lowered: &LoweredWorkload,
    run_ends: &[Picos],
    sending: Picos,
) -> Option<Picos> {
    let times = RankTimes::new(generator, lowered, run_ends);
    let mut step = sending.max(times.mean_of_cycles());
    let protocol = generator.header().protocol;
    let has_proxies = setting.profile.network != NetworkCosts::FREE
        && setting.profile.messages.is_none()
        && matches!(protocol, Protocol::Ll | Protocol::Ll128 | Protocol::Simple);
    for (from, to) in (0..).zip(&times.receiver).filter_map(|(from, to)| Some((from, (*to)? as usize))) {
        let device = |rank: usize| setting.placement.get(rank).copied();
        let (sender, receiver) = (device(from)?, device(to)?);
        if !has_proxies || setting.router.island_of(sender) == setting.router.island_of(receiver) {
            continue;
        }
        let acknowledgement = setting.router.path(receiver, sender).ok()?.latency;
        let connection = times.received[to] + acknowledgement;
        step = step.max(Picos(connection.0.saturating_sub(lowered.workload.startup.0)));
    }
    Some(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_of_ranks_advance_by_their_mean() {
        let times = |received: &[u64], receiver: &[u32]| RankTimes {
            received: received.iter().copied().map(Picos).collect(),
            receiver: receiver.iter().copied().map(Some).collect(),
        };
        assert_eq!(times(&[9, 1, 2], &[1, 2, 0]).mean_of_cycles(), Picos(4));
        assert_eq!(times(&[9, 1, 4, 8], &[1, 0, 3, 2]).mean_of_cycles(), Picos(6));
        // Chains that end are no cycles.
        let mut chain = times(&[7, 7], &[1, 0]);
        chain.receiver[1] = None;
        assert_eq!(chain.mean_of_cycles(), Picos(0));
    }
}
