//! Yearly costs of a machine: depreciation or rent, energy, cooling, hosting, maintenance and staff.
//!
//! Costs that are paid in all hours (hosting, maintenance, staff, depreciation) do not depend on the utilization; energy,
//! cooling and rent are paid in the hours of use. The cost per hour of use is the yearly cost divided by the hours of
//! use in a year.

use super::{Assumptions, Band, Candidate, MachineSize, Payment, Terms};

/// Hours of a year, leap years included.
pub(super) const HOURS_PER_YEAR: f64 = 365.25 * 24.0;
/// Months of a year.
const MONTHS_PER_YEAR: f64 = 12.0;

/// Costs of a machine per year, in the study's currency, with prices and power in the middle of their bands.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct YearlyCosts {
    /// Loss of value of a purchase: its price less its residual value, divided by the depreciation period.
    pub depreciation: f64,
    /// Rent in the hours of use.
    pub rent: f64,
    /// Energy of the machine in the hours of use.
    pub energy: f64,
    /// Energy of cooling and power distribution: energy × (PUE − 1).
    pub cooling: f64,
    /// Space and power connection in a data centre, by the machine's power.
    pub hosting: f64,
    /// Support contracts and spare parts, a share of the purchase price.
    pub maintenance: f64,
    /// Staff.
    pub staff: f64,
}

impl YearlyCosts {
    /// Returns the sum of all costs per year.
    #[must_use]
    pub fn total(&self) -> f64 {
        let Self { depreciation, rent, energy, cooling, hosting, maintenance, staff } = *self;
        depreciation + rent + energy + cooling + hosting + maintenance + staff
    }

    /// Returns the sum of all costs per month, a twelfth of a year.
    #[must_use]
    pub fn per_month(&self) -> f64 {
        self.total() / MONTHS_PER_YEAR
    }
}

impl Assumptions {
    /// Number of hours of use in a year.
    fn hours_per_year(&self) -> f64 {
        HOURS_PER_YEAR * self.utilization
    }

    /// Costs of a purchased machine per hour of use that are paid in all hours. `price`: purchase price; `power_kw`: power
    /// of the machine.
    pub(super) fn fixed_per_hour(&self, price: Band, power_kw: Band) -> Band {
        let staff = Band { low: self.staff_per_year, high: self.staff_per_year };
        let hosting = power_kw.scaled_by(self.hosting_per_kw_month * MONTHS_PER_YEAR);
        price.scaled_by(self.maintenance).plus(hosting).plus(staff).scaled_by(1.0 / self.hours_per_year())
    }
}

impl Candidate {
    /// Returns the costs of the machine per year; `None` without a price. `size`: size of the machine that is paid for.
    #[must_use]
    pub fn yearly_costs(&self, size: MachineSize, terms: &Terms) -> Option<YearlyCosts> {
        let Terms { assumptions, factor } = *terms;
        let price = self.price?;
        let total = price.total(size).middle() * factor;
        if price.payment == Payment::PerHour {
            return Some(YearlyCosts { rent: total * assumptions.hours_per_year(), ..YearlyCosts::default() });
        }
        let power_kw = self.power_kw.unwrap_or_default().middle();
        let energy = power_kw * assumptions.per_kwh * assumptions.hours_per_year();
        Some(YearlyCosts {
            depreciation: total * (1.0 - assumptions.residual) / assumptions.years,
            rent: 0.0,
            energy,
            cooling: energy * (assumptions.pue - 1.0),
            hosting: power_kw * assumptions.hosting_per_kw_month * MONTHS_PER_YEAR,
            maintenance: total * assumptions.maintenance,
            staff: assumptions.staff_per_year,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::read_study;

    fn candidate(payment: Payment, price: f64, power_kw: f64) -> Candidate {
        let text = "[[candidate]]\nname = \"a\"\nfabric = \"hgx-h100\"\nprice_usd = 1\npower_kw = 1\n[[job]]\nname = \"j\"\n\
            global_batch = 8\nparallel = \"auto\"\nmodel = { layers = 2, hidden = 64, heads = 2, vocab = 64, seq = 8 }\n";
        let mut candidate = read_study(text, "s").unwrap().candidates.remove(0);
        let band = |middle: f64| Band { low: middle * 0.9, high: middle * 1.1 };
        candidate.price = Some(crate::Price::lump_sum(payment, band(price)));
        candidate.power_kw = Some(band(power_kw));
        candidate
    }

    /// A machine of 4 million USD and 100 kW, worked by hand.
    #[test]
    fn yearly_costs_match_a_worked_example() {
        let assumptions = Assumptions {
            years: 4.0,
            utilization: 0.5,
            per_kwh: 0.1,
            pue: 1.3,
            hosting_per_kw_month: 150.0,
            staff_per_year: 200_000.0,
            maintenance: 0.05,
            residual: 0.1,
        };
        let costs = candidate(Payment::Bought, 4e6, 100.0);
        let costs = costs.yearly_costs(MachineSize { gpus: 8, hosts: 1 }, &Terms::new(assumptions)).unwrap();
        let energy = 100.0 * 4383.0 * 0.1;
        let expected = [900_000.0, energy, energy * 0.3, 180_000.0, 200_000.0, 200_000.0];
        let found = [costs.depreciation, costs.energy, costs.cooling, costs.hosting, costs.maintenance, costs.staff];
        for (found, expected) in found.into_iter().zip(expected) {
            assert!((found / expected - 1.0).abs() < 1e-9, "{costs:?}");
        }
        assert!((costs.per_month() * 12.0 - costs.total()).abs() < 1e-6 && costs.rent.abs() < 1e-12);
    }

    proptest! {
        /// The cost per hour of use, from which the cost per token follows, is the yearly cost divided by the hours of use.
        #[test]
        fn hourly_and_yearly_costs_agree(
            price in 1e3f64..1e9, power_kw in 0.1f64..1e5, years in 1.0f64..10.0, utilization in 0.05f64..1.0,
            pue in 1.0f64..2.5, hosting in 0.0f64..500.0, staff in 0.0f64..1e6, maintenance in 0.0f64..0.3,
            residual in 0.0f64..0.9, bought in any::<bool>(),
        ) {
            let payment = if bought { Payment::Bought } else { Payment::PerHour };
            let assumptions = Assumptions {
                years, utilization, per_kwh: 0.1, pue, hosting_per_kw_month: hosting, staff_per_year: staff, maintenance, residual,
            };
            let (size, terms) = (MachineSize { gpus: 8, hosts: 1 }, Terms::new(assumptions));
            let candidate = candidate(payment, price, power_kw);
            let hourly = candidate.hourly(size, &terms).unwrap().middle();
            let yearly = candidate.yearly_costs(size, &terms).unwrap().total();
            prop_assert!((hourly * HOURS_PER_YEAR * utilization / yearly - 1.0).abs() < 1e-9, "{hourly} {yearly}");
        }
    }
}
