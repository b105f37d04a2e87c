//! Test matrices for all_to_allv: uniform, skewed, and with empty blocks.

use fabricast_collectives::algorithm::Shape;
use fabricast_sim::schedule::{Call, Collective, TrafficMatrix};
use fabricast_topologies::Bytes;

/// Creates a matrix of up to `bytes` bytes: equal blocks for seed 0, otherwise skewed, with some empty rows, columns,
/// diagonals or blocks. No block shrinks as `bytes` grows.
pub(crate) fn random_matrix(ranks: u32, bytes: u64, seed: u64) -> TrafficMatrix {
    let mut state = seed | 1;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let (row, column, diagonal) = (random(2 * u64::from(ranks)), random(2 * u64::from(ranks)), random(3));
    let mut weights = Vec::new();
    for from in 0..u64::from(ranks) {
        for to in 0..u64::from(ranks) {
            let weight = [0, 1, 1, 5, 40][random(5) as usize];
            let is_empty =
                from == row || to == column || (diagonal == 0 && from == to) || (diagonal == 1 && from != to);
            weights.push(if seed == 0 { 1 } else { weight * u64::from(!is_empty) });
        }
    }
    let total: u64 = weights.iter().sum::<u64>().max(1);
    let sizes = weights.iter().map(|weight| (u128::from(*weight) * u128::from(bytes) / u128::from(total)) as u64);
    TrafficMatrix::new(ranks, sizes.collect()).unwrap()
}

/// Returns the shape with a matrix if its collective needs one, with the matrix's bytes as the call's; a call that
/// moves no data gets zero bytes.
pub(crate) fn with_matrix(shape: Shape, seed: u64) -> Shape {
    let Call { collective, ranks, bytes, .. } = shape.call;
    match collective {
        Collective::AllToAllV => {}
        Collective::Barrier => return Shape { call: Call { bytes: Bytes(0), ..shape.call }, ..shape },
        _ => return shape,
    }
    let matrix = random_matrix(ranks, bytes.0, seed);
    Shape { call: Call { bytes: matrix.total(), ..shape.call }, matrix: Some(matrix), ..shape }
}
