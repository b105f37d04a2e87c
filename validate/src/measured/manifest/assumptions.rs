//! Values assumed where neither a log nor its manifest entry gives one, and contradictions between a log and its
//! fabric.

use std::collections::BTreeMap;

use fabricast_planner::library::Library as Modelled;
use fabricast_sim::profile::{Launch, Processes};
use fabricast_topologies::fabric::Figures;
use fabricast_topologies::gpus::name;
use fabricast_topologies::{Bandwidth, Fabric};

use super::entry::Entry;
use super::{Configuration, launch_name, missing, processes_name};
use crate::measured::{LibraryName, LogContext, LogFormat, Table};

/// A table, its manifest entry, and the fabric and configuration derived from both.
pub(super) struct Given<'a> {
    pub entry: &'a Entry,
    pub table: &'a Table,
    pub format: LogFormat,
    pub fabric: &'a Fabric,
    pub configuration: &'a Configuration,
    /// Model of the GPUs, if the log names it and the fabric's file does not.
    pub gpu: Option<&'a str>,
}

/// Launch mode assumed for logs that do not name one. nccl-tests uses no graphs unless run with `-G`; CSV times are
/// assumed to be from graphs, as predictions are.
pub(super) fn launch(format: LogFormat) -> Launch {
    match format {
        LogFormat::NcclTestsText | LogFormat::NcclTestsJson | LogFormat::RcclTestsJson => Launch::Stream,
        LogFormat::Csv => Launch::Graph,
    }
}

/// Returns the assumptions and remarks of a table.
pub(super) fn context(given: &Given<'_>) -> LogContext {
    LogContext {
        assumptions: given.assumptions(),
        remarks: given.remarks(),
        p2p_channels: given.table.header.p2p_channels,
    }
}

impl Given<'_> {
    fn assumptions(&self) -> Vec<String> {
        let Self { entry, table, format, fabric, configuration, gpu } = self;
        let header = &table.header;
        let mut found = Vec::new();
        found.extend(gpu.map(|gpu| format!("{gpu} (the log's GPUs)")));
        if entry.launch.is_none() && header.launch.is_none() {
            let why = if *format == LogFormat::Csv { "" } else { " (nccl-tests' default)" };
            found.push(format!("{} launch{why}", launch_name(configuration.launch)));
        }
        if entry.processes.is_none() && header.processes.is_none() {
            let by = match configuration.processes {
                Processes::PerGpu => "a process per GPU",
                Processes::Single => processes_name(configuration.processes),
            };
            found.push(by.to_owned());
        }
        if header.inferred.collective {
            found.push(format!("{} (by busbw/algbw)", configuration.collective));
        }
        let (nodes, gpus) = (configuration.nodes, configuration.gpus);
        let hosts = if nodes == 1 { "host" } else { "hosts" };
        if header.inferred.ranks {
            found.push(format!("{} ranks (by busbw/algbw) as {nodes} {hosts} × {gpus}", nodes * gpus));
        } else if entry.nodes.is_none() && header.hosts().is_none() || entry.gpus.is_none() && header.ranks.is_none() {
            found.push(format!("{nodes} {hosts} × {gpus} GPUs"));
        }
        if nodes > 1 && entry.network.is_none() {
            found.extend(nics(fabric));
        }
        if entry.dtype.is_none() && table.rows.iter().any(|row| row.dtype.is_none()) {
            found.push(format!("{} elements", configuration.dtype.name()));
        }
        let forced = configuration.algorithm.is_some() && configuration.protocol.is_some();
        if !forced && configuration.library.is_none() && Modelled::NEWEST_NCCL.runs_on(fabric, fabric.gpus()) {
            found.push(format!("choices of {}", Modelled::NEWEST_NCCL));
        }
        found
    }

    fn remarks(&self) -> Vec<String> {
        let Self { table, fabric, configuration, .. } = self;
        let mut found = Vec::new();
        if let Some(runs) = table.header.separate_runs {
            let ranks = configuration.nodes * configuration.gpus;
            let each = if ranks == 1 { "1 rank".to_owned() } else { format!("{ranks} ranks") };
            found.push(format!("{}, compared as runs of {each}", missing::separate_runs(runs)));
        }
        if let Some(collective) = table.header.doubted_collective {
            let said = configuration.collective;
            found.push(format!("the columns fit {collective}, not the {said} that the description says"));
        }
        if let Some(ranks) = table.header.doubted_ranks {
            let said = configuration.nodes * configuration.gpus;
            found.push(format!("busbw/algbw fits {ranks} ranks, not the {said} that the description says"));
        }
        if let Some(model) = model(fabric) {
            let mut other: Vec<&str> = table.header.devices.iter().map(|device| device.model.trim()).collect();
            other.retain(|log| !log.is_empty() && !name::can_be_one(log, model));
            other.sort_unstable();
            other.dedup();
            if !other.is_empty() {
                let name = fabric.name();
                found.push(format!("the log's GPUs are {}, those of {name} are {model}", other.join(" and ")));
            }
        }
        if !Modelled::NEWEST_NCCL.runs_on(fabric, fabric.gpus())
            && configuration.library.as_ref().is_some_and(|library| library.name == LibraryName::Nccl)
        {
            found.push("NCCL does not run on this fabric's GPUs".to_owned());
        }
        found
    }
}

/// Model of a fabric's GPUs, as named by the fabric.
fn model(fabric: &Fabric) -> Option<&str> {
    fabric.gpus().iter().find_map(|&gpu| match &fabric.node(gpu).figures {
        Figures::Gpu(figures) => figures.model.as_deref(),
        _ => None,
    })
}

/// Describes the NICs of a host, such as `8 × 400 Gb/s NICs a host`; `None` if hosts have no NICs or different ones.
fn nics(fabric: &Fabric) -> Option<String> {
    let mut of_hosts: BTreeMap<u32, Vec<Bandwidth>> = BTreeMap::new();
    for (_, node) in fabric.nodes() {
        if let Figures::Nic(figures) = &node.figures {
            of_hosts.entry(node.host.0).or_default().push(figures.speed?);
        }
    }
    let mut hosts = of_hosts.into_values();
    let first = hosts.next()?;
    let speed = *first.first()?;
    let alike = first.iter().all(|one| *one == speed) && hosts.all(|other| other == first);
    alike.then(|| format!("{} × {} Gb/s NICs a host", first.len(), (speed.0 as f64 * 8.0 / 1e9).round()))
}
