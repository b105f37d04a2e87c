//! Time that calls of a step use the same links: exchanges of experts, gradients and weights, keys and values.

use fabricast_topologies::{Bytes, Fabric, FabricRequest, Picos, load};
use fabricast_workload::job::{CollectiveCandidates, Dimension, Layout};
use proptest::prelude::*;

use super::super::{Efficiency, Step, best_step, step, step_calls, step_exchanges};
use super::{SPEEDS, read, with_machine};
use crate::communication::{CallExtent, CommunicationCostModel, Exchange, SmUsage};
use fabricast_search::plan::PlanError;

/// Job of experts on `ranks` ranks, with eight layers.
fn job(ranks: u32, parallel: &str, lines: &str) -> String {
    format!(
        "name = \"j\"\nglobal_batch = {}\nmicro_batch = 1\nflash_attention = true\n{lines}\nparallel = {{ {parallel} }}\n\
         model = {{ layers = 8, hidden = 2048, heads = 16, ffn = 1024, gated = true, vocab = 32000, seq = 2048, experts = 64, \
         experts_per_token = 4 }}\n",
        4 * ranks
    )
}

/// Hosts of eight H100 with a NIC of `nic` Gb/s each.
fn hosts(nodes: u32, nic: u32) -> Fabric {
    let network = Some(format!("rail,nics_per_node=8,nic={nic}Gb/s").parse().unwrap());
    load(&FabricRequest { nodes: Some(nodes), network, ..FabricRequest::new("hgx-h100") }).unwrap()
}

/// Predicted step, and the utilization of its busiest link.
fn predict(fabric: &Fabric, text: &str) -> (Step, f64) {
    let job = read(text);
    with_machine(fabric, |machine| {
        let step = best_step(&job, machine).unwrap().0;
        let costs = machine.simulated.restricted_to(CollectiveCandidates::Library);
        let calls = costs.timed_calls(&step.layout, &step_calls(&job, &step.layout)).unwrap();
        let load = machine.simulated.load(&step.layout, &calls, &step_exchanges(&job, &step.layout));
        let utilization = load.utilization(machine.router, step.time).into_iter().fold(0.0, f64::max);
        (step, utilization)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// No link carries more than its bandwidth permits in the time of a step, and overlap makes no step slower.
    #[test]
    fn links_are_used_at_most_all_of_the_time(
        nic in 1u32..9, zero in 0u32..4, accumulate in prop::sample::select(vec!["", "accumulate = \"whole\"\n"]),
        dispatcher in prop::sample::select(vec!["deepep", "deepep-low-latency", "all_to_all"]),
        parallel in prop::sample::select(vec!["dp = 16, ep = 16", "dp = 16, ep = 8", "cp = 2, dp = 8, ep = 8", "tp = 2, dp = 8, ep = 8", "dp = 16, pp = 2, ep = 16", "dp = 16, pp = 2, ep = 16, interleave = 2"]),
        overlap in any::<bool>(),
    ) {
        // With stages, each has two hosts.
        let nodes = if parallel.contains("pp") { 4 } else { 2 };
        let fabric = hosts(nodes, 50 * nic);
        let accumulate = if zero == 2 { accumulate } else { "" };
        let step = |expert_overlap: bool| {
            let lines = format!("zero = {zero}\n{accumulate}overlap = {overlap}\ndispatcher = \"{dispatcher}\"\nexpert_overlap = {expert_overlap}");
            predict(&fabric, &job(8 * nodes, parallel, &lines))
        };
        let ((overlapped, utilization), (sequential, sequential_utilization)) = (step(true), step(false));
        prop_assert!(overlapped.time <= sequential.time, "{} {}", overlapped.time, sequential.time);
        for utilization in [utilization, sequential_utilization] {
            prop_assert!(utilization <= 1.0, "{utilization} {:?} {:?}", overlapped.shares, sequential.shares);
        }
    }
}

/// Network of one link per GPU with a bandwidth in bytes per second, whose calls occupy SMs.
#[derive(Clone, Copy)]
struct OneLink {
    bandwidth: u64,
    sms: u32,
}

impl CommunicationCostModel for OneLink {
    fn time(&self, layout: &Layout, exchange: Exchange) -> Result<Picos, PlanError> {
        let factor = exchange.collective.busbw_factor(layout.size(exchange.dimension));
        Ok(Picos((exchange.bytes.0 as f64 * factor / self.bandwidth as f64 * 1e12).round() as u64))
    }

    fn sm_usage(&self, _: &Layout, _: Exchange) -> Result<SmUsage, PlanError> {
        Ok(SmUsage { extent: CallExtent::Beyond, sms: self.sms, memory: Bytes(0) })
    }

    fn share_links(&self, _: &Layout, _: Dimension, _: Dimension) -> bool {
        true
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// With one link for all calls a step needs at least the time of all its calls, a faster link makes no step slower,
    /// and overlap neither.
    #[test]
    fn one_link_carries_one_call_at_a_time(
        zero in 0u32..4, accumulate in prop::sample::select(vec!["", "accumulate = \"whole\"\n"]),
        parallel in prop::sample::select(vec!["dp = 16, ep = 16", "dp = 16, ep = 4", "cp = 2, dp = 8, ep = 8", "tp = 2, dp = 8, ep = 8", "pp = 2, dp = 8, ep = 4"]),
        bucket_mb in 1u32..200, sms in 0u32..40, gigabytes in 1u64..400, faster in 1u64..200, overlap in any::<bool>(), expert_overlap in any::<bool>(),
    ) {
        let accumulate = if zero == 2 { accumulate } else { "" };
        let time = |expert_overlap: bool, gigabytes: u64| {
            let bucket = if zero == 3 || (zero == 2 && accumulate.is_empty()) { String::new() } else { format!("bucket_mb = {bucket_mb}\n") };
            let lines = format!("zero = {zero}\n{accumulate}{bucket}overlap = {overlap}\nexpert_overlap = {expert_overlap}");
            let job = read(&job(16, parallel, &lines));
            let layout = Layout::specified_by(&job, 16).unwrap().unwrap();
            let costs = OneLink { bandwidth: gigabytes * 1_000_000_000, sms };
            step(&job, &layout, &SPEEDS, &Efficiency::default(), &costs).unwrap()
        };
        let step = time(expert_overlap, gigabytes);
        // (Roundings of a picosecond per call.)
        let is_longer = |one: Picos, other: Picos| one.0 > other.0 + 10_000;
        prop_assert!(!is_longer(time(true, gigabytes).time, time(false, gigabytes).time));
        prop_assert!(!is_longer(time(expert_overlap, gigabytes + faster).time, step.time));
        if !parallel.contains("pp") {
            prop_assert!(!is_longer(step.communication, step.time), "{} {}", step.communication, step.time);
        }
    }
}
