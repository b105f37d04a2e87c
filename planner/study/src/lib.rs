//! Studies: comparison of machines to buy or rent for a set of jobs.
//!
//! ```text
//! TOML ─read─► Study ─► Cases (candidate × job × setting, by key) ─run─► Run ─► prices ─► rank ─► Answer (results.json)
//!                                               saved runs ─journal─┘
//! ```
//!
//! Every candidate runs every job, or the jobs that name it, as given and under each setting of `[sensitivity]`. A run
//! does not depend on prices. Runs with the same inputs have the same key and execute once. Results are in the order of
//! the file and depend neither on the number of threads nor on which runs came from the journal.

#![warn(missing_docs)]

mod accuracy;
pub mod answer;
mod assumption_notes;
pub mod cases;
mod cost;
mod cost_probability;
mod job_assignment;
pub mod journal;
pub mod key;
pub mod library_comparison;
pub mod link_utilization;
mod measured;
mod payment;
mod prices;
mod rank;
mod read;
mod result_row;
mod run;
pub mod setting;
#[cfg(test)]
mod tests;
mod value_limits;

pub use cost::{Terms, add_costs};
pub use job_assignment::JobAssignment;
pub use measured::{Figure, MeasuredStep};
pub use payment::{MachineSize, Payment, Price, UnitCount};
pub use prices::{Band, PriceListEntry, PriceUnit, read_list, shipped};
pub use rank::{Ranked, nearest_candidate, rank};
pub use read::{Lists, Traces, is_study, read_only_job, read_study, read_study_with};
pub use result_row::inference_row;
pub use run::{Outcome, Run, StudyError, Watch, check, check_outcomes, run};

use std::collections::BTreeMap;

use fabricast_topologies::{Fabric, FabricRequest, Picos, SourceLocation};

use fabricast_perf::step::Efficiency;
use fabricast_workload::job::Job;
use setting::Setting;

/// Example study, printed by `study --template`.
pub const TEMPLATE: &str = include_str!("../../data/study.toml");

/// Currency of studies; keys contain its name, and price lists must use it.
pub const CURRENCY: &str = "USD";

/// A study: machines, jobs, constraints and assumptions.
#[derive(Clone, Debug, PartialEq)]
pub struct Study {
    /// Machines to compare.
    pub candidates: Vec<Candidate>,
    /// Jobs that they run.
    pub jobs: Vec<Job>,
    /// Keys and values of each job as TOML, without its name, weight and candidates.
    pub job_keys: Vec<BTreeMap<String, String>>,
    /// Assignment of jobs to candidates.
    pub assignment: JobAssignment,
    /// Measured steps of some of the jobs.
    pub measured: Vec<MeasuredStep>,
    /// Limits for the candidates.
    pub constraints: Constraints,
    /// Assumptions for costs.
    pub assumptions: Assumptions,
    /// Kernel efficiency given by the study.
    pub efficiency: EfficiencyOverrides,
    /// Changes of the sensitivity analysis.
    pub sensitivities: Vec<Setting>,
}

impl Study {
    /// Returns the efficiency curve of a candidate, on its fabric or a changed version of it.
    #[must_use]
    pub fn curve(&self, candidate: usize, fabric: &Fabric) -> Efficiency {
        self.candidates.get(candidate).map_or(self.efficiency, |candidate| candidate.efficiency).resolve(fabric)
    }

    /// Returns the jobs that run on a candidate, with their indices.
    pub fn jobs_on(&self, candidate: usize) -> impl Iterator<Item = (usize, &Job)> {
        self.jobs.iter().enumerate().filter(move |(job, _)| self.assignment.is_assigned(candidate, *job))
    }
}

/// Kernel efficiency given by a study; the other parameters are those of each candidate's GPUs ([`Efficiency::new`]).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EfficiencyOverrides {
    /// Fraction of the peak that large GEMMs reach, 0 to 1.
    pub matrix: Option<f64>,
    /// Fraction of the 16-bit peak that attention reaches with many keys per row, 0 to 1.
    pub attention: Option<f64>,
    /// Fraction of the memory bandwidth that memory-bound GEMMs and attention reach, 0 to 1.
    pub memory: Option<f64>,
    /// Fraction of the memory bandwidth that elementwise and normalization kernels reach, 0 to 1.
    pub stream: Option<f64>,
    /// Fixed time per kernel: launch, fill and drain.
    pub start: Option<Picos>,
}

impl EfficiencyOverrides {
    /// Fills missing parameters from another value.
    #[must_use]
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            matrix: self.matrix.or(other.matrix),
            attention: self.attention.or(other.attention),
            memory: self.memory.or(other.memory),
            stream: self.stream.or(other.stream),
            start: self.start.or(other.start),
        }
    }

    /// Returns the efficiency curve on a fabric's GPUs.
    #[must_use]
    pub fn resolve(&self, fabric: &Fabric) -> Efficiency {
        let defaults = Efficiency::new(fabric);
        Efficiency {
            matrix: self.matrix.unwrap_or(defaults.matrix),
            attention: self.attention.unwrap_or(defaults.attention),
            memory: self.memory.unwrap_or(defaults.memory),
            stream: self.stream.unwrap_or(defaults.stream),
            start: self.start.unwrap_or(defaults.start),
            spread: defaults.spread,
        }
    }
}

/// Machine of a study.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Name.
    pub name: String,
    /// Fabric.
    pub fabric: FabricRequest,
    /// Network between its hosts in command-line syntax, if the study gives one.
    pub network: Option<String>,
    /// Efficiency parameters given by the candidate or the study.
    pub efficiency: EfficiencyOverrides,
    /// Price.
    pub price: Option<Price>,
    /// Price-list entry of the price.
    pub price_entry: Option<PriceListEntry>,
    /// Source location of the price-list name.
    pub price_location: SourceLocation,
    /// Power of the whole machine, in kW.
    pub power_kw: Option<Band>,
    /// Number of racks.
    pub racks: Option<f64>,
    /// Source location of the candidate.
    pub location: SourceLocation,
    /// Source location of the fabric.
    pub fabric_location: SourceLocation,
    /// Source location of the number of GPUs per host; that of the fabric if the key is absent.
    pub gpus_location: SourceLocation,
}

/// Limits for candidates; `None`: no limit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Constraints {
    /// Largest purchase price.
    pub budget: Option<f64>,
    /// Largest cost per hour, energy included.
    pub cost_per_hour: Option<f64>,
    /// Largest power, in kW.
    pub power_kw: Option<f64>,
    /// Largest number of racks.
    pub racks: Option<f64>,
    /// Source location.
    pub location: SourceLocation,
}

/// Assumptions for costs, which the user is expected to replace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Assumptions {
    /// Depreciation period of a purchase, in years.
    pub years: f64,
    /// Fraction of the time that a machine works, 0 to 1.
    pub utilization: f64,
    /// Price of a kWh.
    pub per_kwh: f64,
}

impl Default for Assumptions {
    fn default() -> Self {
        Self { years: 4.0, utilization: 0.8, per_kwh: 0.1 }
    }
}

impl Assumptions {
    /// Hours of work in the depreciation period.
    #[must_use]
    pub fn hours(&self) -> f64 {
        self.years * 365.25 * 24.0 * self.utilization
    }
}
