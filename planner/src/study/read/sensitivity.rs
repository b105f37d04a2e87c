//! `[sensitivity]`: what is changed, one thing at a time.

use serde::Deserialize;
use toml::Spanned;

use super::Reader;
use crate::job::JobError;
use crate::study::setting::Setting;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SensitivityText {
    #[serde(default)]
    link_rate: Vec<Spanned<f64>>,
    #[serde(default)]
    oversubscription: Vec<Spanned<f64>>,
    #[serde(default)]
    nics_per_node: Vec<Spanned<u32>>,
    #[serde(default)]
    fail: Vec<Spanned<Vec<String>>>,
    #[serde(default)]
    gpu_price: Vec<Spanned<f64>>,
    #[serde(default)]
    utilization: Vec<Spanned<f64>>,
    #[serde(default)]
    usd_per_kwh: Vec<Spanned<f64>>,
}

impl Reader<'_> {
    /// The settings in a fixed order, whatever the order of the keys.
    pub(super) fn sensitivities(self, text: Option<&SensitivityText>) -> Result<Vec<Setting>, JobError> {
        let Some(text) = text else { return Ok(Vec::new()) };
        let mut settings = Vec::new();
        let figures: [(&str, &[Spanned<f64>], f64, fn(f64) -> Setting); 5] = [
            ("link_rate", &text.link_rate, 1000.0, Setting::LinkRate),
            ("oversubscription", &text.oversubscription, 1000.0, Setting::Oversubscription),
            ("gpu_price", &text.gpu_price, 1000.0, Setting::GpuPrice),
            ("utilization", &text.utilization, 1.0, Setting::Utilization),
            ("usd_per_kwh", &text.usd_per_kwh, f64::MAX, Setting::PerKwh),
        ];
        let (rates, costs) = figures.split_at(2);
        let read = |(name, values, most, setting): &(&str, &[Spanned<f64>], f64, fn(f64) -> Setting)| {
            let one = |value: &Spanned<f64>| Ok(self.positive(name, Some(value), *most)?.map(setting));
            values.iter().filter_map(|value| one(value).transpose()).collect::<Result<Vec<_>, JobError>>()
        };
        for figure in rates {
            settings.extend(read(figure)?);
        }
        for count in &text.nics_per_node {
            match *count.get_ref() {
                nics @ 1..=256 => settings.push(Setting::NicsPerNode(nics)),
                other => return Err(self.wrong(count.span(), format!("nics_per_node: {other} is not from 1 to 256"))),
            }
        }
        for names in &text.fail {
            if names.get_ref().is_empty() {
                return Err(self.wrong(names.span(), "fail: expected names of links, devices or hosts"));
            }
            let place = self.origin.place(names.span());
            settings.push(Setting::Failed { names: names.get_ref().clone(), place });
        }
        for figure in costs {
            settings.extend(read(figure)?);
        }
        Ok(settings)
    }
}
