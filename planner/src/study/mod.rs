//! Studies: which of several machines to buy or rent for these jobs.
//!
//! ```text
//! TOML ─read─► Study ─(fabrics, loaded by the caller)─► run ─► results ─► rank ─► Answer (results.json)
//! ```
//!
//! Every candidate runs every job. Results stand in the order of the file and do not depend on threads.

pub mod answer;
mod prices;
mod rank;
mod read;
mod run;
mod served;

pub use prices::{Band, Listed, PriceUnit, shipped};
pub use rank::{Ranked, rank};
pub use read::read_study;
pub use run::{JobResult, StudyError, run};
pub use served::served;

use fabricast_topologies::{FabricRequest, Place};

use crate::job::Job;
use crate::step::Efficiency;

/// A study that ships as an example, and as what `study --template` writes.
pub const TEMPLATE: &str = include_str!("../../data/study.toml");

/// What to compare, for what.
#[derive(Clone, Debug, PartialEq)]
pub struct Study {
    /// Machines.
    pub candidates: Vec<Candidate>,
    /// What they are for.
    pub jobs: Vec<Job>,
    /// What they must keep within.
    pub constraints: Constraints,
    /// What costs are worked out with.
    pub assumptions: Assumptions,
    /// How long kernels take.
    pub efficiency: Efficiency,
}

/// A machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Its name.
    pub name: String,
    /// Its fabric.
    pub fabric: FabricRequest,
    /// The network between its hosts as the command line has it, where it is given.
    pub network: Option<String>,
    /// What is paid for it.
    pub price: Option<Price>,
    /// The entry of a price list that the price comes from.
    pub listed: Option<Listed>,
    /// Power of all of it, in kW.
    pub power_kw: Option<f64>,
    /// Racks that it fills.
    pub racks: Option<f64>,
    /// Where it stands.
    pub place: Place,
    /// Where its fabric stands.
    pub fabric_place: Place,
}

/// What is paid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Price {
    /// Once, for all of it.
    Bought(Band),
    /// By the hour, for all of it.
    Hired(Band),
    /// By the hour, for each GPU.
    HiredByGpu(Band),
}

/// What a candidate must keep within; absent: anything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Constraints {
    /// The most that may be paid at once.
    pub budget: Option<f64>,
    /// The most that may be paid by the hour, energy included.
    pub hourly: Option<f64>,
    /// The most power, kW.
    pub power_kw: Option<f64>,
    /// The most racks.
    pub racks: Option<f64>,
    /// Where they stand.
    pub place: Place,
}

/// What costs are worked out with: nobody's figures but the user's to replace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Assumptions {
    /// Years over which a purchase is written off.
    pub years: f64,
    /// The part of the time that it works, over 0 to 1.
    pub utilization: f64,
    /// A kWh.
    pub per_kwh: f64,
}

impl Default for Assumptions {
    fn default() -> Self {
        Self { years: 4.0, utilization: 0.8, per_kwh: 0.1 }
    }
}

impl Assumptions {
    /// Hours of work over which a purchase is written off.
    #[must_use]
    pub fn hours(&self) -> f64 {
        self.years * 365.25 * 24.0 * self.utilization
    }
}

impl Candidate {
    /// What an hour costs: the price's share and energy; `None` without a price.
    #[must_use]
    pub fn hourly(&self, gpus: usize, assumptions: &Assumptions) -> Option<Band> {
        let energy = self.power_kw.unwrap_or(0.0) * assumptions.per_kwh;
        Some(match self.price? {
            Price::Bought(band) => band.times(1.0 / assumptions.hours()).plus(energy),
            // Who hires pays no energy.
            Price::Hired(band) => band,
            Price::HiredByGpu(band) => band.times(gpus as f64),
        })
    }

    /// Why it is outside of constraints; nothing where it is within.
    #[must_use]
    pub fn beyond(&self, hourly: Option<Band>, constraints: &Constraints) -> Vec<String> {
        let mut why = Vec::new();
        let mut check = |what: &str, value: Option<f64>, most: Option<f64>| match (value, most) {
            (Some(value), Some(most)) if value > most => why.push(format!("{what} {value:.0} of {most:.0}")),
            (None, Some(_)) => why.push(format!("{what} not stated")),
            _ => {}
        };
        let once = match self.price {
            Some(Price::Bought(band)) => Some(band.middle()),
            Some(Price::Hired(_) | Price::HiredByGpu(_)) => Some(0.0),
            None => None,
        };
        check("budget", once, constraints.budget);
        check("cost per hour", hourly.map(Band::middle), constraints.hourly);
        check("power kW", self.power_kw, constraints.power_kw);
        check("racks", self.racks, constraints.racks);
        why
    }
}
