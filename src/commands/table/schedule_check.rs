//! `table --check` of a schedule file: verifies the schedule once and predicts its time at several sizes.

use fabricast_search::export::Finding;
use fabricast_search::plan::plan;
use fabricast_sim::engine::Watch;
use fabricast_sim::monitor::Monitor;
use fabricast_sim::schedule::format::{CallSizes, Format, shortened};
use fabricast_sim::schedule::{Collective, Schedule};
use fabricast_sim::verify::{VerifyOptions, verify};
use fabricast_sim::{SimulationOptions, simulate};
use fabricast_topologies::Bytes;

use super::check_setting::CheckSetting;
use super::report::{SelectedStrategy, SelectionRow};
use crate::args::{Sizes, StrategyArgs};
use crate::failure::Failure;
use crate::setup;

/// Schedule from a file that is checked as a table.
pub struct CheckedSchedule<'a> {
    pub format: Format,
    pub schedule: &'a Schedule,
    /// Smallest and largest size that the file applies to.
    pub sizes: CallSizes,
    /// Name of the file.
    pub name: &'a str,
}

/// Alignment of chunks in schedules of other tools, in bytes: `buffer_alignment` of MSCCL++'s plans, and the vector
/// size of MSCCL's kernels.
const ALIGNMENT: u64 = 16;

/// Returns findings on the requested sizes, and a row for each size that the file applies to.
///
/// # Errors
/// [`Failure`]: the schedule and the fabric have different numbers of ranks, or a simulation fails.
pub fn rows(
    file: &CheckedSchedule<'_>,
    setting: &CheckSetting<'_>,
    requested: Option<&Sizes>,
    flags: &StrategyArgs,
) -> Result<(Vec<Finding>, Vec<SelectionRow>), Failure> {
    let call = file.schedule.header().call;
    if call.ranks != setting.ranks() {
        let (name, fabric) = (file.name, setting.fabric.name());
        let message = format!("{name}: the schedule is of {} ranks, {fabric} has {}", call.ranks, setting.ranks());
        return Err(Failure::input_with_help(message, "name the fabric that it is for with --fabric, --nodes, --gpus"));
    }
    let (mut findings, sizes) = file.sizes_to_predict(requested);
    let fault = verify(file.schedule, &VerifyOptions::default()).err().map(|fault| fault.to_string());
    if sizes.is_empty() {
        findings.extend(fault.map(|fault| Finding::error(None, fault)));
        return Ok((findings, Vec::new()));
    }
    let delays = Vec::new();
    let environment = setup::environment(setting.fabric, setting.router, setting.placement, setting.profile, &delays);
    let restriction = setup::restriction(flags);
    let collectives: [Collective; 1] = [call.collective];
    let request = setting.request(call.buffers, call.root, &collectives, &sizes, &restriction);
    let planned = plan(&request, Monitor::default())?;
    let selection = file.selection();
    let rows = planned.rows.iter().map(|row| {
        let time = match fault {
            Some(_) => None,
            None => {
                let schedule = file.schedule.clone().with_bytes(Some(row.bytes));
                Some(
                    simulate(&schedule, environment, setting.mode, SimulationOptions::default(), Watch::default())?
                        .time,
                )
            }
        };
        Ok(SelectionRow {
            collective: call.collective,
            bytes: row.bytes,
            selected: Some(selection.clone()),
            time,
            library_default: row.library_default.as_ref().map(|default| default.timed.time),
            plan: row.pick.time,
            reason: fault.clone(),
        })
    });
    Ok((findings, rows.collect::<Result<_, Failure>>()?))
}

impl CheckedSchedule<'_> {
    /// Name, protocol and number of thread blocks of the schedule.
    fn selection(&self) -> SelectedStrategy {
        let header = self.schedule.header();
        // The name comes from an untrusted file.
        let name: String = header.name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        SelectedStrategy {
            algorithm: shortened(&name),
            protocol: Some(header.protocol),
            channels: Some(header.channels),
        }
    }

    /// Returns the sizes to predict, with findings on sizes that are left out. Requested sizes outside the range of the
    /// file are left out. Without requested sizes, the default sizes within the range are used, and the ends of the
    /// range. A schedule of fabricast has one size and is scaled to the requested ones.
    fn sizes_to_predict(&self, requested: Option<&Sizes>) -> (Vec<Finding>, Vec<Bytes>) {
        let schedule_size = self.schedule.header().call.bytes;
        let CallSizes { min: first, max: last } = self.sizes;
        let default_sizes = Sizes::default().0;
        match requested {
            Some(Sizes(requested)) if self.format == Format::Json => (Vec::new(), requested.clone()),
            None if first == last => (Vec::new(), vec![schedule_size]),
            Some(Sizes(requested)) => {
                let (inside, outside): (Vec<Bytes>, Vec<Bytes>) =
                    requested.iter().copied().partition(|bytes| (first..=last).contains(bytes));
                let message = || {
                    let last = if last.0 == u64::MAX { "any".to_owned() } else { last.0.to_string() };
                    format!(
                        "{} of the {} requested sizes are not evaluated: the file is for {} to {last} bytes",
                        outside.len(),
                        requested.len(),
                        first.0
                    )
                };
                ((!outside.is_empty()).then(|| Finding::warning(None, message())).into_iter().collect(), inside)
            }
            None => {
                // Ends of the range, rounded to sizes at which every chunk is a multiple of [`ALIGNMENT`].
                let unit = u64::from(self.schedule.header().layout.chunks()).max(1).saturating_mul(ALIGNMENT);
                let ends = [first.0.checked_next_multiple_of(unit), Some(last.0 - last.0 % unit)];
                let ends = ends.into_iter().flatten().map(Bytes).filter(|end| {
                    default_sizes.first().is_some_and(|min| end >= min)
                        && default_sizes.last().is_some_and(|max| end <= max)
                });
                let mut sizes: Vec<Bytes> =
                    default_sizes.iter().copied().chain(ends).filter(|bytes| (first..=last).contains(bytes)).collect();
                sizes.sort_unstable();
                sizes.dedup();
                if sizes.is_empty() {
                    sizes.push(schedule_size);
                }
                (Vec::new(), sizes)
            }
        }
    }
}
