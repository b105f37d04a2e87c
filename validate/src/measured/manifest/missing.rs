//! Properties that neither a log nor its manifest entry states; one error reports all of them.

use fabricast_sim::schedule::Collective;
use fabricast_topologies::fabric::Figures;
use fabricast_topologies::{FabricRequest, SourceLocation, gpus, load, preset};

use super::entry::ManifestEntry;
use crate::measured::{Header, MeasuredError, Table};

/// Missing properties of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Missing {
    /// Line of the table's header line in the log, from 1; 0 if not set.
    line: u32,
    fabric: bool,
    /// Candidate collectives from the columns, if the collective is missing.
    collective: Option<Vec<Collective>>,
    /// Number of ranks that the log states; `None` if the log states none.
    ranks: Option<u32>,
    entry_ranks: bool,
    runs: Option<u32>,
    /// Model of the first GPU that the log lists, if any.
    gpu: Option<String>,
}

/// Describes separate runs, as in `4 separate runs (nccl-tests built without MPI=1: every process is rank 0 ...)`.
pub(super) fn separate_runs(runs: u32) -> String {
    format!(
        "{runs} separate runs (nccl-tests built without MPI=1: every process is rank 0 of a communicator of its own)"
    )
}

/// Returns the preset of a host of several GPUs of a model, as a log names it; `None` if there is none.
fn preset_with_gpu(model: &str) -> Option<&'static str> {
    let models = gpus::name::find(model);
    preset::names().find(|name| {
        let Ok(fabric) = load(&FabricRequest::new(name)) else { return false };
        let is_model = |figures: &Figures| match figures {
            Figures::Gpu(figures) => models.iter().any(|model| figures.model.as_deref() == Some(&*model.name)),
            _ => false,
        };
        fabric.gpus().len() > 1 && fabric.gpus().first().is_some_and(|&gpu| is_model(&fabric.node(gpu).figures))
    })
}

impl Missing {
    /// Missing properties of the tables of a log; `None` if nothing is missing.
    pub fn in_tables(entry: &ManifestEntry, tables: &[Table]) -> Option<Self> {
        let fabric = entry.fabric.value.is_empty();
        let open = |table: &&Table| entry.collective.is_none() && has_no_collective(&table.header);
        let table = tables.iter().find(open).or_else(|| tables.first().filter(|_| fabric))?;
        let missing = Self { line: table.line, ..Self::in_header(entry, &table.header) };
        (missing.fabric || missing.collective.is_some()).then_some(missing)
    }

    /// Missing properties of one table, without its line.
    pub fn in_header(entry: &ManifestEntry, header: &Header) -> Self {
        Self {
            line: 0,
            fabric: entry.fabric.value.is_empty(),
            collective: (entry.collective.is_none() && has_no_collective(header)).then(|| header.candidates.clone()),
            ranks: header.ranks,
            entry_ranks: entry.gpus.is_some(),
            runs: header.separate_runs,
            gpu: header.devices.first().map(|device| device.model.clone()).filter(|model| !model.is_empty()),
        }
    }

    /// Creates one error that lists all missing properties; `source` names the log.
    pub fn error(&self, entry: &ManifestEntry, source: &str) -> MeasuredError {
        let (mut properties, mut help): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
        if self.fabric {
            let gpu = self.gpu.as_ref().map_or_else(String::new, |gpu| format!(" (its GPUs are {gpu})"));
            properties.push(format!("which fabric it was measured on{gpu}"));
            let preset = self.gpu.as_deref().and_then(preset_with_gpu).unwrap_or("hgx-h200");
            help.push(format!("--fabric {preset}"));
        }
        if let Some(candidates) = &self.collective {
            let names: Vec<&str> = candidates.iter().map(|collective| collective.name()).collect();
            let fits =
                if names.is_empty() { String::new() } else { format!(" (its columns fit {})", names.join(" and ")) };
            properties.push(format!("which collective it measured{fits}"));
            help.push(format!("--collective {}", names.first().unwrap_or(&"all_reduce")));
        }
        if self.ranks.is_none() && !self.entry_ranks {
            properties.push("how many ranks took part".to_owned());
            help.push("--nodes and --gpus, unless it ran on one host with all of its GPUs".to_owned());
        }
        let runs = self.runs.map_or_else(String::new, |runs| format!("; it holds {}", separate_runs(runs)));
        let listed = match properties.as_slice() {
            [.., _, _] => {
                let last = properties.pop().unwrap_or_default();
                format!("{}, and {last}", properties.join(", "))
            }
            _ => properties.concat(),
        };
        let described = entry.place.line > 0;
        let location = SourceLocation { line: self.line, ..SourceLocation::from_source(source) };
        let message = format!("does not say {listed}{runs}");
        MeasuredError::Invalid {
            message: if described { format!("{location} {message}") } else { message },
            place: if described { entry.place.clone() } else { location },
            help: Some(match described {
                true => "add `collective = \"all_reduce\"` to the measurement, for example".to_owned(),
                false => {
                    format!("add {}, or describe the log in a manifest (a file that ends in .toml)", help.join(", "))
                }
            }),
        }
    }
}

/// Returns true if a header has no collective.
fn has_no_collective(header: &Header) -> bool {
    header.collective.is_none()
}
