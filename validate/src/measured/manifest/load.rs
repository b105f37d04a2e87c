//! Loading of the logs and fabrics of manifest entries, with checks against each other.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use fabricast_sim::profile::{Launch, Processes};
use fabricast_sim::schedule::Collective;
use fabricast_topologies::gpus::{GpuModel, name};
use fabricast_topologies::read::{Limit, read_text_file};
use fabricast_topologies::{Fabric, FabricRequest, SourceLocation, preset};

use super::assumptions::{self, TableContext};
use super::entry::{Located, ManifestEntry};
use super::missing::{self, Missing};
use super::{Configuration, Contradiction, Measurement, contradictions, launch_name, processes_name, read};
use crate::measured::{Header, LogFormat, MeasuredError, Reason, RejectedRow, Table, gpu_run, read_log};

/// Measurements of a manifest, and contradictions among them.
#[derive(Clone, Debug, Default)]
pub struct LoadedManifest {
    /// Measurements in the order of the manifest; a log with several tables gives one measurement per table.
    pub measurements: Vec<Measurement>,
    /// Contradictory times of the same configuration and message size.
    pub contradictions: Vec<Contradiction>,
}

/// Loads a manifest with its logs and fabrics, or the JSON of `gpu run`, which needs no manifest.
///
/// # Errors
/// [`MeasuredError`] if a file cannot be read or a value is invalid, with its source location in the manifest or the
/// log.
pub fn load(manifest: &Path) -> Result<LoadedManifest, MeasuredError> {
    let text = read_text_file(manifest, Limit::MANIFEST).map_err(MeasuredError::Unreadable)?;
    if gpu_run::is_run(&text) {
        let measurements = gpu_run::read(&text, manifest)?;
        return Ok(LoadedManifest { contradictions: contradictions(&measurements), measurements });
    }
    let entries = read(&text, &manifest.display().to_string())?;
    measure(&entries, manifest.parent().unwrap_or(Path::new("")))
}

/// Loads the logs and fabrics of entries; paths are relative to `folder`.
///
/// # Errors
/// [`MeasuredError`] if a log or a fabric cannot be read, or a value is invalid or contradicts the log.
pub fn measure(entries: &[ManifestEntry], folder: &Path) -> Result<LoadedManifest, MeasuredError> {
    let mut fabrics = Fabrics::default();
    let mut measurements = Vec::new();
    for entry in entries {
        measurements.extend(load_entry(entry, folder, &mut fabrics)?);
    }
    Ok(LoadedManifest { contradictions: contradictions(&measurements), measurements })
}

/// Cache of fabrics that several entries share, by request.
#[derive(Default)]
struct Fabrics {
    known: HashMap<String, Arc<Fabric>>,
}

impl Fabrics {
    fn get(&mut self, request: &FabricRequest, location: &SourceLocation) -> Result<Arc<Fabric>, MeasuredError> {
        let key = format!("{request:?}");
        if let Some(fabric) = self.known.get(&key) {
            return Ok(Arc::clone(fabric));
        }
        let fabric = fabricast_topologies::load(request)
            .map_err(|error| MeasuredError::Fabric { place: location.clone(), error: error.into() })?;
        let fabric = Arc::new(fabric);
        self.known.insert(key, Arc::clone(&fabric));
        Ok(fabric)
    }
}

/// Number of hosts and of GPUs per host, as given by a log and its manifest entry.
#[derive(Clone, Copy, Debug, Default)]
struct HostLayout {
    nodes: Option<u32>,
    gpus: Option<u32>,
}

/// Returns the preset name or the path of an entry's fabric.
fn fabric_name(entry: &ManifestEntry, folder: &Path) -> String {
    let name = &entry.fabric.value;
    let path = folder.join(name);
    // A name that does not look like a path is treated as the name of a preset, because suggestions of similar names
    // are more helpful than "file not found".
    let is_file = preset::text(name).is_none() && (name.contains(['/', '\\', '.']) || path.exists());
    if is_file { path.display().to_string() } else { name.clone() }
}

/// Creates the request for an entry's fabric; file paths are relative to the manifest's folder.
fn request(entry: &ManifestEntry, machines: HostLayout, folder: &Path) -> FabricRequest {
    FabricRequest {
        fabric: fabric_name(entry, folder),
        nodes: Some(machines.nodes.unwrap_or(1)),
        gpus: machines.gpus,
        network: entry.network.clone(),
        gpu: entry.gpu.clone(),
        drives: None,
    }
}

/// Determines the number of hosts and of GPUs per host: values of the entry, else the hosts that the log lists, else as
/// many full hosts as the log's ranks fill.
fn machines(entry: &ManifestEntry, header: &Header, folder: &Path, fabrics: &mut Fabrics) -> HostLayout {
    let Some(ranks) = header.ranks else {
        return HostLayout { nodes: entry.nodes.or(header.hosts()), gpus: entry.gpus };
    };
    let nodes = entry.nodes.or(header.hosts()).or_else(|| match entry.gpus {
        Some(gpus) => (gpus > 0 && ranks.is_multiple_of(gpus)).then(|| ranks / gpus),
        None => full_hosts(entry, ranks, folder, fabrics),
    });
    // All hosts are assumed to have equally many GPUs; this is checked against the fabric later.
    let on_each = Some(ranks / nodes.unwrap_or(1).max(1)).filter(|&gpus| gpus > 0);
    HostLayout { nodes, gpus: entry.gpus.or(on_each) }
}

/// Returns the GPU model that the log names, if neither the entry nor the fabric's file names one.
fn infer_gpu(
    entry: &ManifestEntry,
    tables: &[Table],
    text: &str,
    folder: &Path,
    fabrics: &mut Fabrics,
) -> Option<&'static str> {
    if entry.gpu.is_some() {
        return None;
    }
    let devices = tables.iter().flat_map(|table| &table.header.devices);
    let mut models: Vec<&'static GpuModel> = devices.flat_map(|device| name::find(&device.model)).collect();
    if models.is_empty() {
        models = name::mentions(text).iter().flat_map(|mention| name::find(&mention.name)).collect();
    }
    models.dedup_by(|a, b| a.name == b.name);
    let [only] = *models else { return None };
    let full_request = request(entry, HostLayout::default(), folder);
    let fabric = fabrics.get(&full_request, &entry.fabric.place).ok()?;
    fabric.gpu_candidates().contains(&only.name).then_some(&*only.name)
}

/// Number of full hosts with `ranks` GPUs in total; `None` if one host is sufficient or the ranks do not fill whole
/// hosts.
fn full_hosts(entry: &ManifestEntry, ranks: u32, folder: &Path, fabrics: &mut Fabrics) -> Option<u32> {
    let one_host = request(entry, HostLayout { nodes: Some(1), gpus: None }, folder);
    let gpus = fabrics.get(&one_host, &entry.fabric.place).ok()?.gpus().len() as u32;
    (gpus > 0 && ranks > gpus && ranks.is_multiple_of(gpus)).then(|| ranks / gpus)
}

fn load_entry(entry: &ManifestEntry, folder: &Path, fabrics: &mut Fabrics) -> Result<Vec<Measurement>, MeasuredError> {
    // An entry that states hosts and GPUs is checked against its fabric before the log is read.
    if entry.nodes.is_some() && entry.gpus.is_some() && !entry.fabric.value.is_empty() {
        let machines = HostLayout { nodes: entry.nodes, gpus: entry.gpus };
        fabrics.get(&request(entry, machines, folder), &entry.fabric.place)?;
    }
    let path = folder.join(&entry.file.value);
    let text = read_text_file(&path, Limit::LOG).map_err(|error| match error {
        fabricast_topologies::Error::Unreadable { reason, .. } if entry.file.place.line > 0 => {
            MeasuredError::invalid(entry.file.place.clone(), format!("cannot read {}: {reason}", path.display()))
        }
        other => MeasuredError::Unreadable(other),
    })?;
    let source = path.display().to_string();
    let format = LogFormat::detect(&text);
    let mut tables = read_log(&text, &source)?;
    let stated = entry.collective.as_ref().map(|collective| collective.value);
    let ranks = entry.nodes.zip(entry.gpus).and_then(|(nodes, gpus)| nodes.checked_mul(gpus));
    for table in &mut tables {
        table.infer(stated, ranks);
        // A value from the manifest takes precedence over an inferred one.
        let header = &mut table.header;
        if header.inferred.ranks && ranks.is_some() && ranks != header.ranks {
            header.contradicted_ranks = header.ranks.take();
            header.inferred.ranks = false;
        }
        if header.inferred.collective && stated.is_some() && stated != header.collective {
            header.contradicted_collective = header.collective.take();
            header.inferred.collective = false;
        }
    }
    if let Some(missing) = Missing::in_tables(entry, &tables) {
        return Err(missing.error(entry, &source));
    }
    let gpu = infer_gpu(entry, &tables, &text, folder, fabrics);
    let described = ManifestEntry { gpu: gpu.map(str::to_owned).or_else(|| entry.gpu.clone()), ..entry.clone() };
    let entry = &described;
    let mut loaded: Vec<Measurement> = Vec::new();
    // Tables of other collectives belong to other entries; their rows are reported as rejected.
    let mut other_rejected: Vec<RejectedRow> = Vec::new();
    for mut table in tables {
        let machines = machines(entry, &table.header, folder, fabrics);
        let request = request(entry, machines, folder);
        let fabric = fabrics.get(&request, &entry.fabric.place)?;
        let gpus = fabric.gpus().len() as u32;
        let location = SourceLocation { line: table.line, ..SourceLocation::from_source(&source) };
        let nodes = request.nodes.unwrap_or(1);
        let log = Log { entry, header: &table.header, location, format, nodes, gpus };
        let configuration = match log.configuration() {
            Ok(configuration) => configuration,
            Err(Mismatch::OtherCollective(reason)) => {
                other_rejected.push(RejectedRow { line: table.line, reason });
                continue;
            }
            Err(Mismatch::Wrong(error)) => return Err(error),
        };
        check_rows(&mut table, &configuration, entry);
        let table_context =
            TableContext { entry, table: &table, format, fabric: &fabric, configuration: &configuration, gpu };
        let context = assumptions::context(&table_context);
        loaded.push(Measurement {
            location: entry.place.clone(),
            file: path.clone(),
            name: entry.file.value.clone(),
            request,
            fabric,
            configuration,
            role: entry.role,
            notes: entry.notes.clone(),
            context,
            rows: table.rows,
            rejected: table.rejected,
        });
    }
    let Some(first) = loaded.first_mut() else {
        let tables: Vec<String> =
            other_rejected.iter().map(|other| format!("line {}: {}", other.line, other.reason)).collect();
        let message = format!("{source} has no table of this collective; {}", tables.join("; "));
        return Err(MeasuredError::invalid(entry.file.place.clone(), message));
    };
    first.rejected.extend(other_rejected);
    first.rejected.sort_by_key(|rejected| rejected.line);
    Ok(loaded)
}

/// Rejects the rows that contradict the manifest entry.
fn check_rows(table: &mut Table, configuration: &Configuration, entry: &ManifestEntry) {
    table.check_sizes(configuration.collective, configuration.nodes * configuration.gpus);
    if let Some(dtype) = entry.dtype {
        table.reject(|row| {
            row.dtype.filter(|&found| found != dtype).map(|found| Reason::OtherType { found, wanted: dtype })
        });
    }
}

/// Header of a table and the manifest entry that names its log.
struct Log<'a> {
    entry: &'a ManifestEntry,
    header: &'a Header,
    /// Source location of the table.
    location: SourceLocation,
    format: LogFormat,
    /// Number of hosts that were measured.
    nodes: u32,
    /// Number of GPUs that were measured, on all hosts.
    gpus: u32,
}

/// Reason why a table does not match its manifest entry.
enum Mismatch {
    OtherCollective(Reason),
    Wrong(MeasuredError),
}

/// Describes the origin of a value: its location in the manifest, or the command line.
fn describe_origin(location: &SourceLocation) -> String {
    if location.line > 0 { location.to_string() } else { "the command".to_owned() }
}

impl Log<'_> {
    fn configuration(&self) -> Result<Configuration, Mismatch> {
        let Self { entry, header, nodes, gpus: ranks, .. } = self;
        if let Some(logged) = header.ranks.filter(|logged| logged != ranks) {
            let runs = header
                .separate_runs
                .map_or_else(String::new, |runs| format!(" in each of {}", missing::separate_runs(runs)));
            let logged = if header.inferred.ranks { format!("{logged} (by busbw/algbw)") } else { logged.to_string() };
            let message = match entry.gpus {
                Some(gpus) => {
                    format!(
                        "has {logged} ranks{runs}; {} says {ranks} ({nodes} × {gpus})",
                        describe_origin(&entry.place)
                    )
                }
                None => format!("has {logged} ranks{runs}, which are not those of {nodes} equal hosts"),
            };
            return Err(Mismatch::Wrong(MeasuredError::invalid(self.location.clone(), message)));
        }
        if let Some(hosts) = header.other_hosts(*nodes) {
            let stated = match &entry.nodes {
                Some(nodes) => format!("{} says {nodes}", describe_origin(&entry.place)),
                None => "only hosts with equally many GPUs are compared".to_owned(),
            };
            let message = format!("ran on {hosts}; {stated}");
            return Err(Mismatch::Wrong(MeasuredError::invalid(self.location.clone(), message)));
        }
        Ok(Configuration {
            nodes: *nodes,
            gpus: ranks / nodes.max(&1),
            collective: self.collective()?,
            algorithm: entry.algorithm,
            protocol: entry.protocol,
            channels: entry.channels,
            library: entry.library.clone().or_else(|| header.library.clone()),
            in_network: entry.in_network,
            registered: entry.registered,
            launch: self
                .reconcile(entry.launch.as_ref(), header.launch, |&launch: &Launch| launch_name(launch))?
                .unwrap_or_else(|| assumptions::launch(self.format)),
            processes: self
                .reconcile(entry.processes.as_ref(), header.processes, |&processes: &Processes| {
                    processes_name(processes)
                })?
                .unwrap_or_default(),
            dtype: entry.dtype.unwrap_or_default(),
            env: entry.env.clone(),
        })
    }

    fn collective(&self) -> Result<Collective, Mismatch> {
        match (&self.entry.collective, self.header.collective) {
            (Some(stated), Some(logged)) if stated.value != logged => {
                Err(Mismatch::OtherCollective(Reason::OtherCollective { found: logged, wanted: stated.value }))
            }
            (Some(Located { value, .. }), _) => Ok(*value),
            (None, Some(logged)) => Ok(logged),
            (None, None) => {
                let missing = Missing::in_header(self.entry, self.header);
                Err(Mismatch::Wrong(missing.error(self.entry, &self.location.to_string())))
            }
        }
    }

    /// Returns the value on which entry and log agree, or the value of the one that states it.
    fn reconcile<T: Copy + PartialEq>(
        &self,
        stated: Option<&Located<T>>,
        logged: Option<T>,
        name: impl Fn(&T) -> &'static str,
    ) -> Result<Option<T>, Mismatch> {
        match (stated, logged) {
            (Some(stated), Some(logged)) if stated.value != logged => {
                let message = format!("`{}`, but {} says `{}`", name(&stated.value), self.location, name(&logged));
                let location = if stated.place.line > 0 { &stated.place } else { &self.location };
                Err(Mismatch::Wrong(MeasuredError::invalid(location.clone(), message)))
            }
            (Some(stated), _) => Ok(Some(stated.value)),
            (None, logged) => Ok(logged),
        }
    }
}
