//! Readers from text to a [`Fabric`]; every error has its source location.
//!
//! [`file()`] and [`parse`] detect the format by content, regardless of the name of a file. XML is an NCCL topology,
//! `{` starts the JSON of `fabric show`, lines of TOML are a spec, and a matrix of `nvidia-smi topo -m` may be anywhere
//! in a text.

mod file;
pub(crate) mod hardware;
pub mod json;
mod limit;
pub mod nccl_xml;
mod origin;
pub mod rocm_smi;
pub mod smi;
pub mod spec;
mod warnings;

pub use file::{can_be_read, read_binary_file, read_text_file};
pub use limit::Limit;

use std::path::Path;

use crate::Fabric;
use crate::error::{Origin, Result};
use crate::gpus::GpuModel;

/// Contents of a topology text.
#[derive(Debug)]
pub enum Topology {
    /// A complete fabric.
    Fabric(Box<Fabric>),
    /// A spec whose `[cluster]`, if any, has not been expanded.
    Spec(Box<spec::Spec>),
}

/// Supported formats of topology texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// NCCL's (or RCCL's) topology XML.
    NcclXml,
    /// JSON, as `fabric show --format json` writes it.
    Json,
    /// The matrix of `nvidia-smi topo -m`.
    Smi,
    /// The tables of `rocm-smi --showtopo`.
    RocmSmi,
    /// The TOML spec of this crate.
    Spec,
}

/// Reads a topology file of any format.
///
/// # Errors
/// [`Error::Unreadable`](crate::Error::Unreadable) if the file is missing, too large or not text; otherwise as
/// [`parse`].
pub fn file(path: &Path) -> Result<Topology> {
    parse(&read_text_file(path, Limit::TOPOLOGY)?, &path.display().to_string())
}

/// Reads a topology text of any format; `source` names it in errors.
///
/// # Errors
/// [`Error::Syntax`](crate::Error::Syntax) if the text has no known format; otherwise the errors of the reader of its
/// format.
pub fn parse(text: &str, source: &str) -> Result<Topology> {
    parse_with_gpu(text, source, None)
}

/// Variant of [`parse`] with a GPU model for texts that do not state it. The model determines the link rates of a
/// machine's own file. A spec is built later, and [`load`](crate::load()) sets the model at that point.
///
/// # Errors
/// The errors of [`parse`], and [`Error::Request`](crate::Error::Request) if the text states another model.
pub fn parse_with_gpu(text: &str, source: &str, gpu: Option<&'static GpuModel>) -> Result<Topology> {
    let to_topology = |fabric| Topology::Fabric(Box::new(fabric));
    match detect(text) {
        Some(Format::NcclXml) => nccl_xml::parse_with_gpu(text, source, gpu).map(to_topology),
        Some(Format::Json) => json::parse_with_gpu(text, source, gpu).map(to_topology),
        Some(Format::Smi) => smi::parse_with_gpu(text, source, gpu).map(to_topology),
        Some(Format::RocmSmi) => rocm_smi::parse_with_gpu(text, source, gpu).map(to_topology),
        Some(Format::Spec) => spec::parse(text, source).map(|spec| Topology::Spec(Box::new(spec))),
        None => {
            let message = "no topology: expected NCCL topology XML, a spec in TOML, a matrix of `nvidia-smi topo -m`, \
                           the tables of `rocm-smi --showtopo`, or the JSON of `fabric show`";
            Err(Origin::new(source, text).syntax(0..0, message))
        }
    }
}

/// Detects the format of a text from the first line that identifies it.
#[must_use]
pub fn detect(text: &str) -> Option<Format> {
    let text = text.trim_start_matches('\u{feff}').trim_start();
    if text.starts_with('<') {
        return Some(Format::NcclXml);
    }
    if text.starts_with('{') {
        return Some(Format::Json);
    }
    if rocm_smi::is_showtopo(text) {
        return Some(Format::RocmSmi);
    }
    smi::blank_escapes(text).lines().find_map(|line| {
        if looks_like_toml(line) {
            Some(Format::Spec)
        } else if smi::is_matrix_line(line) {
            Some(Format::Smi)
        } else {
            None
        }
    })
}

/// Returns true if a line is a table header or `key = …` of TOML.
fn looks_like_toml(line: &str) -> bool {
    let line = line.trim();
    let bare = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-.\"'".contains(c));
    if let Some(header) = line.strip_prefix('[') {
        return header.trim_start_matches('[').split(']').next().is_some_and(|name| bare(name.trim()));
    }
    line.split_once('=').is_some_and(|(key, _)| bare(key.trim()))
}

#[cfg(test)]
mod tests;
