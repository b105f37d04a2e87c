//! RCCL's estimate of a call's time with each algorithm and protocol.
//!
//! ```text
//! ring:  base + hops inside · latency + hops between hosts · latency + bytes ÷ (links · ratio · ranks ÷ steps)
//! tree:  base + 2·(ranks of a host − 1)·latency + 2·log₂(hosts)·latency + bytes ÷ (links · ratio ÷ 2)
//! ```
//!
//! Rings have 2(n − 1) steps for all_reduce, n − 1 for all_gather and reduce_scatter, n for broadcast and reduce; a
//! correction factor by message size applies to the bandwidth. A step inside a host takes at least the overhead of
//! posting to the network if there are several hosts (2 µs with AMD's CPUs, three times that with Simple). Trees exist
//! for all_reduce only, and not with Simple on one host.
//!
//! Source: RCCL 2.26.6 `src/graph/tuning.cc` (`ncclTopoTuneModel`, `ncclTopoGetAlgoTime`). 2.21.5 counts two more hops
//! between hosts for all_reduce (`nInterSteps`), which changes no choice of Simple against LL below 64 MiB.

use fabricast_topologies::Bytes;

use super::hosts::{Architecture, GPUS, RcclHosts};
use super::tuning::Tuning;
use super::version::RcclVersion;
use crate::nccl::{Algo, AlgoProto, Function, Proto};

/// Latency of a call without hops, in microseconds: LL, LL128, Simple.
const BASE_US: [f64; 3] = [12.0, 12.0, 17.0];
/// Overhead of posting a message with AMD's CPUs, in microseconds (`getNetOverhead`).
const POST_US: f64 = 2.0;
/// Factor on the bandwidth of LL in broadcast and reduce on one host (`ncclTopoTuneModel`).
const ONE_HOST_CHAINS: f64 = 1.65;

/// RCCL's time estimates for a set of hosts.
#[derive(Clone, Copy, Debug)]
pub struct Estimates {
    hosts: RcclHosts,
    version: RcclVersion,
    tuning: &'static Tuning,
}

impl Estimates {
    /// Creates the estimates of a version for a set of hosts.
    #[must_use]
    pub fn new(hosts: RcclHosts, version: RcclVersion) -> Self {
        Self { hosts, version, tuning: Tuning::new(hosts.architecture, version) }
    }

    /// Tuning table of the hosts' GPU architecture.
    #[must_use]
    pub fn tuning(&self) -> &'static Tuning {
        self.tuning
    }

    /// Returns true if the version has LL128 kernels for the GPUs. On MI300, ROCm 6.4.2 added them without a change of
    /// the version number 2.22.3, so 2.26.6 is the first version that certainly has them.
    fn has_ll128(&self) -> bool {
        self.hosts.architecture == Architecture::Gfx950 || self.version >= RcclVersion::V2_26_6
    }

    /// Estimated time of a call in microseconds; `None` if RCCL excludes the combination.
    #[must_use]
    pub fn time_us(&self, function: Function, bytes: Bytes, AlgoProto { algo, proto }: AlgoProto) -> Option<f64> {
        let (index, p) = (algorithm_index(algo)?, proto as usize);
        let one_host = self.hosts.hosts == 1;
        let is_tree = algo == Algo::Tree;
        if (is_tree && (function != Function::AllReduce || (one_host && proto == Proto::Simple)))
            || (proto == Proto::Ll128 && !self.has_ll128())
        {
            return None;
        }
        let (ranks, hosts) = (f64::from(self.hosts.ranks()), f64::from(self.hosts.hosts));
        let steps = function.ring_steps(self.hosts.ranks());
        let ratios = if self.hosts.hosts <= 2 { &self.tuning.ratio_to_two_hosts } else { &self.tuning.ratio_beyond };
        let mut bandwidth = self.hosts.total_gb_per_s() * ratios[index][p];
        let is_chain = matches!(function, Function::Broadcast | Function::Reduce);
        if one_host && proto == Proto::Ll && is_chain {
            bandwidth *= ONE_HOST_CHAINS;
        }
        bandwidth *= if is_tree { 0.5 } else { ranks / steps };
        let size = (bytes.0 >> 6).checked_ilog2().unwrap_or(0) as usize;
        let corrections = if is_tree { &self.tuning.tree_correction[p] } else { &self.tuning.ring_correction[p] };
        if is_tree || !one_host {
            bandwidth *= corrections[size.min(corrections.len() - 1)];
        }
        let (inside, between) = (self.tuning.inside_us[index][p], self.tuning.between_us[index][p]);
        let latency = if is_tree {
            2.0 * (f64::from(GPUS - 1) * inside + f64::from(self.hosts.hosts.ilog2()) * between)
        } else if is_chain {
            // With Simple, rings have the latency of trees here.
            let hop = |ring: f64, tree: f64| if proto == Proto::Simple { tree } else { ring };
            steps
                * match one_host {
                    true => hop(inside, self.tuning.inside_us[0][p]),
                    false => hop(between, self.tuning.between_us[0][p]),
                }
        } else {
            let posting = if one_host { 0.0 } else { POST_US * if proto == Proto::Simple { 3.0 } else { 1.0 } };
            let hops_between = (hosts - 1.0) * if function == Function::AllReduce { 2.0 } else { 1.0 };
            (steps - hops_between) * inside.max(posting) + hops_between * between
        };
        Some(BASE_US[p] + latency + bytes.0 as f64 / (1000.0 * bandwidth))
    }
}

/// Index of an algorithm in the tables; `None` for algorithms that RCCL does not run on these hosts.
fn algorithm_index(algo: Algo) -> Option<usize> {
    match algo {
        Algo::Tree => Some(0),
        Algo::Ring => Some(1),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(hosts: u32, function: Function, bytes: u64, algo: Algo, proto: Proto) -> Option<f64> {
        let hosts = RcclHosts { architecture: Architecture::Gfx942, hosts };
        Estimates::new(hosts, RcclVersion::V2_27_7).time_us(function, Bytes(bytes), AlgoProto { algo, proto })
    }

    /// Expected values are computed by hand from `tuning_model_5`: 336 GB/s of links, 16 ranks on two hosts.
    #[test]
    fn two_hosts_match_the_arithmetic_of_the_source() {
        let close = |actual: Option<f64>, expected: f64| {
            let actual = actual.unwrap();
            assert!((actual / expected - 1.0).abs() < 1e-9, "{actual} {expected}");
        };
        let mib = f64::from(8 << 20);
        let tree = |proto| time(2, Function::AllReduce, 8 << 20, Algo::Tree, proto);
        let ring = |proto| time(2, Function::AllReduce, 8 << 20, Algo::Ring, proto);
        close(tree(Proto::Ll), 12.0 + 2.0 * (7.0 * 0.9 + 10.5) + mib / (1000.0 * 336.0 * 0.06 * 0.5 * 0.1));
        close(tree(Proto::Simple), 17.0 + 2.0 * (7.0 * 2.3 + 25.0) + mib / (1000.0 * 336.0 * 0.11 * 0.5));
        close(ring(Proto::Ll), 12.0 + 28.0 * 2.0 + 2.0 * 9.5 + mib / (1000.0 * 336.0 * 0.08 * 16.0 / 30.0 * 0.2));
        close(ring(Proto::Simple), 17.0 + 28.0 * 6.0 + 2.0 * 320.0 + mib / (1000.0 * 336.0 * 16.0 / 30.0 * 0.1));
        let gather = time(2, Function::AllGather, 1 << 10, Algo::Ring, Proto::Ll);
        close(gather, 12.0 + 14.0 * 2.0 + 9.5 + 1024.0 / (1000.0 * 336.0 * 0.08 * 16.0 / 15.0 * 0.1));
        let chain = time(1, Function::Broadcast, 1 << 20, Algo::Ring, Proto::Ll);
        close(chain, 12.0 + 8.0 * 0.8 + f64::from(1 << 20) / (1000.0 * 336.0 * 0.08 * 1.65));
    }

    #[test]
    fn trees_are_for_all_reduce_and_need_hosts_with_simple() {
        assert_eq!(time(1, Function::AllReduce, 1 << 20, Algo::Tree, Proto::Simple), None);
        assert_eq!(time(2, Function::AllGather, 1 << 20, Algo::Tree, Proto::Ll), None);
        assert_eq!(time(2, Function::AllReduce, 1 << 20, Algo::Nvls, Proto::Simple), None);
        assert!(time(2, Function::AllReduce, 0, Algo::Tree, Proto::Ll).is_some());
    }
}
