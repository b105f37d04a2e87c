//! Names of MIG profiles: `3g.71gb` has three compute slices and 71 GB, `1g.10gb+me` has media engines.

use std::fmt;
use std::str::FromStr;

/// A MIG profile in NVIDIA's notation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MigProfile {
    /// Number of compute slices, of the 7 (or 4) of a GPU.
    pub slices: u32,
    /// Memory size in GB, rounded as in the name.
    pub gigabytes: u32,
    /// Media engines of the instance, which collectives do not use.
    pub media: MediaEngines,
}

/// Media engines of an instance (`+me`). At most one instance of a GPU can have the extended ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MediaEngines {
    /// The usual media engines of an instance of this size.
    #[default]
    Default,
    /// All available media engines.
    Extended,
}

/// Error for a text that is not the name of a MIG profile.
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
                None => (text.trim(), MediaEngines::Default),
            };
            let (slices, gigabytes) = name.strip_suffix("gb")?.split_once("g.")?;
            let number = |digits: &str| digits.parse().ok().filter(|_| !digits.starts_with(['+', '0']));
            Some(Self { slices: number(slices)?, gigabytes: number(gigabytes)?, media })
        };
        read().ok_or_else(|| UnknownProfile(text.trim().to_owned()))
    }
}
