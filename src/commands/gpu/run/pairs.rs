//! `gpu run --pairs`: correctness test with pairwise coverage of the parameters of calls.

mod testbed;

use std::time::Instant;

use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
use fabricast_collectives::strategy::Strategy;
use fabricast_reports::table::{Column, Table, Unit, Value};
use fabricast_sim::schedule::{
    BufferUse, Call, Collective, DataType, Protocol, Rank, ReduceOp, Schedule, TrafficMatrix,
};
use fabricast_topologies::Bytes;
use fabricast_validate::cuda::Driver;
use fabricast_validate::execute::nvshmem;
use fabricast_validate::execute::{ExecuteError, Job, Testbed, pairwise_cases};
use fabricast_validate::kernel::{Carrier, Devices};
use fabricast_validate::nccl::Nccl;
use fabricast_validate::nvshmem::Nvshmem;
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::{ExecutorChoice, GpuRunArgs};
use crate::document::Document;
use crate::failure::Failure;
use crate::output::Output;
use crate::output_format::Format;
use crate::setup;
use testbed::PairsTestbed;

/// Executor of a call with its settings, such as a message format or a forced strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExecutorVariant {
    Kernels(Carrier),
    Copies,
    Nccl,
    NcclSymmetric,
    NcclForced(Algorithm, Protocol),
    Nvshmem(nvshmem::NvshmemMethod),
}

const VARIANTS: [ExecutorVariant; 13] = [
    ExecutorVariant::Kernels(Carrier::Packets),
    ExecutorVariant::Kernels(Carrier::Lines),
    ExecutorVariant::Kernels(Carrier::Flags),
    ExecutorVariant::Copies,
    ExecutorVariant::Nccl,
    ExecutorVariant::NcclSymmetric,
    ExecutorVariant::NcclForced(Algorithm::Ring, Protocol::Ll),
    ExecutorVariant::NcclForced(Algorithm::Ring, Protocol::Simple),
    ExecutorVariant::NcclForced(Algorithm::Tree, Protocol::Ll128),
    ExecutorVariant::Nvshmem(nvshmem::NvshmemMethod::Collectives),
    ExecutorVariant::Nvshmem(nvshmem::NvshmemMethod::Puts),
    ExecutorVariant::Nvshmem(nvshmem::NvshmemMethod::Heap),
    ExecutorVariant::Nvshmem(nvshmem::NvshmemMethod::Device),
];

impl ExecutorVariant {
    /// Executor that runs the variant.
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

    /// Strategy that NCCL is forced to run; `None` for other executors.
    fn strategy(self) -> Option<Strategy> {
        let Self::NcclForced(algorithm, protocol) = self else { return None };
        Some(Strategy::new(algorithm, protocol, 2))
    }

    /// Name of the variant, such as `kernels flags` or `nccl-forced ring ll`.
    fn name(self) -> String {
        match self {
            Self::Kernels(carrier) => format!("kernels {}", carrier.name()),
            Self::NcclForced(algorithm, protocol) => format!("nccl-forced {algorithm} {protocol}"),
            Self::Nvshmem(method) => format!("nvshmem {}", method.name()),
            Self::Copies | Self::Nccl | Self::NcclSymmetric => self.executor().to_string(),
        }
    }
}

/// Returns the requested variants. If none are requested, returns all variants whose libraries this machine has.
fn requested_variants(args: &GpuRunArgs, output: &Output) -> Result<Vec<ExecutorVariant>, ExecuteError> {
    let requested = &args.execution.executor;
    let mut variants: Vec<ExecutorVariant> = VARIANTS
        .into_iter()
        .filter(|variant| requested.is_empty() || requested.contains(&variant.executor()))
        .collect();
    let nccl_executors = [ExecutorChoice::Nccl, ExecutorChoice::NcclSymmetric, ExecutorChoice::NcclForced];
    let mut exclude = |executors: &[ExecutorChoice], error: ExecuteError| {
        if !requested.is_empty() {
            return Err(error);
        }
        output.warn(&format!("skipped: {error}"));
        variants.retain(|variant| !executors.contains(&variant.executor()));
        Ok(())
    };
    let wants = |executors: &[ExecutorChoice]| {
        requested.is_empty() || executors.iter().any(|executor| requested.contains(executor))
    };
    if let (true, Err(error)) = (wants(&nccl_executors), Nccl::open(args.execution.nccl.as_deref())) {
        exclude(&nccl_executors, error.into())?;
    }
    let nvshmem_executors = [ExecutorChoice::Nvshmem];
    if let (true, Err(error)) = (wants(&nvshmem_executors), Nvshmem::open(args.execution.nvshmem.as_deref())) {
        exclude(&nvshmem_executors, error.into())?;
    }
    Ok(variants)
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

/// Numbers of ranks to test, each rank with its own GPU.
const RANKS: [u32; 4] = [2, 3, 4, 8];

/// Test case: a call and its executor.
#[derive(Clone, Debug)]
struct ExecutorCase {
    variant: ExecutorVariant,
    algorithm: Algorithm,
    job: Job,
    schedule: Schedule,
    offset: Bytes,
    elements: u64,
}

/// Test case: a call and its executor, with the result.
#[derive(Serialize, JsonSchema)]
struct CaseJson {
    /// The collective, as nccl-tests names it.
    collective: &'static str,
    /// Algorithm of the schedule; empty if the executor has none.
    algorithm: String,
    /// Executor with its variant.
    executor: String,
    /// Number of ranks.
    ranks: u32,
    /// Element type.
    dtype: &'static str,
    /// Reduction operation of the call.
    op: String,
    /// Number of elements of the call, or of a rank's block.
    elements: u64,
    /// Offset of the buffers from their alignment, in bytes.
    offset: Bytes,
    /// True if input and output share a buffer.
    in_place: bool,
    /// Error of the case; absent if the result is correct.
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
}

/// JSON of `gpu run --pairs`.
#[derive(Serialize, JsonSchema)]
pub struct PairsJson {
    /// Number of GPUs.
    gpus: usize,
    /// Number of cases.
    cases: usize,
    /// Number of cases with wrong results.
    wrong: usize,
    /// Number of calls that NVSHMEM lacks for the type or reduction.
    unsupported: usize,
    /// Duration of the test, in seconds.
    seconds: f64,
    /// Cases, in the order in which they ran.
    rows: Vec<CaseJson>,
}

pub(super) fn run(args: &GpuRunArgs, output: &Output) -> Result<(), Failure> {
    let started = Instant::now();
    let fabric = setup::fabric(&args.fabric.fabric, &args.fabric.size, &args.what_if, output)?;
    let gpus = fabric.gpus().len();
    let driver = Driver::load().map_err(ExecuteError::from)?;
    let ranks_per_gpu = args.fabric.ranks_per_gpu;
    if ranks_per_gpu < 2 && gpus > driver.device_count() {
        return Err(ExecuteError::TooFewGpus { ranks: gpus as u32, gpus: driver.device_count() }.into());
    }
    let (devices, counts) = match ranks_per_gpu {
        0 | 1 => (Devices::Own, RANKS.into_iter().filter(|&ranks| ranks as usize <= gpus).collect()),
        ranks => (Devices::Shared, vec![ranks]),
    };
    if counts.is_empty() {
        return Err(Failure::input("one GPU has several ranks by --ranks-per-gpu only"));
    }
    let variants = requested_variants(args, output)?;
    let levels = [
        COLLECTIVES.len(),
        variants.len(),
        DataType::ALL.len(),
        ReduceOp::ALL.len(),
        ELEMENTS.len(),
        2,
        2,
        counts.len(),
    ];
    let cases = pairwise_cases(&levels, &|case| is_allowed(case, &variants, devices));
    let cases: Vec<ExecutorCase> =
        cases.iter().zip(0..).filter_map(|(case, number)| build_case(case, number, &variants, &counts)).collect();
    let mut unsupported = 0;
    let mut rows: Vec<CaseJson> = Vec::new();
    for &ranks in &counts {
        let selected: Vec<&ExecutorCase> = cases.iter().filter(|case| case.job.header.call.ranks == ranks).collect();
        let contexts = Testbed::new(driver, ranks, devices)?;
        let mut testbed = PairsTestbed::new(contexts, args, &selected)?;
        testbed.compile(&selected)?;
        for case in selected {
            let fault = match testbed.run(case) {
                Ok(()) => None,
                Err(ExecuteError::Unsupported { .. }) if matches!(case.variant, ExecutorVariant::Nvshmem(_)) => {
                    unsupported += 1;
                    continue;
                }
                Err(
                    error @ (ExecuteError::Wrong { .. } | ExecuteError::Kernel(_) | ExecuteError::Unsupported { .. }),
                ) => {
                    let call = case.job.header.call.collective;
                    output.warn(&format!("{call} by {}, {}: {error}", case.variant.name(), case.algorithm));
                    Some(error.to_string())
                }
                Err(error) => return Err(error.into()),
            };
            rows.push(case.json(fault));
        }
    }
    let wrong = rows.iter().filter(|row| row.fault.is_some()).count();
    let results =
        PairsJson { gpus, cases: rows.len(), wrong, unsupported, seconds: started.elapsed().as_secs_f64(), rows };
    match output.format {
        Format::Json => output.write_json(&Document::Pairs.with(&results))?,
        Format::Csv => output.write(&crate::commands::csv(&table(&results))?)?,
        Format::Text => output.write(&table(&results).text(&output.text_options()))?,
    }
    if wrong > 0 { Err(Failure::Failed(format!("{wrong} of {} cases are wrong", results.cases))) } else { Ok(()) }
}

fn table(results: &PairsJson) -> Table {
    let keys =
        ["collective", "algorithm", "executor", "ranks", "dtype", "op", "elements", "offset", "in_place", "fault"];
    let mut table = Table::new(keys.iter().map(|key| Column::new(key, key, Unit::Text)).collect());
    for row in &results.rows {
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
    table.note(format!("{} cases, {} wrong, {:.1} s", results.cases, results.wrong, results.seconds));
    if results.unsupported > 0 {
        table.note(format!("{} more calls, which NVSHMEM does not support", results.unsupported));
    }
    table
}

fn reduces(collective: Collective) -> bool {
    matches!(collective, Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce)
}

fn is_allowed(case: &[usize], variants: &[ExecutorVariant], devices: Devices) -> bool {
    let &[collective, variant, _, op, _, _, buffer_use, _] = case else { return false };
    let (Some(&collective), Some(&variant)) = (COLLECTIVES.get(collective), variants.get(variant)) else {
        return false;
    };
    let is_exchange = matches!(collective, Collective::AllToAll | Collective::AllToAllV | Collective::SendRecv);
    let in_place = buffer_use == 1;
    if (in_place && is_exchange) || (op > 0 && !reduces(collective)) {
        return false;
    }
    match variant {
        ExecutorVariant::Kernels(_) => true,
        _ if devices == Devices::Shared => false,
        ExecutorVariant::Copies => !reduces(collective) && collective != Collective::Broadcast && !in_place,
        ExecutorVariant::Nccl | ExecutorVariant::NcclSymmetric => collective != Collective::AllToAllV,
        // NCCL 2.28 runs trees for all_reduce only, and sends and receives cannot be forced (src/graph/tuning.cc).
        ExecutorVariant::NcclForced(Algorithm::Tree, _) => collective == Collective::AllReduce,
        ExecutorVariant::NcclForced(..) => {
            reduces(collective) || matches!(collective, Collective::AllGather | Collective::Broadcast)
        }
        ExecutorVariant::Nvshmem(_) => true,
    }
}

fn build_case(case: &[usize], number: usize, variants: &[ExecutorVariant], counts: &[u32]) -> Option<ExecutorCase> {
    let &[collective, variant, dtype, op, elements, shifted, buffer_use, ranks] = case else { return None };
    let (collective, variant, dtype) =
        (*COLLECTIVES.get(collective)?, *variants.get(variant)?, *DataType::ALL.get(dtype)?);
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
    let is_rooted =
        matches!(collective, Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter);
    let call = Call {
        collective,
        bytes,
        ranks,
        root: Rank(if is_rooted { number as u32 % ranks } else { 0 }),
        buffers: if buffer_use == 1 { BufferUse::InPlace } else { BufferUse::OutOfPlace },
    };
    let matrix = match collective {
        Collective::AllToAllV => TrafficMatrix::even(ranks, bytes).ok(),
        _ => None,
    };
    let channels = 1 + (number % 3) as u16;
    let shape = Shape { channels, ranks_per_node: ranks, matrix, ..Shape::new(call, Protocol::Symmetric) };
    // Copy engines run schedules with a single step; for the other executors, test cases rotate through all algorithms.
    let mut algorithms: Vec<Algorithm> = match variant {
        ExecutorVariant::Copies => vec![Algorithm::Direct],
        // Kernels cannot run reduction in the switches of a network.
        _ => Algorithm::ALL
            .into_iter()
            .filter(|&algorithm| algorithm.supports(collective) && !algorithm.needs_network_reduction())
            .collect(),
    };
    let rotation = number % algorithms.len().max(1);
    algorithms.rotate_left(rotation);
    let selected = algorithms.into_iter().find_map(|algorithm| {
        let schedule_generator = generator(algorithm, &shape).ok()?;
        Some((algorithm, Schedule::build(schedule_generator.as_ref()).ok()?))
    });
    let (algorithm, schedule) = selected?;
    let job = Job { header: schedule.header().clone(), dtype, op };
    Some(ExecutorCase {
        variant,
        algorithm,
        job,
        schedule,
        offset: Bytes(if shifted == 1 { size } else { 0 }),
        elements,
    })
}

impl ExecutorCase {
    fn json(&self, fault: Option<String>) -> CaseJson {
        let call = &self.job.header.call;
        let has_schedule = match self.variant {
            ExecutorVariant::Kernels(_) | ExecutorVariant::Copies => true,
            ExecutorVariant::Nvshmem(method) => method != nvshmem::NvshmemMethod::Collectives,
            ExecutorVariant::Nccl | ExecutorVariant::NcclSymmetric | ExecutorVariant::NcclForced(..) => false,
        };
        CaseJson {
            collective: call.collective.name(),
            algorithm: if has_schedule { self.algorithm.to_string() } else { String::new() },
            executor: self.variant.name(),
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
