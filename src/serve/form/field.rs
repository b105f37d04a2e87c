//! Fields of the form: name in links, label, and valid values.

use fabricast_topologies::variants::variants;
use strum::{EnumCount, VariantArray};

use super::choice::{self, Choice};

/// Field of the form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Field {
    /// Kind of work: training or inference.
    Work,
    /// Language model.
    Model,
    /// Type of the inputs of GEMMs.
    Precision,
    /// Software that trains.
    TrainingSoftware,
    /// Sequences of a training step.
    GlobalBatch,
    /// Tokens to train on, in billions.
    TrainTokens,
    /// State that data-parallel ranks shard.
    Zero,
    /// Activation recomputation.
    Recompute,
    /// Software that serves requests.
    InferenceSoftware,
    /// Prompt tokens of a request.
    PromptTokens,
    /// Output tokens of a request.
    OutputTokens,
    /// Concurrent requests on all replicas.
    Concurrency,
    /// Limit on the time to first token, in seconds.
    Ttft,
    /// Limit on the time per output token, in milliseconds.
    Tpot,
    /// Setting of one of the compared machines.
    Machine(Slot, MachineField),
    /// Depreciation period of purchases, in years.
    Years,
    /// Share of the time in use, in percent.
    Utilization,
    /// Price of energy, in USD per kWh.
    Energy,
}

/// Position of a machine in the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EnumCount, VariantArray)]
pub enum Slot {
    /// First machine, which is always present.
    A,
    /// Second machine.
    B,
    /// Third machine.
    C,
}

impl Slot {
    /// All positions in order.
    pub const ALL: [Self; Self::COUNT] = variants();

    /// Letter that names the machine.
    pub fn letter(self) -> char {
        match self {
            Self::A => 'A',
            Self::B => 'B',
            Self::C => 'C',
        }
    }
}

/// Setting of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EnumCount, VariantArray)]
pub enum MachineField {
    /// Preset of a host or a rack.
    Preset,
    /// Number of hosts.
    Nodes,
    /// Topology of the network between hosts.
    Network,
    /// Line rate of a NIC.
    Nic,
    /// Oversubscription of the leaf switches.
    Oversubscription,
    /// Price by name, the form's own, or none.
    Price,
    /// Own price of a GPU-hour, in USD.
    GpuHour,
    /// Power of a host, in kW; 0 if it is not stated.
    Power,
}

impl MachineField {
    /// All settings in the order of the form.
    pub const ALL: [Self; Self::COUNT] = variants();
}

/// Spacing of a slider's positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Spacing {
    /// Equal distances.
    Linear {
        /// Distance between two positions.
        step: f64,
    },
    /// Powers of two and the numbers halfway between them: 1, 1.5, 2, 3, 4, 6, …
    Doubling,
}

/// Kind of numbers that a field accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberKind {
    /// Whole numbers.
    Whole,
    /// Any number in the range.
    Real,
}

/// Valid numbers of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// Smallest valid number.
    pub min: f64,
    /// Largest valid number.
    pub max: f64,
    /// Number of a new form.
    pub default: f64,
    /// Spacing of the slider.
    pub spacing: Spacing,
    /// Kind of numbers.
    pub kind: NumberKind,
}

impl Range {
    const fn whole(min: f64, max: f64, default: f64) -> Self {
        Self { min, max, default, spacing: Spacing::Doubling, kind: NumberKind::Whole }
    }

    const fn real(min: f64, max: f64, default: f64, step: f64) -> Self {
        Self { min, max, default, spacing: Spacing::Linear { step }, kind: NumberKind::Real }
    }

    /// Returns the positions of the slider in ascending order, from the smallest to the largest number.
    pub fn positions(&self) -> Vec<f64> {
        let mut positions = vec![self.min];
        match self.spacing {
            Spacing::Linear { step } => {
                let count = ((self.max - self.min) / step).round() as u32;
                // Rounded to the digits of prices and shares, because steps such as 0.05 have no exact representation.
                positions.extend((1..count).map(|number| ((self.min + f64::from(number) * step) * 1e4).round() / 1e4));
            }
            Spacing::Doubling => {
                let mut power = 1.0;
                while power < self.max {
                    let halfway = power * 1.5;
                    let is_valid = |value: f64| self.kind == NumberKind::Real || value.fract() == 0.0;
                    positions.extend(
                        [power, halfway]
                            .into_iter()
                            .filter(|&value| value > self.min && value < self.max && is_valid(value)),
                    );
                    power *= 2.0;
                }
            }
        }
        positions.push(self.max);
        positions
    }
}

/// Valid values of a field.
#[derive(Clone, Copy, Debug)]
pub enum Values {
    /// One of a list.
    List {
        /// Choices in the order of the form.
        choices: &'static [Choice],
        /// Value of a new form.
        default: &'static str,
    },
    /// A number.
    Number(Range),
}

impl Field {
    /// Returns all fields in the order of the form.
    pub fn all() -> impl Iterator<Item = Self> {
        let job = [
            Self::Work,
            Self::Model,
            Self::Precision,
            Self::TrainingSoftware,
            Self::GlobalBatch,
            Self::TrainTokens,
            Self::Zero,
            Self::Recompute,
            Self::InferenceSoftware,
            Self::PromptTokens,
            Self::OutputTokens,
            Self::Concurrency,
            Self::Ttft,
            Self::Tpot,
        ];
        let machines = Slot::ALL.into_iter().flat_map(Self::machine_fields);
        job.into_iter().chain(machines).chain([Self::Years, Self::Utilization, Self::Energy])
    }

    /// Returns the fields of a machine in the order of the form.
    pub fn machine_fields(slot: Slot) -> impl Iterator<Item = Self> {
        MachineField::ALL.into_iter().map(move |field| Self::Machine(slot, field))
    }

    /// Returns the name in links, which is also the name of the control.
    pub fn key(self) -> String {
        let name = match self {
            Self::Work => "work",
            Self::Model => "model",
            Self::Precision => "precision",
            Self::TrainingSoftware => "training_software",
            Self::GlobalBatch => "global_batch",
            Self::TrainTokens => "train_tokens",
            Self::Zero => "zero",
            Self::Recompute => "recompute",
            Self::InferenceSoftware => "inference_software",
            Self::PromptTokens => "prompt_tokens",
            Self::OutputTokens => "output_tokens",
            Self::Concurrency => "concurrency",
            Self::Ttft => "ttft_s",
            Self::Tpot => "tpot_ms",
            Self::Years => "years",
            Self::Utilization => "utilization",
            Self::Energy => "usd_per_kwh",
            Self::Machine(slot, field) => {
                let name = match field {
                    MachineField::Preset => "machine",
                    MachineField::Nodes => "nodes",
                    MachineField::Network => "network",
                    MachineField::Nic => "nic",
                    MachineField::Oversubscription => "oversubscription",
                    MachineField::Price => "price",
                    MachineField::GpuHour => "usd_per_gpu_hour",
                    MachineField::Power => "kw_per_node",
                };
                return format!("{name}_{}", slot.letter().to_ascii_lowercase());
            }
        };
        name.to_owned()
    }

    /// Finds the field with a name.
    pub fn find(key: &str) -> Option<Self> {
        Self::all().find(|field| field.key() == key)
    }

    /// Returns the label of the control.
    pub fn label(self) -> &'static str {
        match self {
            Self::Work => "Workload",
            Self::Model => "Model",
            Self::Precision => "Precision",
            Self::TrainingSoftware | Self::InferenceSoftware => "Software",
            Self::GlobalBatch => "Global batch, sequences",
            Self::TrainTokens => "Tokens to train on, billions",
            Self::Zero => "Sharded over data-parallel GPUs",
            Self::Recompute => "Activation recomputation",
            Self::PromptTokens => "Prompt tokens of a request",
            Self::OutputTokens => "Output tokens of a request",
            Self::Concurrency => "Concurrent requests",
            Self::Ttft => "Limit: time to first token, s",
            Self::Tpot => "Limit: time per output token, ms",
            Self::Years => "Depreciation, years",
            Self::Utilization => "Utilization, %",
            Self::Energy => "Energy, USD per kWh",
            Self::Machine(_, field) => match field {
                MachineField::Preset => "Machine",
                MachineField::Nodes => "Hosts",
                MachineField::Network => "Network",
                MachineField::Nic => "NICs",
                MachineField::Oversubscription => "Oversubscription, n to 1",
                MachineField::Price => "Price",
                MachineField::GpuHour => "USD per GPU-hour",
                MachineField::Power => "Power of a host, kW (0: not stated)",
            },
        }
    }

    /// Returns the field as it is named in messages: its label, with the machine's letter.
    pub fn title(self) -> String {
        match self {
            Self::Machine(slot, _) => format!("{} of machine {}", self.label(), slot.letter()),
            _ => self.label().to_owned(),
        }
    }

    /// Returns the valid values.
    pub fn values(self) -> Values {
        let list = |choices: &'static [Choice], default: &'static str| Values::List { choices, default };
        match self {
            Self::Work => list(choice::works(), choice::TRAINING),
            Self::Model => list(choice::models(), "llama-3-70b"),
            Self::Precision => list(choice::precisions(), "bf16"),
            Self::TrainingSoftware => list(choice::training_software(), "megatron"),
            Self::GlobalBatch => Values::Number(Range::whole(1.0, 65_536.0, 256.0)),
            Self::TrainTokens => Values::Number(Range::whole(1.0, 100_000.0, 1000.0)),
            Self::Zero => list(choice::zero_stages(), "1"),
            Self::Recompute => list(choice::recomputations(), "full"),
            Self::InferenceSoftware => list(choice::inference_software(), "vllm"),
            Self::PromptTokens => Values::Number(Range::whole(1.0, 131_072.0, 1500.0)),
            Self::OutputTokens => Values::Number(Range::whole(1.0, 131_072.0, 300.0)),
            Self::Concurrency => Values::Number(Range::whole(1.0, 65_536.0, 256.0)),
            Self::Ttft => Values::Number(Range::real(0.5, 60.0, 5.0, 0.5)),
            Self::Tpot => Values::Number(Range::real(5.0, 500.0, 100.0, 5.0)),
            Self::Years => Values::Number(Range::real(1.0, 10.0, 4.0, 0.5)),
            Self::Utilization => Values::Number(Range::real(5.0, 100.0, 80.0, 5.0)),
            Self::Energy => Values::Number(Range::real(0.01, 1.0, 0.1, 0.01)),
            Self::Machine(slot, field) => field.values(slot),
        }
    }
}

impl MachineField {
    fn values(self, slot: Slot) -> Values {
        let (preset, price) = match slot {
            Slot::A => ("hgx-h100", "H100 SXM specialty"),
            Slot::B => ("hgx-h200", "H200 specialty"),
            Slot::C => ("dgx-a100", "A100-80 specialty"),
        };
        let presets = if slot == Slot::A { choice::machines() } else { choice::optional_machines() };
        match self {
            Self::Preset => Values::List { choices: presets, default: preset },
            Self::Nodes => Values::Number(Range::whole(1.0, 512.0, 4.0)),
            Self::Network => Values::List { choices: choice::networks(), default: "rail" },
            Self::Nic => Values::List { choices: choice::nics(), default: choice::PRESET_NICS },
            Self::Oversubscription => Values::Number(Range::real(1.0, 8.0, 1.0, 0.5)),
            Self::Price => Values::List { choices: choice::prices(), default: price },
            Self::GpuHour => Values::Number(Range::real(0.05, 20.0, 3.0, 0.05)),
            Self::Power => Values::Number(Range::real(0.0, 150.0, 0.0, 0.5)),
        }
    }
}
