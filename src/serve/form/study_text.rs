//! The form's study in TOML. Each line remembers the field that wrote it, so that errors of the study reader name a
//! field of the form.

use std::fmt::Display;

use super::{Field, Form, MachineField, NONE, OWN_PRICE, PRESET_NICS, Slot, Work};

/// Name of the study in downloads and error messages.
pub const STUDY_NAME: &str = "study.toml";

/// Study of a form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StudyText {
    /// TOML that `fabricast study` reads.
    pub toml: String,
    /// Field that wrote each line, if there is one.
    fields: Vec<Option<Field>>,
}

impl StudyText {
    /// Writes the study of a form.
    pub fn new(form: &Form) -> Self {
        let mut text = Self { toml: String::new(), fields: Vec::new() };
        text.line(None, "# Written by `fabricast serve`. Run it: fabricast study study.toml -o results");
        for slot in Slot::ALL {
            if form.has_machine(slot) {
                text.machine(form, slot);
            }
        }
        text.job(form);
        text.line(None, "\n[assumptions]");
        text.number("years", form, Field::Years);
        text.key(Field::Utilization, "utilization", toml::Value::Float(form.number(Field::Utilization) / 100.0));
        text.number("usd_per_kwh", form, Field::Energy);
        text
    }

    /// Returns the field that wrote a line, counted from 1.
    pub fn field(&self, line: u32) -> Option<Field> {
        let index = usize::try_from(line).ok()?.checked_sub(1)?;
        self.fields.get(index).copied().flatten()
    }

    fn machine(&mut self, form: &Form, slot: Slot) {
        let field = |setting| Field::Machine(slot, setting);
        let (preset, nodes) = (form.text(field(MachineField::Preset)), form.number(field(MachineField::Nodes)));
        self.line(Some(field(MachineField::Preset)), "\n[[candidate]]");
        let name = format!("{}: {nodes} x {preset}", slot.letter());
        self.key(field(MachineField::Preset), "name", quoted(&name));
        self.key(field(MachineField::Preset), "fabric", quoted(&preset));
        self.key(field(MachineField::Nodes), "nodes", nodes);
        if form.applies(field(MachineField::Network)) {
            let nic = form.text(field(MachineField::Nic));
            let nic = if nic == PRESET_NICS { String::new() } else { format!(", nic = \"{nic} Gb/s\"") };
            let ratio = toml::Value::Float(form.number(field(MachineField::Oversubscription)));
            let kind = quoted(&form.text(field(MachineField::Network)));
            let network = format!("{{ kind = {kind}{nic}, oversubscription = {ratio} }}");
            self.key(field(MachineField::Network), "network", network);
        }
        let price = form.text(field(MachineField::Price));
        match price.as_str() {
            NONE => {}
            OWN_PRICE => {
                let gpus = gpu_count(&preset, nodes);
                let hourly = (form.number(field(MachineField::GpuHour)) * gpus * 1e6).round() / 1e6;
                self.key(field(MachineField::GpuHour), "price_per_hour_usd", toml::Value::Float(hourly));
            }
            _ => self.key(field(MachineField::Price), "price", quoted(&price)),
        }
        let power = form.number(field(MachineField::Power)) * nodes;
        if power > 0.0 {
            self.key(field(MachineField::Power), "power_kw", toml::Value::Float(power));
        }
    }

    fn job(&mut self, form: &Form) {
        let model = form.text(Field::Model);
        self.line(Some(Field::Model), "\n[[job]]");
        self.key(Field::Model, "name", quoted(&format!("{model} {}", form.text(Field::Work))));
        self.key(Field::Model, "model", quoted(&model));
        self.key(Field::Precision, "precision", quoted(&form.text(Field::Precision)));
        match form.work() {
            Work::Training => {
                self.key(Field::TrainingSoftware, "framework", quoted(&form.text(Field::TrainingSoftware)));
                self.key(Field::GlobalBatch, "global_batch", form.number(Field::GlobalBatch));
                let tokens = toml::Value::Float(form.number(Field::TrainTokens) * 1e9);
                self.key(Field::TrainTokens, "train_tokens", tokens);
                self.key(Field::Zero, "zero", form.text(Field::Zero));
                self.key(Field::Recompute, "recompute", quoted(&form.text(Field::Recompute)));
                self.key(Field::TrainingSoftware, "flash_attention", true);
            }
            Work::Inference => {
                self.key(Field::Work, "kind", quoted("inference"));
                self.key(Field::InferenceSoftware, "framework", quoted(&form.text(Field::InferenceSoftware)));
                self.key(Field::PromptTokens, "prompt_tokens", form.number(Field::PromptTokens));
                self.key(Field::OutputTokens, "output_tokens", form.number(Field::OutputTokens));
                self.key(Field::Concurrency, "concurrency", form.number(Field::Concurrency));
                self.number("ttft_s", form, Field::Ttft);
                self.key(Field::Tpot, "tpot_s", toml::Value::Float(form.number(Field::Tpot) / 1000.0));
            }
        }
        self.key(Field::Model, "parallel", quoted("auto"));
    }

    fn number(&mut self, key: &str, form: &Form, field: Field) {
        self.key(field, key, toml::Value::Float(form.number(field)));
    }

    fn key(&mut self, field: Field, key: &str, value: impl Display) {
        self.line(Some(field), &format!("{key} = {value}"));
    }

    /// Adds the lines of a text.
    fn line(&mut self, field: Option<Field>, text: &str) {
        self.toml.push_str(text);
        self.toml.push('\n');
        self.fields.extend(text.split('\n').map(|line| field.filter(|_| !line.is_empty())));
    }
}

/// Returns a text as a TOML string.
fn quoted(text: &str) -> toml::Value {
    toml::Value::String(text.to_owned())
}

/// Returns the number of GPUs of a machine: that of its fabric, or 1 if it has none, which the study reader reports.
fn gpu_count(preset: &str, nodes: f64) -> f64 {
    let hosts = fabricast_topologies::preset::load(preset).map(|fabric| {
        let gpus = fabric.gpus();
        (gpus.len(), fabric.group_by_host(gpus).len().max(1))
    });
    let (gpus, hosts) = hosts.unwrap_or((1, 1));
    gpus as f64 / hosts as f64 * nodes
}
