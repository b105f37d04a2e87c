//! Reader of a table, row by row, that follows the specification of the format (NCCL `ext-tuner/example/README.md`,
//! plugin.c).

use crate::library::{Call, Outcome};

/// Names of the format in the order of NCCL's codes.
pub const FUNCTIONS: [&str; 5] = ["broadcast", "reduce", "allgather", "reducescatter", "allreduce"];
pub const ALGORITHMS: [&str; 7] = ["tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"];
pub const PROTOCOLS: [&str; 3] = ["ll", "ll128", "simple"];

/// Result of a call according to a table, for `algorithms` × 3 costs. The number of channels is −7 if the table states
/// none.
pub fn outcome(table: &str, nodes: i64, ranks: i64, call: Call, costs: &[f32]) -> Outcome {
    let mut outcome = Outcome { costs: costs.to_vec(), channels: -7 };
    for line in table.lines() {
        if line.starts_with('#') || line.trim().is_empty() {
            continue;
        }
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let number = |index: usize| fields.get(index).map_or(-1, |field| field.parse::<i64>().unwrap());
        let fits = |index: usize, is: i64| number(index) == -1 || number(index) == is;
        let bytes = call.bytes as u64;
        let (min, max): (u64, u64) = (fields[1].parse().unwrap(), fields[2].parse().unwrap());
        let is_function = FUNCTIONS.iter().position(|&word| word == fields[0]) == usize::try_from(call.function).ok();
        let is_size = min <= bytes && bytes <= max;
        let is_call =
            fits(6, nodes) && fits(7, ranks) && fits(8, call.operations.into()) && fits(9, call.registered.into());
        if !(is_function && is_size && is_call) {
            continue;
        }
        let algorithm = ALGORITHMS.iter().position(|&word| word == fields[3]).unwrap();
        let protocol = PROTOCOLS.iter().position(|&word| word == fields[4]).unwrap();
        let Some(&cost) = costs.get(algorithm * 3 + protocol) else { continue };
        let cheapest = costs.iter().copied().filter(|&cost| cost >= 0.0).fold(f32::MAX, f32::min);
        // NCCL cannot run combinations with negative or NaN costs, and avoids very expensive ones.
        if cost.is_nan() || cost < 0.0 || (cheapest > 0.0 && cost > 64.0 * cheapest) {
            continue;
        }
        outcome.costs[algorithm * 3 + protocol] = 0.0;
        // For in-network reductions, no number of channels is passed.
        if number(5) > 0 && !(2..=3).contains(&algorithm) {
            outcome.channels = number(5) as i32;
        }
        return outcome;
    }
    outcome
}
