//! Flags of a command, from the definition of the command line.

use std::any::TypeId;
use std::path::PathBuf;

use clap::{Arg, ArgAction, CommandFactory};
use fabricast_topologies::Bytes;

use crate::args::Cli;

/// Flag or positional argument of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    /// Long name without dashes; of a positional argument its identifier.
    pub name: String,
    /// Help text, in paragraphs.
    pub help: String,
    /// Heading under which the help lists the flag.
    pub heading: Option<String>,
    /// Form of the value.
    pub kind: FlagKind,
    /// Type of each value.
    pub value: FlagValue,
    /// Values that the flag accepts, if they are listed.
    pub choices: Vec<String>,
    /// Default value, if there is one.
    pub default: Option<String>,
    /// True for a positional argument.
    pub is_positional: bool,
    /// True if the command requires the flag.
    pub is_required: bool,
}

/// Form of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagKind {
    /// No value.
    Switch,
    /// At most one value.
    OptionalValue,
    /// One value.
    Value,
    /// Any number of values.
    List,
}

/// Type of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagValue {
    /// Whole number.
    Integer,
    /// Number.
    Number,
    /// Size in bytes: a whole number, or a number with a unit.
    Size,
    /// Path of a file or folder.
    Path,
    /// Text.
    Text,
}

impl FlagValue {
    fn new(arg: &Arg) -> Self {
        let value = arg.get_value_parser().type_id();
        let is_one_of = |types: &[TypeId]| types.iter().any(|&one| value == one);
        if is_one_of(&[TypeId::of::<u16>(), TypeId::of::<u32>(), TypeId::of::<u64>(), TypeId::of::<usize>()]) {
            Self::Integer
        } else if is_one_of(&[TypeId::of::<f64>()]) {
            Self::Number
        } else if is_one_of(&[TypeId::of::<Bytes>()]) {
            Self::Size
        } else if is_one_of(&[TypeId::of::<PathBuf>()]) {
            Self::Path
        } else {
            Self::Text
        }
    }
}

impl Flag {
    fn new(arg: &Arg) -> Self {
        let help = arg.get_long_help().or_else(|| arg.get_help()).map(ToString::to_string).unwrap_or_default();
        let takes = arg.get_num_args();
        let kind = match arg.get_action() {
            ArgAction::SetTrue => FlagKind::Switch,
            ArgAction::Append => FlagKind::List,
            _ if takes.is_some_and(|range| range.min_values() == 0) => FlagKind::OptionalValue,
            _ => FlagKind::Value,
        };
        let choices = arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
        let default = arg.get_default_values().first().map(|value| value.to_string_lossy().into_owned());
        Self {
            name: arg.get_long().unwrap_or(arg.get_id().as_str()).to_owned(),
            help,
            heading: arg.get_help_heading().map(str::to_owned),
            kind,
            value: FlagValue::new(arg),
            choices: if kind == FlagKind::Switch { Vec::new() } else { choices },
            default: if kind == FlagKind::Switch { None } else { default },
            is_positional: arg.is_positional(),
            is_required: arg.is_required_set(),
        }
    }
}

/// Returns the flags of a command, in the order of its help, and `None` if there is no such command. `format`, `quiet`,
/// `verbose` and flags that the help hides are excluded: they do not change a [`Request`](super::Request).
#[must_use]
pub fn flags(command: &[&str]) -> Option<Vec<Flag>> {
    let mut root = Cli::command();
    root.build();
    let mut definition = &root;
    for word in command {
        definition = definition.find_subcommand(word)?;
    }
    let excluded = ["format", "quiet", "verbose", "help", "version"];
    let is_setting = |arg: &&Arg| !arg.is_hide_set() && !excluded.contains(&arg.get_id().as_str());
    Some(definition.get_arguments().filter(is_setting).map(Flag::new).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_have_the_forms_of_their_definitions() {
        let all = flags(&["simulate"]).unwrap();
        let flag = |name: &str| all.iter().find(|flag| flag.name == name).unwrap();
        let form = |name: &str| (flag(name).kind, flag(name).value);
        assert_eq!(form("no-nvls").0, FlagKind::Switch);
        assert_eq!(form("bytes"), (FlagKind::Value, FlagValue::Size));
        assert_eq!(form("channels"), (FlagKind::List, FlagValue::Integer));
        assert_eq!(form("trace"), (FlagKind::Value, FlagValue::Path));
        assert_eq!(form("utilization-over-time"), (FlagKind::OptionalValue, FlagValue::Integer));
        assert_eq!(form("straggler"), (FlagKind::List, FlagValue::Text));
        assert_eq!(flag("launch").choices, ["graph", "stream"]);
        assert_eq!(flag("launch").default.as_deref(), Some("graph"));
        assert!(flag("fabric").is_required && !flag("fabric").is_positional);
        assert!(all.iter().all(|flag| !flag.help.is_empty()));
        assert!(flags(&["compare"]).unwrap().iter().any(|flag| flag.is_positional && flag.kind == FlagKind::List));
        assert_eq!(flags(&["collate"]), None);
    }
}
