//! Choices of the form's lists: the names that studies accept, from the lists that `fabricast list` shows.

use std::sync::OnceLock;

use fabricast_reports::format::significant;
use fabricast_study::{CURRENCY, PriceUnit, shipped};
use fabricast_topologies::fabric::Figures;
use fabricast_topologies::preset;
use fabricast_workload::job::{FrameworkKind, frameworks, named_models};

/// Choice of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Value in links, and in studies where it is a name.
    pub value: String,
    /// Label for readers.
    pub label: String,
}

impl Choice {
    fn new(value: &str, label: impl Into<String>) -> Self {
        Self { value: value.to_owned(), label: label.into() }
    }

    fn named(value: &str) -> Self {
        Self::new(value, value)
    }
}

/// Value for the absence of a machine or a price.
pub const NONE: &str = "none";

/// Value of a price that the form states as a number.
pub const OWN_PRICE: &str = "own";

/// Value of the kind of work that is training.
pub const TRAINING: &str = "training";

/// Value of the NICs that the preset has.
pub const PRESET_NICS: &str = "preset";

/// Declares a function that returns a list, which is built on the first call.
macro_rules! lists {
    ($($(#[$doc:meta])* $name:ident => $build:expr;)*) => {
        $($(#[$doc])*
        pub fn $name() -> &'static [Choice] {
            static LIST: OnceLock<Vec<Choice>> = OnceLock::new();
            LIST.get_or_init(|| $build)
        })*
    };
}

lists! {
    /// Kinds of work.
    works => vec![Choice::new(TRAINING, "Training"), Choice::new("inference", "Inference")];
    /// Language models (`fabricast list models`).
    models => named_models().unwrap_or_default().into_iter().map(|named| {
        let label = format!("{} ({} billion parameters)", named.name, significant(named.model.parameters() as f64 / 1e9));
        Choice { value: named.name, label }
    }).collect();
    /// Types of the inputs of GEMMs.
    precisions => vec![
        Choice::new("bf16", "16 bits (bf16)"),
        Choice::new("fp8", "8 bits (fp8)"),
        Choice::new("nvfp4", "4 bits (nvfp4): inference on Blackwell"),
    ];
    /// Software for training.
    training_software => software(FrameworkKind::Training);
    /// Software for inference.
    inference_software => software(FrameworkKind::Inference);
    /// Sharding of the optimizer's state, gradients and weights.
    zero_stages => vec![
        Choice::new("0", "nothing"),
        Choice::new("1", "optimizer state"),
        Choice::new("2", "optimizer state, gradients"),
        Choice::new("3", "optimizer state, gradients, weights (FSDP)"),
    ];
    /// Activation recomputation.
    recomputations => vec![
        Choice::named("none"),
        Choice::new("selective", "selective (attention)"),
        Choice::new("full", "full (each layer)"),
    ];
    /// Machines (`fabricast list presets`).
    machines => preset::names().map(|name| {
        let label = preset::load(name).ok().map(|fabric| {
            let gpus = fabric.gpus();
            let hosts = fabric.group_by_host(gpus).len().max(1);
            let of_hosts = if hosts > 1 { format!("{hosts} hosts of ") } else { String::new() };
            let per_host = gpus.len() / hosts;
            format!("{name} ({of_hosts}{per_host} GPU{})", if per_host == 1 { "" } else { "s" })
        });
        Choice { value: name.to_owned(), label: label.unwrap_or_else(|| name.to_owned()) }
    }).collect();
    /// Machines, or none.
    optional_machines => [&[Choice::new(NONE, "no machine")], machines()].concat();
    /// Networks between hosts.
    networks => vec![
        Choice::new("rail", "rail-optimized"),
        Choice::new("fat_tree", "fat tree"),
    ];
    /// Rates of the NICs.
    nics => [100, 200, 400, 800].iter().fold(vec![Choice::new(PRESET_NICS, "NICs of the preset")], |mut list, rate| {
        list.push(Choice::new(&rate.to_string(), format!("{rate} Gb/s")));
        list
    });
    /// Prices of machines (`fabricast list prices`): those whose unit determines the price of any number of hosts. Prices
    /// of GPUs alone, and of hosts without them, are parts of the price of a machine.
    prices => {
        let mut list = vec![
            Choice::new(OWN_PRICE, format!("custom, {CURRENCY} per GPU-hour")),
            Choice::new(NONE, "none: compare times only"),
        ];
        let entries = shipped();
        for (number, entry) in entries.iter().enumerate() {
            let unit = match entry.unit {
                PriceUnit::Node => "host",
                PriceUnit::Rack if entry.hosts.is_some() => "rack",
                PriceUnit::NodeHour => "host-hour",
                PriceUnit::GpuHour => "GPU-hour",
                PriceUnit::Gpu | PriceUnit::Rack | PriceUnit::Each | PriceUnit::Hour => continue,
            };
            // Studies use the last entry of a name.
            let is_replaced = entries.iter().skip(number + 1).any(|later| later.item == entry.item);
            if entry.currency != CURRENCY || is_replaced || entry.item.contains("non-GPU") {
                continue;
            }
            let amount = match entry.low < entry.high {
                true => format!("{} to {}", significant(entry.low), significant(entry.high)),
                false => significant(entry.low),
            };
            list.push(Choice::new(&entry.item, format!("{}: {amount} {CURRENCY} per {unit}", entry.item)));
        }
        list
    };
}

/// Forms of GPUs by which names of prices distinguish variants of a chip.
const FORM_FACTORS: [&str; 3] = ["SXM", "PCIe", "NVL"];

/// Returns true if the name of a price contains the chip of a GPU model, such as H100, and no other form factor than
/// the model's.
pub fn names_model(price: &str, model: &str) -> bool {
    let parts = |text: &str| -> Vec<String> {
        text.split(|character: char| !character.is_alphanumeric()).map(str::to_owned).collect()
    };
    let (price, model) = (parts(price), parts(model));
    let chip = model.iter().find(|word| word.contains(|character: char| character.is_ascii_digit()));
    let has = |words: &[String], word: &str| words.iter().any(|one| one == word);
    chip.is_some_and(|chip| price.contains(chip))
        && FORM_FACTORS.into_iter().all(|form| !has(&price, form) || has(&model, form))
}

/// Returns the GPU model of a preset, if it is known.
pub fn gpu_model(preset: &str) -> Option<String> {
    let fabric = preset::load(preset).ok()?;
    match &fabric.node(*fabric.gpus().first()?).figures {
        Figures::Gpu(figures) => figures.model.clone(),
        _ => None,
    }
}

/// Names of the software of a kind, without the versions.
fn software(kind: FrameworkKind) -> Vec<Choice> {
    let mut names: Vec<&str> =
        frameworks().iter().filter(|one| one.kind == kind).map(|one| one.name.as_str()).collect();
    names.dedup();
    names.into_iter().map(Choice::named).collect()
}
