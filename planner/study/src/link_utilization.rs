//! Link utilization of a step, by kind of link and of its ends.

use std::collections::BTreeMap;

use fabricast_sim::profile::Profile;
use fabricast_topologies::fabric::Link;
use fabricast_topologies::route::{LinkListing, RouteOptions, Router};
use fabricast_topologies::{Bandwidth, Fabric, LinkId, LinkKind, NodeId, NodeKind};

use super::answer::{Answer, CandidateRow, JobRow, KernelsRow, ResultRow};
use super::prediction::{LinkClassLoad, PredictedCall, Prediction};
use super::{Candidate, Study};
use fabricast_perf::communication::{SimulatedCosts, StepCall, StepExchange, TimedCall};
use fabricast_perf::serve;
use fabricast_perf::step::{self, active_ranks};
use fabricast_workload::job::{Job, Layout, LoadedServing};

/// Returns the utilization of each link of a fabric in a step, indexed by [`LinkId`], computed from the calls of a
/// prediction. `None` if it has no calls or belongs to another job.
#[must_use]
pub fn compute_utilization(job: &Job, prediction: &Prediction, fabric: &Fabric) -> Option<Vec<f64>> {
    let layout = predicted_layout(job, prediction, fabric)?;
    let exchanges = predicted_exchanges(job, prediction, &layout);
    let calls = match prediction.calls.is_empty() && !exchanges.is_empty() {
        true => Vec::new(),
        false => predicted_calls(job, prediction, &layout)?,
    };
    let timed_calls: Vec<TimedCall> = calls
        .into_iter()
        .zip(&prediction.calls)
        .map(|(call, predicted)| TimedCall { call, strategy: predicted.strategy, time: predicted.time })
        .collect();
    let router = Router::with_link_listing(fabric, RouteOptions::default(), LinkListing::Representatives);
    let profile = Profile::for_fabric(fabric).ok()?;
    let devices = active_ranks(job, fabric).ok()?;
    let load = SimulatedCosts::new(&router, &profile, &devices).load(&layout, &timed_calls, &exchanges);
    Some(load.utilization(&router, prediction.step.time))
}

/// Returns the layout of a prediction; `None` for traces and layouts that do not fit the ranks. A layout that the job
/// specifies has settings that a saved result does not contain.
pub(super) fn predicted_layout(job: &Job, prediction: &Prediction, fabric: &Fabric) -> Option<Layout> {
    let ranks = active_ranks(job, fabric).ok()?.len() as u32;
    let predicted = prediction.layout?.layout;
    let specified = match job {
        Job::Training(job) => Layout::specified_by(job, ranks),
        Job::Inference(job) => Layout::specified_by_serving(job, ranks),
        Job::Trace(_) => return None,
    };
    Some(specified.ok()?.unwrap_or(predicted))
}

/// Returns true if an answer belongs to a study: the same jobs with valid layouts, on the same machines, with the same
/// kernel efficiency. Costs may differ.
#[must_use]
pub fn matches_study(study: &Study, fabrics: &[Fabric], answer: &Answer) -> bool {
    let is_same_candidate = |((candidate, fabric), row): ((&Candidate, &Fabric), &CandidateRow)| {
        let size = (fabric.name(), fabric.gpus().len() as u64, &candidate.network);
        (&candidate.name, &candidate.fabric.fabric) == (&row.name, &row.fabric)
            && size == (row.fabric_name.as_str(), row.gpus, &row.network)
            && KernelsRow::new(&candidate.efficiency.resolve(fabric)).is_near(&row.kernels)
    };
    let has_valid_calls = |row: &ResultRow| {
        let number = study.candidates.iter().position(|candidate| candidate.name == row.candidate)?;
        let job = study.jobs.iter().find(|job| job.name() == row.job)?;
        // Traces and single-process jobs have no calls.
        if row.calls.is_empty() {
            return Some(());
        }
        let prediction = Prediction::from_row(row).ok()?;
        predicted_calls(job, &prediction, &predicted_layout(job, &prediction, fabrics.get(number)?)?).map(drop)
    };
    let is_same_job = |number: usize, row: &JobRow| {
        let candidates = study.assignment.candidates(number).unwrap_or_default();
        let names = candidates.iter().filter_map(|&candidate| Some(study.candidates.get(candidate)?.name.as_str()));
        // Answers of earlier versions do not contain the keys of their jobs.
        (row.keys.is_empty() || study.job_keys.get(number) == Some(&row.keys))
            && study.jobs.get(number).is_some_and(|job| job.name() == row.name)
            && names.eq(row.candidates.iter().map(String::as_str))
    };
    study.candidates.len() == answer.candidates.len()
        && study.candidates.iter().zip(fabrics).zip(&answer.candidates).all(is_same_candidate)
        && study.jobs.len() == answer.jobs.len()
        && answer.jobs.iter().enumerate().all(|(number, row)| is_same_job(number, row))
        && answer.results.iter().all(|row| has_valid_calls(row).is_some())
}

/// Returns the calls of a prediction in its order; `None` if it has no calls or belongs to another job.
pub(super) fn predicted_calls(job: &Job, prediction: &Prediction, layout: &Layout) -> Option<Vec<StepCall>> {
    let calls = match job {
        Job::Training(job) => step::step_calls(job, layout),
        Job::Inference(job) => serve::calls(
            &LoadedServing { job, concurrent_requests: prediction.service()?.concurrent_requests? },
            layout,
        ),
        Job::Trace(_) => return None,
    };
    let has_same_bytes =
        |(call, predicted): (&StepCall, &PredictedCall)| call.exchange.bytes == predicted.exchange.bytes;
    let all_match = calls.len() == prediction.calls.len() && calls.iter().zip(&prediction.calls).all(has_same_bytes);
    (all_match && !calls.is_empty()).then_some(calls)
}

/// Returns the exchanges of tokens of a prediction.
fn predicted_exchanges(job: &Job, prediction: &Prediction, layout: &Layout) -> Vec<StepExchange> {
    match job {
        Job::Training(job) => step::step_exchanges(job, layout),
        Job::Inference(job) => {
            let concurrent_requests = prediction.service().and_then(|service| service.concurrent_requests);
            concurrent_requests.map_or_else(Vec::new, |concurrent_requests| {
                serve::exchanges(&LoadedServing { job, concurrent_requests }, layout)
            })
        }
        Job::Trace(_) => Vec::new(),
    }
}

/// Class of equivalent links: equal kind, ends and bandwidth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Class {
    kind: LinkKind,
    ends: (LinkEnd, LinkEnd),
    rate: Option<Bandwidth>,
}

/// Kind of device at the end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LinkEnd {
    Gpu,
    Nvswitch,
    PcieSwitch,
    Cpu,
    Nic,
    /// Network switch, with its tier from 1 (leaf).
    Switch(u32),
}

impl std::fmt::Display for LinkEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Gpu => f.write_str("GPU"),
            Self::Nvswitch => f.write_str("NVSwitch"),
            Self::PcieSwitch => f.write_str("PCIe switch"),
            Self::Cpu => f.write_str("CPU"),
            Self::Nic => f.write_str("NIC"),
            Self::Switch(1) => f.write_str("leaf"),
            Self::Switch(2) => f.write_str("spine"),
            Self::Switch(tier) => write!(f, "tier {tier} switch"),
        }
    }
}

/// Utilization of the links of a class: number of link directions, sum of utilizations, and the busiest direction.
struct UtilizationSum {
    directions: u64,
    sum: f64,
    busiest: (f64, LinkId),
}

/// Returns the classes of links with their utilization, busiest first. `utilization` is indexed by [`LinkId`]. Unused
/// links are omitted.
#[must_use]
pub(super) fn link_class_loads(fabric: &Fabric, utilization: &[f64]) -> Vec<LinkClassLoad> {
    let tiers = tiers(fabric);
    let end = |id: NodeId| match fabric.node(id).kind {
        NodeKind::Gpu | NodeKind::Mig | NodeKind::Accelerator => LinkEnd::Gpu,
        NodeKind::Nvswitch => LinkEnd::Nvswitch,
        NodeKind::PcieSwitch => LinkEnd::PcieSwitch,
        NodeKind::Cpu => LinkEnd::Cpu,
        NodeKind::Nic => LinkEnd::Nic,
        NodeKind::Switch => LinkEnd::Switch(tiers.get(id.0 as usize).copied().unwrap_or(1)),
    };
    let class = |link: &Link| {
        let (from, to) = (end(link.from), end(link.to));
        Class { kind: link.kind, ends: (from.min(to), from.max(to)), rate: link.bandwidth }
    };
    let mut classes: BTreeMap<Class, UtilizationSum> = BTreeMap::new();
    for (id, link) in fabric.links().filter(|(_, link)| !link.failed) {
        let share = utilization.get(id.0 as usize).copied().unwrap_or_default();
        let class_load =
            classes.entry(class(link)).or_insert(UtilizationSum { directions: 0, sum: 0.0, busiest: (share, id) });
        class_load.directions += 1;
        class_load.sum += share;
        if share > class_load.busiest.0 {
            class_load.busiest = (share, id);
        }
    }
    let used = classes.into_iter().filter(|(_, class_load)| class_load.busiest.0 > 0.0);
    let mut loads: Vec<LinkClassLoad> = used
        .map(|(class, class_load)| LinkClassLoad {
            class: format!("{}, {} to {}", class.kind.title(), class.ends.0, class.ends.1),
            count: class_load.directions.div_ceil(2),
            bandwidth: class.rate.unwrap_or(Bandwidth(0)),
            mean: class_load.sum / class_load.directions as f64,
            max: class_load.busiest.0,
            busiest: fabric.link_name(class_load.busiest.1),
        })
        .collect();
    loads.sort_by(|a, b| b.max.total_cmp(&a.max));
    loads
}

/// Returns the tier of each network switch, indexed by node: 1 for switches next to hosts, 0 for other devices.
fn tiers(fabric: &Fabric) -> Vec<u32> {
    let mut tiers = vec![0; fabric.node_count()];
    let is_switch = |id: NodeId| fabric.node(id).kind == NodeKind::Switch;
    let mut frontier: Vec<NodeId> = fabric.nodes().map(|(id, _)| id).filter(|&id| !is_switch(id)).collect();
    let mut tier = 1;
    while !frontier.is_empty() {
        let mut next = Vec::new();
        for to in frontier.iter().flat_map(|&id| fabric.outgoing_links(id)).map(|link| fabric.link(link).to) {
            if let Some(entry) = tiers.get_mut(to.0 as usize).filter(|entry| **entry == 0 && is_switch(to)) {
                *entry = tier;
                next.push(to);
            }
        }
        (frontier, tier) = (next, tier + 1);
    }
    tiers
}

#[cfg(test)]
mod tests {
    use fabricast_topologies::{FabricRequest, load};

    use super::*;

    /// Each link is in one class, and mean and maximum match the given utilization. The fabric has two network tiers
    /// over eight hosts with eight GPUs on one NVSwitch each.
    #[test]
    fn links_are_classified_by_their_ends() {
        let network = Some("fat_tree,nic=400Gb/s,radix=8".parse().unwrap());
        let request = FabricRequest { nodes: Some(8), network, ..FabricRequest::new("hgx-h100") };
        let fabric = load(&request).unwrap();
        let busy: Vec<f64> = fabric.links().map(|(id, _)| if id.0 % 2 == 0 { 0.5 } else { 0.1 }).collect();
        let rows = link_class_loads(&fabric, &busy);
        let count: u64 = rows.iter().map(|row| row.count).sum();
        assert_eq!(count as usize, fabric.link_count() / 2);
        assert!(rows.iter().all(|row| (row.mean - 0.3).abs() < 1e-9 && row.max == 0.5), "{rows:?}");
        for (name, count) in [("NVLink, GPU to NVSwitch", 8 * 8), ("InfiniBand, NIC to leaf", 64)] {
            assert_eq!(rows.iter().find(|row| row.class == name).map(|row| row.count), Some(count), "{rows:?}");
        }
        assert!(rows.iter().any(|row| row.class == "InfiniBand, leaf to spine"), "{rows:?}");
        assert!(link_class_loads(&fabric, &[]).is_empty());
    }
}
