//! Tests of causes that have a reason: statements of logs, rules of NCCL's releases, and published defects.

use std::sync::Arc;

use fabricast_sim::monitor::Monitor;
use fabricast_sim::schedule::Collective;
use fabricast_topologies::route::{GpuDirect, RouteOptions};
use fabricast_topologies::{Bytes, FabricRequest, LinkId, LinkKind, NodeKind, Picos, read_request};
use fabricast_validate::compare::{
    Advice, Basis, ComparisonRequest, Explanations, FastestPlanned, Group, RankedCause, Setting, compare,
};
use fabricast_validate::measured::manifest::{Configuration, Measurement};
use fabricast_validate::measured::{ConnectionCounts, LibraryName, MeasuredLibrary, NcclReport, Row, TopologySearch};

use crate::diagnosis::{Exact, Random, may_be_rarer, scattered, seed};
use crate::measurements::{own_choice, unmeasured};

/// Sizes of the measured calls: 16 MiB to 4 GiB.
const POWERS: [u32; 5] = [24, 26, 28, 30, 32];

/// Returns a measurement of AllReduce on a preset, with placeholders for times.
fn all_reduce(fabric: &str, nodes: u32, gpus: u32, release: Option<&str>) -> Measurement {
    let request = FabricRequest { nodes: (nodes > 1).then_some(nodes), gpus: Some(gpus), ..FabricRequest::new(fabric) };
    unmeasured(request, configuration(nodes, gpus, release), rows(|_| Picos(1)))
}

fn configuration(nodes: u32, gpus: u32, release: Option<&str>) -> Configuration {
    let library = release.map(|version| MeasuredLibrary { name: LibraryName::Nccl, version: version.to_owned() });
    Configuration { library, ..own_choice(nodes, gpus, Collective::AllReduce) }
}

fn rows(time: impl Fn(Bytes) -> Picos) -> Vec<Row> {
    POWERS.iter().map(|&power| Row::new(Bytes(1 << power), time(Bytes(1 << power)), power)).collect()
}

/// Returns rows with the time of a ring at a bus bandwidth in GB/s.
fn ring_rows(measurement: &Measurement, bandwidth: f64) -> Vec<Row> {
    let ranks = f64::from(measurement.configuration.nodes * measurement.configuration.gpus);
    let factor = 2.0 * (ranks - 1.0) / ranks;
    rows(|bytes| Picos((bytes.0 as f64 * factor / bandwidth * 1000.0) as u64))
}

fn group(measurement: &Measurement, routes: RouteOptions, explanations: Explanations) -> (Group, Vec<Picos>) {
    let request = ComparisonRequest {
        measurements: std::slice::from_ref(measurement),
        profile: None,
        choice: &FastestPlanned,
        routes,
        explanations,
        monitor: Monitor::default(),
    };
    let mut comparison = compare(&request).unwrap();
    let predicted = comparison.rows.iter().map(|row| row.predicted).collect();
    (comparison.groups.remove(0), predicted)
}

fn diagnosed(measurement: &Measurement) -> Group {
    group(measurement, RouteOptions::default(), Explanations::Wanted).0
}

/// Returns the measurement with the times that are predicted on given routes, times a factor.
fn measured_on(measurement: &Measurement, routes: RouteOptions, factor: f64) -> Measurement {
    let (_, times) = group(measurement, routes, Explanations::None);
    let scaled = |(row, time): (&Row, &Picos)| Row::new(row.bytes, Picos((time.0 as f64 * factor) as u64), row.line);
    Measurement { rows: measurement.rows.iter().zip(&times).map(scaled).collect(), ..measurement.clone() }
}

/// Returns the measurement with NCCL's report of its connections.
fn reporting(measurement: &Measurement, connections: ConnectionCounts) -> Measurement {
    let mut reporting = measurement.clone();
    reporting.context.report = NcclReport { connections, ..NcclReport::default() };
    reporting
}

fn classes(group: &Group) -> Vec<&'static str> {
    group.causes.iter().map(|ranked| ranked.cause.class()).collect()
}

fn first(group: &Group) -> &RankedCause {
    group.causes.first().unwrap_or_else(|| panic!("{group:?}"))
}

/// Connections that the log states as staged make host memory the first cause. Connections that are all direct exclude it.
#[test]
fn connections_of_the_log_state_or_exclude_gpu_direct() {
    let described = all_reduce("hgx-h100", 2, 8, None);
    let routes = RouteOptions { gdr: GpuDirect::Off, ..RouteOptions::default() };
    let slow = measured_on(&described, routes, 1.3);
    let staged =
        diagnosed(&reporting(&slow, ConnectionCounts { staged: 6, gpu_direct: 2, ..ConnectionCounts::default() }));
    let cause = first(&staged);
    assert_eq!(cause.cause.class(), "gpu_direct");
    assert_eq!(cause.basis, Basis::Stated("6 of 8 network connections without GDRDMA".to_owned()));
    assert!(cause.is_established(), "{cause:?}");
    let direct = diagnosed(&reporting(&slow, ConnectionCounts { gpu_direct: 8, ..ConnectionCounts::default() }));
    assert!(!classes(&direct).contains(&"gpu_direct") && !classes(&direct).contains(&"sockets"), "{direct:?}");
}

/// A log with the times that are predicted gets no cause, whatever it states.
#[test]
fn expected_times_have_no_cause_despite_statements() {
    let described = all_reduce("hgx-h100", 2, 8, Some("2.19.3"));
    let expected = measured_on(&described, RouteOptions::default(), 1.0);
    let mut stated = reporting(&expected, ConnectionCounts { staged: 8, sockets: 8, ..ConnectionCounts::default() });
    stated.context.report.search = TopologySearch::FellBack;
    stated.context.adjacent_gpus = Some(8);
    assert_eq!(diagnosed(&stated).causes, []);
}

/// Eight GPUs on consecutive buses contradict a host with PCIe switches.
#[test]
fn adjacent_gpus_state_a_hidden_topology() {
    let described = all_reduce("hgx-h200", 2, 8, None);
    let routes = RouteOptions { gdr: GpuDirect::Off, ..RouteOptions::default() };
    let mut virtual_machine = measured_on(&described, routes, 1.3);
    virtual_machine.context.adjacent_gpus = Some(8);
    let found = diagnosed(&virtual_machine);
    assert_eq!(first(&found).cause.class(), "topology", "{found:?}");
    virtual_machine.context.adjacent_gpus = None;
    assert!(!classes(&diagnosed(&virtual_machine)).contains(&"topology"));
}

/// Host with four A100 and a NIC next to each, all on one CPU.
const ONE_GPU_PER_NIC: &str = r#"
name = "one-gpu-per-nic"
[device.gpu]
model = "A100 SXM 80GB"
[device.cpu]
arch = "x86_64"
vendor = "GenuineIntel"
family = 6
model_id = 106
[device.nic]
speed = "100 Gb/s"
[[node]]
id = "gpu[0-3]"
kind = "gpu"
device = "gpu"
[[node]]
id = "cpu0"
kind = "cpu"
device = "cpu"
[[node]]
id = "pcie_switch[0-3]"
kind = "pcie_switch"
[[node]]
id = "nic[0-3]"
kind = "nic"
device = "nic"
[[node]]
id = "nvswitch0"
kind = "nvswitch"
[[link]]
a = "gpu[0-3]"
b = "nvswitch0"
kind = "nvlink"
lanes = 12
bandwidth = "300 GB/s"
[[link]]
a = "gpu[0-3]"
b = "pcie_switch[0-3]"
kind = "pcie"
lanes = 16
bandwidth = "31.5 GB/s"
[[link]]
a = "nic[0-3]"
b = "pcie_switch[0-3]"
kind = "pcie"
lanes = 16
bandwidth = "31.5 GB/s"
[[link]]
a = "pcie_switch[0-3]"
b = "cpu0"
kind = "pcie"
lanes = 16
bandwidth = "31.5 GB/s"
"#;

/// Two hosts of [`ONE_GPU_PER_NIC`] with a release of NCCL.
fn one_gpu_per_nic(release: &str) -> Measurement {
    let network = "rail,nics_per_node=4,nic=100Gb/s".parse().unwrap();
    let request = FabricRequest { nodes: Some(2), network: Some(network), ..FabricRequest::new("one-gpu-per-nic") };
    let fabric = Arc::new(read_request(ONE_GPU_PER_NIC, &request).unwrap());
    Measurement {
        fabric,
        request,
        configuration: configuration(2, 4, Some(release)),
        ..all_reduce("dgx-a100", 1, 4, None)
    }
}

/// Rings over one NIC of 100 Gb/s have a bus bandwidth of 12.5 GB/s less the network's overhead. NCCL 2.27.3 falls back to
/// such rings on hosts with one Ampere GPU near each NIC; 2.22.3 does not, and other hosts do so only if the log says it.
#[test]
fn rings_over_one_nic_are_attributed_to_a_failed_search() {
    for (release, search, is_expected) in [
        ("2.27.3", TopologySearch::Found, true),
        ("2.22.3", TopologySearch::Found, false),
        ("2.22.3", TopologySearch::FellBack, true),
    ] {
        let mut measurement = one_gpu_per_nic(release);
        measurement.rows = ring_rows(&measurement, 12.2);
        measurement.context.report.search = search;
        let found = diagnosed(&measurement);
        let is_named = found.causes.first().is_some_and(|cause| cause.cause.class() == "search");
        assert_eq!(is_named, is_expected, "{release} {search:?}: {found:?}");
    }
}

/// NVLSTree over four hosts at a third of its rate is the published defect of 2.19.3, and has other causes in 2.20.5.
#[test]
fn slow_nvls_trees_are_a_defect_of_the_affected_release() {
    for (release, is_affected) in [("2.19.3", true), ("2.20.5", false)] {
        let described = all_reduce("hgx-h100", 4, 8, Some(release));
        let slow = measured_on(&described, RouteOptions::default(), 3.0);
        let found = diagnosed(&slow);
        assert_eq!(classes(&found).contains(&"version"), is_affected, "{found:?}");
    }
}

/// The default of 2.28.3 stages traffic between the switches of an L40S host with Intel CPUs. Slow copies there are likelier
/// than equally slow copies between all GPUs, which no rule explains.
#[test]
fn peer_access_ends_at_the_cpu_by_default() {
    let described = all_reduce("l40s-pcie", 1, 8, Some("2.28.3"));
    let fabric = &*described.fabric;
    let gpus = fabric.nodes().filter(|(_, node)| node.kind == NodeKind::Gpu).map(|(id, _)| id);
    let links =
        gpus.flat_map(|gpu| fabric.outgoing_links(gpu)).filter(|&link| fabric.link(link).kind == LinkKind::Pcie);
    let slowed: Vec<LinkId> = links.flat_map(|link| [link, link.reverse()]).collect();
    let copies =
        Measurement { fabric: Arc::new(fabric.with_slowed_links(&slowed, 0.25).unwrap()), ..described.clone() };
    let (_, times) = group(&copies, RouteOptions::default(), Explanations::None);
    let slow = |(row, time): (&Row, &Picos)| Row::new(row.bytes, *time, row.line);
    let rows = described.rows.iter().zip(&times).map(slow).collect();
    let mut measured = Measurement { rows, ..described };
    let documented = diagnosed(&measured);
    let cause = first(&documented);
    assert!(cause.cause.class() == "peer_access" && matches!(cause.basis, Basis::Documented(_)), "{documented:?}");
    // The environment overrides the default, and connections of the log that are all direct exclude the cause.
    measured.configuration.env = vec![("NCCL_P2P_LEVEL".to_owned(), "SYS".to_owned())];
    assert!(diagnosed(&measured).causes.iter().all(|cause| cause.basis == Basis::Assumed));
    let direct = reporting(&measured, ConnectionCounts { peer_access: 16, ..ConnectionCounts::default() });
    assert!(!classes(&diagnosed(&direct)).contains(&"peer_access"));
}

fn settings(measurement: &Measurement) -> Vec<Setting> {
    diagnosed(measurement).advice.iter().map(|advice| advice.setting).collect()
}

/// NICs of Grace are behind the CPU. NCCL 2.27.3 uses GPUDirect RDMA there by default, 2.24.3 does not.
#[test]
fn gpu_direct_is_advised_where_the_release_leaves_it_off() {
    let staged = RouteOptions { gdr: GpuDirect::Off, ..RouteOptions::default() };
    let of = |release| measured_on(&all_reduce("gh200", 2, 4, Some(release)), staged, 1.0);
    let advised = |measurement: &Measurement| {
        settings(measurement).iter().map(ToString::to_string).any(|setting| setting == "NCCL_NET_GDR_LEVEL=PHB")
    };
    assert!(advised(&of("2.24.3")));
    assert!(!advised(&of("2.27.3")));
    let set = |name: &str, value: &str| {
        let mut measurement = of("2.24.3");
        measurement.context.report.variables = vec![(name.to_owned(), value.to_owned())];
        measurement
    };
    assert!(!advised(&set("NCCL_NET_GDR_LEVEL", "SYS")));
    assert!(!advised(&reporting(&of("2.24.3"), ConnectionCounts { gpu_direct: 4, ..ConnectionCounts::default() })));
    // NICs at the switches of HGX need no setting.
    let near = measured_on(&all_reduce("hgx-h100", 2, 8, Some("2.24.3")), staged, 1.0);
    assert!(!advised(&near));
}

/// Rings that must keep their NIC are advised against if the times leave room for a gain.
#[test]
fn other_nics_are_advised_where_the_environment_forbids_them() {
    let restricted = |factor: f64, value: &str| {
        let mut described = all_reduce("hgx-h100", 2, 8, None);
        described.configuration.env = vec![("NCCL_CROSS_NIC".to_owned(), value.to_owned())];
        diagnosed(&measured_on(&described, RouteOptions::default(), factor))
    };
    let advice = restricted(1.2, "0").advice;
    let expected = Advice { setting: Setting::CrossNic, min: Bytes(1 << 24), max: Bytes(1 << 32), gain: None };
    assert!(advice.contains(&expected), "{advice:?}");
    assert!(!restricted(1.0, "0").advice.iter().any(|advice| advice.setting == Setting::CrossNic));
    assert!(!restricted(1.2, "2").advice.iter().any(|advice| advice.setting == Setting::CrossNic));
}

/// Rules and defects of a release give sound machines no cause: their even prior odds need slow sizes and a better fit.
#[test]
fn sound_machines_of_affected_releases_have_no_cause() {
    let machines = [("l40s-pcie", 1, 8, "2.28.3"), ("gh200", 2, 4, "2.24.3"), ("hgx-h100", 4, 8, "2.19.3")];
    let (mut random, mut alarms, mut draws) = (Random(seed()), 0, 0);
    for (fabric, nodes, gpus, release) in machines {
        let described = all_reduce(fabric, nodes, gpus, Some(release));
        let request = ComparisonRequest {
            measurements: std::slice::from_ref(&described),
            profile: None,
            choice: &FastestPlanned,
            routes: RouteOptions::default(),
            explanations: Explanations::None,
            monitor: Monitor::default(),
        };
        let exact: Vec<Exact> = compare(&request).unwrap().rows.iter().map(Exact::from).collect();
        for _ in 0..10 {
            let found = diagnosed(&scattered(&described, &exact, &mut random));
            alarms += u32::from(found.causes.first().is_some_and(RankedCause::is_established));
            draws += 1;
        }
    }
    assert!(may_be_rarer(alarms, draws, 0.05), "{alarms} of {draws}");
}
