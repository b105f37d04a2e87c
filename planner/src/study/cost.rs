//! Costs of runs: price per hour of work, and energy. Runs do not depend on costs, so other prices need no new runs.

use super::answer::ResultRow;
use super::{Assumptions, Band, Candidate, Constraints, Extent, Payment};
use crate::job::{Job, written};

/// Parameters of a cost calculation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// Assumptions of the study or of a setting.
    pub assumptions: Assumptions,
    /// Factor on all prices.
    pub factor: f64,
}

impl Terms {
    /// Creates the terms with unchanged prices.
    #[must_use]
    pub fn of(assumptions: Assumptions) -> Self {
        Self { assumptions, factor: 1.0 }
    }
}

impl Candidate {
    /// Cost per hour: share of the price plus energy; `None` without a price. `extent` covers everything that is paid
    /// for.
    #[must_use]
    pub fn hourly(&self, extent: Extent, terms: &Terms) -> Option<Band> {
        let energy = self.power_kw.unwrap_or_default().times(terms.assumptions.per_kwh);
        let price = self.price?;
        let all = price.total(extent).times(terms.factor);
        Some(match price.payment {
            Payment::Bought => all.times(1.0 / terms.assumptions.hours()).plus(energy),
            // Hire includes energy.
            Payment::Hired => all,
        })
    }

    /// Returns the value and the limit of each constraint that is set; the value is `None` if the candidate does not
    /// state it.
    fn demands(&self, extent: Extent, terms: &Terms, constraints: &Constraints) -> Vec<Demand> {
        let once = self.price.map(|price| match price.payment {
            Payment::Bought => price.total(extent).middle() * terms.factor,
            Payment::Hired => 0.0,
        });
        // Hired machines are elsewhere and use none of the site's power and racks, unless the candidate states them.
        let elsewhere = self.price.filter(|price| price.payment == Payment::Hired).map(|_| 0.0);
        [
            ("budget", "a price", once, constraints.budget),
            ("cost per hour", "a price", self.hourly(extent, terms).map(Band::middle), constraints.hourly),
            ("power kW", "power_kw", self.power_kw.map(Band::middle).or(elsewhere), constraints.power_kw),
            ("racks", "racks", self.racks.or(elsewhere), constraints.racks),
        ]
        .into_iter()
        .filter_map(|(what, key, value, most)| Some(Demand { what, key, value, most: most? }))
        .collect()
    }

    /// Returns the keys that constraints need and the candidate does not state.
    #[must_use]
    pub fn unstated(&self, extent: Extent, terms: &Terms, constraints: &Constraints) -> Vec<&'static str> {
        let demands = self.demands(extent, terms, constraints);
        demands.iter().filter(|one| one.value.is_none()).map(|one| one.key).collect()
    }

    /// Returns descriptions of the violated constraints; empty if there are none.
    #[must_use]
    pub fn beyond(&self, extent: Extent, terms: &Terms, constraints: &Constraints) -> Vec<String> {
        let demands = self.demands(extent, terms, constraints);
        demands.iter().filter(|one| one.excess() > 1.0).map(Demand::to_string).collect()
    }

    /// Largest ratio of a value to its limit; at most 1 if no constraint is violated.
    #[must_use]
    pub fn excess(&self, extent: Extent, terms: &Terms, constraints: &Constraints) -> f64 {
        self.demands(extent, terms, constraints).iter().map(Demand::excess).fold(0.0, f64::max)
    }
}

struct Demand {
    what: &'static str,
    /// Key that states the value.
    key: &'static str,
    value: Option<f64>,
    most: f64,
}

impl Demand {
    fn excess(&self) -> f64 {
        self.value.map_or(f64::INFINITY, |value| value / self.most)
    }
}

impl std::fmt::Display for Demand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.value {
            Some(value) => {
                let (short, most) = (rounded(value), rounded(self.most));
                // Numbers that are equal after rounding are written in full.
                let value = if short == most { written(value) } else { short };
                write!(f, "{} {value} of {}", self.what, if value == most { written(self.most) } else { most })
            }
            None => write!(f, "{} not stated: expected {}", self.what, self.key),
        }
    }
}

/// Formats a positive number with six significant digits.
fn rounded(number: f64) -> String {
    let decimals = (5.0 - number.log10().floor()).clamp(0.0, 12.0) as usize;
    format!("{number:.decimals$}").parse().map_or_else(|_| written(number), written)
}

/// Fills in the costs of a run on a candidate.
pub fn price(row: &mut ResultRow, candidate: &Candidate, extent: Extent, job: &Job, terms: &Terms) {
    let hours_per_million = row.tokens_per_s.map(|tokens| 1e6 / tokens / 3600.0);
    let train_tokens = match job {
        Job::Training(job) => job.train_tokens,
        Job::Inference(_) | Job::Trace(_) => None,
    };
    let hour = candidate.hourly(extent, terms);
    let million = hour.zip(hours_per_million).map(|(hour, hours)| hour.times(hours));
    row.cost_per_hour = hour.map(Band::middle);
    row.cost_per_hour_low = hour.map(|band| band.low);
    row.cost_per_hour_high = hour.map(|band| band.high);
    row.cost_per_step = hour.map(|band| band.middle() * row.step_time_s / 3600.0);
    row.cost_per_million_tokens = million.map(Band::middle);
    row.cost_per_million_tokens_low = million.map(|band| band.low);
    row.cost_per_million_tokens_high = million.map(|band| band.high);
    let energy = candidate.power_kw.zip(hours_per_million).map(|(power, hours)| power.times(hours));
    row.kwh_per_million_tokens = energy.map(Band::middle);
    row.kwh_per_million_tokens_low = energy.filter(|band| band.is_wide()).map(|band| band.low);
    row.kwh_per_million_tokens_high = energy.filter(|band| band.is_wide()).map(|band| band.high);
    row.time_to_train_h = train_tokens.zip(row.tokens_per_s).map(|(all, tokens)| all as f64 / tokens / 3600.0);
    row.cost_to_train = row.time_to_train_h.zip(hour).map(|(hours, band)| hours * band.middle());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constraint_violations_show_significant_digits() {
        let told = |value, most| Demand { what: "power kW", key: "power_kw", value, most }.to_string();
        assert_eq!(told(Some(40.0), 0.001), "power kW 40 of 0.001");
        assert_eq!(told(Some(4.0), 0.1), "power kW 4 of 0.1");
        assert_eq!(told(Some(123_456.7), 50_000.0), "power kW 123457 of 50000");
        assert_eq!(told(Some(8.0 / 3.0), 2.5), "power kW 2.66667 of 2.5");
        assert_eq!(told(Some(1_000_000.5), 1_000_000.0), "power kW 1000000.5 of 1000000");
        assert_eq!(told(None, 1.0), "power kW not stated: expected power_kw");
    }
}
