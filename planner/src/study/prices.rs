//! Prices: bands of purchase prices or prices per hour, in one currency.

use fabricast_topologies::{Origin, Place};
use serde::Deserialize;
use toml::Spanned;

use super::read::{LEAST, MOST_MONEY};
use crate::job::{JobError, refused, written};

/// Shipped price list; each entry has a date and a source.
const LIST: &str = include_str!("../../data/prices.toml");

/// Band between two values: a price in the study's currency, or power in kW.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Band {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Band {
    /// Returns the band if both ends are from the smallest valid value to `most`.
    ///
    /// # Errors
    /// Description of the problem; `name` names the value.
    pub(super) fn checked(self, name: &str, most: f64) -> Result<Self, String> {
        let Self { low, high } = self;
        match [low, high].into_iter().find(|end| !(LEAST..=most).contains(end)) {
            Some(end) => Err(format!("{name}: {} is not from {LEAST} to {}", written(end), written(most))),
            None if low > high => {
                Err(format!("{name}: expected low ≤ high, not {} and {}", written(low), written(high)))
            }
            None => Ok(self),
        }
    }

    /// Middle of the band, used for ranking.
    #[must_use]
    pub fn middle(self) -> f64 {
        f64::midpoint(self.low, self.high)
    }

    /// Multiplies both ends by a factor.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self { low: self.low * factor, high: self.high * factor }
    }

    /// Adds two bands end by end.
    #[must_use]
    pub fn plus(self, more: Self) -> Self {
        Self { low: self.low + more.low, high: self.high + more.high }
    }

    /// Returns true if the ends differ.
    #[must_use]
    pub fn is_wide(self) -> bool {
        self.low < self.high
    }
}

/// Unit of a price.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PriceUnit {
    /// One item, bought; the number per machine is unknown.
    Each,
    /// One host, bought.
    Node,
    /// One GPU, bought.
    Gpu,
    /// One rack, bought.
    Rack,
    /// One item per hour; the number per machine is unknown.
    Hour,
    /// One host per hour.
    NodeHour,
    /// One GPU per hour.
    GpuHour,
}

/// Entry of a price list.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listed {
    /// Name of the item.
    pub item: String,
    /// Lowest price seen.
    pub low: f64,
    /// Highest price seen.
    pub high: f64,
    /// Currency.
    pub currency: String,
    /// Unit of the price.
    pub unit: PriceUnit,
    /// Hosts per rack, for prices of racks.
    pub hosts: Option<u32>,
    /// Date given by the source.
    pub date: String,
    /// Source.
    pub source: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    #[serde(default)]
    price: Vec<Spanned<Listed>>,
}

/// Returns the shipped list; empty if it were invalid, which a test rules out.
#[must_use]
pub fn shipped() -> Vec<Listed> {
    read_list(LIST, "prices.toml").unwrap_or_default()
}

/// Reads a price list; `source` names it in errors.
///
/// # Errors
/// [`JobError`] with line and column: invalid TOML, unknown keys or units, invalid bands, and entries without a date or
/// a source, which every price needs.
pub fn read_list(text: &str, source: &str) -> Result<Vec<Listed>, JobError> {
    let origin = Origin::new(source, text);
    let read: List = toml::from_str(text).map_err(|error| refused(origin, &error))?;
    let checked = |entry: &Spanned<Listed>| {
        let one = entry.get_ref();
        let wrong = |message: String| Err(JobError::at(&origin.place(entry.span()), message));
        if let Err(message) = (Band { low: one.low, high: one.high }).checked(&format!("`{}`", one.item), MOST_MONEY) {
            return wrong(message);
        }
        match (one.unit, one.hosts) {
            (_, None) | (PriceUnit::Rack, Some(1..)) => {}
            (PriceUnit::Rack, Some(0)) => return wrong(format!("`{}`: hosts: a rack of none", one.item)),
            (_, Some(_)) => return wrong(format!("`{}`: hosts: is of the unit rack", one.item)),
        }
        for (name, text) in
            [("item", &one.item), ("currency", &one.currency), ("date", &one.date), ("source", &one.source)]
        {
            if text.trim().is_empty() {
                return wrong(format!("`{}`: {name} must not be empty", one.item));
            }
        }
        Ok(one.clone())
    };
    match read.price.as_slice() {
        [] => Err(JobError::at(
            &Place::of_source(source),
            "no price: expected `[[price]]` with item, low, high, currency, unit, date and source",
        )),
        entries => entries.iter().map(checked).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_price_list_is_valid() {
        let list = shipped();
        assert_eq!(list.len(), LIST.matches("[[price]]").count());
        assert!(list.len() > 20);
        for one in list {
            assert!(one.low > 0.0 && one.high >= one.low && !one.source.is_empty() && !one.date.is_empty(), "{one:?}");
        }
    }
}
