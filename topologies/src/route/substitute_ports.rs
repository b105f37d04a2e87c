//! Substitutes for the ports of a device that has no usable port.

/// Limit and search order of a device's substitute ports: ports of neighbours, at most as many as its assigned ports
/// and at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SubstitutePorts {
    /// Maximum number of substitute ports.
    pub max_count: u32,
    /// First device that is considered. The value differs between devices, so that several devices that lost their
    /// ports use different neighbours.
    first: u32,
    /// Number of devices of the shape.
    devices: u32,
}

impl SubstitutePorts {
    /// Creates the substitutes of a device: their maximum number, the first device considered, and the number of
    /// devices of the shape.
    pub fn new(max_count: u32, first: u32, devices: u32) -> Self {
        Self { max_count, first, devices }
    }

    /// Position of a device in the search order, which begins at the first device considered and wraps around.
    pub(super) fn order(self, device: u32) -> u32 {
        let devices = self.devices.max(1);
        (device + devices - self.first % devices) % devices
    }
}
