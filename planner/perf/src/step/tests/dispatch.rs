//! Dispatch and combine of training steps by kernels of libraries.

use fabricast_experts::{
    Exchange, ExchangeCosts, ExchangeKernel, ExchangeRanks, Operation, RoutingPattern, Timing, TokenRouting, TokenType,
};
use fabricast_sim::profile::Profile;
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Fabric, FabricRequest, Picos, load};
use fabricast_workload::job::{Dispatch, DispatcherOrigin, Job, Layout, Training, read_job};
use proptest::prelude::*;

use super::super::{Share, Step, best_step, step};
use super::{fabric, rails, steps, with_machine};
use crate::communication::{EstimatedCosts, unsupported_dispatcher};

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

/// Reads a training job whose dispatcher is a default of its software.
fn with_default_dispatcher(text: &str) -> Training {
    let training = super::read(text);
    Training { dispatch: Dispatch { origin: DispatcherOrigin::Software, ..training.dispatch }, ..training }
}

/// Software whose dispatcher does not run on the GPUs uses an all_to_all; a job that states the dispatcher is refused,
/// whether it states its layout or not.
#[test]
fn dispatcher_that_does_not_run_is_replaced_or_refused() {
    let gpus = |name: &str| load(&FabricRequest::new(name)).unwrap();
    for (fabric, dispatcher, expected) in [
        (fabric("dgx-a100", 2), "deepep", "compute capability"),
        (gpus("mi300x"), "deepep-low-latency", "NVIDIA"),
        (rails(2), "trtllm-one-sided", "one NVLink domain"),
        (gpus("rtx-pro-6000-pcie"), "deepep", "NVLink between all GPUs of a host"),
    ] {
        let text = job(fabric.gpus().len() as u32, &format!("dispatcher = \"{dispatcher}\""));
        let searched =
            text.replace(text.lines().find(|line| line.starts_with("parallel")).unwrap(), "parallel = \"auto\"");
        let default = with_default_dispatcher(&text);
        with_machine(&fabric, |machine| {
            let refusal = |text: &str| {
                let Job::Training(stated) = read_job(text, "job.toml").unwrap() else { panic!() };
                best_step(&stated, machine).err().map(|error| error.to_string())
            };
            let error = refusal(&text).unwrap();
            assert!(error.starts_with("job.toml:4:14: dispatcher: ") && error.contains(expected), "{error}");
            // A search finds layouts inside a domain, if these are all that the kernels need.
            match dispatcher {
                "trtllm-one-sided" => assert_eq!(refusal(&searched), None),
                _ => assert_eq!(refusal(&searched), Some(error)),
            }
            let step = best_step(&default, machine).unwrap().0;
            let layout = step.layout;
            assert!(unsupported_dispatcher(&Job::Training(default.clone()), machine, &layout).is_some());
            let all_to_all = predict(&fabric, "dispatcher = \"all_to_all\"");
            assert_eq!(step.time, all_to_all.time, "{dispatcher}");
        });
    }
    assert!(predict(&rails(2), "dispatcher = \"deepep\"").time > Picos::ZERO);
}

/// Experts that do not divide among the ranks, or more ranks than an exchange may have, are no exchange of a library.
#[test]
fn exchanges_that_cannot_be_described_are_replaced_or_refused() {
    let fabric = rails(2);
    let text = job(16, "dispatcher = \"deepep\"").replace("hidden = 4096", "hidden = 1048608");
    let text = text.replace("layers = 2", "layers = 1");
    let error = read_job(&text, "job.toml").unwrap_err().to_string();
    assert!(error.starts_with("job.toml:4:14: dispatcher: deepep cannot exchange these tokens: 1048608"), "{error}");
    let all_to_all = super::read(&text.replace("\"deepep\"", "\"all_to_all\""));
    let default = Training {
        dispatch: Dispatch {
            dispatcher: fabricast_workload::job::Dispatcher::DeepEp,
            origin: DispatcherOrigin::Software,
            ..all_to_all.dispatch
        },
        ..all_to_all.clone()
    };
    with_machine(&fabric, |machine| {
        let (expected, step) = (best_step(&all_to_all, machine).unwrap().0, best_step(&default, machine).unwrap().0);
        assert_eq!(step.time, expected.time);
        let reason = unsupported_dispatcher(&Job::Training(default.clone()), machine, &step.layout).unwrap();
        assert!(reason.to_string().contains("1048608 hidden elements"), "{reason}");
    });
}

/// A search compares the layouts with which a stated dispatcher runs.
#[test]
fn search_stays_within_the_layouts_of_a_stated_dispatcher() {
    let fabric = rails(2);
    let text = job(16, "dispatcher = \"trtllm\"").replace("parallel = { dp = 16, ep = 16 }", "parallel = \"auto\"");
    let job = super::read(&text);
    with_machine(&fabric, |machine| {
        let step = best_step(&job, machine).unwrap().0;
        assert!(unsupported_dispatcher(&Job::Training(job.clone()), machine, &step.layout).is_none());
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
