//! Reader of the JSON of `gpu run`, which contains measurements without a manifest.

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use fabricast_collectives::bound::InNetwork;
use fabricast_sim::profile::{Launch, Processes};
use fabricast_sim::schedule::UnknownName;
use fabricast_topologies::{Bytes, Fabric, FabricRequest, SourceLocation, load, read_request};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::{ExecutorKind, TableKey, TimedRow, Versions, tables};
use crate::kernel::Carrier;
use crate::measured::manifest::{Configuration, Measurement, Notes, RegistrationKind, Role};
use crate::measured::nccl_tests::json::{LineCounter, strip_location};
use crate::measured::{Header, LogContext, MeasuredError, Reason, RejectedRow, Row, Table, number};

/// Version of the JSON format of `gpu run`. Version 1 had no version number, no fabric and no blocks per row.
pub const FORMAT: u32 = 2;
/// JSON key of the version number, in quotes.
const FORMAT_KEY: &str = "\"fabricast_gpu_run\"";
/// Number of characters at the start of a file in which the format is detected.
const SNIFFED_CHARS: usize = 1000;

#[derive(Deserialize)]
struct GpuRunDocument<'a> {
    fabric: String,
    /// Text of the fabric as a spec, if it is not a preset.
    fabric_spec: Option<String>,
    gpus: u32,
    ranks: u32,
    nccl: Option<String>,
    nvshmem: Option<String>,
    #[serde(borrow)]
    rows: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct RowText {
    collective: String,
    bytes: u64,
    dtype: String,
    in_place: bool,
    executor: ExecutorKind,
    algorithm: Option<String>,
    protocol: Option<String>,
    blocks: Option<u32>,
    carrier: Option<Carrier>,
    fault: Option<IgnoredAny>,
    graph_us: Option<f64>,
}

/// Returns true if a text is the JSON of `gpu run`, valid or not.
#[must_use]
pub fn is_run(text: &str) -> bool {
    let head: String = text.chars().take(SNIFFED_CHARS).collect();
    let is_first =
        ["\"fabric\"", "\"profile\"", "\"gpus\"", "\"ranks\"", "\"nccl\""].iter().all(|key| head.contains(key));
    head.trim_start_matches('\u{feff}').trim_start().starts_with('{') && (head.contains(FORMAT_KEY) || is_first)
}

/// Reads the measurements of a run, one per table, in the order of the manifest that `--measurements` writes.
pub(in crate::measured) fn read(text: &str, path: &Path) -> Result<Vec<Measurement>, MeasuredError> {
    let source = path.display().to_string();
    let origin = TextOrigin { text, source: &source };
    let document = origin.document()?;
    if document.ranks != document.gpus {
        let message = format!(
            "{} ranks on {} GPUs: times of ranks that share a GPU do not determine a profile",
            document.ranks, document.gpus
        );
        return Err(MeasuredError::invalid(SourceLocation::from_source(&source), message));
    }
    let (request, fabric) = origin.fabric(&document)?;
    let (mut timed, mut rejected) = (Vec::new(), Vec::new());
    let mut lines = LineCounter::new(text);
    for raw in &document.rows {
        let line = lines.line_number(raw);
        match origin.row(raw, line)? {
            Ok(row) => timed.push(row),
            Err(reason) => rejected.push(RejectedRow { line, reason }),
        }
    }
    let versions = Versions { nccl: document.nccl.as_deref(), nvshmem: document.nvshmem.as_deref() };
    let mut measurements = Vec::new();
    for (key, rows) in tables(&timed) {
        let Some(first) = rows.values().next() else { continue };
        let location = SourceLocation { line: first.line, ..SourceLocation::from_source(&source) };
        let configuration = configuration(&key, first, document.gpus, versions, &location)?;
        let rows = rows.values().map(|row| Row::new(row.bytes, row.time, row.line)).collect();
        let mut table = Table { header: Header::default(), rows, rejected: Vec::new(), line: first.line };
        table.check_sizes(configuration.collective, document.gpus);
        measurements.push(Measurement {
            location,
            file: path.to_owned(),
            name: source.clone(),
            request: request.clone(),
            fabric: Arc::clone(&fabric),
            configuration,
            role: Role::Fit,
            notes: Notes { software: key.software(versions), ..Notes::default() },
            context: LogContext::default(),
            rows: table.rows,
            rejected: table.rejected,
        });
    }
    let Some(first) = measurements.first_mut() else {
        let message = "no row has a time that can be used: all are untimed, wrong or in place";
        return Err(MeasuredError::invalid(SourceLocation::from_source(&source), message));
    };
    first.rejected.extend(rejected);
    first.rejected.sort_by_key(|rejected| rejected.line);
    Ok(measurements)
}

fn configuration(
    key: &TableKey,
    first: &TimedRow,
    gpus: u32,
    versions: Versions<'_>,
    location: &SourceLocation,
) -> Result<Configuration, MeasuredError> {
    let (algorithm, protocol, channels) = match &key.strategy {
        Some((name, protocol, blocks)) => {
            let channels = u16::try_from(*blocks)
                .map_err(|_| MeasuredError::invalid(location.clone(), format!("{blocks} blocks are too many")))?;
            (Some(word(name, location)?), Some(word(protocol, location)?), Some(channels))
        }
        None => (None, None, None),
    };
    let library = key.library(versions).map(|library| word(&library, location)).transpose()?;
    Ok(Configuration {
        nodes: 1,
        gpus,
        collective: first.collective,
        algorithm,
        protocol,
        channels,
        library,
        in_network: InNetwork::Off,
        registered: if key.executor == ExecutorKind::NcclSymmetric {
            RegistrationKind::Symmetric
        } else {
            RegistrationKind::Plain
        },
        launch: Launch::Graph,
        processes: Processes::PerGpu,
        dtype: first.dtype,
        env: Vec::new(),
    })
}

/// Parses a name, such as that of a collective, from a row.
fn word<T: FromStr<Err = UnknownName>>(text: &str, location: &SourceLocation) -> Result<T, MeasuredError> {
    text.parse().map_err(|error: UnknownName| MeasuredError::invalid(location.clone(), error.to_string()))
}

/// The JSON text and the name of its source.
struct TextOrigin<'a> {
    text: &'a str,
    source: &'a str,
}

impl<'a> TextOrigin<'a> {
    fn wrong(&self, error: &serde_json::Error, above: u32) -> MeasuredError {
        let (line, column) = (error.line() as u32 + above, if above == 0 { error.column() as u32 } else { 0 });
        let location = SourceLocation { source: self.source.to_owned(), line, column, ..SourceLocation::default() };
        MeasuredError::invalid(location, format!("not the JSON of `gpu run`: {}", strip_location(error)))
    }

    fn document(&self) -> Result<GpuRunDocument<'a>, MeasuredError> {
        #[derive(Deserialize)]
        struct Form {
            fabricast_gpu_run: Option<u32>,
        }
        let form: Form = serde_json::from_str(self.text).map_err(|error| self.wrong(&error, 0))?;
        if form.fabricast_gpu_run != Some(FORMAT) {
            let file_format = form.fabricast_gpu_run.unwrap_or(1);
            return Err(MeasuredError::Invalid {
                place: SourceLocation::from_source(self.source),
                message: format!(
                    "JSON of `gpu run` of format {file_format}, but this version of fabricast reads format {FORMAT}"
                ),
                help: Some("run it again, or name the manifest.toml of its --measurements".to_owned()),
            });
        }
        serde_json::from_str(self.text).map_err(|error| self.wrong(&error, 0))
    }

    fn fabric(&self, document: &GpuRunDocument<'_>) -> Result<(FabricRequest, Arc<Fabric>), MeasuredError> {
        let failed = |error: fabricast_topologies::Error| MeasuredError::Fabric {
            place: SourceLocation::from_source(self.source),
            error: error.into(),
        };
        let request = |fabric: String| FabricRequest {
            fabric,
            nodes: Some(1),
            gpus: Some(document.gpus),
            network: None,
            gpu: None,
            drives: None,
        };
        let (request, fabric) = match &document.fabric_spec {
            Some(spec) => {
                let request = request(format!("{}: fabric_spec", self.source));
                let fabric = read_request(spec, &request).map_err(failed)?;
                (request, fabric)
            }
            None => {
                let request = request(document.fabric.clone());
                let fabric = load(&request).map_err(failed)?;
                (request, fabric)
            }
        };
        let gpu_count = fabric.gpus().len();
        if gpu_count != document.gpus as usize {
            let message = format!("{} GPUs were measured, and the fabric has {gpu_count}", document.gpus);
            return Err(MeasuredError::invalid(SourceLocation::from_source(self.source), message));
        }
        Ok((request, Arc::new(fabric)))
    }

    /// Parses a row. The inner error is the reason why the row cannot be used.
    fn row(&self, raw: &RawValue, line: u32) -> Result<Result<TimedRow, Reason>, MeasuredError> {
        let row: RowText =
            serde_json::from_str(raw.get()).map_err(|error| self.wrong(&error, line.saturating_sub(1)))?;
        let location = SourceLocation { line, ..SourceLocation::from_source(self.source) };
        let wrong = |message: String| MeasuredError::invalid(location.clone(), message);
        let (collective, dtype) = (word(&row.collective, &location)?, word(&row.dtype, &location)?);
        let strategy = match (row.algorithm, row.protocol, row.blocks) {
            (Some(algorithm), Some(protocol), Some(blocks)) => Some((algorithm, word(&protocol, &location)?, blocks)),
            (None, None, _) => None,
            _ => return Err(wrong("a strategy needs `algorithm`, `protocol` and `blocks`".to_owned())),
        };
        if strategy.is_none() && row.executor.has_strategy() {
            return Err(wrong(format!("{} needs `algorithm`, `protocol` and `blocks`", row.executor.name())));
        }
        if row.in_place {
            return Ok(Err(Reason::InPlace));
        }
        if row.fault.is_some() {
            return Ok(Err(Reason::Faulty));
        }
        let Some(time) = row.graph_us.and_then(number::time_from_us) else { return Ok(Err(Reason::NoTime)) };
        let bytes = Bytes(row.bytes);
        if bytes == Bytes(0) || bytes > Bytes::MAX {
            return Ok(Err(Reason::NoBytes));
        }
        Ok(Ok(TimedRow {
            collective,
            executor: row.executor,
            strategy,
            carrier: row.carrier,
            dtype,
            bytes,
            time,
            line,
        }))
    }
}
