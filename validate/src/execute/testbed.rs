//! Assignment of ranks to GPUs: one GPU per rank, or all ranks on one GPU.

use std::ops::Range;
use std::sync::Arc;

use crate::cuda::{self, Context, Driver};
use crate::kernel::Devices;

use super::ExecuteError;

/// GPUs of a run, with peer access between them, and the ranks on each GPU. Each member of the team drives one GPU.
#[derive(Clone, Debug)]
pub struct Testbed {
    contexts: Vec<Arc<Context>>,
    ranks: u32,
}

impl Testbed {
    /// Opens the GPUs and enables peer access between them. There are as many GPUs as ranks, in the order of their
    /// ordinals; if the ranks share a GPU, only the first is opened.
    ///
    /// # Errors
    /// Too few GPUs, no peer access, or a failing driver call.
    pub fn new(driver: Driver, ranks: u32, devices: Devices) -> Result<Self, ExecuteError> {
        let gpus = driver.device_count();
        let gpu_count = match devices {
            Devices::Own if ranks as usize <= gpus => ranks as usize,
            Devices::Own => return Err(ExecuteError::TooFewGpus { ranks, gpus }),
            Devices::Shared => 1,
        };
        let context = |ordinal| driver.device(ordinal)?.context();
        let contexts = (0..gpu_count).map(context).collect::<Result<Vec<_>, _>>()?;
        cuda::enable_peer_access_between(&contexts)?;
        Ok(Self { contexts, ranks })
    }

    /// Context of each member's GPU, in the order of members.
    #[must_use]
    pub fn contexts(&self) -> &[Arc<Context>] {
        &self.contexts
    }

    /// Number of ranks.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Assignment of ranks to GPUs: one GPU per rank, or one GPU for all.
    #[must_use]
    pub fn devices(&self) -> Devices {
        if self.contexts.len() as u32 == self.ranks { Devices::Own } else { Devices::Shared }
    }

    /// Ranks that run on a member's GPU.
    #[must_use]
    pub fn member_ranks(&self, member: usize) -> Range<usize> {
        match self.devices() {
            Devices::Own => member..member + 1,
            Devices::Shared => 0..self.ranks as usize,
        }
    }

    /// Context of the GPU that holds a rank's memory.
    #[must_use]
    pub fn rank_context(&self, rank: usize) -> &Arc<Context> {
        &self.contexts[rank.min(self.contexts.len() - 1)]
    }
}
