//! Contents of a log: tables with a header and rows of times by size.

use std::collections::BTreeMap;

use fabricast_sim::profile::{Launch, Processes};
use fabricast_sim::schedule::{Collective, DataType, ReduceOp};
use fabricast_topologies::{Bytes, Picos};

use super::evidence::Evidence;
use super::{MeasuredLibrary, NcclReport, RejectedRow};

/// A table of a log.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Header of the table: properties stated in the lines before it.
    pub header: Header,
    /// Usable rows, in the order of the log.
    pub rows: Vec<Row>,
    /// Rows that cannot be used.
    pub rejected: Vec<RejectedRow>,
    /// Line of the table's header line, from 1.
    pub line: u32,
}

/// Properties of a log that apply to all rows of a table; `None` if the log does not state them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Name of the program, such as `all_reduce_perf`.
    pub program: Option<String>,
    /// Collective that the program measures.
    pub collective: Option<Collective>,
    /// Version of nccl-tests, such as `2.19.6`.
    pub tests_version: Option<String>,
    /// Library that was measured, with its version if known.
    pub library: Option<MeasuredLibrary>,
    /// Number of ranks of the communicator.
    pub ranks: Option<u32>,
    /// Number of GPUs driven by one thread.
    pub gpus_per_thread: Option<u32>,
    /// Number of threads of one process.
    pub threads: Option<u32>,
    /// Devices listed; nccl-tests truncates the list of a process with many devices.
    pub devices: Vec<ListedDevice>,
    /// Launch mode: CUDA graph or one launch per call.
    pub launch: Option<Launch>,
    /// Process layout: one process per GPU or one for all GPUs of a host.
    pub processes: Option<Processes>,
    /// Number of timed calls per row.
    pub iterations: Option<u32>,
    /// Meaning of the column `count`.
    pub counting: Counting,
    /// Number of hosts of the communicator, if the log states it.
    pub nodes: Option<u32>,
    /// Number of independent runs in the log, if there are several (nccl-tests built without MPI=1). Ranks, devices and
    /// rows of a table are then those of one run.
    pub separate_runs: Option<u32>,
    /// Numbers of channels for sends and receives, as reported by NCCL (`NCCL_DEBUG=INFO`).
    pub p2p_channels: Option<P2pChannels>,
    /// Facts about the run from NCCL's messages (`NCCL_DEBUG=INFO`).
    pub report: NcclReport,
    /// Collectives consistent with the columns; empty if the columns identify none.
    pub candidates: Vec<Collective>,
    /// Parts of the header that are inferred from the columns of the table.
    pub inferred: InferredHeader,
    /// Number of ranks that is consistent with the columns, if it contradicts the manifest entry.
    pub contradicted_ranks: Option<u32>,
    /// Collective that is consistent with the columns, if it contradicts the manifest entry.
    pub contradicted_collective: Option<Collective>,
}

/// Parts of a header that are inferred from the columns of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InferredHeader {
    /// True if the collective is inferred.
    pub collective: bool,
    /// True if the number of ranks is inferred.
    pub ranks: bool,
}

/// Numbers of channels for sends and receives, from NCCL's line `4 p2p channels, 2 p2p channels per peer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct P2pChannels {
    /// Number of channels in total.
    pub all: u16,
    /// Number of channels per peer.
    pub per_peer: u16,
}

/// Meaning of the column `count` for collectives whose buffers hold one block per rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counting {
    /// Elements of one block, as in nccl-tests versions that print their version.
    #[default]
    Blocks,
    /// Elements of one block or of the whole buffer, as in older versions and in logs without a header.
    BlocksOrWhole,
}

/// A device as listed by nccl-tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedDevice {
    /// Rank of the device in its communicator.
    pub rank: u32,
    /// Index of the communicator of the rank; 0 unless nccl-tests split the ranks.
    pub group: u32,
    /// ID of the process that drives the device; 0 if the log does not state it.
    pub pid: u32,
    /// Name of the host.
    pub host: String,
    /// CUDA device number on the host.
    pub device: u32,
    /// Model of the GPU, such as `NVIDIA H200`.
    pub model: String,
    /// PCI bus of the GPU; `None` if the log does not state it.
    pub bus: Option<PciBus>,
}

/// PCI bus of a device, from an address such as `0000:1b:00` or `0x1b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PciBus {
    /// PCI domain (segment).
    pub domain: u32,
    /// Number of the bus in its domain.
    pub number: u8,
}

impl PciBus {
    /// Parses an address as nccl-tests prints it.
    pub(in crate::measured) fn parse(text: &str) -> Option<Self> {
        let text = text.trim_matches(['[', ']']);
        if let Some(number) = text.strip_prefix("0x") {
            return Some(Self { domain: 0, number: u8::from_str_radix(number, 16).ok()? });
        }
        let (domain, rest) = text.split_once(':')?;
        let number = rest.split(':').next()?;
        Some(Self { domain: u32::from_str_radix(domain, 16).ok()?, number: u8::from_str_radix(number, 16).ok()? })
    }
}

/// A row of a table: the times of one message size.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Size in bytes as defined by nccl-tests: the larger buffer of a rank.
    pub bytes: Bytes,
    /// Number of elements, as counted by nccl-tests.
    pub count: Option<u64>,
    /// Element type of the buffers.
    pub dtype: Option<DataType>,
    /// Reduction; `None` if there is none or if it is not supported here (`avg`, `mulsum`).
    pub op: Option<ReduceOp>,
    /// Root rank, if the collective has one.
    pub root: Option<u32>,
    /// Out-of-place time; `None` if it was not measured.
    pub out_of_place: Option<Timing>,
    /// In-place time; `None` if it was not measured.
    pub in_place: Option<Timing>,
    /// Properties of the row from which the collective can be inferred.
    pub evidence: Evidence,
    /// Line of the row, from 1.
    pub line: u32,
}

/// Measured time of the calls of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// Mean time of a call over the timed calls.
    pub time: Picos,
    /// Spread over single calls (`-I`).
    pub spread: Option<Spread>,
    /// Clock that measured the time.
    pub clock: Clock,
}

/// Spread of the times of single calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// Shortest time of a call.
    pub min: Picos,
    /// Longest time of a call.
    pub max: Picos,
    /// 99th percentile of the times of the calls.
    pub p99: Picos,
}

/// Clock that measured a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// Elapsed time from the first call's start to the last call's end.
    #[default]
    Collective,
    /// CPU time of the call (`-C`).
    Cpu,
}

impl Row {
    /// Creates a row with a size and an out-of-place time; all other properties are unset.
    #[must_use]
    pub fn new(bytes: Bytes, time: Picos, line: u32) -> Self {
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

    /// Measured time: out of place, or in place if only in-place calls were measured.
    #[must_use]
    pub fn measured(&self) -> Picos {
        self.out_of_place.or(self.in_place).map_or(Picos::ZERO, |timing| timing.time)
    }
}

impl Table {
    /// Rejects the rows for which `fault` returns a reason.
    pub fn reject(&mut self, fault: impl Fn(&Row) -> Option<super::Reason>) {
        let Self { rows, rejected, .. } = self;
        rows.retain(|row| match fault(row) {
            Some(reason) => {
                rejected.push(RejectedRow { line: row.line, reason });
                false
            }
            None => true,
        });
        rejected.sort_by_key(|rejected| rejected.line);
    }
}

/// Maximum number of hosts that an error names.
const MAX_LISTED_HOSTS: usize = 4;

impl Header {
    /// Number of hosts, as stated by the log or counted among the listed devices; 1 for separate runs. `None` if the
    /// log states neither.
    #[must_use]
    pub fn hosts(&self) -> Option<u32> {
        if self.separate_runs.is_some() {
            return Some(1);
        }
        if self.nodes.is_some() {
            return self.nodes;
        }
        let hosts = self.listed_hosts().len() as u32;
        (hosts > 0).then_some(hosts)
    }

    /// Number of listed devices of each host, by name of the host.
    fn listed_hosts(&self) -> BTreeMap<&str, u32> {
        let mut devices = BTreeMap::new();
        for device in &self.devices {
            *devices.entry(device.host.as_str()).or_default() += 1;
        }
        devices
    }

    /// Returns a description of the hosts that the log lists if they are not `nodes` equal ones. `None` if they are, or if
    /// the log does not list every rank.
    pub(super) fn other_hosts(&self, nodes: u32) -> Option<String> {
        let hosts = self.listed_hosts();
        if self.ranks != Some(self.devices.len() as u32) || self.separate_runs.is_some() {
            return None;
        }
        let mut sizes: Vec<u32> = hosts.values().copied().collect();
        sizes.dedup();
        let is_equal = sizes.len() == 1 && hosts.len() as u32 == nodes;
        (!is_equal).then(|| {
            let mut listed: Vec<String> = hosts.iter().map(|(host, gpus)| format!("{host} with {gpus}")).collect();
            if listed.len() > MAX_LISTED_HOSTS {
                listed.truncate(MAX_LISTED_HOSTS);
                listed.push(format!("{} more", hosts.len() - MAX_LISTED_HOSTS));
            }
            let count = if hosts.len() == 1 { "one host".to_owned() } else { format!("{} hosts", hosts.len()) };
            format!("{count} ({})", listed.join(", "))
        })
    }
}
