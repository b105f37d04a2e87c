//! Prices: bands of purchase prices or prices per hour, in one currency.

use fabricast_topologies::{Origin, SourceLocation};
use serde::Deserialize;
use toml::Spanned;

use super::value_limits::{MAX_PRICE, MIN_VALUE};
use fabricast_workload::job::{JobError, format_number, toml_error};

/// Shipped price list; each entry has a date and a source.
const LIST: &str = include_str!("../../data/prices.toml");

/// Band between two values: a price in the study's currency, or power in kW.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Band {
    /// Lower end of the band.
    pub low: f64,
    /// Upper end of the band, at least `low`.
    pub high: f64,
}

impl Band {
    /// Returns the band if both ends are from [`MIN_VALUE`] to `max` and `low` is at most `high`.
    ///
    /// # Errors
    /// A message that names the value (`name`) and the problem.
    pub(super) fn validate(self, name: &str, max: f64) -> Result<Self, String> {
        let Self { low, high } = self;
        match [low, high].into_iter().find(|end| !(MIN_VALUE..=max).contains(end)) {
            Some(end) => {
                Err(format!("{name}: {} is not from {MIN_VALUE} to {}", format_number(end), format_number(max)))
            }
            None if low > high => {
                Err(format!("{name}: expected low ≤ high, not {} and {}", format_number(low), format_number(high)))
            }
            None => Ok(self),
        }
    }

    /// Returns the middle of the band, which is used for ranking.
    #[must_use]
    pub fn middle(self) -> f64 {
        f64::midpoint(self.low, self.high)
    }

    /// Returns the band with both ends multiplied by a factor.
    #[must_use]
    pub fn scaled_by(self, factor: f64) -> Self {
        Self { low: self.low * factor, high: self.high * factor }
    }

    /// Returns the sum of two bands: sum of the lower ends, and sum of the upper ends.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { low: self.low + other.low, high: self.high + other.high }
    }

    /// Returns true if the two ends of the band differ.
    #[must_use]
    pub fn is_wide(self) -> bool {
        self.low < self.high
    }
}

/// Unit of a price: the item that is paid for, once or per hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PriceUnit {
    /// Purchase price of one item; the number per machine is unknown.
    Each,
    /// Purchase price of one host.
    Node,
    /// Purchase price of one GPU.
    Gpu,
    /// Purchase price of one rack.
    Rack,
    /// Price per hour of one item; the number per machine is unknown.
    Hour,
    /// Price per hour of one host.
    NodeHour,
    /// Price per hour of one GPU.
    GpuHour,
}

/// Entry of a price list: an item with its price, unit, date and source.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriceListEntry {
    /// Name of the item, by which candidates refer to it.
    pub item: String,
    /// Lowest price seen for one unit, in `currency`.
    pub low: f64,
    /// Highest price seen for one unit, in `currency`.
    pub high: f64,
    /// Currency of the prices.
    pub currency: String,
    /// Unit to which the prices refer.
    pub unit: PriceUnit,
    /// Number of hosts per rack, for prices of racks; `None` if it is unknown.
    pub hosts: Option<u32>,
    /// Date of the price, as given by the source.
    pub date: String,
    /// Source of the prices.
    pub source: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    #[serde(default)]
    price: Vec<Spanned<PriceListEntry>>,
}

/// Returns the entries of the shipped price list. The list would be empty if the file were invalid, which a test
/// excludes.
#[must_use]
pub fn shipped() -> Vec<PriceListEntry> {
    read_list(LIST, "prices.toml").unwrap_or_default()
}

/// Reads a price list; `source` names it in errors.
///
/// # Errors
/// [`JobError`] with line and column: invalid TOML, unknown keys or units, invalid bands, and entries without a date or
/// a source.
pub fn read_list(text: &str, source: &str) -> Result<Vec<PriceListEntry>, JobError> {
    let origin = Origin::new(source, text);
    let list: List = toml::from_str(text).map_err(|error| toml_error(origin, &error))?;
    let validate = |entry: &Spanned<PriceListEntry>| {
        let price = entry.get_ref();
        let reject = |message: String| Err(JobError::at(&origin.locate(entry.span()), message));
        if let Err(message) =
            (Band { low: price.low, high: price.high }).validate(&format!("`{}`", price.item), MAX_PRICE)
        {
            return reject(message);
        }
        match (price.unit, price.hosts) {
            (_, None) | (PriceUnit::Rack, Some(1..)) => {}
            (PriceUnit::Rack, Some(0)) => {
                return reject(format!("`{}`: hosts: a rack has 1 host or more, not 0", price.item));
            }
            (_, Some(_)) => return reject(format!("`{}`: hosts: only valid with unit = rack", price.item)),
        }
        for (name, text) in
            [("item", &price.item), ("currency", &price.currency), ("date", &price.date), ("source", &price.source)]
        {
            if text.trim().is_empty() {
                return reject(format!("`{}`: {name} must not be empty", price.item));
            }
        }
        Ok(price.clone())
    };
    match list.price.as_slice() {
        [] => Err(JobError::at(
            &SourceLocation::from_source(source),
            "no price: expected `[[price]]` with item, low, high, currency, unit, date and source",
        )),
        entries => entries.iter().map(validate).collect(),
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
        for entry in list {
            assert!(
                entry.low > 0.0 && entry.high >= entry.low && !entry.source.is_empty() && !entry.date.is_empty(),
                "{entry:?}"
            );
        }
    }
}
