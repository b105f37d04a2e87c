//! `list`: shipped GPU models, models of jobs, prices and presets.

use fabricast_reports::table::{Column, Table, Unit, Value};
use fabricast_study::PriceUnit;
use fabricast_topologies::gpus::{self, GpuModel};
use fabricast_workload::job::{NamedModel, named_models};
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
        ListCommand::Models => models(output),
        ListCommand::Prices => prices(output),
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
    /// Generation of the GPU's PCIe link: 5 is PCIe 5.0.
    pcie_generation: Option<u32>,
    /// True if the NVSwitches of the GPU's HGX boards support reduction and multicast.
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
        Column::new("pcie_generation", "PCIe", Unit::Number).spare(),
        Column::new("bf16_tflops", "16-bit TFLOP/s", Unit::Text).spare(),
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

/// JSON of a model in `list models`.
#[derive(Serialize, JsonSchema)]
pub struct ModelJson {
    /// Name by which jobs refer to the model.
    name: String,
    /// Number of parameters.
    parameters: u64,
    /// Number of layers.
    layers: u64,
    /// Hidden size.
    hidden: u64,
    /// Number of attention heads.
    heads: u64,
    /// Number of heads of keys and values.
    kv_heads: u64,
    /// Number of experts of a layer; 0 for dense models.
    experts: u64,
    /// Number of experts that a token uses.
    experts_per_token: u64,
    /// Default sequence length of training, in tokens.
    seq: u64,
    /// Simplification in the representation of the model; null if there is none.
    note: Option<String>,
    /// Sources of the figures.
    source: String,
}

impl From<NamedModel> for ModelJson {
    fn from(NamedModel { name, source, note, model }: NamedModel) -> Self {
        Self {
            name,
            parameters: model.parameters(),
            layers: model.layers,
            hidden: model.hidden,
            heads: model.heads,
            kv_heads: model.kv_heads,
            experts: model.experts,
            experts_per_token: model.experts_per_token,
            seq: model.seq,
            note,
            source,
        }
    }
}

fn models(output: &Output) -> Result<(), Failure> {
    let models: Vec<ModelJson> = named_models()?.into_iter().map(ModelJson::from).collect();
    if output.format == Format::Json {
        return output.write_json(&Document::Models.with_rows(&models));
    }
    let mut table = Table::new(vec![
        Column::new("name", "model", Unit::Text),
        Column::new("parameters", "10⁹ parameters", Unit::Text),
        Column::new("layers", "layers", Unit::Number),
        Column::new("hidden", "hidden", Unit::Number),
        Column::new("heads", "heads", Unit::Number),
        Column::new("kv_heads", "KV heads", Unit::Number),
        Column::new("experts", "experts", Unit::Number),
        Column::new("experts_per_token", "per token", Unit::Number),
        Column::new("seq", "seq", Unit::Number).spare(),
        Column::new("source", "source", Unit::Text).spare(),
    ]);
    for model in &models {
        let parameters = match output.format {
            Format::Csv => model.parameters.to_string(),
            _ => format!("{:.1}", model.parameters as f64 / 1e9),
        };
        table.row(vec![
            Value::text(&*model.name).into(),
            Value::text(parameters).into(),
            Value::Count(model.layers).into(),
            Value::Count(model.hidden).into(),
            Value::Count(model.heads).into(),
            Value::Count(model.kv_heads).into(),
            Value::Count(model.experts).into(),
            Value::Count(model.experts_per_token).into(),
            Value::Count(model.seq).into(),
            Value::text(&*model.source).into(),
        ]);
    }
    if output.format == Format::Csv {
        return output.write(&super::csv(&table)?);
    }
    for model in &models {
        if let Some(note) = &model.note {
            table.note(format!("{}: {note}", model.name));
        }
    }
    table.note("other models: model = { hf = \"config.json\" } with a configuration of Hugging Face");
    output.write(&table.text(&output.text_options()))
}

/// JSON of a price in `list prices`.
#[derive(Serialize, JsonSchema)]
pub struct PriceJson {
    /// Name by which candidates refer to the price.
    item: String,
    /// Lowest known price for one unit.
    low: f64,
    /// Highest known price for one unit.
    high: f64,
    /// Currency of the prices.
    currency: String,
    /// Unit of the price: `each`, `node`, `gpu`, `rack`, `hour`, `node_hour` or `gpu_hour`.
    unit: &'static str,
    /// Date of the price, as stated in its source.
    date: String,
    /// Source of the price.
    source: String,
}

fn unit_name(unit: PriceUnit) -> &'static str {
    match unit {
        PriceUnit::Each => "each",
        PriceUnit::Node => "node",
        PriceUnit::Gpu => "gpu",
        PriceUnit::Rack => "rack",
        PriceUnit::Hour => "hour",
        PriceUnit::NodeHour => "node_hour",
        PriceUnit::GpuHour => "gpu_hour",
    }
}

fn prices(output: &Output) -> Result<(), Failure> {
    let prices: Vec<PriceJson> = fabricast_study::shipped()
        .into_iter()
        .map(|entry| PriceJson {
            unit: unit_name(entry.unit),
            item: entry.item,
            low: entry.low,
            high: entry.high,
            currency: entry.currency,
            date: entry.date,
            source: entry.source,
        })
        .collect();
    if output.format == Format::Json {
        return output.write_json(&Document::Prices.with_rows(&prices));
    }
    let mut table = Table::new(vec![
        Column::new("item", "price", Unit::Text),
        Column::new("low", "low", Unit::Number),
        Column::new("high", "high", Unit::Number),
        Column::new("currency", "currency", Unit::Text).spare(),
        Column::new("unit", "unit", Unit::Text),
        Column::new("date", "date", Unit::Text),
        Column::new("source", "source", Unit::Text).spare(),
    ]);
    for price in &prices {
        table.row(vec![
            Value::text(&*price.item).into(),
            Value::Number(price.low).into(),
            Value::Number(price.high).into(),
            Value::text(&*price.currency).into(),
            Value::text(price.unit).into(),
            Value::text(&*price.date).into(),
            Value::text(&*price.source).into(),
        ]);
    }
    if output.format == Format::Csv {
        return output.write(&super::csv(&table)?);
    }
    output.write(&table.text(&output.text_options()))
}
