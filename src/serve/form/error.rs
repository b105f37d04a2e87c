//! Errors of the form.

use fabricast_topologies::visible::visible;

use super::field::Field;

/// Invalid input of the form.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FormError {
    /// A name that no field has.
    #[error("`{}` is no field of this form: open the page without the part after `?`", quoted(.0))]
    UnknownField(String),
    /// A field that is given twice.
    #[error("{} is given twice: give it once", .0.title())]
    Repeated(Field),
    /// A value that is not in the field's list.
    #[error("{}: `{}` is not in the list: choose one of the list{}", .field.title(), quoted(.value), suggestion(.nearest.as_deref()))]
    UnknownChoice {
        /// Field with the value.
        field: Field,
        /// Given value.
        value: String,
        /// Similar value in the list.
        nearest: Option<String>,
    },
    /// A text that is not a number, or not a whole one where that is required.
    #[error("{}: `{}` is not a {expected}: give one from {min} to {max}", .field.title(), quoted(.value))]
    NotANumber {
        /// Field with the value.
        field: Field,
        /// Given value.
        value: String,
        /// Kind of number.
        expected: &'static str,
        /// Smallest valid number.
        min: f64,
        /// Largest valid number.
        max: f64,
    },
    /// A number that the field does not accept.
    #[error("{}: {value} is out of range: give a number from {min} to {max}", .field.title())]
    OutOfRange {
        /// Field with the value.
        field: Field,
        /// Given number.
        value: f64,
        /// Smallest valid number.
        min: f64,
        /// Largest valid number.
        max: f64,
    },
    /// A machine without a price, compared with machines that have one.
    #[error("{} is none, and other machines have a price: choose a price for each machine, or none for all", .0.title())]
    MissingPrice(Field),
    /// The study of the form is refused by the study reader, or no machine can run its job.
    #[error("{message}")]
    Study {
        /// Field that wrote the refused line of the study, if there is one.
        field: Option<Field>,
        /// Message of the study reader, without the location.
        message: String,
        /// Suggested fix.
        help: Option<String>,
    },
}

impl FormError {
    /// Returns the field that must change, if the error names one.
    pub fn field(&self) -> Option<Field> {
        match self {
            Self::UnknownField(_) => None,
            Self::Repeated(field) | Self::MissingPrice(field) => Some(*field),
            Self::UnknownChoice { field, .. } | Self::NotANumber { field, .. } | Self::OutOfRange { field, .. } => {
                Some(*field)
            }
            Self::Study { field, .. } => *field,
        }
    }

    /// Returns the suggested fix, unless the message contains it.
    pub fn help(&self) -> Option<&str> {
        match self {
            Self::Study { help, .. } => help.as_deref(),
            _ => None,
        }
    }
}

/// Maximum number of quoted characters of a value.
const MAX_QUOTED: usize = 60;

/// Returns a value from outside for a message: with visible control characters, and shortened.
fn quoted(value: &str) -> String {
    let short: String = value.chars().take(MAX_QUOTED).collect();
    let rest = if short.len() < value.len() { "…" } else { "" };
    format!("{}{rest}", visible(&short))
}

fn suggestion(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |nearest| format!("; {nearest}"))
}
