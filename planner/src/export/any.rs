//! Any table, recognised by what is in it.

use fabricast_sim::schedule::Schedule;
use fabricast_sim::schedule::format::{self, Format};

use super::{SavedPlan, TableError, nccl_env, nccl_tuner, open_mpi};
use crate::library::nccl::Settings;

/// A table of one of the formats.
#[derive(Debug)]
pub enum AnyTable {
    /// The CSV of NCCL's example tuner.
    NcclTuner(nccl_tuner::Table),
    /// Settings of NCCL.
    NcclEnv(Box<Settings>),
    /// Rules of Open MPI, in either format.
    OpenMpi(open_mpi::Rules),
    /// A plan, or a table as our own JSON.
    Plan(Box<SavedPlan>),
    /// A schedule of MSCCL, of MSCCL++ or of our own.
    Schedule(Box<Schedule>),
}

impl AnyTable {
    /// Reads a table; `source` is the file's name, for errors.
    ///
    /// # Errors
    /// [`TableError`], with the place, of the format that the text looks like.
    pub fn read(text: &str, source: &str) -> Result<Self, TableError> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let schedule = || {
            let read = format::read(text, source);
            let read = read.map_err(|error| TableError { place: error.place, message: error.message });
            read.map(|schedule| Self::Schedule(Box::new(schedule)))
        };
        match text.trim_start().chars().next() {
            Some('<') => schedule(),
            Some('{') if text.contains("\"collectives\"") => open_mpi::read_json(text, source).map(Self::OpenMpi),
            Some('{') if SavedPlan::is_one(text) => {
                SavedPlan::read(text, source).map(|plan| Self::Plan(Box::new(plan)))
            }
            Some('{') if text.contains("\"fabricast_schedule\"") || Format::of(text) == Format::Mscclpp => schedule(),
            Some('{') => SavedPlan::read(text, source).map(|plan| Self::Plan(Box::new(plan))),
            _ => Self::of_lines(text, source),
        }
    }

    fn of_lines(text: &str, source: &str) -> Result<Self, TableError> {
        let first = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
        let first = first.unwrap_or_default();
        if first.contains("NCCL_") && first.contains('=') {
            return nccl_env::read(text, source).map(|settings| Self::NcclEnv(Box::new(settings)));
        }
        if first.starts_with("rule-file-version-") || first.starts_with(|c: char| c.is_ascii_digit()) {
            return open_mpi::read_classic(text, source).map(Self::OpenMpi);
        }
        nccl_tuner::read(text, source).map(Self::NcclTuner)
    }

    /// Its format, as `--to` calls it.
    #[must_use]
    pub fn format(&self) -> &'static str {
        match self {
            Self::NcclTuner(_) => "nccl-tuner",
            Self::NcclEnv(_) => "nccl-env",
            Self::OpenMpi(_) => "openmpi",
            Self::Plan(_) => "json",
            Self::Schedule(_) => "schedule",
        }
    }
}
