//! The name of a MIG profile: `3g.71gb` is three compute slices and 71 GB, `1g.10gb+me` one with media engines.

use std::fmt;
use std::str::FromStr;

/// A MIG profile as NVIDIA names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MigProfile {
    /// Compute slices, of 7 (or 4) that a GPU has.
    pub slices: u32,
    /// Memory, in the rounded GB of the name.
    pub gigabytes: u32,
    /// Whether it has the GPU's media engines, which no collective uses.
    pub media: MediaEngines,
}

/// Whether an instance has media engines (`+me`). One of a GPU may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MediaEngines {
    /// Those that every instance of its size has.
    #[default]
    Usual,
    /// All that there are for it.
    Extended,
}

/// A text that is no name of a profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no MIG profile: expected slices and memory, as in 1g.18gb, 3g.71gb or 1g.10gb+me")]
pub struct UnknownProfile(pub String);

impl fmt::Display for MigProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let media = if self.media == MediaEngines::Extended { "+me" } else { "" };
        f.pad(&format!("{}g.{}gb{media}", self.slices, self.gigabytes))
    }
}

impl FromStr for MigProfile {
    type Err = UnknownProfile;

    fn from_str(text: &str) -> Result<Self, UnknownProfile> {
        let read = || {
            let (name, media) = match text.trim().strip_suffix("+me") {
                Some(name) => (name, MediaEngines::Extended),
                None => (text.trim(), MediaEngines::Usual),
            };
            let (slices, gigabytes) = name.strip_suffix("gb")?.split_once("g.")?;
            let number = |digits: &str| digits.parse().ok().filter(|_| !digits.starts_with(['+', '0']));
            Some(Self { slices: number(slices)?, gigabytes: number(gigabytes)?, media })
        };
        read().ok_or_else(|| UnknownProfile(text.trim().to_owned()))
    }
}
