//! Parser of `[sensitivity]`: changes that are applied one at a time.

use serde::Deserialize;
use toml::Spanned;

use super::{MAX_PER_KWH, Reader};
use crate::setting::Setting;
use fabricast_workload::job::JobError;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of keys")]
pub(super) struct SensitivityText {
    #[serde(default)]
    link_rate: Vec<Spanned<f64>>,
    #[serde(default)]
    nvlink_rate: Vec<Spanned<f64>>,
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

/// Numeric key of `[sensitivity]`: its name, its values, their upper limit, and the function that creates a setting
/// from a value.
struct SettingValues<'a> {
    name: &'static str,
    values: &'a [Spanned<f64>],
    max: f64,
    setting: fn(f64) -> Setting,
}

impl Reader<'_> {
    /// Reads the settings in a fixed order, which does not depend on the order of the keys.
    ///
    /// # Errors
    /// [`JobError`] at an invalid value.
    pub(super) fn sensitivities(self, text: Option<&SensitivityText>) -> Result<Vec<Setting>, JobError> {
        let Some(text) = text else { return Ok(Vec::new()) };
        let mut settings = Vec::new();
        let figure = |name, values, max, setting| SettingValues { name, values, max, setting };
        let rates = [
            figure("link_rate", &text.link_rate, 1000.0, Setting::LinkRate as fn(f64) -> Setting),
            figure("nvlink_rate", &text.nvlink_rate, 1000.0, Setting::NvlinkRate),
            figure("oversubscription", &text.oversubscription, 1000.0, Setting::Oversubscription),
        ];
        let costs = [
            figure("gpu_price", &text.gpu_price, 1000.0, Setting::GpuPrice as fn(f64) -> Setting),
            figure("utilization", &text.utilization, 1.0, Setting::Utilization),
            figure("usd_per_kwh", &text.usd_per_kwh, MAX_PER_KWH, Setting::EnergyPrice),
        ];
        let read_settings = |figure: &SettingValues<'_>| {
            let parse = |value| Ok(self.positive(figure.name, Some(value), figure.max)?.map(figure.setting));
            figure.values.iter().filter_map(|value| parse(value).transpose()).collect::<Result<Vec<_>, JobError>>()
        };
        for figure in &rates {
            settings.extend(read_settings(figure)?);
        }
        for count in &text.nics_per_node {
            match *count.get_ref() {
                nics @ 1..=256 => settings.push(Setting::NicsPerNode(nics)),
                nics => {
                    return Err(self.error_at(count.span(), format!("nics_per_node: {nics} is not from 1 to 256")));
                }
            }
        }
        for names in &text.fail {
            if names.get_ref().is_empty() {
                return Err(self.error_at(names.span(), "fail: expected names of links, devices or hosts"));
            }
            let location = self.origin.locate(names.span());
            settings.push(Setting::Failed { names: names.get_ref().clone(), location });
        }
        for figure in &costs {
            settings.extend(read_settings(figure)?);
        }
        Ok(settings)
    }
}
