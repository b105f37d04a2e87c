//! Link utilization of a step, by kind of link and of its ends.

use std::collections::BTreeMap;

use fabricast_sim::profile::Profile;
use fabricast_topologies::fabric::Link;
use fabricast_topologies::route::{Links, RouteOptions, Router};
use fabricast_topologies::{Bandwidth, Fabric, LinkId, LinkKind, NodeId, NodeKind, Picos};

use super::answer::{Answer, CallRow, CandidateRow, JobRow, KernelsRow, LoadRow, ResultRow};
use super::{Candidate, Study};
use crate::job::{Job, Layout, Loaded};
use crate::serve;
use crate::step::{self, PricedCall, Simulated, StepCall, ranks_at_work};

/// Utilization of each link of a fabric in a step, indexed by [`LinkId`], computed from the calls of a result. `None`
/// if the result has no calls or belongs to another job.
#[must_use]
pub fn of_row(job: &Job, row: &ResultRow, fabric: &Fabric) -> Option<Vec<f64>> {
    let layout = layout_of_row(job, row, fabric)?;
    let calls = calls_of_row(job, row, &layout)?;
    let priced: Vec<PricedCall> = calls
        .into_iter()
        .zip(&row.calls)
        .map(|(call, row)| PricedCall { call, strategy: row.pick, time: Picos::from_us(row.time_us) })
        .collect();
    let router = Router::listing(fabric, RouteOptions::default(), Links::OneOfAlike);
    let profile = Profile::for_fabric(fabric).ok()?;
    let devices = ranks_at_work(job, fabric).ok()?;
    let load = Simulated::new(&router, &profile, &devices).load(&layout, &priced);
    Some(load.utilization(&router, Picos::from_us(row.step_time_s * 1e6)))
}

/// Returns the layout of a result.
pub(super) fn layout_of_row(job: &Job, row: &ResultRow, fabric: &Fabric) -> Option<Layout> {
    let ranks = ranks_at_work(job, fabric).ok()?.len() as u32;
    let found = Layout { degrees: row.parallel.as_ref()?.degrees() };
    let given = match job {
        Job::Training(job) => Layout::given(job, ranks),
        Job::Inference(job) => Layout::given_to_serve(job, ranks),
        Job::Trace(_) => return None,
    };
    Some(given.ok()?.unwrap_or(found))
}

/// Returns true if an answer belongs to a study: the same jobs with valid layouts on the same machines with the same
/// kernel efficiency. Costs may differ.
#[must_use]
pub fn is_answered(study: &Study, fabrics: &[Fabric], answer: &Answer) -> bool {
    let is_same = |((asked, fabric), told): ((&Candidate, &Fabric), &CandidateRow)| {
        let size = (fabric.name(), fabric.gpus().len() as u64, &asked.network);
        (&asked.name, &asked.fabric.fabric) == (&told.name, &told.fabric)
            && size == (told.fabric_name.as_str(), told.gpus, &told.network)
            && KernelsRow::of(&asked.efficiency.on(fabric)).is_near(&told.kernels)
    };
    let is_told = |row: &ResultRow| {
        let number = study.candidates.iter().position(|one| one.name == row.candidate)?;
        let job = study.jobs.iter().find(|job| job.name() == row.job)?;
        // Traces and single-process jobs have no calls.
        match row.calls.is_empty() {
            true => Some(()),
            false => calls_of_row(job, row, &layout_of_row(job, row, fabrics.get(number)?)?).map(drop),
        }
    };
    let is_job = |number: usize, told: &JobRow| {
        let named = study.pairs.of_job(number).unwrap_or_default();
        let names = named.iter().filter_map(|&one| Some(study.candidates.get(one)?.name.as_str()));
        // (Answers of earlier versions do not contain the keys of their jobs.)
        (told.asked.is_empty() || study.asked.get(number) == Some(&told.asked))
            && study.jobs.get(number).is_some_and(|job| job.name() == told.name)
            && names.eq(told.candidates.iter().map(String::as_str))
    };
    study.candidates.len() == answer.candidates.len()
        && study.candidates.iter().zip(fabrics).zip(&answer.candidates).all(is_same)
        && study.jobs.len() == answer.jobs.len()
        && answer.jobs.iter().enumerate().all(|(number, told)| is_job(number, told))
        && answer.results.iter().all(|row| is_told(row).is_some())
}

/// Returns the calls of a result, in its order.
pub(super) fn calls_of_row(job: &Job, row: &ResultRow, layout: &Layout) -> Option<Vec<StepCall>> {
    let calls = match job {
        Job::Training(job) => step::calls(job, layout),
        Job::Inference(job) => serve::calls(&Loaded { job, in_flight: row.in_flight? }, layout),
        Job::Trace(_) => return None,
    };
    let is_of_row = |(call, row): (&StepCall, &CallRow)| call.exchange.bytes.0 == row.bytes;
    let are_of_row = calls.len() == row.calls.len() && calls.iter().zip(&row.calls).all(is_of_row);
    (are_of_row && !calls.is_empty()).then_some(calls)
}

/// Class of equivalent links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Class {
    kind: LinkKind,
    ends: (End, End),
    rate: Option<Bandwidth>,
}

/// Kind of device at the end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Gpu,
    Nvswitch,
    PcieSwitch,
    Cpu,
    Nic,
    /// Network switch, with its tier from 1 (leaf).
    Switch(u32),
}

impl std::fmt::Display for End {
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

/// Links of a class.
struct Alike {
    directions: u64,
    sum: f64,
    busiest: (f64, LinkId),
}

/// Classes of links with their utilization, the busiest first; `utilization` is indexed by [`LinkId`]. Unused links are
/// omitted.
#[must_use]
pub fn by_class(fabric: &Fabric, utilization: &[f64]) -> Vec<LoadRow> {
    let tiers = tiers(fabric);
    let end = |id: NodeId| match fabric.node(id).kind {
        NodeKind::Gpu | NodeKind::Mig | NodeKind::Accelerator => End::Gpu,
        NodeKind::Nvswitch => End::Nvswitch,
        NodeKind::PcieSwitch => End::PcieSwitch,
        NodeKind::Cpu => End::Cpu,
        NodeKind::Nic => End::Nic,
        NodeKind::Switch => End::Switch(tiers.get(id.0 as usize).copied().unwrap_or(1)),
    };
    let class = |link: &Link| {
        let (from, to) = (end(link.from), end(link.to));
        Class { kind: link.kind, ends: (from.min(to), from.max(to)), rate: link.bandwidth }
    };
    let mut classes: BTreeMap<Class, Alike> = BTreeMap::new();
    for (id, link) in fabric.links().filter(|(_, link)| !link.failed) {
        let own = utilization.get(id.0 as usize).copied().unwrap_or_default();
        let alike = classes.entry(class(link)).or_insert(Alike { directions: 0, sum: 0.0, busiest: (own, id) });
        alike.directions += 1;
        alike.sum += own;
        if own > alike.busiest.0 {
            alike.busiest = (own, id);
        }
    }
    let used = classes.into_iter().filter(|(_, alike)| alike.busiest.0 > 0.0);
    let mut rows: Vec<LoadRow> = used
        .map(|(class, alike)| LoadRow {
            links: format!("{}, {} to {}", class.kind.title(), class.ends.0, class.ends.1),
            count: alike.directions.div_ceil(2),
            gbps: class.rate.map(Bandwidth::gbps).unwrap_or_default(),
            mean: alike.sum / alike.directions as f64,
            most: alike.busiest.0,
            busiest: fabric.link_name(alike.busiest.1),
        })
        .collect();
    rows.sort_by(|a, b| b.most.total_cmp(&a.most));
    rows
}

/// Tier of each network switch by node: 1 for switches next to hosts, 0 for other devices.
fn tiers(fabric: &Fabric) -> Vec<u32> {
    let mut tiers = vec![0; fabric.node_count()];
    let is_switch = |id: NodeId| fabric.node(id).kind == NodeKind::Switch;
    let mut front: Vec<NodeId> = fabric.nodes().map(|(id, _)| id).filter(|&id| !is_switch(id)).collect();
    let mut tier = 1;
    while !front.is_empty() {
        let mut next = Vec::new();
        for to in front.iter().flat_map(|&id| fabric.leaving(id)).map(|link| fabric.link(link).to) {
            if let Some(own) = tiers.get_mut(to.0 as usize).filter(|own| **own == 0 && is_switch(to)) {
                *own = tier;
                next.push(to);
            }
        }
        (front, tier) = (next, tier + 1);
    }
    tiers
}

#[cfg(test)]
mod tests {
    use fabricast_topologies::{FabricRequest, load};

    use super::*;

    /// Two network tiers over eight hosts with eight GPUs on one NVSwitch: each link is in one class, and mean and
    /// maximum match the given utilization.
    #[test]
    fn links_are_classified_by_their_ends() {
        let network = Some("fat_tree,nic=400Gb/s,radix=8".parse().unwrap());
        let request = FabricRequest { nodes: Some(8), network, ..FabricRequest::of("hgx-h100") };
        let fabric = load(&request).unwrap();
        let busy: Vec<f64> = fabric.links().map(|(id, _)| if id.0 % 2 == 0 { 0.5 } else { 0.1 }).collect();
        let rows = by_class(&fabric, &busy);
        let count: u64 = rows.iter().map(|row| row.count).sum();
        assert_eq!(count as usize, fabric.link_count() / 2);
        assert!(rows.iter().all(|row| (row.mean - 0.3).abs() < 1e-9 && row.most == 0.5), "{rows:?}");
        for (name, count) in [("NVLink, GPU to NVSwitch", 8 * 8), ("InfiniBand, NIC to leaf", 64)] {
            assert_eq!(rows.iter().find(|row| row.links == name).map(|row| row.count), Some(count), "{rows:?}");
        }
        assert!(rows.iter().any(|row| row.links == "InfiniBand, leaf to spine"), "{rows:?}");
        assert!(by_class(&fabric, &[]).is_empty());
    }
}
