//! Tests of the diagnosis of slow machines: faults are injected into simulated measurements, with the scatter that the
//! prediction intervals state, and the cause that `compare` names first is checked.
//!
//! Faults are built from the parts of the fabric, at other devices than those that the diagnosis assumes. A fault
//! counts if it slows down the exact prediction by a quarter at [`MIN_SLOW_SIZES`] sizes or more: smaller ones are
//! inside the scatter.

use std::sync::Arc;

use fabricast_collectives::bound::InNetwork;
use fabricast_sim::monitor::Monitor;
use fabricast_sim::profile::{Profile, Software};
use fabricast_sim::schedule::Collective;
use fabricast_topologies::fabric::NodeKind;
use fabricast_topologies::route::{GpuDirect, PeerAccess, RouteOptions};
use fabricast_topologies::{Bytes, Fabric, FabricRequest, LinkId, LinkKind, NodeId, Picos, load};
use fabricast_validate::compare::{
    Compared, Comparison, ComparisonRequest, Explanations, FastestPlanned, Group, RangeFinding, RankedCause, compare,
};
use fabricast_validate::measured::manifest::Measurement;
use fabricast_validate::measured::{LibraryName, MeasuredLibrary, Row};

use crate::measurements::{own_choice, unmeasured};

/// Generator of pseudo-random numbers (splitmix64).
pub(crate) struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a normally distributed number with standard deviation 1 (Box–Muller).
    fn normal(&mut self) -> f64 {
        (-2.0 * (1.0 - self.share()).ln()).sqrt() * (std::f64::consts::TAU * self.share()).cos()
    }
}

/// Returns the seed of this run: `DIAGNOSIS_SEED`, otherwise a fixed one, because the shares of correct diagnoses
/// scatter for few faults.
pub(crate) fn seed() -> u64 {
    std::env::var("DIAGNOSIS_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(50)
}

/// A machine and the call that is measured on it.
#[derive(Clone, Copy, Debug)]
struct Machine {
    fabric: &'static str,
    nodes: u32,
    gpus: u32,
    collective: Collective,
}

const MACHINES: [Machine; 8] = [
    Machine { fabric: "hgx-h200", nodes: 1, gpus: 8, collective: Collective::AllReduce },
    Machine { fabric: "hgx-h200", nodes: 1, gpus: 8, collective: Collective::AllGather },
    Machine { fabric: "hgx-h100", nodes: 1, gpus: 8, collective: Collective::AllReduce },
    Machine { fabric: "l40s-pcie", nodes: 1, gpus: 8, collective: Collective::AllReduce },
    Machine { fabric: "hgx-h100", nodes: 2, gpus: 8, collective: Collective::AllReduce },
    Machine { fabric: "hgx-h200", nodes: 2, gpus: 8, collective: Collective::AllGather },
    Machine { fabric: "dgx-a100", nodes: 2, gpus: 8, collective: Collective::AllReduce },
    Machine { fabric: "hgx-h100", nodes: 2, gpus: 8, collective: Collective::AllToAll },
];

impl Machine {
    fn measurement(self) -> Measurement {
        let nodes = (self.nodes > 1).then_some(self.nodes);
        let request = FabricRequest { nodes, ..FabricRequest::new(self.fabric) };
        let sizes = (12..=32).step_by(2).map(|power| Row::new(Bytes(1 << power), Picos(1), power));
        unmeasured(request, own_choice(self.nodes, self.gpus, self.collective), sizes.collect())
    }
}

/// Fault injected into a machine.
#[derive(Clone, Copy, Debug)]
enum Fault {
    NvlsOff,
    PeerAccessOff,
    /// No peer access, and copies through host memory at a part of the predicted rate.
    SlowCopies(f64),
    /// Microseconds that the host adds to each call.
    HostTime(u32),
    GpuDirectOff,
    Nvlinks(f64),
    NicsDown(usize),
    NicSlow(f64),
    AllNicsSlow(f64),
    GpuPcie(f64),
    NicPcie(f64),
    Setting(&'static str, &'static str),
}

const FAULTS: [Fault; 26] = [
    Fault::NvlsOff,
    Fault::PeerAccessOff,
    Fault::GpuDirectOff,
    Fault::Nvlinks(0.75),
    Fault::Nvlinks(0.5),
    Fault::Nvlinks(0.3),
    Fault::NicsDown(1),
    Fault::NicsDown(4),
    Fault::NicsDown(7),
    Fault::NicSlow(0.5),
    Fault::NicSlow(0.25),
    Fault::AllNicsSlow(0.5),
    Fault::GpuPcie(0.5),
    Fault::GpuPcie(0.25),
    Fault::NicPcie(0.25),
    Fault::NicPcie(0.125),
    Fault::Setting("NCCL_ALGO", "Tree"),
    Fault::Setting("NCCL_PROTO", "LL"),
    Fault::Setting("NCCL_PROTO", "Simple"),
    Fault::Setting("NCCL_MAX_NCHANNELS", "2"),
    Fault::Setting("NCCL_MAX_NCHANNELS", "4"),
    Fault::Setting("NCCL_NCHANNELS_PER_NET_PEER", "1"),
    Fault::SlowCopies(0.3),
    Fault::SlowCopies(0.15),
    Fault::HostTime(15),
    Fault::HostTime(50),
];

impl Fault {
    /// Returns the classes of causes that are correct for the fault.
    fn classes(self) -> &'static [&'static str] {
        match self {
            Self::NvlsOff => &["nvls"],
            Self::PeerAccessOff | Self::SlowCopies(_) => &["peer_access"],
            Self::HostTime(_) => &["host"],
            Self::GpuDirectOff => &["gpu_direct"],
            Self::Nvlinks(_) => &["nvlink"],
            Self::NicsDown(_) | Self::NicSlow(_) | Self::AllNicsSlow(_) => &["nic"],
            Self::GpuPcie(_) | Self::NicPcie(_) => &["pcie"],
            Self::Setting("NCCL_NCHANNELS_PER_NET_PEER", _) => &["channels_per_peer"],
            // For sends, both settings limit the channels per peer and have the same check.
            Self::Setting("NCCL_MAX_NCHANNELS", _) => &["channels", "channels_per_peer"],
            Self::Setting(..) => &["strategy"],
        }
    }

    /// Returns the measurement and the routes of the faulty machine; `None` if it has no such part.
    fn inject(self, measurement: &Measurement) -> Option<(Measurement, RouteOptions)> {
        let (mut faulty, mut routes) = (measurement.clone(), RouteOptions::default());
        let fabric = &*measurement.fabric;
        let slowed = |devices: &[NodeId], kinds: &[LinkKind], part: f64| {
            let links = devices.iter().flat_map(|&device| fabric.outgoing_links(device));
            let chosen: Vec<LinkId> = links
                .filter(|&link| kinds.contains(&fabric.link(link).kind))
                .flat_map(|link| [link, link.reverse()])
                .collect();
            fabric.with_slowed_links(&chosen, part).map(Arc::new)
        };
        let last_gpu = [*fabric.gpus().last()?];
        let nics = nics(fabric);
        let last_nic: Vec<NodeId> = nics.last().copied().into_iter().collect();
        match self {
            Self::NvlsOff => faulty.configuration.in_network = InNetwork::Off,
            Self::PeerAccessOff => routes.p2p = PeerAccess::Off,
            Self::SlowCopies(part) => {
                routes.p2p = PeerAccess::Off;
                faulty.fabric = slowed(fabric.gpus(), &[LinkKind::Pcie], part)?;
            }
            Self::HostTime(_) => {}
            Self::GpuDirectOff => routes.gdr = GpuDirect::Off,
            Self::Nvlinks(part) => faulty.fabric = slowed(&last_gpu, &[LinkKind::Nvlink], part)?,
            Self::NicsDown(count) => {
                let per_host = nics.len() / measurement.configuration.nodes as usize;
                if count >= per_host || measurement.configuration.nodes == 1 {
                    return None;
                }
                // NICs are chosen from all hosts, beginning with the last host.
                let down: Vec<NodeId> =
                    nics.chunks(per_host).flat_map(|host| host.iter().rev().take(count).copied()).collect();
                faulty.fabric = Arc::new(fabric.with_failed_devices(&down));
            }
            Self::NicSlow(part) => faulty.fabric = slowed(&last_nic, &LinkKind::NETWORK, part)?,
            Self::AllNicsSlow(part) => faulty.fabric = slowed(&nics, &LinkKind::NETWORK, part)?,
            Self::GpuPcie(part) => faulty.fabric = slowed(&last_gpu, &[LinkKind::Pcie], part)?,
            Self::NicPcie(part) => faulty.fabric = slowed(&last_nic, &[LinkKind::Pcie], part)?,
            Self::Setting(name, value) => faulty.configuration.env.push((name.to_owned(), value.to_owned())),
        }
        Some((faulty, routes))
    }
}

fn nics(fabric: &Fabric) -> Vec<NodeId> {
    fabric.nodes().filter(|(_, node)| node.kind == NodeKind::Nic).map(|(id, _)| id).collect()
}

fn compared(measurement: &Measurement, routes: RouteOptions, explanations: Explanations) -> Comparison {
    compare(&ComparisonRequest {
        measurements: std::slice::from_ref(measurement),
        profile: None,
        choice: &FastestPlanned,
        routes,
        explanations,
        monitor: Monitor::default(),
    })
    .unwrap()
}

/// Exact time of a row on a machine, with the ends of its prediction interval.
pub(crate) struct Exact {
    bytes: Bytes,
    line: u32,
    predicted: Picos,
    low: Picos,
    high: Picos,
}

impl From<&Compared> for Exact {
    fn from(row: &Compared) -> Self {
        Self { bytes: row.bytes, line: row.line, predicted: row.predicted, low: row.low, high: row.high }
    }
}

/// Times of a faulty machine. NCCL does not see a PCIe link that runs below the rate that it supports (`max_link_speed`
/// and `max_link_width` in src/graph/xml.cc), so its choices are those of the machine without the fault.
fn exact_times(fault: Fault, faulty: &Measurement, routes: RouteOptions, healthy: &[Compared]) -> Vec<Exact> {
    if let Fault::HostTime(added) = fault {
        let later = |time: Picos| time + Picos::from_us(added.into());
        let delayed = |row: &Compared| Exact {
            predicted: later(row.predicted),
            low: later(row.low),
            high: later(row.high),
            ..Exact::from(row)
        };
        return healthy.iter().map(delayed).collect();
    }
    if !matches!(fault, Fault::GpuPcie(_) | Fault::NicPcie(_)) {
        return compared(faulty, routes, Explanations::None).rows.iter().map(Exact::from).collect();
    }
    let sound = Measurement { fabric: Arc::new(load(&faulty.request).unwrap()), ..faulty.clone() };
    let slowed = |row: &Compared| {
        let time = |measurement: &Measurement| forced_time(measurement, row).0 as f64;
        let ratio = time(faulty) / time(&sound);
        let scaled = |time: Picos| Picos((time.0 as f64 * ratio) as u64);
        let exact = Exact::from(row);
        Exact { predicted: scaled(row.predicted), low: scaled(row.low), high: scaled(row.high), ..exact }
    };
    healthy.iter().map(slowed).collect()
}

/// Returns the time of a row with its predicted strategy, whatever the library would choose.
fn forced_time(measurement: &Measurement, row: &Compared) -> Picos {
    let mut forced = Measurement { rows: vec![Row::new(row.bytes, Picos(1), 1)], ..measurement.clone() };
    let configuration = &mut forced.configuration;
    configuration.algorithm = Some(row.strategy.algorithm);
    configuration.protocol = Some(row.strategy.protocol);
    configuration.channels = Some(row.strategy.channels);
    configuration.library = Some(MeasuredLibrary { name: LibraryName::Fabricast, version: String::new() });
    let profile = Profile::nearest(&forced.fabric, Software::Nccl).unwrap();
    let request = ComparisonRequest {
        measurements: std::slice::from_ref(&forced),
        profile: Some(&profile),
        choice: &FastestPlanned,
        routes: RouteOptions::default(),
        explanations: Explanations::None,
        monitor: Monitor::default(),
    };
    compare(&request).unwrap().rows[0].predicted
}

/// Returns the measurement with the times of a (faulty) machine, scattered as its prediction intervals state: half of
/// the variance is common to all sizes of the machine, half is that of single rows.
pub(crate) fn scattered(measurement: &Measurement, exact: &[Exact], random: &mut Random) -> Measurement {
    let common = random.normal();
    let scatter = |row: &Exact, random: &mut Random| {
        let deviation = (row.high.0 as f64 / row.low.0 as f64).ln() / 2.563;
        let factor = (deviation * (common + random.normal()) / std::f64::consts::SQRT_2).exp();
        Row::new(row.bytes, Picos((row.predicted.0 as f64 * factor) as u64), row.line)
    };
    let rows = exact.iter().map(|row| scatter(row, random)).collect();
    Measurement { rows, ..measurement.clone() }
}

/// Numbers of faults and false alarms by outcome of the diagnosis.
#[derive(Default)]
struct Counts {
    /// Faults whose likely cause is right.
    right: u32,
    /// Faults whose likely cause is wrong.
    wrong: u32,
    /// Faults with only possible causes, one of which is right.
    listed: u32,
    /// Faults with only possible causes, none of which is right.
    unlisted: u32,
    /// Faults for which no cause is reported.
    missed: u32,
    /// Faults without an established cause for which a possible one is right.
    hinted: u32,
    /// Faults that stay inside the prediction intervals.
    hidden: u32,
    sound: u32,
    /// Sound machines for which a cause is reported.
    false_alarms: u32,
    report: String,
}

impl Counts {
    fn add_sound(&mut self, machine: Machine, causes: &[RankedCause]) {
        self.sound += 1;
        if let Some(cause) = causes.first().filter(|cause| cause.is_established()) {
            self.false_alarms += 1;
            self.report += &format!("{machine:?} sound: {} ({:.2})\n", cause.cause, cause.closed);
        }
    }

    fn add_fault(&mut self, machine: Machine, fault: Fault, group: &Group) {
        let is_right = |cause: &RankedCause| fault.classes().contains(&cause.cause.class());
        let Some(first) = group.causes.first().filter(|cause| cause.is_established()) else {
            self.missed += 1;
            self.hinted += u32::from(group.causes.iter().any(is_right));
            let slow = group.ranges.iter().any(|range| range.finding == RangeFinding::Slow);
            self.report += &format!("{machine:?} {fault:?}: no cause, slow: {slow}\n");
            return;
        };
        let is_listed = group.causes.iter().any(is_right);
        match (first.is_likely(), is_right(first)) {
            (true, true) => self.right += 1,
            (true, false) => self.wrong += 1,
            (false, _) if is_listed => self.listed += 1,
            (false, _) => self.unlisted += 1,
        }
        if is_right(first) || !first.is_likely() && is_listed {
            return;
        }
        self.report += &format!("{machine:?} {fault:?}:");
        for RankedCause { cause, closed, probability, .. } in &group.causes {
            self.report += &format!(" {cause} (closes {closed:.2}, probability {probability:.2});");
        }
        self.report += "\n";
    }
}

/// Number of sizes at which a fault must slow down the prediction by a quarter to count, and exceed the prediction
/// interval of the intact machine to be visible. Two slow sizes make a slow range; causes are searched from three on.
const MIN_SLOW_SIZES: usize = 3;

/// Stride of the faults injected into each machine: every fourth fault; `DIAGNOSIS=all` injects all (docs/accuracy.md
/// has the counts).
const SHARE: usize = 4;

#[test]
fn injected_faults_are_named_and_sound_machines_have_no_cause() {
    let mut random = Random(seed());
    let mut counts = Counts::default();
    let is_complete = std::env::var_os("DIAGNOSIS").is_some_and(|value| value == "all");
    for (number, machine) in MACHINES.into_iter().enumerate() {
        let described = machine.measurement();
        let healthy = compared(&described, RouteOptions::default(), Explanations::None).rows;
        let undisturbed: Vec<Exact> = healthy.iter().map(Exact::from).collect();
        for _ in 0..if is_complete { 4 } else { 2 } {
            let log = scattered(&described, &undisturbed, &mut random);
            let found = compared(&log, RouteOptions::default(), Explanations::Wanted);
            counts.add_sound(machine, &found.groups[0].causes);
        }
        let chosen = FAULTS.into_iter().skip(if is_complete { 0 } else { number % SHARE });
        for fault in chosen.step_by(if is_complete { 1 } else { SHARE }) {
            let Some((faulty, routes)) = fault.inject(&described) else { continue };
            let exact = exact_times(fault, &faulty, routes, &healthy);
            let pairs = || exact.iter().zip(&healthy);
            let is_slower =
                |(slow, sound): &(&Exact, &Compared)| slow.predicted.0 as f64 > 1.25 * sound.predicted.0 as f64;
            if pairs().filter(is_slower).count() < MIN_SLOW_SIZES {
                continue;
            }
            if pairs().filter(is_slower).filter(|(slow, sound)| slow.predicted > sound.high).count() < MIN_SLOW_SIZES {
                counts.hidden += 1;
                continue;
            }
            let log = scattered(&described, &exact, &mut random);
            let found = compared(&log, RouteOptions::default(), Explanations::Wanted);
            counts.add_fault(machine, fault, &found.groups[0]);
        }
    }
    let Counts { right, wrong, listed, unlisted, missed, hinted, hidden, sound, false_alarms, report } = counts;
    let total = right + wrong + listed + unlisted + missed;
    let summary = format!(
        "{total} faults: {right} likely causes are right, {wrong} wrong; of possible causes, one is right for {listed}, none \
         for {unlisted}; {missed} have no established cause, {hinted} of them a right possible one; {hidden} more are inside the intervals; {false_alarms} of {sound} sound \
         machines have a cause\n{report}"
    );
    println!("{summary}");
    assert!(total >= 20, "{summary}");
    // The goals are rates of all machines, and a run draws a few of them.
    assert!(may_be_rarer(wrong, right + wrong, 0.2), "{summary}");
    assert!(may_be_rarer(unlisted + wrong, total - missed, 0.2), "{summary}");
    assert!(may_be_rarer(missed, total, 0.2), "{summary}");
    assert!(may_be_rarer(false_alarms, sound, 0.05), "{summary}");
}

/// Returns true unless `events` of `draws` refute, with an error of 1 in 10,000, that an event has at most this
/// probability: by the tail of the binomial distribution.
pub(crate) fn may_be_rarer(events: u32, draws: u32, probability: f64) -> bool {
    let odds = probability / (1.0 - probability);
    let mut term = (1.0 - probability).powi(draws as i32);
    let mut below = 0.0;
    for event in 0..events {
        below += term;
        term *= odds * f64::from(draws - event) / f64::from(event + 1);
    }
    1.0 - below >= 1e-4
}

#[test]
fn a_few_draws_refute_rates_far_above_a_goal_only() {
    assert_eq!([0, 1, 4, 6].map(|events| may_be_rarer(events, 16, 0.05)), [true, true, true, false]);
    assert_eq!([3, 8, 12].map(|events| may_be_rarer(events, 15, 0.2)), [true, true, false]);
}
