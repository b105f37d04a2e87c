//! What a schedule's ranks send each other, without running it: for the load of links over many calls.

use std::collections::BTreeMap;

use super::{Framing, payload, sized_by};
use crate::profile::Profile;
use crate::quantity::Work;
use crate::schedule::{Generate, Program, Rank};

/// What goes over the wire from each rank to each other in all, framing included; `None` where teams take part, whose ways branch
/// in switches.
#[must_use]
pub fn sent(generator: &dyn Generate, profile: &Profile) -> Option<BTreeMap<(Rank, Rank), Work>> {
    let header = generator.header();
    let framing = Framing::new(profile.protocol(header.protocol).wire_efficiency);
    let mut sent: BTreeMap<(Rank, Rank), Work> = BTreeMap::new();
    let mut scratch = Program::default();
    for rank in (0..header.call.ranks).map(Rank) {
        for run in generator.read(rank, &mut scratch).runs().iter().filter(|run| run.kind.is_transfer()) {
            if run.kind.is_multicast() {
                return None;
            }
            let chunks = sized_by(run);
            for i in 0..run.len {
                let peer = Rank(run.peer.at(i));
                let way = if run.kind.reads_peer() { (peer, rank) } else { (rank, peer) };
                let work = framing.on_wire(payload(header, chunks.at(i), run.span));
                sent.entry(way).or_default().0 += work.0;
            }
        }
    }
    Some(sent)
}
