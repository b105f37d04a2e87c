//! Names of GPUs as people and tools write them, and the models that they mean.

use super::{GpuModel, models};
use crate::error::{Error, Result};
use crate::fabric::near_misses;

/// Words that say nothing of the model.
const NOISE: [&str; 14] = [
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

/// A name as its words: lower case, vendor left out.
fn words(name: &str) -> Vec<String> {
    let separated = name.to_lowercase().replace(['-', '_', '(', ')', '[', ']', ',', ';', '"', '\''], " ");
    separated.split_whitespace().filter(|word| !NOISE.contains(word)).map(str::to_owned).collect()
}

/// All names of a model.
fn names(model: &GpuModel) -> impl Iterator<Item = &str> {
    std::iter::once(model.name.as_str()).chain(model.aliases.iter().map(String::as_str))
}

/// The models that a name means: one for a whole name, several for one that a table cut short (`NVIDIA A100-SXM...`), none
/// for a stranger.
///
/// Vendor and case do not count, nor whether words are joined by hyphens, blanks or nothing. Words after a known name
/// (`MIG 1g.10gb`, a bus id) are left alone; the longest known name counts.
#[must_use]
pub fn find(name: &str) -> Vec<&'static GpuModel> {
    let cut_short = name.trim_end().ends_with("..") || name.trim_end().ends_with('…');
    let wanted = words(name.trim_end().trim_end_matches(['.', '…']));
    let joined = wanted.concat();
    if joined.is_empty() {
        return Vec::new();
    }
    let exact: Vec<&GpuModel> =
        models().iter().filter(|model| names(model).any(|known| words(known).concat() == joined)).collect();
    // Of a cut name more may follow even where what is left is a name.
    if !exact.is_empty() && !cut_short {
        return exact;
    }
    let starts = models().iter().filter(|model| names(model).any(|known| words(known).concat().starts_with(&joined)));
    let starts: Vec<&GpuModel> = if cut_short { starts.collect() } else { Vec::new() };
    if !starts.is_empty() {
        return starts;
    }
    let begun = |known: &str| {
        let known = words(known);
        (!known.is_empty() && wanted.starts_with(&known)).then_some(known.len())
    };
    let longest = models().iter().flat_map(names).filter_map(begun).max();
    longest.map_or_else(Vec::new, |length| {
        models().iter().filter(|model| names(model).any(|known| begun(known) == Some(length))).collect()
    })
}

/// Returns true if two names can be those of one GPU. Memory sizes do not distinguish models: boards of one chip that
/// differ in them communicate alike.
#[must_use]
pub fn can_be_one(name: &str, other: &str) -> bool {
    let (models, others) = (find(name), find(other));
    if models.is_empty() || others.is_empty() {
        return words(name) == words(other);
    }
    models.iter().any(|model| others.iter().any(|other| without_memory(model) == without_memory(other)))
}

/// The words of a model's name without its memory size: `a100 sxm` of `A100 SXM 80GB`.
fn without_memory(model: &GpuModel) -> Vec<String> {
    let is_size =
        |word: &str| word.strip_suffix("gb").is_some_and(|size| size.bytes().all(|byte| byte.is_ascii_digit()));
    words(&model.name).into_iter().filter(|word| !is_size(word)).collect()
}

/// Returns true for names of AMD's GPUs.
#[must_use]
pub fn is_of_amd(name: &str) -> bool {
    let lower = name.to_lowercase();
    ["amd", "instinct", "radeon"].iter().any(|word| lower.contains(word))
        || find(name).iter().any(|model| model.is_amd())
}

/// The model that a user names.
///
/// # Errors
/// [`Error::Unknown`] with the names that look like it.
pub fn named(name: &str) -> Result<&'static GpuModel> {
    match find(name).first() {
        Some(&model) => Ok(model),
        None => {
            let known = models().iter().map(|model| model.name.as_str());
            Err(Error::Unknown { what: "GPU model", name: name.to_owned(), near: near_misses(name, known) })
        }
    }
}

/// A GPU that a text names: `GPU 3: NVIDIA H100 80GB HBM3 (UUID: …)`, `Rank 0 … device 0 [0000:1b:00] NVIDIA H100`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mention {
    /// The name as it stands there, vendor left in.
    pub name: String,
    /// The models that it means.
    pub models: Vec<&'static str>,
}

/// The different GPUs that a text names, in the order of their first mention: in the lists of `nvidia-smi -L` and of
/// environment dumps (torch, vLLM, SGLang), in headers of nccl-tests and rccl-tests, or with their vendor anywhere.
#[must_use]
pub fn mentions(text: &str) -> Vec<Mention> {
    let mut found: Vec<Mention> = Vec::new();
    for name in text.lines().filter_map(mentioned) {
        let models: Vec<&'static str> = find(&name).into_iter().map(|model| model.name.as_str()).collect();
        if !models.is_empty() && !found.iter().any(|known| known.models == models) {
            found.push(Mention { name, models });
        }
    }
    found
}

/// The name of a GPU in a line.
fn mentioned(line: &str) -> Option<String> {
    let trimmed = line.trim_start_matches(|c: char| c.is_whitespace() || "|#>*-".contains(c));
    // `GPU 0: NAME (UUID: …)`, `GPU 0,1,2,3: NAME`, `GPU[0]: NAME`, `GPU0: NAME`.
    let listed = trimmed.strip_prefix("GPU").and_then(|rest| {
        let (numbers, name) = rest.split_once(':')?;
        let only_numbers = numbers.chars().all(|c| c.is_ascii_digit() || " ,-[]".contains(c));
        (only_numbers && numbers.chars().any(|c| c.is_ascii_digit())).then_some(name)
    });
    // nccl-tests: `Rank 0 Group 0 Pid 1 on HOST device 0 [0x1b] NAME`.
    let of_header = || {
        let (_, rest) = trimmed.strip_prefix("Rank").and_then(|rest| rest.split_once(" device "))?;
        rest.split_once(']').map(|(_, name)| name)
    };
    // Anywhere with its vendor.
    let vendors = ["NVIDIA ", "AMD Instinct ", "AMD INSTINCT ", "Tesla ", "GeForce ", "Quadro "];
    let anywhere = || vendors.iter().filter_map(|vendor| line.find(vendor)).min().and_then(|at| line.get(at..));
    // The table of nvidia-smi pads names, and draws lines between cells.
    let trimmed = |name: &str| {
        let name = name.trim_start().split(['|', '(', '\t', '│']).next().unwrap_or_default();
        name.split("  ").next().unwrap_or_default().trim().to_owned()
    };
    let mut names = [listed, of_header(), anywhere()].into_iter().flatten().map(trimmed);
    names.find(|name| !find(name).is_empty())
}
