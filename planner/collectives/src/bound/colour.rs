//! Colour refinement of the graph, which finds devices that are structurally equal.
//!
//! If a search over all cuts from every rank would need too much time, it starts at one rank per colour.
//! Interchangeable ranks have the same colour. If ranks of one colour are not interchangeable, some cuts may be missed;
//! the result is still a valid lower bound.

use std::hash::{Hash, Hasher};

use rustc_hash::{FxHashMap, FxHasher};

use super::wiring::Wiring;

/// Returns the first device of each colour, in ascending order. `ranks`: number of ranks per device; `root`: a device
/// with a separate colour.
pub(super) fn representatives(wiring: &Wiring, ranks: &[u32], root: Option<u32>) -> Vec<u32> {
    let colours = colours(wiring, ranks, root);
    let mut seen: FxHashMap<u32, ()> = FxHashMap::default();
    (0..ranks.len() as u32).filter(|&device| seen.insert(colours[device as usize], ()).is_none()).collect()
}

/// Returns the colours of all vertices, numbered by first occurrence. `ranks` and `root`: as of [`representatives`].
pub(super) fn colours(wiring: &Wiring, ranks: &[u32], root: Option<u32>) -> Vec<u32> {
    let count = wiring.vertices as usize;
    let mut colours: Vec<u32> = (0..wiring.vertices)
        .map(|vertex| match ranks.get(vertex as usize) {
            Some(_) if root == Some(vertex) => 1,
            Some(&ranks) => ranks.saturating_add(1),
            None => 0,
        })
        .collect();
    let mut colour_count = 0;
    loop {
        // The signature of a vertex is a sum over its wires, so that their order does not matter.
        let mut signatures = vec![0u64; count];
        for wire in &wiring.wires {
            let (from, to) = (wire.from as usize, wire.to as usize);
            signatures[from] = signatures[from].wrapping_add(mix((0u8, wire.capacity, colours[to])));
            signatures[to] = signatures[to].wrapping_add(mix((1u8, wire.capacity, colours[from])));
        }
        let mut numbers: FxHashMap<(u32, u64), u32> = FxHashMap::default();
        for (colour, signature) in colours.iter_mut().zip(signatures) {
            let next = numbers.len() as u32;
            *colour = *numbers.entry((*colour, signature)).or_insert(next);
        }
        if numbers.len() == colour_count {
            return colours;
        }
        colour_count = numbers.len();
    }
}

/// Hashes a value so that each output bit depends on each input bit (finaliser of SplitMix64; Steele, Lea, Flood,
/// OOPSLA 2014).
fn mix(value: impl Hash) -> u64 {
    let mut hasher = FxHasher::default();
    value.hash(&mut hasher);
    let mut z = hasher.finish().wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
