//! How much of their time kernels lose to a call that travels beside them.
//!
//! A channel of a call is a block of threads that holds a streaming multiprocessor (SM) while the call runs; copy engines hold none.
//! Kernels bound by operations lose the SMs that are held, those that stream the bytes that the call reads and writes in the same
//! memory, and what it takes to start them loses nothing.
//!
//! ```text
//! lost = Σ over kernels of share of time × { bound by operations   call × (channels / SMs + tail)
//!                                            stream                bytes of the call / (memory × bandwidth) }   ≤ call
//! ```
//!
//! The tail is what products lose beyond the SMs that are held, where there are any and the call stays in an NVLink domain
//! ([`Blocks`], [`Reach`]): those of cuBLAS for Hopper are a block for each SM, each with its tiles from the start, so that tiles of
//! SMs that are held wait for a second wave (github.com/pytorch/pytorch, issue 143988; forums.developer.nvidia.com, 337991), unless
//! they are told to leave SMs alone (pull request 147966). Streams lose more than told here: a copy of 1 GiB on H200 lost 0.14 to
//! 0.50 of the same calls, of which their bytes are 0.05 to 0.21.
//!
//! So a call beside kernels never costs more than one that is waited for: either it travels or they run, at least.

use fabricast_sim::schedule::Protocol;
use fabricast_topologies::{Bytes, Picos};

use super::efficiency::Efficiency;
use super::kernels::Kernel;
use super::price::Exchange;
use super::speeds::Speeds;
use crate::strategy::Strategy;

/// How far a call goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// It stays in an NVLink domain.
    #[default]
    Inside,
    /// Through PCIe or a network.
    Beyond,
}

/// What a call holds of each of its GPUs while it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// How far it goes.
    pub reach: Reach,
    /// SMs: one a channel.
    pub sms: u32,
    /// What it reads and writes of the GPU's memory.
    pub memory: Bytes,
}

impl Claim {
    /// That of a call done this way among so many ranks. A byte that comes in through a FIFO is written there by its sender and
    /// read, and either written to its place or added to what is read there (nccl/src/device/prims_simple.h); copy engines and
    /// one-sided stores read it once and write it once.
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

/// How blocks of a generation's products come to SMs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Blocks {
    /// Each to the next that comes free: Ampere and before, and Blackwell, whose SMs fetch another tile when they end one (CUTLASS,
    /// "Blackwell Cluster Launch Control").
    #[default]
    AsSmsComeFree,
    /// One for each SM, which stays until the product ends: Hopper.
    OneForEachSm,
}

/// What products of one block for each SM lose of a call beside them, beyond the share of SMs that it holds: the median of 45 figures
/// of two H200 (`planner/data/h200-steps/overlap.py` and `.jsonl`, five products, three sizes of all-reduce, 4, 16 and 24 channels),
/// 0.1804. It is the same with few channels: 0.193, 0.177 and 0.174. Products of 0.06 to 0.2 ms lose 0.17 to 0.18 in the median, one
/// of 0.3 ms 0.05, one of 1.5 ms 0.16; one of 11 ms up to a tenth of itself, several times a short call, which is told as no more
/// than the call.
///
/// It is charged where it was measured, beside calls inside an NVLink domain. Of calls through a network nothing was measured;
/// charged there too, Llama 3 on twice the GPUs loses 12 % of each, without it 9 %, where 7 were published (its times are nearer
/// with it: −10.4 and −4.9 % instead of −10.8 and −9.0 %).
const TAIL: f64 = 0.18;

impl Blocks {
    /// Those of a compute capability, major × 10 + minor.
    pub(super) fn of(capability: u32) -> Self {
        match capability {
            90..100 => Self::OneForEachSm,
            _ => Self::AsSmsComeFree,
        }
    }

    /// What products lose of a call beyond the SMs that it holds, over 0 to 1.
    fn tail(self, claim: Claim) -> f64 {
        match (self, claim.reach) {
            (Self::OneForEachSm, Reach::Inside) if claim.sms > 0 => TAIL,
            _ => 0.0,
        }
    }
}

/// A call that travels beside kernels, and what they lose by it if it does so from its begin to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Beside {
    pub call: Picos,
    /// No more than `call`.
    pub lost: Picos,
}

impl Beside {
    /// A call that takes `call` beside these kernels, any of which may run when it begins.
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

    /// So many of it, one after the other.
    pub(super) fn times(self, n: u64) -> Self {
        Self { call: super::times(self.call, n), lost: super::times(self.lost, n) }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self { call: self.call + other.call, lost: self.lost + other.lost }
    }

    /// Both at once, each on links of its own.
    pub(super) fn at_once(self, other: Self) -> Self {
        let call = self.call.max(other.call);
        Self { call, lost: (self.lost + other.lost).min(call) }
    }

    /// What is lost where so much of it is beside them.
    pub(super) fn part(self, call: Picos) -> Picos {
        let lost = u128::from(self.lost.0) * u128::from(call.0.min(self.call.0)) / u128::from(self.call.0.max(1));
        Picos(lost as u64)
    }

    /// The part that kernels lose where they are but a part of what is done beside it.
    pub(super) fn of_part(self, kernels: Picos, whole: Picos) -> Self {
        let lost = u128::from(self.lost.0) * u128::from(kernels.0.min(whole.0)) / u128::from(whole.0.max(1));
        Self { lost: Picos(lost as u64), ..self }
    }

    /// What work beside it loses, and how long it is waited for after that.
    pub(super) fn work(self, work: Picos) -> (Picos, Picos) {
        let Self { call, lost } = self;
        if work + lost >= call {
            return (lost, Picos::ZERO);
        }
        // It ends first; then less than all of the call was beside it.
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

    /// A product of so many picoseconds, and a stream.
    fn product(time: u64) -> Kernel {
        Kernel { kind: Kind::Product, flops: Flops(u128::from(time)), bytes: Bytes(0) }
    }

    fn stream(time: u64) -> Kernel {
        Kernel::stream(time)
    }

    #[test]
    fn products_lose_the_sms_that_are_held() {
        let lost = |sms, start| {
            let curve = Efficiency { start: Picos(start), ..CURVE };
            Beside::of(Picos(1000), claim(sms, 0), &[product(500), stream(500)], &curve, &SPEEDS).lost.0
        };
        assert_eq!([lost(0, 0), lost(20, 0), lost(100, 0), lost(200, 0)], [0, 100, 500, 500]);
        // Half of the time kernels start.
        assert_eq!(lost(20, 500), 50);
        let unknown = Speeds { sms: None, ..SPEEDS };
        assert_eq!(Beside::of(Picos(1000), claim(20, 50), &[product(500)], &CURVE, &unknown).lost, Picos::ZERO);
    }

    /// What products lost of calls beside them beyond the SMs held, in the median, is the figure.
    #[test]
    fn the_tail_is_the_median_of_what_was_measured() {
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
                // NCCL's own choice between two GPUs of NVLink.
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
    fn blocks_are_one_for_each_sm_on_hopper() {
        let of = |capabilities: &[u32]| -> Vec<Blocks> { capabilities.iter().map(|&one| Blocks::of(one)).collect() };
        assert_eq!(of(&[0, 70, 80, 89, 100, 103, 120, 942]), [Blocks::AsSmsComeFree; 8]);
        assert_eq!(of(&[90]), [Blocks::OneForEachSm]);
    }

    #[test]
    fn products_of_a_block_for_each_sm_lose_a_tail_to_any_channel() {
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
    fn copy_engines_hold_no_sms_and_streams_lose_bytes() {
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
        /// Waiting for a call and then working is never faster; less of a call is never slower; what is lost and waited for is told whole.
        #[test]
        fn a_call_beside_work_costs_no_more_than_itself(
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
