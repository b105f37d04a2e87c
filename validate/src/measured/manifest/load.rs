//! From the entries of a manifest to measurements: finds logs and fabrics, and holds the two sides against each other.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use fabricast_sim::profile::{Launch, Processes};
use fabricast_sim::schedule::Collective;
use fabricast_topologies::read::{Limit, text_of_file};
use fabricast_topologies::{Fabric, FabricRequest, Place, preset};

use super::entry::{Entry, Located};
use super::{Configuration, Contradiction, Measurement, contradictions, launch_name, processes_name, read};
use crate::measured::{Header, MeasuredError, Reason, Rejected, Table, gpu_run, read_log};

/// The measurements of a manifest.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// In the order of the manifest; a log with several tables gives one each.
    pub measurements: Vec<Measurement>,
    /// Times of the same configuration and size that cannot both be.
    pub contradictions: Vec<Contradiction>,
}

/// Loads a manifest, its logs and its fabrics, or the JSON of `gpu run`, which needs none.
///
/// # Errors
/// [`MeasuredError`] for whatever cannot be read or cannot be, with its place in the manifest or in the log.
pub fn load(manifest: &Path) -> Result<Loaded, MeasuredError> {
    let text = text_of_file(manifest, Limit::MANIFEST).map_err(MeasuredError::Unreadable)?;
    if gpu_run::is_run(&text) {
        let measurements = gpu_run::read(&text, manifest)?;
        return Ok(Loaded { contradictions: contradictions(&measurements), measurements });
    }
    let entries = read(&text, &manifest.display().to_string())?;
    measure(&entries, manifest.parent().unwrap_or(Path::new("")))
}

/// Loads what entries name, relative to a folder.
///
/// # Errors
/// As [`load`].
pub fn measure(entries: &[Entry], folder: &Path) -> Result<Loaded, MeasuredError> {
    let mut fabrics = Fabrics::default();
    let mut measurements = Vec::new();
    for entry in entries {
        measurements.extend(of_entry(entry, folder, &mut fabrics)?);
    }
    Ok(Loaded { contradictions: contradictions(&measurements), measurements })
}

/// Fabrics that several entries share, by what was asked for.
#[derive(Default)]
struct Fabrics {
    known: HashMap<String, Arc<Fabric>>,
}

impl Fabrics {
    fn get(&mut self, request: &FabricRequest, place: &Place) -> Result<Arc<Fabric>, MeasuredError> {
        let key = format!("{request:?}");
        if let Some(fabric) = self.known.get(&key) {
            return Ok(Arc::clone(fabric));
        }
        let fabric = fabricast_topologies::load(request)
            .map_err(|error| MeasuredError::Fabric { place: place.clone(), error: error.into() })?;
        let fabric = Arc::new(fabric);
        self.known.insert(key, Arc::clone(&fabric));
        Ok(fabric)
    }
}

/// What a manifest asks for; files are relative to its folder.
fn request(entry: &Entry, header: &Header, folder: &Path) -> FabricRequest {
    let name = &entry.fabric.value;
    let path = folder.join(name);
    // What looks like no path was meant as a name, and near names are better advice than a missing file.
    let is_file = preset::text(name).is_none() && (name.contains(['/', '\\', '.']) || path.exists());
    let nodes = entry.nodes.or(header.hosts());
    // The log's ranks, where they are equally many on each host; checked against the fabric later.
    let per_node = header.ranks.map(|ranks| ranks / nodes.unwrap_or(1).max(1)).filter(|&gpus| gpus > 0);
    FabricRequest {
        fabric: if is_file { path.display().to_string() } else { name.clone() },
        nodes: Some(nodes.unwrap_or(1)),
        gpus: entry.gpus.or(per_node),
        network: entry.network.clone(),
        gpu: entry.gpu.clone(),
    }
}

fn of_entry(entry: &Entry, folder: &Path, fabrics: &mut Fabrics) -> Result<Vec<Measurement>, MeasuredError> {
    // A manifest that says all of it is held against its fabric before the log is looked for.
    if entry.nodes.is_some() && entry.gpus.is_some() {
        fabrics.get(&request(entry, &Header::default(), folder), &entry.fabric.place)?;
    }
    let path = folder.join(&entry.file.value);
    let text = text_of_file(&path, Limit::LOG).map_err(|error| match error {
        fabricast_topologies::Error::Unreadable { reason, .. } if entry.file.place.line > 0 => {
            MeasuredError::invalid(entry.file.place.clone(), format!("cannot read {}: {reason}", path.display()))
        }
        other => MeasuredError::Unreadable(other),
    })?;
    let source = path.display().to_string();
    let mut found: Vec<Measurement> = Vec::new();
    // Tables of other collectives, where the manifest names one: for other entries, and told of.
    let mut others: Vec<Rejected> = Vec::new();
    for mut table in read_log(&text, &source)? {
        let request = request(entry, &table.header, folder);
        let fabric = fabrics.get(&request, &entry.fabric.place)?;
        let gpus = fabric.gpus().len() as u32;
        let place = Place { line: table.line, ..Place::of_source(&source) };
        let log = Log { entry, header: &table.header, place, nodes: request.nodes.unwrap_or(1), gpus };
        let configuration = match log.configuration() {
            Ok(configuration) => configuration,
            Err(Mismatch::OtherCollective(reason)) => {
                others.push(Rejected { line: table.line, reason });
                continue;
            }
            Err(Mismatch::Wrong(error)) => return Err(error),
        };
        check_rows(&mut table, &configuration, entry);
        found.push(Measurement {
            place: entry.place.clone(),
            file: path.clone(),
            name: entry.file.value.clone(),
            request,
            fabric,
            configuration,
            role: entry.role,
            notes: entry.notes.clone(),
            rows: table.rows,
            rejected: table.rejected,
        });
    }
    let Some(first) = found.first_mut() else {
        let tables: Vec<String> = others.iter().map(|other| format!("line {}: {}", other.line, other.reason)).collect();
        let message = format!("{source} has no table of this collective; {}", tables.join("; "));
        return Err(MeasuredError::invalid(entry.file.place.clone(), message));
    };
    first.rejected.extend(others);
    first.rejected.sort_by_key(|rejected| rejected.line);
    Ok(found)
}

/// Rejects the rows that what the manifest adds contradicts.
fn check_rows(table: &mut Table, configuration: &Configuration, entry: &Entry) {
    table.check_sizes(configuration.collective, configuration.nodes * configuration.gpus);
    if let Some(wanted) = entry.dtype {
        table.reject(|row| row.dtype.filter(|&found| found != wanted).map(|found| Reason::OtherType { found, wanted }));
    }
}

/// A table's header beside the entry that names its log.
struct Log<'a> {
    entry: &'a Entry,
    header: &'a Header,
    /// The table.
    place: Place,
    /// Hosts measured.
    nodes: u32,
    /// GPUs of the fabric: those measured, on all hosts.
    gpus: u32,
}

/// Why a table is not what an entry says.
enum Mismatch {
    OtherCollective(Reason),
    Wrong(MeasuredError),
}

/// A place of a manifest, or what else speaks.
fn said_by(place: &Place) -> String {
    if place.line > 0 { place.to_string() } else { "the command".to_owned() }
}

impl Log<'_> {
    fn configuration(&self) -> Result<Configuration, Mismatch> {
        let Self { entry, header, nodes, gpus: ranks, .. } = self;
        if let Some(found) = header.ranks.filter(|found| found != ranks) {
            let message = match entry.gpus {
                Some(gpus) => format!("has {found} ranks; {} says {ranks} ({nodes} × {gpus})", said_by(&entry.place)),
                None => format!("has {found} ranks, which are not those of {nodes} equal hosts"),
            };
            return Err(Mismatch::Wrong(MeasuredError::invalid(self.place.clone(), message)));
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
            launch: self.agreed(entry.launch.as_ref(), header.launch, |&launch: &Launch| launch_name(launch))?,
            processes: self.agreed(entry.processes.as_ref(), header.processes, |&by: &Processes| processes_name(by))?,
            dtype: entry.dtype.unwrap_or_default(),
            env: entry.env.clone(),
        })
    }

    fn collective(&self) -> Result<Collective, Mismatch> {
        match (&self.entry.collective, self.header.collective) {
            (Some(wanted), Some(found)) if wanted.value != found => {
                Err(Mismatch::OtherCollective(Reason::OtherCollective { found, wanted: wanted.value }))
            }
            (Some(Located { value, .. }), _) => Ok(*value),
            (None, Some(found)) => Ok(found),
            (None, None) => {
                let described = self.entry.place.line > 0;
                let message = "does not say which collective it measured";
                Err(Mismatch::Wrong(MeasuredError::Invalid {
                    place: if described { self.entry.place.clone() } else { self.place.clone() },
                    message: if described { format!("{} {message}", self.place) } else { message.to_owned() },
                    help: Some(
                        "add `collective = \"all_reduce\"` to a manifest, or --collective all_reduce".to_owned(),
                    ),
                }))
            }
        }
    }

    /// What entry and log say alike, or one of them; the default where neither does.
    fn agreed<T: Copy + PartialEq + Default>(
        &self,
        said: Option<&Located<T>>,
        found: Option<T>,
        name: impl Fn(&T) -> &'static str,
    ) -> Result<T, Mismatch> {
        match (said, found) {
            (Some(said), Some(found)) if said.value != found => {
                let message = format!("`{}`, but {} says `{}`", name(&said.value), self.place, name(&found));
                let place = if said.place.line > 0 { &said.place } else { &self.place };
                Err(Mismatch::Wrong(MeasuredError::invalid(place.clone(), message)))
            }
            (Some(said), _) => Ok(said.value),
            (None, found) => Ok(found.unwrap_or_default()),
        }
    }
}
