//! Traffic between the ranks of a schedule, determined without a simulation. Used to compute the load of links over
//! many calls.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::{Framing, payload, size_walk};
use crate::profile::Profile;
use crate::quantity::Work;
use crate::schedule::{Program, Rank, ScheduleGenerator, Symmetry};

/// Returns the total work on the wire from each rank to each other, framing included. `None` if multicast teams take
/// part, whose routes branch in switches, or a program is too long. If ranks are rotations of each other ([`Symmetry`])
/// and all chunks are equal, one representative is examined.
#[must_use]
pub fn rank_traffic(generator: &dyn ScheduleGenerator, profile: &Profile) -> Option<BTreeMap<(Rank, Rank), Work>> {
    let header = generator.header();
    let framing = Framing::new(profile.protocol(header.protocol).wire_efficiency);
    let mut sent: BTreeMap<(Rank, Rank), Work> = BTreeMap::new();
    let mut scratch = Program::default();
    let is_even = header.layout.is_even();
    // Size of a chunk in each range of equal chunks, since ranks send the same sizes repeatedly.
    let mut sizes: FxHashMap<usize, Work> = FxHashMap::default();
    let symmetry = Symmetry::for_equal_chunks(generator);
    for rank in symmetry.representatives(header.call.ranks) {
        let program = generator.read(rank, &mut scratch);
        if program.is_truncated() {
            return None;
        }
        for run in program.runs().iter().filter(|run| run.kind.is_transfer()) {
            if run.kind.is_multicast() {
                return None;
            }
            let chunks = size_walk(run);
            let endpoints = |peer: Rank| if run.kind.reads_peer() { (peer, rank) } else { (rank, peer) };
            let mut size = |chunk: u32| match run.span {
                1 => {
                    let range = header.layout.uniform_range_index(chunk % header.layout.chunks().max(1));
                    *sizes.entry(range).or_insert_with(|| payload(header, chunk, 1))
                }
                span => payload(header, chunk, span),
            };
            if is_even && run.span == 1 && run.peer.is_fixed() && run.len > 0 {
                let work = size(chunks.at(0)).0 * u128::from(run.len);
                sent.entry(endpoints(Rank(run.peer.at(0)))).or_default().0 += work;
                continue;
            }
            // Many consecutive operations have the same sender and receiver.
            let (mut to, mut sum) = (None, Work::default());
            for i in 0..run.len {
                let peer = Rank(run.peer.at(i));
                if let Some(known) = to.replace(peer).filter(|known| *known != peer) {
                    sent.entry(endpoints(known)).or_default().0 += std::mem::take(&mut sum).0;
                }
                sum.0 += size(chunks.at(i)).0;
            }
            if let Some(known) = to {
                sent.entry(endpoints(known)).or_default().0 += sum.0;
            }
        }
    }
    let mut all: BTreeMap<(Rank, Rank), Work> = BTreeMap::new();
    for turn in 0..symmetry.rotation_count() {
        for (&(from, to), work) in &sent {
            all.entry((symmetry.rotate(from, turn), symmetry.rotate(to, turn))).or_default().0 += work.0;
        }
    }
    all.values_mut().for_each(|work| *work = framing.on_wire(*work));
    Some(all)
}
