//! State of the page: a value for each field, read from and written to links.
//!
//! A form is valid by construction: numbers are in their range and choices in their list. Fields that do not apply to
//! the work or the machines have their default, so that two links of the same study are equal.

mod choice;
mod error;
mod field;
mod study_text;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use fabricast_workload::job::nearest;

pub use choice::{Choice, NONE, OWN_PRICE, PRESET_NICS, TRAINING};
pub use error::FormError;
pub use field::{Field, MachineField, NumberKind, Range, Slot, Values};
pub use study_text::{STUDY_NAME, StudyText};
#[cfg(test)]
pub use tests::any_form;

/// Value of a field.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Choice(&'static Choice),
    Number(f64),
}

impl Value {
    fn default_of(field: Field) -> Self {
        match field.values() {
            Values::Number(range) => Self::Number(range.default),
            Values::List { choices, default } => {
                static MISSING: Choice = Choice { value: String::new(), label: String::new() };
                let known = choices.iter().find(|choice| choice.value == default).or(choices.first());
                Self::Choice(known.unwrap_or(&MISSING))
            }
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Choice(choice) => choice.value.clone(),
            Self::Number(number) => number.to_string(),
        }
    }
}

/// Kind of work of the form's job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Training of the model.
    Training,
    /// Inference with the model.
    Inference,
}

/// State of the page.
#[derive(Clone, Debug, PartialEq)]
pub struct Form {
    /// Value of each field.
    values: BTreeMap<Field, Value>,
}

impl Default for Form {
    fn default() -> Self {
        Self { values: Field::all().map(|field| (field, Value::default_of(field))).collect() }
    }
}

impl Form {
    /// Reads a form from names and values, as of a query or a form's body. Fields that are absent have their default.
    ///
    /// # Errors
    /// [`FormError`]: an unknown or repeated field, or an invalid value.
    pub fn read<N: AsRef<str>, V: AsRef<str>>(pairs: impl IntoIterator<Item = (N, V)>) -> Result<Self, FormError> {
        let mut form = Self::default();
        let mut seen = Vec::new();
        for (key, text) in pairs {
            let field = Field::find(key.as_ref()).ok_or_else(|| FormError::UnknownField(key.as_ref().to_owned()))?;
            if seen.contains(&field) {
                return Err(FormError::Repeated(field));
            }
            seen.push(field);
            form.values.insert(field, parse(field, text.as_ref())?);
        }
        form.reset_unused();
        form.check_prices()?;
        Ok(form)
    }

    /// Reads a form from the query of a link.
    ///
    /// # Errors
    /// As for [`Self::read`].
    pub fn from_query(query: &str) -> Result<Self, FormError> {
        Self::read(form_urlencoded::parse(query.as_bytes()))
    }

    /// Returns the query of the link that holds this form: every field that applies, in the order of the form.
    pub fn query(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        for field in Field::all().filter(|field| self.applies(*field)) {
            query.append_pair(&field.key(), &self.text(field));
        }
        query.finish()
    }

    /// Returns the value of a field as in links.
    pub fn text(&self, field: Field) -> String {
        self.values.get(&field).map(Value::text).unwrap_or_default()
    }

    /// Returns the number of a field; 0 for a field with a list.
    pub fn number(&self, field: Field) -> f64 {
        match self.values.get(&field) {
            Some(Value::Number(number)) => *number,
            Some(Value::Choice(_)) | None => 0.0,
        }
    }

    /// Returns the kind of work.
    pub fn work(&self) -> Work {
        if self.text(Field::Work) == TRAINING { Work::Training } else { Work::Inference }
    }

    /// Returns true if a machine takes part in the comparison.
    pub fn has_machine(&self, slot: Slot) -> bool {
        self.text(Field::Machine(slot, MachineField::Preset)) != NONE
    }

    /// Returns the note on the price of a machine whose name does not state the machine's GPU model.
    pub fn price_note(&self, slot: Slot) -> Option<String> {
        let field = |setting| self.text(Field::Machine(slot, setting));
        let price = field(MachineField::Price);
        if !self.has_machine(slot) || [NONE, OWN_PRICE].contains(&&*price) {
            return None;
        }
        let preset = field(MachineField::Preset);
        let model = choice::gpu_model(&preset)?;
        let letter = slot.letter();
        (!choice::names_model(&price, &model))
            .then(|| format!("Machine {letter} has {model}, but is priced as {price}."))
    }

    /// Returns true if a field affects the study.
    pub fn applies(&self, field: Field) -> bool {
        match field {
            Field::Work | Field::Model | Field::Precision | Field::Years | Field::Utilization | Field::Energy => true,
            Field::TrainingSoftware | Field::GlobalBatch | Field::TrainTokens | Field::Zero | Field::Recompute => {
                self.work() == Work::Training
            }
            Field::InferenceSoftware
            | Field::PromptTokens
            | Field::OutputTokens
            | Field::Concurrency
            | Field::Ttft
            | Field::Tpot => self.work() == Work::Inference,
            Field::Machine(_, MachineField::Preset) => true,
            Field::Machine(slot, setting) => self.has_machine(slot) && self.machine_applies(slot, setting),
        }
    }

    fn machine_applies(&self, slot: Slot, setting: MachineField) -> bool {
        match setting {
            MachineField::Network | MachineField::Nic | MachineField::Oversubscription => {
                self.number(Field::Machine(slot, MachineField::Nodes)) > 1.0
            }
            MachineField::GpuHour => self.text(Field::Machine(slot, MachineField::Price)) == OWN_PRICE,
            MachineField::Power => self.text(Field::Machine(slot, MachineField::Price)) != NONE,
            MachineField::Preset | MachineField::Nodes | MachineField::Price => true,
        }
    }

    /// Gives fields that do not apply their default.
    fn reset_unused(&mut self) {
        for field in Field::all() {
            if !self.applies(field) {
                self.values.insert(field, Value::default_of(field));
            }
        }
    }

    /// Checks that all machines have a price, or none has.
    fn check_prices(&self) -> Result<(), FormError> {
        let prices = Slot::ALL.into_iter().filter(|slot| self.has_machine(*slot));
        let prices: Vec<Field> = prices.map(|slot| Field::Machine(slot, MachineField::Price)).collect();
        let missing = prices.iter().find(|field| self.text(**field) == NONE);
        match missing {
            Some(field) if prices.iter().any(|field| self.text(*field) != NONE) => Err(FormError::MissingPrice(*field)),
            _ => Ok(()),
        }
    }
}

/// Reads the value of a field.
///
/// # Errors
/// [`FormError`] if the field does not accept the value.
fn parse(field: Field, text: &str) -> Result<Value, FormError> {
    match field.values() {
        Values::List { choices, .. } => {
            let known = choices.iter().find(|choice| choice.value == text);
            known.map(Value::Choice).ok_or_else(|| FormError::UnknownChoice {
                field,
                value: text.to_owned(),
                nearest: nearest(text, choices.iter().map(|choice| choice.value.as_str())),
            })
        }
        Values::Number(Range { min, max, kind, .. }) => {
            let expected = if kind == NumberKind::Whole { "whole number" } else { "number" };
            let number = text.trim().parse::<f64>().ok().filter(|number| !number.is_nan());
            let number =
                number.filter(|number| kind == NumberKind::Real || number.is_infinite() || number.fract() == 0.0);
            let number =
                number.ok_or_else(|| FormError::NotANumber { field, value: text.to_owned(), expected, min, max })?;
            match (min..=max).contains(&number) {
                // Adding 0 turns −0 into 0, so that equal forms have equal links.
                true => Ok(Value::Number(number + 0.0)),
                false => Err(FormError::OutOfRange { field, value: number, min, max }),
            }
        }
    }
}
