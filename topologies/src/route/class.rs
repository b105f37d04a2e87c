//! Path classes: the proximity of two devices in NCCL's terms and order.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{EnumCount, VariantArray};

use crate::variants::variants;

/// The class of a path, nearest first. Order and names are NCCL's (`src/graph/topo.h`, `PATH_LOC` … `PATH_DIS`).
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    EnumCount,
    VariantArray,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "UPPERCASE")]
pub enum PathClass {
    /// The device itself.
    Loc,
    /// NVLink, direct or through NVSwitches.
    Nvl,
    /// NVLink through a GPU in between.
    Nvb,
    /// NVLink-C2C.
    C2c,
    /// At most one PCIe switch.
    Pix,
    /// Several PCIe switches, but no CPU.
    Pxb,
    /// C2C to the CPU, PCIe from there to a NIC.
    P2c,
    /// NVLink to a GPU that is near the NIC, then PCIe to the NIC (PXN).
    Pxn,
    /// Path through a CPU.
    Phb,
    /// Path through the link between CPU sockets.
    Sys,
    /// Path through the network.
    Net,
    /// No path.
    Dis,
}

impl PathClass {
    /// All classes, nearest first.
    pub const ALL: [Self; Self::COUNT] = variants();

    /// NCCL's name of the class, in upper case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Loc => "LOC",
            Self::Nvl => "NVL",
            Self::Nvb => "NVB",
            Self::C2c => "C2C",
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::P2c => "P2C",
            Self::Pxn => "PXN",
            Self::Phb => "PHB",
            Self::Sys => "SYS",
            Self::Net => "NET",
            Self::Dis => "DIS",
        }
    }
}

impl fmt::Display for PathClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Error of a text that is not the name of a path class.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a path class: LOC, NVL, NVB, C2C, PIX, PXB, P2C, PXN, PHB, SYS, NET or DIS")]
pub struct UnknownClass(pub String);

impl FromStr for PathClass {
    type Err = UnknownClass;

    /// Parses the name in upper or lower case.
    fn from_str(text: &str) -> Result<Self, UnknownClass> {
        let found = Self::ALL.into_iter().find(|class| class.name().eq_ignore_ascii_case(text.trim()));
        found.ok_or_else(|| UnknownClass(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn class_names_parse_back_and_follow_the_order_of_nccl() {
        for (rank, class) in PathClass::ALL.into_iter().enumerate() {
            assert_eq!(class.to_string().parse(), Ok(class));
            assert_eq!(class as usize, rank, "{class}");
        }
        assert_eq!("pxn".parse(), Ok(PathClass::Pxn));
        assert!("NODE".parse::<PathClass>().is_err());
        assert!(PathClass::Pxn < PathClass::Phb && PathClass::P2c < PathClass::Pxn);
    }
}
