//! Price of a candidate: price per unit, and number of units, which follows from the unit and the numbers of hosts and
//! GPUs.

use fabricast_topologies::Fabric;

use super::Band;

/// Size of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Number of GPUs in use on all hosts.
    pub gpus: usize,
    /// Number of hosts with GPUs in use.
    pub hosts: usize,
}

impl Extent {
    /// The size of a fabric.
    #[must_use]
    pub fn of(fabric: &Fabric) -> Self {
        let gpus = fabric.gpus();
        Self { gpus: gpus.len(), hosts: fabric.by_host(gpus).len() }
    }
}

/// Price of a candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    /// Mode of payment.
    pub payment: Payment,
    /// Price of one unit.
    pub band: Band,
    /// Number of units.
    pub counted: Counted,
}

/// Mode of payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payment {
    /// Purchase.
    Bought,
    /// Per hour.
    Hired,
}

/// Number of units of a price.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Counted {
    /// A given number; 1 for the price of the whole machine.
    Given(f64),
    /// Number of GPUs.
    Gpus,
    /// Number of hosts.
    Hosts,
    /// Number of racks, rounded up.
    Racks {
        /// Hosts per rack.
        hosts: u32,
    },
    /// Unknown from the unit: 1 for a single host, must be given for several.
    Untold,
}

impl Price {
    /// Creates the price of a whole machine.
    #[must_use]
    pub fn whole(payment: Payment, band: Band) -> Self {
        Self { payment, band, counted: Counted::Given(1.0) }
    }

    /// Returns the number of units for a machine.
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

    /// Returns the total price of a machine.
    #[must_use]
    pub fn total(&self, extent: Extent) -> Band {
        self.band.times(self.count(extent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_counts_follow_gpus_hosts_and_racks() {
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
