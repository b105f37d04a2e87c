//! What a log says: a header and rows of times by size.

use fabricast_sim::profile::{Launch, Processes};
use fabricast_sim::schedule::{Collective, DataType, ReduceOp};
use fabricast_topologies::{Bytes, Picos};

use super::evidence::{self, Evidence};
use super::size_rule;
use super::{Library, Rejected};

/// A table of a log.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// What the lines before it say.
    pub header: Header,
    /// Rows that can be used, in the order of the log.
    pub rows: Vec<Row>,
    /// Rows that cannot.
    pub rejected: Vec<Rejected>,
    /// The line of its head, from 1.
    pub line: u32,
}

/// What a log says of all its rows; absent where it says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The program, as it names itself: `all_reduce_perf`.
    pub program: Option<String>,
    /// The collective that the program measures.
    pub collective: Option<Collective>,
    /// The version of nccl-tests.
    pub tests_version: Option<String>,
    /// NCCL, with its version.
    pub library: Option<Library>,
    /// Ranks of the communicator.
    pub ranks: Option<u32>,
    /// GPUs that one thread drives.
    pub gpus_per_thread: Option<u32>,
    /// Threads of a process.
    pub threads: Option<u32>,
    /// The devices that are listed; NCCL's tests cut the list of a process with many.
    pub devices: Vec<Device>,
    /// From a CUDA graph, or call by call.
    pub launch: Option<Launch>,
    /// Who drives the GPUs of a host.
    pub processes: Option<Processes>,
    /// Timed calls of each row.
    pub iterations: Option<u32>,
    /// How the column `count` is meant.
    pub counting: Counting,
    /// Hosts of the communicator, where the log counts them.
    pub nodes: Option<u32>,
    /// Runs of processes that know nothing of each other, where the log holds several: nccl-tests built without MPI=1.
    /// Ranks, devices and rows of a table are then those of one of them.
    pub separate_runs: Option<u32>,
    /// Channels of sends and receives as NCCL reports them (`NCCL_DEBUG=INFO`).
    pub p2p_channels: Option<P2pChannels>,
    /// Collectives that the columns fit; none where they identify nothing.
    pub candidates: Vec<Collective>,
    /// Parts of the header that come from the columns of the table.
    pub inferred: Inferred,
    /// Ranks that the columns fit, where the description of the log says otherwise.
    pub doubted_ranks: Option<u32>,
    /// The collective that the columns fit, where the description of the log says otherwise.
    pub doubted_collective: Option<Collective>,
}

/// Parts of a header that come from the columns of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inferred {
    /// The collective.
    pub collective: bool,
    /// The ranks.
    pub ranks: bool,
}

/// Channels of sends and receives: `4 p2p channels, 2 p2p channels per peer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct P2pChannels {
    /// Of all peers together.
    pub all: u16,
    /// Of each peer.
    pub per_peer: u16,
}

/// What the column `count` of collectives of blocks counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counting {
    /// The elements of a block: nccl-tests that name their version.
    #[default]
    Blocks,
    /// Of a block or of the whole buffer: older ones, and logs without a header.
    BlocksOrWhole,
}

/// A device as nccl-tests lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its rank.
    pub rank: u32,
    /// The communicator that the rank is in, where nccl-tests split the ranks.
    pub group: u32,
    /// The process.
    pub pid: u32,
    /// The host's name.
    pub host: String,
    /// CUDA's number.
    pub device: u32,
    /// `NVIDIA H200`.
    pub model: String,
}

/// A row: one size.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// nccl-tests' size: the larger buffer of a rank.
    pub bytes: Bytes,
    /// Elements, as nccl-tests counts them.
    pub count: Option<u64>,
    /// Their type.
    pub dtype: Option<DataType>,
    /// The reduction; absent where nothing is reduced, and for those that have no name here (`avg`, `mulsum`).
    pub op: Option<ReduceOp>,
    /// The root, where there is one.
    pub root: Option<u32>,
    /// With different buffers for input and output; absent where only in place was measured.
    pub out_of_place: Option<Timing>,
    /// In place.
    pub in_place: Option<Timing>,
    /// Properties that narrow down its collective.
    pub evidence: Evidence,
    /// Its line, from 1.
    pub line: u32,
}

/// A measured time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// The mean over the calls.
    pub time: Picos,
    /// Over single calls (`-I`).
    pub spread: Option<Spread>,
    /// Whose time it is.
    pub clock: Clock,
}

/// Times of single calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// The shortest.
    pub min: Picos,
    /// The longest.
    pub max: Picos,
    /// The 99th percentile.
    pub p99: Picos,
}

/// Whose time was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// From start to end of the calls.
    #[default]
    Collective,
    /// The CPU's part of the call (`-C`).
    Cpu,
}

impl Row {
    /// A row of which only size and time are known.
    #[must_use]
    pub fn of(bytes: Bytes, time: Picos, line: u32) -> Self {
        let timing = Timing { time, spread: None, clock: Clock::Collective };
        Self {
            bytes,
            count: None,
            dtype: None,
            op: None,
            root: None,
            out_of_place: Some(timing),
            in_place: None,
            evidence: Evidence::default(),
            line,
        }
    }

    /// What counts as measured: out of place, or in place where nothing else was measured.
    #[must_use]
    pub fn measured(&self) -> Picos {
        self.out_of_place.or(self.in_place).map_or(Picos::ZERO, |timing| timing.time)
    }
}

impl Table {
    /// Rejects the rows whose size does not follow from their count, for a collective on so many ranks.
    pub fn check_sizes(&mut self, collective: Collective, ranks: u32) {
        let counting = self.header.counting;
        self.reject(|row| size_rule::fault(row, collective, ranks, counting));
    }

    /// Takes the collective and the ranks from the columns where the header does not name them and the columns fit one
    /// only; what is given from elsewhere restricts them.
    pub fn infer(&mut self, collective: Option<Collective>, ranks: Option<u32>) {
        let header = &self.header;
        // A test of nccl-tests that is none of ours has no collective.
        if header.program.is_some() && header.collective.is_none() || self.rows.is_empty() {
            return;
        }
        let known = evidence::Known {
            collective: header.collective.or(collective),
            ranks: header.ranks.or(ranks),
            counting: header.counting,
        };
        let found = evidence::infer(&self.rows, known);
        let header = &mut self.header;
        if header.ranks.is_none() && ranks.is_none() {
            header.ranks = found.ranks;
            header.inferred.ranks = found.ranks.is_some();
        }
        if header.collective.is_none() && collective.is_none() {
            // One rank only copies, whatever it is asked for.
            let alone = header.ranks == Some(1);
            match found.collectives.as_slice() {
                [one] => header.collective = Some(*one),
                [first, ..] if alone => header.collective = Some(*first),
                _ => {}
            }
            header.inferred.collective = header.collective.is_some();
        }
        header.candidates = found.collectives;
    }

    /// Rejects the rows for which there is a reason.
    pub fn reject(&mut self, fault: impl Fn(&Row) -> Option<super::Reason>) {
        let Self { rows, rejected, .. } = self;
        rows.retain(|row| match fault(row) {
            Some(reason) => {
                rejected.push(Rejected { line: row.line, reason });
                false
            }
            None => true,
        });
        rejected.sort_by_key(|rejected| rejected.line);
    }
}

impl Header {
    /// Hosts: those that the log counts, or those among the devices listed, where any are; of separate runs one.
    #[must_use]
    pub fn hosts(&self) -> Option<u32> {
        if self.separate_runs.is_some() {
            return Some(1);
        }
        if self.nodes.is_some() {
            return self.nodes;
        }
        let mut hosts: Vec<&str> = self.devices.iter().map(|device| device.host.as_str()).collect();
        hosts.sort_unstable();
        hosts.dedup();
        (!hosts.is_empty()).then_some(hosts.len() as u32)
    }
}
