//! Price of a candidate: price per unit, and number of units, which depends on the unit and on the numbers of hosts and
//! GPUs.

use fabricast_topologies::Fabric;

use super::Band;

/// Size of a machine. Prices per host or GPU are multiplied by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineSize {
    /// Number of GPUs in use on all hosts.
    pub gpus: usize,
    /// Number of hosts with GPUs in use.
    pub hosts: usize,
}

impl MachineSize {
    /// Returns the size of a fabric.
    #[must_use]
    pub fn new(fabric: &Fabric) -> Self {
        let gpus = fabric.gpus();
        Self { gpus: gpus.len(), hosts: fabric.group_by_host(gpus).len() }
    }
}

/// Price of a candidate: mode of payment, price of a unit, and number of units.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    /// Mode of payment: once or per hour.
    pub payment: Payment,
    /// Price of one unit.
    pub band: Band,
    /// Number of units that the candidate needs.
    pub unit_count: UnitCount,
}

/// Mode of payment: once or per hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payment {
    /// Purchase, paid once.
    Bought,
    /// Rent, paid per hour.
    PerHour,
}

/// Rule that determines the number of units that a candidate pays for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum UnitCount {
    /// Given number of units; 1 for the price of the whole machine.
    Fixed(f64),
    /// One unit per GPU in use.
    Gpus,
    /// One unit per host with GPUs in use.
    Hosts,
    /// One unit per rack, rounded up.
    Racks {
        /// Number of hosts per rack.
        hosts: u32,
    },
    /// The unit does not determine the number: it is 1 for a single host, and must be stated for several.
    Unknown,
}

impl Price {
    /// Creates the price of a whole machine, which counts as one unit.
    #[must_use]
    pub fn lump_sum(payment: Payment, band: Band) -> Self {
        Self { payment, band, unit_count: UnitCount::Fixed(1.0) }
    }

    /// Returns the number of units for a machine.
    #[must_use]
    pub fn count(&self, size: MachineSize) -> f64 {
        match self.unit_count {
            UnitCount::Fixed(count) => count,
            UnitCount::Gpus => size.gpus as f64,
            UnitCount::Hosts => size.hosts as f64,
            UnitCount::Racks { hosts } => size.hosts.div_ceil(hosts.max(1) as usize) as f64,
            UnitCount::Unknown => 1.0,
        }
    }

    /// Returns the total price of a machine.
    #[must_use]
    pub fn total(&self, size: MachineSize) -> Band {
        self.band.scaled_by(self.count(size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_counts_follow_gpus_hosts_and_racks() {
        let size = MachineSize { gpus: 144, hosts: 37 };
        let band = Band { low: 2.0, high: 3.0 };
        for (counted, count) in [
            (UnitCount::Fixed(2.5), 2.5),
            (UnitCount::Gpus, 144.0),
            (UnitCount::Hosts, 37.0),
            (UnitCount::Racks { hosts: 18 }, 3.0),
            (UnitCount::Racks { hosts: 37 }, 1.0),
            (UnitCount::Unknown, 1.0),
        ] {
            let price = Price { payment: Payment::Bought, band, unit_count: counted };
            assert_eq!(price.total(size), Band { low: 2.0 * count, high: 3.0 * count });
        }
    }
}
