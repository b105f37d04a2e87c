//! Dispatch or combine by a kernel on the GPUs of a fabric: its load on links, bytes between ranks, bandwidth.

use fabricast_sim::profile::LinkEfficiency;
use fabricast_topologies::fabric::Figures;
use fabricast_topologies::route::{PeerAccess, Router};
use fabricast_topologies::{Bandwidth, Picos};

use crate::error::ExchangeError;
use crate::kernel::{CopyTarget, ExchangeKernel, Operation};
use crate::link_load::{LinkLoad, LoadRequest, bytes_per_us};
use crate::ranks::ExchangeRanks;
use crate::routing::TokenRouting;
use crate::token::TokenType;
use crate::traffic::{Traffic, Transfer};

/// Bytes that one rank sends to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairBytes {
    /// Sender.
    pub from: u32,
    /// Receiver.
    pub to: u32,
    /// Expected bytes.
    pub bytes: f64,
}

/// Exchange of tokens by a kernel on the GPUs of a fabric.
#[derive(Clone, Copy)]
pub struct Exchange<'a> {
    /// Routes of the fabric.
    pub router: &'a Router<'a>,
    /// Ranks and their domains.
    pub ranks: &'a ExchangeRanks,
    /// Achieved share of nominal link rates, from a profile.
    pub links: &'a LinkEfficiency,
    /// Tokens of each rank and their routing.
    pub routing: &'a TokenRouting,
    /// Kernel that exchanges the tokens.
    pub kernel: ExchangeKernel,
    /// SMs of the kernel, if it lets the caller choose; `None` for its default.
    pub sms: Option<u32>,
}

/// Operation with its load on links. Together with the costs, it determines the completion time.
#[derive(Clone, Debug, PartialEq)]
pub struct ExchangeLoad {
    pub(crate) operation: Operation,
    pub(crate) token_type: TokenType,
    pub(crate) copies: CopyTarget,
    /// Tokens of the most loaded rank.
    pub(crate) tokens: f64,
    /// Bytes of a token with scales, and on the wire.
    pub(crate) token_bytes: f64,
    pub(crate) wire_bytes: f64,
    pub(crate) ranks_per_token: f64,
    pub(crate) domains_per_token: f64,
    pub(crate) links: LinkLoad,
}

impl Exchange<'_> {
    /// Routes the tokens of an operation.
    ///
    /// # Errors
    /// [`ExchangeError`]: the kernel lacks the operation or cannot reach the ranks, the number of experts is not a
    /// multiple of the number of ranks, or two ranks have no path.
    pub fn load(&self, operation: Operation, token_type: TokenType) -> Result<ExchangeLoad, ExchangeError> {
        self.concurrent_load(operation, token_type, &[])
    }

    /// Variant of [`Self::load`] in which other groups of ranks concurrently exchange the same number of tokens. Shared
    /// links carry the tokens of all groups.
    ///
    /// # Errors
    /// Errors of [`Self::load`].
    pub fn concurrent_load(
        &self,
        operation: Operation,
        token_type: TokenType,
        others: &[ExchangeRanks],
    ) -> Result<ExchangeLoad, ExchangeError> {
        self.check(operation)?;
        let traffic = Traffic::new(self.ranks, self.routing)?;
        let token_bytes = token_type.token_bytes(self.routing.hidden()) as f64;
        let wire_bytes = self.wire_bytes(operation, token_type);
        let request = LoadRequest { router: self.router, ranks: self.ranks, links: self.links, bytes: wire_bytes };
        let copies = self.kernel.copies(operation);
        let transfers = |traffic: &Traffic<'_>| directed_transfers(traffic, copies, operation);
        let mut concurrent = Vec::with_capacity(others.len());
        for ranks in others {
            concurrent.push((ranks, transfers(&Traffic::new(ranks, self.routing)?)));
        }
        let skew = self.routing.skew();
        Ok(ExchangeLoad {
            operation,
            token_type,
            copies,
            tokens: self.routing.tokens() as f64 * skew,
            token_bytes,
            wire_bytes,
            ranks_per_token: traffic.ranks_per_token(),
            domains_per_token: traffic.domains_per_token(),
            links: request.busiest(&transfers(&traffic), &concurrent)?.scaled(skew),
        })
    }

    /// Expected bytes on the wire between ranks, without the factors of skew and of other groups.
    ///
    /// # Errors
    /// Errors of [`Self::load`].
    pub fn pair_bytes(&self, operation: Operation, token_type: TokenType) -> Result<Vec<PairBytes>, ExchangeError> {
        self.check(operation)?;
        let traffic = Traffic::new(self.ranks, self.routing)?;
        let bytes = self.wire_bytes(operation, token_type);
        let transfers = directed_transfers(&traffic, self.kernel.copies(operation), operation);
        let pair = |Transfer { from, to, copies }| PairBytes { from, to, bytes: copies * bytes };
        Ok(transfers.into_iter().map(pair).collect())
    }

    /// Bytes of a copy of a token on the wire.
    fn wire_bytes(&self, operation: Operation, token_type: TokenType) -> f64 {
        let token_bytes = token_type.token_bytes(self.routing.hidden()) as f64;
        (token_bytes + self.kernel.header_bytes(operation, self.routing.top_k())) * self.kernel.wire_factor()
    }

    /// Mean number of NVLink domains with an expert of a token; 0 if the number of experts is not a multiple of the
    /// number of ranks.
    #[must_use]
    pub fn domains_per_token(&self) -> f64 {
        Traffic::new(self.ranks, self.routing).map_or(0.0, |traffic| traffic.domains_per_token())
    }

    /// Bandwidth over the network as DeepEP reports it: bytes of the copies sent to all domains, divided by the time.
    /// Kernels with a copy per expert count all copies, including those that stay in the domain. `None` if the ranks
    /// are one domain.
    ///
    /// # Errors
    /// [`ExchangeError::Uneven`] if the number of experts is not a multiple of the number of ranks.
    pub fn network_bandwidth(&self, token_type: TokenType, time: Picos) -> Result<Option<Bandwidth>, ExchangeError> {
        if self.ranks.domains().len() < 2 {
            return Ok(None);
        }
        let traffic = Traffic::new(self.ranks, self.routing)?;
        let copies = match self.kernel.reported_copies() {
            CopyTarget::Domain => traffic.domains_per_token(),
            CopyTarget::Rank => traffic.ranks_per_token(),
            CopyTarget::Expert => self.routing.top_k().into(),
        };
        Ok(Some(self.bandwidth(copies, token_type, time)))
    }

    /// Bandwidth over NVLink as DeepEP reports it: bytes of the copies sent to all ranks with an expert of the token,
    /// divided by the time. Kernels with a copy per expert count all copies, including those that stay on the GPU.
    ///
    /// # Errors
    /// [`ExchangeError::Uneven`] if the number of experts is not a multiple of the number of ranks.
    pub fn nvlink_bandwidth(&self, token_type: TokenType, time: Picos) -> Result<Bandwidth, ExchangeError> {
        let traffic = Traffic::new(self.ranks, self.routing)?;
        let copies = match self.kernel.reported_copies() {
            CopyTarget::Expert => self.routing.top_k().into(),
            CopyTarget::Rank | CopyTarget::Domain => traffic.ranks_per_token(),
        };
        Ok(self.bandwidth(copies, token_type, time))
    }

    fn bandwidth(&self, copies_per_token: f64, token_type: TokenType, time: Picos) -> Bandwidth {
        let token_bytes = token_type.token_bytes(self.routing.hidden()) as f64;
        let bytes = self.routing.tokens() as f64 * copies_per_token * token_bytes;
        Bandwidth::from_gb_per_s(bytes / (time.us().max(1e-6) * 1e3))
    }

    fn check(&self, operation: Operation) -> Result<(), ExchangeError> {
        let kernel = self.kernel.name();
        if operation == Operation::Prepare && self.kernel != ExchangeKernel::TensorRtTwoSided {
            return Err(ExchangeError::NoOperation { kernel, operation: operation.name() });
        }
        if self.kernel.needs_one_domain() && self.ranks.domains().len() > 1 {
            return Err(ExchangeError::SeveralDomains(kernel));
        }
        Ok(())
    }

    fn figures(&self) -> Option<&fabricast_topologies::fabric::GpuFigures> {
        let device = self.ranks.devices().first()?;
        match &self.router.fabric().node(*device).figures {
            Figures::Gpu(figures) => Some(figures),
            _ => None,
        }
    }

    /// Memory bandwidth of a GPU in bytes per µs, if it is known.
    pub(crate) fn memory_rate(&self) -> Option<f64> {
        self.figures()?.memory_bandwidth.map(bytes_per_us)
    }

    /// Number of SMs of a GPU; that of H100 if it is not known.
    pub(crate) fn sm_count(&self) -> u32 {
        self.figures().and_then(|figures| figures.sm_count).unwrap_or(132)
    }

    /// Returns true if ranks access each other's memory.
    #[must_use]
    pub fn has_peer_access(&self) -> bool {
        self.router.options().p2p == PeerAccess::Allowed
    }
}

/// Transfers of an operation. A combine has those of the dispatch in the other direction.
fn directed_transfers(traffic: &Traffic<'_>, copies: CopyTarget, operation: Operation) -> Vec<Transfer> {
    let mut transfers = traffic.transfers(copies);
    if operation == Operation::Combine {
        for transfer in &mut transfers {
            std::mem::swap(&mut transfer.from, &mut transfer.to);
        }
    }
    transfers
}
