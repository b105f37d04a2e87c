//! `list`: shipped GPU models and presets.

use fabricast_reports::table::{Column, Table, Unit, Value};
use fabricast_topologies::gpus::{self, GpuModel};
use schemars::JsonSchema;
use serde::Serialize;

use super::fabric;
use crate::args::ListCommand;
use crate::document::Document;
use crate::failure::Failure;
use crate::output::{Output, Verbosity};
use crate::output_format::Format;

pub fn run(command: &ListCommand, output: &Output) -> Result<(), Failure> {
    match command {
        ListCommand::Gpus => gpus(output),
        ListCommand::Presets => fabric::list(output),
    }
}

/// JSON of a GPU model in `list gpus`.
#[derive(Serialize, JsonSchema)]
pub struct GpuJson<'a> {
    /// Marketing name.
    name: &'a str,
    /// Other names, as tools print them.
    aliases: &'a [String],
    /// Compute capability, such as `9.0`, or gfx number.
    capability: String,
    /// Number of streaming multiprocessors or compute units.
    sm_count: Option<u32>,
    /// Memory, in bytes.
    memory_bytes: Option<u64>,
    /// Memory bandwidth, in GB/s.
    memory_bandwidth_gb_per_s: Option<f64>,
    /// Number of NVLinks or xGMI links.
    links: u32,
    /// Bandwidth of a link in each direction, in GB/s.
    link_gb_per_s: Option<f64>,
    /// PCIe generation.
    pcie_generation: Option<u32>,
    /// True if the switches of its boards reduce and multicast.
    multicast: bool,
    /// Dense 16-bit rate, in TFLOP/s.
    bf16_tflops: Option<f64>,
    /// Dense 8-bit rate, in TFLOP/s.
    fp8_tflops: Option<f64>,
    /// Dense 4-bit rate, in TFLOP/s.
    fp4_tflops: Option<f64>,
    /// Measured 16-bit rate of large GEMMs, in TFLOP/s.
    gemm_tflops: Option<f64>,
    /// Power limit, in watts.
    power_w: Option<f64>,
    /// Sources of the figures.
    source: &'a [String],
    /// Keys of figures that no public document confirms.
    unverified: &'a [String],
}

impl<'a> GpuJson<'a> {
    fn new(model: &'a GpuModel) -> Self {
        Self {
            name: &model.name,
            aliases: &model.aliases,
            capability: model.capability(),
            sm_count: model.sm_count,
            memory_bytes: model.memory.map(|memory| memory.0),
            memory_bandwidth_gb_per_s: model.memory_bandwidth.map(fabricast_topologies::Bandwidth::gb_per_s),
            links: model.links,
            link_gb_per_s: model.link.map(fabricast_topologies::Bandwidth::gb_per_s),
            pcie_generation: model.pcie_generation,
            multicast: model.multicast_switch.is_some(),
            bf16_tflops: model.bf16_tflops,
            fp8_tflops: model.fp8_tflops,
            fp4_tflops: model.fp4_tflops,
            gemm_tflops: model.gemm_tflops,
            power_w: model.power_w,
            source: &model.source,
            unverified: &model.unverified,
        }
    }
}

fn gpus(output: &Output) -> Result<(), Failure> {
    let models: Vec<GpuJson<'_>> = gpus::models().iter().map(GpuJson::new).collect();
    if output.format == Format::Json {
        return output.write_json(&Document::List.with_rows(&models));
    }
    let mut table = Table::new(vec![
        Column::new("name", "model", Unit::Text),
        Column::new("capability", "capability", Unit::Text),
        Column::new("sm_count", "SMs", Unit::Number),
        Column::new("memory_bytes", "memory", Unit::Bytes),
        Column::new("memory_bandwidth_gb_per_s", "bandwidth", Unit::GbPerS),
        Column::new("links", "links", Unit::Number),
        Column::new("link_gb_per_s", "each way", Unit::GbPerS),
        Column::new("pcie_generation", "PCIe", Unit::Number),
        Column::new("bf16_tflops", "16-bit TFLOP/s", Unit::Text),
    ]);
    for model in &models {
        table.row(vec![
            Value::text(model.name).into(),
            Value::text(model.capability.clone()).into(),
            Value::or_missing(model.sm_count, |count| Value::Count(count.into())).into(),
            Value::or_missing(model.memory_bytes, |bytes| Value::Bytes(fabricast_topologies::Bytes(bytes))).into(),
            Value::or_missing(model.memory_bandwidth_gb_per_s, Value::Rate).into(),
            Value::Count(model.links.into()).into(),
            Value::or_missing(model.link_gb_per_s, Value::Rate).into(),
            Value::or_missing(model.pcie_generation, |count| Value::Count(count.into())).into(),
            Value::or_missing(model.bf16_tflops, |tflops| Value::text(format!("{tflops}"))).into(),
        ]);
    }
    if output.format == Format::Csv {
        return output.write(&super::csv(&table)?);
    }
    let mut text = table.text(&output.text_options());
    if output.verbosity == Verbosity::Verbose {
        text.push_str("\nsources\n");
        text.extend(models.iter().map(|model| {
            let unverified = match model.unverified {
                [] => String::new(),
                keys => format!(" (not verified: {})", keys.join(", ")),
            };
            format!("  {}: {}{unverified}\n", model.name, model.source.join("; "))
        }));
    }
    output.write(&text)
}
