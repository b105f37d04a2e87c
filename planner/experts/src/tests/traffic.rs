//! Traffic between ranks against a count over all choices of experts.

use fabricast_sim::schedule::TrafficMatrix;
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{FabricRequest, load};
use proptest::prelude::*;

use super::routing::sets;
use crate::{ExchangeRanks, RoutingPattern, TokenRouting, Traffic};

/// Hosts of equally many GPUs, each with equally many experts.
#[derive(Clone, Copy, Debug)]
struct Hosts {
    hosts: u32,
    gpus: u32,
    experts: u32,
}

impl Hosts {
    fn ranks(self) -> u32 {
        self.hosts * self.gpus
    }

    fn host(self, rank: u32) -> u32 {
        rank / self.gpus
    }

    /// Ranks that have an expert of a set.
    fn ranks_with(self, experts: u32) -> Vec<bool> {
        let own = (1u32 << self.experts) - 1;
        (0..self.ranks()).map(|rank| experts >> (rank * self.experts) & own != 0).collect()
    }
}

/// Copies between all pairs of ranks.
#[derive(Clone, Debug, PartialEq)]
struct Counts {
    ranks: u32,
    copies: Vec<u64>,
}

impl Counts {
    fn new(ranks: u32) -> Self {
        Self { ranks, copies: vec![0; (ranks * ranks) as usize] }
    }

    fn add(&mut self, from: u32, to: u32) {
        if from != to {
            self.copies[(from * self.ranks + to) as usize] += 1;
        }
    }

    /// Asserts that a matrix has these copies of tokens of `bytes` bytes, `repeats` times, up to rounding.
    fn assert_equal(&self, matrix: &TrafficMatrix, bytes: u64, repeats: u64) {
        for from in 0..self.ranks {
            for to in 0..self.ranks {
                let expected = self.copies[(from * self.ranks + to) as usize] * bytes * repeats;
                let actual = matrix.get(from, to).0;
                assert!(actual.abs_diff(expected) <= 1 + expected / 1_000_000_000, "{from} {to} {actual} {expected}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Every rank sends one token for each choice of experts. Counted token by token, a host receives each once, at the
    /// rank with the sender's index, and every rank with an expert has it once from a rank of its host.
    #[test]
    fn copies_equal_a_count_of_all_tokens(hosts in 1u32..4, gpus in 1u32..3, experts in 1u32..3, top_k in 1u32..5) {
        let hosts = Hosts { hosts, gpus, experts };
        let ranks = hosts.ranks();
        let top_k = top_k.min(ranks * experts);
        let choices: Vec<u32> = sets(ranks * experts, top_k).collect();
        let [mut direct, mut network, mut forwarding] = [(); 3].map(|()| Counts::new(ranks));
        for from in 0..ranks {
            for with_expert in choices.iter().map(|&choice| hosts.ranks_with(choice)) {
                for host in 0..hosts.hosts {
                    let members = || (host * gpus..(host + 1) * gpus).filter(|&rank| with_expert[rank as usize]);
                    if members().next().is_none() {
                        continue;
                    }
                    let entry = if host == hosts.host(from) { from } else { host * gpus + from % gpus };
                    network.add(from, entry);
                    members().for_each(|to| direct.add(from, to));
                    members().for_each(|to| forwarding.add(entry, to));
                }
            }
        }
        let request = FabricRequest { nodes: Some(hosts.hosts), gpus: Some(gpus), ..FabricRequest::new("hgx-h100") };
        let fabric = load(&request).unwrap();
        let router = Router::new(&fabric, RouteOptions::default());
        let group = ExchangeRanks::new(&router, fabric.gpus()).unwrap();
        // Many repetitions make the rounding to bytes negligible.
        let (bytes, repeats) = (1000, 1000);
        let tokens = choices.len() as u64 * repeats;
        let routing = TokenRouting::new(tokens, 500, ranks * experts, top_k, RoutingPattern::Random).unwrap();
        let traffic = Traffic::new(&group, &routing).unwrap();
        direct.assert_equal(&traffic.matrix(bytes).unwrap(), bytes, repeats);
        network.assert_equal(&traffic.network_matrix(bytes).unwrap(), bytes, repeats);
        forwarding.assert_equal(&traffic.forwarding_matrix(bytes).unwrap(), bytes, repeats);
    }
}
