//! Parser of `[reliability]` of a study, and of `reliability` of a candidate.

use serde::Deserialize;
use toml::Spanned;

use super::Reader;
use super::price::BandText;
use crate::Band;
use crate::reliability::{Estimate, Reliability};
use fabricast_workload::job::{JobError, format_number};

/// Maximum valid number of failures per 1,000 GPUs and day: 10 a day for each GPU.
const MAX_FAILURES: f64 = 10_000.0;

/// Maximum valid time of a detection or a restart in seconds: a day.
const MAX_SECONDS: f64 = 86_400.0;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of keys")]
pub(super) struct ReliabilityText {
    failures_per_1000_gpu_days: Option<Spanned<BandText>>,
    detection_s: Option<Spanned<BandText>>,
    restart_s: Option<Spanned<BandText>>,
}

impl Reader<'_> {
    /// Reads failures and recovery; keys that are absent have the values of `defaults`. `None` if the table is absent.
    ///
    /// # Errors
    /// [`JobError`] at an invalid value.
    pub(super) fn reliability(
        self,
        text: Option<&Spanned<ReliabilityText>>,
        defaults: Reliability,
    ) -> Result<Option<Reliability>, JobError> {
        let Some(text) = text.map(Spanned::get_ref) else { return Ok(None) };
        let estimate = |name, value: Option<&Spanned<BandText>>, max, default| match value {
            None => Ok(default),
            Some(band) => self.band_from_zero(name, band, max),
        };
        let failures = text.failures_per_1000_gpu_days.as_ref();
        Ok(Some(Reliability {
            failures_per_1000_gpu_days: estimate(
                "failures_per_1000_gpu_days",
                failures,
                MAX_FAILURES,
                defaults.failures_per_1000_gpu_days,
            )?,
            detection_s: estimate("detection_s", text.detection_s.as_ref(), MAX_SECONDS, defaults.detection_s)?,
            restart_s: estimate("restart_s", text.restart_s.as_ref(), MAX_SECONDS, defaults.restart_s)?,
        }))
    }

    /// Reads a number or a band with ends from 0 to `max`.
    fn band_from_zero(self, name: &str, band: &Spanned<BandText>, max: f64) -> Result<Estimate, JobError> {
        let (low, high) = match *band.get_ref() {
            BandText::One(value) => (value, value),
            BandText::Two { low, high } => (low, high),
        };
        if let Some(end) = [low, high].into_iter().find(|end| !(0.0..=max).contains(end)) {
            let message = format!("{name}: {} is not from 0 to {}", format_number(end), format_number(max));
            return Err(self.error_at(band.span(), message));
        }
        if low > high {
            let message =
                format!("{name}: expected low ≤ high, not {} and {}", format_number(low), format_number(high));
            return Err(self.error_at(band.span(), message));
        }
        Ok(Band { low, high }.into())
    }
}
