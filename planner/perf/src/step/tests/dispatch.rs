//! Dispatch and combine of training steps by kernels of libraries.

use fabricast_experts::{
    Exchange, ExchangeCosts, ExchangeKernel, ExchangeRanks, Operation, RoutingPattern, Timing, TokenRouting, TokenType,
};
use fabricast_sim::profile::Profile;
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Fabric, FabricRequest, Picos, load};
use fabricast_workload::job::{Job, Layout, read_job};
use proptest::prelude::*;

use super::super::{Share, Step, step};
use super::{fabric, rails, steps, with_machine};
use crate::communication::{EstimatedCosts, check_dispatcher, unsupported_dispatcher};

/// Job with 64 experts of which a token uses four, in two layers and four micro-batches of 2,048 tokens.
fn job(ranks: u32, lines: &str) -> String {
    format!(
        "name = \"j\"\nglobal_batch = {}\nflash_attention = true\n{lines}\nparallel = {{ dp = {ranks}, ep = {ranks} }}\n\
         model = {{ layers = 2, hidden = 4096, heads = 32, ffn = 1024, gated = true, vocab = 32000, seq = 2048, experts = 64, \
         experts_per_token = 4 }}\n",
        4 * ranks
    )
}

fn predict(fabric: &Fabric, lines: &str) -> Step {
    steps(fabric, &[job(fabric.gpus().len() as u32, lines)]).remove(0)
}

/// Prediction of the kernel on all GPUs of a fabric, without a job.
fn exchange_time(fabric: &Fabric, kernel: ExchangeKernel, operation: Operation, token_type: TokenType) -> Picos {
    let router = Router::new(fabric, RouteOptions::default());
    let profile = Profile::for_fabric(fabric).unwrap();
    let ranks = ExchangeRanks::new(&router, fabric.gpus()).unwrap();
    let routing = TokenRouting::new(2048, 4096, 64, 4, RoutingPattern::Random).unwrap();
    let links = &profile.links;
    let exchange = Exchange { router: &router, ranks: &ranks, links, routing: &routing, kernel, sms: None };
    let load = exchange.load(operation, token_type).unwrap();
    exchange.time(&load, &ExchangeCosts::FITTED, Timing::Kernel).total()
}

/// Within one NVLink domain and between hosts, the experts' share of a step is the predicted time of its dispatches and
/// combines: two layers, four micro-batches, forward and backward.
#[test]
fn expert_share_is_the_predicted_time_of_the_kernels() {
    for (fabric, lines, kernel, token_type) in [
        (rails(1), "dispatcher = \"deepep\"", ExchangeKernel::DeepEp, TokenType::Bf16),
        (rails(2), "dispatcher = \"deepep\"\nprecision = \"fp8\"", ExchangeKernel::DeepEp, TokenType::Fp8),
        (
            rails(2),
            "dispatcher = \"pplx\"\nprecision = \"fp8\"\ndispatch_precision = \"bf16\"",
            ExchangeKernel::Pplx,
            TokenType::Bf16,
        ),
        (rails(1), "dispatcher = \"trtllm\"", ExchangeKernel::TensorRtTwoSided, TokenType::Bf16),
    ] {
        let step = predict(&fabric, lines);
        let dispatch = exchange_time(&fabric, kernel, Operation::Dispatch, token_type);
        let combine = exchange_time(&fabric, kernel, Operation::Combine, TokenType::Bf16);
        assert_eq!(step.share_time(Share::Expert), Picos(16 * (dispatch + combine).0), "{lines}");
        let recomputed = predict(&fabric, &format!("{lines}\nrecompute = \"full\""));
        assert_eq!(recomputed.share_time(Share::Expert), Picos(24 * (dispatch + combine).0), "{lines}");
        // Overlap hides communication of the same duration, and slows kernels by less than it hides.
        let overlapped = predict(&fabric, &format!("{lines}\nexpert_overlap = true"));
        assert!(overlapped.time < step.time && overlapped.share_time(Share::Expert) < step.share_time(Share::Expert));
        assert_eq!(overlapped.communication, step.communication);
    }
}

/// Software whose dispatcher does not run on the GPUs uses an all_to_all; a job that names the dispatcher is rejected.
#[test]
fn dispatcher_that_does_not_run_is_replaced_or_refused() {
    let amd = load(&FabricRequest::new("mi300x")).unwrap();
    for (fabric, dispatcher, expected) in [
        (fabric("dgx-a100", 2), "deepep", "compute capability"),
        (amd, "deepep-low-latency", "NVIDIA"),
        (rails(2), "trtllm-one-sided", "one NVLink domain"),
    ] {
        let text = job(fabric.gpus().len() as u32, &format!("dispatcher = \"{dispatcher}\""));
        let stated = read_job(&text, "job.toml").unwrap();
        with_machine(&fabric, |machine| {
            let Job::Training(training) = &stated else { panic!() };
            let layout = Layout::specified_by(training, machine.ranks.len() as u32).unwrap().unwrap();
            let error = check_dispatcher(&stated, machine, &layout).unwrap_err().to_string();
            assert!(error.starts_with("job.toml:4:14: dispatcher: ") && error.contains(expected), "{error}");
            let default = Job::Training(fabricast_workload::job::Training {
                dispatch: fabricast_workload::job::Dispatch {
                    origin: fabricast_workload::job::DispatcherOrigin::Software,
                    ..training.dispatch
                },
                ..training.clone()
            });
            assert!(check_dispatcher(&default, machine, &layout).is_ok());
            assert!(unsupported_dispatcher(&default, machine, &layout).is_some());
        });
        let replaced = predict(&fabric, &format!("dispatcher = \"{dispatcher}\""));
        let all_to_all = predict(&fabric, "dispatcher = \"all_to_all\"");
        assert_eq!(replaced.time, all_to_all.time, "{dispatcher}");
    }
    let text = job(16, "dispatcher = \"deepep\"");
    let runs = read_job(&text, "job.toml").unwrap();
    with_machine(&rails(2), |machine| {
        let Job::Training(training) = &runs else { panic!() };
        let layout = Layout::specified_by(training, 16).unwrap().unwrap();
        assert!(check_dispatcher(&runs, machine, &layout).is_ok());
    });
}

/// Estimates of layouts, which select those that are simulated, are within a factor of 1.6 of steps whose experts
/// exchange tokens over the network.
#[test]
fn estimates_of_exchanges_are_near() {
    for (nodes, dispatcher) in
        [(2, "deepep"), (4, "deepep"), (8, "deepep"), (8, "deepep-v2"), (4, "deepep-low-latency")]
    {
        let fabric = rails(nodes);
        let text = job(8 * nodes, &format!("dispatcher = \"{dispatcher}\""));
        let training = super::read(&text);
        with_machine(&fabric, |machine| {
            let layout = Layout::specified_by(&training, 8 * nodes).unwrap().unwrap();
            let estimated = EstimatedCosts::new(machine.simulated);
            let speeds = machine.training_rates(&training).unwrap();
            let estimate = step(&training, &layout, &speeds, &machine.curve, &estimated).unwrap().time.0 as f64;
            let ratio = estimate / predict(&fabric, &format!("dispatcher = \"{dispatcher}\"")).time.0 as f64;
            assert!((1.0 / 1.6..1.6).contains(&ratio), "{nodes} {dispatcher} {ratio}");
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Faster NICs never make a step slower for any dispatching software, and node-limited routing never needs more
    /// time than unlimited routing.
    #[test]
    fn bandwidth_and_limited_groups_never_hurt(dispatcher in prop::sample::select(vec!["deepep", "deepep-low-latency", "deepep-v2", "nccl-ep", "pplx", "all_to_all", "all_gather"]), slow in 1u32..8, overlap in any::<bool>()) {
        let step = |nic: u32, limit: &str| {
            let network = Some(format!("rail,nics_per_node=8,nic={nic}Gb/s").parse().unwrap());
            let fabric = load(&FabricRequest { nodes: Some(4), network, ..FabricRequest::new("hgx-h100") }).unwrap();
            let text = job(32, &format!("dispatcher = \"{dispatcher}\"\nexpert_overlap = {overlap}"));
            steps(&fabric, &[text.replace("experts_per_token = 4", &format!("experts_per_token = 4{limit}"))]).remove(0).time
        };
        let (time, faster) = (step(50 * slow, ""), step(50 * slow + 50, ""));
        prop_assert!(faster <= time, "{dispatcher}: {faster} {time}");
        let limited = step(50 * slow, ", expert_groups = 4, expert_groups_per_token = 2");
        prop_assert!(limited <= time, "{dispatcher}: {limited} {time}");
    }
}
