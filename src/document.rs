//! Kinds of JSON documents. Each begins with the key `format`: a name and a number, which rises with every incompatible
//! change.

use serde::Serialize;

/// Kind of a JSON document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Document {
    /// Time of calls by cost.
    Breakdown,
    /// Fit of an efficiency curve.
    EfficiencyFit,
    /// Fit of a profile.
    Calibration,
    /// Parameters of a profile from benchmarks.
    BenchmarkParameters,
    /// Predictions and measurements.
    Comparison,
    /// Presets.
    Presets,
    /// Problems of a fabric.
    FabricCheck,
    /// Flows and their rates.
    Flows,
    /// Diagnosis of a machine.
    Diagnosis,
    /// Devices, links and libraries of a machine.
    Probe,
    /// Runs on GPUs.
    Run,
    /// Every combination, run on GPUs.
    Pairs,
    /// Times with and without a table.
    AbTest,
    /// Concurrent calls.
    ConcurrentCalls,
    /// Replay of a trace.
    Replay,
    /// GPUs, models and prices that ship.
    List,
    /// Strategy of each call.
    Plan,
    /// Differences of two plans.
    PlanDiff,
    /// Strategies of a job's calls.
    JobPlan,
    /// Verification of a schedule.
    Verification,
    /// Simulation of a call.
    Simulation,
    /// Departures of a plan from a library.
    Explanation,
    /// Times of a table's choices.
    TableCheck,
}

impl Document {
    /// Name and number of the format.
    pub fn format(self) -> &'static str {
        match self {
            Self::Breakdown => "fabricast-breakdown/2",
            Self::EfficiencyFit => "fabricast-efficiency-fit/2",
            Self::Calibration => "fabricast-calibration/2",
            Self::BenchmarkParameters => "fabricast-benchmark-parameters/2",
            Self::Comparison => "fabricast-comparison/2",
            Self::Presets => "fabricast-presets/2",
            Self::FabricCheck => "fabricast-fabric-check/2",
            Self::Flows => "fabricast-flows/2",
            Self::Diagnosis => "fabricast-diagnosis/2",
            Self::Probe => "fabricast-probe/2",
            Self::Run => "fabricast-run/2",
            Self::Pairs => "fabricast-pairs/2",
            Self::AbTest => "fabricast-ab-test/2",
            Self::ConcurrentCalls => "fabricast-concurrent-calls/2",
            Self::Replay => "fabricast-replay/2",
            Self::List => "fabricast-list/2",
            Self::Plan => "fabricast-plan/2",
            Self::PlanDiff => "fabricast-plan-diff/2",
            Self::JobPlan => "fabricast-job-plan/2",
            Self::Verification => "fabricast-verification/2",
            Self::Simulation => "fabricast-simulation/2",
            Self::Explanation => "fabricast-explanation/2",
            Self::TableCheck => "fabricast-table-check/2",
        }
    }

    /// Returns a document with this content; its keys follow `format`.
    pub fn with<T: Serialize>(self, content: &T) -> Tagged<'_, T> {
        Tagged { format: self.format(), content }
    }

    /// Returns a document whose content is a list, as `rows`.
    pub fn with_rows<T: Serialize>(self, rows: &[T]) -> Rows<'_, T> {
        Rows { format: self.format(), rows }
    }
}

/// Document of an object's keys.
#[derive(Debug, Serialize)]
pub struct Tagged<'a, T> {
    format: &'static str,
    #[serde(flatten)]
    content: &'a T,
}

/// Document of a list.
#[derive(Debug, Serialize)]
pub struct Rows<'a, T> {
    format: &'static str,
    rows: &'a [T],
}
