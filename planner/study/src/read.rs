//! Parser of study files (TOML). Errors state line and column.

mod job_assignment;
mod measured;
mod nodes;
mod price;
mod reliability;
mod sensitivity;

use std::collections::BTreeMap;

use fabricast_topologies::{
    Bandwidth, FabricRequest, HostDrives, LineIndex, NetworkSpec, Origin, Picos, SourceLocation,
};
use rustc_hash::FxHashSet;
use serde::Deserialize;
use toml::{Spanned, Value};

use measured::MeasuredText;
use nodes::{NodesText, Size};
use price::BandText;
use reliability::ReliabilityText;
use sensitivity::SensitivityText;

use super::prices::{self, PriceListEntry};
use super::value_limits::{MAX_PRICE, MIN_VALUE};
use super::{Assumptions, Candidate, Constraints, EfficiencyOverrides, JobLimits, Reliability, Study};
use crate::setting::Setting;
use fabricast_workload::job::{FileResolver, Job, JobError, JobText, format_number, name_problem, toml_error};
use fabricast_workload::trace::Contents;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StudyText {
    prices: Option<Spanned<String>>,
    #[serde(default)]
    candidate: Vec<Spanned<CandidateText>>,
    #[serde(default)]
    job: Vec<Spanned<JobText>>,
    #[serde(default)]
    measured: Vec<Spanned<MeasuredText>>,
    constraints: Option<Spanned<ConstraintsText>>,
    assumptions: Option<Spanned<AssumptionsText>>,
    efficiency: Option<Spanned<EfficiencyText>>,
    sensitivity: Option<Spanned<SensitivityText>>,
    reliability: Option<Spanned<ReliabilityText>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of keys")]
struct CandidateText {
    name: Spanned<String>,
    fabric: Spanned<String>,
    nodes: Option<Spanned<NodesText>>,
    gpus: Option<Spanned<u32>>,
    gpu: Option<Spanned<String>>,
    network: Option<Spanned<toml::Table>>,
    nvme: Option<Spanned<DrivesText>>,
    efficiency: Option<Spanned<EfficiencyText>>,
    price_usd: Option<Spanned<BandText>>,
    price_per_hour_usd: Option<Spanned<BandText>>,
    price: Option<Spanned<String>>,
    price_count: Option<Spanned<f64>>,
    node_price_usd: Option<Spanned<BandText>>,
    node_price_per_hour_usd: Option<Spanned<BandText>>,
    power_kw: Option<Spanned<BandText>>,
    node_power_kw: Option<Spanned<BandText>>,
    racks: Option<Spanned<f64>>,
    nodes_per_rack: Option<Spanned<u32>>,
    reliability: Option<Spanned<ReliabilityText>>,
}

/// Drives of a host as a candidate states them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table as `{ read_gb_per_s = 28, write_gb_per_s = 14 }`")]
struct DrivesText {
    read_gb_per_s: Spanned<f64>,
    write_gb_per_s: Spanned<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of keys")]
struct ConstraintsText {
    budget_usd: Option<Spanned<f64>>,
    cost_per_hour_usd: Option<Spanned<f64>>,
    power_kw: Option<Spanned<f64>>,
    racks: Option<Spanned<f64>>,
    max_train_days: Option<Spanned<f64>>,
    min_tokens_per_s: Option<Spanned<f64>>,
    max_ttft_s: Option<Spanned<f64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of keys")]
struct AssumptionsText {
    years: Option<Spanned<f64>>,
    utilization: Option<Spanned<f64>>,
    usd_per_kwh: Option<Spanned<f64>>,
    pue: Option<Spanned<f64>>,
    hosting_usd_per_kw_month: Option<Spanned<f64>>,
    staff_usd_per_year: Option<Spanned<f64>>,
    maintenance_per_year: Option<Spanned<f64>>,
    residual: Option<Spanned<f64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of keys")]
struct EfficiencyText {
    matrix: Option<Spanned<f64>>,
    attention: Option<Spanned<f64>>,
    memory: Option<Spanned<f64>>,
    stream: Option<Spanned<f64>>,
    start: Option<Spanned<String>>,
}

/// Function that returns the price list or the model configuration that a study names: its name for errors, and its
/// text.
pub type Lists<'a> = &'a dyn Fn(&str) -> Result<(String, String), String>;

/// Function that reads the files of a trace, given the name in the job. Returns the name for errors and the bytes of
/// each file.
pub type Traces<'a> = &'a dyn Fn(&str) -> Result<Vec<Contents>, String>;

/// Returns true if a text appears to be a study: TOML with jobs or candidates.
#[must_use]
pub fn is_study(text: &str) -> bool {
    text.parse::<toml::Table>().is_ok_and(|table| table.contains_key("job") || table.contains_key("candidate"))
}

/// Reads a study that uses no price lists and no traces. `source`: name of the text in errors.
///
/// # Errors
/// See [`read_study_with`].
pub fn read_study(text: &str, source: &str) -> Result<Study, JobError> {
    read_study_with(
        text,
        source,
        &|name| Err(format!("`{name}` cannot be searched for here")),
        FileResolver::NONE.traces,
    )
}

/// Reads a study. `source`: name of the text in errors; `lists`: function that returns its price list; `traces`:
/// function that returns the traces of its jobs.
///
/// # Errors
/// [`JobError`] with line and column: invalid TOML, unknown keys, invalid values, duplicate names, no candidate or no
/// job, missing prices or prices in another currency. Errors in a trace have the location in the trace.
pub fn read_study_with(text: &str, source: &str, lists: Lists<'_>, traces: Traces<'_>) -> Result<Study, JobError> {
    let lines = LineIndex::new(text);
    let origin = Origin::new(source, text).with_line_index(&lines);
    let parsed: StudyText = toml::from_str(text).map_err(|error| toml_error(origin, &error))?;
    let reader = Reader { origin };
    let file = SourceLocation::from_source(source);
    if parsed.candidate.is_empty() {
        return Err(JobError::at(&file, "no candidate: expected `[[candidate]]` with name, fabric and nodes"));
    }
    if parsed.job.is_empty() {
        return Err(JobError::at(
            &file,
            "no job: expected `[[job]]` with name, model, parallel and global_batch, or kind = \"inference\" or \"trace\"",
        ));
    }
    let mut list = prices::shipped();
    if let Some(prices_name) = &parsed.prices {
        let prices_error = |reason: String| reader.error_at(prices_name.span(), format!("prices: {reason}"));
        let (name, text) = lists(prices_name.get_ref()).map_err(prices_error)?;
        list.extend(prices::read_list(&text, &name)?);
    }
    let efficiency = reader.efficiency(parsed.efficiency.as_ref())?;
    let reliability = reader.reliability(parsed.reliability.as_ref(), Reliability::published())?;
    let mut candidates: Vec<Candidate> = Vec::new();
    let mut names: FxHashSet<&str> = FxHashSet::default();
    for entry in &parsed.candidate {
        let name = &entry.get_ref().name;
        let sizes = reader.sizes(entry.get_ref())?;
        for size in sizes {
            let candidate = reader.candidate(entry, size, &list, efficiency)?;
            let stated = entry.get_ref().reliability.as_ref();
            let stated = reader.reliability(stated, reliability.unwrap_or_else(Reliability::published))?;
            let candidate = Candidate { reliability: stated.or(reliability), ..candidate };
            if candidates.iter().any(|other| other.name == candidate.name) || names.contains(candidate.name.as_str()) {
                return Err(reader.error_at(name.span(), format!("name: `{}` is given twice", candidate.name)));
            }
            candidates.push(candidate);
        }
        if !names.insert(name.get_ref()) {
            return Err(reader.error_at(name.span(), format!("name: `{}` is given twice", name.get_ref())));
        }
    }
    let priced = candidates.iter().any(|candidate| candidate.price.is_some());
    if let Some(unpriced) = candidates.iter().find(|candidate| priced && candidate.price.is_none()) {
        let name = &unpriced.name;
        let message =
            format!("`{name}` has no price, and others have: expected price_usd, price_per_hour_usd or price");
        return Err(JobError::at(&unpriced.location, message));
    }
    let mut jobs = Vec::new();
    names.clear();
    for entry in &parsed.job {
        let job = entry.get_ref().job(origin, origin.locate(entry.span()), FileResolver { traces, texts: lists })?;
        if !names.insert(entry.get_ref().name.get_ref()) {
            return Err(reader.error_at(entry.get_ref().name.span(), format!("name: `{}` is given twice", job.name())));
        }
        jobs.push(job);
    }
    let pairs = reader.job_assignment(&parsed.job, &candidates)?;
    let mut measured = Vec::new();
    for (run, entry) in parsed.measured.iter().enumerate() {
        measured.extend(reader.measured(run, entry, &candidates, &jobs, &pairs)?);
    }
    let constraints = reader.constraints(parsed.constraints.as_ref())?;
    if let Some(reason) = jobs.iter().find_map(|job| constraints.jobs.undefined_result(job)) {
        return Err(JobError::at(&constraints.location, reason));
    }
    if (constraints.budget.is_some() || constraints.cost_per_hour.is_some())
        && candidates.iter().all(|candidate| candidate.price.is_none())
    {
        return Err(JobError::at(&constraints.location, "constraints on costs, and no candidate has a price"));
    }
    let assumptions = reader.assumptions(parsed.assumptions.as_ref())?;
    let sensitivities = reader.sensitivities(parsed.sensitivity.as_ref().map(Spanned::get_ref))?;
    let needs_prices = |setting: &&Setting| {
        matches!(setting, Setting::GpuPrice(_) | Setting::Utilization(_) | Setting::EnergyPrice(_))
    };
    if let Some(setting) = sensitivities.iter().find(needs_prices).filter(|_| !priced) {
        let location = parsed.sensitivity.as_ref().map_or(file, |text| origin.locate(text.span()));
        return Err(JobError::at(&location, format!("sensitivity: {}, and no candidate has a price", setting.name())));
    }
    let job_keys = work_keys(text);
    Ok(Study {
        candidates,
        jobs,
        job_keys,
        assignment: pairs,
        measured,
        constraints,
        assumptions,
        efficiency,
        sensitivities,
    })
}

/// Keys of a job that do not affect the result of its runs.
const LABEL_KEYS: [&str; 3] = ["name", "candidates", "weight"];

/// Returns the keys and values that describe the work of each `[[job]]`, in order.
fn work_keys(text: &str) -> Vec<BTreeMap<String, String>> {
    let table = text.parse::<toml::Table>().unwrap_or_default();
    let jobs = table.get("job").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let keys = |job: &toml::Table| -> BTreeMap<String, String> {
        let work = job.iter().filter(|(key, _)| !LABEL_KEYS.contains(&key.as_str()));
        work.map(|(key, value)| (key.clone(), value.to_string())).collect()
    };
    jobs.iter().map(|job| job.as_table().map(keys).unwrap_or_default()).collect()
}

/// Reads the only job of a file, given by its keys or as the `[[job]]` of a study, with the study's kernel efficiency.
///
/// # Errors
/// [`JobError`]: see [`read_study_with`]; also for a study with several jobs.
pub fn read_only_job(
    text: &str,
    source: &str,
    texts: Lists<'_>,
    traces: Traces<'_>,
) -> Result<(Job, EfficiencyOverrides), JobError> {
    let lines = LineIndex::new(text);
    let origin = Origin::new(source, text).with_line_index(&lines);
    let syntax_error = |error| toml_error(origin, &error);
    if !is_study(text) {
        let job: JobText = toml::from_str(text).map_err(syntax_error)?;
        return Ok((
            job.job(origin, origin.locate(0..0), FileResolver { traces, texts })?,
            EfficiencyOverrides::default(),
        ));
    }
    let parsed: StudyText = toml::from_str(text).map_err(syntax_error)?;
    let efficiency = Reader { origin }.efficiency(parsed.efficiency.as_ref())?;
    match parsed.job.as_slice() {
        [entry] => {
            Ok((entry.get_ref().job(origin, origin.locate(entry.span()), FileResolver { traces, texts })?, efficiency))
        }
        [] => Err(JobError::at(&SourceLocation::from_source(source), "no job: expected one `[[job]]`")),
        [_, second, ..] => Err(JobError {
            location: origin.locate(second.span()),
            message: format!("{} jobs: expected one", parsed.job.len()),
            help: Some("move each job to a separate file".to_owned()),
        }),
    }
}

/// Maximum valid power in kW: 100 GW.
const MAX_KW: f64 = 1e8;

/// Smallest valid bandwidth of the drives of a host, in GB/s.
const MIN_DRIVE_GB_PER_S: f64 = 0.001;

/// Largest valid bandwidth of the drives of a host, in GB/s.
const MAX_DRIVE_GB_PER_S: f64 = 10_000.0;

/// Maximum valid number of racks, or of items of a price list.
const MAX_ITEMS: f64 = 1e7;

/// Maximum valid power usage effectiveness.
const MAX_PUE: f64 = 10.0;

/// Maximum valid price of a kWh, or of hosting a kW for a month, in the study's currency.
const MAX_PER_KWH: f64 = 1e6;

#[derive(Clone, Copy)]
struct Reader<'a> {
    origin: Origin<'a>,
}

impl Reader<'_> {
    fn error_at(self, bytes: std::ops::Range<usize>, message: impl Into<String>) -> JobError {
        JobError::at(&self.origin.locate(bytes), message)
    }

    /// Reads a number from [`MIN_VALUE`] to `max`; `None` if the key is absent.
    ///
    /// # Errors
    /// [`JobError`] at the value if it is out of range.
    fn positive(self, name: &str, value: Option<&Spanned<f64>>, max: f64) -> Result<Option<f64>, JobError> {
        match value.map(|value| (*value.get_ref(), value.span())) {
            None => Ok(None),
            Some((number, _)) if (MIN_VALUE..=max).contains(&number) => Ok(Some(number)),
            Some((number, bytes)) => {
                let limit = match number > 0.0 && number < MIN_VALUE {
                    true => format!("under {MIN_VALUE}"),
                    false => format!("not over 0 and up to {}", format_number(max)),
                };
                Err(self.error_at(bytes, format!("{name}: {} is {limit}", format_number(number))))
            }
        }
    }

    fn candidate(
        self,
        text: &Spanned<CandidateText>,
        size: Size,
        list: &[PriceListEntry],
        efficiency: EfficiencyOverrides,
    ) -> Result<Candidate, JobError> {
        let (location, text) = (self.origin.locate(text.span()), text.get_ref());
        if let Some(problem) = name_problem(text.name.get_ref()) {
            return Err(self.error_at(text.name.span(), problem));
        }
        let network = text.network.as_ref().map(|network| self.network(network)).transpose()?;
        let (network, spec) = network.unzip();
        let fabric = FabricRequest {
            fabric: text.fabric.get_ref().clone(),
            nodes: size.nodes,
            gpus: text.gpus.as_ref().map(|gpus| *gpus.get_ref()),
            network: spec,
            gpu: text.gpu.as_ref().map(|gpu| gpu.get_ref().clone()),
            drives: text.nvme.as_ref().map(|drives| self.drives(drives)).transpose()?,
        };
        let (price, listed) = self.price(text, list)?.unzip();
        Ok(Candidate {
            name: size.name(text.name.get_ref()),
            machine: size.is_listed.then(|| text.name.get_ref().clone()),
            fabric,
            network,
            efficiency: self.efficiency(text.efficiency.as_ref())?.or(efficiency),
            price,
            price_entry: listed.flatten(),
            price_location: text
                .price
                .as_ref()
                .map_or_else(|| location.clone(), |price| self.origin.locate(price.span())),
            power_kw: self.power(text, size)?,
            racks: self.racks(text, size)?,
            reliability: None,
            location,
            fabric_location: self.origin.locate(text.fabric.span()),
            gpus_location: self.origin.locate(text.gpus.as_ref().map_or_else(|| text.fabric.span(), Spanned::span)),
        })
    }

    /// Reads the bandwidths of the drives of a host.
    ///
    /// # Errors
    /// [`JobError`] at a bandwidth that is out of range.
    fn drives(self, text: &Spanned<DrivesText>) -> Result<HostDrives, JobError> {
        let DrivesText { read_gb_per_s, write_gb_per_s } = text.get_ref();
        let bandwidth = |name: &str, value: &Spanned<f64>| {
            let stated = self.between(name, Some(value), MIN_DRIVE_GB_PER_S, MAX_DRIVE_GB_PER_S)?;
            Ok::<_, JobError>(Bandwidth((stated.unwrap_or_default() * 1e9) as u64))
        };
        Ok(HostDrives {
            read: bandwidth("read_gb_per_s", read_gb_per_s)?,
            write: bandwidth("write_gb_per_s", write_gb_per_s)?,
        })
    }

    /// Reads a `network` table; returns it in command-line syntax and in parsed form.
    ///
    /// # Errors
    /// [`JobError`] at the table if it is invalid.
    fn network(self, table: &Spanned<toml::Table>) -> Result<(String, NetworkSpec), JobError> {
        let mut parts = Vec::new();
        for (key, value) in table.get_ref() {
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Integer(number) => number.to_string(),
                Value::Float(number) => number.to_string(),
                Value::Boolean(value) => value.to_string(),
                Value::Array(sides) => sides.iter().map(Value::to_string).collect::<Vec<_>>().join("x"),
                _ => {
                    return Err(self
                        .error_at(table.span(), format!("network: {key}: expected a number, a text, true or false")));
                }
            };
            parts.push(format!("{key}={text}"));
        }
        let parts = parts.join(",");
        match parts.parse() {
            Ok(spec) => Ok((parts, spec)),
            Err(error) => Err(self.error_at(table.span(), fabricast_topologies::Error::to_string(&error))),
        }
    }

    fn constraints(self, text: Option<&Spanned<ConstraintsText>>) -> Result<Constraints, JobError> {
        let Some(text) = text else { return Ok(Constraints::default()) };
        let (location, text) = (self.origin.locate(text.span()), text.get_ref());
        Ok(Constraints {
            budget: self.positive("budget_usd", text.budget_usd.as_ref(), MAX_PRICE)?,
            cost_per_hour: self.positive("cost_per_hour_usd", text.cost_per_hour_usd.as_ref(), MAX_PRICE)?,
            power_kw: self.positive("power_kw", text.power_kw.as_ref(), MAX_KW)?,
            racks: self.positive("racks", text.racks.as_ref(), MAX_ITEMS)?,
            jobs: JobLimits {
                max_train_days: self.positive("max_train_days", text.max_train_days.as_ref(), MAX_ITEMS)?,
                min_tokens_per_s: self.positive("min_tokens_per_s", text.min_tokens_per_s.as_ref(), MAX_PRICE)?,
                max_ttft_s: self.positive("max_ttft_s", text.max_ttft_s.as_ref(), MAX_ITEMS)?,
            },
            location,
        })
    }

    fn assumptions(self, text: Option<&Spanned<AssumptionsText>>) -> Result<Assumptions, JobError> {
        let defaults = Assumptions::default();
        let Some(text) = text.map(Spanned::get_ref) else { return Ok(defaults) };
        Ok(Assumptions {
            years: self.positive("years", text.years.as_ref(), 100.0)?.unwrap_or(defaults.years),
            utilization: self.positive("utilization", text.utilization.as_ref(), 1.0)?.unwrap_or(defaults.utilization),
            per_kwh: self.positive("usd_per_kwh", text.usd_per_kwh.as_ref(), MAX_PER_KWH)?.unwrap_or(defaults.per_kwh),
            pue: self.between("pue", text.pue.as_ref(), 1.0, MAX_PUE)?.unwrap_or(defaults.pue),
            hosting_per_kw_month: self
                .between("hosting_usd_per_kw_month", text.hosting_usd_per_kw_month.as_ref(), 0.0, MAX_PER_KWH)?
                .unwrap_or(defaults.hosting_per_kw_month),
            staff_per_year: self
                .between("staff_usd_per_year", text.staff_usd_per_year.as_ref(), 0.0, MAX_PRICE)?
                .unwrap_or(defaults.staff_per_year),
            maintenance: self
                .between("maintenance_per_year", text.maintenance_per_year.as_ref(), 0.0, 1.0)?
                .unwrap_or(defaults.maintenance),
            residual: self.between("residual", text.residual.as_ref(), 0.0, 1.0)?.unwrap_or(defaults.residual),
        })
    }

    /// Reads a number from `min` to `max`; `None` if the key is absent.
    ///
    /// # Errors
    /// [`JobError`] at the value if it is out of range.
    fn between(self, name: &str, value: Option<&Spanned<f64>>, min: f64, max: f64) -> Result<Option<f64>, JobError> {
        let Some(value) = value else { return Ok(None) };
        let number = *value.get_ref();
        if (min..=max).contains(&number) {
            return Ok(Some(number));
        }
        let limits = format!("from {} to {}", format_number(min), format_number(max));
        Err(self.error_at(value.span(), format!("{name}: {} is not {limits}", format_number(number))))
    }

    fn efficiency(self, text: Option<&Spanned<EfficiencyText>>) -> Result<EfficiencyOverrides, JobError> {
        let Some(text) = text.map(Spanned::get_ref) else { return Ok(EfficiencyOverrides::default()) };
        let parse_start = |start: &Spanned<String>| {
            start.get_ref().parse::<Picos>().map_err(|error| self.error_at(start.span(), format!("start: {error}")))
        };
        Ok(EfficiencyOverrides {
            matrix: self.positive("matrix", text.matrix.as_ref(), 1.0)?,
            attention: self.positive("attention", text.attention.as_ref(), 1.0)?,
            memory: self.positive("memory", text.memory.as_ref(), 1.0)?,
            stream: self.positive("stream", text.stream.as_ref(), 1.0)?,
            start: text.start.as_ref().map(parse_start).transpose()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::TEMPLATE;
    use super::*;

    const CANDIDATE: &str = "[[candidate]]\nname = \"a\"\nfabric = \"dgx-a100\"\n";
    const JOB: &str = "[[job]]\nname = \"j\"\nglobal_batch = 8\nparallel = \"auto\"\n\
                       model = { layers = 2, hidden = 64, heads = 2, vocab = 64, seq = 8 }\n";

    #[test]
    fn template_is_a_valid_study() {
        let study = read_study(TEMPLATE, "study.toml").unwrap();
        assert!(study.candidates.len() > 1 && !study.jobs.is_empty());
        assert!(study.candidates.iter().all(|candidate| candidate.price.is_some()));
    }

    #[test]
    fn errors_name_location_and_cause() {
        for (lines, location, expected) in [
            ("price_eur = 3", "s.toml:4:1", "unknown field"),
            ("price_usd = { low = 3, high = 2 }", "s.toml:4:13", "expected low ≤ high"),
            ("price_usd = \"dear\"", "s.toml:4:13", "a number or"),
            ("price_usd = 1\nprice_per_hour_usd = 1", "s.toml:5:22", "several prices"),
            ("price = \"HGX H100\"", "s.toml:4:9", "no price of"),
            ("price = \"400G OSFP AOC (Wavesplitter WS-D404-AOC)\"", "s.toml:4:9", "is in JPY, and the study in USD"),
            ("power_kw = -3", "s.toml:4:12", "power_kw: -3 is not from 0.000001 to 100000000"),
            ("power_kw = 1e300", "s.toml:4:12", "power_kw: 1e300 is not from 0.000001 to 100000000"),
            ("power_kw = inf", "s.toml:4:12", "power_kw: inf is not from"),
            ("power_kw = { low = 40, high = 30 }", "s.toml:4:12", "power_kw: expected low ≤ high, not 40 and 30"),
            ("power_kw = \"much\"", "s.toml:4:12", "a number or"),
            ("racks = 1e-300", "s.toml:4:9", "racks: 1e-300 is under 0.000001"),
            ("price_usd = 1.7e308", "s.toml:4:13", "price_usd: 1.7e308 is not from 0.000001 to 1000000000000"),
            ("price_per_hour_usd = 1e-300", "s.toml:4:22", "price_per_hour_usd: 1e-300 is not from"),
            ("price_usd = { low = 1e-300, high = 3 }", "s.toml:4:13", "price_usd: 1e-300 is not from"),
            ("price_usd = { low = 3, high = inf }", "s.toml:4:13", "price_usd: inf is not from"),
            ("price_usd = nan", "s.toml:4:13", "price_usd: NaN is not from"),
            ("price = \"H200 specialty\"\nprice_count = 1e300", "s.toml:5:15", "up to 10000000"),
            ("price_usd = 1\n[constraints]\nbudget_usd = 1e300", "s.toml:6:14", "budget_usd: 1e300 is not"),
            ("price_usd = 1\n[assumptions]\nusd_per_kwh = 1e300", "s.toml:6:15", "usd_per_kwh: 1e300 is not"),
            ("network = { kind = \"star\" }", "s.toml:4:11", "one of `rail`"),
            (
                "nvme = { read_gb_per_s = 0, write_gb_per_s = 1 }",
                "s.toml:4:26",
                "read_gb_per_s: 0 is not from 0.001 to 10000",
            ),
            ("nvme = { read_gb_per_s = 7 }", "s.toml:4:8", "write_gb_per_s"),
            ("nodes = 0.5", "s.toml:4:9", ""),
            ("nodes = 0", "s.toml:4:9", "1 host or more, not 0"),
            ("[[candidate]]\nname = \"a\"\nfabric = \"gh200\"", "s.toml:5:8", "is given twice"),
            ("price_usd = 1\n[[candidate]]\nname = \"b\"\nfabric = \"gh200\"", "s.toml:5:1", "`b` has no price"),
            ("[constraints]\nbudget_usd = 5", "s.toml:4:1", "no candidate has a price"),
            ("[assumptions]\nutilization = 2", "s.toml:5:15", "up to 1"),
            ("[efficiency]\nstart = \"5\"", "s.toml:5:9", "start: "),
        ] {
            let error = read_study(&format!("{CANDIDATE}{lines}\n{JOB}"), "s.toml").unwrap_err().to_string();
            assert!(error.starts_with(&format!("{location}: ")) && error.contains(expected), "{lines}: {error}");
        }
        let measured = "[[measured]]\ncandidate = \"a\"\njob = \"j\"\n";
        let fixed_job = JOB.replace("\"auto\"", "{ tp = 1 }");
        for (job, lines, location, expected) in [
            (JOB, "step_s = 1", "s.toml:7:12", "its parallel degrees are not given"),
            (&fixed_job, "", "s.toml:9:1", "expected step_s"),
            (&fixed_job, "ttft_s = 1", "s.toml:12:10", "a job of training has none"),
            (&fixed_job, "step_s = 0", "s.toml:12:10", "not over 0"),
            (&fixed_job, "step_s = nan", "s.toml:12:10", "not over 0"),
            (&fixed_job, "step_s = 1e9", "s.toml:12:10", "up to 86400"),
            (&fixed_job, "seconds = 1", "s.toml:12:1", "unknown field"),
        ] {
            let error = read_study(&format!("{CANDIDATE}{job}{measured}{lines}\n"), "s.toml").unwrap_err().to_string();
            assert!(error.starts_with(&format!("{location}: ")) && error.contains(expected), "{lines}: {error}");
        }
        let unknown = format!("{CANDIDATE}{fixed_job}{}step_s = 1\n", measured.replace("\"j\"", "\"jj\""));
        let error = read_study(&unknown, "s.toml").unwrap_err();
        assert!(error.to_string().starts_with("s.toml:11:7: job: there is no `jj`"), "{error}");
        assert_eq!(error.help.as_deref(), Some("did you mean `j`?"));
        assert!(read_study(JOB, "s").unwrap_err().to_string().contains("no candidate"));
        assert!(read_study(CANDIDATE, "s").unwrap_err().to_string().contains("no job"));
        // The error for a misspelt key suggests the correct key.
        let misspelt = format!("{CANDIDATE}{}", JOB.replace("global_batch", "globl_batch"));
        assert_eq!(read_study(&misspelt, "s").unwrap_err().help.as_deref(), Some("did you mean `global_batch`?"));
        let duplicate = format!("{CANDIDATE}{JOB}{JOB}");
        assert!(read_study(&duplicate, "s").unwrap_err().to_string().contains("s:10:8: name: `j` is given twice"));
    }
}
