//! Values assumed for properties that neither a log nor its manifest entry states, and contradictions between a log and
//! its fabric.

use std::collections::BTreeMap;

use fabricast_libraries::Library as Modelled;
use fabricast_sim::profile::{Launch, Processes};
use fabricast_topologies::fabric::Figures;
use fabricast_topologies::gpus::name;
use fabricast_topologies::{Bandwidth, Fabric};

use super::entry::ManifestEntry;
use super::{Configuration, launch_name, missing, processes_name};
use crate::measured::{LibraryName, ListedDevice, LogContext, LogFormat, PciBus, Table};

/// A table with its manifest entry, and the fabric and configuration that follow from both.
pub(super) struct TableContext<'a> {
    pub entry: &'a ManifestEntry,
    pub table: &'a Table,
    pub format: LogFormat,
    pub fabric: &'a Fabric,
    pub configuration: &'a Configuration,
    /// Model of the GPUs, if the log names it and the fabric's file does not.
    pub gpu: Option<&'a str>,
}

/// Launch mode assumed for logs that state none. nccl-tests uses no graphs unless it runs with `-G`; CSV times are
/// assumed to be from graphs, as predictions are.
pub(super) fn launch(format: LogFormat) -> Launch {
    match format {
        LogFormat::NcclTestsText | LogFormat::NcclTestsJson | LogFormat::RcclTestsJson => Launch::Stream,
        LogFormat::Csv => Launch::Graph,
    }
}

/// Returns the assumptions and remarks of a table.
pub(super) fn context(table: &TableContext<'_>) -> LogContext {
    LogContext {
        assumptions: table.assumptions(),
        remarks: table.remarks(),
        p2p_channels: table.table.header.p2p_channels,
        report: table.table.header.report.clone(),
        adjacent_gpus: adjacent_gpus(&table.table.header.devices),
    }
}

/// Number of GPUs of the first host if no PCIe switch can separate them: they are on one bus, or on consecutive ones, and each
/// level of switches takes a number of its own. `None` for fewer than four GPUs, which may have consecutive numbers by chance.
fn adjacent_gpus(devices: &[ListedDevice]) -> Option<u32> {
    const MIN_GPUS: usize = 4;
    let host = &devices.first()?.host;
    let own = devices.iter().filter(|device| device.host == *host);
    let mut buses = own.map(|device| device.bus).collect::<Option<Vec<PciBus>>>()?;
    buses.sort_unstable();
    let follows =
        |pair: &[PciBus]| pair[0].domain == pair[1].domain && pair[0].number.checked_add(1) == Some(pair[1].number);
    let is_same = |pair: &[PciBus]| pair[0] == pair[1];
    let is_adjacent = buses.windows(2).all(follows) || buses.windows(2).all(is_same);
    (buses.len() >= MIN_GPUS && is_adjacent).then_some(buses.len() as u32)
}

impl TableContext<'_> {
    fn assumptions(&self) -> Vec<String> {
        let Self { entry, table, format, fabric, configuration, gpu } = self;
        let header = &table.header;
        let mut lines = Vec::new();
        lines.extend(gpu.map(|gpu| format!("{gpu} (the log's GPUs)")));
        if entry.launch.is_none() && header.launch.is_none() {
            let default_note = if *format == LogFormat::Csv { "" } else { " (nccl-tests' default)" };
            lines.push(format!("{} launch{default_note}", launch_name(configuration.launch)));
        }
        if entry.processes.is_none() && header.processes.is_none() {
            let processes = match configuration.processes {
                Processes::PerGpu => "a process per GPU",
                Processes::Single => processes_name(configuration.processes),
            };
            lines.push(processes.to_owned());
        }
        if header.inferred.collective {
            lines.push(format!("{} (by busbw/algbw)", configuration.collective));
        }
        let (nodes, gpus) = (configuration.nodes, configuration.gpus);
        let hosts = if nodes == 1 { "host" } else { "hosts" };
        if header.inferred.ranks {
            lines.push(format!("{} ranks (by busbw/algbw) as {nodes} {hosts} × {gpus}", nodes * gpus));
        } else if entry.nodes.is_none() && header.hosts().is_none() || entry.gpus.is_none() && header.ranks.is_none() {
            lines.push(format!("{nodes} {hosts} × {gpus} GPUs"));
        }
        if nodes > 1 && entry.network.is_none() {
            lines.extend(nics(fabric));
        }
        if entry.dtype.is_none() && table.rows.iter().any(|row| row.dtype.is_none()) {
            lines.push(format!("{} elements", configuration.dtype.name()));
        }
        let forced = configuration.algorithm.is_some() && configuration.protocol.is_some();
        if !forced && configuration.library.is_none() && Modelled::NEWEST_NCCL.runs_on(fabric, fabric.gpus()) {
            lines.push(format!("choices of {}", Modelled::NEWEST_NCCL));
        }
        lines
    }

    fn remarks(&self) -> Vec<String> {
        let Self { table, fabric, configuration, .. } = self;
        let mut lines = Vec::new();
        if let Some(runs) = table.header.separate_runs {
            let ranks = configuration.nodes * configuration.gpus;
            let rank_count = if ranks == 1 { "1 rank".to_owned() } else { format!("{ranks} ranks") };
            lines.push(format!("{}, compared as runs of {rank_count}", missing::separate_runs(runs)));
        }
        if let Some(collective) = table.header.contradicted_collective {
            let expected = configuration.collective;
            lines.push(format!("the columns fit {collective}, not the {expected} that the description says"));
        }
        if let Some(ranks) = table.header.contradicted_ranks {
            let expected = configuration.nodes * configuration.gpus;
            lines.push(format!("busbw/algbw fits {ranks} ranks, not the {expected} that the description says"));
        }
        if let Some(model) = model(fabric) {
            let mut models: Vec<&str> = table.header.devices.iter().map(|device| device.model.trim()).collect();
            models.retain(|log| !log.is_empty() && !name::may_be_same_model(log, model));
            models.sort_unstable();
            models.dedup();
            if !models.is_empty() {
                let name = fabric.name();
                lines.push(format!("the log's GPUs are {}, those of {name} are {model}", models.join(" and ")));
            }
        }
        if !Modelled::NEWEST_NCCL.runs_on(fabric, fabric.gpus())
            && configuration.library.as_ref().is_some_and(|library| library.name == LibraryName::Nccl)
        {
            lines.push("NCCL does not run on this fabric's GPUs".to_owned());
        }
        lines
    }
}

/// Model of a fabric's GPUs, as named by the fabric.
fn model(fabric: &Fabric) -> Option<&str> {
    fabric.gpus().iter().find_map(|&gpu| match &fabric.node(gpu).figures {
        Figures::Gpu(figures) => figures.model.as_deref(),
        _ => None,
    })
}

/// Describes the NICs of a host, such as `8 × 400 Gb/s NICs a host`; `None` if hosts have no NICs or unequal ones.
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
    let is_uniform = first.iter().all(|value| *value == speed) && hosts.all(|other| other == first);
    is_uniform.then(|| format!("{} × {} Gb/s NICs a host", first.len(), (speed.0 as f64 * 8.0 / 1e9).round()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(addresses: &[&str]) -> Vec<ListedDevice> {
        let device = |(number, address): (usize, &&str)| ListedDevice {
            rank: number as u32,
            group: 0,
            pid: 1,
            host: "host".to_owned(),
            device: number as u32,
            model: "NVIDIA H200".to_owned(),
            bus: PciBus::parse(address),
        };
        addresses.iter().enumerate().map(device).collect()
    }

    #[test]
    fn gpus_on_one_bus_or_on_consecutive_ones_are_adjacent() {
        assert_eq!(adjacent_gpus(&listed(&["0x05", "0x06", "0x08", "0x07"])), Some(4));
        assert_eq!(adjacent_gpus(&listed(&["[0x00]", "[0x00]", "[0x00]", "[0x00]"])), Some(4));
        // An HGX board: each GPU is behind a switch of its own.
        assert_eq!(adjacent_gpus(&listed(&["0000:1b:00", "0000:29:00", "0000:45:00", "0000:4e:00"])), None);
        assert_eq!(adjacent_gpus(&listed(&["0001:00:00", "0002:00:00", "0003:00:00", "0004:00:00"])), None);
        assert_eq!(adjacent_gpus(&listed(&["0x05", "0x06"])), None);
        assert_eq!(adjacent_gpus(&listed(&["0x05", "0x06", "0x07", "?"])), None);
    }
}
