//! Costs of runs: price per hour of use, and energy. Runs do not depend on costs, so a change of prices needs no
//! further runs.

use super::goodput::Goodput;
use super::prediction::Prediction;
use super::quantities::seconds;
use super::{Assumptions, Band, Candidate, Constraints, MachineSize, Payment};
use fabricast_workload::job::{Job, format_number};

/// Parameters of a cost calculation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// Cost assumptions of the study or of a setting.
    pub assumptions: Assumptions,
    /// Factor on the prices of all candidates; 1 for unchanged prices.
    pub factor: f64,
}

impl Terms {
    /// Creates the terms with unchanged prices.
    #[must_use]
    pub fn new(assumptions: Assumptions) -> Self {
        Self { assumptions, factor: 1.0 }
    }
}

impl Candidate {
    /// Returns the cost per hour of use: for a purchase depreciation, energy with cooling, and what is paid in all hours
    /// ([`YearlyCosts`](super::YearlyCosts)); `None` without a price. `size`: size of the machine that is paid for.
    #[must_use]
    pub fn hourly(&self, size: MachineSize, terms: &Terms) -> Option<Band> {
        let Terms { assumptions, factor } = terms;
        let power_kw = self.power_kw.unwrap_or_default();
        let energy = power_kw.scaled_by(assumptions.per_kwh).scaled_by(assumptions.pue);
        let price = self.price?;
        let total = price.total(size).scaled_by(*factor);
        Some(match price.payment {
            Payment::Bought => {
                let depreciation = total.scaled_by((1.0 - assumptions.residual) / assumptions.hours());
                depreciation.plus(energy).plus(assumptions.fixed_per_hour(total, power_kw))
            }
            // The price of a rented machine includes energy.
            Payment::PerHour => total,
        })
    }

    /// Returns the value and the limit of each constraint that is set. The value is `None` if the candidate does not
    /// state it.
    fn constraint_uses(&self, size: MachineSize, terms: &Terms, constraints: &Constraints) -> Vec<ConstraintUse> {
        let purchase_price = self.price.map(|price| match price.payment {
            Payment::Bought => price.total(size).middle() * terms.factor,
            Payment::PerHour => 0.0,
        });
        // Rented machines are at another site and do not count against the limits on power and racks, unless the
        // candidate states these values.
        let rented = self.price.filter(|price| price.payment == Payment::PerHour).map(|_| 0.0);
        [
            ("budget", "a price", purchase_price, constraints.budget),
            ("cost per hour", "a price", self.hourly(size, terms).map(Band::middle), constraints.cost_per_hour),
            ("power kW", "power_kw", self.power_kw.map(Band::middle).or(rented), constraints.power_kw),
            ("racks", "racks", self.racks.or(rented), constraints.racks),
        ]
        .into_iter()
        .filter_map(|(name, key, value, limit)| Some(ConstraintUse { name, key, value, limit: limit? }))
        .collect()
    }

    /// Returns the keys that the constraints need and that the candidate does not state.
    #[must_use]
    pub fn missing_keys(&self, size: MachineSize, terms: &Terms, constraints: &Constraints) -> Vec<&'static str> {
        let demands = self.constraint_uses(size, terms, constraints);
        demands.iter().filter(|constraint| constraint.value.is_none()).map(|constraint| constraint.key).collect()
    }

    /// Returns a description of each violated constraint; empty if there are none.
    #[must_use]
    pub fn violations(&self, size: MachineSize, terms: &Terms, constraints: &Constraints) -> Vec<String> {
        let demands = self.constraint_uses(size, terms, constraints);
        demands.iter().filter(|constraint| constraint.excess() > 1.0).map(ConstraintUse::to_string).collect()
    }

    /// Returns the largest ratio of a value to its limit. It is at most 1 if no constraint is violated, and infinite if
    /// a value is not stated.
    #[must_use]
    pub fn excess(&self, size: MachineSize, terms: &Terms, constraints: &Constraints) -> f64 {
        self.constraint_uses(size, terms, constraints).iter().map(ConstraintUse::excess).fold(0.0, f64::max)
    }
}

struct ConstraintUse {
    name: &'static str,
    /// Key of the study in which the candidate states the value.
    key: &'static str,
    value: Option<f64>,
    limit: f64,
}

impl ConstraintUse {
    fn excess(&self) -> f64 {
        self.value.map_or(f64::INFINITY, |value| value / self.limit)
    }
}

impl std::fmt::Display for ConstraintUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.value {
            Some(value) => {
                let (shown, limit) = (format_rounded(value, 6), format_rounded(self.limit, 6));
                // If the value and the limit are equal after rounding, the value is written in full.
                let value = if shown == limit { format_number(value) } else { shown };
                write!(f, "{} {value} of {}", self.name, if value == limit { format_number(self.limit) } else { limit })
            }
            None => write!(f, "{} not stated: expected {}", self.name, self.key),
        }
    }
}

/// Formats a positive number with a number of significant digits.
pub(super) fn format_rounded(number: f64, digits: u8) -> String {
    let decimals = (f64::from(digits) - 1.0 - number.log10().floor()).clamp(0.0, 12.0) as usize;
    format!("{number:.decimals$}").parse().map_or_else(|_| format_number(number), format_number)
}

/// Smallest goodput by which costs and times are divided: a run with less makes no progress.
const MIN_GOODPUT: f64 = 1e-6;

/// Costs and energy of a job on a candidate. Costs are `None` without a price, energy without the power.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RunCosts {
    /// Cost per hour.
    pub per_hour: Option<Band>,
    /// Cost per step, with the price in the middle of its band.
    pub per_step: Option<f64>,
    /// Cost per million of the tokens that the prediction counts.
    pub per_million_tokens: Option<Band>,
    /// Energy in kWh per million tokens.
    pub kwh_per_million_tokens: Option<Band>,
    /// Time to train all tokens in hours, if the job states their number.
    pub training_hours: Option<f64>,
    /// Cost to train all tokens, if the job states their number.
    pub training_cost: Option<f64>,
    /// Share of the time that checkpoints and failures leave, by which costs, energy and time per token are divided;
    /// `None` if the study states neither.
    pub goodput: Option<Goodput>,
}

impl RunCosts {
    /// Computes the costs of a job from its prediction and the candidate's price and power.
    #[must_use]
    pub fn new(prediction: &Prediction, candidate: &Candidate, size: MachineSize, job: &Job, terms: &Terms) -> Self {
        let goodput = Goodput::new(prediction, candidate, job);
        let share = goodput.map_or(1.0, |goodput| goodput.shares.steps.max(MIN_GOODPUT));
        let hours_per_million = prediction.tokens_per_s.map(|tokens| 1e6 / tokens / 3600.0 / share);
        let train_tokens = match job {
            Job::Training(job) => job.train_tokens,
            Job::Inference(_) | Job::Trace(_) => None,
        };
        let hour = candidate.hourly(size, terms);
        let training_hours =
            train_tokens.zip(prediction.tokens_per_s).map(|(total, tokens)| total as f64 / tokens / 3600.0 / share);
        Self {
            per_hour: hour,
            per_step: hour.map(|band| band.middle() * seconds(prediction.step.time) / 3600.0),
            per_million_tokens: hour.zip(hours_per_million).map(|(hour, hours)| hour.scaled_by(hours)),
            kwh_per_million_tokens: candidate
                .power_kw
                .zip(hours_per_million)
                .map(|(power, hours)| power.scaled_by(hours)),
            training_hours,
            training_cost: training_hours.zip(hour).map(|(hours, band)| hours * band.middle()),
            goodput,
        }
    }

    /// Returns the number of seconds per million tokens, with the time of checkpoints and failures if the study states
    /// them; for a trace, its completion time in seconds.
    #[must_use]
    pub fn seconds_per_unit(&self, prediction: &Prediction) -> f64 {
        prediction.seconds_per_unit() / self.goodput.map_or(1.0, |goodput| goodput.shares.steps.max(MIN_GOODPUT))
    }
}

/// Prediction of a job on a candidate, with its costs.
#[derive(Clone, Copy, Debug)]
pub struct CostedPrediction<'a> {
    /// Prediction, which does not depend on prices.
    pub prediction: &'a Prediction,
    /// Costs at the prices of a setting.
    pub costs: RunCosts,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constraint_violations_show_significant_digits() {
        let message = |value, limit| ConstraintUse { name: "power kW", key: "power_kw", value, limit }.to_string();
        assert_eq!(message(Some(40.0), 0.001), "power kW 40 of 0.001");
        assert_eq!(message(Some(4.0), 0.1), "power kW 4 of 0.1");
        assert_eq!(message(Some(123_456.7), 50_000.0), "power kW 123457 of 50000");
        assert_eq!(message(Some(8.0 / 3.0), 2.5), "power kW 2.66667 of 2.5");
        assert_eq!(message(Some(1_000_000.5), 1_000_000.0), "power kW 1000000.5 of 1000000");
        assert_eq!(message(None, 1.0), "power kW not stated: expected power_kw");
    }
}
