//! NVLink domains of a matrix: GPUs on an NVSwitch, or direct links between GPUs.

use std::collections::BTreeMap;

use crate::gpus::Evidence;

/// Largest number of NVLinks of any GPU (H100, B200). The direct links of a GPU to all its peers cannot exceed it.
const MAX_NVLINKS: u64 = 18;

/// A set of GPUs connected by NVLink.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Domain {
    /// GPUs on an NVSwitch: index and number of links of each.
    Switched(Vec<(usize, u16)>),
    /// Pairs of GPUs with direct links.
    Direct(Vec<NvlinkCount>),
}

/// Number of NVLinks between two GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NvlinkCount {
    /// Index of one GPU among the devices of the matrix.
    pub a: usize,
    /// Index of the other GPU.
    pub b: usize,
    /// Number of NVLinks; 0 if there is none.
    pub count: u16,
}

/// The domains of these GPUs; GPUs without NVLinks are in none.
pub(super) fn find_domains(gpus: &[usize], counts: &[NvlinkCount]) -> Vec<Domain> {
    let linked: Vec<NvlinkCount> = counts.iter().copied().filter(|pair| pair.count > 0).collect();
    let mut domains_by_gpu: BTreeMap<usize, usize> = gpus.iter().map(|&gpu| (gpu, gpu)).collect();
    for &NvlinkCount { a, b, .. } in &linked {
        let (Some(&x), Some(&y)) = (domains_by_gpu.get(&a), domains_by_gpu.get(&b)) else { continue };
        for domain in domains_by_gpu.values_mut().filter(|domain| **domain == x.max(y)) {
            *domain = x.min(y);
        }
    }
    let mut pairs_by_domain: BTreeMap<usize, Vec<NvlinkCount>> = BTreeMap::new();
    for pair in linked {
        pairs_by_domain.entry(domains_by_gpu.get(&pair.a).copied().unwrap_or(pair.a)).or_default().push(pair);
    }
    let domains = pairs_by_domain.len();
    pairs_by_domain
        .into_values()
        .map(|pairs| switch_links(&pairs, domains).map_or(Domain::Direct(pairs), Domain::Switched))
        .collect()
}

/// Number of links of each GPU to a common NVSwitch; `None` if the GPUs of a domain have direct links.
///
/// GPUs are on a switch if two conditions hold. Every two of them are joined, each pair by the smaller of their numbers
/// of links. The links of a GPU to all its peers, if direct, would exceed [`MAX_NVLINKS`]. Two GPUs joined by exactly
/// this maximum are on a switch if they are the only one of the `domains`; several such pairs have bridges.
fn switch_links(pairs: &[NvlinkCount], domains: usize) -> Option<Vec<(usize, u16)>> {
    let mut links: BTreeMap<usize, u16> = BTreeMap::new();
    for &NvlinkCount { a, b, count } in pairs {
        for gpu in [a, b] {
            let max_links = links.entry(gpu).or_default();
            *max_links = (*max_links).max(count);
        }
    }
    let peers = links.len() as u64 - 1;
    let link_count = |gpu: usize| links.get(&gpu).copied().unwrap_or_default();
    let all_joined = pairs.len() as u64 == (peers + 1) * peers / 2;
    let matches_minimum = pairs.iter().all(|pair| pair.count == link_count(pair.a).min(link_count(pair.b)));
    let max_links = u64::from(links.values().copied().max()?);
    let exceeds_direct_links =
        max_links * peers > MAX_NVLINKS || (max_links >= MAX_NVLINKS && (domains == 1 || peers > 1));
    (all_joined && matches_minimum && exceeds_direct_links).then(|| links.into_iter().collect())
}

/// Evidence from the link counts: the maximum number of links of a GPU, and if all links are bridges, which connect
/// each GPU to one other GPU.
pub(super) fn evidence(counts: &[NvlinkCount]) -> Evidence {
    let mut gpus: Vec<usize> = counts.iter().flat_map(|pair| [pair.a, pair.b]).collect();
    gpus.sort_unstable();
    gpus.dedup();
    let (mut nvlinks, mut bridged) = (0, true);
    for domain in find_domains(&gpus, counts) {
        match domain {
            Domain::Switched(links) => {
                bridged = false;
                nvlinks = links.iter().map(|&(_, count)| u32::from(count)).max().unwrap_or(0).max(nvlinks);
            }
            Domain::Direct(pairs) => {
                let mut sums: BTreeMap<usize, (u32, u32)> = BTreeMap::new();
                for (gpu, count) in pairs.iter().flat_map(|pair| [(pair.a, pair.count), (pair.b, pair.count)]) {
                    let sum = sums.entry(gpu).or_default();
                    *sum = (sum.0 + u32::from(count), sum.1 + 1);
                }
                bridged &= sums.values().all(|&(_, peers)| peers == 1);
                nvlinks = sums.values().map(|&(sum, _)| sum).max().unwrap_or(0).max(nvlinks);
            }
        }
    }
    Evidence { nvlinks, bridged, ..Evidence::default() }
}
