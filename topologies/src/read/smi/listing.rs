//! The table that plain `nvidia-smi` prints, which people often paste above the matrix: names, bus ids, memory.

use rustc_hash::FxHashMap;

use crate::Bytes;

/// What the table says of a GPU.
#[derive(Clone, Debug, Default)]
pub(super) struct Listed {
    /// Name without the vendor.
    pub model: String,
    pub bus_id: Option<String>,
    pub memory: Option<Bytes>,
}

/// The GPUs that the table lists, by index.
pub(super) fn read(text: &str) -> FxHashMap<u32, Listed> {
    let mut listed: FxHashMap<u32, Listed> = FxHashMap::default();
    let mut last = None;
    for line in text.lines().filter(|line| line.trim_start().starts_with('|')) {
        let mut cells = line.split('|').skip(1);
        let (first, second) = (cells.next().unwrap_or_default(), cells.next().unwrap_or_default());
        let mut words = first.split_whitespace();
        let index = words.next().and_then(|word| word.parse::<u32>().ok());
        if let (Some(index), Some("NVIDIA")) = (index, words.next()) {
            // The name ends where the padding starts, or is cut short by dots.
            let name = first.split_once("NVIDIA").map_or("", |(_, name)| name.trim_start());
            let model = name.split("  ").next().unwrap_or_default().trim_end_matches('.').trim().to_owned();
            let bus_id = second.split_whitespace().next().map(str::to_lowercase);
            listed.insert(index, Listed { model, bus_id, memory: None });
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
