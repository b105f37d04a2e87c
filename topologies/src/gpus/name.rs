//! Look-up of GPU models by the names that people and tools use.

use super::{GpuModel, models};
use crate::error::{Error, Result};
use crate::fabric::suggest_names;

/// Words of a GPU's name that do not distinguish models.
const IGNORED_WORDS: [&str; 14] = [
    "nvidia",
    "amd",
    "tesla",
    "geforce",
    "quadro",
    "instinct",
    "radeon",
    "graphics",
    "corporation",
    "inc",
    "ati",
    "gpu",
    "tensor",
    "core",
];

/// Splits a name into words, in lower case and without the vendor.
fn split_name(name: &str) -> Vec<String> {
    let separated = name.to_lowercase().replace(['-', '_', '(', ')', '[', ']', ',', ';', '"', '\''], " ");
    separated.split_whitespace().filter(|word| !IGNORED_WORDS.contains(word)).map(str::to_owned).collect()
}

/// The marketing name of a model and its aliases.
fn names(model: &GpuModel) -> impl Iterator<Item = &str> {
    std::iter::once(model.name.as_str()).chain(model.aliases.iter().map(String::as_str))
}

/// The models that a name refers to: one for a whole name, several for a truncated name (`NVIDIA A100-SXM...`), none
/// for an unknown name.
///
/// Vendor, case and separators (hyphen, space, none) are ignored. Words after a known name (`MIG 1g.10gb`, a bus id)
/// are ignored; the longest known name is used.
#[must_use]
pub fn find(name: &str) -> Vec<&'static GpuModel> {
    let cut_short = name.trim_end().ends_with("..") || name.trim_end().ends_with('…');
    let wanted = split_name(name.trim_end().trim_end_matches(['.', '…']));
    let joined = wanted.concat();
    if joined.is_empty() {
        return Vec::new();
    }
    let exact: Vec<&GpuModel> =
        models().iter().filter(|model| names(model).any(|known| split_name(known).concat() == joined)).collect();
    // A truncated name may continue even if the part before the truncation is a complete name.
    if !exact.is_empty() && !cut_short {
        return exact;
    }
    let starts =
        models().iter().filter(|model| names(model).any(|known| split_name(known).concat().starts_with(&joined)));
    let starts: Vec<&GpuModel> = if cut_short { starts.collect() } else { Vec::new() };
    if !starts.is_empty() {
        return starts;
    }
    let begun = |known: &str| {
        let known = split_name(known);
        (!known.is_empty() && wanted.starts_with(&known)).then_some(known.len())
    };
    let longest = models().iter().flat_map(names).filter_map(begun).max();
    longest.map_or_else(Vec::new, |length| {
        models().iter().filter(|model| names(model).any(|known| begun(known) == Some(length))).collect()
    })
}

/// Returns true if two names can refer to the same GPU. Memory sizes do not distinguish models: boards of one chip that
/// differ in memory size have equal communication performance.
#[must_use]
pub fn may_be_same_model(name: &str, other: &str) -> bool {
    let (models, others) = (find(name), find(other));
    if models.is_empty() || others.is_empty() {
        return split_name(name) == split_name(other);
    }
    models.iter().any(|model| others.iter().any(|other| without_memory(model) == without_memory(other)))
}

/// The words of a model's name without its memory size: `a100 sxm` of `A100 SXM 80GB`.
fn without_memory(model: &GpuModel) -> Vec<String> {
    let is_size =
        |word: &str| word.strip_suffix("gb").is_some_and(|size| size.bytes().all(|byte| byte.is_ascii_digit()));
    split_name(&model.name).into_iter().filter(|word| !is_size(word)).collect()
}

/// Returns true if a name is that of an AMD GPU.
#[must_use]
pub fn is_amd(name: &str) -> bool {
    let lower = name.to_lowercase();
    ["amd", "instinct", "radeon"].iter().any(|word| lower.contains(word))
        || find(name).iter().any(|model| model.is_amd())
}

/// Looks up the model that a user names. If the name matches several models, returns the first one of the table.
///
/// # Errors
/// [`Error::Unknown`] with similar names.
pub fn find_unique(name: &str) -> Result<&'static GpuModel> {
    match find(name).first() {
        Some(&model) => Ok(model),
        None => {
            let known = models().iter().map(|model| model.name.as_str());
            Err(Error::Unknown { item: "GPU model", name: name.to_owned(), suggestions: suggest_names(name, known) })
        }
    }
}

/// A GPU named in a text: `GPU 3: NVIDIA H100 80GB HBM3 (UUID: …)`, `Rank 0 … device 0 [0000:1b:00] NVIDIA H100`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mention {
    /// The name as in the text, including the vendor.
    pub name: String,
    /// Names of the models that the GPU's name can refer to.
    pub models: Vec<&'static str>,
}

/// The distinct GPUs named in a text, in the order of their first mention. Recognized are the lists of `nvidia-smi -L`
/// and of environment dumps (torch, vLLM, SGLang), headers of nccl-tests and rccl-tests, and names with their vendor
/// anywhere.
#[must_use]
pub fn mentions(text: &str) -> Vec<Mention> {
    let mut found: Vec<Mention> = Vec::new();
    for name in text.lines().filter_map(parse_gpu_name) {
        let models: Vec<&'static str> = find(&name).into_iter().map(|model| model.name.as_str()).collect();
        if !models.is_empty() && !found.iter().any(|known| known.models == models) {
            found.push(Mention { name, models });
        }
    }
    found
}

/// Name of a known GPU in a line of text, without index, bus id and padding; `None` if the line names none.
fn parse_gpu_name(line: &str) -> Option<String> {
    let trimmed = line.trim_start_matches(|c: char| c.is_whitespace() || "|#>*-".contains(c));
    // Lists of the form `GPU 0: NAME (UUID: …)`, `GPU 0,1,2,3: NAME`, `GPU[0]: NAME`, `GPU0: NAME`.
    let listed = trimmed.strip_prefix("GPU").and_then(|rest| {
        let (numbers, name) = rest.split_once(':')?;
        let only_numbers = numbers.chars().all(|c| c.is_ascii_digit() || " ,-[]".contains(c));
        (only_numbers && numbers.chars().any(|c| c.is_ascii_digit())).then_some(name)
    });
    // Headers of nccl-tests: `Rank 0 Group 0 Pid 1 on HOST device 0 [0x1b] NAME`.
    let parse_header = || {
        let (_, rest) = trimmed.strip_prefix("Rank").and_then(|rest| rest.split_once(" device "))?;
        rest.split_once(']').map(|(_, name)| name)
    };
    // Names at any position of the line, if the vendor precedes them.
    let vendors = ["NVIDIA ", "AMD Instinct ", "AMD INSTINCT ", "Tesla ", "GeForce ", "Quadro "];
    let anywhere = || vendors.iter().filter_map(|vendor| line.find(vendor)).min().and_then(|at| line.get(at..));
    // The table of nvidia-smi pads names and separates cells by lines.
    let trimmed = |name: &str| {
        let name = name.trim_start().split(['|', '(', '\t', '│']).next().unwrap_or_default();
        name.split("  ").next().unwrap_or_default().trim().to_owned()
    };
    let mut names = [listed, parse_header(), anywhere()].into_iter().flatten().map(trimmed);
    names.find(|name| !find(name).is_empty())
}
