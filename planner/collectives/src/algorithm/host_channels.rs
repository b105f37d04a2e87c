//! Channels of concurrent exchanges between all pairs of ranks. All peers of a host share the channels of that host, and
//! different hosts have different channels as long as there are enough.
//!
//! Source: NCCL 2.30.7 src/include/channel.h (`ncclP2pChannelBaseForRound`: the base channel depends on the distance
//! between groups of eight ranks; the parts of a message follow it) and src/enqueue.cc (`addP2pToPlan`: up to eight
//! peers of a channel in one batch).

use super::Shape;

/// Assignment of channels to the distance between hosts and the lane, a part of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostChannels {
    channels: u32,
    hosts: u32,
}

impl HostChannels {
    /// Assigns each host an equal number of the shape's channels, at least one.
    pub(super) fn divided_among_hosts(shape: &Shape) -> Self {
        Self { hosts: shape.call.ranks / shape.ranks_per_host(), ..Self::shared_by_hosts(shape) }
    }

    /// Assigns all channels to all hosts.
    pub(super) fn shared_by_hosts(shape: &Shape) -> Self {
        Self { channels: shape.channels.into(), hosts: 1 }
    }

    /// Number of lanes of a block, each on a channel of its own.
    pub(super) fn lanes(self) -> u32 {
        (self.channels / self.hosts.max(1)).max(1)
    }

    /// Channel of a lane of the blocks for a host at this distance.
    pub(super) fn channel(self, distance: u32, lane: u32) -> u16 {
        ((lane * self.hosts + distance % self.hosts.max(1)) % self.channels.max(1)) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_channels_of_their_own_as_long_as_there_are_enough() {
        let two = HostChannels { channels: 8, hosts: 2 };
        let of_host = |distance| (0..two.lanes()).map(|lane| two.channel(distance, lane)).collect::<Vec<_>>();
        assert_eq!([of_host(0), of_host(1)], [[0, 2, 4, 6], [1, 3, 5, 7]]);
        let many = HostChannels { channels: 16, hosts: 40 };
        assert_eq!((many.lanes(), many.channel(17, 0), many.channel(39, 0)), (1, 1, 7));
        let shared = HostChannels { channels: 4, hosts: 1 };
        assert_eq!((shared.lanes(), shared.channel(3, 2)), (4, 2));
    }
}
