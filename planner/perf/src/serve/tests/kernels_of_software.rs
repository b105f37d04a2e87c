//! Tests of kernels of the serving software: all-reduces over NVLink, and experts on GPUs of AMD.

use fabricast_workload::job::TensorAllReduce;

use super::*;

/// Cost model of a machine whose groups are connected by NVLink, or by xGMI between GPUs of AMD.
struct MachineCosts {
    flat: FlatCosts,
    vendor_is_amd: bool,
}

impl CommunicationCostModel for MachineCosts {
    fn time(&self, layout: &Layout, exchange: Exchange) -> Result<Picos, PlanError> {
        Ok(self.flat.time(layout, exchange)? + Picos(20_000_000))
    }

    fn is_connected_by_nvlink(&self, _layout: &Layout, _dimension: Dimension) -> bool {
        true
    }

    fn has_amd_gpus(&self) -> bool {
        self.vendor_is_amd
    }
}

fn tpot(job: &Serving, costs: &dyn CommunicationCostModel) -> f64 {
    let costs = StepCosts { speeds: &H100, curve: &Efficiency::default(), collective_costs: costs };
    simulate_service(&loaded(job), &specified_layout(job), &costs).unwrap().1.tpot.unwrap().us()
}

/// Small all-reduces take the time of the software's kernel where NVLink connects all ranks, and are never slower
/// than those of the library.
#[test]
fn small_all_reduces_use_the_kernels_of_the_software() {
    let machine = |vendor_is_amd| MachineCosts { flat: FlatCosts(300e9), vendor_is_amd };
    let job = |all_reduce, concurrency: u32| Serving {
        all_reduce,
        ..served(&format!("concurrency = {concurrency}\nprompt_tokens = 100\n"))
    };
    let [library, custom] =
        [TensorAllReduce::Library, TensorAllReduce::Custom].map(|kind| tpot(&job(kind, 1), &machine(false)));
    // 161 calls of 25.1 µs instead of 6.3.
    let saved = (library - custom) / 161.0;
    assert!((18.0..20.0).contains(&saved), "{saved}");
    assert_eq!(tpot(&job(TensorAllReduce::Custom, 1), &machine(true)), library);
    let many = [TensorAllReduce::Library, TensorAllReduce::Custom].map(|kind| tpot(&job(kind, 2000), &machine(false)));
    assert!(many[1] <= many[0], "{many:?}");
}

/// The additional time of a layer counts on GPUs of AMD only.
#[test]
fn quantized_experts_are_slower_on_amd() {
    let job = served("concurrency = 1\nprompt_tokens = 100\n");
    let slow = Serving { amd_expert_overhead: Picos(100_000_000), ..job.clone() };
    let added = |vendor_is_amd| {
        let machine = MachineCosts { flat: FlatCosts(300e9), vendor_is_amd };
        tpot(&slow, &machine) - tpot(&job, &machine)
    };
    assert_eq!(added(false), 0.0);
    // 80 layers of 100 µs.
    assert!((added(true) - 8000.0).abs() < 0.01, "{}", added(true));
}
