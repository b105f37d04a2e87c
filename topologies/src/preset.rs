//! Built-in fabrics: spec files in `presets/` that state the source of each figure and are read like any user's file.

use crate::Fabric;
use crate::error::{Error, Result};
use crate::fabric::suggest_names;
use crate::read::spec;

macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        /// Name and text of each preset, sorted by name.
        const PRESETS: &[(&str, &str)] = &[$(($name, include_str!(concat!("../presets/", $name, ".toml")))),*];
    };
}

presets![
    "a100-pcie",
    "dgx-a100",
    "dgx-a100-40gb",
    "dgx-v100",
    "gb10",
    "gb200-nvl72",
    "gb300-nvl72",
    "gh200",
    "h100-nvl",
    "h100-pcie",
    "h200-nvl",
    "hgx-b200",
    "hgx-b300",
    "hgx-h100",
    "hgx-h20-96gb",
    "hgx-h200",
    "hgx-h800",
    "l40s-pcie",
    "mi250x",
    "mi300x",
    "mi325x",
    "mi355x",
    "rtx-pro-6000-pcie",
    "rtx4090-pcie",
    "rtx5090-pcie",
];

/// The names of all presets, in alphabetical order.
pub fn names() -> impl ExactSizeIterator<Item = &'static str> {
    PRESETS.iter().map(|&(name, _)| name)
}

/// The spec text of a preset; `None` for an unknown name.
#[must_use]
pub fn text(name: &str) -> Option<&'static str> {
    PRESETS.iter().find(|&&(known, _)| known == name).map(|&(_, text)| text)
}

/// Reads a preset into a fabric.
///
/// # Errors
/// [`Error::Unknown`] with the similar names.
pub fn load(name: &str) -> Result<Fabric> {
    let text = text(name).ok_or_else(|| unknown(name))?;
    spec::parse(text, name)?.build_nodes()
}

/// The error for a name that is neither a preset nor a file, with the names of similar presets.
pub(crate) fn unknown(name: &str) -> Error {
    Error::Unknown { item: "fabric", name: name.to_owned(), suggestions: suggest_names(name, names()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_load_under_their_name_and_state_sources() {
        for name in names() {
            let fabric = load(name).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(fabric.name(), name);
            assert!(fabric.sources().len() >= 3, "{name}");
            assert!(!fabric.gpus().is_empty(), "{name}");
            assert!(fabric.links().all(|(_, link)| link.bandwidth.is_some() && link.latency.0 > 0), "{name}");
        }
        assert!(names().is_sorted());
    }

    #[test]
    fn unknown_presets_suggest_similar_names() {
        let Err(Error::Unknown { suggestions: near, .. }) = load("hgx-h20") else { panic!("loaded") };
        assert!(near.contains(&"hgx-h200".to_owned()), "{near:?}");
    }
}
