//! Lower bound on the time of any exchange with this routing.
//!
//! Two cuts bound every kernel, including one that sends a token once per cut and sums partial results before the cut.
//! A GPU receives at least one copy of each token of another GPU that is routed to one of its experts, at the rate of
//! all its ports. An NVLink domain receives at least one copy of each token of another domain that is routed to one of
//! its experts, at the rate of all NIC ports of its hosts. A combine has the same cuts in the other direction. The
//! latency of the first byte is that of the shortest path across the cut.

use fabricast_topologies::Picos;

use crate::error::ExchangeError;
use crate::exchange::Exchange;
use crate::kernel::Operation;
use crate::link_load::network_port_rate;
use crate::token::TokenType;
use crate::traffic::Traffic;

impl Exchange<'_> {
    /// Lower bound on the completion time of an operation by any kernel, at nominal rates. A preparation moves no
    /// tokens and has no bound.
    ///
    /// # Errors
    /// [`ExchangeError`] if the number of experts is not a multiple of the number of ranks, or two ranks have no path.
    pub fn bound(&self, operation: Operation, token_type: TokenType) -> Result<Picos, ExchangeError> {
        if operation == Operation::Prepare {
            return Ok(Picos::ZERO);
        }
        let traffic = Traffic::new(self.ranks, self.routing)?;
        let fabric = self.router.fabric();
        let tokens = self.routing.tokens() as f64;
        let token_bytes = token_type.token_bytes(self.routing.hidden()) as f64;
        let count = self.ranks.count();
        let mut bound = Picos::ZERO;
        for (rank, &device) in (0..count).zip(self.ranks.devices()) {
            let bytes = tokens * f64::from(count - 1) * traffic.rank_hit(rank) * token_bytes;
            // The ports of a GPU have equal rates in both directions.
            let Some(rate) = fabric.port_bandwidth(device) else { continue };
            bound = bound.max(Picos::from_us(bytes * 1e6 / rate.0.max(1) as f64));
        }
        let domains = self.ranks.domains();
        if domains.len() > 1 && self.has_peer_access() {
            for (domain, members) in (0..).zip(domains) {
                let hosts: Vec<_> = members
                    .iter()
                    .filter_map(|&rank| self.ranks.devices().get(rank as usize))
                    .map(|&device| fabric.node(device).host)
                    .collect();
                let outside = f64::from(count) - members.len() as f64;
                let bytes = tokens * outside * traffic.domain_hit(domain) * token_bytes;
                let rate = network_port_rate(self.router, |host| hosts.contains(&host));
                if rate > 0.0 {
                    bound = bound.max(Picos::from_us(bytes / rate));
                }
            }
        }
        Ok(bound)
    }
}
