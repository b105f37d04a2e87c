//! RCCL's choice for a call.
//!
//! 1. MSCCL's kernels run all_reduce and all_to_all inside a host at the sizes of their files
//!    (`tools/msccl-algorithms`) if the elements divide into their chunks: all_reduce up to 64 KiB and 512 KiB with LL,
//!    up to 16 MiB with Simple; all_to_all up to 512 KiB with LL, up to 43 MiB with Simple. They exchange data with all
//!    peers concurrently.
//! 2. Small all_gather is sent to each peer (`rcclUseAllGatherDirect`).
//! 3. Otherwise the cheapest of the [`Estimates`] runs. Over several hosts, byte ranges then replace its protocol.
//!
//! MSCCL++ is not modelled. In some builds before 2.27 it runs all_reduce calls of up to 1 MiB that are captured in a
//! graph.
//!
//! Sources: RCCL 2.21.5 `src/misc/msccl/msccl_lifecycle.cc` (`mscclInternalSchedulerSelectAlgo`), `src/enqueue.cc`
//! (`topoGetAlgoInfo`, `getChannnelThreadInfo`); 2.27.7 `src/rccl_wrap.cc`.

use fabricast_sim::schedule::{BufferUse, Call, Collective, DataType, Protocol, ReduceOp};
use fabricast_topologies::{Bytes, Picos};

use super::hosts::{Architecture, RcclHosts};
use super::sends::sends;
use super::time::Estimates;
use super::tuning::ByteRange;
use super::version::RcclVersion;
use crate::nccl::{
    Algo, AlgoProto, ChannelSplit, Function, Msccl, Proto, Request, Settings, bytes_per_peer, channels_with_work,
    justified_channels,
};
use fabricast_collectives::algorithm::Algorithm;
use fabricast_collectives::strategy::Strategy;

/// Number of threads of a block (`src/include/rccl_common.h`).
const THREADS: u16 = 256;
/// Traffic per channel that justifies an additional channel, in bytes (`src/enqueue.cc`, `MinTrafficPerChannel`).
const MIN_TRAFFIC: Bytes = Bytes(16 << 10);

/// RCCL's choice for a call.
#[derive(Clone, Debug, PartialEq)]
pub struct RcclPick {
    /// Equivalent strategy of fabricast.
    pub strategy: Strategy,
    /// RCCL's name of the choice, such as `Tree LL128` or `MSCCL allreduce_pairs LL`.
    pub name: String,
    /// RCCL's estimate of the time; `None` for kernels without one.
    pub expected: Option<Picos>,
}

/// Algorithm file of MSCCL: the sizes for which RCCL uses the file, and its number of chunks.
struct MscclFile {
    /// Smallest size in bytes.
    from: u64,
    /// Largest size in bytes, out of place and in place; `None` if the file is not used.
    up_to: [Option<u64>; 2],
    /// Number of chunks; the number of elements must be a multiple of it.
    chunks: u64,
    /// Number of thread blocks.
    blocks: u16,
    proto: Proto,
}

/// Files of the all-pairs all_reduce (`allreduce-allpairs-8n-*.xml`).
const ALL_REDUCE_FILES: [MscclFile; 4] = [
    MscclFile { from: 0, up_to: [Some(65_536), Some(65_536)], chunks: 256, blocks: 32, proto: Proto::Ll },
    MscclFile { from: 65_537, up_to: [Some(524_287), Some(524_287)], chunks: 512, blocks: 64, proto: Proto::Ll },
    MscclFile {
        from: 524_288,
        up_to: [Some(16_777_216), Some(11_534_336)],
        chunks: 512,
        blocks: 64,
        proto: Proto::Simple,
    },
    MscclFile { from: 14_680_065, up_to: [None, Some(16_777_216)], chunks: 512, blocks: 64, proto: Proto::Simple },
];

/// Files of all_to_all (`alltoall-8n-*.xml`). A channel has a thread block for each peer.
const ALL_TO_ALL_FILES: [MscclFile; 5] = [
    MscclFile { from: 0, up_to: [Some(9_216), None], chunks: 8, blocks: 7, proto: Proto::Ll },
    MscclFile { from: 9_217, up_to: [Some(194_560), None], chunks: 16, blocks: 14, proto: Proto::Ll },
    MscclFile { from: 194_561, up_to: [Some(524_288), None], chunks: 32, blocks: 28, proto: Proto::Ll },
    MscclFile { from: 524_289, up_to: [Some(7_340_032), None], chunks: 32, blocks: 224, proto: Proto::Simple },
    MscclFile { from: 7_340_033, up_to: [Some(45_088_768), None], chunks: 64, blocks: 56, proto: Proto::Simple },
];

/// Predicts RCCL's choice for a call; `None` if its settings exclude every algorithm, or if RCCL does not have the
/// collective.
#[must_use]
pub fn choose(
    hosts: RcclHosts,
    version: RcclVersion,
    settings: &Settings,
    call: &Call,
    dtype: DataType,
    op: ReduceOp,
) -> Option<RcclPick> {
    if let Some(msccl) = msccl(hosts, settings, call, dtype) {
        return Some(msccl);
    }
    let send = |name: &str| {
        let (bytes, peers) = bytes_per_peer(call);
        let parts = sends(hosts, version, settings, bytes, peers);
        let strategy = Strategy {
            threads: Some(THREADS),
            chunk: Some(parts.chunk),
            ..Strategy::new(Algorithm::Direct, parts.proto.to_protocol(), parts.channels)
        };
        RcclPick { strategy, name: format!("{name} {}", parts.proto), expected: None }
    };
    let function = match Function::from_collective(call.collective) {
        Some(function) => function,
        None if call.collective == Collective::Barrier => return None,
        None => return Some(send("SendRecv")),
    };
    if function == Function::AllGather
        && !settings.mentions(function)
        && is_gathered_by_sends(hosts, version, call.bytes)
    {
        return Some(send("Direct"));
    }
    let estimates = Estimates::new(hosts, version);
    let mut best: Option<(AlgoProto, f64)> = None;
    for algo in [Algo::Tree, Algo::Ring] {
        for proto in Proto::ALL {
            let pair = AlgoProto { algo, proto };
            let allowed = settings.allows(function, algo, proto);
            let time = estimates.time_us(function, call.bytes, pair).filter(|_| allowed);
            if let Some(time) = time.filter(|&time| best.is_none_or(|(_, least)| time < least)) {
                best = Some((pair, time));
            }
        }
    }
    let (AlgoProto { algo, proto }, time) = best?;
    let is_free = !settings.mentions_protocols(function);
    let proto =
        protocol_by_range(hosts, version, &estimates, function, call.bytes).filter(|_| is_free).unwrap_or(proto);
    let request = Request { function, bytes: call.bytes, dtype, op };
    let channels = channels(hosts, version, &estimates, settings, &request, AlgoProto { algo, proto });
    let strategy =
        Strategy { threads: Some(THREADS), ..Strategy::new(algo.to_algorithm()?, proto.to_protocol(), channels) };
    Some(RcclPick { strategy, name: format!("{algo} {proto}"), expected: Some(Picos((time * 1e6) as u64)) })
}

/// MSCCL kernel that RCCL chooses for a call; `None` if no file applies.
fn msccl(hosts: RcclHosts, settings: &Settings, call: &Call, dtype: DataType) -> Option<RcclPick> {
    let is_forced = Function::from_collective(call.collective).is_some_and(|function| settings.mentions(function));
    if hosts.hosts != 1 || settings.msccl == Msccl::Off || is_forced {
        return None;
    }
    let (files, name): (&[MscclFile], _) = match call.collective {
        Collective::AllReduce => (&ALL_REDUCE_FILES, "allreduce_pairs"),
        Collective::AllToAll => (&ALL_TO_ALL_FILES, "alltoall_llm"),
        _ => return None,
    };
    let in_place = usize::from(call.buffers == BufferUse::InPlace);
    let elements = call.bytes.0 / dtype.size().0.max(1);
    let file = files.iter().find(|file| {
        let up_to = file.up_to[in_place];
        up_to.is_some_and(|up_to| (file.from..=up_to).contains(&call.bytes.0))
            && elements > 0
            && elements.is_multiple_of(file.chunks)
    })?;
    let (algorithm, protocol) = match call.collective {
        Collective::AllToAll => (Algorithm::Direct, file.proto.to_protocol()),
        // Each block of the all-pairs all_reduce writes to all peers before it waits for any of them.
        _ => (Algorithm::TwoShot, Protocol::Symmetric),
    };
    let strategy = Strategy { threads: Some(THREADS), ..Strategy::new(algorithm, protocol, file.blocks) };
    Some(RcclPick { strategy, name: format!("MSCCL {name} {}", file.proto), expected: None })
}

/// Returns true if RCCL runs an all_gather of `bytes` in total as sends to each peer. Since 2.27.7 this applies up to 4
/// MiB on gfx942, and on gfx950 up to 8 MiB on one host, 2 MiB per host on 2 to 63 hosts, and 72 MiB on more. In 2.26.6
/// it applies up to 4 MiB over the network with PXN, which RCCL enables from 64 ranks on (gfx950: 32), on 2 to 16
/// hosts.
fn is_gathered_by_sends(hosts: RcclHosts, version: RcclVersion, bytes: Bytes) -> bool {
    const MIB: u64 = 1 << 20;
    let with_pxn = if hosts.architecture == Architecture::Gfx942 { 64 } else { 32 };
    let up_to = match (version, hosts.architecture, hosts.hosts) {
        (RcclVersion::V2_21_5 | RcclVersion::V2_22_3, ..) => 0,
        (RcclVersion::V2_26_6, _, 2..=16) if hosts.ranks() >= with_pxn => 4 * MIB,
        (RcclVersion::V2_26_6, ..) => 0,
        (_, Architecture::Gfx942, _) => 4 * MIB,
        (_, Architecture::Gfx950, 1) => 8 * MIB,
        (_, Architecture::Gfx950, count @ 2..64) => u64::from(count) * 2 * MIB,
        (_, Architecture::Gfx950, _) => 72 * MIB,
    };
    bytes.0 <= up_to
}

/// Message size to which byte ranges refer: the whole buffer for all_reduce, a rank's own part for other functions.
fn ranged_bytes(hosts: RcclHosts, function: Function, bytes: Bytes) -> u64 {
    if function == Function::AllReduce { bytes.0 } else { bytes.0 / u64::from(hosts.ranks()) }
}

/// Protocol that RCCL sets regardless of its estimates; `None` if the estimates decide.
fn protocol_by_range(
    hosts: RcclHosts,
    version: RcclVersion,
    estimates: &Estimates,
    function: Function,
    bytes: Bytes,
) -> Option<Proto> {
    let own = ranged_bytes(hosts, function, bytes);
    if hosts.hosts > 1 {
        return Some(estimates.tuning().ranges?.function(function)?.protocol(function, own, hosts.hosts));
    }
    let up_to = match (hosts.architecture, function) {
        _ if version < RcclVersion::V2_27_7 => return None,
        (Architecture::Gfx950, Function::AllGather) => 88_448,
        (Architecture::Gfx950, Function::ReduceScatter) => 175_488,
        (Architecture::Gfx942, Function::ReduceScatter) => 352_128,
        _ => return None,
    };
    (own <= up_to).then_some(Proto::Ll)
}

/// Range of a rank's part, in bytes, and the number of channels that RCCL uses for it on gfx950 (`channelThresholds`).
struct ChannelRange {
    bytes: ByteRange,
    channels: u16,
}

const fn channel_range(above: u64, up_to: u64, channels: u16) -> ChannelRange {
    ChannelRange { bytes: ByteRange { above, up_to }, channels }
}

const REDUCE_SCATTER_CHANNELS: [ChannelRange; 9] = [
    channel_range(512, 1024, 2),
    channel_range(1024, 2048, 4),
    channel_range(2048, 4096, 8),
    channel_range(4096, 65_536, 16),
    channel_range(65_536, 262_144, 32),
    channel_range(262_144, 524_288, 40),
    channel_range(524_288, 1_048_576, 48),
    channel_range(1_048_576, 2_097_152, 56),
    channel_range(2_097_152, 268_435_457, 64),
];

const ALL_GATHER_CHANNELS: [ChannelRange; 8] = [
    channel_range(2048, 4096, 2),
    channel_range(4096, 8192, 4),
    channel_range(8192, 16_384, 8),
    channel_range(16_384, 262_144, 16),
    channel_range(262_144, 524_288, 32),
    channel_range(524_288, 1_048_576, 40),
    channel_range(1_048_576, 4_194_304, 56),
    channel_range(4_194_304, 268_435_457, 64),
];

/// Number of channels that receive work.
fn channels(
    hosts: RcclHosts,
    version: RcclVersion,
    estimates: &Estimates,
    settings: &Settings,
    request: &Request,
    AlgoProto { algo, proto }: AlgoProto,
) -> u16 {
    let (min, max) = (settings.min_channels.unwrap_or(1), settings.max_channels.unwrap_or(u16::MAX));
    let is_set = settings.min_channels.is_some() || settings.max_channels.is_some();
    let available = hosts.channels(version).max(min).min(max);
    let ranks = u64::from(hosts.ranks());
    let per_thread = match (algo, proto) {
        (Algo::Ring, Proto::Ll) => 8 * ranks,
        (_, Proto::Ll | Proto::Ll128) => 8,
        (_, Proto::Simple) => 64,
    };
    let tuned = estimates.tuning().ranges.and_then(|ranges| ranges.function(request.function)?.per_thread);
    let tuned = tuned.filter(|_| hosts.hosts > 1 && !is_set).and_then(|tuned| tuned.get(proto as usize).copied());
    let threshold = settings.thread_threshold(algo, proto).or(tuned.map(|tuned| tuned * ranks)).unwrap_or(per_thread);
    let mut channels = justified_channels(request.bytes.0, available, u32::from(THREADS), threshold);
    let ranges: &[ChannelRange] = match request.function {
        _ if hosts.hosts == 1 || version < RcclVersion::V2_27_7 || hosts.architecture != Architecture::Gfx950 => &[],
        Function::ReduceScatter => &REDUCE_SCATTER_CHANNELS,
        Function::AllGather => &ALL_GATHER_CHANNELS,
        _ => &[],
    };
    let own = request.bytes.0.div_ceil(ranks);
    let range = ranges.iter().find(|range| range.bytes.contains(own));
    if let Some(range) = range.filter(|range| (min..=max).contains(&range.channels)) {
        channels = range.channels;
    }
    let split = match version {
        RcclVersion::V2_21_5 => ChannelSplit::Evenly,
        RcclVersion::V2_22_3 => ChannelSplit::Cells,
        _ => ChannelSplit::Traffic(MIN_TRAFFIC),
    };
    channels_with_work(split, hosts.ranks(), request, proto, channels)
}

#[cfg(test)]
mod tests {
    use fabricast_sim::schedule::Rank;

    use super::super::hosts::GPUS;
    use super::*;

    fn call(hosts: u32, collective: Collective, bytes: u64) -> Call {
        let buffers = BufferUse::OutOfPlace;
        Call { collective, bytes: Bytes(bytes), ranks: hosts * GPUS, root: Rank(0), buffers }
    }

    fn pick(
        architecture: Architecture,
        hosts: u32,
        version: RcclVersion,
        collective: Collective,
        bytes: u64,
    ) -> RcclPick {
        let hosts = RcclHosts { architecture, hosts };
        let call = call(hosts.hosts, collective, bytes);
        choose(hosts, version, &Settings::default(), &call, DataType::F32, ReduceOp::Sum).unwrap()
    }

    /// Algorithm, protocol and channels are those that RCCL reported for all_reduce on 2 × 8 MI350X
    /// (github.com/ROCm/rocm-systems/pull/9406, "Before", 64 channels).
    #[test]
    fn two_hosts_of_mi350x_choose_as_reported() {
        for (bytes, name, channels) in
            [(32 << 20, "Tree LL128", 64), (64 << 20, "Ring LL128", 64), (128 << 20, "Ring Simple", 64)]
        {
            let pick = pick(Architecture::Gfx950, 2, RcclVersion::V2_27_7, Collective::AllReduce, bytes);
            assert_eq!((pick.name.as_str(), pick.strategy.channels), (name, channels), "{bytes}");
        }
    }

    /// Measured times on two hosts of MI308X and MI355X have a discontinuity where the range of LL128 ends
    /// (validate/data/rccl).
    #[test]
    fn byte_ranges_follow_the_version() {
        let name =
            |architecture, hosts, version, bytes| pick(architecture, hosts, version, Collective::AllReduce, bytes).name;
        let (gfx942, gfx950) = (Architecture::Gfx942, Architecture::Gfx950);
        assert_eq!(name(gfx942, 2, RcclVersion::V2_27_7, 512 << 10), "Tree LL");
        assert_eq!(name(gfx942, 2, RcclVersion::V2_27_7, 4 << 20), "Tree LL128");
        assert_eq!(name(gfx942, 2, RcclVersion::V2_27_7, 8 << 20), "Tree Simple");
        assert_eq!(name(gfx942, 4, RcclVersion::V2_27_7, 16 << 20), "Tree LL128");
        assert_eq!(name(gfx942, 2, RcclVersion::V2_26_6, 8 << 20), "Tree LL128");
        assert_eq!(name(gfx942, 2, RcclVersion::V2_22_3, 1 << 20), "Tree LL");
        assert_eq!(name(gfx950, 2, RcclVersion::V2_26_6, 16 << 20), "Tree LL128");
        assert_eq!(name(gfx950, 2, RcclVersion::V2_26_6, 32 << 20), "Tree Simple");
    }

    #[test]
    fn msccl_runs_the_sizes_of_its_files() {
        let name = |collective, bytes| pick(Architecture::Gfx942, 1, RcclVersion::V2_22_3, collective, bytes).name;
        assert_eq!(name(Collective::AllReduce, 512), "Ring LL");
        assert_eq!(name(Collective::AllReduce, 1024), "MSCCL allreduce_pairs LL");
        assert_eq!(name(Collective::AllReduce, 1028), "Ring LL");
        assert_eq!(name(Collective::AllReduce, 512 << 10), "MSCCL allreduce_pairs Simple");
        assert_eq!(name(Collective::AllReduce, 16 << 20), "MSCCL allreduce_pairs Simple");
        assert_eq!(name(Collective::AllReduce, 32 << 20), "Ring Simple");
        assert_eq!(name(Collective::AllToAll, 32 << 20), "MSCCL alltoall_llm Simple");
        assert_eq!(name(Collective::AllToAll, 64 << 20), "SendRecv Simple");
        let hosts = RcclHosts { architecture: Architecture::Gfx942, hosts: 1 };
        let off = Settings { msccl: Msccl::Off, ..Settings::default() };
        let call = call(1, Collective::AllReduce, 16 << 20);
        let without = choose(hosts, RcclVersion::V2_22_3, &off, &call, DataType::F32, ReduceOp::Sum).unwrap();
        assert_eq!(without.name, "Ring Simple");
    }

    #[test]
    fn small_all_gather_is_sent_to_each_peer_since_2_27() {
        let name =
            |version, hosts, bytes| pick(Architecture::Gfx942, hosts, version, Collective::AllGather, bytes).name;
        assert_eq!(name(RcclVersion::V2_22_3, 1, 256 << 10), "Ring LL");
        assert_eq!(name(RcclVersion::V2_22_3, 1, 1 << 20), "Ring Simple");
        assert_eq!(name(RcclVersion::V2_26_6, 2, 1 << 20), "Ring LL");
        assert_eq!(name(RcclVersion::V2_26_6, 8, 1 << 20), "Direct Simple");
        assert_eq!(name(RcclVersion::V2_27_7, 1, 64 << 10), "Direct LL");
        assert_eq!(name(RcclVersion::V2_27_7, 2, 4 << 20), "Direct Simple");
        assert_eq!(name(RcclVersion::V2_27_7, 2, 8 << 20), "Ring LL128");
    }

    #[test]
    fn channels_follow_bytes_per_thread() {
        let channels =
            |bytes| pick(Architecture::Gfx942, 2, RcclVersion::V2_27_7, Collective::AllReduce, bytes).strategy.channels;
        // Tree LL: 256 threads × 8 bytes justify a channel; 16 KiB of traffic justify a channel, and a byte of LL is 8
        // bytes of traffic.
        assert_eq!(channels(1 << 10), 1);
        assert_eq!(channels(16 << 10), 8);
        assert_eq!(channels(256 << 10), 64);
        let gather = pick(Architecture::Gfx950, 2, RcclVersion::V2_27_7, Collective::AllGather, 16 * (512 << 10));
        assert_eq!(gather.strategy.channels, 32);
    }

    #[test]
    fn forced_algorithms_are_kept() {
        let hosts = RcclHosts { architecture: Architecture::Gfx942, hosts: 1 };
        let (ring, _) = Settings::parse("NCCL_ALGO=Ring").unwrap();
        let call = call(1, Collective::AllReduce, 1 << 20);
        let pick = choose(hosts, RcclVersion::V2_22_3, &ring, &call, DataType::F32, ReduceOp::Sum).unwrap();
        assert_eq!(pick.strategy.algorithm, Algorithm::Ring);
        let (nothing, _) = Settings::parse("NCCL_ALGO=NVLS").unwrap();
        assert_eq!(choose(hosts, RcclVersion::V2_22_3, &nothing, &call, DataType::F32, ReduceOp::Sum), None);
    }
}
