//! Channels of concurrent exchanges between all pairs of ranks. All peers on one host share channels, and different
//! hosts have different channels as long as there are enough. A host with a single rank needs no channels within
//! itself, and hosts that are connected by NVLink count as one, as in NCCL.
//!
//! Source: NCCL 2.30.7 src/include/channel.h (`ncclP2pChannelBaseForRound`: the base channel depends on the distance
//! between groups of eight ranks; the parts of a message follow it) and src/enqueue.cc (`addP2pToPlan`: up to eight
//! peers of a channel in one batch).

use super::Shape;

/// Assignment of channels, by the distance between hosts and by lane. A lane carries one part of each block.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostChannels {
    channels: u32,
    /// Number of groups of peers that have separate channels, by the distance to their host.
    groups: u32,
    /// Distance of the first host that has peers.
    nearest: u32,
}

impl HostChannels {
    /// Assigns an equal number of the shape's channels, at least one, to each host with peers.
    pub(super) fn divided_among_hosts(shape: &Shape) -> Self {
        let shared = Self::shared_by_hosts(shape);
        if shape.nics_per_node == 0 {
            return shared;
        }
        let per_host = shape.ranks_per_host();
        let nearest = u32::from(per_host == 1);
        Self { groups: (shape.call.ranks / per_host).saturating_sub(nearest).max(1), nearest, ..shared }
    }

    /// Assigns all channels to every host.
    pub(super) fn shared_by_hosts(shape: &Shape) -> Self {
        Self { channels: shape.channels.into(), groups: 1, nearest: 0 }
    }

    /// Returns the number of lanes of a block. Each lane uses a separate channel.
    pub(super) fn lanes(self) -> u32 {
        (self.channels / self.groups).max(1)
    }

    /// Returns the channel of a lane of the blocks for a host at this distance.
    pub(super) fn channel(self, distance: u32, lane: u32) -> u16 {
        let group = distance.saturating_sub(self.nearest) % self.groups;
        ((lane * self.groups + group) % self.channels.max(1)) as u16
    }
}

#[cfg(test)]
mod tests {
    use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank};
    use fabricast_topologies::Bytes;

    use super::*;

    #[test]
    fn hosts_have_channels_of_their_own_as_long_as_there_are_enough() {
        let shape = |ranks, ranks_per_node, channels| {
            let (collective, buffers) = (Collective::AllToAll, BufferUse::OutOfPlace);
            let call = Call { collective, bytes: Bytes(1 << 20), ranks, root: Rank(0), buffers };
            Shape { channels, ranks_per_node, nics_per_node: 1, ..Shape::new(call, Protocol::Simple) }
        };
        let exchange = |ranks, ranks_per_node, channels| {
            HostChannels::divided_among_hosts(&shape(ranks, ranks_per_node, channels))
        };
        let lanes = |channels: HostChannels, distance| {
            (0..channels.lanes()).map(|lane| channels.channel(distance, lane)).collect::<Vec<_>>()
        };
        let two_hosts = exchange(16, 8, 8);
        assert_eq!([lanes(two_hosts, 0), lanes(two_hosts, 1)], [[0, 2, 4, 6], [1, 3, 5, 7]]);
        let many_hosts = exchange(320, 8, 16);
        assert_eq!([lanes(many_hosts, 17), lanes(many_hosts, 39)], [[1], [7]]);
        let one_rank_each = exchange(2, 1, 4);
        assert_eq!(lanes(one_rank_each, 1), [0, 1, 2, 3]);
        let three_peers = exchange(4, 1, 6);
        assert_eq!([1, 2, 3].map(|distance| lanes(three_peers, distance)), [[0, 3], [1, 4], [2, 5]]);
        let shared = HostChannels::shared_by_hosts(&shape(16, 8, 4));
        assert_eq!((shared.lanes(), shared.channel(3, 2)), (4, 2));
        // Hosts that NVLink joins have no NICs between them.
        let one_domain = HostChannels::divided_among_hosts(&Shape { nics_per_node: 0, ..shape(72, 4, 32) });
        assert_eq!((one_domain.lanes(), one_domain.channel(17, 31)), (32, 31));
    }
}
