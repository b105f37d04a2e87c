//! `gpu run --pairs`: correctness test with pairwise coverage of the parameters of calls.

mod house;

use std::time::Instant;

use fabricast_planner::algorithm::{Algorithm, Shape, generator};
use fabricast_planner::strategy::Strategy;
use fabricast_reports::table::{Column, Table, Unit, Value};
use fabricast_sim::schedule::{BufferUse, Call, Collective, DataType, Matrix, Protocol, Rank, ReduceOp, Schedule};
use fabricast_topologies::Bytes;
use fabricast_validate::cuda::Driver;
use fabricast_validate::execute::nvshmem;
use fabricast_validate::execute::{ExecuteError, Job, Stage, covering};
use fabricast_validate::kernel::{Carrier, Devices};
use fabricast_validate::nccl::Nccl;
use fabricast_validate::nvshmem::Nvshmem;
use serde::Serialize;

use crate::args::{ExecutorChoice, GpuRunArgs};
use crate::failure::Failure;
use crate::output::{Format, Output};
use crate::setup;
use house::House;

/// Executor of a call, with its variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Kernels(Carrier),
    Copies,
    Nccl,
    NcclSymmetric,
    NcclForced(Algorithm, Protocol),
    Nvshmem(nvshmem::Way),
}

const WAYS: [Way; 13] = [
    Way::Kernels(Carrier::Packets),
    Way::Kernels(Carrier::Lines),
    Way::Kernels(Carrier::Flags),
    Way::Copies,
    Way::Nccl,
    Way::NcclSymmetric,
    Way::NcclForced(Algorithm::Ring, Protocol::Ll),
    Way::NcclForced(Algorithm::Ring, Protocol::Simple),
    Way::NcclForced(Algorithm::Tree, Protocol::Ll128),
    Way::Nvshmem(nvshmem::Way::Collectives),
    Way::Nvshmem(nvshmem::Way::Puts),
    Way::Nvshmem(nvshmem::Way::Heap),
    Way::Nvshmem(nvshmem::Way::Device),
];

impl Way {
    /// The kind of executor.
    fn executor(self) -> ExecutorChoice {
        match self {
            Self::Kernels(_) => ExecutorChoice::Kernels,
            Self::Copies => ExecutorChoice::Copies,
            Self::Nccl => ExecutorChoice::Nccl,
            Self::NcclSymmetric => ExecutorChoice::NcclSymmetric,
            Self::NcclForced(..) => ExecutorChoice::NcclForced,
            Self::Nvshmem(_) => ExecutorChoice::Nvshmem,
        }
    }

    /// Strategy that NCCL is forced to.
    fn strategy(self) -> Option<Strategy> {
        let Self::NcclForced(algorithm, protocol) = self else { return None };
        Some(Strategy { algorithm, protocol, channels: 2, threads: None, chunk: None })
    }

    /// Name of the variant.
    fn name(self) -> String {
        match self {
            Self::Kernels(carrier) => format!("kernels {}", carrier.name()),
            Self::NcclForced(algorithm, protocol) => format!("nccl-forced {algorithm} {protocol}"),
            Self::Nvshmem(way) => format!("nvshmem {}", way.name()),
            Self::Copies | Self::Nccl | Self::NcclSymmetric => self.executor().to_string(),
        }
    }
}

/// Returns the requested variants; if none are requested, all whose libraries this machine has.
fn ways(args: &GpuRunArgs, output: &Output) -> Result<Vec<Way>, ExecuteError> {
    let asked = &args.execution.executor;
    let mut ways: Vec<Way> =
        WAYS.into_iter().filter(|way| asked.is_empty() || asked.contains(&way.executor())).collect();
    let of_nccl = [ExecutorChoice::Nccl, ExecutorChoice::NcclSymmetric, ExecutorChoice::NcclForced];
    let mut leave_out = |executors: &[ExecutorChoice], error: ExecuteError| {
        if !asked.is_empty() {
            return Err(error);
        }
        output.warn(&format!("left out: {error}"));
        ways.retain(|way| !executors.contains(&way.executor()));
        Ok(())
    };
    let wants = |executors: &[ExecutorChoice]| asked.is_empty() || executors.iter().any(|one| asked.contains(one));
    if let (true, Err(error)) = (wants(&of_nccl), Nccl::open(args.execution.nccl.as_deref())) {
        leave_out(&of_nccl, error.into())?;
    }
    let of_nvshmem = [ExecutorChoice::Nvshmem];
    if let (true, Err(error)) = (wants(&of_nvshmem), Nvshmem::open(args.execution.nvshmem.as_deref())) {
        leave_out(&of_nvshmem, error.into())?;
    }
    Ok(ways)
}

const COLLECTIVES: [Collective; 10] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::AllToAll,
    Collective::AllToAllV,
    Collective::Gather,
    Collective::Scatter,
    Collective::SendRecv,
];

/// Numbers of elements of a call, or of a rank's block if the collective has blocks.
const ELEMENTS: [u64; 5] = [1, 3, 1_001, 16_411, 262_147];

/// Numbers of ranks, each with its own GPU.
const RANKS: [u32; 4] = [2, 3, 4, 8];

/// Test case: a call with its executor.
#[derive(Clone, Debug)]
struct Case {
    way: Way,
    algorithm: Algorithm,
    job: Job,
    schedule: Schedule,
    offset: Bytes,
    elements: u64,
}

#[derive(Serialize)]
struct CaseJson {
    collective: &'static str,
    algorithm: String,
    executor: String,
    ranks: u32,
    dtype: &'static str,
    op: String,
    elements: u64,
    offset: Bytes,
    in_place: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
}

#[derive(Serialize)]
struct PairsJson {
    gpus: usize,
    cases: usize,
    wrong: usize,
    /// Number of calls that NVSHMEM lacks for the type or reduction.
    not_had: usize,
    seconds: f64,
    rows: Vec<CaseJson>,
}

pub(super) fn run(args: &GpuRunArgs, output: &Output) -> Result<(), Failure> {
    let begun = Instant::now();
    let fabric = setup::fabric(&args.fabric.fabric, &args.fabric.size, &args.what_if, output)?;
    let gpus = fabric.gpus().len();
    let driver = Driver::load().map_err(ExecuteError::from)?;
    let shared = args.fabric.ranks_per_gpu;
    if shared < 2 && gpus > driver.device_count() {
        return Err(ExecuteError::TooFewGpus { ranks: gpus as u32, gpus: driver.device_count() }.into());
    }
    let (devices, counts) = match shared {
        0 | 1 => (Devices::Own, RANKS.into_iter().filter(|&ranks| ranks as usize <= gpus).collect()),
        ranks => (Devices::Shared, vec![ranks]),
    };
    if counts.is_empty() {
        return Err(Failure::input("one GPU has several ranks by --ranks-per-gpu only"));
    }
    let ways = ways(args, output)?;
    let levels =
        [COLLECTIVES.len(), ways.len(), DataType::ALL.len(), ReduceOp::ALL.len(), ELEMENTS.len(), 2, 2, counts.len()];
    let cases = covering(&levels, &|case| is_allowed(case, &ways, devices));
    let cases: Vec<Case> =
        cases.iter().zip(0..).filter_map(|(case, number)| case_of(case, number, &ways, &counts)).collect();
    let mut not_had = 0;
    let mut rows: Vec<CaseJson> = Vec::new();
    for &ranks in &counts {
        let mine: Vec<&Case> = cases.iter().filter(|case| case.job.header.call.ranks == ranks).collect();
        let stage = Stage::new(driver, ranks, devices)?;
        let mut house = House::new(stage, args, &mine)?;
        house.compile(&mine)?;
        for case in mine {
            let fault = match house.perform(case) {
                Ok(()) => None,
                Err(ExecuteError::Unsupported { .. }) if matches!(case.way, Way::Nvshmem(_)) => {
                    not_had += 1;
                    continue;
                }
                Err(
                    error @ (ExecuteError::Wrong { .. } | ExecuteError::Kernel(_) | ExecuteError::Unsupported { .. }),
                ) => {
                    let call = case.job.header.call.collective;
                    output.warn(&format!("{call} by {}, {}: {error}", case.way.name(), case.algorithm));
                    Some(error.to_string())
                }
                Err(error) => return Err(error.into()),
            };
            rows.push(case.json(fault));
        }
    }
    let wrong = rows.iter().filter(|row| row.fault.is_some()).count();
    let all = PairsJson { gpus, cases: rows.len(), wrong, not_had, seconds: begun.elapsed().as_secs_f64(), rows };
    match output.format {
        Format::Json => output.write_json(&all)?,
        Format::Csv => output.write(&crate::commands::csv(&table(&all))?)?,
        Format::Text => output.write(&table(&all).text(&output.look()))?,
    }
    if wrong > 0 { Err(Failure::Failed(format!("{wrong} of {} cases are wrong", all.cases))) } else { Ok(()) }
}

fn table(all: &PairsJson) -> Table {
    let keys =
        ["collective", "algorithm", "executor", "ranks", "dtype", "op", "elements", "offset", "in_place", "fault"];
    let mut table = Table::new(keys.iter().map(|key| Column::new(key, key, Unit::Text)).collect());
    for row in &all.rows {
        let texts = [
            row.collective.to_owned(),
            row.algorithm.clone(),
            row.executor.clone(),
            row.ranks.to_string(),
            row.dtype.to_owned(),
            row.op.clone(),
            row.elements.to_string(),
            row.offset.0.to_string(),
            row.in_place.to_string(),
            row.fault.clone().unwrap_or_default(),
        ];
        table.row(texts.into_iter().map(|text| Value::text(text).into()).collect());
    }
    table.note(format!("{} cases, {} wrong, {:.1} s", all.cases, all.wrong, all.seconds));
    if all.not_had > 0 {
        table.note(format!("{} calls besides, which NVSHMEM has not", all.not_had));
    }
    table
}

fn reduces(collective: Collective) -> bool {
    matches!(collective, Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce)
}

fn is_allowed(case: &[usize], ways: &[Way], devices: Devices) -> bool {
    let &[collective, way, _, op, _, _, place, _] = case else { return false };
    let (Some(&collective), Some(&way)) = (COLLECTIVES.get(collective), ways.get(way)) else { return false };
    let is_exchange = matches!(collective, Collective::AllToAll | Collective::AllToAllV | Collective::SendRecv);
    let in_place = place == 1;
    if (in_place && is_exchange) || (op > 0 && !reduces(collective)) {
        return false;
    }
    match way {
        Way::Kernels(_) => true,
        _ if devices == Devices::Shared => false,
        Way::Copies => !reduces(collective) && collective != Collective::Broadcast && !in_place,
        Way::Nccl | Way::NcclSymmetric => collective != Collective::AllToAllV,
        // NCCL 2.28 src/graph/tuning.cc: trees only support all_reduce, and send and receive cannot be forced.
        Way::NcclForced(Algorithm::Tree, _) => collective == Collective::AllReduce,
        Way::NcclForced(..) => {
            reduces(collective) || matches!(collective, Collective::AllGather | Collective::Broadcast)
        }
        Way::Nvshmem(_) => true,
    }
}

fn case_of(case: &[usize], number: usize, ways: &[Way], counts: &[u32]) -> Option<Case> {
    let &[collective, way, dtype, op, elements, shifted, place, ranks] = case else { return None };
    let (collective, way, dtype) = (*COLLECTIVES.get(collective)?, *ways.get(way)?, *DataType::ALL.get(dtype)?);
    let (op, elements, ranks) = (*ReduceOp::ALL.get(op)?, *ELEMENTS.get(elements)?, *counts.get(ranks)?);
    let size = dtype.size().0;
    let blocks = match collective {
        Collective::AllGather
        | Collective::ReduceScatter
        | Collective::AllToAll
        | Collective::Gather
        | Collective::Scatter => u64::from(ranks),
        Collective::AllToAllV => u64::from(ranks) * u64::from(ranks),
        _ => 1,
    };
    let bytes = Bytes(elements * blocks * size);
    let rooted =
        matches!(collective, Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter);
    let call = Call {
        collective,
        bytes,
        ranks,
        root: Rank(if rooted { number as u32 % ranks } else { 0 }),
        buffers: if place == 1 { BufferUse::InPlace } else { BufferUse::OutOfPlace },
    };
    let matrix = match collective {
        Collective::AllToAllV => Matrix::even(ranks, bytes).ok(),
        _ => None,
    };
    let channels = 1 + (number % 3) as u16;
    let shape = Shape { channels, ranks_per_node: ranks, matrix, ..Shape::new(call, Protocol::Symmetric) };
    // Copy engines run single-step schedules; the other executors cycle through all algorithms.
    let mut algorithms: Vec<Algorithm> = match way {
        Way::Copies => vec![Algorithm::Direct],
        _ => Algorithm::ALL.into_iter().filter(|one| one.supports(collective)).collect(),
    };
    let turn = number % algorithms.len().max(1);
    algorithms.rotate_left(turn);
    let found = algorithms.into_iter().find_map(|algorithm| {
        let made = generator(algorithm, &shape).ok()?;
        Some((algorithm, Schedule::build(made.as_ref()).ok()?))
    });
    let (algorithm, schedule) = found?;
    let job = Job { header: schedule.header().clone(), dtype, op };
    Some(Case { way, algorithm, job, schedule, offset: Bytes(if shifted == 1 { size } else { 0 }), elements })
}

impl Case {
    fn json(&self, fault: Option<String>) -> CaseJson {
        let call = &self.job.header.call;
        let has_schedule = match self.way {
            Way::Kernels(_) | Way::Copies => true,
            Way::Nvshmem(way) => way != nvshmem::Way::Collectives,
            Way::Nccl | Way::NcclSymmetric | Way::NcclForced(..) => false,
        };
        CaseJson {
            collective: call.collective.name(),
            algorithm: if has_schedule { self.algorithm.to_string() } else { String::new() },
            executor: self.way.name(),
            ranks: call.ranks,
            dtype: self.job.dtype.name(),
            op: format!("{:?}", self.job.op).to_lowercase(),
            elements: self.elements,
            offset: self.offset,
            in_place: call.buffers == BufferUse::InPlace,
            fault,
        }
    }
}
