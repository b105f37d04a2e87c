//! Studies: comparison of machines to buy or rent for a set of jobs.
//!
//! ```text
//! TOML ─read─► Study ─► Cases (candidate × job × setting, by key) ─run─► Run ─► prices ─► rank ─► Answer (results.json)
//!                                               saved runs ─journal─┘
//! ```
//!
//! Every candidate runs every job, or the jobs that name it, without changes and under each setting of `[sensitivity]`.
//! A run does not depend on prices. Runs with the same inputs have the same key and are executed once. Results are in
//! the order of the file and depend neither on the number of threads nor on which runs came from the journal.
//!
//! # Example
//! Two candidates that differ only in price run one job. It is executed once, and the cheaper candidate ranks first.
//!
//! ```
//! use std::sync::atomic::{AtomicBool, AtomicUsize};
//!
//! use fabricast_study::answer::build_answer;
//! use fabricast_study::cases::Cases;
//! use fabricast_study::{Run, Watch, read_study, run};
//! use fabricast_topologies::load;
//! use rustc_hash::FxHashMap;
//!
//! let text = r#"
//! candidate = [
//!     { name = "on demand", fabric = "hgx-h100", gpus = 2, price_per_hour_usd = 6 },
//!     { name = "reserved", fabric = "hgx-h100", gpus = 2, price_per_hour_usd = 4 },
//! ]
//! [[job]]
//! name = "small"
//! model = { layers = 2, hidden = 2048, heads = 8, vocab = 512, seq = 512 }
//! global_batch = 8
//! parallel = { tp = 2 }
//! "#;
//! let study = read_study(text, "study.toml")?;
//! let fabrics = study.candidates.iter().map(|one| load(&one.fabric)).collect::<Result<Vec<_>, _>>()?;
//! let cases = Cases::new(&study, &fabrics, &load)?;
//! let (done, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
//! let watch = Watch { ended: &|_: &Run| (), done: &done, stop: &stop };
//! let runs = run(&study, &fabrics, &cases, &cases.runs, &load, &watch)?;
//! assert_eq!(runs.len(), 1);
//!
//! let outcomes: FxHashMap<_, _> = runs.into_iter().map(|run| (run.key, run.outcome)).collect();
//! let answer = build_answer(&study, &fabrics, &cases, &outcomes).ok_or("a run is missing")?;
//! assert_eq!(answer.ranking[0].candidate, "reserved");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]

mod accuracy;
pub mod answer;
mod assumption_notes;
pub mod cases;
mod cost;
mod cost_probability;
mod decision;
mod error_figures;
mod goodput;
mod job_assignment;
mod job_class;
mod job_limits;
pub mod journal;
pub mod key;
pub mod library_comparison;
pub mod link_utilization;
mod measured;
mod model_error;
mod payment;
mod predict;
pub mod prediction;
mod prices;
mod quantities;
mod rank;
mod read;
mod reliability;
mod run;
pub mod setting;
mod statements;
mod step_interval;
#[cfg(test)]
mod tests;
mod value_limits;
mod yearly_costs;

pub use accuracy::join_names;
pub use cost::{CostedPrediction, RunCosts, Terms};
pub use goodput::Goodput;
pub use job_assignment::JobAssignment;
pub use job_limits::JobLimits;
pub use measured::{Figure, MeasuredStep};
pub use payment::{MachineSize, Payment, Price, UnitCount};
pub use prices::{Band, PriceListEntry, PriceUnit, read_list, shipped};
pub use rank::{JobResult, RankedCandidate, nearest_candidate, rank};
pub use read::{Lists, Traces, is_study, read_only_job, read_study, read_study_with};
pub use reliability::{Estimate, Reliability};
pub use run::{Outcome, Run, StudyError, Watch, check, check_outcomes, run};
pub use step_interval::StepInterval;
pub use yearly_costs::YearlyCosts;

use std::collections::BTreeMap;

use fabricast_topologies::{Fabric, FabricRequest, Picos, SourceLocation};

use fabricast_perf::step::Efficiency;
use fabricast_workload::job::Job;
use setting::Setting;

/// Text of the example study, printed by `study --template`.
pub const TEMPLATE: &str = include_str!("../../data/study.toml");

/// Currency of all prices of a study. Keys contain its name, and price lists must use it.
pub const CURRENCY: &str = "USD";

/// Study: machines, jobs, constraints and assumptions.
#[derive(Clone, Debug, PartialEq)]
pub struct Study {
    /// Machines to compare.
    pub candidates: Vec<Candidate>,
    /// Jobs to run on the machines.
    pub jobs: Vec<Job>,
    /// Keys and values of each job as TOML, indexed by job, without its name, weight and candidates.
    pub job_keys: Vec<BTreeMap<String, String>>,
    /// Assignment of jobs to the candidates on which they run.
    pub assignment: JobAssignment,
    /// Measured figures of some of the jobs.
    pub measured: Vec<MeasuredStep>,
    /// Limits on price, cost, power and racks of candidates.
    pub constraints: Constraints,
    /// Assumptions for costs: depreciation, utilization and price of energy.
    pub assumptions: Assumptions,
    /// Parameters of kernel efficiency that the study gives for all candidates.
    pub efficiency: EfficiencyOverrides,
    /// Settings of the sensitivity analysis.
    pub sensitivities: Vec<Setting>,
}

impl Study {
    /// Returns the efficiency curve of the candidate with this index, on its fabric or a changed version of it.
    #[must_use]
    pub fn curve(&self, candidate: usize, fabric: &Fabric) -> Efficiency {
        self.candidates.get(candidate).map_or(self.efficiency, |candidate| candidate.efficiency).resolve(fabric)
    }

    /// Returns the jobs that run on the candidate with this index, each with its own index.
    pub fn jobs_on(&self, candidate: usize) -> impl Iterator<Item = (usize, &Job)> {
        self.jobs.iter().enumerate().filter(move |(job, _)| self.assignment.is_assigned(candidate, *job))
    }
}

/// Parameters of kernel efficiency that a study states. Missing ones are those of each candidate's GPUs
/// ([`Efficiency::new`]).
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
    /// Fixed time per kernel, for launch, fill and drain of the pipeline.
    pub start: Option<Picos>,
}

impl EfficiencyOverrides {
    /// Returns these parameters, with missing ones taken from `other`.
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

    /// Returns the efficiency curve of a fabric's GPUs with these parameters in place of its own.
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

/// Machine of a study, with its price and power.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Name of the candidate.
    pub name: String,
    /// Name in the study, without a number of nodes, if the study lists several numbers; `None` otherwise.
    pub machine: Option<String>,
    /// Request by which the fabric is loaded.
    pub fabric: FabricRequest,
    /// Network between the hosts in command-line syntax; `None` if the study gives none.
    pub network: Option<String>,
    /// Efficiency parameters that the candidate states, or else the study.
    pub efficiency: EfficiencyOverrides,
    /// Price of the machine; `None` if the study has no prices.
    pub price: Option<Price>,
    /// Price-list entry of the price; `None` if the price is given directly.
    pub price_entry: Option<PriceListEntry>,
    /// Source location of the key `price`, or of the candidate if the key is absent.
    pub price_location: SourceLocation,
    /// Power of the whole machine, in kW; `None` if it is not stated.
    pub power_kw: Option<Band>,
    /// Number of racks of the machine; `None` if it is not stated.
    pub racks: Option<f64>,
    /// Failures and recovery that the candidate states, or else the study; `None` if neither does.
    pub reliability: Option<Reliability>,
    /// Source location of the candidate.
    pub location: SourceLocation,
    /// Source location of the key `fabric`.
    pub fabric_location: SourceLocation,
    /// Source location of the number of GPUs per host, or of the fabric if the key is absent.
    pub gpus_location: SourceLocation,
}

/// Limits on candidates. Candidates that violate a limit are ranked after the others. `None` means no limit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Constraints {
    /// Maximum purchase price, in the study's currency.
    pub budget: Option<f64>,
    /// Maximum cost per hour in the study's currency, energy included.
    pub cost_per_hour: Option<f64>,
    /// Maximum power of a whole machine, in kW.
    pub power_kw: Option<f64>,
    /// Maximum number of racks of a machine.
    pub racks: Option<f64>,
    /// Limits on the result of each job.
    pub jobs: JobLimits,
    /// Source location of the table `[constraints]`.
    pub location: SourceLocation,
}

/// Assumptions for costs, which the user is expected to replace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Assumptions {
    /// Depreciation period of a purchase, in years.
    pub years: f64,
    /// Fraction of the time that a machine is in use, 0 to 1.
    pub utilization: f64,
    /// Price of a kWh of energy, in the study's currency.
    pub per_kwh: f64,
    /// Power usage effectiveness of the data centre: its energy divided by that of the machine, at least 1.
    pub pue: f64,
    /// Price of hosting per kW of the machine's power and month, in the study's currency.
    pub hosting_per_kw_month: f64,
    /// Cost of staff per machine and year, in the study's currency.
    pub staff_per_year: f64,
    /// Support contracts and spare parts per year, as a fraction of the purchase price.
    pub maintenance: f64,
    /// Value of a purchase after the depreciation period, as a fraction of its price.
    pub residual: f64,
}

impl Default for Assumptions {
    fn default() -> Self {
        Self {
            years: 4.0,
            utilization: 0.8,
            per_kwh: 0.1,
            pue: 1.0,
            hosting_per_kw_month: 0.0,
            staff_per_year: 0.0,
            maintenance: 0.0,
            residual: 0.0,
        }
    }
}

impl Assumptions {
    /// Returns the number of hours of use in the depreciation period.
    #[must_use]
    pub fn hours(&self) -> f64 {
        self.years * yearly_costs::HOURS_PER_YEAR * self.utilization
    }
}
