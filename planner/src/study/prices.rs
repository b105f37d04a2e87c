//! Prices: what is paid at once or by the hour, between a low and a high end, in one currency.

use fabricast_topologies::{Origin, Place};
use serde::Deserialize;
use toml::Spanned;

use super::read::{LEAST, MOST_MONEY};
use crate::job::{JobError, refused, written};

/// The list that ships, each entry with its date and source.
const LIST: &str = include_str!("../../data/prices.toml");

/// Between two ends: of a price, in the study's currency; of power, in kW.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Band {
    /// The least.
    pub low: f64,
    /// The most.
    pub high: f64,
}

impl Band {
    /// Itself, where it is one: from the least that counts up to `most`, both ends.
    ///
    /// # Errors
    /// What is wrong with it, as what `name` says.
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

    /// The middle, by which candidates are ranked.
    #[must_use]
    pub fn middle(self) -> f64 {
        f64::midpoint(self.low, self.high)
    }

    /// So many times as much.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self { low: self.low * factor, high: self.high * factor }
    }

    /// With as much more, low ends and high ends together.
    #[must_use]
    pub fn plus(self, more: Self) -> Self {
        Self { low: self.low + more.low, high: self.high + more.high }
    }

    /// Whether its ends are apart.
    #[must_use]
    pub fn is_wide(self) -> bool {
        self.low < self.high
    }
}

/// What a price is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PriceUnit {
    /// One of the item, bought; how many a machine takes is not told.
    Each,
    /// A host, bought.
    Node,
    /// A GPU, bought.
    Gpu,
    /// A rack of it, bought.
    Rack,
    /// An hour of the item; how many a machine takes is not told.
    Hour,
    /// An hour of one host.
    NodeHour,
    /// An hour of one GPU.
    GpuHour,
}

/// An entry of a price list.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listed {
    /// What it is the price of.
    pub item: String,
    /// The least seen.
    pub low: f64,
    /// The most seen.
    pub high: f64,
    /// Its currency.
    pub currency: String,
    /// What it is for.
    pub unit: PriceUnit,
    /// Hosts of a rack, where it is the price of one.
    pub hosts: Option<u32>,
    /// When, as the source says.
    pub date: String,
    /// Who says so.
    pub source: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    #[serde(default)]
    price: Vec<Spanned<Listed>>,
}

/// The list that ships; empty were it broken, which a test rules out.
#[must_use]
pub fn shipped() -> Vec<Listed> {
    read_list(LIST, "prices.toml").unwrap_or_default()
}

/// Reads a list of prices; `source` names it in errors.
///
/// # Errors
/// [`JobError`] with line and column: what is no TOML, unknown keys or units, bands that cannot be, and entries without a
/// date or a source, since no price stands without them.
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
    fn the_list_that_ships_is_whole() {
        let list = shipped();
        assert_eq!(list.len(), LIST.matches("[[price]]").count());
        assert!(list.len() > 20);
        for one in list {
            assert!(one.low > 0.0 && one.high >= one.low && !one.source.is_empty() && !one.date.is_empty(), "{one:?}");
        }
    }
}
