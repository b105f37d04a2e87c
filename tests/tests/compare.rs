//! Tests of comparisons with a known result: the measurement is a prediction under a profile in which one parameter
//! differs.

use std::sync::Arc;

use fabricast_collectives::algorithm::Algorithm;
use fabricast_collectives::bound::InNetwork;
use fabricast_search::candidates::Restriction;
use fabricast_sim::monitor::Monitor;
use fabricast_sim::profile::{self, Launch, Processes, Profile, Software};
use fabricast_sim::schedule::{Collective, DataType, Protocol, ReduceOp};
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Bytes, FabricRequest, LinkKind, Picos, load};
use fabricast_validate::compare::gate::{Gate, Limit};
use fabricast_validate::compare::{
    Advice, ChoiceRequest, Comparison, ComparisonRequest, Explanations, FastestPlanned, LibraryChoice,
    ProfileParameter, Setting, Verdict, compare,
};
use fabricast_validate::measured::manifest::{Configuration, Measurement};
use fabricast_validate::measured::{LibraryName, MeasuredLibrary, Reason, RejectedRow, Row};
use fabricast_validate::measured_strategy::Strategies;
use proptest::prelude::*;

use crate::measurements::{own_choice, unmeasured};

fn profile() -> Profile {
    Profile::named("nccl-2.28-h200").unwrap()
}

/// Returns the measurement of a forced ring all_reduce on 8 GPUs with sizes between two powers of two. With `simple`
/// the links are the bottleneck, with the other protocols the channels.
fn measurement(protocol: Protocol, sizes: std::ops::Range<u32>) -> Measurement {
    let channels = if protocol == Protocol::Simple { 32 } else { 8 };
    let request = FabricRequest::new("hgx-h200");
    let row = |power: u32| Row::new(Bytes(1 << power), Picos(1), power);
    let configuration = Configuration {
        algorithm: Some(Algorithm::Ring),
        protocol: Some(protocol),
        channels: Some(channels),
        in_network: InNetwork::Off,
        launch: Launch::Graph,
        ..own_choice(1, 8, Collective::AllReduce)
    };
    unmeasured(request, configuration, sizes.map(row).collect())
}

fn compare_measurements(measurements: &[Measurement], profile: &Profile, choice: &dyn LibraryChoice) -> Comparison {
    compare(&ComparisonRequest {
        measurements,
        profile: Some(profile),
        choice,
        routes: RouteOptions::default(),
        explanations: Explanations::Wanted,
        monitor: Monitor::default(),
    })
    .unwrap()
}

/// Returns the measurement with the times that a profile predicts.
fn measurement_from_profile(profile: &Profile, measurement: &Measurement) -> Measurement {
    let predicted = compare_measurements(std::slice::from_ref(measurement), profile, &FastestPlanned);
    let rows = predicted.rows.iter().map(|row| Row::new(row.bytes, row.predicted, row.line)).collect();
    Measurement { rows, ..measurement.clone() }
}

/// Returns the measurement of an all_reduce of 16 to 64 MiB with the strategies that NCCL chooses.
fn measurement_of_library_choices(in_network: InNetwork) -> Measurement {
    let mut measured = measurement(Protocol::Simple, 24..27);
    let configuration = &mut measured.configuration;
    (configuration.algorithm, configuration.protocol, configuration.channels) = (None, None, None);
    configuration.in_network = in_network;
    measured
}

/// Switches support neither sums of 8-bit integers nor products, so the library's choice depends on type and reduction.
#[test]
fn library_choices_follow_type_and_reduction_of_each_row() {
    let mut measured = measurement_of_library_choices(InNetwork::Allowed);
    measured.rows[1].dtype = Some(DataType::I8);
    measured.rows[2].op = Some(ReduceOp::Prod);
    let router = Router::new(&measured.fabric, RouteOptions::default());
    let strategies = Strategies::new(&measured, &router);
    let algorithm = |row: &Row| strategies.strategy(row).unwrap().algorithm;
    let algorithms: Vec<Algorithm> = measured.rows.iter().map(algorithm).collect();
    assert_eq!(algorithms, [Algorithm::Nvls, Algorithm::Ring, Algorithm::Ring]);
}

#[test]
fn invalid_library_setting_leaves_the_others_in_effect() {
    let mut measured = measurement_of_library_choices(InNetwork::Off);
    measured.configuration.env = [("NCCL_ALGO", "Tree"), ("NCCL_NTHREADS", "many"), ("NCCL_MAX_CTAS", "4")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec();
    let router = Router::new(&measured.fabric, RouteOptions::default());
    let strategy = Strategies::new(&measured, &router).strategy(&measured.rows[0]).unwrap();
    assert_eq!((strategy.algorithm, strategy.channels), (Algorithm::Tree, 4));
}

#[test]
fn times_as_predicted_are_expected() {
    let measured = measurement_from_profile(&profile(), &measurement(Protocol::Ll, 10..24));
    let comparison = compare_measurements(&[measured], &profile(), &FastestPlanned);
    assert_eq!(comparison.rows.len(), 14);
    assert!(comparison.rows.iter().all(|row| row.error() == 0.0 && row.verdict() == Verdict::Expected));
    let group = &comparison.groups[0];
    assert_eq!((group.summary.median, group.summary.p90, group.summary.bias), (0.0, 0.0, 0.0));
    assert_eq!((group.slower, group.faster, &group.explanation), (0, 0, &None));
}

#[test]
fn explanation_finds_the_changed_parameter() {
    for (parameter, factor, protocol, sizes) in [
        (ProfileParameter::Links(LinkKind::Nvlink), 0.7, Protocol::Simple, 26..30),
        (ProfileParameter::Pass(Protocol::Ll, profile::Role::Forward), 1.6, Protocol::Ll, 22..26),
        (ProfileParameter::Pass(Protocol::Ll, profile::Role::Forward), 0.6, Protocol::Ll, 22..26),
        (ProfileParameter::Startup(Protocol::Simple), 1.6, Protocol::Simple, 4..12),
        (ProfileParameter::Startup(Protocol::Simple), 0.5, Protocol::Simple, 4..12),
        (ProfileParameter::Floor(Launch::Graph, Processes::PerGpu), 6.0, Protocol::Ll, 4..12),
    ] {
        let changed = parameter.scale(&profile(), factor);
        let measured = measurement_from_profile(&changed, &measurement(protocol, sizes));
        let comparison = compare_measurements(&[measured], &profile(), &FastestPlanned);
        let explanation =
            comparison.groups[0].explanation.clone().unwrap_or_else(|| panic!("{parameter}: {comparison:#?}"));
        // Another parameter may explain the difference with a smaller factor; the changed parameter needs no larger
        // factor than its change.
        assert!(
            explanation.factor.ln().abs() <= f64::ln(factor).abs() * 1.02,
            "{parameter} × {factor}: {explanation:?}"
        );
        assert!(
            explanation.after.abs() < 0.01 && explanation.before.abs() > 0.05,
            "{parameter} × {factor}: {explanation:?}"
        );
        if explanation.parameter == parameter {
            assert!((explanation.factor / factor - 1.0).abs() < 0.03, "{parameter} × {factor}: {explanation:?}");
        }
    }
    // If no other parameter can explain the difference, the changed one is reported.
    let explained_by = |parameter: ProfileParameter, factor, protocol, sizes| {
        let measured = measurement_from_profile(&parameter.scale(&profile(), factor), &measurement(protocol, sizes));
        compare_measurements(&[measured], &profile(), &FastestPlanned).groups[0]
            .explanation
            .as_ref()
            .map(|explanation| explanation.parameter)
    };
    let links = ProfileParameter::Links(LinkKind::Nvlink);
    assert_eq!(explained_by(links, 0.5, Protocol::Simple, 26..30), Some(links));
}

/// Library choice that always returns this one strategy.
struct Only(Algorithm, Protocol, u16);

impl LibraryChoice for Only {
    fn restriction(&self, _: ChoiceRequest<'_>) -> Restriction {
        let Self(algorithm, protocol, channels) = *self;
        Restriction {
            algorithms: vec![algorithm],
            protocols: vec![protocol],
            channels: vec![channels],
            ..Restriction::default()
        }
    }
}

#[test]
fn forced_strategies_precede_the_librarys_choice() {
    let mut forced = measurement(Protocol::Ll, 12..16);
    // NCCL's rules are known and take precedence over a given choice.
    forced.configuration.library = Some(MeasuredLibrary { name: LibraryName::Mscclpp, version: String::new() });
    let mut unforced = forced.clone();
    (unforced.configuration.algorithm, unforced.configuration.channels) = (None, None);
    let choice = Only(Algorithm::Tree, Protocol::Simple, 4);
    let strategies = |measurement: &Measurement| {
        let comparison = compare_measurements(std::slice::from_ref(measurement), &profile(), &choice);
        let key = |strategy: fabricast_collectives::strategy::Strategy| {
            (strategy.algorithm, strategy.protocol, strategy.channels)
        };
        comparison.rows.iter().map(|row| key(row.strategy)).collect::<Vec<_>>()
    };
    assert_eq!(strategies(&unforced), [(Algorithm::Tree, Protocol::Ll, 4); 4]);
    unforced.configuration.protocol = None;
    assert_eq!(strategies(&unforced), [(Algorithm::Tree, Protocol::Simple, 4); 4]);
    assert_eq!(strategies(&forced), [(Algorithm::Ring, Protocol::Ll, 8); 4]);
}

#[test]
fn comparison_is_independent_of_threads_and_order() {
    let changed = ProfileParameter::Startup(Protocol::Ll).scale(&profile(), 1.4);
    let measurements: Vec<Measurement> =
        [Protocol::Ll, Protocol::Simple].map(|p| measurement_from_profile(&changed, &measurement(p, 8..20))).to_vec();
    let compare_on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| compare_measurements(&measurements, &profile(), &FastestPlanned))
    };
    let comparison = compare_on(1);
    assert_eq!(comparison, compare_on(4));
    assert_eq!(comparison.groups.len(), 2);
    // Two logs of one configuration form one group.
    let merged = compare_measurements(&[measurements[0].clone(), measurements[0].clone()], &profile(), &FastestPlanned);
    assert_eq!((merged.groups.len(), merged.groups[0].summary.rows), (1, 24));
    assert_eq!(merged.groups[0].summary.median, comparison.groups[0].summary.median);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Predicted curves have no outliers, at any spacing of sizes and for any choice of the library. A row that takes
    /// far longer than a larger call is an outlier.
    #[test]
    fn predicted_curves_have_no_outliers(
        fabric in prop::sample::select(vec!["hgx-h100", "hgx-h200", "dgx-a100", "hgx-b200", "l40s-pcie", "mi300x", "gh200"]),
        nodes in 1u32..3,
        collective in prop::sample::select(vec![
            Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter, Collective::Broadcast,
            Collective::AllToAll,
        ]),
        (first, step) in (3u32..12, 1u32..4),
        disturbed in 1usize..5,
        launch in prop::sample::select(vec![Launch::Graph, Launch::Stream]),
    ) {
        let request = FabricRequest { nodes: Some(nodes), ..FabricRequest::new(fabric) };
        let fabric = Arc::new(load(&request).unwrap());
        let base = measurement(Protocol::Ll, 0..1);
        let gpus = fabric.gpus().len() as u32 / nodes;
        let configuration = Configuration {
            nodes, gpus, collective, launch, algorithm: None, protocol: None, channels: None,
            in_network: InNetwork::Allowed, ..base.configuration.clone()
        };
        let rows = (0..8).map(|i| Row::new(Bytes(1 << (first + step * i)), Picos(1), i + 2)).collect();
        let profile = Profile::nearest(&fabric, Software::Nccl).unwrap();
        let unforced = Measurement { request, fabric, configuration, rows, ..base };
        let compare = |measured: &Measurement| compare(&ComparisonRequest {
            measurements: std::slice::from_ref(measured),
            profile: Some(&profile),
            choice: &FastestPlanned,
            routes: RouteOptions::default(),
            explanations: Explanations::None,
            monitor: Monitor::default(),
        }).unwrap();
        let predicted = compare(&unforced);
        let rows: Vec<Row> =
            predicted.rows.iter().map(|row| Row::new(row.bytes, row.predicted, row.line)).collect();
        let undisturbed = compare(&Measurement { rows: rows.clone(), ..unforced.clone() });
        for row in &undisturbed.rows {
            prop_assert!(row.outlier.is_none() && row.slow.is_none(), "{row:?} of {:#?}", undisturbed.rows);
        }
        let mut rows = rows;
        let max_time = rows.iter().map(Row::measured).max().unwrap_or_default();
        let line = rows[disturbed].line;
        rows[disturbed] = Row::new(rows[disturbed].bytes, Picos(max_time.0 * 40), line);
        let outlier_lines: Vec<u32> = compare(&Measurement { rows, ..unforced })
            .rows.iter().filter(|row| row.outlier.is_some()).map(|row| row.line).collect();
        prop_assert!(outlier_lines.contains(&line), "{outlier_lines:?} without {line}");
    }
}

/// Times as predicted are expected, and the advice states the gain of more channels per peer that a comparison under
/// that setting confirms. With the setting in effect, nothing is left to advise.
#[test]
fn advice_names_the_channels_per_peer_that_gain() {
    let mut described = measurement(Protocol::Simple, 20..30);
    described.request = FabricRequest { nodes: Some(2), gpus: Some(2), ..FabricRequest::new("hgx-h100") };
    described.fabric = Arc::new(load(&described.request).unwrap());
    described.configuration = Configuration {
        nodes: 2,
        gpus: 2,
        collective: Collective::AllToAll,
        algorithm: None,
        protocol: None,
        channels: None,
        library: Some(MeasuredLibrary { name: LibraryName::Nccl, version: "2.26.5".to_owned() }),
        launch: Launch::Stream,
        ..described.configuration
    };
    let profile = Profile::nearest(&described.fabric, Software::Nccl).unwrap();
    let compared =
        |measurement: &Measurement| compare_measurements(std::slice::from_ref(measurement), &profile, &FastestPlanned);
    let measured = measurement_from_profile(&profile, &described);
    let group = compared(&measured).groups.remove(0);
    assert_eq!((group.slower, group.faster), (0, 0));
    let [advice] = <[Advice; 1]>::try_from(group.advice).unwrap();
    let Setting::ChannelsPerPeer(value) = advice.setting else { panic!("{advice:?}") };
    assert_eq!(advice.setting.to_string(), format!("NCCL_NCHANNELS_PER_NET_PEER={value}"));
    let mut changed = measured.clone();
    changed.configuration.env.push(("NCCL_NCHANNELS_PER_NET_PEER".to_owned(), value.to_string()));
    let under_setting = compared(&changed);
    let largest = under_setting.rows.last().unwrap();
    assert_eq!(largest.bytes, advice.max);
    let advised = under_setting.rows.iter().filter(|row| row.bytes >= advice.min);
    let gain = advised.map(|row| row.measured.0 as f64 / row.predicted.0 as f64).fold(0.0, f64::max);
    assert!((gain - advice.gain.unwrap()).abs() < 0.01, "{gain} {advice:?}");
    assert_eq!(under_setting.groups[0].advice, []);
}

/// NCCL does not choose LL128 between GPUs on PCIe, where it is predicted to gain at medium sizes. A machine that is already
/// that fast gets no advice, and neither does a log whose protocol is forced.
#[test]
fn advice_names_the_protocol_that_gains() {
    let mut described = measurement(Protocol::Simple, 18..24);
    described.request = FabricRequest::new("rtx-pro-6000-pcie");
    described.fabric = Arc::new(load(&described.request).unwrap());
    described.configuration = Configuration {
        gpus: 8,
        algorithm: None,
        protocol: None,
        channels: None,
        library: Some(MeasuredLibrary { name: LibraryName::Nccl, version: "2.28.3".to_owned() }),
        launch: Launch::Stream,
        // Peer access through CPUs, without which it would be advised as well.
        env: vec![("NCCL_P2P_LEVEL".to_owned(), "SYS".to_owned())],
        ..described.configuration
    };
    let profile = Profile::nearest(&described.fabric, Software::Nccl).unwrap();
    let compared =
        |measurement: &Measurement| compare_measurements(std::slice::from_ref(measurement), &profile, &FastestPlanned);
    let measured = measurement_from_profile(&profile, &described);
    let advised = compared(&measured);
    let [advice] = <[Advice; 1]>::try_from(advised.groups[0].advice.clone()).unwrap();
    assert_eq!(advice.setting, Setting::Choice { algorithm: None, protocol: Some(Protocol::Ll128) });
    assert_eq!(advice.setting.to_string(), "NCCL_PROTO=LL128");
    let mut forced = measured.clone();
    forced.configuration.protocol = Some(Protocol::Ll128);
    let under_setting = compared(&forced);
    let gain = |bytes| {
        let predicted = |comparison: &Comparison| {
            let row = comparison.rows.iter().find(|row| row.bytes == bytes);
            row.unwrap().predicted.0 as f64
        };
        predicted(&advised) / predicted(&under_setting)
    };
    assert!(gain(advice.min) >= 1.1 && gain(advice.max) >= 1.1, "{advice:?}");
    assert_eq!(under_setting.groups[0].advice, []);
    let mut fast = measured;
    for row in &mut fast.rows {
        *row = Row::new(row.bytes, Picos(row.measured().0 / 2), row.line);
    }
    assert_eq!(compared(&fast).groups[0].advice, []);
}

/// A gate passes what is as expected, and fails slow rows, sizes that were not measured, and wrong results.
#[test]
fn gates_fail_slow_unmeasured_and_wrong_rows() {
    let gate = Gate::read(include_str!("../../examples/gate.toml"), "gate.toml").unwrap();
    let sound = measurement_from_profile(&profile(), &measurement(Protocol::Simple, 26..31));
    let result = |measured: &[Measurement]| {
        let comparison = compare_measurements(measured, &profile(), &FastestPlanned);
        gate.check(measured, &comparison).remove(0)
    };
    assert!(result(std::slice::from_ref(&sound)).is_met());

    // The rule covers 256 MiB to 1 GiB: one row takes twice its time.
    let mut slow = sound.clone();
    let row = slow.rows.iter_mut().find(|row| row.bytes == Bytes(1 << 29)).unwrap();
    *row = Row::new(row.bytes, Picos(2 * row.measured().0), row.line);
    let found = result(&[slow]);
    assert_eq!((found.rows, found.violations.len(), found.is_met()), (3, 1, false));
    assert!(found.violations[0].limit == Limit::MinShare(0.67) && (found.violations[0].value - 0.5).abs() < 0.01);

    // A second machine of which only small calls were measured.
    let short = measurement_from_profile(&profile(), &measurement(Protocol::Simple, 20..24));
    let found = result(&[sound.clone(), short]);
    assert_eq!((found.unmeasured.as_slice(), found.is_met()), (&[1][..], false));

    let mut wrong = sound;
    wrong.rejected.push(RejectedRow { line: 40, reason: Reason::WrongResults(7) });
    let found = result(&[wrong]);
    assert_eq!((found.wrong.as_slice(), found.is_met()), (&[(0, 40)][..], false));
}
