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
//! ([`BlockScheduling`], [`CallExtent`]). cuBLAS kernels for Hopper run one thread block per SM with a static
//! assignment of tiles, so tiles of occupied SMs wait for a second wave (github.com/pytorch/pytorch, issue 143988;
//! forums.developer.nvidia.com, 337991), unless the GEMM is limited to fewer SMs (pull request 147966). Memory-bound
//! kernels are slowed more than predicted here: measured 0.14 to 0.50 of the call for a copy of 1 GiB on H200,
//! predicted 0.05 to 0.21.
//!
//! An overlapped call never costs more than an exposed one: at any time either the call or the kernels progress at full
//! speed.

use fabricast_topologies::Picos;

use super::block_scheduling::BlockScheduling;
use super::efficiency::Efficiency;
use super::kernel::Kernel;
use super::peak_rates::PeakRates;
use crate::communication::{CallExtent, SmUsage};
use crate::time::scaled;

/// Slowdown of persistent GEMMs by an overlapping call, beyond the share of SMs that it occupies, as a fraction of the
/// call. Median of 45 measurements on two H200, 0.1804 (`planner/data/h200-steps/overlap.py` and `.jsonl`: five GEMMs,
/// three sizes of all-reduce, 4, 16 and 24 channels). It hardly depends on the number of channels.
///
/// The slowdown applies only to calls inside an NVLink domain, where it was measured. If it also applied to network
/// calls, Llama 3 on twice the GPUs would lose 12 % per GPU instead of 9 % (published: 7 %), although step times would
/// be nearer to the published ones.
const TAIL_SLOWDOWN: f64 = 0.18;

/// Slowdown of GEMMs beyond the occupied SMs, as a fraction of the call, 0 to 1.
fn tail(scheduling: BlockScheduling, sm_usage: SmUsage) -> f64 {
    match (scheduling, sm_usage.extent) {
        (BlockScheduling::Persistent, CallExtent::Inside) if sm_usage.sms > 0 => TAIL_SLOWDOWN,
        _ => 0.0,
    }
}

/// Additional time of kernels and calls that overlap, compared with the kernels alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OverlapCost {
    /// Time of the calls that is not hidden behind the kernels.
    pub exposed: Picos,
    /// Slowdown of the kernels by the calls, and by their division into pieces.
    pub slowdown: Picos,
}

impl OverlapCost {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self { exposed: self.exposed + other.exposed, slowdown: self.slowdown + other.slowdown }
    }

    pub(crate) fn times(self, n: u64) -> Self {
        Self { exposed: scaled(self.exposed, n), slowdown: scaled(self.slowdown, n) }
    }
}

/// Call that overlaps with kernels, and their slowdown if it overlaps from its begin to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OverlappedCall {
    pub call: Picos,
    /// Total slowdown of the kernels; at most `call`.
    pub slowdown: Picos,
}

impl OverlappedCall {
    /// Creates a call of duration `call` that overlaps with these kernels, any of which may run when it starts.
    pub(crate) fn new(
        call: Picos,
        sm_usage: SmUsage,
        kernels: &[Kernel],
        curve: &Efficiency,
        speeds: &PeakRates,
    ) -> Self {
        let sm_share = speeds.sms.map_or(0.0, |sms| f64::from(sm_usage.sms) / f64::from(sms.max(1)));
        let sm_slowdown = Picos((call.0 as f64 * (sm_share + tail(speeds.block_scheduling, sm_usage)).min(1.0)) as u64);
        let memory_slowdown = sm_usage.memory.0 as f64 / (speeds.memory.0 as f64 * curve.memory);
        let memory_slowdown = Picos((memory_slowdown * 1e12) as u64).min(call);
        let (mut total_time, mut slowdown) = (0u128, 0u128);
        for kernel in kernels.iter().filter(|kernel| **kernel != Kernel::default()) {
            let time = curve.time(kernel, speeds);
            let kernel_slowdown = match (speeds.sms, curve.is_compute_bound(kernel, speeds)) {
                (None, _) => Picos::ZERO,
                (Some(_), true) => sm_slowdown,
                (Some(_), false) => memory_slowdown,
            };
            total_time += u128::from(time.0);
            slowdown += u128::from((time - curve.start).0) * u128::from(kernel_slowdown.0);
        }
        Self { call, slowdown: Picos((slowdown / total_time.max(1)) as u64).min(call) }
    }

    /// Returns the total of `n` such calls in sequence.
    pub(crate) fn times(self, n: u64) -> Self {
        Self { call: scaled(self.call, n), slowdown: scaled(self.slowdown, n) }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self { call: self.call + other.call, slowdown: self.slowdown + other.slowdown }
    }

    /// Combines two concurrent calls on different links: the longer duration, and the sum of slowdowns up to it.
    pub(super) fn concurrent_with(self, other: Self) -> Self {
        let call = self.call.max(other.call);
        Self { call, slowdown: (self.slowdown + other.slowdown).min(call) }
    }

    /// Slowdown if only a part of the call of duration `call` overlaps with kernels.
    pub(super) fn partial_slowdown(self, call: Picos) -> Picos {
        let slowdown =
            u128::from(self.slowdown.0) * u128::from(call.0.min(self.call.0)) / u128::from(self.call.0.max(1));
        Picos(slowdown as u64)
    }

    /// Scales the slowdown to overlapped work of duration `total`, of which kernels run for `kernels`.
    pub(super) fn scaled_to_share(self, kernels: Picos, total: Picos) -> Self {
        let slowdown = u128::from(self.slowdown.0) * u128::from(kernels.0.min(total.0)) / u128::from(total.0.max(1));
        Self { slowdown: Picos(slowdown as u64), ..self }
    }

    /// Returns the cost of the overlap of the call with `work`.
    pub(crate) fn cost(self, work: Picos) -> OverlapCost {
        let Self { call, slowdown } = self;
        if work + slowdown >= call {
            return OverlapCost { exposed: Picos::ZERO, slowdown };
        }
        // The work ends first, so only a part of the call overlapped.
        let partial_slowdown = u128::from(work.0) * u128::from(slowdown.0) / u128::from((call - slowdown).0.max(1));
        let partial_slowdown = Picos(partial_slowdown as u64).min(call - work);
        OverlapCost { exposed: call - work - partial_slowdown, slowdown: partial_slowdown }
    }
}

#[cfg(test)]
mod tests {
    use fabricast_sim::schedule::{Collective, Protocol};
    use fabricast_topologies::{Bandwidth, Bytes};
    use proptest::prelude::*;

    use super::*;
    use crate::communication::Exchange;
    use crate::step::kernel::KernelKind;
    use fabricast_collectives::algorithm::Algorithm;
    use fabricast_collectives::strategy::Strategy;
    use fabricast_workload::job::{Dimension, Flops};

    const CURVE: Efficiency =
        Efficiency { matrix: 0.5, attention: 0.5, memory: 0.5, stream: 0.5, start: Picos(0), spread: 0.0 };

    const SPEEDS: PeakRates = PeakRates {
        flops_per_s: 2e12,
        wide_flops_per_s: 2e12,
        exact_flops_per_s: 2e12,
        flash_attention_2: 1.0,
        memory: Bandwidth(2_000_000_000_000),
        sms: Some(100),
        block_scheduling: BlockScheduling::Dynamic,
        offload_bandwidth: None,
        host_memory_bandwidth: None,
        weights_bandwidth: None,
        adapter_bandwidth: None,
        drives: None,
    };

    const MEASURED: &str = include_str!("../../../data/h200-steps/overlap.jsonl");

    fn build_sm_usage(sms: u32, memory: u64) -> SmUsage {
        SmUsage { extent: CallExtent::Inside, sms, memory: Bytes(memory) }
    }

    /// GEMM that runs for the given time in picoseconds on the test's GPU.
    fn gemm(time: u64) -> Kernel {
        Kernel { kind: KernelKind::Gemm, flops: Flops(u128::from(time)), bytes: Bytes(0) }
    }

    fn stream(time: u64) -> Kernel {
        Kernel::stream(time)
    }

    #[test]
    fn gemms_lose_the_occupied_sms() {
        let slowdown = |sms, start| {
            let curve = Efficiency { start: Picos(start), ..CURVE };
            OverlappedCall::new(Picos(1000), build_sm_usage(sms, 0), &[gemm(500), stream(500)], &curve, &SPEEDS)
                .slowdown
                .0
        };
        assert_eq!([slowdown(0, 0), slowdown(20, 0), slowdown(100, 0), slowdown(200, 0)], [0, 100, 500, 500]);
        // Half of the time is kernel launch.
        assert_eq!(slowdown(20, 500), 50);
        let unknown = PeakRates { sms: None, ..SPEEDS };
        assert_eq!(
            OverlappedCall::new(Picos(1000), build_sm_usage(20, 50), &[gemm(500)], &CURVE, &unknown).slowdown,
            Picos::ZERO
        );
    }

    /// `TAIL_SLOWDOWN` is the measured median slowdown of GEMMs beyond the occupied SMs.
    #[test]
    fn tail_matches_measured_median() {
        let number = |line: &str, key: &str| -> f64 {
            let (_, rest) = line.split_once(&format!("\"{key}\": ")).unwrap();
            rest.split([',', '}']).next().unwrap().parse().unwrap()
        };
        let sms = number(MEASURED.lines().next().unwrap(), "sms");
        let mut tails: Vec<f64> = MEASURED
            .lines()
            .filter(|line| line.contains("\"kernel\": \"product"))
            .map(|line| {
                let (_, rest) = line.split_once("max_ctas ").unwrap();
                // NCCL's own choice between two GPUs on NVLink.
                let channels = match rest.split('"').next().unwrap() {
                    "0" => 24.0,
                    count => count.parse().unwrap(),
                };
                number(line, "lost_of_call") - channels / sms
            })
            .collect();
        tails.sort_by(f64::total_cmp);
        assert_eq!(tails.len(), 45);
        let median = tails[tails.len() / 2];
        println!("{median:.4} of {} products and calls, {:.3} to {:.3}", tails.len(), tails[0], tails[44]);
        assert!((median - TAIL_SLOWDOWN).abs() < 0.005, "{median}");
    }

    #[test]
    fn persistent_gemms_lose_a_tail_to_any_channel() {
        let hopper = PeakRates { block_scheduling: BlockScheduling::Persistent, ..SPEEDS };
        let slowdown = |sms, kernels: &[Kernel]| {
            OverlappedCall::new(Picos(1000), build_sm_usage(sms, 0), kernels, &CURVE, &hopper).slowdown.0
        };
        let [none, one, some, many, all] = [0, 1, 20, 90, 100].map(|sms| slowdown(sms, &[gemm(500)]));
        assert_eq!([none, one, some, many, all], [0, 190, 380, 1000, 1000]);
        assert_eq!(slowdown(20, &[stream(500)]), 0);
        assert_eq!(slowdown(20, &[gemm(500), stream(500)]), 190);
        let beyond = SmUsage { extent: CallExtent::Beyond, ..build_sm_usage(20, 0) };
        assert_eq!(OverlappedCall::new(Picos(1000), beyond, &[gemm(500)], &CURVE, &hopper).slowdown, Picos(200));
    }

    #[test]
    fn copy_engines_occupy_no_sms_and_streams_lose_bandwidth() {
        let sm_usage = |protocol| {
            let strategy = Strategy::new(Algorithm::Ring, protocol, 24);
            let exchange =
                Exchange { dimension: Dimension::Data, collective: Collective::AllGather, bytes: Bytes(1000) };
            SmUsage::new(&strategy, &exchange, 2, CallExtent::Inside)
        };
        assert_eq!(sm_usage(Protocol::CopyEngine), build_sm_usage(0, 1000));
        assert_eq!(sm_usage(Protocol::Simple), build_sm_usage(24, 1500));
        let slowdown = |kernels: &[Kernel], protocol| {
            OverlappedCall::new(Picos(10_000), sm_usage(protocol), kernels, &CURVE, &SPEEDS).slowdown.0
        };
        assert_eq!(slowdown(&[gemm(100)], Protocol::CopyEngine), 0);
        assert_eq!(slowdown(&[stream(100)], Protocol::CopyEngine), 1000);
        assert_eq!(slowdown(&[gemm(300), stream(100)], Protocol::CopyEngine), 250);
        assert_eq!(slowdown(&[gemm(300), stream(100)], Protocol::Simple), 1800 + 375);
    }

    proptest! {
        /// An overlapped call never costs more than an exposed one, a shorter call never costs more, and slowdown and
        /// exposed time add up.
        #[test]
        fn overlapped_call_costs_no_more_than_itself(
            gemms in prop::collection::vec(1u64..5_000, 1..5), streams in prop::collection::vec(1u64..5_000, 0..5),
            sms in 0u32..200, memory in 0u64..100_000, call in 0u64..100_000, shorter in 0u64..100_000,
            work in 0u64..200_000,
            block_scheduling in prop::sample::select(vec![BlockScheduling::Dynamic, BlockScheduling::Persistent]),
            extent in prop::sample::select(vec![CallExtent::Inside, CallExtent::Beyond]),
        ) {
            let speeds = PeakRates { block_scheduling, ..SPEEDS };
            let kernels: Vec<Kernel> = gemms.into_iter().map(gemm).chain(streams.into_iter().map(stream)).collect();
            let sm_usage = SmUsage { extent, ..build_sm_usage(sms, memory) };
            let overlap = |call: u64| OverlappedCall::new(Picos(call), sm_usage, &kernels, &CURVE, &speeds);
            let total = |overlapped_call: OverlappedCall| {
                let OverlapCost { exposed, slowdown } = overlapped_call.cost(Picos(work));
                Picos(work) + slowdown + exposed
            };
            let overlapped_call = overlap(call);
            prop_assert!(overlapped_call.slowdown <= overlapped_call.call);
            prop_assert_eq!(total(overlapped_call), (Picos(work) + overlapped_call.slowdown).max(Picos(call)));
            prop_assert!(total(overlap(shorter.min(call))) <= total(overlapped_call) + Picos(1));
        }
    }
}
