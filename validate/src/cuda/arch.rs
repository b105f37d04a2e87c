//! Target architectures of kernels.

use std::fmt;

/// Target architecture of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arch {
    number: u32,
    features: Features,
}

/// Set of instructions that a kernel for the architecture may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Features {
    /// Instructions that later architectures support as well.
    Common,
    /// All instructions, including those specific to this architecture.
    Specific,
}

impl Arch {
    /// Creates an architecture from compute capability × 10: 90 is sm_90.
    pub const fn new(number: u32) -> Self {
        Self { number, features: Features::Common }
    }

    /// Variant with architecture-specific instructions, such as sm_90a.
    #[must_use]
    pub const fn specific(self) -> Self {
        Self { number: self.number, features: Features::Specific }
    }

    /// Compute capability × 10, such as 90 for sm_90.
    pub const fn number(self) -> u32 {
        self.number
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = match self.features {
            Features::Common => "",
            Features::Specific => "a",
        };
        write!(f, "sm_{}{suffix}", self.number)
    }
}
