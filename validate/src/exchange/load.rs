//! Reading of the tables and fabrics of a manifest of exchanges.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use fabricast_experts::ExchangeRanks;
use fabricast_topologies::read::{Limit, read_text_file};
use fabricast_topologies::route::PeerAccess;
use fabricast_topologies::{Fabric, FabricRequest, Picos, SourceLocation, preset};

use super::manifest::{Count, ExchangeEntry, read};
use super::{ExchangeMeasurement, ExchangeRow, MeasuredQuantity};
use crate::measured::MeasuredError;

/// Maximum time (in µs) or bandwidth (in GB/s) that a table may state.
const MAX_MEASURED: f64 = 1e12;

/// Loads a manifest with its tables and fabrics.
///
/// # Errors
/// [`MeasuredError`] with the source location if a file cannot be read or a value is invalid.
pub fn load(manifest: &Path) -> Result<Vec<ExchangeMeasurement>, MeasuredError> {
    let text = read_text_file(manifest, Limit::MANIFEST).map_err(MeasuredError::Unreadable)?;
    let entries = read(&text, &manifest.display().to_string())?;
    let folder = manifest.parent().unwrap_or(Path::new(""));
    let mut loader =
        Loader { folder, place: SourceLocation::from_source(&manifest.display().to_string()), fabrics: HashMap::new() };
    entries.iter().map(|entry| loader.measurement(entry)).collect()
}

struct Loader<'a> {
    folder: &'a Path,
    place: SourceLocation,
    fabrics: HashMap<String, Arc<Fabric>>,
}

/// Line of a table, with the names of its columns.
struct TableLine<'a> {
    source: &'a str,
    number: u32,
    columns: &'a [&'a str],
    fields: Vec<&'a str>,
}

impl TableLine<'_> {
    fn error(&self, message: String) -> MeasuredError {
        let place = SourceLocation { line: self.number, ..SourceLocation::from_source(self.source) };
        MeasuredError::Invalid { place, message, help: None }
    }

    fn field(&self, column: &str) -> Result<&str, MeasuredError> {
        let position = self.columns.iter().position(|name| *name == column);
        position
            .and_then(|position| self.fields.get(position).copied())
            .ok_or_else(|| self.error(format!("no column `{column}`; the columns are {}", self.columns.join(", "))))
    }

    fn count(&self, count: &Count) -> Result<u64, MeasuredError> {
        let column = match count {
            Count::Number(number) => return Ok(*number),
            Count::Column(column) => column,
        };
        let text = self.field(column)?;
        text.parse().map_err(|_| self.error(format!("`{text}` is not a whole number ({column})")))
    }

    fn small_count(&self, count: &Count) -> Result<u32, MeasuredError> {
        let number = self.count(count)?;
        u32::try_from(number).map_err(|_| self.error(format!("{number} is more than {}", u32::MAX)))
    }

    /// Reads a number of ranks or hosts.
    fn rank_count(&self, count: &Count) -> Result<u32, MeasuredError> {
        let (number, max) = (self.small_count(count)?, ExchangeRanks::MAX_RANKS);
        if number as usize > max {
            return Err(self.error(format!("{number} ranks or hosts; expected at most {max}")));
        }
        Ok(number)
    }

    fn measured(&self, column: &str) -> Result<f64, MeasuredError> {
        let text = self.field(column)?;
        let value = text.parse::<f64>().ok().filter(|value| *value > 0.0 && *value <= MAX_MEASURED);
        value.ok_or_else(|| self.error(format!("`{text}` is not a measured value above 0 and at most 1e12 ({column})")))
    }
}

impl Loader<'_> {
    fn measurement(&mut self, entry: &ExchangeEntry) -> Result<ExchangeMeasurement, MeasuredError> {
        let path = self.folder.join(&entry.file);
        let text = read_text_file(&path, Limit::LOG).map_err(MeasuredError::Unreadable)?;
        let source = path.display().to_string();
        let mut columns: Vec<&str> = Vec::new();
        let mut rows = Vec::new();
        for (number, content) in (1u32..).zip(text.lines()) {
            if content.trim().is_empty() || content.starts_with('#') {
                continue;
            }
            let fields: Vec<&str> = content.split(',').map(str::trim).collect();
            if columns.is_empty() {
                columns = fields;
                continue;
            }
            let line = TableLine { source: &source, number, columns: &columns, fields };
            if line.fields.len() != columns.len() {
                return Err(line.error(format!("{} fields; expected {}", line.fields.len(), columns.len())));
            }
            let mut is_selected = true;
            for (column, value) in &entry.selection {
                is_selected &= line.field(column)? == value;
            }
            if is_selected {
                rows.push(self.row(entry, &line)?);
            }
        }
        if rows.is_empty() {
            let message = format!("{}: `where` selects no row", entry.file);
            return Err(MeasuredError::Invalid { place: self.place.clone(), message, help: None });
        }
        Ok(ExchangeMeasurement {
            file: path,
            name: entry.file.clone(),
            kernel: entry.kernel,
            operation: entry.operation,
            token_type: entry.dtype,
            pattern: entry.routing.into(),
            timing: entry.timing.into(),
            peer_access: if entry.p2p { PeerAccess::Allowed } else { PeerAccess::Off },
            role: entry.role.into(),
            cluster: entry.cluster.clone().unwrap_or_else(|| entry.file.clone()),
            rows,
        })
    }

    fn row(&mut self, entry: &ExchangeEntry, line: &TableLine<'_>) -> Result<ExchangeRow, MeasuredError> {
        let measured = match (&entry.time_us, &entry.bandwidth_gb_per_s) {
            (Some(column), _) => MeasuredQuantity::Time(Picos::from_us(line.measured(column)?)),
            (None, Some(column)) => MeasuredQuantity::Bandwidth(line.measured(column)?),
            (None, None) => return Err(line.error("no measured column".to_owned())),
        };
        Ok(ExchangeRow {
            line: line.number,
            fabric: self.row_fabric(entry, line)?,
            tokens: line.count(&entry.tokens)?,
            hidden: line.small_count(&entry.hidden)?,
            experts: line.small_count(&entry.experts)?,
            top_k: line.small_count(&entry.top_k)?,
            sms: entry.sms.as_ref().map(|sms| line.small_count(sms)).transpose()?,
            measured,
        })
    }

    /// Fabric of a row: the stated number of hosts, or the number of full hosts that the ranks fill.
    fn row_fabric(&mut self, entry: &ExchangeEntry, line: &TableLine<'_>) -> Result<Arc<Fabric>, MeasuredError> {
        let Some(ranks) = &entry.ranks else {
            let nodes = entry.nodes.as_ref().map_or(Ok(1), |nodes| line.rank_count(nodes))?;
            return self.fabric(entry, nodes, entry.gpus);
        };
        let ranks = line.rank_count(ranks)?;
        let host = self.fabric(entry, 1, entry.gpus)?.gpus().len() as u32;
        if ranks == 0 || ranks > host && !ranks.is_multiple_of(host.max(1)) {
            return Err(line.error(format!("{ranks} ranks do not fill hosts of {host} GPUs")));
        }
        if ranks <= host { self.fabric(entry, 1, Some(ranks)) } else { self.fabric(entry, ranks / host, entry.gpus) }
    }

    fn fabric(&mut self, entry: &ExchangeEntry, nodes: u32, gpus: Option<u32>) -> Result<Arc<Fabric>, MeasuredError> {
        let path = self.folder.join(&entry.fabric);
        let is_file = preset::text(&entry.fabric).is_none() && path.exists();
        let fabric = if is_file { path.display().to_string() } else { entry.fabric.clone() };
        let request =
            FabricRequest { fabric, nodes: Some(nodes), gpus, network: entry.network.clone(), gpu: None, drives: None };
        let key = format!("{request:?}");
        if let Some(known) = self.fabrics.get(&key) {
            return Ok(Arc::clone(known));
        }
        let loaded = fabricast_topologies::load(&request)
            .map_err(|error| MeasuredError::Fabric { place: self.place.clone(), error: error.into() })?;
        let loaded = Arc::new(loaded);
        self.fabrics.insert(key, Arc::clone(&loaded));
        Ok(loaded)
    }
}
