//! RCCL's tuning tables of an architecture: latencies, bandwidths and byte ranges.
//!
//! Source: RCCL `src/graph/tuning.cc` (`tuning_model_5` for gfx942, `tuning_model_6` for gfx950). Arrays are in the
//! order of the source: first trees, then rings, each with LL, LL128 and Simple; correction factors are for 64 B, 128
//! B, … 4 GiB.

use super::hosts::Architecture;
use super::version::RcclVersion;
use crate::nccl::{Function, Proto};

/// Number of correction factors per protocol: one for each power of two from 64 B to 4 GiB.
const SIZES: usize = 27;

/// Latencies, bandwidths and byte ranges of an architecture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning {
    /// Latency of a hop inside a host, in microseconds.
    pub inside_us: [[f64; 3]; 2],
    /// Latency of a hop between hosts, in microseconds.
    pub between_us: [[f64; 3]; 2],
    /// Fraction of a GPU's link bandwidth on up to two hosts.
    pub ratio_to_two_hosts: [[f64; 3]; 2],
    /// Fraction of a GPU's link bandwidth on more than two hosts.
    pub ratio_beyond: [[f64; 3]; 2],
    /// Correction of the bandwidth of trees, by protocol and size.
    pub tree_correction: [[f64; SIZES]; 3],
    /// Correction of the bandwidth of rings over several hosts, by protocol and size.
    pub ring_correction: [[f64; SIZES]; 3],
    /// Byte ranges of LL and LL128 over several hosts; `None` if the cheapest estimate decides.
    pub ranges: Option<ProtocolRanges>,
}

/// Range of message sizes above `above` and up to `up_to` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// Exclusive lower limit of the range, in bytes.
    pub above: u64,
    /// Inclusive upper limit of the range, in bytes.
    pub up_to: u64,
}

/// Byte ranges of LL and LL128 for a function. Calls of other sizes use Simple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionRanges {
    /// Range of LL.
    pub ll: ByteRange,
    /// Range of LL128, which takes precedence over that of LL.
    pub ll128: ByteRange,
    /// Bytes per thread and rank that justify an additional channel, with LL and with LL128. `None` for the default.
    pub per_thread: Option<[u64; 2]>,
}

/// Byte ranges of all functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtocolRanges {
    reduce_scatter: FunctionRanges,
    all_gather: FunctionRanges,
    all_reduce: FunctionRanges,
    /// Ranges of Reduce; `None` if the estimates decide.
    reduce: Option<FunctionRanges>,
    broadcast: Option<FunctionRanges>,
}

impl ByteRange {
    /// Returns true if the range contains a number of bytes.
    #[must_use]
    pub fn contains(self, bytes: u64) -> bool {
        bytes > self.above && bytes <= self.up_to
    }
}

impl ProtocolRanges {
    /// Byte ranges of a function; `None` if the estimates decide.
    #[must_use]
    pub fn function(&self, function: Function) -> Option<FunctionRanges> {
        match function {
            Function::ReduceScatter => Some(self.reduce_scatter),
            Function::AllGather => Some(self.all_gather),
            Function::AllReduce => Some(self.all_reduce),
            Function::Reduce => self.reduce,
            Function::Broadcast => self.broadcast,
        }
    }
}

impl FunctionRanges {
    /// Protocol of a message of `bytes` in a communicator of `hosts` hosts. The range of LL128 extends 3.8 times as far
    /// for all_reduce on more than two hosts (`src/rccl_wrap.cc`, `rcclUpdateCollectiveProtocol`).
    #[must_use]
    pub fn protocol(self, function: Function, bytes: u64, hosts: u32) -> Proto {
        let mut ll128 = self.ll128;
        if function == Function::AllReduce && hosts > 2 {
            ll128.up_to = ll128.up_to * 38 / 10;
        }
        match (ll128.contains(bytes), self.ll.contains(bytes)) {
            (true, _) => Proto::Ll128,
            (false, true) => Proto::Ll,
            (false, false) => Proto::Simple,
        }
    }
}

impl Tuning {
    /// Table of an architecture in a version.
    #[must_use]
    pub fn new(architecture: Architecture, version: RcclVersion) -> &'static Self {
        match (architecture, version) {
            (Architecture::Gfx942, RcclVersion::V2_21_5 | RcclVersion::V2_22_3) => &GFX942_2_21,
            (Architecture::Gfx942, RcclVersion::V2_26_6) => &GFX942_2_26,
            (Architecture::Gfx942, _) => &GFX942_2_27,
            (Architecture::Gfx950, RcclVersion::V2_21_5 | RcclVersion::V2_22_3 | RcclVersion::V2_26_6) => &GFX950_2_26,
            (Architecture::Gfx950, _) => &GFX950_2_27,
        }
    }
}

const fn ranges(ll: [u64; 2], ll128: [u64; 2], per_thread: Option<[u64; 2]>) -> FunctionRanges {
    FunctionRanges {
        ll: ByteRange { above: ll[0], up_to: ll[1] },
        ll128: ByteRange { above: ll128[0], up_to: ll128[1] },
        per_thread,
    }
}

/// Bytes per thread and rank that justify an additional channel of all_gather and reduce_scatter.
const BLOCKS: Option<[u64; 2]> = Some([16, 64]);

/// Tuning of gfx942 in RCCL 2.21.5, without LL128.
const GFX942_2_21: Tuning = Tuning {
    tree_correction: [TREE_LL, TREE_LL, TREE_SIMPLE_2_21],
    ring_correction: [RING_LL, RING_LL, RING_SIMPLE_2_21],
    ranges: None,
    ..GFX942_2_26
};

/// Tuning of gfx942 in RCCL 2.26.6.
const GFX942_2_26: Tuning = Tuning {
    inside_us: [[0.9, 0.9, 2.3], [0.8, 0.8, 2.1]],
    between_us: [[10.5, 10.5, 25.0], [9.5, 9.5, 320.0]],
    ratio_to_two_hosts: [[0.06, 0.06, 0.11], [0.08, 0.08, 1.0]],
    ratio_beyond: [[0.06, 0.06, 0.59], [0.08, 0.08, 1.0]],
    tree_correction: [TREE_LL, TREE_LL, TREE_SIMPLE_2_26],
    ring_correction: [RING_LL, RING_LL, RING_SIMPLE_2_26],
    ranges: Some(ProtocolRanges {
        reduce_scatter: ranges([0, 655_360], [131_072, 3_211_264], BLOCKS),
        all_gather: ranges([0, 98_304], [98_304, 5_046_272], BLOCKS),
        all_reduce: ranges([0, 1_048_576], [1_048_576, 9_437_184], None),
        reduce: None,
        broadcast: None,
    }),
};

/// Tuning of gfx942 in RCCL 2.27.7 and 2.28.3.
const GFX942_2_27: Tuning = Tuning {
    ring_correction: [RING_LL, RING_LL, RING_SIMPLE_2_27],
    ranges: Some(ProtocolRanges {
        reduce_scatter: ranges([0, 655_360], [131_072, 3_211_264], BLOCKS),
        all_gather: ranges([0, 98_304], [98_304, 5_046_272], BLOCKS),
        all_reduce: ranges([0, 524_288], [524_288, 4_415_057], None),
        reduce: Some(ranges([0, 4_096], [4_096, 16_777_216], None)),
        broadcast: Some(ranges([0, 8_192], [8_192, 33_554_432], None)),
    }),
    ..GFX942_2_26
};

/// Tuning of gfx950 in RCCL 2.26.6.
const GFX950_2_26: Tuning = Tuning {
    tree_correction: [TREE_LL, GFX950_TREE_LL128_2_26, GFX950_TREE_SIMPLE_2_26],
    ring_correction: [RING_LL, GFX950_RING_LL128_2_26, GFX950_RING_SIMPLE_2_26],
    ranges: Some(ProtocolRanges {
        reduce_scatter: ranges([0, 131_071], [131_071, 4_194_304], BLOCKS),
        all_gather: ranges([0, 7], [7, 8_388_608], BLOCKS),
        all_reduce: ranges([0, 131_071], [131_071, 17_660_227], None),
        reduce: Some(ranges([0, 16_383], [16_383, 16_777_216], None)),
        broadcast: Some(ranges([0, 2_048], [2_048, 16_777_216], None)),
    }),
    ..GFX942_2_26
};

/// Tuning of gfx950 in RCCL 2.27.7 and 2.28.3.
const GFX950_2_27: Tuning = Tuning {
    tree_correction: [TREE_LL, GFX950_TREE_LL128_2_27, GFX950_TREE_SIMPLE_2_27],
    ring_correction: [RING_LL, GFX950_RING_LL128_2_27, GFX950_RING_SIMPLE_2_27],
    ranges: Some(ProtocolRanges {
        reduce_scatter: ranges([0, 65_536], [65_536, 8_388_608], BLOCKS),
        all_gather: ranges([0, 65_536], [65_536, 8_388_608], BLOCKS),
        all_reduce: ranges([0, 262_144], [262_144, 70_640_910], None),
        reduce: Some(ranges([0, 16_383], [16_383, 16_777_216], None)),
        broadcast: Some(ranges([0, 2_048], [2_048, 16_777_216], None)),
    }),
    ..GFX942_2_26
};

const TREE_LL: [f64; SIZES] = [
    0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 1.0, 1.0, 1.0, 1.0, 1.0, 0.6, 1.0, 0.9, 1.0, 1.0, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1,
    0.1, 0.1, 0.1, 0.1,
];
const RING_LL: [f64; SIZES] = [
    0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 1.0, 0.2, 1.0, 0.4, 0.4, 0.1, 0.2, 0.2, 0.1, 0.1, 0.1, 0.1,
    0.1, 0.1, 0.1, 0.1,
];
const TREE_SIMPLE_2_21: [f64; SIZES] = [
    0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.7, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0,
    1.0, 1.0, 1.0, 0.8,
];
const TREE_SIMPLE_2_26: [f64; SIZES] = [
    0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.7, 1.0, 1.0, 1.0, 1.0, 1.0, 0.7, 0.7,
    0.5, 0.6, 0.6, 0.6,
];
const RING_SIMPLE_2_21: [f64; SIZES] = [
    0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1,
    0.8, 1.0, 1.0, 1.0,
];
const RING_SIMPLE_2_26: [f64; SIZES] = [
    0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 1.0,
    0.8, 1.0, 1.0, 1.0,
];
const RING_SIMPLE_2_27: [f64; SIZES] = [
    0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.7,
    0.2, 1.0, 1.0, 1.0,
];
const GFX950_TREE_LL128_2_26: [f64; SIZES] = [
    0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 1.0, 1.0, 1.0, 1.0, 1.0, 0.6, 1.0, 0.9, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 0.1, 0.1, 0.1,
    0.1, 0.1, 0.1, 0.1,
];
const GFX950_TREE_SIMPLE_2_26: [f64; SIZES] = [
    0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.7, 1.0, 0.1, 0.1, 0.1, 0.9, 0.9, 0.7,
    0.8, 0.6, 0.6, 0.6,
];
const GFX950_RING_LL128_2_26: [f64; SIZES] = [
    0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 1.0, 0.2, 1.0, 0.4, 0.4, 0.1, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1,
    0.1, 0.1, 0.1, 0.1,
];
const GFX950_RING_SIMPLE_2_26: [f64; SIZES] = [
    0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 1.0,
    0.8, 0.8, 1.0, 1.0,
];
const GFX950_TREE_LL128_2_27: [f64; SIZES] = [
    0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 1.0, 1.0, 1.0, 1.0, 1.0, 0.6, 1.0, 0.9, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 1.0, 0.1,
    0.9, 0.9, 0.1, 0.1,
];
const GFX950_TREE_SIMPLE_2_27: [f64; SIZES] = [
    0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.7, 1.0, 0.1, 0.1, 0.1, 0.1, 0.1, 0.7,
    0.15, 0.6, 0.7, 0.6,
];
const GFX950_RING_LL128_2_27: [f64; SIZES] = [
    0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 1.0, 0.2, 1.0, 0.4, 0.4, 0.1, 0.2, 0.1, 0.1, 0.1, 0.1, 5.5,
    0.1, 0.1, 1.0, 1.0,
];
const GFX950_RING_SIMPLE_2_27: [f64; SIZES] = [
    0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.9, 0.1, 1.0,
    0.1, 0.6, 1.0, 1.0,
];
