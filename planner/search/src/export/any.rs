//! Reader of tables in any supported format; the format is detected from the content.

use fabricast_sim::schedule::Schedule;
use fabricast_sim::schedule::format::{self, CallSizes, Format};

use super::json_text::strip_bom;
use super::nccl_env::SettingsFile;
use super::{SavedPlan, TableError, all_reduce_limit, nccl_env, nccl_tuner, ncclx, open_mpi};

/// Table of one of the supported formats.
#[derive(Debug)]
pub enum AnyTable {
    /// CSV table of NCCL's example tuner plugin.
    NcclTuner(nccl_tuner::Table),
    /// Settings file of NCCL (`NCCL_CONF_FILE`).
    NcclEnv(Box<SettingsFile>),
    /// Largest all_reduce of a serving framework's own kernels.
    AllReduceLimit(all_reduce_limit::LimitFile),
    /// Rules of NCCLX's tuner, CSV or JSON.
    Ncclx(ncclx::Rules),
    /// Rules of Open MPI's `tuned` component, classic or JSON.
    OpenMpi(open_mpi::Rules),
    /// Saved plan, or a table in fabricast's JSON.
    Plan(Box<SavedPlan>),
    /// Schedule of MSCCL, MSCCL++ or fabricast, and the message sizes for which it is intended.
    Schedule(Format, Box<Schedule>, CallSizes),
}

impl AnyTable {
    /// Reads a table; `source` is the file name used in errors.
    ///
    /// # Errors
    /// [`TableError`] of the detected format, with the source location.
    pub fn read(text: &str, source: &str) -> Result<Self, TableError> {
        let text = strip_bom(text);
        let schedule = || {
            let read = format::read_with_sizes(text, source);
            let read = read.map_err(|error| TableError { location: error.location, message: error.message });
            read.map(|(schedule, sizes)| Self::Schedule(Format::detect(text), Box::new(schedule), sizes))
        };
        let content = text.trim_start();
        let error_at_content = |message: &str| {
            let start = text.len() - content.len();
            Err(TableError::new(source, text, start..start + 1, message))
        };
        match content.chars().next() {
            None => error_at_content("the file is empty: expected a table"),
            Some('<') => schedule(),
            Some('{') if all_reduce_limit::is_vllm(text) => {
                all_reduce_limit::read_vllm(text, source).map(Self::AllReduceLimit)
            }
            Some('{') if is_ncclx_json(text) => ncclx::read_json(text, source).map(Self::Ncclx),
            Some('{') if text.contains("\"collectives\"") => open_mpi::read_json(text, source).map(Self::OpenMpi),
            Some('{') if SavedPlan::looks_like_plan(text) => {
                SavedPlan::read(text, source).map(|plan| Self::Plan(Box::new(plan)))
            }
            Some('{') if text.contains("\"fabricast_schedule\"") || Format::detect(text) == Format::Mscclpp => {
                schedule()
            }
            Some('{') => SavedPlan::read(text, source).map(|plan| Self::Plan(Box::new(plan))),
            Some('[' | '"') => error_at_content("JSON that is no table: expected an object"),
            _ => Self::read_lines(text, source),
        }
    }

    fn read_lines(text: &str, source: &str) -> Result<Self, TableError> {
        let first = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
        let first = first.unwrap_or_default();
        if all_reduce_limit::is_sglang(text) {
            return all_reduce_limit::read_sglang(text, source).map(Self::AllReduceLimit);
        }
        if first.contains("NCCL_") && first.contains('=') {
            return nccl_env::read(text, source).map(|settings| Self::NcclEnv(Box::new(settings)));
        }
        if first.starts_with("rule-file-version-") || first.starts_with(|c: char| c.is_ascii_digit()) {
            return open_mpi::read_classic(text, source).map(Self::OpenMpi);
        }
        if is_ncclx_row(first) {
            return ncclx::read_csv(text, source).map(Self::Ncclx);
        }
        nccl_tuner::read_as_example(text, source).map(Self::NcclTuner)
    }

    /// Name of the format, as `--to` spells it.
    #[must_use]
    pub fn format(&self) -> &'static str {
        match self {
            Self::NcclTuner(_) => "nccl-tuner",
            Self::NcclEnv(_) => "nccl-env",
            Self::AllReduceLimit(file) => file.framework.format(),
            Self::Ncclx(_) => "ncclx",
            Self::OpenMpi(_) => "openmpi",
            Self::Plan(_) => "json",
            Self::Schedule(format, ..) => match format {
                Format::Json => "schedule",
                format => format.name(),
            },
        }
    }
}

/// Returns true if the text is a JSON file of rules of NCCLX's tuner.
fn is_ncclx_json(text: &str) -> bool {
    text.contains("\"rules\"") && text.contains("\"filter\"")
}

/// Returns true if a line is a rule of NCCLX's tuner, whose second field is an interval or `*`, or the names of its
/// columns.
fn is_ncclx_row(line: &str) -> bool {
    let mut fields = line.split(',').map(str::trim);
    let (collective, size) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
    size == "bytesPerRank" || collective.starts_with(char::is_alphabetic) && size.starts_with(['[', '(', '*'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_ncclx_are_recognized() {
        for text in [
            include_str!("../../../../tests/data/logs/ncclx-tuner.csv"),
            include_str!("../../../../tests/data/logs/ncclx-tuner.json"),
            "# ours\nallgather,[0,8],ring,ll,-1,*,*\n",
        ] {
            let table = AnyTable::read(text, "table").unwrap();
            assert_eq!(table.format(), "ncclx");
        }
        let error = AnyTable::read("collective,bytesPerRank,algorithm\n", "table").unwrap_err();
        assert!(error.message.contains("names of the columns"), "{error}");
    }

    #[test]
    fn non_tables_are_rejected_with_location() {
        for (text, line, column, expected) in [
            ("", 1, 1, "empty"),
            ("\u{feff}\r\n\n", 3, 1, "empty"),
            ("\n  [1, 2]", 2, 3, "expected an object"),
            ("\"table\"", 1, 1, "expected an object"),
            ("{}", 1, 2, "missing field"),
            ("{\"collectives\": {\"allreduce\": [{\"rules\": [{\"alg\": 9}]}]}}", 1, 51, "no algorithm 9"),
            ("allreduce;0;1;ring", 1, 19, "ends before min_bytes"),
            ("<algo", 1, 1, ""),
        ] {
            let error = AnyTable::read(text, "table").unwrap_err();
            assert_eq!((error.location.line, error.location.column), (line, column), "{text}: {error}");
            assert!(error.message.contains(expected), "{text}: {error}");
        }
    }
}
