//! Slowdown of kernels by a call that overlaps with them.
//!
//! A channel of a call is a thread block that occupies a streaming multiprocessor (SM) while the call runs; copy
//! engines occupy none. Compute-bound kernels lose the occupied SMs, and memory-bound kernels lose the bandwidth for
//! the bytes that the call reads and writes in the same memory. The fixed launch time of kernels is not slowed.
//!
//! ```text
//! lost = Σ over kernels of share of time × { compute-bound   call × (channels / SMs + tail)
//!                                            memory-bound    bytes of the call / (memory × bandwidth) }   ≤ call
//! ```
//!
//! The tail is a slowdown of GEMMs beyond the occupied SMs, for calls with channels inside an NVLink domain
//! ([`Blocks`], [`Reach`]). cuBLAS kernels for Hopper run one thread block per SM with a static assignment of tiles, so
//! tiles of occupied SMs wait for a second wave (github.com/pytorch/pytorch, issue 143988; forums.developer.nvidia.com,
//! 337991), unless the GEMM is limited to fewer SMs (pull request 147966). Memory-bound kernels are slowed more than
//! predicted here: measured 0.14 to 0.50 of the call for a copy of 1 GiB on H200, predicted 0.05 to 0.21.
//!
//! An overlapped call never costs more than an exposed one: at any time either the call or the kernels progress at full
//! speed.

use fabricast_sim::schedule::Protocol;
use fabricast_topologies::{Bytes, Picos};

use super::efficiency::Efficiency;
use super::kernels::Kernel;
use super::price::Exchange;
use super::speeds::Speeds;
use crate::strategy::Strategy;

/// Extent of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// Within an NVLink domain.
    #[default]
    Inside,
    /// Through PCIe or a network.
    Beyond,
}

/// Resources that a call uses on each of its GPUs while it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Extent of the call.
    pub reach: Reach,
    /// Number of SMs: one per channel.
    pub sms: u32,
    /// Bytes that it reads from and writes to the GPU's memory.
    pub memory: Bytes,
}

impl Claim {
    /// Computes the usage of a call with a strategy among `ranks` ranks. A byte that arrives through a FIFO is written
    /// there by its sender, read, and written to its destination or added to the value there
    /// (nccl/src/device/prims_simple.h). Copy engines and one-sided stores read it once and write it once.
    #[must_use]
    pub fn of(strategy: &Strategy, exchange: &Exchange, ranks: u32, reach: Reach) -> Self {
        let (sms, accesses) = match strategy.protocol {
            Protocol::CopyEngine => (0, 2.0),
            Protocol::Symmetric => (u32::from(strategy.channels), 2.0),
            Protocol::Ll | Protocol::Ll128 | Protocol::Simple => (u32::from(strategy.channels), 3.0),
        };
        let arrives = exchange.bytes.0 as f64 * exchange.collective.busbw_factor(ranks);
        Self { reach, sms, memory: Bytes((arrives * accesses) as u64) }
    }
}

/// Scheduling of a GPU generation's GEMM thread blocks on SMs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Blocks {
    /// Dynamic, to the next free SM: Ampere and before, and Blackwell, whose SMs fetch another tile when they end one
    /// (CUTLASS, "Blackwell Cluster Launch Control").
    #[default]
    AsSmsComeFree,
    /// Persistent, one block per SM until the GEMM ends: Hopper.
    OneForEachSm,
}

/// Slowdown of persistent GEMMs by an overlapping call, beyond the share of SMs that it occupies, as a fraction of the
/// call. Median of 45 measurements on two H200, 0.1804 (`planner/data/h200-steps/overlap.py` and `.jsonl`: five GEMMs,
/// three sizes of all-reduce, 4, 16 and 24 channels). It hardly depends on the number of channels.
///
/// It applies only to calls inside an NVLink domain, where it was measured. Network calls were not measured; with the
/// tail on them as well, Llama 3 loses 12 % per GPU on twice the GPUs instead of 9 % (published 7 %), although step
/// times are nearer to the published ones.
const TAIL: f64 = 0.18;

impl Blocks {
    /// Returns the scheduling for a compute capability, as major × 10 + minor.
    pub(super) fn of(capability: u32) -> Self {
        match capability {
            90..100 => Self::OneForEachSm,
            _ => Self::AsSmsComeFree,
        }
    }

    /// Slowdown of GEMMs beyond the occupied SMs, as a fraction of the call, 0 to 1.
    fn tail(self, claim: Claim) -> f64 {
        match (self, claim.reach) {
            (Self::OneForEachSm, Reach::Inside) if claim.sms > 0 => TAIL,
            _ => 0.0,
        }
    }
}

/// Call that overlaps with kernels, and their slowdown if it overlaps from its begin to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Beside {
    pub call: Picos,
    /// At most `call`.
    pub lost: Picos,
}

impl Beside {
    /// Creates a call of duration `call` that overlaps with these kernels, any of which may run when it starts.
    pub(super) fn of(call: Picos, claim: Claim, kernels: &[Kernel], curve: &Efficiency, speeds: &Speeds) -> Self {
        let held = speeds.sms.map_or(0.0, |sms| f64::from(claim.sms) / f64::from(sms.max(1)));
        let channels = Picos((call.0 as f64 * (held + speeds.blocks.tail(claim)).min(1.0)) as u64);
        let streams = claim.memory.0 as f64 / (speeds.memory.0 as f64 * curve.memory);
        let streams = Picos((streams * 1e12) as u64).min(call);
        let (mut all, mut lost) = (0u128, 0u128);
        for kernel in kernels.iter().filter(|kernel| **kernel != Kernel::default()) {
            let time = curve.time(kernel, speeds);
            let own = match (speeds.sms, curve.is_bound_by_units(kernel, speeds)) {
                (None, _) => Picos::ZERO,
                (Some(_), true) => channels,
                (Some(_), false) => streams,
            };
            all += u128::from(time.0);
            lost += u128::from((time - curve.start).0) * u128::from(own.0);
        }
        Self { call, lost: Picos((lost / all.max(1)) as u64).min(call) }
    }

    /// Returns `n` such calls in sequence.
    pub(super) fn times(self, n: u64) -> Self {
        Self { call: super::times(self.call, n), lost: super::times(self.lost, n) }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self { call: self.call + other.call, lost: self.lost + other.lost }
    }

    /// Combines two concurrent calls on different links.
    pub(super) fn at_once(self, other: Self) -> Self {
        let call = self.call.max(other.call);
        Self { call, lost: (self.lost + other.lost).min(call) }
    }

    /// Slowdown if only a part of the call, `call` long, overlaps.
    pub(super) fn part(self, call: Picos) -> Picos {
        let lost = u128::from(self.lost.0) * u128::from(call.0.min(self.call.0)) / u128::from(self.call.0.max(1));
        Picos(lost as u64)
    }

    /// Scales the slowdown to the share of kernels in the overlapped work.
    pub(super) fn of_part(self, kernels: Picos, whole: Picos) -> Self {
        let lost = u128::from(self.lost.0) * u128::from(kernels.0.min(whole.0)) / u128::from(whole.0.max(1));
        Self { lost: Picos(lost as u64), ..self }
    }

    /// Slowdown of `work` that overlaps with the call, and the exposed rest of the call.
    pub(super) fn work(self, work: Picos) -> (Picos, Picos) {
        let Self { call, lost } = self;
        if work + lost >= call {
            return (lost, Picos::ZERO);
        }
        // The work ends first, so only a part of the call overlapped.
        let own = u128::from(work.0) * u128::from(lost.0) / u128::from((call - lost).0.max(1));
        let own = Picos(own as u64).min(call - work);
        (own, call - work - own)
    }
}

#[cfg(test)]
mod tests {
    use fabricast_topologies::Bandwidth;
    use proptest::prelude::*;

    use fabricast_sim::schedule::Collective;

    use super::*;
    use crate::algorithm::Algorithm;
    use crate::job::{Dimension, Flops};
    use crate::step::Kind;
    use crate::strategy::Strategy;

    const CURVE: Efficiency =
        Efficiency { matrix: 0.5, attention: 0.5, memory: 0.5, stream: 0.5, start: Picos(0), spread: 0.0 };

    const SPEEDS: Speeds = Speeds {
        flops_per_s: 2e12,
        wide_flops_per_s: 2e12,
        exact_flops_per_s: 2e12,
        second_flash: 1.0,
        memory: Bandwidth(2_000_000_000_000),
        sms: Some(100),
        blocks: Blocks::AsSmsComeFree,
        elsewhere: None,
    };

    const MEASURED: &str = include_str!("../../data/h200-steps/overlap.jsonl");

    fn claim(sms: u32, memory: u64) -> Claim {
        Claim { reach: Reach::Inside, sms, memory: Bytes(memory) }
    }

    /// GEMM of the given time in picoseconds, and a streaming kernel.
    fn product(time: u64) -> Kernel {
        Kernel { kind: Kind::Product, flops: Flops(u128::from(time)), bytes: Bytes(0) }
    }

    fn stream(time: u64) -> Kernel {
        Kernel::stream(time)
    }

    #[test]
    fn gemms_lose_the_occupied_sms() {
        let lost = |sms, start| {
            let curve = Efficiency { start: Picos(start), ..CURVE };
            Beside::of(Picos(1000), claim(sms, 0), &[product(500), stream(500)], &curve, &SPEEDS).lost.0
        };
        assert_eq!([lost(0, 0), lost(20, 0), lost(100, 0), lost(200, 0)], [0, 100, 500, 500]);
        // Half of the time is kernel launch.
        assert_eq!(lost(20, 500), 50);
        let unknown = Speeds { sms: None, ..SPEEDS };
        assert_eq!(Beside::of(Picos(1000), claim(20, 50), &[product(500)], &CURVE, &unknown).lost, Picos::ZERO);
    }

    /// The constant is the measured median slowdown of GEMMs beyond the occupied SMs.
    #[test]
    fn tail_matches_measured_median() {
        let number = |line: &str, key: &str| -> f64 {
            let (_, rest) = line.split_once(&format!("\"{key}\": ")).unwrap();
            rest.split([',', '}']).next().unwrap().parse().unwrap()
        };
        let sms = number(MEASURED.lines().next().unwrap(), "sms");
        let mut beyond: Vec<f64> = MEASURED
            .lines()
            .filter(|line| line.contains("\"kernel\": \"product"))
            .map(|line| {
                let (_, rest) = line.split_once("max_ctas ").unwrap();
                // NCCL's own choice between two GPUs on NVLink.
                let channels = match rest.split('"').next().unwrap() {
                    "0" => 24.0,
                    given => given.parse().unwrap(),
                };
                number(line, "lost_of_call") - channels / sms
            })
            .collect();
        beyond.sort_by(f64::total_cmp);
        assert_eq!(beyond.len(), 45);
        let median = beyond[beyond.len() / 2];
        println!("{median:.4} of {} products and calls, {:.3} to {:.3}", beyond.len(), beyond[0], beyond[44]);
        assert!((median - TAIL).abs() < 0.005, "{median}");
    }

    #[test]
    fn gemm_blocks_are_persistent_on_hopper() {
        let of = |capabilities: &[u32]| -> Vec<Blocks> { capabilities.iter().map(|&one| Blocks::of(one)).collect() };
        assert_eq!(of(&[0, 70, 80, 89, 100, 103, 120, 942]), [Blocks::AsSmsComeFree; 8]);
        assert_eq!(of(&[90]), [Blocks::OneForEachSm]);
    }

    #[test]
    fn persistent_gemms_lose_a_tail_to_any_channel() {
        let hopper = Speeds { blocks: Blocks::OneForEachSm, ..SPEEDS };
        let lost = |sms, kernels: &[Kernel]| Beside::of(Picos(1000), claim(sms, 0), kernels, &CURVE, &hopper).lost.0;
        let [none, one, some, most, all] = [0, 1, 20, 90, 100].map(|sms| lost(sms, &[product(500)]));
        assert_eq!([none, one, some, most, all], [0, 190, 380, 1000, 1000]);
        assert_eq!(lost(20, &[stream(500)]), 0);
        assert_eq!(lost(20, &[product(500), stream(500)]), 190);
        let beyond = Claim { reach: Reach::Beyond, ..claim(20, 0) };
        assert_eq!(Beside::of(Picos(1000), beyond, &[product(500)], &CURVE, &hopper).lost, Picos(200));
    }

    #[test]
    fn copy_engines_occupy_no_sms_and_streams_lose_bandwidth() {
        let of = |protocol| {
            let strategy = Strategy { algorithm: Algorithm::Ring, protocol, channels: 24, threads: None, chunk: None };
            let exchange =
                Exchange { dimension: Dimension::Data, collective: Collective::AllGather, bytes: Bytes(1000) };
            Claim::of(&strategy, &exchange, 2, Reach::Inside)
        };
        assert_eq!(of(Protocol::CopyEngine), claim(0, 1000));
        assert_eq!(of(Protocol::Simple), claim(24, 1500));
        let lost =
            |kernels: &[Kernel], protocol| Beside::of(Picos(10_000), of(protocol), kernels, &CURVE, &SPEEDS).lost.0;
        assert_eq!(lost(&[product(100)], Protocol::CopyEngine), 0);
        assert_eq!(lost(&[stream(100)], Protocol::CopyEngine), 1000);
        assert_eq!(lost(&[product(300), stream(100)], Protocol::CopyEngine), 250);
        assert_eq!(lost(&[product(300), stream(100)], Protocol::Simple), 1800 + 375);
    }

    proptest! {
        /// An overlapped call never costs more than an exposed one, a shorter call never costs more, and slowdown and
        /// exposed time add up.
        #[test]
        fn overlapped_call_costs_no_more_than_itself(
            products in prop::collection::vec(1u64..5_000, 1..5), streams in prop::collection::vec(1u64..5_000, 0..5),
            sms in 0u32..200, memory in 0u64..100_000, call in 0u64..100_000, less in 0u64..100_000, work in 0u64..200_000,
            blocks in prop::sample::select(vec![Blocks::AsSmsComeFree, Blocks::OneForEachSm]),
            reach in prop::sample::select(vec![Reach::Inside, Reach::Beyond]),
        ) {
            let speeds = Speeds { blocks, ..SPEEDS };
            let kernels: Vec<Kernel> = products.into_iter().map(product).chain(streams.into_iter().map(stream)).collect();
            let claim = Claim { reach, ..claim(sms, memory) };
            let of = |call: u64| Beside::of(Picos(call), claim, &kernels, &CURVE, &speeds);
            let total = |beside: Beside| {
                let (lost, waited) = beside.work(Picos(work));
                Picos(work) + lost + waited
            };
            let beside = of(call);
            prop_assert!(beside.lost <= beside.call);
            prop_assert_eq!(total(beside), (Picos(work) + beside.lost).max(Picos(call)));
            prop_assert!(total(of(less.min(call))) <= total(beside) + Picos(1));
        }
    }
}
