//! `--utilization-over-time`: utilization of the busiest resources over time.

use fabricast_reports::format::{self, Glyphs};
use fabricast_reports::spark;
use fabricast_sim::load::LoadOverTime;
use fabricast_sim::lower::Resource;
use fabricast_sim::utilization::Utilization;
use fabricast_topologies::{Fabric, Picos};
use schemars::JsonSchema;
use serde::Serialize;

use super::bottleneck;

/// Resource with its utilization in each time slice.
#[derive(Clone, Copy)]
pub struct ResourceLoad<'a> {
    pub used: &'a Utilization,
    pub values: &'a [f64],
}

/// Kind of resource. Shared resources and channels are ranked separately.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ResourceKind {
    /// Resource of the fabric: link, memory or switch.
    Fabric,
    /// Channel whose bandwidth the profile limits.
    Channels,
}

/// Returns the `count` resources of a kind with the highest utilization. Of resources with equal utilization, the first
/// ones are returned.
pub fn busiest<'a>(
    utilization: &'a [Utilization],
    load: &'a LoadOverTime,
    kind: ResourceKind,
    count: usize,
) -> Vec<ResourceLoad<'a>> {
    let loads = utilization.iter().zip(load.iter()).map(|(used, values)| ResourceLoad { used, values });
    let is_channel = |entry: &ResourceLoad<'_>| matches!(entry.used.resource, Resource::Channel(..));
    let mut loads: Vec<ResourceLoad<'_>> =
        loads.filter(|entry| entry.used.bytes > 0.0 && is_channel(entry) == (kind == ResourceKind::Channels)).collect();
    loads.sort_by(|a, b| b.used.fraction.total_cmp(&a.used.fraction));
    loads.truncate(count);
    loads
}

/// JSON of the utilization over time.
#[derive(Serialize, JsonSchema)]
pub struct LoadJson {
    /// Duration of a time slice, in µs.
    slice_us: f64,
    /// Resources with the highest utilization.
    resources: Vec<ResourceJson>,
    #[serde(skip)]
    slice: Picos,
}

/// Utilization of a resource over time.
#[derive(Serialize, JsonSchema)]
struct ResourceJson {
    /// Name of the resource.
    resource: String,
    /// Utilization in each time slice, as a fraction.
    values: Vec<f64>,
    #[serde(skip)]
    mean: f64,
}

/// Returns the utilization over time if the flag is given.
pub fn load_json(
    flag: Option<u32>,
    utilization: &[Utilization],
    load: Option<&LoadOverTime>,
    fabric: &Fabric,
) -> Option<LoadJson> {
    Some(LoadJson::new(utilization, load?, flag?, fabric))
}

/// Width of a sparkline, in characters.
const WIDTH: usize = 50;

impl LoadJson {
    fn new(utilization: &[Utilization], load: &LoadOverTime, count: u32, fabric: &Fabric) -> Self {
        let select = |kind| busiest(utilization, load, kind, count as usize);
        let resources =
            select(ResourceKind::Fabric).into_iter().chain(select(ResourceKind::Channels)).map(|busy| ResourceJson {
                resource: bottleneck::name(busy.used.resource, fabric),
                values: busy.values.to_vec(),
                mean: busy.used.fraction,
            });
        Self { slice_us: load.slice.us(), resources: resources.collect(), slice: load.slice }
    }

    /// Formats one line per resource: name, sparkline, mean and peak.
    pub fn text(&self, glyphs: Glyphs) -> String {
        let slices = self.resources.first().map_or(0, |entry| entry.values.len());
        let interval = Picos(self.slice.0 * slices.div_ceil(WIDTH.max(1)) as u64);
        let mut text = format!("utilization over time, {} a mark\n", format::time(interval));
        let width = self.resources.iter().map(|entry| entry.resource.chars().count()).max().unwrap_or(0);
        for entry in &self.resources {
            let peak = entry.values.iter().copied().fold(0.0, f64::max);
            let line = spark::line(&entry.values, WIDTH, glyphs);
            let (mean, peak) = (format::percent(entry.mean), format::percent(peak));
            text.push_str(&format!("{:width$}  {line}  {mean:>4} %, at most {peak} %\n", entry.resource));
        }
        text
    }
}
