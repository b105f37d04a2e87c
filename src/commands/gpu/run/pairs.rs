//! `gpu run --pairs`: whether results are right, over every pair of what a call may be.

use std::time::{Duration, Instant};

use fabricast_planner::algorithm::{Algorithm, Shape, generator};
use fabricast_reports::table::{Column, Table, Unit, Value};
use fabricast_sim::schedule::{BufferUse, Call, Collective, DataType, Matrix, Protocol, Rank, ReduceOp, Schedule};
use fabricast_topologies::Bytes;
use fabricast_validate::cuda::{Driver, Watchdog};
use fabricast_validate::execute::{
    Buffers, Calls, Choice, Copies, ExecuteError, Executor, Generated, Job, Library, Stage, Wanted, check, covering,
};
use fabricast_validate::kernel::{Carrier, Devices, Kernel};
use fabricast_validate::nccl::Nccl;
use rayon::prelude::*;
use serde::Serialize;

use crate::args::GpuRunArgs;
use crate::failure::Failure;
use crate::output::{Format, Output};

/// What runs a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Kernels(Carrier),
    Copies,
    Nccl,
    NcclSymmetric,
}

const WAYS: [Way; 6] = [
    Way::Kernels(Carrier::Packets),
    Way::Kernels(Carrier::Lines),
    Way::Kernels(Carrier::Flags),
    Way::Copies,
    Way::Nccl,
    Way::NcclSymmetric,
];

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

/// Elements of a call, or of a rank's block where the collective has blocks.
const ELEMENTS: [u64; 5] = [1, 3, 1_001, 16_411, 262_147];

/// Numbers of ranks that have a GPU each.
const RANKS: [u32; 4] = [2, 3, 4, 8];

/// A call and who runs it.
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
    seconds: f64,
    rows: Vec<CaseJson>,
}

pub(super) fn run(args: &GpuRunArgs, output: &Output) -> Result<(), Failure> {
    let begun = Instant::now();
    let driver = Driver::load().map_err(ExecuteError::from)?;
    let gpus = driver.device_count();
    let shared = args.fabric.ranks_per_gpu;
    let (devices, counts) = match shared {
        0 | 1 => (Devices::Own, RANKS.into_iter().filter(|&ranks| ranks as usize <= gpus).collect()),
        ranks => (Devices::Shared, vec![ranks]),
    };
    if counts.is_empty() {
        return Err(Failure::input("one GPU has several ranks by --ranks-per-gpu only"));
    }
    let levels =
        [COLLECTIVES.len(), WAYS.len(), DataType::ALL.len(), ReduceOp::ALL.len(), ELEMENTS.len(), 2, 2, counts.len()];
    let cases = covering(&levels, &|case| is_allowed(case, devices));
    let cases: Vec<Case> = cases.iter().zip(0..).filter_map(|(case, number)| case_of(case, number, &counts)).collect();
    let mut rows: Vec<CaseJson> = Vec::new();
    for &ranks in &counts {
        let mine: Vec<&Case> = cases.iter().filter(|case| case.job.header.call.ranks == ranks).collect();
        let stage = Stage::new(driver, ranks, devices)?;
        let house = House::new(stage, args, &mine)?;
        // Code of all, on all cores.
        mine.par_iter().try_for_each(|case| house.compile(case))?;
        for case in mine {
            let fault = match house.perform(case) {
                Ok(()) => None,
                Err(
                    error @ (ExecuteError::Wrong { .. } | ExecuteError::Kernel(_) | ExecuteError::Unsupported { .. }),
                ) => {
                    output.warn(&format!("{} by {}: {error}", case.job.header.call.collective, case.algorithm));
                    Some(error.to_string())
                }
                Err(error) => return Err(error.into()),
            };
            rows.push(case.json(fault));
        }
    }
    let wrong = rows.iter().filter(|row| row.fault.is_some()).count();
    let all = PairsJson { gpus, cases: rows.len(), wrong, seconds: begun.elapsed().as_secs_f64(), rows };
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
    table
}

fn reduces(collective: Collective) -> bool {
    matches!(collective, Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce)
}

fn is_allowed(case: &[usize], devices: Devices) -> bool {
    let &[collective, way, _, op, _, _, place, _] = case else { return false };
    let (Some(&collective), Some(&way)) = (COLLECTIVES.get(collective), WAYS.get(way)) else { return false };
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
    }
}

fn case_of(case: &[usize], number: usize, counts: &[u32]) -> Option<Case> {
    let &[collective, way, dtype, op, elements, shifted, place, ranks] = case else { return None };
    let (collective, way, dtype) = (*COLLECTIVES.get(collective)?, *WAYS.get(way)?, *DataType::ALL.get(dtype)?);
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
    // Copy engines take what is one step; of the others every algorithm has its turn.
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
        let (algorithm, executor) = match self.way {
            Way::Kernels(carrier) => (self.algorithm.to_string(), format!("kernels {}", carrier.name())),
            Way::Copies => (self.algorithm.to_string(), "copies".to_owned()),
            Way::Nccl => (String::new(), "nccl".to_owned()),
            Way::NcclSymmetric => (String::new(), "nccl-symmetric".to_owned()),
        };
        CaseJson {
            collective: call.collective.name(),
            algorithm,
            executor,
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

/// Where cases of one number of ranks run.
struct House {
    stage: Stage,
    buffers: Buffers,
    watchdog: Watchdog,
    patience: Duration,
    own: Option<Library>,
    windows: Option<(Buffers, Library)>,
}

impl House {
    fn new(stage: Stage, args: &GpuRunArgs, cases: &[&Case]) -> Result<Self, ExecuteError> {
        let watchdog = Watchdog::new(Duration::from_secs(args.execution.patience));
        let most = cases.iter().map(|case| case.job.header.layout.bytes()).max().unwrap_or_default();
        let buffers = Buffers::new(&stage, most, Bytes(0))?;
        let wants = |way| cases.iter().any(|case| case.way == way);
        let (mut own, mut windows) = (None, None);
        if wants(Way::Nccl) || wants(Way::NcclSymmetric) {
            let nccl = Nccl::open(args.execution.nccl.as_deref())?;
            own = Some(Library::new(&stage, &nccl, Choice::Own, &watchdog)?);
            let memory = Buffers::for_windows(&stage, &nccl, most, Bytes(0))?;
            let library = Library::new(&stage, &nccl, Choice::Windows(&memory), &watchdog)?;
            windows = Some((memory, library));
        }
        let patience = Duration::from_secs(args.execution.patience) / 4;
        Ok(Self { stage, buffers, watchdog, patience, own, windows })
    }

    fn wanted(&self) -> Wanted {
        Wanted { shape: None, calls: Calls::Overlap, patience: self.patience }
    }

    fn compile(&self, case: &Case) -> Result<(), ExecuteError> {
        let Way::Kernels(carrier) = case.way else { return Ok(()) };
        let Ok(kernel) = Kernel::new(&case.schedule, case.job.dtype, carrier) else { return Ok(()) };
        let buffers = self.buffers.beginning(case.offset);
        Generated::compile_ahead(&self.stage, &buffers, &case.job, &kernel, self.wanted())
    }

    fn perform(&self, case: &Case) -> Result<(), ExecuteError> {
        let job = &case.job;
        let buffers = self.buffers.beginning(case.offset);
        let checked = |buffers: &Buffers, executor: &dyn Executor| {
            check(&self.stage, buffers, job, executor, &self.watchdog, &[1, 3], case.elements)
        };
        match case.way {
            Way::Kernels(carrier) => {
                let kernel = Kernel::new(&case.schedule, job.dtype, carrier)?;
                checked(&buffers, &Generated::new(&self.stage, &buffers, job, kernel, self.wanted())?)
            }
            Way::Copies => {
                let kernel = Kernel::new(&case.schedule, job.dtype, Carrier::Flags)?;
                checked(&buffers, &Copies::new(&self.stage, &buffers, job, &kernel)?)
            }
            Way::Nccl => match &self.own {
                Some(library) => checked(&buffers, &library.of(&buffers, job)?),
                None => Ok(()),
            },
            Way::NcclSymmetric => match &self.windows {
                Some((memory, library)) => {
                    let memory = memory.beginning(case.offset);
                    checked(&memory, &library.of(&memory, job)?)
                }
                None => Ok(()),
            },
        }
    }
}
