//! Bytes that devices send to each other in an all_to_allv.

use fabricast_sim::schedule::{MatrixBlock, TrafficMatrix};

/// Bytes that each device sends to each other device in an all_to_allv.
pub(super) struct DeviceDemand {
    devices: usize,
    /// Bytes by sending device, then by receiving device; 0 from a device to itself.
    bytes: Vec<u128>,
    /// Total bytes between different devices.
    pub(super) crossing: u128,
    /// Total bytes of the call, including those within a device.
    pub(super) total: u128,
}

impl DeviceDemand {
    /// Adds up the bytes of a matrix by device. `devices`: number of devices; `device_of`: function that returns the
    /// number of a rank's device.
    pub(super) fn new(matrix: &TrafficMatrix, devices: usize, device_of: impl Fn(u32) -> Option<u32>) -> Self {
        let mut demand =
            Self { devices, bytes: vec![0; devices * devices], crossing: 0, total: u128::from(matrix.total().0) };
        for MatrixBlock { from, to, bytes } in matrix.blocks() {
            let (Some(from), Some(to)) = (device_of(from), device_of(to)) else { continue };
            if let Some(sum) = demand.bytes.get_mut(from as usize * devices + to as usize).filter(|_| from != to) {
                *sum += u128::from(bytes.0);
                demand.crossing += u128::from(bytes.0);
            }
        }
        demand
    }

    /// Returns the number of bytes from one device to another.
    pub(super) fn between(&self, from: u32, to: u32) -> u128 {
        self.bytes.get(from as usize * self.devices + to as usize).copied().unwrap_or(0)
    }
}
