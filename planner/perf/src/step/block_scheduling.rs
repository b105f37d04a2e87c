//! Scheduling of GEMM thread blocks on SMs.

/// Assignment of a GEMM's thread blocks to streaming multiprocessors (SMs), which depends on the GPU generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlockScheduling {
    /// Each block runs on the next free SM. Used by Ampere and earlier, and by Blackwell, whose SMs fetch another tile
    /// when they finish one (CUTLASS, "Blackwell Cluster Launch Control").
    #[default]
    Dynamic,
    /// One block per SM that runs until the GEMM ends. Used by Hopper.
    Persistent,
}

impl BlockScheduling {
    /// Returns the scheduling for a compute capability, given as major × 10 + minor.
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
