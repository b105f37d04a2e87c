//! GPUs named in the text around a matrix: the table of plain `nvidia-smi` (names, bus ids, memory), the list of
//! `nvidia-smi -L`, environment dumps, headers of nccl-tests.

use rustc_hash::FxHashMap;

use crate::Bytes;
use crate::gpus::{GpuModel, name};

/// Facts that the text states about a GPU.
#[derive(Clone, Debug, Default)]
pub(super) struct ListedGpu {
    /// Name of the model, without the vendor.
    pub model: String,
    pub bus_id: Option<String>,
    pub memory: Option<Bytes>,
}

impl ListedGpu {
    /// The model, if the name is known; a truncated name is disambiguated by memory size.
    pub fn model(&self) -> Option<&'static GpuModel> {
        let off = |model: &&GpuModel| match (self.memory, model.memory) {
            (Some(reported), Some(nominal)) => reported.0.abs_diff(nominal.0),
            _ => 0,
        };
        name::find(&self.model).into_iter().min_by_key(off)
    }
}

/// The GPUs that a text names.
#[derive(Debug, Default)]
pub(super) struct Listing {
    by_index: FxHashMap<u32, ListedGpu>,
    /// The GPU that the text names, if all names are of one model. It applies to GPU indices that the text does not
    /// list.
    any: Option<ListedGpu>,
}

impl Listing {
    /// Facts about the GPU with this index in `nvidia-smi`; `None` if the text states none.
    pub fn gpu(&self, index: u32) -> Option<&ListedGpu> {
        self.by_index.get(&index).or(self.any.as_ref())
    }

    /// Collects all GPUs that a text names.
    pub fn read(text: &str) -> Self {
        let mut by_index = table(text);
        for line in text.lines() {
            for (index, model) in parse_list_line(line) {
                by_index.entry(index).or_insert_with(|| ListedGpu { model: model.clone(), ..ListedGpu::default() });
            }
        }
        let any = match name::mentions(text).as_slice() {
            [only] => Some(ListedGpu { model: without_vendor(&only.name), ..ListedGpu::default() }),
            _ => None,
        };
        Self { by_index, any }
    }
}

fn without_vendor(name: &str) -> String {
    name.trim_start_matches("NVIDIA ").trim().to_owned()
}

/// Parses the GPUs of a line like `GPU 0,1: NVIDIA H200 (UUID: …)`.
fn parse_list_line(line: &str) -> Vec<(u32, String)> {
    let Some((numbers, name)) = line.trim_start().strip_prefix("GPU ").and_then(|rest| rest.split_once(':')) else {
        return Vec::new();
    };
    let name = without_vendor(name.split('(').next().unwrap_or_default().trim());
    if name.is_empty() {
        return Vec::new();
    }
    let indices = numbers.split(',').filter_map(|number| number.trim().parse::<u32>().ok());
    indices.map(|index| (index, name.clone())).collect()
}

/// Parses the table of plain `nvidia-smi` to facts about each GPU, by its index.
fn table(text: &str) -> FxHashMap<u32, ListedGpu> {
    let mut listed: FxHashMap<u32, ListedGpu> = FxHashMap::default();
    let mut last = None;
    for line in text.lines().filter(|line| line.trim_start().starts_with('|')) {
        let mut cells = line.split('|').skip(1);
        let (first, second) = (cells.next().unwrap_or_default(), cells.next().unwrap_or_default());
        let (index, name) = first.trim_start().split_once(char::is_whitespace).unwrap_or_default();
        // The name ends where its padding (two spaces) begins.
        let name = name.trim_start().split("  ").next().unwrap_or_default().trim();
        let is_name = name.starts_with("NVIDIA ") || !name::find(name).is_empty();
        if let (Ok(index), true) = (index.parse::<u32>(), is_name) {
            let bus_id = second.split_whitespace().next().map(str::to_lowercase);
            listed.insert(index, ListedGpu { model: without_vendor(name), bus_id, memory: None });
            last = Some(index);
        } else if let (Some(index), Some((_, total))) = (last, second.split_once('/')) {
            let mib = total.trim().strip_suffix("MiB").and_then(|mib| mib.parse::<u64>().ok());
            if let (Some(gpu), Some(mib)) = (listed.get_mut(&index), mib.filter(|&mib| mib < 1 << 30)) {
                gpu.memory = Some(Bytes(mib << 20));
                last = None;
            }
        }
    }
    listed
}
