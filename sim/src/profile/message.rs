//! Cost of two-sided messages: those of an MPI on GPU memory, sent and received by host processes.
//!
//! An MPI's collectives are built from sends and receives. The protocol of each message depends on its size and on the
//! path between the two ranks:
//!
//! | message | before data flows | data |
//! |---|---|---|
//! | eager, up to [`MessageCosts::eager_limit`] | no handshake | copied to a host bounce buffer, sent, copied in |
//! | rendezvous, peers of a host | request and reply of `control` each | a copy engine, memory to memory (CUDA IPC) |
//! | rendezvous, GPUDirect RDMA | request and reply | the NIC, from memory to memory |
//! | rendezvous, through host memory | request and reply | in fragments: copy out, send and copy in, pipelined |
//!
//! In the engine's terms, the time of a message of c bytes over a path of latency L is
//!
//! ```text
//! eager:       post + L + copy_in + c ÷ copy_in_rate, then c at its share of the links
//! rendezvous:  post + 2·(control + L) + L, then c at its share of the links
//!              + launch, if a copy engine moves it
//!              + 2·launch and the first fragment's pipeline fill, if it is staged in host memory
//! ```
//!
//! The message also occupies the sending rank's process: `progress` per message and per staged fragment, and copy_out +
//! c ÷ copy_out_rate for an eager message, which the process copies itself (a linear all_to_all of eager messages
//! incurs this for each of them). Messages without data (barriers) start in host memory: post + L.
//!
//! **Reductions.** Open MPI reduces on the CPU. With [`ReductionSite::Host`], the whole buffer of a reducing collective is
//! copied to host memory, the collective runs there (processes copy its messages at `host_rate`, eager ones twice), and
//! the result is copied back. These copies are operations of the schedule, see the planner's `staged`.
//!
//! Sources: Open MPI 5.0 ompi/mca/coll/accelerator (4.1: coll/cuda; priority 78, above tuned's 30): allreduce, reduce,
//! reduce_scatter_block with host copies; UCX src/ucp/rndv, src/uct/cuda/{cuda_copy,cuda_ipc,gdr_copy}.

use fabricast_topologies::{Bandwidth, Bytes, Picos};

/// Processor on which an MPI reduces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReductionSite {
    /// The CPU: inputs are copied to host memory first, results are copied back at the end.
    #[default]
    Host,
    /// The GPU, as messages arrive.
    Device,
}

/// Cost of two-sided messages beyond their links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageCosts {
    /// Software time of send and receive calls, matching and progress at both ends.
    pub post: Picos,
    /// Time of the sending process per message, or per fragment staged in host memory.
    pub progress: Picos,
    /// Largest message that is sent without a handshake.
    pub eager_limit: Bytes,
    /// Time before the first byte of a copy from GPU memory to a bounce buffer.
    pub copy_out: Picos,
    /// Rate of a copy from GPU memory to a bounce buffer.
    pub copy_out_rate: Bandwidth,
    /// Time before the first byte of a copy from a bounce buffer to GPU memory.
    pub copy_in: Picos,
    /// Rate of a copy from a bounce buffer to GPU memory.
    pub copy_in_rate: Bandwidth,
    /// Software time at both ends of a rendezvous control message.
    pub control: Picos,
    /// Time from the decision to use a copy engine until the copy starts, plus the time from its end until the
    /// completion is detected.
    pub launch: Picos,
    /// Fragment size of a message staged in host memory.
    pub fragment: Bytes,
    /// Rate at which a process copies and reduces in host memory.
    pub host_rate: Bandwidth,
    /// Processor that reduces the data of reducing collectives.
    pub sums: ReductionSite,
}

/// Memory at the ends of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// GPU memory at both ends.
    Devices,
    /// Host memory at both ends.
    Hosts,
}

/// Hardware that carries the data of a large message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPath {
    /// A copy engine of one of two GPUs with peer access.
    CopyEngine,
    /// NICs, directly from memory to memory.
    Nic,
    /// Copy engines to and from host memory, in fragments.
    HostStaged,
}

impl MessageCosts {
    /// Returns true if a message is sent without a handshake.
    #[must_use]
    pub fn is_eager(&self, bytes: Bytes) -> bool {
        bytes <= self.eager_limit
    }

    /// Latency of a message in addition to the latency `path` of its path; excludes the time to fill the staging
    /// pipeline.
    #[must_use]
    pub fn latency(&self, bytes: Bytes, path: Picos, ends: MemoryKind, carried: DataPath) -> Picos {
        let control_round_trip = Picos(2 * (self.control.0 + path.0));
        let more = match (self.is_eager(bytes), ends, carried) {
            _ if bytes.0 == 0 => Picos::ZERO,
            (true, MemoryKind::Devices, _) => self.copy_in + self.copy_in_rate.transfer_time(bytes),
            // From the sender's bounce buffer to the receiver's memory.
            (true, MemoryKind::Hosts, _) => self.host_rate.transfer_time(bytes),
            (false, MemoryKind::Hosts, _) | (false, MemoryKind::Devices, DataPath::Nic) => control_round_trip,
            (false, MemoryKind::Devices, DataPath::CopyEngine) => control_round_trip + self.launch,
            (false, MemoryKind::Devices, DataPath::HostStaged) => control_round_trip + self.launch + self.launch,
        };
        self.post + more
    }

    /// Time that a message from GPU memory occupies the sending process.
    #[must_use]
    pub fn busy(&self, bytes: Bytes, carried: DataPath) -> Picos {
        if self.is_eager(bytes) {
            return self.progress + self.copy_out + self.copy_out_rate.transfer_time(bytes);
        }
        let rests = carried == DataPath::HostStaged;
        let parts = if rests { bytes.0.div_ceil(self.fragment.0.max(1)) } else { 1 };
        Picos(self.progress.0.saturating_mul(parts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: MessageCosts = MessageCosts {
        post: Picos(1),
        progress: Picos(7),
        eager_limit: Bytes(1_000),
        copy_out: Picos(10),
        copy_out_rate: Bandwidth(1_000_000_000_000),
        copy_in: Picos(100),
        copy_in_rate: Bandwidth(500_000_000_000),
        control: Picos(1_000),
        launch: Picos(10_000),
        fragment: Bytes(4_096),
        host_rate: Bandwidth(100_000_000_000),
        sums: ReductionSite::Host,
    };

    #[test]
    fn latency_depends_on_message_size_and_carrier() {
        let latency = |bytes, ends, carried| COSTS.latency(Bytes(bytes), Picos(5), ends, carried).0;
        assert_eq!(latency(0, MemoryKind::Devices, DataPath::CopyEngine), 1);
        assert_eq!(latency(1_000, MemoryKind::Devices, DataPath::Nic), 1 + 100 + 2_000);
        assert_eq!(latency(1_000, MemoryKind::Hosts, DataPath::Nic), 1 + 10_000);
        let control_round_trip = 1 + 2 * 1_005;
        assert_eq!(latency(1_001, MemoryKind::Devices, DataPath::CopyEngine), control_round_trip + 10_000);
        assert_eq!(latency(1_001, MemoryKind::Devices, DataPath::Nic), control_round_trip);
        assert_eq!(latency(1_001, MemoryKind::Devices, DataPath::HostStaged), control_round_trip + 20_000);
        assert_eq!(latency(1_001, MemoryKind::Hosts, DataPath::HostStaged), control_round_trip);
    }

    #[test]
    fn process_time_covers_fragments_and_eager_copies() {
        assert_eq!(COSTS.busy(Bytes(1 << 20), DataPath::Nic), Picos(7));
        assert_eq!(COSTS.busy(Bytes((1 << 20) + 1), DataPath::HostStaged), Picos(7 * 257));
        assert_eq!(COSTS.busy(Bytes(1_000), DataPath::HostStaged), Picos(7 + 10 + 1_000));
    }
}
