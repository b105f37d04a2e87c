//! Comparison of steps with measurements, closed forms and known scaling behaviour.

mod bandwidth;
mod dispatch;
mod expert;
mod launch;
mod link_time;
mod llama3;
mod placement;
mod published;
mod recompute;
mod rule;
mod search;
mod sharding;

use fabricast_sim::profile::Profile;
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Fabric, FabricRequest, Picos, load};
use proptest::prelude::*;

use super::*;
use crate::communication::{CallExtent, CommunicationCostModel, Exchange, SimulatedCosts, SmUsage};
use fabricast_search::plan::PlanError;
use fabricast_workload::job::{Job, KernelFusion, LaunchMode, Layout, Overlap, Training, read_job};

/// Reads a job. Without a stated choice it has fused kernels, launched as a graph, because these tests do not examine
/// software.
pub(crate) fn read(text: &str) -> Training {
    match read_job(text, "job").unwrap() {
        Job::Training(job) if !text.contains("kernels =") => {
            Training { fusion: Some(KernelFusion::Fused), launch: LaunchMode::Graph, ..job }
        }
        Job::Training(job) => job,
        other => panic!("{other:?}"),
    }
}

const SCALING: &str = include_str!("../../../../data/scaling.csv");

pub(super) fn fabric(name: &str, nodes: u32) -> Fabric {
    load(&FabricRequest { nodes: Some(nodes), ..FabricRequest::new(name) }).unwrap()
}

/// Hosts of eight H100, each GPU with a 400 Gb/s NIC on its own rail.
pub(crate) fn rails(nodes: u32) -> Fabric {
    let network = Some("rail,nics_per_node=8,nic=400Gb/s".parse().unwrap());
    load(&FabricRequest { nodes: Some(nodes), network, ..FabricRequest::new("hgx-h100") }).unwrap()
}

/// Calls `run` with a machine of all GPUs of a fabric, with its own efficiency curve and cost profile.
pub(crate) fn with_machine<T>(fabric: &Fabric, run: impl FnOnce(&Machine<'_>) -> T) -> T {
    let router = Router::new(fabric, RouteOptions::default());
    let profile = Profile::for_fabric(fabric).unwrap();
    let simulated = SimulatedCosts::new(&router, &profile, fabric.gpus());
    let curve = Efficiency::new(fabric);
    run(&Machine { router: &router, ranks: fabric.gpus(), simulated: &simulated, curve })
}

pub(super) fn steps(fabric: &Fabric, jobs: &[String]) -> Vec<Step> {
    let predict = |text: &String, machine: &Machine<'_>| best_step(&read(text), machine).unwrap().0;
    with_machine(fabric, |machine| jobs.iter().map(|text| predict(text, machine)).collect())
}

fn timed(fabric: &Fabric, job: &str) -> Step {
    steps(fabric, &[job.to_owned()]).remove(0)
}

/// Returns layers, hidden size and heads of a model of arXiv 2205.05198.
fn model(name: &str) -> (u64, u64, u64) {
    match name {
        "megatron-22B" => (48, 6144, 64),
        "turing-530B" => (105, 20_480, 128),
        other => panic!("{other}"),
    }
}

#[test]
fn one_curve_matches_measured_steps() {
    let (mut rows, mut outliers) = (0, 0);
    let mut report = String::new();
    for line in SCALING.lines().filter(|line| !line.starts_with('#')).skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        let [name, mode, gpus, tp, pp, dp, batch, micro, interleave, measured] = cells[..] else { panic!("{line}") };
        let (layers, hidden, heads) = model(name);
        let (recompute, sequence) = if mode == "full" { ("full", false) } else { ("selective", true) };
        let job = format!(
            "name = \"{name}\"\nglobal_batch = {batch}\nmicro_batch = {micro}\nrecompute = \"{recompute}\"\n\
             model = {{ layers = {layers}, hidden = {hidden}, heads = {heads}, vocab = 51200, seq = 2048 }}\n\
             parallel = {{ tp = {tp}, pp = {pp}, dp = {dp}, interleave = {interleave}, sequence = {sequence} }}\n"
        );
        let step = timed(&fabric("dgx-a100", gpus.parse::<u32>().unwrap() / 8), &job);
        let measured: f64 = measured.parse().unwrap();
        let error = step.time.0 as f64 / 1e12 / measured - 1.0;
        report.push_str(&format!("{name} {mode}: {error:+.3} {:?}\n", step.shares));
        outliers += usize::from(error.abs() >= 0.1);
        rows += 1;
    }
    assert_eq!((rows, outliers), (4, 0), "{report}");
}

/// Cost model with a fixed bandwidth in bytes per second and no latency; calls use no SMs.
pub(super) struct FlatBandwidth(pub u64);

/// Variant of [`FlatBandwidth`] whose calls occupy a number of SMs and move a multiple of their bytes in memory.
struct FlatWithSmUsage(FlatBandwidth, u32, u64);

impl CommunicationCostModel for FlatWithSmUsage {
    fn time(&self, layout: &Layout, exchange: Exchange) -> Result<Picos, PlanError> {
        self.0.time(layout, exchange)
    }

    fn sm_usage(&self, _: &Layout, exchange: Exchange) -> Result<SmUsage, PlanError> {
        Ok(SmUsage {
            extent: CallExtent::Inside,
            sms: self.1,
            memory: fabricast_topologies::Bytes(exchange.bytes.0 * self.2),
        })
    }
}

impl CommunicationCostModel for FlatBandwidth {
    fn time(&self, layout: &Layout, exchange: Exchange) -> Result<Picos, PlanError> {
        let factor = exchange.collective.busbw_factor(layout.size(exchange.dimension));
        Ok(Picos((exchange.bytes.0 as f64 * factor / self.0 as f64 * 1e12).round() as u64))
    }
}

pub(super) const SPEEDS: PeakRates = PeakRates {
    flops_per_s: 312e12,
    wide_flops_per_s: 312e12,
    exact_flops_per_s: 312e12,
    flash_attention_2: 1.0,
    memory: fabricast_topologies::Bandwidth(2_039_000_000_000),
    sms: Some(108),
    block_scheduling: BlockScheduling::Dynamic,
    offload_bandwidth: None,
    host_memory_bandwidth: None,
    weights_bandwidth: None,
    adapter_bandwidth: None,
    drives: None,
};

pub(super) fn flat(text: &str, ranks: u32, bandwidth: u64) -> Step {
    let job = read(text);
    let layout = Layout::specified_by(&job, ranks).unwrap().unwrap();
    step(&job, &layout, &SPEEDS, &Efficiency::default(), &FlatBandwidth(bandwidth)).unwrap()
}

/// Any combination of settings for sharding and gradient accumulation of data-parallel ranks.
fn any_zero() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "zero = 0",
        "zero = 1",
        "zero = 2",
        "zero = 2\naccumulate = \"shards\"",
        "zero = 2\naccumulate = \"whole\"",
        "zero = 3",
        "zero = 3\naccumulate = \"shards\"\nreshard_after_forward = true",
        "zero = 3\naccumulate = \"whole\"\nreshard_after_forward = true",
        "zero = 3\naccumulate = \"shards\"\nreshard_after_forward = false",
        "zero = 3\naccumulate = \"whole\"\nreshard_after_forward = false\ngradient_bits = 32",
    ])
}

pub(super) fn any_job() -> impl Strategy<Value = (String, u32)> {
    let degrees = (0u32..3, 0u32..3, 0u32..3, 0u32..2);
    let is_set = prop::bool::ANY;
    (degrees, any_zero(), is_set, 1u64..3, is_set, is_set, any_launch()).prop_map(
        |((tp, pp, dp, cp), zero, sequence, rounds, experts, groups, launch)| {
            let (tp, pp, dp, cp) = (1 << tp, 1 << pp, 1 << dp, 1 << cp);
            let interleave = if pp > 1 { 2 } else { 1 };
            let mixture = if experts { ", experts = 4, experts_per_token = 2" } else { "" };
            let shard = if groups && zero != "zero = 0" && dp * cp > 2 { "shard = 2\n" } else { "" };
            // Experts are divided within a sharding group.
            let max_expert_ranks = if shard.is_empty() { 4 } else { 2 };
            let ep = if experts { u32::min(dp, max_expert_ranks) } else { 1 };
            let text = format!(
                "name = \"j\"\nglobal_batch = {}\n{zero}\n{shard}{launch}\
                 model = {{ layers = 16, hidden = 2048, heads = 16, vocab = 32000, seq = 1024{mixture} }}\n\
                 parallel = {{ tp = {tp}, pp = {pp}, dp = {dp}, cp = {cp}, ep = {ep}, interleave = {interleave}, sequence = {sequence} }}\n",
                u64::from(dp * pp) * rounds
            );
            (text, tp * pp * dp * cp)
        },
    )
}

/// Any launch of a step by the host, and any recomputation, which launches more kernels.
fn any_launch() -> impl Strategy<Value = String> {
    let launches = [
        "",
        "kernels = \"fused\"\n",
        "kernels = \"eager\"\n",
        "kernels = \"fused\"\nlaunch = \"graph_without_experts\"\n",
    ];
    let recomputations = ["", "recompute = \"full\"\n", "recompute = \"feed_forward\"\n"];
    (prop::sample::select(launches.to_vec()), prop::sample::select(recomputations.to_vec()))
        .prop_map(|(launch, recompute)| format!("{launch}{recompute}"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn shares_sum_up_and_overlap_and_bandwidth_never_hurt(
        (text, ranks) in any_job(), bandwidth in 1u64..400, (sms, accesses) in any_sm_usage(),
        block_scheduling in prop::sample::select(vec![BlockScheduling::Dynamic, BlockScheduling::Persistent]),
    ) {
        let speeds = PeakRates { block_scheduling, ..SPEEDS };
        let predict = |text: &str, bandwidth: u64| {
            let job = read(text);
            let layout = Layout::specified_by(&job, ranks).unwrap().unwrap();
            let collective_costs = FlatWithSmUsage(FlatBandwidth(bandwidth), sms, accesses);
            step(&job, &layout, &speeds, &Efficiency::default(), &collective_costs).unwrap()
        };
        let on = predict(&text, bandwidth * 1_000_000_000);
        let off = predict(&format!("overlap = false\n{text}"), bandwidth * 1_000_000_000);
        let faster = predict(&text, bandwidth * 1_500_000_000);
        for step in [&on, &off, &faster] {
            prop_assert_eq!(step.shares.iter().map(|one| one.1).sum::<Picos>(), step.time);
            prop_assert!(step.exposed_communication() + step.fraction(step.share_time(Share::Slowdown)) <= step.total_communication() + 1e-9);
        }
        prop_assert_eq!((off.share_time(Share::Slowdown), off.communication), (Picos::ZERO, on.communication));
        prop_assert!(on.time <= off.time, "{:?} {:?}", on, off);
        // Each call time is rounded once and repeated over passes, micro-batches and buckets.
        prop_assert!(faster.time.0 <= on.time.0 + 100_000, "{:?} {:?}", faster, on);
    }
}

/// Any SM usage of a call: number of SMs out of 108, and memory traffic as a multiple of its bytes.
fn any_sm_usage() -> impl Strategy<Value = (u32, u64)> {
    (0u32..120, 0u64..8)
}

/// Data parallelism with overlapped gradients: each channel costs the share of the time for which it occupies its SM,
/// except for the last bucket, which overlaps with nothing. 108 channels cost the whole time, and 0 channels cost
/// nothing.
#[test]
fn channels_cost_the_sms_they_occupy() {
    let text = "name = \"j\"\nglobal_batch = 32\nflash_attention = true\nparallel = { dp = 4 }\nmicro_batch = 8\n\
        model = { layers = 8, hidden = 4096, heads = 32, vocab = 1024, seq = 4096 }\n";
    let predict = |sms: u32| {
        let job = read(text);
        let layout = Layout::specified_by(&job, 4).unwrap().unwrap();
        step(&job, &layout, &SPEEDS, &Efficiency::default(), &FlatWithSmUsage(FlatBandwidth(100_000_000_000), sms, 0))
            .unwrap()
    };
    let [none, some, all] = [0, 27, 108].map(predict);
    assert_eq!(none.share_time(Share::Slowdown), Picos::ZERO);
    assert_eq!(some.share_time(Share::Compute), none.share_time(Share::Compute));
    // GEMMs are most of the time.
    let quarter = some.share_time(Share::Slowdown).0 as f64 / some.communication.0 as f64;
    assert!((0.2..0.25).contains(&quarter), "{quarter} {some:?}");
    let ratio = all.share_time(Share::Slowdown).0 as f64 / some.share_time(Share::Slowdown).0 as f64;
    assert!((ratio - 4.0).abs() < 0.01, "{ratio} {all:?}");
    assert_eq!(some.share_time(Share::Data), none.share_time(Share::Data));
}

/// Stages of 14 layers whose ends count as layers are faster and have smaller bubbles than stages of 16 layers with the
/// ends on top.
#[test]
fn counting_ends_as_layers_balances_stages() {
    let predict = |layers: u32, ends: bool| {
        let text = format!(
            "name = \"j\"\nglobal_batch = 16\n\
             model = {{ layers = {layers}, hidden = 2048, heads = 16, vocab = 200000, seq = 1024 }}\n\
             parallel = {{ pp = 4, ends_as_layers = {ends} }}\n"
        );
        flat(&text, 4, 100_000_000_000)
    };
    let (balanced, unbalanced) = (predict(14, true), predict(16, false));
    assert!(
        balanced.time < unbalanced.time && balanced.share_time(Share::Bubble) < unbalanced.share_time(Share::Bubble),
        "{balanced:?} {unbalanced:?}"
    );
}

/// With pipeline stages, gathering weights once per step moves less than once per pass, and reducing gradients once
/// less than once per micro-batch. On a slow network this is faster, and needs more memory.
#[test]
fn sharding_once_per_step_trades_memory_for_time() {
    let time_and_memory = |zero: &str| {
        let text = format!(
            "name = \"j\"\nglobal_batch = 64\nbucket_mb = 25\n{zero}\n\
             model = {{ layers = 16, hidden = 4096, heads = 32, vocab = 32000, seq = 1024 }}\nparallel = {{ pp = 4, dp = 4 }}\n"
        );
        let job = read(&text);
        let step = flat(&text, 16, 20_000_000_000);
        (step.time, fabricast_workload::job::footprint(&job, &step.layout).total())
    };
    let steps = [
        time_and_memory("zero = 3\naccumulate = \"shards\"\nreshard_after_forward = true"),
        time_and_memory("zero = 3\naccumulate = \"whole\"\nreshard_after_forward = true"),
        time_and_memory("zero = 3"),
    ];
    assert!(steps.windows(2).all(|pair| pair[0].0 > pair[1].0 && pair[0].1 < pair[1].1), "{steps:?}");
    // The rest is the traffic and the memory of sharding only the optimizer.
    assert_eq!((steps[2], steps[2]), (time_and_memory("zero = 1"), time_and_memory("zero = 2")));
}

/// Checks a timeline against the shares of its step: the last end is the step's time, intervals do not overlap, and the
/// track of the stage that ends last holds its passes, transfers and optimizer.
fn check_timeline(step: &Step, timeline: &Timeline, overlap: Overlap) -> Result<(), TestCaseError> {
    prop_assert_eq!(timeline.end(), step.time);
    for (track, intervals) in &timeline.tracks {
        prop_assert!(intervals.iter().all(|one| one.begin < one.end), "{track:?}");
        prop_assert!(intervals.windows(2).all(|pair| pair[0].end <= pair[1].begin), "{track:?} {intervals:?}");
    }
    let sum = |intervals: &[Interval], activities: &[Activity]| -> Picos {
        intervals.iter().filter(|one| activities.contains(&one.activity)).map(Interval::time).sum()
    };
    let work: Picos = [Share::Compute, Share::Slowdown, Share::Tensor, Share::Context, Share::Expert]
        .map(|share| step.share_time(share))
        .into_iter()
        .sum();
    let matches_step = |track: Track| {
        let intervals_on =
            |wanted: Track| timeline.tracks.iter().find(|one| one.0 == wanted).map_or(&[][..], |one| one.1.as_slice());
        let Track::Stage(stage) = track else { return false };
        let (compute, communication) = (intervals_on(track), intervals_on(Track::Communication(stage)));
        let passes = sum(compute, &[Activity::Forward, Activity::Backward]);
        let passes_end = compute
            .iter()
            .filter(|one| ![Activity::Offload, Activity::Optimizer, Activity::Launch].contains(&one.activity))
            .map(|one| one.end)
            .max()
            .unwrap_or_default();
        let is_update = |one: &&Interval| [Activity::Offload, Activity::Optimizer].contains(&one.activity);
        let optimizer = compute.iter().find(is_update);
        let gathered = communication
            .iter()
            .filter(|one| one.activity == Activity::Weights && one.begin >= passes_end)
            .map(Interval::time)
            .sum();
        let exposed = optimizer.map_or(Picos::ZERO, |one| one.begin - passes_end) + gathered;
        // Exposed weights and gradients of layers are part of both.
        let in_passes = step.share_time(Share::Data) - exposed;
        // The host delays passes, or the end of the step.
        let launch = step.share_time(Share::Launch) - sum(compute, &[Activity::Launch]);
        passes == work + in_passes + launch
            && sum(compute, &[Activity::PipelineTransfer]) == step.share_time(Share::PipelineTransfer)
            && sum(compute, &[Activity::Optimizer]) == step.share_time(Share::Optimizer)
            && sum(compute, &[Activity::Offload]) == step.share_time(Share::Offload)
            && passes_end - passes - step.share_time(Share::PipelineTransfer) == step.share_time(Share::Bubble)
            && (overlap == Overlap::On || sum(communication, &[Activity::Gradients]) <= exposed)
    };
    prop_assert!(timeline.tracks.iter().any(|one| matches_step(one.0)), "{:?} {:?}", step, timeline);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn timelines_agree_with_steps(
        (text, ranks) in any_job(), bandwidth in 1u64..400, overlap in prop::bool::ANY, (sms, accesses) in any_sm_usage(),
    ) {
        let job = read(&format!("overlap = {overlap}\n{text}"));
        let layout = Layout::specified_by(&job, ranks).unwrap().unwrap();
        let curve = Efficiency::default();
        let collective_costs = FlatWithSmUsage(FlatBandwidth(bandwidth * 1_000_000_000), sms, accesses);
        let step = step(&job, &layout, &SPEEDS, &curve, &collective_costs).unwrap();
        let timeline = step_timeline(&job, &layout, &SPEEDS, &curve, &collective_costs).unwrap();
        check_timeline(&step, &timeline, job.overlap)?;
        let stages = timeline.tracks.iter().filter(|one| matches!(one.0, Track::Stage(_))).count();
        prop_assert_eq!(stages as u32, layout.degrees.pipeline);
        prop_assert_eq!(timeline.shortened().end(), step.time);
    }
}

/// The sequential parts of a single-process job sum up to the step.
#[test]
fn single_process_timeline_agrees_with_step() {
    let job =
        read(&format!("{SMALL}global_batch = 32\nmicro_batch = 2\nprocesses = \"single\"\nparallel = {{ dp = 4 }}\n"));
    let layout = Layout::specified_by(&job, 4).unwrap().unwrap();
    let (curve, collective_costs) = (Efficiency::default(), FlatBandwidth(100_000_000_000));
    let step = step(&job, &layout, &SPEEDS, &curve, &collective_costs).unwrap();
    let timeline = step_timeline(&job, &layout, &SPEEDS, &curve, &collective_costs).unwrap();
    let [(Track::Stage(0), intervals)] = &timeline.tracks[..] else { panic!("{timeline:?}") };
    assert!(intervals.windows(2).all(|pair| pair[0].end == pair[1].begin));
    assert_eq!((intervals[0].begin, timeline.end()), (Picos::ZERO, step.time));
    let sum = |wanted: &[Activity]| -> Picos {
        intervals.iter().filter(|one| wanted.contains(&one.activity)).map(Interval::time).sum()
    };
    assert_eq!(sum(&[Activity::Forward, Activity::Backward, Activity::Logits]), step.share_time(Share::Compute));
    assert_eq!(sum(&[Activity::Outputs, Activity::Weights, Activity::Gradients]), step.share_time(Share::Data));
    assert_eq!(sum(&[Activity::Launch]), step.share_time(Share::Launch));
}

const SMALL: &str = "name = \"gpt2\"\nrecompute = \"none\"\nflash_attention = true\n\
    model = { layers = 24, hidden = 2048, heads = 16, vocab = 51200, seq = 1024 }\n";

/// DDP on eight GPUs with NVLink scales at 85 to 96 %, tensor 2 × pipeline 2 × data 2 lower.
#[test]
fn data_parallelism_scales_best_inside_a_host() {
    let host = fabric("hgx-h100", 1);
    let jobs = [
        format!("{SMALL}global_batch = 128\nmicro_batch = 8\nparallel = {{ dp = 8 }}\n"),
        format!("{SMALL}global_batch = 128\nmicro_batch = 4\nparallel = {{ tp = 2, pp = 2, dp = 2 }}\n"),
    ];
    let [replicated, divided] = &steps(&host, &jobs)[..] else { panic!() };
    assert!((0.85..=0.96).contains(&replicated.efficiency()), "{} {replicated:?}", replicated.efficiency());
    assert!(divided.efficiency() < replicated.efficiency(), "{} {divided:?}", divided.efficiency());
}

/// Data-parallel job on 32 GPUs with `batch` sequences and the additional keys `lines`.
fn on_32(batch: u32, lines: &str) -> String {
    format!("{SMALL}global_batch = {batch}\nparallel = {{ dp = 32 }}\n{lines}")
}

/// With a small batch per GPU communication dominates; gradient accumulation helps.
#[test]
fn accumulation_improves_small_batches() {
    let [small, accumulated] = &steps(&fabric("hgx-h100", 4), &[on_32(32, ""), on_32(32 * 16, "")])[..] else {
        panic!()
    };
    assert!(
        small.exposed_communication() > 0.25
            && accumulated.exposed_communication() < small.exposed_communication() / 3.0,
        "{} {}",
        small.exposed_communication(),
        accumulated.exposed_communication()
    );
    assert!(accumulated.efficiency() > small.efficiency() * 1.3);
}

/// If communication is 20 to 30 % of a step, overlapping it with the backward pass gains 10 to 20 %.
#[test]
fn overlapping_buckets_with_backward_gains() {
    let jobs = [on_32(192, "micro_batch = 2\noverlap = false\n"), on_32(192, "micro_batch = 2\n")];
    let [exposed, overlapped] = &steps(&fabric("hgx-h100", 4), &jobs)[..] else { panic!() };
    let gain = exposed.time.0 as f64 / overlapped.time.0 as f64;
    assert!((0.2..0.3).contains(&exposed.exposed_communication()) && (1.1..1.2).contains(&gain), "{gain} {exposed:?}");
}

/// Communication below 20 % of a step keeps efficiency above 80 %, if little optimizer work is repeated by replicas.
#[test]
fn little_communication_keeps_efficiency() {
    let sizes = [64, 128, 256, 512, 1024, 2048];
    let jobs: Vec<String> = sizes
        .into_iter()
        .flat_map(|batch| ["", "overlap = false\n", "zero = 1\n", "micro_batch = 2\n"].map(|lines| on_32(batch, lines)))
        .collect();
    let steps = steps(&fabric("hgx-h100", 4), &jobs);
    let low_communication = steps
        .iter()
        .filter(|step| step.total_communication() < 0.2 && step.fraction(step.share_time(Share::Optimizer)) < 0.08);
    let efficiencies: Vec<f64> = low_communication.map(Step::efficiency).collect();
    assert!(efficiencies.len() > 10 && efficiencies.iter().all(|&one| one > 0.8), "{efficiencies:?}");
}

/// Tensor parallelism across hosts is slower than inside a host.
#[test]
fn tensor_parallelism_across_hosts_is_slower() {
    let hosts = fabric("hgx-h100", 2);
    let job = |tp: u32, dp: u32| {
        format!("{SMALL}global_batch = 64\nmicro_batch = 4\nparallel = {{ tp = {tp}, dp = {dp}, sequence = true }}\n")
    };
    let [inside, across] = &steps(&hosts, &[job(8, 2), job(16, 1)])[..] else { panic!() };
    assert!(across.time.0 > inside.time.0 * 3 / 2, "{across:?} {inside:?}");
}

/// An offloaded optimizer state (twelve bytes per parameter) is transferred over PCIe both ways and takes no GPU
/// memory.
#[test]
fn offloaded_state_is_transferred_each_step() {
    let host = fabric("hgx-h200", 1);
    let curve = Efficiency::new(&host);
    let predict = |tier: &str, machine: &Machine<'_>| {
        let job = read(&format!("{SMALL}global_batch = 8\nparallel = {{ tp = 8 }}\noptimizer_tier = \"{tier}\"\n"));
        let rate = machine.training_rates(&job).unwrap().offload_bandwidth;
        let (step, footprint) = best_step(&job, machine).unwrap();
        (step, footprint, rate.map_or(0.0, |rate| rate.0 as f64))
    };
    let [(near, in_hbm, _), (_, in_peers, peer_rate), (far, in_host, host_rate)] =
        with_machine(&host, |machine| ["hbm", "peer", "host"].map(|tier| predict(tier, machine)));
    let state = in_hbm.optimizer.0 as f64;
    assert_eq!((in_peers.optimizer, in_host.optimizer.0), (in_hbm.optimizer, 0));
    assert_eq!(in_host.total().0, in_hbm.total().0 - in_hbm.optimizer.0);
    let transfer_us = far.share_time(Share::Optimizer).us() - curve.start.us();
    assert!(
        (transfer_us - state / (host_rate * curve.memory) * 1e6).abs() < 1.0 && peer_rate > host_rate,
        "{transfer_us} {host_rate}"
    );
    assert_eq!(far.time - far.share_time(Share::Optimizer), near.time - near.share_time(Share::Optimizer));
}

/// One-sided collectives help if tensor-parallel calls are small.
#[test]
fn one_sided_calls_help_small_models() {
    let host = fabric("hgx-h200", 1);
    let job = |collectives: &str| {
        format!("{SMALL}global_batch = 8\ncollectives = \"{collectives}\"\nparallel = {{ tp = 8, sequence = false }}\n")
    };
    let [library, any] = &steps(&host, &[job("library"), job("any")])[..] else { panic!() };
    assert!(any.share_time(Share::Tensor) < library.share_time(Share::Tensor), "{any:?} {library:?}");
}

#[test]
fn search_finds_degrees_that_fit() {
    let hosts = fabric("hgx-h100", 2);
    let text = "name = \"llama\"\nglobal_batch = 64\nrecompute = \"full\"\nflash_attention = true\nzero = 1\nparallel = \"auto\"\n\
        model = { layers = 80, hidden = 8192, heads = 64, kv_heads = 8, ffn = 28672, gated = true, vocab = 32000, seq = 4096 }\n";
    let step = timed(&hosts, text);
    let job = read(text);
    assert_eq!(step.layout.degrees.ranks(), 16);
    let memory = fabricast_workload::job::footprint(&job, &step.layout);
    // 69e9 parameters with 18 bytes each fit sixteen GPUs of 80 GB only if all of them are divided.
    assert!(memory.total().0 < 120_000_000_000, "{step:?} {memory:?}");
    let explicit = text.replace("\"auto\"", "{ tp = 1, pp = 16 }");
    assert!(timed(&hosts, &explicit).time >= step.time);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    /// Overlap with GEMMs reduces the cost of tensor-parallel calls, although reductions, half of the traffic, hide
    /// little. The traffic stays the same. Without sequence parallelism nothing changes.
    #[test]
    fn overlapped_tensor_calls_cost_less_than_exposed_ones(tensor in 1u32..4, hidden in 2u64..9, micro in 1u64..5) {
        let host = fabric("hgx-h100", 1);
        let job = |sequence: bool, overlap: bool| {
            format!(
                "name = \"j\"\nglobal_batch = 32\nmicro_batch = {micro}\nflash_attention = true\ntensor_overlap = {overlap}\n\
                 model = {{ layers = 2, hidden = {}, heads = 8, vocab = 1024, seq = 2048 }}\n\
                 parallel = {{ tp = {}, dp = {}, sequence = {sequence} }}\n",
                hidden * 1024, 1 << tensor, 8 >> tensor
            )
        };
        prop_assume!(32 % (micro * (8 >> tensor)) == 0);
        let jobs: Vec<String> = [(true, false), (true, true), (false, false), (false, true)].map(|(s, o)| job(s, o)).into();
        let results = steps(&host, &jobs);
        let (exposed, pieces) = (results[0].share_time(Share::Tensor).0, results[1].share_time(Share::Tensor).0);
        // The embedding and the logits are not part of a layer.
        prop_assert!(pieces < exposed && pieces >= exposed / 3, "{pieces} of {exposed}");
        prop_assert_eq!(results[0].communication, results[1].communication);
        prop_assert!(results[1].time <= results[0].time, "{} {}", results[1].time, results[0].time);
        prop_assert_eq!(&results[2], &results[3]);
    }
}
