//! Routing: the links that traffic uses between two devices, its path class, and the host memory that it passes.
//!
//! ```text
//! Fabric ─► islands (hosts, NVLink racks) ─► shapes: equal islands once ─► inside: best class, fewest links, …
//!        └► network (forwarding devices between islands) ──────────────┐
//!                               attach: each device's own NICs, PXN ───┴─► router: paths
//! ```
//!
//! **Preference inside an island**: best [`PathClass`], then fewest links, then highest bandwidth of the flow over its
//! equal-cost paths, then lowest latency. A hashed flow uses a single one of the paths; see [`Ecmp`].
//!
//! **Relays** are GPUs among the [`Participants`]. They replace a missing NVLink (`relay`) or give access to a
//! neighbour's NIC (PXN).
//!
//! **Failures**: a route that replaces another is charged with both ([`Substitution`]), so that failures remove capacity
//! and never add any. NICs are assigned as if no link had failed. A GPU that lost its own NICs uses the same number of
//! NICs of its neighbours.
//!
//! **Between islands**: incoming traffic uses the receiver's own NIC. Outgoing traffic uses the NIC, near the sender or
//! near one of its NVLink neighbours, with the fewest links in the network. Ties are broken by the order above, for
//! each of the three segments of the route separately. A route inside an island is always preferred to the network.

mod attach;
mod attachments;
mod buffer_location;
mod class;
mod flow_hash;
mod island_routes;
mod islands;
mod link_classes;
mod link_usage;
mod network;
mod orbits;
mod participants;
mod path;
mod port_substitution;
mod relay;
mod router;
mod rules;
mod segment;
mod shape;
mod shape_graph;
mod substitute_ports;
mod substitution;
#[cfg(test)]
mod tests;
mod twin_classes;
mod twins;
mod unreachable_reason;

pub use buffer_location::BufferLocation;
pub use class::{PathClass, UnknownClass};
pub use link_usage::{DevicePorts, IslandTraffic, Turn, TurnDirection};
pub use orbits::{Orbit, Orbits};
pub use participants::Participants;
pub use path::{Hop, Path, PathTable, Share, Staging, Summary};
pub use router::Router;
pub use substitution::{Substitution, charged_hops};

/// Peer access between the GPUs of a host (`--no-p2p` disables it, as `NCCL_P2P_DISABLE=1` does).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PeerAccess {
    /// GPUs access each other's memory where links permit it.
    #[default]
    Allowed,
    /// GPUs access each other's memory over NVLink and PCIe switches. Traffic through a CPU is staged in host memory
    /// (`NCCL_P2P_LEVEL=PXB`, the default of NCCL 2.23 and later).
    Switches,
    /// Traffic between GPUs of a host is staged in host memory.
    Off,
}

/// GPUDirect RDMA: NICs access GPU memory directly (`--no-gdr` disables it).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GpuDirect {
    /// GPUDirect RDMA is used where the NIC supports it.
    #[default]
    Allowed,
    /// Traffic between GPU and NIC is staged in host memory.
    Off,
}

/// PXN: a GPU sends through an NVLink neighbour that is nearer to the destination's NIC (`NCCL_PXN_DISABLE`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Pxn {
    /// PXN is used where NVLink joins the two GPUs.
    #[default]
    Allowed,
    /// Each GPU uses only NICs that it reaches itself.
    Off,
}

/// Distribution of a flow over equal-cost paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ecmp {
    /// The flow is spread evenly over all paths (many small flows, or packet spraying).
    #[default]
    Averaged,
    /// The flow uses one path, selected by a hash of its ends, its label and this seed.
    Hashed {
        /// Seed of the hash; another seed selects other paths.
        seed: u64,
    },
}

/// Machine settings that restrict routes: those stated in a spec and those set by flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Routing {
    /// Peer access between GPUs of a host.
    pub p2p: PeerAccess,
    /// Use of GPUDirect RDMA.
    pub gdr: GpuDirect,
    /// Treatment of equal-cost paths. If averaged, a router may still request hashing.
    pub ecmp: Ecmp,
}

/// Selection of the network links that are listed for a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LinkListing {
    /// All links.
    #[default]
    All,
    /// One representative of the links that carry an equal share of every flow, for example a leaf's uplinks in a fat
    /// tree. Its share is that of a single link; [`Router::represented_links`] lists the links that it represents. All
    /// links are listed if switches have a capacity or more than 65,536 paths join two of them.
    Representatives,
}

/// Options that restrict routing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RouteOptions {
    /// Peer access between GPUs of a host.
    pub p2p: PeerAccess,
    /// Use of GPUDirect RDMA.
    pub gdr: GpuDirect,
    /// Sending through an NVLink neighbour (PXN).
    pub pxn: Pxn,
    /// Treatment of equal-cost paths.
    pub ecmp: Ecmp,
    /// Location of the buffers of calls.
    pub buffers: BufferLocation,
}

impl Routing {
    /// Combines two restrictions; a hashed `other.ecmp` overrides that of `self`.
    #[must_use]
    pub fn restricted_by(self, other: Self) -> Self {
        Self {
            p2p: self.p2p.max(other.p2p),
            gdr: if self.gdr == GpuDirect::Off { self.gdr } else { other.gdr },
            ecmp: if other.ecmp == Ecmp::Averaged { self.ecmp } else { other.ecmp },
        }
    }
}

impl RouteOptions {
    /// The subset of the options that a machine may set.
    #[must_use]
    pub fn routing(&self) -> Routing {
        Routing { p2p: self.p2p, gdr: self.gdr, ecmp: self.ecmp }
    }

    /// The options, restricted to what the machine allows.
    pub(crate) fn within(self, routing: Routing) -> Self {
        let Routing { p2p, gdr, ecmp } = routing.restricted_by(self.routing());
        Self { p2p, gdr, ecmp, ..self }
    }

    pub(crate) fn peer_access(&self) -> bool {
        self.p2p != PeerAccess::Off
    }

    pub(crate) fn direct_nics(&self) -> bool {
        self.gdr == GpuDirect::Allowed
    }

    /// Returns true if PXN is possible: a relay needs peer access to the neighbour's memory and a NIC that reads from
    /// there.
    pub(crate) fn relays(&self) -> bool {
        self.pxn == Pxn::Allowed && self.peer_access() && self.direct_nics()
    }
}
