//! Versions of RCCL, and the differences between their choices.

use std::fmt;
use std::str::FromStr;

use fabricast_topologies::variants::variants;
use strum::{EnumCount, VariantArray};

/// Version of RCCL whose choices are modelled. Its number is that of the NCCL version from which it was forked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EnumCount, VariantArray)]
pub enum RcclVersion {
    /// 2.21.5 (ROCm 6.3): MSCCL's kernels also run for a process with several GPUs.
    V2_21_5,
    /// 2.22.3 (ROCm 6.4). Its tables are assumed to be those of 2.21.5, because its sources were not read.
    V2_22_3,
    /// 2.26.6 (ROCm 7.0): byte ranges of LL and LL128 on several hosts; support for gfx950.
    V2_26_6,
    /// 2.27.7 (ROCm 7.1 and 7.2): longer byte ranges, channels by byte ranges, MSCCL++ off by default.
    V2_27_7,
    /// 2.28.3 (ROCm 7.11 and 7.12): fewer channels on gfx950.
    V2_28_3,
}

/// Error for a version of RCCL that is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("RCCL {0} is not modelled: expected 2.21.5, 2.22.3, 2.26.6, 2.27.7 or 2.28.3")]
pub struct UnknownRcclVersion(pub String);

impl RcclVersion {
    /// All versions, oldest first.
    pub const ALL: [Self; Self::COUNT] = variants();

    /// Newest version.
    pub const NEWEST: Self = Self::V2_28_3;

    fn number(self) -> &'static str {
        match self {
            Self::V2_21_5 => "2.21.5",
            Self::V2_22_3 => "2.22.3",
            Self::V2_26_6 => "2.26.6",
            Self::V2_27_7 => "2.27.7",
            Self::V2_28_3 => "2.28.3",
        }
    }

    /// Version that represents a measured one: the newest known version that is not later, or the oldest known version.
    /// `None` if the text is not a version number.
    #[must_use]
    pub fn nearest(number: &str) -> Option<Self> {
        let release = release(number)?;
        let not_later = |version: &Self| self::release(version.number()).is_some_and(|known| known <= release);
        Some(Self::ALL.into_iter().rev().find(not_later).unwrap_or(Self::V2_21_5))
    }
}

/// Major and minor number of a version.
fn release(number: &str) -> Option<(u32, u32)> {
    let mut parts = number.split(['.', '-', '+']).map_while(|part| part.parse().ok());
    Some((parts.next()?, parts.next()?))
}

impl fmt::Display for RcclVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.number())
    }
}

impl FromStr for RcclVersion {
    type Err = UnknownRcclVersion;

    /// Parses `2.27`, `2.27.7`, `2.27.7-HEAD`.
    fn from_str(text: &str) -> Result<Self, UnknownRcclVersion> {
        let known = Self::ALL.into_iter().find(|version| release(version.number()) == release(text));
        known.ok_or_else(|| UnknownRcclVersion(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_round_trip_and_others_map_to_the_one_before() {
        for version in RcclVersion::ALL {
            assert_eq!(version.to_string().parse(), Ok(version));
        }
        assert_eq!("2.27.7-HEAD".parse(), Ok(RcclVersion::V2_27_7));
        for wrong in ["", "2", "2.24", "3.1", "newest"] {
            assert!(wrong.parse::<RcclVersion>().is_err(), "{wrong}");
        }
        for (number, nearest) in [
            ("2.18.6", RcclVersion::V2_21_5),
            ("2.24.3", RcclVersion::V2_22_3),
            ("2.30.4", RcclVersion::V2_28_3),
            ("2.27.7-HEAD:96a25b5", RcclVersion::V2_27_7),
        ] {
            assert_eq!(RcclVersion::nearest(number), Some(nearest), "{number}");
        }
        assert_eq!(RcclVersion::nearest("newest"), None);
    }
}
