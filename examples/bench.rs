//! Measures operations per second, wall time and peak memory of whole runs, for comparison with other simulators on one
//! machine.
//!
//! The table shows the median of 5 runs; an argument selects the cases whose names contain it:
//!
//! ```text
//! cargo run --release --example bench
//! cargo run --release --example bench -- ring
//! ```
//!
//! Each case runs in its own process (this program starts itself with the case's name). It does the work of `fabricast
//! simulate`, from reading the fabric to the lower bound, and reports its peak memory. Wall time is that of the whole
//! process.
#![allow(clippy::print_stdout, missing_docs)] // a program for people

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
use fabricast_collectives::bound::Bounds;
use fabricast_sim::engine::Watch;
use fabricast_sim::lower::Environment;
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule};
use fabricast_sim::verify::{VerifyOptions, verify};
use fabricast_sim::{Folding, LaunchMode, SimulationOptions, flows, simulate};
use fabricast_topologies::route::{Ecmp, RouteOptions, Router};
use fabricast_topologies::{Bytes, Fabric, FabricRequest, Picos, load};

/// Runs per case; the table shows the median.
const REPEATS: usize = 5;

/// Seed of the random delays and of the random permutation.
const SEED: u64 = 2026;

/// Benchmark case.
struct Case {
    name: &'static str,
    fabric: Network,
    traffic: Traffic,
}

#[derive(Clone, Copy)]
enum Network {
    /// GPUs on one switch, from a spec file.
    Switch(u32),
    /// Hosts of `hgx-h200` on a network.
    Hosts(u32, &'static str),
}

#[derive(Clone, Copy)]
enum Traffic {
    Collective {
        collective: Collective,
        algorithm: Algorithm,
        bytes: Bytes,
        folding: Folding,
        start: Start,
    },
    /// The collective on one channel, verified and then simulated without folding.
    Verified(Collective, Algorithm, Bytes),
    /// Random permutation: every GPU sends this many bytes to another one, over hashed equal-cost paths.
    Permutation(Bytes),
    /// Lower bounds of all collectives, without simulation.
    Bound,
}

/// Start times of ranks.
#[derive(Clone, Copy, PartialEq)]
enum Start {
    Together,
    /// Start times drawn uniformly from 0 to 1 ms.
    Skewed,
}

fn cases() -> Vec<Case> {
    let case = |name, fabric, traffic| Case { name, fabric, traffic };
    let ring = |folding, start| Traffic::Collective {
        collective: Collective::AllReduce,
        algorithm: Algorithm::Ring,
        bytes: Bytes(1 << 20),
        folding,
        start,
    };
    let (rails, tree) = ("rail", "fat_tree,tiers=3");
    let hierarchical = Traffic::Collective {
        collective: Collective::AllReduce,
        algorithm: Algorithm::Hierarchical,
        bytes: Bytes(1 << 30),
        folding: Folding::WhereProved,
        start: Start::Together,
    };
    let all_to_all = Traffic::Collective {
        collective: Collective::AllToAll,
        algorithm: Algorithm::Direct,
        bytes: Bytes(64 << 20),
        folding: Folding::Off,
        start: Start::Together,
    };
    let ring_of = |bytes| Traffic::Verified(Collective::AllReduce, Algorithm::Ring, Bytes(bytes));
    let all_to_all_of = |bytes| Traffic::Verified(Collective::AllToAll, Algorithm::Direct, Bytes(bytes));
    vec![
        case("verified-ring-224", Network::Switch(224), ring_of(1 << 20)),
        case("verified-all-to-all-316", Network::Switch(316), all_to_all_of(1 << 20)),
        case("bound-8", Network::Hosts(1, ""), Traffic::Bound),
        case("bound-1024-rail", Network::Hosts(128, "rail"), Traffic::Bound),
        case("ring-1024", Network::Switch(1024), ring(Folding::Off, Start::Together)),
        case("ring-4096", Network::Switch(4096), ring(Folding::Off, Start::Together)),
        case("ring-1024-skewed", Network::Switch(1024), ring(Folding::Off, Start::Skewed)),
        case("ring-1024-folded", Network::Switch(1024), ring(Folding::WhereProved, Start::Together)),
        case("ring-4096-folded", Network::Switch(4096), ring(Folding::WhereProved, Start::Together)),
        case("hierarchical-65536-folded", Network::Hosts(8192, rails), hierarchical),
        case("all-to-all-2048", Network::Hosts(256, rails), all_to_all),
        case("permutation-4096", Network::Hosts(512, tree), Traffic::Permutation(Bytes(64 << 20))),
    ]
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["--case", name, folder] => {
            let case = cases().into_iter().find(|case| case.name == *name).ok_or("no such case")?;
            let operations = case.run(Path::new(folder))?;
            println!("{operations} {}", peak_memory().unwrap_or(0));
            Ok(())
        }
        filters => table(filters),
    }
}

/// Runs the cases whose names contain one of `filters` (all, without filters) and prints a line for each.
fn table(filters: &[&str]) -> Result<(), Box<dyn Error>> {
    println!("{:<26} {:>11} {:>10} {:>12} {:>10}", "case", "operations", "wall", "operations/s", "memory");
    let folder = std::env::temp_dir().join(format!("fabricast-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    for case in cases() {
        if !filters.is_empty() && !filters.iter().any(|filter| case.name.contains(filter)) {
            continue;
        }
        case.write_input(&folder)?;
        let mut runs = (0..REPEATS).map(|_| measure(case.name, &folder)).collect::<Result<Vec<_>, _>>()?;
        runs.sort_unstable_by_key(|run| run.wall);
        let Measured { wall, operations, memory } = runs[REPEATS / 2];
        println!(
            "{:<26} {operations:>11} {:>8.1}ms {:>11.2}M {:>10}",
            case.name,
            wall.as_secs_f64() * 1e3,
            operations as f64 / wall.as_secs_f64() / 1e6,
            memory.map_or("unknown".to_owned(), |bytes| format!("{:.1} MB", bytes as f64 / 1e6)),
        );
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

/// Measured resources of a process.
#[derive(Clone, Copy)]
struct Measured {
    wall: Duration,
    operations: u64,
    /// Peak memory in bytes.
    memory: Option<u64>,
}

fn measure(name: &str, folder: &Path) -> Result<Measured, Box<dyn Error>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--case", name]).arg(folder).stderr(std::process::Stdio::inherit());
    let begun = Instant::now();
    let output = command.output()?;
    let wall = begun.elapsed();
    if !output.status.success() {
        return Err(format!("case {name} failed").into());
    }
    let text = String::from_utf8(output.stdout)?;
    let mut words = text.split_whitespace().map(str::parse::<u64>);
    match (words.next(), words.next()) {
        (Some(Ok(operations)), Some(Ok(memory))) => {
            Ok(Measured { wall, operations, memory: Some(memory).filter(|&bytes| bytes > 0) })
        }
        _ => Err(format!("case {name} said {text}").into()),
    }
}

/// Peak memory of this process in bytes, as Linux reports it.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

impl Case {
    /// Writes the input files of the case: the spec of a switch, the flows of a permutation.
    fn write_input(&self, folder: &Path) -> Result<(), Box<dyn Error>> {
        if let Network::Switch(gpus) = self.fabric {
            std::fs::write(spec_file(folder), switch_spec(gpus)?)?;
        }
        if let Traffic::Permutation(bytes) = self.traffic {
            std::fs::write(flow_file(folder), permutation(&self.load(folder)?, bytes)?)?;
        }
        Ok(())
    }

    fn load(&self, folder: &Path) -> Result<Fabric, Box<dyn Error>> {
        let request = match self.fabric {
            Network::Switch(_) => FabricRequest::new(&spec_file(folder).to_string_lossy()),
            Network::Hosts(nodes, network) => {
                let network = (nodes > 1).then(|| network.parse()).transpose()?;
                FabricRequest { nodes: Some(nodes), network, ..FabricRequest::new("hgx-h200") }
            }
        };
        Ok(load(&request)?)
    }

    /// Runs the case and returns its number of operations.
    fn run(&self, folder: &Path) -> Result<u64, Box<dyn Error>> {
        let fabric = self.load(folder)?;
        let profile = Profile::ideal();
        let placement = fabric.gpus();
        match self.traffic {
            Traffic::Permutation(_) => {
                let router =
                    Router::new(&fabric, RouteOptions { ecmp: Ecmp::Hashed { seed: SEED }, ..Default::default() });
                let given = flows::parse(&std::fs::read_to_string(flow_file(folder))?, "flows", &fabric)?;
                let setting =
                    Environment { fabric: &fabric, router: &router, placement, profile: &profile, delays: &[] };
                Ok(flows::simulate(&given, setting, Watch::default())?.ends.len() as u64)
            }
            Traffic::Bound => {
                let router = Router::new(&fabric, RouteOptions::default());
                let ranks = placement.len() as u32;
                let bounds = Bounds::new(&fabric, &router, placement, 0);
                let sized = Collective::ALL.into_iter().filter(|collective| collective.has_variable_size());
                let bound = |collective| {
                    let bytes = Bytes(1 << 30);
                    bounds.bound(&Call { collective, bytes, ranks, root: Rank(0), buffers: BufferUse::OutOfPlace })
                };
                Ok(sized.map(bound).filter(|bound| bound.time > Picos::ZERO).count() as u64)
            }
            Traffic::Verified(collective, algorithm, bytes) => {
                let router = Router::new(&fabric, RouteOptions::default());
                let ranks = placement.len() as u32;
                let call = Call { collective, bytes, ranks, root: Rank(0), buffers: BufferUse::OutOfPlace };
                let written = generator(algorithm, &Shape::new(call, Protocol::Simple))?;
                let schedule = Schedule::build(written.as_ref())?;
                verify(&schedule, &VerifyOptions::default()).map_err(|fault| fault.to_string())?;
                let setting =
                    Environment { fabric: &fabric, router: &router, placement, profile: &profile, delays: &[] };
                let surroundings = SimulationOptions { folding: Folding::Off, ..SimulationOptions::default() };
                Ok(simulate(&schedule, setting, LaunchMode::default(), surroundings, Watch::default())?.operations)
            }
            Traffic::Collective { collective, algorithm, bytes, folding, start } => {
                let router = Router::new(&fabric, RouteOptions::default());
                let ranks = placement.len() as u32;
                let call = Call { collective, bytes, ranks, root: Rank(0), buffers: BufferUse::OutOfPlace };
                let host = placement.first().map(|&gpu| fabric.node(gpu).host);
                let on_it = placement.iter().filter(|&&gpu| Some(fabric.node(gpu).host) == host);
                let ranks_per_node = on_it.count() as u32;
                let shape = Shape { ranks_per_node, ..Shape::new(call, Protocol::Simple) };
                let schedule = generator(algorithm, &shape)?;
                let delays: Vec<Picos> = match start {
                    Start::Together => Vec::new(),
                    Start::Skewed => (0..u64::from(ranks)).map(|r| Picos(random(r) % 1_000_000_000)).collect(),
                };
                let setting =
                    Environment { fabric: &fabric, router: &router, placement, profile: &profile, delays: &delays };
                let mode = LaunchMode { gpus_per_host: ranks_per_node, ..LaunchMode::default() };
                let surroundings = SimulationOptions { folding, ..SimulationOptions::default() };
                let timeline = simulate(schedule.as_ref(), setting, mode, surroundings, Watch::default())?;
                let bound = Bounds::new(&fabric, &router, placement, 0).bound(&call);
                if timeline.time < bound.time {
                    return Err(format!("{} is below its bound of {}", timeline.time, bound.time).into());
                }
                Ok(timeline.operations)
            }
        }
    }
}

fn spec_file(folder: &Path) -> PathBuf {
    folder.join("switch.toml")
}

fn flow_file(folder: &Path) -> PathBuf {
    folder.join("flows.csv")
}

/// Spec of GPUs on one switch, with links of 450 GB/s and 350 ns.
fn switch_spec(gpus: u32) -> Result<String, std::fmt::Error> {
    let mut text = String::from("name = \"switch\"\n[[node]]\nid = \"sw\"\nkind = \"nvswitch\"\n");
    for gpu in 0..gpus {
        write!(text, "[[node]]\nid = \"gpu{gpu}\"\nkind = \"gpu\"\n[[link]]\na = \"gpu{gpu}\"\nb = \"sw\"\n")?;
        text.push_str("kind = \"nvlink\"\nbandwidth = \"450 GB/s\"\nlatency = \"350 ns\"\n");
    }
    Ok(text)
}

/// Flows of a random permutation, in the format of `simulate --flows`.
fn permutation(fabric: &Fabric, bytes: Bytes) -> Result<String, std::fmt::Error> {
    let gpus = fabric.gpus();
    let mut targets = gpus.to_vec();
    // Sattolo's algorithm: a single cycle, so no GPU sends to itself.
    for i in (1..targets.len()).rev() {
        targets.swap(i, (random(i as u64) % i as u64) as usize);
    }
    let mut text = String::from("src,dst,bytes,start_us\n");
    for (&from, &to) in gpus.iter().zip(&targets) {
        writeln!(text, "{},{},{},0", fabric.node(from).id, fabric.node(to).id, bytes.0)?;
    }
    Ok(text)
}

/// SplitMix64 (Steele, Lea & Flood, OOPSLA 2014) at position `i` of its sequence.
fn random(i: u64) -> u64 {
    let mut z = (SEED + i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
