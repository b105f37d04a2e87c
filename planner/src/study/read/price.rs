//! Parser of candidates' prices: given directly or by the name of a price-list entry.

use serde::Deserialize;
use toml::Spanned;

use super::{CandidateText, MOST_ITEMS, MOST_MONEY, Reader};
use crate::job::{JobError, nearest};
use crate::study::prices::{Band, Listed, PriceUnit};
use crate::study::{CURRENCY, Counted, Payment, Price};

#[derive(Clone, Copy, Deserialize)]
#[serde(untagged, expecting = "expected a number or `{ low = 1, high = 2 }`")]
pub(super) enum BandText {
    One(f64),
    Two { low: f64, high: f64 },
}

impl Reader<'_> {
    /// Reads a price with its price-list entry.
    pub(super) fn price(
        self,
        text: &CandidateText,
        list: &[Listed],
    ) -> Result<Option<(Price, Option<Listed>)>, JobError> {
        let count = self.positive("price_count", text.price_count.as_ref(), MOST_ITEMS)?;
        let racks = self.positive("racks", text.racks.as_ref(), MOST_ITEMS)?;
        let whole = |payment, name, band| Ok(Some((Price::whole(payment, self.band(name, band, MOST_MONEY)?), None)));
        if let (Some(count), None) = (&text.price_count, &text.price) {
            return Err(self.wrong(count.span(), "price_count: counts what `price` names, and there is none"));
        }
        match (&text.price_usd, &text.price_per_hour_usd, &text.price) {
            (None, None, None) => Ok(None),
            (Some(band), None, None) => whole(Payment::Bought, "price_usd", band),
            (None, Some(band), None) => whole(Payment::Hired, "price_per_hour_usd", band),
            (None, None, Some(item)) => {
                self.listed(item, (count, racks), list).map(|(price, found)| Some((price, Some(found))))
            }
            _ => {
                let (listed, hourly) = (text.price.as_ref().map(Spanned::span), &text.price_per_hour_usd);
                let last = listed.or_else(|| hourly.as_ref().map(Spanned::span)).unwrap_or_else(|| text.name.span());
                let name = text.name.get_ref();
                let message =
                    format!("`{name}` has several prices: expected one of price_usd, price_per_hour_usd and price");
                Err(self.wrong(last, message))
            }
        }
    }

    /// Reads a number or a band with positive ends up to `most`.
    pub(super) fn band(self, name: &str, band: &Spanned<BandText>, most: f64) -> Result<Band, JobError> {
        let (low, high) = match *band.get_ref() {
            BandText::One(price) => (price, price),
            BandText::Two { low, high } => (low, high),
        };
        Band { low, high }.checked(name, most).map_err(|message| self.wrong(band.span(), message))
    }

    /// Finds the last price-list entry with this name; entries of the user's list come after the shipped ones. The
    /// number of units is `price_count` or follows from the unit; for racks of unknown size it is the candidate's
    /// number of racks.
    fn listed(
        self,
        item: &Spanned<String>,
        (count, racks): (Option<f64>, Option<f64>),
        list: &[Listed],
    ) -> Result<(Price, Listed), JobError> {
        let Some(found) = list.iter().rfind(|one| one.item == *item.get_ref()) else {
            let error = self.wrong(item.span(), format!("price: no price of `{}` is listed", item.get_ref()));
            let help = nearest(item.get_ref(), list.iter().map(|one| one.item.as_str()));
            return Err(JobError { help, ..error });
        };
        if found.currency != CURRENCY {
            let message = format!("price: `{}` is in {}, and the study in {CURRENCY}", found.item, found.currency);
            let help = format!("give it in {CURRENCY}, as price_usd or price_per_hour_usd, or in a list of your own");
            return Err(JobError { help: Some(help), ..self.wrong(item.span(), message) });
        }
        let band = Band { low: found.low, high: found.high };
        let (payment, told) = match found.unit {
            PriceUnit::Each => (Payment::Bought, Counted::Untold),
            PriceUnit::Node => (Payment::Bought, Counted::Hosts),
            PriceUnit::Gpu => (Payment::Bought, Counted::Gpus),
            PriceUnit::Rack => match (found.hosts, racks) {
                (Some(hosts), _) => (Payment::Bought, Counted::Racks { hosts }),
                (None, Some(racks)) => (Payment::Bought, Counted::Given(racks)),
                (None, None) => (Payment::Bought, Counted::Untold),
            },
            PriceUnit::Hour => (Payment::Hired, Counted::Untold),
            PriceUnit::NodeHour => (Payment::Hired, Counted::Hosts),
            PriceUnit::GpuHour => (Payment::Hired, Counted::Gpus),
        };
        Ok((Price { payment, band, counted: count.map_or(told, Counted::Given) }, found.clone()))
    }
}
