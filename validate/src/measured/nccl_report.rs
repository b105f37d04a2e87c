//! Facts about a run that NCCL's messages state (`NCCL_DEBUG=INFO`).

/// Facts about a run that NCCL reported. Empty if the log has no messages of NCCL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NcclReport {
    /// Connections between ranks, from lines such as `Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA`.
    pub connections: ConnectionCounts,
    /// Variables that the environment sets, with their values, in the order of the log.
    pub variables: Vec<(String, String)>,
    /// Result of the topology search.
    pub search: TopologySearch,
}

/// Numbers of connections between ranks by transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionCounts {
    /// Peer access between GPUs of a host (`P2P`).
    pub peer_access: u32,
    /// Host memory (`SHM`).
    pub host_memory: u32,
    /// Network with GPUDirect RDMA (`NET/…/GDRDMA`).
    pub gpu_direct: u32,
    /// Network without GPUDirect RDMA, other than sockets.
    pub staged: u32,
    /// TCP sockets (`NET/Socket`).
    pub sockets: u32,
}

/// Transport of a connection between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    PeerAccess,
    HostMemory,
    GpuDirect,
    Staged,
    Sockets,
}

/// Result of NCCL's topology search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TopologySearch {
    /// NCCL reports no failure.
    #[default]
    Found,
    /// No graph was found, and NCCL connects the ranks in order, with one channel (`falling back to simple order`,
    /// 2.30.7 src/graph/search.cc).
    FellBack,
}

/// Maximum number of variables of a run; NCCL has fewer than 200.
const MAX_VARIABLES: usize = 512;

impl ConnectionCounts {
    pub(super) fn add(&mut self, transport: Transport) {
        let count = match transport {
            Transport::PeerAccess => &mut self.peer_access,
            Transport::HostMemory => &mut self.host_memory,
            Transport::GpuDirect => &mut self.gpu_direct,
            Transport::Staged => &mut self.staged,
            Transport::Sockets => &mut self.sockets,
        };
        *count = count.saturating_add(1);
    }
}

impl NcclReport {
    /// Value of a variable that the environment sets; `None` if NCCL does not report the variable.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn set(&mut self, name: &str, value: &str) {
        if self.variables.len() < MAX_VARIABLES && self.variable(name).is_none() {
            self.variables.push((name.to_owned(), value.to_owned()));
        }
    }
}
