//! Boards that support MIG, with their profiles: the table in NVIDIA's Multi-Instance GPU User Guide ("Supported MIG
//! Profiles").
//!
//! All boards follow one of two patterns. Large boards have 7 compute and 8 memory slices and the profiles 1g, 1g with
//! double memory, 2g, 3g, 4g and 7g. Small boards have 4 slices of each and the profiles 1g, 2g and 4g. The memory
//! sizes in the profile names differ by board. Profiles fit if the sums of their slices fit. Placement needs no further
//! check: any profiles whose sums fit can also be placed (the tests verify this exhaustively with the guide's
//! placements).

use super::profile::{MediaEngines, MigProfile};
use crate::fabric::{GpuFigures, suggest_names};

/// A board that supports MIG, with the GB in the names of its profiles.
#[derive(Debug)]
pub(super) struct Board {
    name: &'static str,
    compute_capability: u32,
    /// Memory sizes in GB that data sheets or specs state.
    memory: &'static [u64],
    /// GB in the names of the profiles that have an eighth, a quarter, a half and all of the memory (boards of 7
    /// compute slices), or a quarter, a half and all of it (boards of 4 compute slices).
    gigabytes: &'static [u32],
}

const BOARDS: [Board; 13] = [
    Board { name: "A100 40GB", compute_capability: 80, memory: &[40, 43], gigabytes: &[5, 10, 20, 40] },
    Board { name: "A100 80GB", compute_capability: 80, memory: &[80, 85, 86], gigabytes: &[10, 20, 40, 80] },
    Board { name: "A30", compute_capability: 80, memory: &[24, 26], gigabytes: &[6, 12, 24] },
    Board { name: "H100 80GB", compute_capability: 90, memory: &[80, 85], gigabytes: &[10, 20, 40, 80] },
    Board { name: "H100 94GB", compute_capability: 90, memory: &[94, 100], gigabytes: &[12, 24, 47, 94] },
    Board { name: "H100 96GB", compute_capability: 90, memory: &[96, 103], gigabytes: &[12, 24, 48, 96] },
    Board { name: "H200", compute_capability: 90, memory: &[141, 150], gigabytes: &[18, 35, 71, 141] },
    Board { name: "GH200 144GB", compute_capability: 90, memory: &[144], gigabytes: &[18, 36, 72, 144] },
    Board { name: "B200", compute_capability: 100, memory: &[180, 192], gigabytes: &[23, 45, 90, 180] },
    Board { name: "GB200", compute_capability: 100, memory: &[186, 199], gigabytes: &[23, 47, 93, 186] },
    Board { name: "B300", compute_capability: 103, memory: &[269, 288], gigabytes: &[34, 67, 135, 269] },
    Board { name: "GB300", compute_capability: 103, memory: &[278, 288, 298], gigabytes: &[35, 70, 139, 278] },
    Board { name: "RTX PRO 6000 Blackwell", compute_capability: 120, memory: &[96, 103], gigabytes: &[24, 48, 96] },
];

/// Share of a board's slices that an instance has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InstanceShare {
    /// Number of compute slices of the instance; equal to its number of copy engines.
    pub compute: u32,
    /// Number of compute slices of the board.
    pub compute_slices: u32,
    /// Number of memory slices of the instance.
    pub memory: u32,
    /// Number of memory slices of the board.
    pub memory_slices: u32,
}

/// Number of SMs of the instances of large boards whose SMs are not proportional to slices. Each entry has the number
/// of SMs of the board and those of the profiles 1g, 1g with double memory, 2g, 3g, 4g and 7g. Source: `nvidia-smi mig
/// -lgip` of A100, H100 PCIe and H100 SXM (2g and 3g confirmed on H200).
const SMS: [(u32, [u32; 6]); 3] =
    [(108, [14, 14, 28, 42, 56, 98]), (114, [14, 14, 30, 46, 62, 114]), (132, [16, 26, 32, 60, 64, 132])];

/// Compute and memory slices of the profiles of a large board.
const LARGE: [Slices; 6] =
    [Slices::new(1, 1), Slices::new(1, 2), Slices::new(2, 2), Slices::new(3, 4), Slices::new(4, 4), Slices::new(7, 8)];
/// Compute and memory slices of the profiles of a small board.
const SMALL: [Slices; 3] = [Slices::new(1, 1), Slices::new(2, 2), Slices::new(4, 4)];

/// Numbers of slices of a board or a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slices {
    compute: u32,
    memory: u32,
}

impl Slices {
    const fn new(compute: u32, memory: u32) -> Self {
        Self { compute, memory }
    }
}

/// MIG profile of a board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BoardProfile {
    slices: Slices,
    /// GB in the name of the profile.
    gigabytes: u32,
}

impl InstanceShare {
    /// Number of SMs of the instance on a board with `total` SMs.
    pub fn sms(&self, total: u32) -> u32 {
        let listed = SMS.iter().find(|&&(board, _)| board == total && self.compute_slices == 7);
        let row = LARGE.iter().position(|&slices| slices == Slices::new(self.compute, self.memory));
        let listed = listed.zip(row).and_then(|((_, sms), row)| sms.get(row).copied());
        // An instance has a multiple of 2 SMs, because SMs are allocated in pairs (TPCs).
        listed.unwrap_or_else(|| {
            (u64::from(total) * u64::from(self.compute) / u64::from(self.compute_slices)) as u32 & !1
        })
    }
}

impl Board {
    /// The board that matches the figures of a GPU. If several match, the first that has all the profiles.
    ///
    /// # Errors
    /// A message that states why no board matches.
    pub fn find(figures: &GpuFigures, profiles: &[MigProfile]) -> Result<&'static Self, String> {
        let matches_figures = |board: &&Self| {
            figures.compute_capability.is_none_or(|capability| capability == board.compute_capability)
                && figures.memory.is_none_or(|memory| {
                    board.memory.iter().any(|&gb| (memory.0.abs_diff(gb * 1_000_000_000)) * 100 <= gb * 1_000_000_000)
                })
        };
        let boards: Vec<&Self> = BOARDS.iter().filter(matches_figures).collect();
        let has_all = |board: &&&Self| profiles.iter().all(|profile| board.profile_slices(*profile).is_some());
        match (boards.iter().find(has_all), boards.first()) {
            (Some(board), _) => Ok(board),
            (None, Some(first)) => Err(first.unknown_profile_message(&boards, profiles)),
            (None, None) => {
                let model = figures.model.as_deref().unwrap_or("this GPU");
                let known: Vec<&str> = BOARDS.iter().map(|board| board.name).collect();
                Err(format!("MIG profiles of {model} are not known; they are of {}", known.join(", ")))
            }
        }
    }

    fn unknown_profile_message(&self, boards: &[&Self], profiles: &[MigProfile]) -> String {
        let known = |profile: &&MigProfile| boards.iter().any(|board| board.profile_slices(**profile).is_some());
        let unknown = profiles.iter().find(|profile| !known(profile)).or(profiles.first());
        let unknown = unknown.map(ToString::to_string).unwrap_or_default();
        let names: Vec<Vec<String>> = boards.iter().map(|board| board.names()).collect();
        let near = suggest_names(&unknown, names.iter().flatten().map(String::as_str));
        let hint = if near.is_empty() { String::new() } else { format!("; did you mean {}?", near.join(" or ")) };
        let lists = boards.iter().zip(&names).map(|(board, names)| format!("{} has {}", board.name, names.join(", ")));
        format!("there is no MIG profile {unknown} here: {}{hint}", lists.collect::<Vec<_>>().join("; "))
    }

    /// Shares of the board that instances with these profiles have, in order.
    ///
    /// # Errors
    /// A message that states which profiles do not fit.
    pub fn instance_shares(&self, profiles: &[MigProfile]) -> Result<Vec<InstanceShare>, String> {
        let Slices { compute: compute_slices, memory: memory_slices } = self.slices();
        let share =
            |Slices { compute, memory }: Slices| InstanceShare { compute, compute_slices, memory, memory_slices };
        let parts = profiles.iter().filter_map(|profile| self.profile_slices(*profile));
        let parts: Vec<InstanceShare> = parts.map(share).collect();
        let profile_list: Vec<String> = profiles.iter().map(ToString::to_string).collect();
        let profile_list = profile_list.join(" + ");
        let sum = |slices: fn(&InstanceShare) -> u32| parts.iter().map(slices).sum::<u32>();
        let (compute, memory) = (sum(|part| part.compute), sum(|part| part.memory));
        if compute > compute_slices {
            return Err(format!("{profile_list} need {compute} compute slices of {compute_slices}"));
        }
        if memory > memory_slices {
            return Err(format!("{profile_list} need {memory} memory slices of {memory_slices}"));
        }
        match profiles.iter().filter(|profile| profile.media == MediaEngines::Extended).count() {
            0 | 1 => Ok(parts),
            several => Err(format!("{several} instances with +me: one of a GPU can have its media engines")),
        }
    }

    /// Slices of the whole board.
    fn slices(&self) -> Slices {
        if self.gigabytes.len() == 4 { Slices::new(7, 8) } else { Slices::new(4, 4) }
    }

    /// The profiles of the board.
    fn profiles(&self) -> impl Iterator<Item = BoardProfile> + '_ {
        let pattern: &[Slices] = if self.slices().memory == 8 { &LARGE } else { &SMALL };
        // Memory sizes double from the smallest profile to the whole board.
        pattern.iter().filter_map(|&slices| {
            let gigabytes = *self.gigabytes.get(slices.memory.ilog2() as usize)?;
            Some(BoardProfile { slices, gigabytes })
        })
    }

    /// Slices of a profile; `None` if the board does not have the profile.
    fn profile_slices(&self, profile: MigProfile) -> Option<Slices> {
        let is_named =
            |known: &BoardProfile| (known.slices.compute, known.gigabytes) == (profile.slices, profile.gigabytes);
        let BoardProfile { slices, .. } = self.profiles().find(is_named)?;
        let extends = profile.media == MediaEngines::Default || self.has_media_variant(slices);
        extends.then_some(slices)
    }

    /// Returns true if a profile has a variant with `+me`: the smallest one, and on A30 also the next.
    fn has_media_variant(&self, slices: Slices) -> bool {
        slices == Slices::new(1, 1) || (self.name == "A30" && slices.compute == 2)
    }

    /// Names of all profiles of the board, including the variants with `+me`.
    fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        for BoardProfile { slices, gigabytes } in self.profiles() {
            let usual = MigProfile { slices: slices.compute, gigabytes, media: MediaEngines::Default };
            names.push(usual.to_string());
            if self.has_media_variant(slices) {
                names.push(MigProfile { media: MediaEngines::Extended, ..usual }.to_string());
            }
        }
        names
    }

    #[cfg(test)]
    pub fn all() -> impl Iterator<Item = &'static Self> {
        BOARDS.iter()
    }

    #[cfg(test)]
    pub fn every_profile(&self) -> Vec<MigProfile> {
        self.names().iter().filter_map(|name| name.parse().ok()).collect()
    }
}
