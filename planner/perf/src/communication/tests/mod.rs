//! Comparison of sampled times with simulations of whole calls, and of selected strategies with all examined
//! candidates.

mod host_classes;
mod link_load;
mod near_size;
mod rank_scaling;

use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{Collective, Protocol};
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Bytes, FabricRequest, NodeId, Picos, load};

use super::calls::{CallRequest, CallWithStrategy, GroupCall};
use super::candidate_class::CandidateClass;
use super::candidate_search::{LibraryChoiceScope, TimedCandidate, simulated_candidates};
use super::cost_cache::CallQuery;
use super::cost_model::CommunicationCostModel;
use super::exchange::Exchange;
use super::simulated::SimulatedCosts;
use super::sm_usage::CallExtent;
use super::timing_method::KnownTime;
use crate::step::tests::{rails, read, with_machine};
use fabricast_collectives::algorithm::Algorithm;
use fabricast_collectives::strategy::Strategy;
use fabricast_search::plan::{PlanRow, TimedStrategy};
use fabricast_workload::job::{CollectiveCandidates, Degrees, Dimension, Layout};

/// Plans a call of one group.
fn planned_row(simulated: &SimulatedCosts<'_>, call: GroupCall<'_>) -> PlanRow {
    plan_all(simulated, &[call]).remove(0).unwrap()
}

/// Plans calls together; the errors are texts.
fn plan_all(simulated: &SimulatedCosts<'_>, calls: &[GroupCall<'_>]) -> Vec<Result<PlanRow, String>> {
    let library = CollectiveCandidates::Library;
    let rows = simulated.plan_calls(calls, library, LibraryChoiceScope::Inside, |row| row);
    rows.into_iter().map(|row| row.map_err(|error| error.to_string())).collect()
}

/// Returns the completion time of the slowest group, simulated without sampling.
fn slowest(simulated: &SimulatedCosts<'_>, groups: &[Vec<NodeId>], call: CallWithStrategy) -> Picos {
    let calls = simulated.calls();
    calls.slowest(&calls.representative_calls(groups, call), call).unwrap()
}

/// Returns the completion time extrapolated from scaled-down groups; `None` if another method times the call.
fn extrapolated_time(simulated: &SimulatedCosts<'_>, groups: &[Vec<NodeId>], call: CallWithStrategy) -> Option<Picos> {
    let timer = simulated.timer();
    let (scaled_down, sampled) = timer.rank_scaling(groups, call)?;
    timer.extrapolate_from_fewer_ranks(scaled_down, sampled, call).unwrap()
}

/// Gradient groups within a host stay inside the NVLink domain; groups across hosts do not.
#[test]
fn sm_usage_extent_follows_group_placement() {
    let fabric = rails(2);
    let router = Router::new(&fabric, RouteOptions::default());
    let profile = Profile::for_fabric(&fabric).unwrap();
    let simulated = SimulatedCosts::new(&router, &profile, fabric.gpus());
    let job = read(
        "name = \"j\"\nglobal_batch = 16\nparallel = \"auto\"\n\
         model = { layers = 8, hidden = 1024, heads = 8, vocab = 1024, seq = 64 }\n",
    );
    let exchange = Exchange { dimension: Dimension::Data, collective: Collective::AllReduce, bytes: Bytes(25 << 20) };
    let sm_usage = |degrees: Degrees| {
        let layout = Layout::new(&job, 16, degrees).unwrap();
        simulated.restricted_to(CollectiveCandidates::Library).sm_usage(&layout, exchange).unwrap()
    };
    let inside = sm_usage(Degrees { pipeline: 2, data: 8, ..Degrees::default() });
    let beyond = sm_usage(Degrees { tensor: 8, data: 2, ..Degrees::default() });
    assert_eq!((inside.extent, beyond.extent), (CallExtent::Inside, CallExtent::Beyond));
    assert!(inside.sms > 0 && beyond.sms > 0, "{inside:?} {beyond:?}");
}

/// The plan of a call is the same alone and with calls of other sizes, collectives and groups, barriers and large groups
/// included.
#[test]
fn plans_of_single_calls_do_not_depend_on_other_calls() {
    let fabric = rails(12);
    let router = Router::new(&fabric, RouteOptions::default());
    let profile = Profile::for_fabric(&fabric).unwrap();
    let simulated = SimulatedCosts::new(&router, &profile, fabric.gpus());
    let groups = [&fabric.gpus()[..8], &fabric.gpus()[4..6], fabric.gpus()];
    let mut calls = Vec::new();
    for devices in groups {
        for collective in [Collective::AllReduce, Collective::Broadcast, Collective::Barrier] {
            let sizes = [4096, 70_000, 5_000_000, 70_000, 900_001].map(Bytes);
            calls.extend(sizes.map(|bytes| GroupCall { devices, collective, bytes }));
        }
    }
    let together = plan_all(&simulated, &calls);
    assert_eq!(together.len(), calls.len());
    for (call, row) in calls.iter().zip(together) {
        assert_eq!(row, plan_all(&simulated, &[*call]).remove(0), "{call:?}");
    }
}

/// Eight groups share one NIC. The selected strategy is the fastest candidate with all groups concurrent, which in some
/// cases differs from the fastest for a single group.
#[test]
fn picks_are_fastest_with_all_groups_concurrent() {
    let network = Some("rail,nics_per_node=1,nic=400Gb/s".parse().unwrap());
    let fabric = load(&FabricRequest { nodes: Some(2), network, ..FabricRequest::new("hgx-h100") }).unwrap();
    let router = Router::new(&fabric, RouteOptions::default());
    let profile = Profile::for_fabric(&fabric).unwrap();
    let simulated = SimulatedCosts::new(&router, &profile, fabric.gpus());
    let layout = Layout { degrees: Degrees { tensor: 8, data: 2, ..Degrees::default() } };
    let device_groups = simulated.placement().concurrent_groups(&layout.groups(Dimension::Data), Collective::AllReduce);
    assert_eq!(device_groups.len(), 8);
    let mut differing = 0;
    for collective in [Collective::AllReduce, Collective::AllGather] {
        for bytes in (14..24).step_by(3).map(|power| Bytes(1 << power)) {
            let request = CallRequest { collective, bytes, allowed: CollectiveCandidates::Library };
            let timed = simulated.selector().select_at_size(&device_groups, request).unwrap();
            let row = planned_row(&simulated, GroupCall { devices: &device_groups[0], collective, bytes });
            let time_with_all = |candidate: TimedStrategy| {
                slowest(&simulated, &device_groups, request.with_strategy(candidate.strategy))
            };
            let best = simulated_candidates(&row).map(time_with_all).min();
            assert_eq!(Some(timed.time), best, "{collective} {bytes}");
            differing += u32::from(timed.strategy != Some(row.fastest.strategy));
        }
    }
    assert!(differing > 0);
}

/// At scale, pruning by the busiest link and deferring PAT do not change the selected strategy: it is the fastest of
/// all candidates with all groups, on rails, where PAT is fastest, and on a torus, where rings are fastest.
#[test]
fn picks_at_scale_are_fastest_of_all_candidates() {
    let mut picked = Vec::new();
    for network in ["rail", "torus"] {
        let network = Some(format!("{network},nic=400Gb/s").parse().unwrap());
        let fabric = load(&FabricRequest { nodes: Some(96), network, ..FabricRequest::new("hgx-h100") }).unwrap();
        let layout = Layout { degrees: Degrees { tensor: 8, data: 96, ..Degrees::default() } };
        with_machine(&fabric, |machine| {
            let simulated = machine.simulated;
            for (collective, bytes) in [(Collective::AllGather, 6 << 20), (Collective::ReduceScatter, 96 << 20)] {
                let bytes = Bytes(bytes);
                let device_groups =
                    simulated.placement().concurrent_groups(&layout.groups(Dimension::Data), collective);
                let request = CallRequest { collective, bytes, allowed: CollectiveCandidates::Library };
                let best = simulated.selector().best(&device_groups, request).unwrap();
                let candidates =
                    simulated.search().candidates(&CandidateClass::ALL, &device_groups[0], request).unwrap();
                let time_with_all = |&TimedCandidate { time, strategy }: &TimedCandidate| {
                    let call = request.with_strategy(strategy);
                    simulated.timer().sample_time(&device_groups, call, KnownTime::FirstGroupAlone(time)).unwrap()
                };
                // The selected strategy may have been found in a search over fewer classes, which lists more candidates
                // of each class.
                assert!(
                    candidates.iter().map(time_with_all).all(|time| best.time <= time),
                    "{} {collective} {bytes}",
                    fabric.name()
                );
                picked.extend(best.strategy.map(|strategy| strategy.algorithm));
            }
        });
    }
    assert!(picked.contains(&Algorithm::Pat) && picked.contains(&Algorithm::Ring), "{picked:?}");
}

/// Large calls among all GPUs of four hosts, as for sharded weights, are no slower than with the strategy of a plan at
/// the same size, for slow and fast NICs. Protocol and channels differ from those at 1 MiB per rank.
#[test]
fn large_calls_are_no_slower_than_the_plan_pick() {
    for nic in [200, 400, 800] {
        let network = Some(format!("rail,nic={nic}Gb/s").parse().unwrap());
        let fabric = load(&FabricRequest { nodes: Some(4), network, ..FabricRequest::new("hgx-h100") }).unwrap();
        let layout = Layout { degrees: Degrees { data: 32, ..Degrees::default() } };
        with_machine(&fabric, |machine| {
            let costs = machine.simulated.restricted_to(CollectiveCandidates::Library);
            for collective in [Collective::AllGather, Collective::ReduceScatter] {
                for bytes in [278_921_216, 402_759_680, 634_408_960].map(Bytes) {
                    let exchange = Exchange { dimension: Dimension::Data, collective, bytes };
                    let time = costs.time(&layout, exchange).unwrap();
                    let gpus = fabric.gpus();
                    let call = GroupCall { devices: gpus, collective, bytes };
                    let planned = planned_row(machine.simulated, call).fastest.time;
                    let excess = time.0 as f64 / planned.0 as f64 - 1.0;
                    assert!(excess < 0.01, "{nic} {collective} {bytes}: {time}, {planned} planned");
                }
            }
        });
    }
}

/// Sampled and rounded times of large calls and of odd sizes between hosts are compared with whole calls. The calls of
/// 3.1 GiB in two groups may differ by more: depending on the size, chunks of channels that share a NIC are in or out
/// of phase, which no sample predicts.
#[test]
fn sampled_times_match_whole_calls() {
    let fabric = rails(8);
    let router = Router::new(&fabric, RouteOptions::default());
    let profile = Profile::for_fabric(&fabric).unwrap();
    let simulated = SimulatedCosts::new(&router, &profile, fabric.gpus());
    let job = read(
        "name = \"j\"\nglobal_batch = 64\nparallel = \"auto\"\n\
         model = { layers = 8, hidden = 1024, heads = 8, vocab = 1024, seq = 64 }\n",
    );
    for tensor in [2, 4] {
        let degrees = Degrees { tensor, data: 64 / tensor, ..Degrees::default() };
        let layout = Layout::new(&job, 64, degrees).unwrap();
        let groups = layout.groups(Dimension::Data);
        for collective in [Collective::AllGather, Collective::ReduceScatter] {
            for bytes in [26_116_096, 100_000_007, 634_408_960, 3_303_669_760].map(Bytes) {
                let allowed = CollectiveCandidates::Library;
                let request = CallRequest { collective, bytes, allowed };
                let query = CallQuery { groups: layout.shape(Dimension::Data), request };
                let selector = simulated.selector();
                let sampled = selector.select(&groups, query).unwrap();
                let device_groups = simulated.placement().concurrent_groups(&groups, collective);
                let full = selector.select_at_size(&device_groups, request).unwrap();
                let error = sampled.time.0 as f64 / full.time.0 as f64 - 1.0;
                let is_outlier = (bytes.0, tensor) == (3_303_669_760, 2);
                // The largest error is +7.6 % (reduce_scatter of 100 MB in pairs): the proxies' time per message does
                // not grow with the size as the growth law assumes.
                let range = if is_outlier { -0.12..0.5 } else { -0.06..0.08 };
                assert!(range.contains(&error), "{collective} {bytes:?} {tensor}: {error:+.4}");
            }
        }
    }
}

/// Large streaming calls are sampled. The extrapolated time is near that of the whole call, for one group and for all
/// groups.
#[test]
fn sampled_streaming_times_match_whole_calls() {
    with_machine(&rails(32), |machine| check_streaming_samples(machine.simulated));
}

fn check_streaming_samples(simulated: &SimulatedCosts<'_>) {
    let layout = Layout { degrees: Degrees { tensor: 8, data: 32, ..Degrees::default() } };
    let (collective, bytes) = (Collective::AllReduce, Bytes(1_500_000_000));
    let device_groups = simulated.placement().concurrent_groups(&layout.groups(Dimension::Data), collective);
    // Chunks of LL128 streams grow with the call size, up to 64 per channel.
    let near = |sampled: Picos, full: Picos, strategy: Strategy| {
        let tolerance = if strategy.protocol == Protocol::Ll128 { 0.04 } else { 0.01 };
        (sampled.0 as f64 / full.0 as f64 - 1.0).abs() < tolerance
    };
    let request = CallRequest { collective, bytes, allowed: CollectiveCandidates::Library };
    let candidates = simulated.search().candidates(&CandidateClass::ALL, &device_groups[0], request).unwrap();
    let streaming: Vec<_> =
        candidates.iter().filter(|candidate| candidate.strategy.algorithm.is_pipelined(collective)).collect();
    assert!(!streaming.is_empty() && streaming.len() < candidates.len(), "{candidates:?}");
    assert!(candidates.is_sorted());
    for &&TimedCandidate { time: alone, strategy } in &streaming {
        let call = request.with_strategy(strategy);
        let full = slowest(simulated, &device_groups[..1], call);
        assert!(near(alone, full, strategy), "{strategy} {alone} {full}");
        let known = KnownTime::FirstGroupAlone(alone);
        let sampled = simulated.timer().sample_time(&device_groups, call, known).unwrap();
        let full = slowest(simulated, &device_groups, call);
        assert!(near(sampled, full, strategy), "{strategy} {sampled} {full}");
    }
}

/// A failed link has the same effect on the time on every host.
#[test]
fn failed_link_costs_the_same_on_every_host() {
    let network = Some("rail,nics_per_node=8,nic=400Gb/s".parse().unwrap());
    let intact = load(&FabricRequest { nodes: Some(3), network, ..FabricRequest::new("mi300x") }).unwrap();
    let layout = Layout { degrees: Degrees { tensor: 8, data: 3, ..Degrees::default() } };
    let exchange =
        Exchange { dimension: Dimension::Tensor, collective: Collective::AllReduce, bytes: Bytes(256 << 20) };
    let time = |fabric: &fabricast_topologies::Fabric| {
        let router = Router::new(fabric, RouteOptions::default());
        let profile = Profile::for_fabric(fabric).unwrap();
        let simulated = SimulatedCosts::new(&router, &profile, fabric.gpus());
        simulated.restricted_to(CollectiveCandidates::Library).time(&layout, exchange).unwrap()
    };
    let broken = [0, 1, 2].map(|host| time(&intact.with_failed(&format!("n{host}/gpu0-n{host}/gpu1")).unwrap()));
    // The fastest strategy may avoid the failed link.
    assert!(broken[0] >= time(&intact) && broken[1] == broken[0] && broken[2] == broken[0], "{broken:?}");
}
