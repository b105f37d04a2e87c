//! Facts that neither a log nor its manifest entry gives; all are reported in one error.

use fabricast_sim::schedule::Collective;
use fabricast_topologies::Place;

use super::entry::Entry;
use crate::measured::{Header, MeasuredError, Table};

/// Missing facts about a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Missing {
    /// Line of the table.
    line: u32,
    fabric: bool,
    /// Candidate collectives from the columns, if the collective is missing.
    collective: Option<Vec<Collective>>,
    /// Ranks that the log has; `None` if it does not state them.
    ranks: Option<u32>,
    entry_ranks: bool,
    runs: Option<u32>,
    /// Model of a GPU in the log.
    gpu: Option<String>,
}

/// Describes separate runs, as in `4 separate runs (nccl-tests built without MPI=1: every process is rank 0 ...)`.
pub(super) fn separate_runs(runs: u32) -> String {
    format!(
        "{runs} separate runs (nccl-tests built without MPI=1: every process is rank 0 of a communicator of its own)"
    )
}

impl Missing {
    /// Missing facts about the tables of a log; `None` if nothing is missing.
    pub fn of(entry: &Entry, tables: &[Table]) -> Option<Self> {
        let fabric = entry.fabric.value.is_empty();
        let open = |table: &&Table| entry.collective.is_none() && is_open(&table.header);
        let table = tables.iter().find(open).or_else(|| tables.first().filter(|_| fabric))?;
        let found = Self { line: table.line, ..Self::of_header(entry, &table.header) };
        (found.fabric || found.collective.is_some()).then_some(found)
    }

    /// Missing facts about one table.
    pub fn of_header(entry: &Entry, header: &Header) -> Self {
        Self {
            line: 0,
            fabric: entry.fabric.value.is_empty(),
            collective: (entry.collective.is_none() && is_open(header)).then(|| header.candidates.clone()),
            ranks: header.ranks,
            entry_ranks: entry.gpus.is_some(),
            runs: header.separate_runs,
            gpu: header.devices.first().map(|device| device.model.clone()).filter(|model| !model.is_empty()),
        }
    }

    /// Creates one error that lists all missing facts; `source` names the log.
    pub fn error(&self, entry: &Entry, source: &str) -> MeasuredError {
        let (mut what, mut help): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
        if self.fabric {
            let gpu = self.gpu.as_ref().map_or_else(String::new, |gpu| format!(" (its GPUs are {gpu})"));
            what.push(format!("which fabric it was measured on{gpu}"));
            help.push("--fabric hgx-h200".to_owned());
        }
        if let Some(candidates) = &self.collective {
            let names: Vec<&str> = candidates.iter().map(|collective| collective.name()).collect();
            let fits =
                if names.is_empty() { String::new() } else { format!(" (its columns fit {})", names.join(" and ")) };
            what.push(format!("which collective it measured{fits}"));
            help.push(format!("--collective {}", names.first().unwrap_or(&"all_reduce")));
        }
        if self.ranks.is_none() && !self.entry_ranks {
            what.push("how many ranks took part".to_owned());
            help.push("--nodes and --gpus, where it was not one host with all of its GPUs".to_owned());
        }
        let runs = self.runs.map_or_else(String::new, |runs| format!("; it holds {}", separate_runs(runs)));
        let listed = match what.as_slice() {
            [.., _, _] => {
                let last = what.pop().unwrap_or_default();
                format!("{}, and {last}", what.join(", "))
            }
            _ => what.concat(),
        };
        let described = entry.place.line > 0;
        let at = Place { line: self.line, ..Place::of_source(source) };
        let message = format!("does not say {listed}{runs}");
        MeasuredError::Invalid {
            message: if described { format!("{at} {message}") } else { message },
            place: if described { entry.place.clone() } else { at },
            help: Some(match described {
                true => "add `collective = \"all_reduce\"` to the measurement, say".to_owned(),
                false => {
                    format!("add {}, or describe the log in a manifest (a file that ends in .toml)", help.join(", "))
                }
            }),
        }
    }
}

/// Returns true if a header has no collective.
fn is_open(header: &Header) -> bool {
    header.collective.is_none()
}
