//! What is paid for a candidate: a price, and how many times it counts, which its unit tells of the hosts and GPUs.

use fabricast_topologies::Fabric;

use super::Band;

/// What there is of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// GPUs in use, on all hosts together.
    pub gpus: usize,
    /// Hosts with GPUs in use.
    pub hosts: usize,
}

impl Extent {
    /// That of a fabric.
    #[must_use]
    pub fn of(fabric: &Fabric) -> Self {
        let gpus = fabric.gpus();
        Self { gpus: gpus.len(), hosts: fabric.by_host(gpus).len() }
    }
}

/// What is paid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    /// How.
    pub payment: Payment,
    /// What for one of what is counted.
    pub band: Band,
    /// How many there are of it.
    pub counted: Counted,
}

/// How a price is paid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payment {
    /// At once.
    Bought,
    /// By the hour.
    Hired,
}

/// How many times a price counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Counted {
    /// As often as is said: once, where it is the price of all.
    Given(f64),
    /// For each GPU.
    Gpus,
    /// For each host.
    Hosts,
    /// For each rack, begun ones too.
    Racks {
        /// Hosts of a rack.
        hosts: u32,
    },
    /// Its unit does not tell: once for one host, and for several it has to be said.
    Untold,
}

impl Price {
    /// The price of all, as it is given.
    #[must_use]
    pub fn whole(payment: Payment, band: Band) -> Self {
        Self { payment, band, counted: Counted::Given(1.0) }
    }

    /// How many times it counts for a machine.
    #[must_use]
    pub fn count(&self, extent: Extent) -> f64 {
        match self.counted {
            Counted::Given(count) => count,
            Counted::Gpus => extent.gpus as f64,
            Counted::Hosts => extent.hosts as f64,
            Counted::Racks { hosts } => extent.hosts.div_ceil(hosts.max(1) as usize) as f64,
            Counted::Untold => 1.0,
        }
    }

    /// What all of a machine costs.
    #[must_use]
    pub fn total(&self, extent: Extent) -> Band {
        self.band.times(self.count(extent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_gpus_hosts_and_begun_racks() {
        let extent = Extent { gpus: 144, hosts: 37 };
        let band = Band { low: 2.0, high: 3.0 };
        for (counted, count) in [
            (Counted::Given(2.5), 2.5),
            (Counted::Gpus, 144.0),
            (Counted::Hosts, 37.0),
            (Counted::Racks { hosts: 18 }, 3.0),
            (Counted::Racks { hosts: 37 }, 1.0),
            (Counted::Untold, 1.0),
        ] {
            let price = Price { payment: Payment::Bought, band, counted };
            assert_eq!(price.total(extent), Band { low: 2.0 * count, high: 3.0 * count });
        }
    }
}
