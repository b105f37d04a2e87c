//! Kinds of JSON documents. Each begins with the key `format`: a name and a number, which rises with every incompatible
//! change.

use clap::ValueEnum;
use clap::builder::PossibleValue;
use fabricast_topologies::variants::variants;
use schemars::JsonSchema;
use serde::Serialize;
use strum::{EnumCount, VariantArray};

/// Kind of a JSON document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumCount, VariantArray)]
pub enum Document {
    /// List of the fabric presets.
    Presets,
    /// Problems of a fabric.
    FabricCheck,
    /// Simulation of a call.
    Simulation,
    /// Simulations of a call at several sizes or with several strategies.
    Simulations,
    /// Simulation of concurrent calls.
    ConcurrentCalls,
    /// Dispatch or combine of tokens of experts.
    Exchange,
    /// Completion times of simulated flows.
    Flows,
    /// Times of calls, broken down by cost parameter of the profile.
    Breakdown,
    /// Simulation of a job.
    Replay,
    /// Verification of a schedule.
    Verification,
    /// Check of a schedule's certificate.
    Certificate,
    /// Fastest strategy of each call.
    Plan,
    /// Rows in which two plans differ.
    PlanDiff,
    /// Fastest strategies of a job's calls.
    JobPlan,
    /// Rows in which a plan differs from the library's default.
    Explanation,
    /// Predicted times of a table's selections.
    TableCheck,
    /// Predicted compared with measured times.
    Comparison,
    /// Predicted compared with measured dispatches and combines.
    ExchangeComparison,
    /// Results of a study, which contain the key `format` already.
    Study,
    /// Fit of a profile to measurements.
    Calibration,
    /// Fit of an efficiency curve of kernels.
    EfficiencyFit,
    /// Parameters of a profile that benchmarks determine.
    BenchmarkParameters,
    /// Devices, links and libraries of a machine.
    Probe,
    /// Diagnosis of the GPU links of a machine.
    Diagnosis,
    /// Measured times and result checks of runs on GPUs.
    Run,
    /// Result checks on GPUs that cover every pair of parameter values.
    Pairs,
    /// Times of NCCL with and without a tuner table.
    AbTest,
    /// List of the shipped GPU models.
    List,
    /// List of the language models that jobs can name.
    Models,
    /// List of the prices that studies can name.
    Prices,
    /// List of the JSON documents that have a schema.
    Schemas,
}

impl Document {
    /// All kinds of documents, in the order of their commands.
    pub const ALL: [Self; Self::COUNT] = variants();

    /// Value of the key `format`: name and number, such as `fabricast-plan/2`.
    pub fn format(self) -> &'static str {
        match self {
            Self::Breakdown => "fabricast-breakdown/2",
            Self::EfficiencyFit => "fabricast-efficiency-fit/2",
            Self::Calibration => "fabricast-calibration/2",
            Self::BenchmarkParameters => "fabricast-benchmark-parameters/2",
            Self::Comparison => "fabricast-comparison/2",
            Self::Presets => "fabricast-presets/2",
            Self::FabricCheck => "fabricast-fabric-check/2",
            Self::Exchange => "fabricast-exchange/1",
            Self::ExchangeComparison => "fabricast-exchange-comparison/1",
            Self::Flows => "fabricast-flows/2",
            Self::Diagnosis => "fabricast-diagnosis/2",
            Self::Probe => "fabricast-probe/2",
            Self::Run => "fabricast-run/2",
            Self::Pairs => "fabricast-pairs/2",
            Self::AbTest => "fabricast-ab-test/2",
            Self::ConcurrentCalls => "fabricast-concurrent-calls/2",
            Self::Replay => "fabricast-replay/2",
            Self::List => "fabricast-list/2",
            Self::Models => "fabricast-models/1",
            Self::Prices => "fabricast-prices/1",
            Self::Plan => "fabricast-plan/2",
            Self::PlanDiff => "fabricast-plan-diff/2",
            Self::JobPlan => "fabricast-job-plan/2",
            Self::Verification => "fabricast-verification/2",
            Self::Certificate => "fabricast-certificate/1",
            Self::Simulation => "fabricast-simulation/2",
            Self::Simulations => "fabricast-simulations/1",
            Self::Explanation => "fabricast-explanation/2",
            Self::TableCheck => "fabricast-table-check/2",
            Self::Study => fabricast_study::answer::FORMAT,
            Self::Schemas => "fabricast-schemas/1",
        }
    }

    /// Name of the kind of document: the format without `fabricast-` and without its number.
    pub fn name(self) -> &'static str {
        let format = self.format();
        let name = format.strip_prefix("fabricast-").unwrap_or(format);
        name.split_once('/').map_or(name, |(name, _)| name)
    }

    /// Command that writes the document with `--format json`.
    pub fn command(self) -> &'static str {
        match self {
            Self::Breakdown => "simulate --breakdown",
            Self::EfficiencyFit => "calibrate (a study)",
            Self::Calibration => "calibrate (manifests)",
            Self::BenchmarkParameters => "calibrate (benchmarks)",
            Self::Comparison => "compare",
            Self::Presets => "fabric list, list presets",
            Self::FabricCheck => "fabric check",
            Self::Exchange => "simulate --collective dispatch, combine",
            Self::ExchangeComparison => "compare (exchanges)",
            Self::Flows => "simulate --flows",
            Self::Diagnosis => "gpu doctor",
            Self::Probe => "gpu probe",
            Self::Run => "gpu run",
            Self::Pairs => "gpu run --pairs",
            Self::AbTest => "gpu prove",
            Self::ConcurrentCalls => "simulate --group, --call",
            Self::Replay => "simulate --job",
            Self::List => "list gpus",
            Self::Models => "list models",
            Self::Prices => "list prices",
            Self::Plan => "plan",
            Self::PlanDiff => "plan diff",
            Self::JobPlan => "plan --job",
            Self::Verification => "schedule verify",
            Self::Certificate => "schedule certify",
            Self::Simulation => "simulate",
            Self::Simulations => "simulate (lists)",
            Self::Explanation => "table --explain",
            Self::TableCheck => "table --check",
            Self::Study => "study",
            Self::Schemas => "schema",
        }
    }

    /// Returns the kind of document that a value of the key `format` names.
    pub fn from_format(format: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|document| document.format() == format)
    }

    /// Keys of the document's main list, whose items are the rows of its table; a document contains exactly one of
    /// these keys. Empty if the whole document is a single row.
    pub fn row_lists(self) -> &'static [&'static str] {
        match self {
            Self::Exchange | Self::Simulation | Self::Verification | Self::Certificate => &[],
            Self::Breakdown
            | Self::Simulations
            | Self::Comparison
            | Self::ExchangeComparison
            | Self::Presets
            | Self::FabricCheck
            | Self::Run
            | Self::Pairs
            | Self::AbTest
            | Self::List
            | Self::Models
            | Self::Prices
            | Self::Plan
            | Self::PlanDiff
            | Self::JobPlan
            | Self::TableCheck
            | Self::Schemas => &["rows"],
            Self::Calibration | Self::BenchmarkParameters => &["parameters"],
            Self::EfficiencyFit => &["steps"],
            Self::ConcurrentCalls => &["calls", "groups"],
            Self::Explanation => &["departures"],
            Self::Flows => &["flows"],
            Self::Replay => &["events"],
            Self::Study => &["results"],
            Self::Probe => &["devices"],
            Self::Diagnosis => &["pairs"],
        }
    }

    /// Returns a document with this content, whose keys follow `format`.
    pub fn with<T: Serialize + JsonSchema>(self, content: &T) -> TaggedDocument<'_, T> {
        TaggedDocument { format: self.format(), content }
    }

    /// Returns a document whose content is a list under the key `rows`.
    pub fn with_rows<T: Serialize + JsonSchema>(self, rows: &[T]) -> Rows<'_, T> {
        Rows { format: self.format(), rows }
    }
}

/// Names of documents on the command line: the format name without the prefix `fabricast-` and without the number.
impl ValueEnum for Document {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()).help(self.command()))
    }
}

/// Document whose keys are those of an object.
#[derive(Debug, Serialize, JsonSchema)]
pub struct TaggedDocument<'a, T> {
    /// Name and number of the format.
    format: &'static str,
    #[serde(flatten)]
    content: &'a T,
}

/// Document with a list under the key `rows`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Rows<'a, T> {
    /// Name and number of the format.
    format: &'static str,
    /// Items of the list.
    rows: &'a [T],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_documents_are_listed_by_unique_names() {
        // The count is checked against the last variant, `Schemas`.
        assert_eq!(Document::ALL.len(), Document::Schemas as usize + 1);
        let names: std::collections::BTreeSet<&str> = Document::ALL.into_iter().map(Document::name).collect();
        assert_eq!(names.len(), Document::ALL.len());
        for document in Document::ALL {
            let name = document.name();
            assert_eq!(Document::from_str(name, false), Ok(document));
            assert_eq!(Document::from_format(document.format()), Some(document));
            let schema = document.schema().to_value();
            let is_list = |key: &&str| schema["properties"][*key]["items"].is_object();
            assert!(document.row_lists().iter().all(is_list), "{name}");
            assert!(document.format().starts_with(&format!("fabricast-{name}/")), "{name}");
        }
    }
}
