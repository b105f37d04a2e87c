//! Rings and chains that use all NICs of their hosts.
//!
//! The NICs of a host are its rails; rail i connects NIC i of every host. Channel c enters a host at rail c, leaves it
//! at the previous rail, and traverses the next host in reverse, entering it at the rail where it left the first. With
//! an even number of hosts, every rail carries the same number of channels in each direction, and no message changes
//! rails between hosts. If there are fewer rails than ranks, further channels start at the next rank of a rail. An even
//! number of ranks per host that are linked in pairs are traversed on paths that use all links equally
//! ([`super::mesh`]).
//!
//! Source: NCCL 2.30.7 src/graph/search.cc (`ncclTopoSearchRecNet`: each channel starts at another NIC; crossNic 2:
//! alternating hosts), src/graph/connect.cc (`ncclTopoPostset` swaps odd and even rings on odd hosts). Reversing in
//! alternate hosts, rather than relaying over NVLink to stay on a rail (PXN), is a choice of this module; both load
//! every NIC equally.

use fabricast_sim::schedule::Rank;

use super::mesh;
use crate::capabilities::HostLinks;

/// Assignment of the ranks of equal hosts to rails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rails {
    /// Number of ranks per host.
    per_host: u32,
    /// Number of rails per host, a divisor of the number of ranks per host.
    rails: u32,
    /// Links between the ranks of a host.
    host_links: HostLinks,
}

impl Rails {
    /// Creates the assignment for hosts with `per_host` ranks and `nics` NICs. The number of rails is the largest
    /// divisor of `per_host` that does not exceed `nics`; without NICs, every rank is a rail.
    pub(crate) fn new(per_host: u32, nics: u32) -> Self {
        let divides = |rails: &u32| per_host.is_multiple_of(*rails);
        let max_rails = if nics == 0 { per_host } else { nics.min(per_host) };
        Self { per_host, rails: (1..=max_rails).rev().find(divides).unwrap_or(1), host_links: HostLinks::Other }
    }

    /// Returns the assignment for hosts with these links between their ranks.
    pub(crate) fn with_host_links(self, host_links: HostLinks) -> Self {
        Self { host_links, ..self }
    }

    /// Returns the position at which channel `lane` enters a host.
    pub(crate) fn entry(self, lane: u32) -> u32 {
        let share = self.per_host / self.rails;
        lane % self.rails * share + lane / self.rails % share
    }

    /// Returns the number of channels after which entries repeat.
    fn period(self) -> u32 {
        self.per_host
    }

    /// Returns true if paths over the ranks of a host can use all links equally.
    fn has_mesh(self) -> bool {
        self.host_links == HostLinks::Pairs && self.per_host.is_multiple_of(2)
    }

    /// Returns the ranks of a host in the order of a chain that begins at `entry` and may end at any rank: along a path
    /// that uses all links equally together with the paths of other entries if the host has such a path, otherwise in
    /// order of position.
    pub(crate) fn path(self, entry: u32) -> Vec<u32> {
        match self.has_mesh() {
            true => mesh::path(self.per_host, entry),
            false => (0..self.per_host).map(|step| (entry + step) % self.per_host).collect(),
        }
    }

    /// Returns the ranks of a host in the order of channel `lane`, from entry to exit.
    fn chain(self, lane: u32) -> Vec<u32> {
        let entry = self.entry(lane);
        let path = self.path(entry);
        if self.has_mesh() || self.rails == 1 {
            return path;
        }
        // The exit is at the previous rail, at the rank with the same index in it.
        let (round, rail) = (lane / self.rails, lane % self.rails);
        let exit = self.entry(round * self.rails + (rail + self.rails - 1) % self.rails);
        path.into_iter().filter(|&rank| rank != exit).chain([exit]).collect()
    }

    /// Returns ring orders over `ranks`, one per channel until the orders repeat; empty for a single host.
    pub(crate) fn orders(self, ranks: u32) -> Vec<Vec<Rank>> {
        if self.per_host == 0 || ranks <= self.per_host || !ranks.is_multiple_of(self.per_host) {
            return Vec::new();
        }
        (0..self.period()).map(|lane| self.order(lane, ranks / self.per_host)).collect()
    }

    fn order(self, lane: u32, hosts: u32) -> Vec<Rank> {
        let chain = self.chain(lane);
        let mut order = Vec::with_capacity((hosts * self.per_host) as usize);
        for host in 0..hosts {
            let at = |&position: &u32| Rank(host * self.per_host + position);
            if host.is_multiple_of(2) {
                order.extend(chain.iter().map(at));
            } else {
                order.extend(chain.iter().rev().map(at));
            }
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_traverse_odd_hosts_in_reverse() {
        let orders = Rails::new(4, 4).orders(8);
        let ranks = |order: &Vec<Rank>| order.iter().map(|rank| rank.0).collect::<Vec<_>>();
        assert_eq!(
            orders.iter().map(ranks).collect::<Vec<_>>()[..2],
            [[0, 1, 2, 3, 7, 6, 5, 4], [1, 2, 3, 0, 4, 7, 6, 5]]
        );
    }

    #[test]
    fn rings_visit_every_rank_once_and_load_rails_equally() {
        for (per_host, nics) in [(8, 8), (8, 4), (8, 2), (8, 32), (4, 4), (6, 4), (2, 1), (8, 0)] {
            let rails = Rails::new(per_host, nics);
            let share = per_host / rails.rails;
            for hosts in [2, 4, 6] {
                let ranks = hosts * per_host;
                let mut leaving = vec![0; rails.rails as usize];
                for order in rails.orders(ranks) {
                    let mut sorted: Vec<u32> = order.iter().map(|rank| rank.0).collect();
                    sorted.sort_unstable();
                    assert!(sorted.into_iter().eq(0..ranks), "{order:?}");
                    for (from, to) in order.iter().zip(order.iter().cycle().skip(1)) {
                        if from.0 / per_host != to.0 / per_host {
                            let rail = |rank: &Rank| rank.0 % per_host / share;
                            assert_eq!(rail(from), rail(to), "{order:?}");
                            leaving[rail(from) as usize] += 1;
                        }
                    }
                }
                assert!(leaving.iter().all(|&count| count == leaving[0]), "{per_host} {nics}: {leaving:?}");
            }
        }
    }

    #[test]
    fn orders_are_empty_for_one_host_and_one_per_rank_for_several() {
        let rails = Rails::new(8, 8);
        assert!(rails.orders(8).is_empty());
        assert_eq!([16, 256, 264, 16_384].map(|ranks| rails.orders(ranks).len()), [8; 4]);
    }
}
