//! What two-sided messages cost: those of an MPI on GPU memory, which processes of the host send and receive.
//!
//! A collective of an MPI is made of sends and receives. How one moves is decided by its size and by the way between the two
//! ranks, message by message:
//!
//! | message | before data flows | data |
//! |---|---|---|
//! | eager, to [`MessageCosts::eager_limit`] | nothing is asked | copied out to a bounce buffer of the host, sent, copied in |
//! | rendezvous, peers of a host | request, and what the receiver answers or fetches it by: two ways of `control` | a copy engine, from memory to memory (CUDA IPC) |
//! | rendezvous, GPUDirect RDMA | the same | the NIC, from memory to memory |
//! | rendezvous, through host memory | the same | in fragments: out, sent, in, beside each other |
//!
//! In the words of the engine, a message of c bytes over a path of latency L takes
//!
//! ```text
//! eager:       post + L + copy_in + c ÷ copy_in_rate, then c at its share of the links
//! rendezvous:  post + 2·(control + L) + L, then c at its share of the links
//!              + launch, where a copy engine moves it
//!              + 2·launch and what fills the pipeline with its first fragment, where it rests in host memory
//! ```
//!
//! and so much of the time of the sending rank's process: `progress` for each message, and for each fragment of one that
//! rests, and copy_out + c ÷ copy_out_rate for an eager one, which the process copies itself (a linear all_to_all of eager messages
//! takes that for each of them). Messages of no bytes (barriers) come from host memory: post + L.
//!
//! **Sums.** Open MPI adds on the CPU. Where [`Sums::Host`] says so, a collective that reduces is copied to host memory as a
//! whole, done there (messages are then copied by the processes at `host_rate`, eager ones twice), and copied back. These
//! copies are operations of the schedule, see the planner's `staged`.
//!
//! Sources: Open MPI 5.0 ompi/mca/coll/accelerator (4.1: coll/cuda; priority 78, above tuned's 30): allreduce, reduce,
//! reduce_scatter_block around host copies; UCX src/ucp/rndv, src/uct/cuda/{cuda_copy,cuda_ipc,gdr_copy}.

use fabricast_topologies::{Bandwidth, Bytes, Picos};

/// Where an MPI adds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sums {
    /// On the CPU: the call's buffers are copied to host memory first, results back last.
    #[default]
    Host,
    /// On the GPU, as messages arrive.
    Device,
}

/// What two-sided messages cost beyond their links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageCosts {
    /// A send and its receive: calls, matching, progress at both ends.
    pub post: Picos,
    /// The sending process's own time for a message, or a fragment that rests in host memory.
    pub progress: Picos,
    /// The largest message that is sent without asking.
    pub eager_limit: Bytes,
    /// From GPU memory to a bounce buffer: before its first byte.
    pub copy_out: Picos,
    /// The same for its bytes.
    pub copy_out_rate: Bandwidth,
    /// From a bounce buffer to GPU memory: before its first byte.
    pub copy_in: Picos,
    /// The same for its bytes.
    pub copy_in_rate: Bandwidth,
    /// Software at both ends of a control message of a rendezvous.
    pub control: Picos,
    /// From the decision to copy by an engine until it copies, and from its end until that is noticed.
    pub launch: Picos,
    /// What is copied at once of a message that rests in host memory.
    pub fragment: Bytes,
    /// What a process copies in host memory, and adds.
    pub host_rate: Bandwidth,
    /// Where sums are made.
    pub sums: Sums,
}

/// Where the ends of a message lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// In GPU memory.
    Devices,
    /// In host memory.
    Hosts,
}

/// What carries the data of a large message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// A copy engine of one of two GPUs that reach each other.
    ByEngine,
    /// NICs, straight from memory to memory.
    ByNic,
    /// Copy engines to and from host memory, in fragments.
    ByWayOfHosts,
}

impl MessageCosts {
    /// Whether a message goes without asking.
    #[must_use]
    pub fn is_eager(&self, bytes: Bytes) -> bool {
        bytes <= self.eager_limit
    }

    /// What a message waits besides its path of so much latency, the filling of a pipeline aside.
    #[must_use]
    pub fn latency(&self, bytes: Bytes, path: Picos, ends: Ends, carried: Carried) -> Picos {
        let asked = Picos(2 * (self.control.0 + path.0));
        let more = match (self.is_eager(bytes), ends, carried) {
            _ if bytes.0 == 0 => Picos::ZERO,
            (true, Ends::Devices, _) => self.copy_in + time(bytes, self.copy_in_rate),
            // From the sender's bounce buffer to the receiver's memory.
            (true, Ends::Hosts, _) => time(bytes, self.host_rate),
            (false, Ends::Hosts, _) | (false, Ends::Devices, Carried::ByNic) => asked,
            (false, Ends::Devices, Carried::ByEngine) => asked + self.launch,
            (false, Ends::Devices, Carried::ByWayOfHosts) => asked + self.launch + self.launch,
        };
        self.post + more
    }

    /// How long the sending process is busy with a message from GPU memory.
    #[must_use]
    pub fn busy(&self, bytes: Bytes, carried: Carried) -> Picos {
        if self.is_eager(bytes) {
            return self.progress + self.copy_out + time(bytes, self.copy_out_rate);
        }
        let rests = carried == Carried::ByWayOfHosts;
        let parts = if rests { bytes.0.div_ceil(self.fragment.0.max(1)) } else { 1 };
        Picos(self.progress.0.saturating_mul(parts))
    }
}

/// Bytes at a rate.
pub(crate) fn time(bytes: Bytes, rate: Bandwidth) -> Picos {
    let picos = u128::from(bytes.0) * 1_000_000_000_000 / u128::from(rate.0.max(1));
    Picos(u64::try_from(picos).unwrap_or(u64::MAX))
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
        sums: Sums::Host,
    };

    #[test]
    fn the_size_decides_what_a_message_waits_for() {
        let of = |bytes, ends, carried| COSTS.latency(Bytes(bytes), Picos(5), ends, carried).0;
        assert_eq!(of(0, Ends::Devices, Carried::ByEngine), 1);
        assert_eq!(of(1_000, Ends::Devices, Carried::ByNic), 1 + 100 + 2_000);
        assert_eq!(of(1_000, Ends::Hosts, Carried::ByNic), 1 + 10_000);
        let asked = 1 + 2 * 1_005;
        assert_eq!(of(1_001, Ends::Devices, Carried::ByEngine), asked + 10_000);
        assert_eq!(of(1_001, Ends::Devices, Carried::ByNic), asked);
        assert_eq!(of(1_001, Ends::Devices, Carried::ByWayOfHosts), asked + 20_000);
        assert_eq!(of(1_001, Ends::Hosts, Carried::ByWayOfHosts), asked);
    }

    #[test]
    fn a_process_is_busy_with_every_fragment_and_copies_small_messages() {
        assert_eq!(COSTS.busy(Bytes(1 << 20), Carried::ByNic), Picos(7));
        assert_eq!(COSTS.busy(Bytes((1 << 20) + 1), Carried::ByWayOfHosts), Picos(7 * 257));
        assert_eq!(COSTS.busy(Bytes(1_000), Carried::ByWayOfHosts), Picos(7 + 10 + 1_000));
    }
}
