//! Which ranks run where: a GPU each, or all on one.

use std::ops::Range;
use std::sync::Arc;

use crate::cuda::{self, Context, Driver};
use crate::kernel::Devices;

use super::ExecuteError;

/// The GPUs of a run, joined, and how ranks lie on them. A member of the team drives one GPU.
#[derive(Clone, Debug)]
pub struct Stage {
    contexts: Vec<Arc<Context>>,
    ranks: u32,
}

impl Stage {
    /// As many GPUs as ranks, in order; all ranks on the first where `devices` says so.
    ///
    /// # Errors
    /// Too few GPUs, no peer access, or a failing call.
    pub fn new(driver: Driver, ranks: u32, devices: Devices) -> Result<Self, ExecuteError> {
        let gpus = driver.device_count();
        let wanted = match devices {
            Devices::Own if ranks as usize <= gpus => ranks as usize,
            Devices::Own => return Err(ExecuteError::TooFewGpus { ranks, gpus }),
            Devices::Shared => 1,
        };
        let context = |ordinal| driver.device(ordinal)?.context();
        let contexts = (0..wanted).map(context).collect::<Result<Vec<_>, _>>()?;
        cuda::join(&contexts)?;
        Ok(Self { contexts, ranks })
    }

    /// The context of each member.
    #[must_use]
    pub fn contexts(&self) -> &[Arc<Context>] {
        &self.contexts
    }

    /// How many ranks there are.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Whether ranks share a GPU.
    #[must_use]
    pub fn devices(&self) -> Devices {
        if self.contexts.len() as u32 == self.ranks { Devices::Own } else { Devices::Shared }
    }

    /// The ranks of a member.
    #[must_use]
    pub fn ranks_of(&self, member: usize) -> Range<usize> {
        match self.devices() {
            Devices::Own => member..member + 1,
            Devices::Shared => 0..self.ranks as usize,
        }
    }

    /// The context that a rank's memory lies in.
    #[must_use]
    pub fn context_of(&self, rank: usize) -> &Arc<Context> {
        &self.contexts[rank.min(self.contexts.len() - 1)]
    }
}
