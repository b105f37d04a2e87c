//! Expected traffic between ranks: copies of tokens from each rank to each other one.

use fabricast_sim::schedule::TrafficMatrix;

use crate::error::ExchangeError;
use crate::kernel::CopyTarget;
use crate::ranks::ExchangeRanks;
use crate::routing::TokenRouting;

/// Copies of tokens that one rank sends to another, on average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Transfer {
    pub from: u32,
    pub to: u32,
    pub copies: f64,
}

/// Probabilities that a token has an expert on each rank and in each domain.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic<'a> {
    ranks: &'a ExchangeRanks,
    routing: &'a TokenRouting,
    rank_hits: Vec<f64>,
    domain_hits: Vec<f64>,
}

impl<'a> Traffic<'a> {
    /// Computes the expected traffic of ranks that have equally many consecutive experts, in rank order.
    ///
    /// # Errors
    /// [`ExchangeError::Uneven`] if the number of experts is not a multiple of the number of ranks.
    pub fn new(ranks: &'a ExchangeRanks, routing: &'a TokenRouting) -> Result<Self, ExchangeError> {
        let (experts, parts) = (routing.experts(), ranks.count());
        if !experts.is_multiple_of(parts) {
            return Err(ExchangeError::Uneven { experts, parts, what: "ranks" });
        }
        let own = experts / parts;
        let rank_hits = (0..parts).map(|rank| routing.hit_probability(rank * own, own)).collect();
        let domain_hit = |members: &Vec<u32>| {
            let first = members.first().copied().unwrap_or_default();
            // Ranks of a domain are consecutive on every fabric in rank order; others count as if they were.
            routing.hit_probability(first * own, own * members.len() as u32)
        };
        let domain_hits = ranks.domains().iter().map(domain_hit).collect();
        Ok(Self { ranks, routing, rank_hits, domain_hits })
    }

    /// Mean number of ranks with an expert of a token.
    #[must_use]
    pub fn ranks_per_token(&self) -> f64 {
        self.rank_hits.iter().sum()
    }

    /// Mean number of NVLink domains with an expert of a token.
    #[must_use]
    pub fn domains_per_token(&self) -> f64 {
        self.domain_hits.iter().sum()
    }

    /// Probability that a token has an expert on a rank.
    pub(crate) fn rank_hit(&self, rank: u32) -> f64 {
        self.rank_hits.get(rank as usize).copied().unwrap_or_default()
    }

    /// Probability that a token has an expert in a domain.
    pub(crate) fn domain_hit(&self, domain: u32) -> f64 {
        self.domain_hits.get(domain as usize).copied().unwrap_or_default()
    }

    /// Expected bytes from each rank to each other rank as matrix of an all_to_allv, if a token of `token_bytes` bytes
    /// travels once to each rank that has one of its experts. Values are rounded to whole bytes.
    ///
    /// # Errors
    /// [`ExchangeError::Matrix`] if the total is too large.
    pub fn matrix(&self, token_bytes: u64) -> Result<TrafficMatrix, ExchangeError> {
        self.matrix_of(self.transfers(CopyTarget::Rank), token_bytes)
    }

    /// Variant of [`Self::matrix`] in which a token crosses the network once per NVLink domain, to the rank with the
    /// same index there; copies inside the domains follow as [`Self::forwarding_matrix`].
    ///
    /// # Errors
    /// [`ExchangeError::Matrix`] if the total is too large.
    pub fn network_matrix(&self, token_bytes: u64) -> Result<TrafficMatrix, ExchangeError> {
        self.matrix_of(self.network_transfers(), token_bytes)
    }

    /// Expected bytes that ranks forward inside their NVLink domain after [`Self::network_matrix`].
    ///
    /// # Errors
    /// [`ExchangeError::Matrix`] if the total is too large.
    pub fn forwarding_matrix(&self, token_bytes: u64) -> Result<TrafficMatrix, ExchangeError> {
        self.matrix_of(self.forwarding_transfers(), token_bytes)
    }

    fn matrix_of(
        &self,
        transfers: impl IntoIterator<Item = Transfer>,
        token_bytes: u64,
    ) -> Result<TrafficMatrix, ExchangeError> {
        let ranks = self.ranks.count();
        let mut bytes = vec![0u64; (ranks as usize).pow(2)];
        for Transfer { from, to, copies } in transfers {
            if let Some(entry) = bytes.get_mut(from as usize * ranks as usize + to as usize) {
                *entry += (copies * token_bytes as f64).round() as u64;
            }
        }
        Ok(TrafficMatrix::new(ranks, bytes)?)
    }

    /// All transfers between different ranks of a kernel that sends these copies.
    pub(crate) fn transfers(&self, copies: CopyTarget) -> Vec<Transfer> {
        match copies {
            CopyTarget::Domain => self.network_transfers().into_iter().chain(self.forwarding_transfers()).collect(),
            CopyTarget::Rank => self.pairs(|to| self.rank_hit(to)),
            CopyTarget::Expert => self.pairs(|_| f64::from(self.routing.top_k()) / f64::from(self.ranks.count())),
        }
    }

    fn pairs(&self, copies_per_token: impl Fn(u32) -> f64) -> Vec<Transfer> {
        let ranks = 0..self.ranks.count();
        let pairs = ranks.clone().flat_map(|from| ranks.clone().map(move |to| (from, to)));
        let tokens = self.routing.tokens() as f64;
        pairs
            .filter(|(from, to)| from != to)
            .map(|(from, to)| Transfer { from, to, copies: tokens * copies_per_token(to) })
            .collect()
    }

    fn network_transfers(&self) -> Vec<Transfer> {
        let tokens = self.routing.tokens() as f64;
        let mut transfers = Vec::new();
        for from in 0..self.ranks.count() {
            for domain in (0..self.ranks.domains().len() as u32).filter(|&domain| domain != self.ranks.domain(from)) {
                if let Some(to) = self.ranks.counterpart(from, domain) {
                    transfers.push(Transfer { from, to, copies: tokens * self.domain_hit(domain) });
                }
            }
        }
        transfers
    }

    fn forwarding_transfers(&self) -> Vec<Transfer> {
        let tokens = self.routing.tokens() as f64;
        let mut sources = vec![0u32; self.ranks.count() as usize];
        for from in 0..self.ranks.count() {
            for domain in 0..self.ranks.domains().len() as u32 {
                let holder =
                    if domain == self.ranks.domain(from) { Some(from) } else { self.ranks.counterpart(from, domain) };
                if let Some(count) = holder.and_then(|rank| sources.get_mut(rank as usize)) {
                    *count += 1;
                }
            }
        }
        let mut transfers = Vec::new();
        for members in self.ranks.domains() {
            for &from in members {
                let held = tokens * f64::from(sources.get(from as usize).copied().unwrap_or_default());
                let others = members.iter().filter(|&&to| to != from);
                transfers.extend(others.map(|&to| Transfer { from, to, copies: held * self.rank_hit(to) }));
            }
        }
        transfers
    }
}
