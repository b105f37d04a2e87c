//! Routing: which way traffic takes between two devices, how near they are, and what it shares on the way.
//!
//! ```text
//! Fabric ─► islands (hosts, NVLink racks) ─► shapes: equal islands once ─► inside: best class, fewest links, …
//!        └► network (what forwards between islands) ───────────────────┐
//!                               attach: each device's own NICs, PXN ───┴─► router: paths
//! ```
//!
//! **Preference inside an island**: best [`PathClass`], then fewest links, then the bandwidth that the flow reaches over the ways
//! that share it, then lowest latency (one of the ways takes a flow that is hashed, see [`Ecmp`]).
//! **Relays** are GPUs that take part ([`Participants`]): in place of a missing NVLink (`relay`), and towards a neighbour's NIC.
//! **Failures** take routes away and add none: NICs are dealt out as the machine was built, a GPU that lost its own uses as many of
//! its neighbours', and a relay in place of a failed link is no wider than the link was.
//! **Between islands**: what arrives comes in by the receiver's own NIC; what leaves takes the NIC, near the sender or
//! near one of its NVLink neighbours, that needs the fewest links in the network. Then the same order as inside,
//! judged for each of the three parts of the way by itself.
//! An inside way is always preferred to the network.

mod alike;
mod attach;
mod class;
mod inside;
mod islands;
mod network;
mod participants;
mod path;
mod place;
mod reason;
mod relay;
mod router;
mod rules;
mod segment;
mod shape;
#[cfg(test)]
mod tests;
mod transit;
mod twins;

pub use class::{PathClass, UnknownClass};
pub use participants::Participants;
pub use path::{Hop, Path, PathTable, Share, Staging, Summary};
pub use place::BufferPlace;
pub use router::Router;
pub use transit::{DevicePorts, Onward, Transit, Turn};

/// Whether GPUs of a host read and write each other's memory (`--no-p2p` takes it away, as `NCCL_P2P_DISABLE=1` does).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PeerAccess {
    /// As far as the links lead.
    #[default]
    Allowed,
    /// Traffic between GPUs of a host passes a CPU's memory.
    Off,
}

/// Whether NICs read and write GPU memory (`--no-gdr` takes it away).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GpuDirect {
    /// Where the NIC can.
    #[default]
    Allowed,
    /// Traffic between GPU and NIC passes a CPU's memory.
    Off,
}

/// Whether a GPU sends through a neighbour that is nearer to the right NIC (`NCCL_PXN_DISABLE`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Pxn {
    /// Where NVLink joins the two.
    #[default]
    Allowed,
    /// Each GPU uses NICs that it reaches by itself.
    Off,
}

/// What a flow does where several ways are equally good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ecmp {
    /// It spreads evenly over all of them: many small flows, or packet spraying.
    #[default]
    Averaged,
    /// It takes one, by a hash of its ends, its label and this seed.
    Hashed {
        /// Another seed, another choice.
        seed: u64,
    },
}

/// Settings of a machine that restrict its routes: what a spec states of them, and what flags add.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Routing {
    /// Peer access between GPUs of a host.
    pub p2p: PeerAccess,
    /// GPUDirect RDMA.
    pub gdr: GpuDirect,
    /// Equal ways; where they are averaged, a router may ask for hashing all the same.
    pub ecmp: Ecmp,
}

/// Which links of a network are told of ways through it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Links {
    /// All.
    #[default]
    Each,
    /// Of links that carry the same part of every flow one, with the part that it carries itself ([`Router::alike`] says of which): a
    /// leaf's uplinks in a fat tree, say. Where switches have a capacity, or more than 65,536 ways between them, all are told.
    OneOfAlike,
}

/// What routing may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RouteOptions {
    /// Peer access between GPUs of a host.
    pub p2p: PeerAccess,
    /// GPUDirect RDMA.
    pub gdr: GpuDirect,
    /// Sending through a neighbour.
    pub pxn: Pxn,
    /// Equal ways.
    pub ecmp: Ecmp,
    /// Where the buffers of calls lie.
    pub buffers: BufferPlace,
}

impl Routing {
    /// Both restrictions at once; a way of ECMP asked for goes before that of the machine.
    #[must_use]
    pub fn restricted_by(self, other: Self) -> Self {
        Self {
            p2p: if self.p2p == PeerAccess::Off { self.p2p } else { other.p2p },
            gdr: if self.gdr == GpuDirect::Off { self.gdr } else { other.gdr },
            ecmp: if other.ecmp == Ecmp::Averaged { self.ecmp } else { other.ecmp },
        }
    }
}

impl RouteOptions {
    /// What of the options a machine may have set.
    #[must_use]
    pub fn routing(&self) -> Routing {
        Routing { p2p: self.p2p, gdr: self.gdr, ecmp: self.ecmp }
    }

    /// The options within what the machine allows.
    pub(crate) fn within(self, routing: Routing) -> Self {
        let Routing { p2p, gdr, ecmp } = routing.restricted_by(self.routing());
        Self { p2p, gdr, ecmp, ..self }
    }

    pub(crate) fn peer_access(&self) -> bool {
        self.p2p == PeerAccess::Allowed
    }

    pub(crate) fn direct_nics(&self) -> bool {
        self.gdr == GpuDirect::Allowed
    }

    /// A relay writes into the neighbour's memory, and the NIC reads it there.
    pub(crate) fn relays(&self) -> bool {
        self.pxn == Pxn::Allowed && self.peer_access() && self.direct_nics()
    }
}
