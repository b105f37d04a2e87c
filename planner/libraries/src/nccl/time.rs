//! NCCL's expected time of an algorithm and protocol, and NCCL's choice: the combination with the minimum expected
//! time.
//!
//! Source: NCCL 2.30.7 `src/graph/tuning.cc` (`ncclTopoGetAlgoTime`) and `src/enqueue.cc` (`updateCollCostTable`,
//! `topoGetAlgoInfo`). Calls of a group are estimated jointly ([`super::group`]); the latency counts for each call on a
//! channel.

use fabricast_sim::schedule::{DataType, ReduceOp};
use fabricast_topologies::{Bandwidth, Bytes, Picos};

use super::communicator::{Communicator, Cpu};
use super::constants;
use super::index::{Algo, AlgoProto, Function, Proto};
use super::table::CostTable;
use super::version::{NcclVersion, NvlsTreeTime, Ties};

/// Call in NCCL's cost model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// NCCL function (collective) of the call.
    pub function: Function,
    /// Message size as in nccl-tests, in bytes: the larger buffer of a rank.
    pub bytes: Bytes,
    /// Element type of the buffers.
    pub dtype: DataType,
    /// Reduction operation of functions that reduce.
    pub op: ReduceOp,
}

impl Request {
    /// Creates the request of a sum of 32-bit floats.
    #[must_use]
    pub fn new(function: Function, bytes: Bytes) -> Self {
        Self { function, bytes, dtype: DataType::F32, op: ReduceOp::Sum }
    }

    fn is_eight_bit_float(&self) -> bool {
        matches!(self.dtype, DataType::F8e4m3 | DataType::F8e5m2)
    }

    /// Returns true if the switches support the reduction (`ncclNvlsSupported`, `src/include/nvls.h`), or if there is
    /// none.
    fn is_reducible_in_switch(&self) -> bool {
        if matches!(self.function, Function::AllGather) {
            return true;
        }
        let orders = matches!(self.op, ReduceOp::Sum | ReduceOp::Max | ReduceOp::Min);
        match self.dtype {
            DataType::I32 | DataType::U32 | DataType::I64 | DataType::U64 | DataType::F16 | DataType::Bf16 => orders,
            DataType::F32 | DataType::F64 => self.op == ReduceOp::Sum,
            _ => false,
        }
    }
}

/// NCCL's choice for a call, with its expected time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// Algorithm that NCCL chooses.
    pub algo: Algo,
    /// Protocol that NCCL chooses.
    pub proto: Proto,
    /// Time that NCCL's cost model expects.
    pub time: Picos,
}

/// NCCL's expected time of one algorithm and protocol; `None` if NCCL excludes the combination.
#[must_use]
pub fn expected_time(
    communicator: &Communicator,
    channels: u16,
    version: NcclVersion,
    table: &CostTable,
    request: &Request,
    algo: Algo,
    proto: Proto,
) -> Option<Picos> {
    expected_group_call_time(communicator, channels, version, table, request, AlgoProto { algo, proto }, 1)
}

/// Number of collectives whose work structures a channel reads at a time (1024 bytes of 128 each); without rings, NCCL
/// counts the latency once for all of them.
const CALLS_PER_BATCH: u32 = 8;

/// Variant of [`expected_time`] for a group with `per_channel` calls on each channel. The request has the bytes of all
/// calls that are chosen jointly.
fn expected_group_call_time(
    communicator: &Communicator,
    channels: u16,
    version: NcclVersion,
    table: &CostTable,
    request: &Request,
    AlgoProto { algo, proto }: AlgoProto,
    per_channel: u32,
) -> Option<Picos> {
    if algo.is_nvls() && !request.is_reducible_in_switch() {
        return None;
    }
    let cell = table.cell(request.function, algo, proto);
    cell.availability.ok()?;
    if cell.bandwidth == Bandwidth(0) {
        return None;
    }
    let reduces = request.function == Function::AllReduce;
    // The table's first entry is for 64 bytes.
    let log = (request.bytes.0 >> 6).max(1).ilog2();
    let (min_capability, _) = communicator.capability;
    let x86 = matches!(communicator.cpu, Cpu::Intel | Cpu::Amd);
    let corrected = reduces
        && match algo {
            Algo::Tree => log < 23,
            Algo::NvlsTree => {
                version.rules().nvls_tree_time == NvlsTreeTime::AsTrees && log < 24 && min_capability >= 100 && x86
            }
            _ => false,
        };
    let factor = if corrected { constants::correction(proto, log) } else { 1.0 };
    // Ranks of rings over several nodes wait for each other once the pipelines are full.
    let per_rank = request.bytes.0 / (u64::from(channels.max(1)) * u64::from(communicator.ranks.max(1)));
    let plateau = (algo, proto) == (Algo::Ring, Proto::Simple) && reduces && communicator.nodes > 1 && per_rank >= 64;
    let latency = match (plateau, min_capability >= 80) {
        (false, _) => cell.latency.us(),
        (true, true) => 1.4 * cell.latency.us(),
        (true, false) => 1.9 * cell.latency.us(),
    };
    let repetitions = if algo == Algo::Ring { per_channel } else { per_channel.div_ceil(CALLS_PER_BATCH) };
    let mut us =
        latency * f64::from(repetitions.max(1)) + request.bytes.0 as f64 / (1e3 * cell.bandwidth.gb_per_s() * factor);
    // 8-bit floats lose too much precision over a long ring, so NCCL uses it only if nothing else is available.
    if request.is_eight_bit_float() && algo == Algo::Ring && communicator.ranks > 8 {
        us *= 1024.0;
    }
    Some(Picos::from_us(us))
}

/// Returns the algorithm and protocol of minimum expected time; `None` if none is available.
#[must_use]
pub fn pick(
    communicator: &Communicator,
    channels: u16,
    version: NcclVersion,
    table: &CostTable,
    request: &Request,
) -> Option<Pick> {
    pick_group_call(communicator, channels, version, table, request, 1)
}

/// Variant of [`pick`] for a group with `per_channel` calls on each channel.
pub(crate) fn pick_group_call(
    communicator: &Communicator,
    channels: u16,
    version: NcclVersion,
    table: &CostTable,
    request: &Request,
    per_channel: u32,
) -> Option<Pick> {
    if communicator.ranks <= 1 {
        return Some(Pick { algo: Algo::Ring, proto: Proto::Simple, time: Picos::ZERO });
    }
    let mut best: Option<Pick> = None;
    for algo in Algo::ALL {
        for proto in Proto::ALL {
            let cell = AlgoProto { algo, proto };
            let time = expected_group_call_time(communicator, channels, version, table, request, cell, per_channel);
            let Some(time) = time else { continue };
            let is_better = match (best, version.rules().ties) {
                (None, _) => true,
                (Some(known), Ties::First) => time < known.time,
                (Some(known), Ties::Last) => time <= known.time,
            };
            if is_better {
                best = Some(Pick { algo, proto, time });
            }
        }
    }
    best
}
