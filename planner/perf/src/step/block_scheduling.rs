//! Scheduling of GEMM thread blocks on SMs.

/// Assignment of a GEMM's thread blocks to streaming multiprocessors (SMs), by GPU generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlockScheduling {
    /// Dynamic: each block runs on the next free SM. Ampere and before, and Blackwell, whose SMs fetch another tile
    /// when they end one (CUTLASS, "Blackwell Cluster Launch Control").
    #[default]
    Dynamic,
    /// Persistent: one block per SM until the GEMM ends. Hopper.
    Persistent,
}

impl BlockScheduling {
    /// Returns the scheduling for a compute capability, as major × 10 + minor.
    pub(super) fn new(capability: u32) -> Self {
        match capability {
            90..100 => Self::Persistent,
            _ => Self::Dynamic,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gemm_blocks_are_persistent_on_hopper() {
        let scheduling = |capabilities: &[u32]| -> Vec<BlockScheduling> {
            capabilities.iter().map(|&one| BlockScheduling::new(one)).collect()
        };
        assert_eq!(scheduling(&[0, 70, 80, 89, 100, 103, 120, 942]), [BlockScheduling::Dynamic; 8]);
        assert_eq!(scheduling(&[90]), [BlockScheduling::Persistent]);
    }
}
