//! Machine on which jobs run: ranks on a fabric, with cost models.

use fabricast_topologies::fabric::Figures;
use fabricast_topologies::route::Router;
use fabricast_topologies::{Bytes, NodeId};

use super::efficiency::Efficiency;
use crate::communication::SimulatedCosts;

/// Machine on which jobs run: ranks on a fabric, with the cost models of communication and of kernels.
pub struct Machine<'a> {
    /// Routes between the devices of the fabric.
    pub router: &'a Router<'a>,
    /// Device of each rank, indexed by rank.
    pub ranks: &'a [NodeId],
    /// Communication cost model based on simulation.
    pub simulated: &'a SimulatedCosts<'a>,
    /// Efficiency curve of kernels on these GPUs.
    pub curve: Efficiency,
}

impl Machine<'_> {
    /// Returns the smallest memory of the GPUs with ranks; `None` if a GPU does not state its memory.
    #[must_use]
    pub fn memory(&self) -> Option<Bytes> {
        let fabric = self.router.fabric();
        let gpu_memory = |&device: &NodeId| match &fabric.node(device).figures {
            Figures::Gpu(figures) => figures.memory,
            _ => None,
        };
        self.ranks.iter().map(gpu_memory).collect::<Option<Vec<Bytes>>>()?.into_iter().min()
    }

    /// Returns the number of ranks in the first rank's NVLink domain.
    pub(crate) fn ranks_per_domain(&self) -> u32 {
        let domain = self.ranks.first().map(|&device| self.router.island_of(device));
        self.ranks.iter().filter(|&&device| Some(self.router.island_of(device)) == domain).count() as u32
    }

    /// Returns the number of ranks on the first rank's host.
    pub(super) fn ranks_per_host(&self) -> u32 {
        let fabric = self.router.fabric();
        let host = self.ranks.first().map(|&device| fabric.node(device).host);
        self.ranks.iter().filter(|&&device| Some(fabric.node(device).host) == host).count() as u32
    }
}
