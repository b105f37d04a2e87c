//! Parser of candidates' prices, which are stated directly or by the name of a price-list entry.

use serde::Deserialize;
use toml::Spanned;

use super::super::value_limits::MAX_PRICE;
use super::{CandidateText, MAX_ITEMS, Reader};
use crate::prices::{Band, PriceListEntry, PriceUnit};
use crate::{CURRENCY, Payment, Price, UnitCount};
use fabricast_workload::job::{JobError, nearest};

#[derive(Clone, Copy, Deserialize)]
#[serde(untagged, expecting = "expected a number or `{ low = 1, high = 2 }`")]
pub(super) enum BandText {
    One(f64),
    Two { low: f64, high: f64 },
}

/// Numbers stated by a candidate that determine the number of units of its price.
#[derive(Clone, Copy)]
struct PriceCounts {
    /// Number of units that are paid for; `None` if the candidate does not state it.
    price_count: Option<f64>,
    /// Number of racks of the candidate; `None` if the candidate does not state it.
    racks: Option<f64>,
}

impl Reader<'_> {
    /// Reads a candidate's price, with its price-list entry if it names one; `None` without a price.
    ///
    /// # Errors
    /// [`JobError`] at an invalid value or an unknown entry.
    pub(super) fn price(
        self,
        text: &CandidateText,
        list: &[PriceListEntry],
    ) -> Result<Option<(Price, Option<PriceListEntry>)>, JobError> {
        let count = self.positive("price_count", text.price_count.as_ref(), MAX_ITEMS)?;
        let racks = self.positive("racks", text.racks.as_ref(), MAX_ITEMS)?;
        let lump_sum =
            |payment, name, band| Ok(Some((Price::lump_sum(payment, self.band(name, band, MAX_PRICE)?), None)));
        if let (Some(count), None) = (&text.price_count, &text.price) {
            return Err(self.error_at(count.span(), "price_count: counts what `price` names, and there is none"));
        }
        let by_node = |payment, key, band| {
            let price = Price { payment, band: self.node_price(key, band)?, unit_count: UnitCount::Hosts };
            Ok(Some((price, None)))
        };
        let bands = [
            ("price_usd", &text.price_usd),
            ("price_per_hour_usd", &text.price_per_hour_usd),
            ("node_price_usd", &text.node_price_usd),
            ("node_price_per_hour_usd", &text.node_price_per_hour_usd),
        ];
        let stated: Vec<(&str, &Spanned<BandText>)> =
            bands.into_iter().filter_map(|(key, band)| Some((key, band.as_ref()?))).collect();
        match (stated.as_slice(), &text.price) {
            ([], None) => Ok(None),
            (&[(key @ "price_usd", band)], None) => lump_sum(Payment::Bought, key, band),
            (&[(key @ "price_per_hour_usd", band)], None) => lump_sum(Payment::PerHour, key, band),
            (&[(key @ "node_price_usd", band)], None) => by_node(Payment::Bought, key, band),
            (&[(key, band)], None) => by_node(Payment::PerHour, key, band),
            ([], Some(item)) => self
                .listed_price(item, PriceCounts { price_count: count, racks }, list)
                .map(|(price, entry)| Some((price, Some(entry)))),
            (several, listed) => {
                let last = several.last().map(|(_, band)| band.span());
                let last = listed.as_ref().map(Spanned::span).or(last).unwrap_or_else(|| text.name.span());
                let name = text.name.get_ref();
                let message = format!(
                    "`{name}` has several prices: expected one of price_usd, price_per_hour_usd, node_price_usd, \
                     node_price_per_hour_usd and price"
                );
                Err(self.error_at(last, message))
            }
        }
    }

    /// Reads a number or a band with positive ends up to `max`.
    ///
    /// # Errors
    /// [`JobError`] at an invalid value.
    pub(super) fn band(self, name: &str, band: &Spanned<BandText>, max: f64) -> Result<Band, JobError> {
        let (low, high) = match *band.get_ref() {
            BandText::One(price) => (price, price),
            BandText::Two { low, high } => (low, high),
        };
        Band { low, high }.validate(name, max).map_err(|message| self.error_at(band.span(), message))
    }

    /// Finds the last price-list entry with this name; entries of the user's list follow the shipped ones. The number
    /// of units is `price_count` or follows from the unit; for racks of unknown size, it is the candidate's number of
    /// racks.
    ///
    /// # Errors
    /// [`JobError`] if no entry has this name.
    fn listed_price(
        self,
        item: &Spanned<String>,
        counts: PriceCounts,
        list: &[PriceListEntry],
    ) -> Result<(Price, PriceListEntry), JobError> {
        let Some(entry) = list.iter().rfind(|entry| entry.item == *item.get_ref()) else {
            let error = self.error_at(item.span(), format!("price: no price of `{}` is listed", item.get_ref()));
            let help = nearest(item.get_ref(), list.iter().map(|entry| entry.item.as_str()));
            return Err(JobError { help, ..error });
        };
        if entry.currency != CURRENCY {
            let message = format!("price: `{}` is in {}, and the study in {CURRENCY}", entry.item, entry.currency);
            let help = format!("give it in {CURRENCY}, as price_usd or price_per_hour_usd, or in a list of your own");
            return Err(JobError { help: Some(help), ..self.error_at(item.span(), message) });
        }
        let band = Band { low: entry.low, high: entry.high };
        let (payment, default_count) = match entry.unit {
            PriceUnit::Each => (Payment::Bought, UnitCount::Unknown),
            PriceUnit::Node => (Payment::Bought, UnitCount::Hosts),
            PriceUnit::Gpu => (Payment::Bought, UnitCount::Gpus),
            PriceUnit::Rack => match (entry.hosts, counts.racks) {
                (Some(hosts), _) => (Payment::Bought, UnitCount::Racks { hosts }),
                (None, Some(racks)) => (Payment::Bought, UnitCount::Fixed(racks)),
                (None, None) => (Payment::Bought, UnitCount::Unknown),
            },
            PriceUnit::Hour => (Payment::PerHour, UnitCount::Unknown),
            PriceUnit::NodeHour => (Payment::PerHour, UnitCount::Hosts),
            PriceUnit::GpuHour => (Payment::PerHour, UnitCount::Gpus),
        };
        Ok((
            Price { payment, band, unit_count: counts.price_count.map_or(default_count, UnitCount::Fixed) },
            entry.clone(),
        ))
    }
}
