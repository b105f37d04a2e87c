//! Placement of a job's ranks on the GPUs of a candidate.
//!
//! A GPU has at most one rank. Jobs specify the placement in one of three forms, as schedulers and launchers do:
//!
//! - `"block"` (the default): host by host, as in `srun --distribution=block`, `mpirun --map-by slot` and `torchrun`;
//! - `"cyclic"`: one rank to each host in turn, as `srun --distribution=cyclic` and `mpirun --map-by node` do;
//! - the GPU of each rank, as in `srun --distribution=arbitrary`, an Open MPI rankfile or `CUDA_VISIBLE_DEVICES`:
//!   `[0, 4, 1, 5]`, or ranges of GPUs in the order of the ranks, `"0-3,8-11"`, with steps `"0-15:8"`. GPUs that are
//!   not named are idle but still count for the cost, for example eight of each rack of 72 in jobs whose size is a
//!   power of two.
//!
//! There is no separate placement file, since ranges are short. GPUs are numbered as in the fabric, host by host,
//! starting with 0. `parallel.order` is independent of the placement: it determines the ranks of a group, and the
//! placement determines their GPUs.

use std::borrow::Cow;

use fabricast_topologies::{Fabric, NodeId};
use rustc_hash::FxHashMap;

use super::{JobError, JobSpans};

/// Maximum number of GPUs that a list or ranges may name.
const MAX_RANKS: usize = 1 << 20;

/// Assignment of a GPU to each rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// Ranks on all GPUs in the fabric's order, host by host.
    #[default]
    Block,
    /// Ranks on one GPU of each host in turn, in the order of GPUs within each host. Hosts without a free GPU are
    /// skipped.
    Cyclic,
    /// GPU number of each rank, indexed by rank, without duplicates.
    Listed(Vec<u32>),
}

/// Error of a list that assigns a GPU to two ranks.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("placement: GPU {gpu} is assigned to rank {} and rank {}: expected each once", .ranks[0], .ranks[1])]
pub(crate) struct DuplicateGpu {
    pub gpu: u32,
    pub ranks: [usize; 2],
}

/// Help text for a list that does not fit the candidate.
const PLACEMENT_HELP: &str =
    "name GPUs that the candidate has, or use \"cyclic\" or \"block\", which fit candidates of any size";

impl Placement {
    /// Creates a placement from the GPU number of each rank. The numbers must be distinct.
    ///
    /// # Errors
    /// The first duplicate.
    pub(crate) fn from_list(gpus: Vec<u32>) -> Result<Self, DuplicateGpu> {
        let mut ranks = FxHashMap::default();
        for (rank, &gpu) in gpus.iter().enumerate() {
            if let Some(before) = ranks.insert(gpu, rank) {
                return Err(DuplicateGpu { gpu, ranks: [before, rank] });
            }
        }
        Ok(Self::Listed(gpus))
    }

    /// Returns true if the placement equals the default placement, as far as that can be determined without a fabric.
    #[must_use]
    pub fn is_in_order(&self) -> bool {
        match self {
            Self::Block => true,
            Self::Cyclic => false,
            Self::Listed(gpus) => gpus.iter().zip(0..).all(|(&gpu, rank)| gpu == rank),
        }
    }

    /// Returns the number of listed GPUs if it differs from `gpus`; `None` if it is equal or there is no list.
    #[must_use]
    pub fn listed_count(&self, gpus: usize) -> Option<usize> {
        match self {
            Self::Block | Self::Cyclic => None,
            Self::Listed(listed) => Some(listed.len()).filter(|&count| count != gpus),
        }
    }

    /// Returns the device of each rank on a fabric.
    ///
    /// # Errors
    /// [`JobError`] at the placement if it lists GPUs that the fabric does not have.
    pub(crate) fn devices<'f>(&self, fabric: &'f Fabric, spans: &JobSpans) -> Result<Cow<'f, [NodeId]>, JobError> {
        let gpus = fabric.gpus();
        let listed = match self {
            Self::Block => return Ok(gpus.into()),
            Self::Cyclic => return Ok(cyclic(fabric).into()),
            Self::Listed(listed) => listed,
        };
        let wrong = |location, message: String| JobError {
            location,
            message: format!("placement: {message}"),
            help: Some(PLACEMENT_HELP.to_owned()),
        };
        let (count, last) = (gpus.len(), gpus.len().saturating_sub(1));
        if listed.len() > count {
            let message = format!("{} ranks, and the candidate has {count} GPUs, 0 to {last}", listed.len());
            return Err(wrong(spans.placement.clone(), message));
        }
        let device = |(rank, &gpu): (usize, &u32)| {
            gpus.get(gpu as usize).copied().ok_or_else(|| {
                let message = format!("GPU {gpu} of rank {rank}: the candidate has {count} GPUs, 0 to {last}");
                wrong(spans.largest_gpu.clone(), message)
            })
        };
        // The GPU with the largest number is checked first, because its source location is known.
        let largest = listed.iter().enumerate().max_by_key(|entry| entry.1);
        largest.map(device).transpose()?;
        listed.iter().enumerate().map(device).collect::<Result<Vec<_>, _>>().map(Cow::Owned)
    }
}

/// Writes the placement in the syntax of job files; lists are written as ranges.
impl std::fmt::Display for Placement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Block => f.write_str("block"),
            Self::Cyclic => f.write_str("cyclic"),
            Self::Listed(gpus) => f.write_str(&format_ranges(gpus)),
        }
    }
}

fn cyclic(fabric: &Fabric) -> Vec<NodeId> {
    let hosts = fabric.group_by_host(fabric.gpus());
    let max_gpus = hosts.iter().map(Vec::len).max().unwrap_or_default();
    (0..max_gpus).flat_map(|index| hosts.iter().filter_map(move |host| host.get(index)).copied()).collect()
}

/// Parses a set of numbers in range notation, such as `0-3,8` or `0-7:2`. Duplicates are allowed. `noun`: noun for the
/// numbers in errors.
///
/// # Errors
/// A message on an invalid number or range, or on too many numbers.
pub fn parse_ranges(text: &str, noun: &str) -> Result<Vec<u32>, String> {
    let mut numbers = Vec::new();
    for part in text.split(',') {
        let (range, step) = part.split_once(':').unwrap_or((part, "1"));
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |word: &str| {
            let number = word.trim().parse::<u32>().ok();
            number.ok_or_else(|| format!("`{part}` is not a {noun}, a range as in 0-3, or one with a step as in 0-7:2"))
        };
        let (first, last, step) = (number(first)?, number(last)?, number(step)?);
        if last < first || step == 0 {
            return Err(format!("`{part}` contains no {noun}"));
        }
        if numbers.len() + ((last - first) / step) as usize >= MAX_RANKS {
            return Err(format!("more than {MAX_RANKS} {noun}s"));
        }
        numbers.extend((first..=last).step_by(step as usize));
    }
    Ok(numbers)
}

/// Formats numbers in range notation; ascending sequences with equal steps are merged greedily.
fn format_ranges(numbers: &[u32]) -> String {
    let mut parts = Vec::new();
    let mut remaining = numbers;
    while let [first, following @ ..] = remaining {
        let step = following.first().and_then(|next| next.checked_sub(*first)).filter(|step| *step > 0);
        let continues =
            |&(number, offset): &(u32, u32)| step.is_some_and(|step| first.checked_add(step * offset) == Some(number));
        let run = following.iter().copied().zip(1..).take_while(continues).count();
        // Two numbers that are not adjacent are written separately.
        let run = if run == 1 && step != Some(1) { 0 } else { run };
        let last = first + step.unwrap_or(0) * run as u32;
        parts.push(match (run, step) {
            (0, _) | (_, None) => first.to_string(),
            (_, Some(1)) => format!("{first}-{last}"),
            (_, Some(step)) => format!("{first}-{last}:{step}"),
        });
        remaining = following.get(run..).unwrap_or_default();
    }
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use fabricast_topologies::{FabricRequest, load};
    use proptest::prelude::*;

    use super::*;

    fn fabric(nodes: u32) -> Fabric {
        load(&FabricRequest { nodes: Some(nodes), ..FabricRequest::new("hgx-h100") }).unwrap()
    }

    fn placed_gpus(placement: &Placement, fabric: &Fabric) -> Result<Vec<u32>, String> {
        let number = |device: &NodeId| fabric.gpus().iter().position(|gpu| gpu == device).unwrap() as u32;
        let devices = placement.devices(fabric, &JobSpans::default()).map_err(|error| error.message)?;
        Ok(devices.iter().map(number).collect())
    }

    #[test]
    fn ranks_are_placed_as_specified() {
        let two_nodes = fabric(2);
        assert_eq!(placed_gpus(&Placement::Block, &two_nodes), Ok((0..16).collect()));
        let cyclic: Vec<u32> = (0..16).map(|rank| rank % 2 * 8 + rank / 2).collect();
        assert_eq!(placed_gpus(&Placement::Cyclic, &two_nodes), Ok(cyclic));
        assert_eq!(placed_gpus(&Placement::Cyclic, &fabric(1)), Ok((0..8).collect()));
        let listed: Vec<u32> = (0..16).rev().collect();
        for gpus in [listed.clone(), vec![0, 1, 8, 9]] {
            assert_eq!(placed_gpus(&Placement::from_list(gpus.clone()).unwrap(), &two_nodes), Ok(gpus));
        }
    }

    #[test]
    fn invalid_placements_are_rejected() {
        let single_node = fabric(1);
        let message = |text: &str| {
            placed_gpus(&Placement::from_list(parse_ranges(text, "GPU").unwrap()).unwrap(), &single_node).unwrap_err()
        };
        assert_eq!(message("0-8"), "placement: 9 ranks, and the candidate has 8 GPUs, 0 to 7");
        assert_eq!(message("0-6,8"), "placement: GPU 8 of rank 7: the candidate has 8 GPUs, 0 to 7");
        let duplicate = Placement::from_list(vec![0, 2, 1, 2]).unwrap_err();
        assert_eq!(duplicate, DuplicateGpu { gpu: 2, ranks: [1, 3] });
        assert_eq!(duplicate.to_string(), "placement: GPU 2 is assigned to rank 1 and rank 3: expected each once");
    }

    proptest! {
        #[test]
        fn formatted_ranges_parse_back(numbers in prop::collection::vec(0u32..40, 1..40)) {
            prop_assert_eq!(parse_ranges(&format_ranges(&numbers), "GPU"), Ok(numbers));
        }
    }

    #[test]
    fn ranges_are_formatted_compactly() {
        let round_trip = |text: &str| format_ranges(&parse_ranges(text, "GPU").unwrap());
        for ranges in ["0-7", "0-24:8,1-25:8", "0,8,1,9", "3,1,0", "0-3,8-11", "0,4,1,5"] {
            assert_eq!(round_trip(ranges), ranges);
        }
    }
}
