//! `compare`: compares predicted with measured times.

mod chart;
pub mod exchange;
mod gate;
pub mod json;
mod text;
mod verdict;

use std::path::Path;

use fabricast_collectives::bound::InNetwork;
use fabricast_reports::chart::Format as ChartFormat;
use fabricast_sim::monitor::Monitor;
use fabricast_sim::profile;
use fabricast_topologies::SourceLocation;
use fabricast_topologies::read::{Limit, read_text_file};
use fabricast_topologies::route::{GpuDirect, PeerAccess, RouteOptions};
use fabricast_validate::compare::{Comparison, ComparisonRequest, Explanations, FastestPlanned, compare};
use fabricast_validate::measured::gpu_run;
use fabricast_validate::measured::manifest::{self, LoadedManifest, Located, ManifestEntry, Measurement};

use super::format_count;
use super::measured;
use super::memory::MemoryShortfall;
use gate::GateOutcome;

use crate::args::{BandwidthAxis, CompareArgs, Launch, LogArgs, Processes, RegistrationChoice};
use crate::document::Document;
use crate::failure::Failure;
use crate::output::{self, AdditionalFile, Output};
use crate::output_format::Format;
use crate::run_control;
use crate::setup;

/// Measurements and their comparison with predictions, from which the outputs are written.
struct ComparisonAnswer<'a> {
    measurements: &'a [Measurement],
    comparison: &'a Comparison,
    loaded: &'a LoadedManifest,
}

pub fn run(args: &CompareArgs, output: &Output) -> Result<(), Failure> {
    let chart = match args.chart.as_deref() {
        Some(path) => {
            let format = ChartFormat::from_path(path).map_err(|error| Failure::input(error.to_string()))?;
            output.check_additional_file(path)?;
            Some((path, format))
        }
        None => None,
    };
    for path in [&args.junit, &args.prometheus].into_iter().flatten() {
        output.check_additional_file(path)?;
    }
    let rules = args.gate.as_deref().map(gate::read).transpose()?;
    if exchange::is_requested(args)? {
        if rules.is_some() {
            return Err(Failure::input("--gate does not judge dispatch and combine".to_owned()));
        }
        return exchange::run(args, output);
    }
    let profile = args.profile.as_deref().map(setup::named_profile).transpose()?;
    let loaded = load(args)?;
    measured::warn(&loaded, output);
    if let Some(exceeded) = MemoryShortfall::check_measurements(&loaded.measurements) {
        exceeded.warn(output);
    }
    warn_about_fabrics(&loaded, output);
    let request = ComparisonRequest {
        measurements: &loaded.measurements,
        profile: profile.as_ref(),
        choice: &FastestPlanned,
        routes: RouteOptions {
            p2p: if args.no_p2p { PeerAccess::Off } else { PeerAccess::Allowed },
            gdr: if args.no_gdr { GpuDirect::Off } else { GpuDirect::Allowed },
            ..RouteOptions::default()
        },
        explanations: if args.no_explain { Explanations::None } else { Explanations::Wanted },
        monitor: Monitor::default(),
    };
    let comparison =
        run_control::with_monitor(output, "comparing", |monitor| compare(&ComparisonRequest { monitor, ..request }))?;
    let answer = ComparisonAnswer { measurements: &loaded.measurements, comparison: &comparison, loaded: &loaded };
    let judged = rules.map(|rules| GateOutcome::new(rules, &answer));
    let written = match output.format {
        Format::Json => output::json(&Document::Comparison.with(&json::comparison_json(&answer, judged.as_ref())))?,
        Format::Text => text::comparison_text(&answer, judged.as_ref(), args.rows, &output.text_options()),
        Format::Csv => super::csv(&text::csv(&answer))?,
    };
    let picture = match chart {
        Some((path, format)) if args.panel => {
            Some((path, chart::draw_panel(&answer, BandwidthAxis::scale(args.bandwidth_axis), format)?))
        }
        Some((path, format)) => Some((path, chart::draw(&answer, format)?)),
        None => None,
    };
    let junit = args.junit.as_deref().zip(judged.as_ref().map(|judged| judged.junit(&answer)));
    let metrics = args.prometheus.as_deref().zip(judged.as_ref().map(|judged| judged.prometheus(&answer)));
    let texts = [&junit, &metrics].into_iter().flatten().map(|(path, text)| (*path, text.as_bytes()));
    let pictures = picture.iter().map(|(path, picture)| (*path, picture.as_slice()));
    let files: Vec<AdditionalFile<'_>> =
        pictures.chain(texts).map(|(path, content)| AdditionalFile { path, content }).collect();
    output.write_with_files(&written, &files)?;
    if let Some(judged) = &judged {
        judged.verdict()?;
    }
    match args.max_error {
        Some(limit) if comparison.summary.median > limit => Err(Failure::Failed(format!(
            "the median error is {:.1} %, more than the {:.1} % of --max-error",
            comparison.summary.median * 100.0,
            limit * 100.0
        ))),
        _ => Ok(()),
    }
}

/// Prints the warnings of the fabric readers, without duplicates.
fn warn_about_fabrics(loaded: &LoadedManifest, output: &Output) {
    let mut reported: Vec<&str> = Vec::new();
    for warning in loaded.measurements.iter().flat_map(|measurement| measurement.fabric.warnings()) {
        if !reported.contains(&warning.as_str()) {
            output.warn(warning);
            reported.push(warning);
        }
    }
}

/// Loads manifests and logs, in the order given.
fn load(args: &CompareArgs) -> Result<LoadedManifest, Failure> {
    let mut all = LoadedManifest::default();
    for path in &args.files {
        let has_extension =
            |expected: &str| path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(expected));
        // JSON of `gpu run` contains all data of a manifest, so it is read as one.
        let is_manifest =
            has_extension("toml") || has_extension("json") && gpu_run::is_run(&read_text_file(path, Limit::LOG)?);
        let loaded = if is_manifest {
            manifest::load(path)?
        } else {
            manifest::measure(&[entry(path, &args.log)], Path::new(""))?
        };
        all.measurements.extend(loaded.measurements);
    }
    // Measurements of different files may contradict each other, so contradictions are searched in all of them.
    all.contradictions = manifest::contradictions(&all.measurements);
    Ok(all)
}

/// Manifest entry for a log that the flags describe. A missing fabric is reported later, with all other missing
/// properties.
fn entry(path: &Path, flags: &LogArgs) -> ManifestEntry {
    let name = path.display().to_string();
    let launch = flags.launch.map(|launch| match launch {
        Launch::Graph => profile::Launch::Graph,
        Launch::Stream => profile::Launch::Stream,
    });
    let processes = flags.processes.map(|processes| match processes {
        Processes::PerGpu => profile::Processes::PerGpu,
        Processes::Single => profile::Processes::Single,
    });
    ManifestEntry {
        place: SourceLocation::from_source(&name),
        file: from_command_line(name.clone()),
        fabric: from_command_line(flags.fabric.clone().unwrap_or_default()),
        nodes: flags.nodes,
        gpus: flags.gpus,
        gpu: flags.gpu_model.clone(),
        network: flags.network.clone(),
        collective: flags.collective.map(from_command_line),
        algorithm: flags.algorithm,
        protocol: flags.protocol,
        channels: flags.channels,
        library: flags.library.clone(),
        in_network: if flags.no_nvls { InNetwork::Off } else { InNetwork::Allowed },
        registered: match flags.registered {
            Some(RegistrationChoice::Symmetric) => manifest::RegistrationKind::Symmetric,
            Some(RegistrationChoice::Plain) | None => manifest::RegistrationKind::Plain,
        },
        launch: launch.map(from_command_line),
        processes: processes.map(from_command_line),
        dtype: flags.dtype,
        ..ManifestEntry::default()
    }
}

/// Returns a value with the command line as its source location.
fn from_command_line<T>(value: T) -> Located<T> {
    Located { value, place: SourceLocation::from_source("command line") }
}

/// Name of a group by the configuration that its rows share, such as `all_reduce ring ll · 1 node × 8 GPUs (h200-node)
/// · CUDA graph, one process per GPU`.
fn group_name(answer: &ComparisonAnswer<'_>, group: usize) -> String {
    let first = answer.comparison.groups.get(group).and_then(|group| group.measurements.first());
    let Some(measurement) = first.and_then(|&first| answer.measurements.get(first)) else { return String::new() };
    let configuration = &measurement.configuration;
    let mut strategy = match (configuration.algorithm, configuration.protocol) {
        (None, None) => "library default".to_owned(),
        (Some(algorithm), None) => format!("{algorithm}"),
        (None, Some(protocol)) => format!("{protocol}"),
        (Some(algorithm), Some(protocol)) => format!("{algorithm} {protocol}"),
    };
    if let Some(channels) = configuration.channels {
        strategy = format!("{strategy} × {channels}");
    }
    if configuration.registered == manifest::RegistrationKind::Symmetric {
        strategy.push_str(", registered");
    }
    let library = configuration.library.as_ref().map_or_else(String::new, |library| format!(" · {library}"));
    format!(
        "{} {strategy} · {} × {} ({}) · {}, {}{library}",
        configuration.collective,
        format_count(configuration.nodes.into(), "node"),
        format_count(configuration.gpus.into(), "GPU"),
        measurement.fabric.name(),
        match configuration.launch {
            profile::Launch::Graph => "CUDA graph",
            profile::Launch::Stream => "no CUDA graph",
        },
        match configuration.processes {
            profile::Processes::PerGpu => "one process per GPU",
            profile::Processes::Single => "one process",
        },
    )
}
