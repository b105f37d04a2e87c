//! Advice on the settings of a library: ranges of message sizes in which the library's default is best, in which
//! another of its strategies is faster, and in which kernels that the library lacks are faster still.

use fabricast_collectives::algorithm::Algorithm;
use fabricast_collectives::strategy::Strategy;
use fabricast_libraries::{BufferRegistration, LibraryCapabilities};
use fabricast_sim::schedule::{Collective, Protocol};
use fabricast_topologies::Bytes;

use super::{PlanRequest, PlanRow, Preference, TimedStrategy, library_table};

/// Advice on the calls of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// Rows of the plan whose `pick` is the best strategy of the library: its default unless another of its strategies
    /// is faster by at least 1 % and beyond prediction uncertainty. The `pick` of rows for which no strategy of the
    /// library was simulated is unchanged.
    pub rows: Vec<PlanRow>,
    /// Ranges in which another strategy of the library is clearly faster than its default.
    pub changes: Vec<Improvement>,
    /// Ranges in which kernels that the library does not have are faster than its best strategy.
    pub other_kernels: Vec<Improvement>,
    /// Number of rows for which the library's default is unknown.
    pub unknown: usize,
}

/// A faster strategy for a range of message sizes of a collective.
#[derive(Clone, Debug, PartialEq)]
pub struct Improvement {
    /// Collective of the calls.
    pub collective: Collective,
    /// Smallest planned size.
    pub min: Bytes,
    /// Largest planned size.
    pub max: Bytes,
    /// Faster strategy at each planned size of the range.
    pub strategies: Vec<Strategy>,
    /// Gain at the planned size whose predicted gain is the median of the range.
    pub gain: Gain,
}

/// Gain of a strategy over another strategy: the other strategy's time divided by the strategy's time, minus one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gain {
    /// Gain by the predicted times, as a fraction.
    pub predicted: f64,
    /// Gain at the unfavourable ends of both prediction intervals; negative if the strategy may be slower.
    pub min: f64,
    /// Gain at the favourable ends of both prediction intervals.
    pub max: f64,
}

/// Smallest predicted gain for which a change is advised, as a fraction. Times of equal runs differ by about 1 %.
const MIN_GAIN: f64 = 0.01;

/// Software that must run for a strategy to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runner {
    /// The library, on buffers that are registered as symmetric windows.
    RegisteredWindows,
    /// The library, with a plugin for networks that reduce (NCCL_COLLNET_ENABLE=1).
    NetworkPlugin,
    /// Custom all_reduce kernels of inference engines: vLLM, SGLang, TensorRT-LLM.
    InferenceEngines,
    /// Generated kernels of fabricast (`gpu run`).
    GeneratedKernels,
}

impl Gain {
    fn new(other: &TimedStrategy, faster: &TimedStrategy) -> Self {
        let (other, faster) = (other.effective_time(), faster.effective_time());
        let gain = |slow: fabricast_topologies::Picos, fast: fabricast_topologies::Picos| {
            slow.0 as f64 / fast.0.max(1) as f64 - 1.0
        };
        Self {
            predicted: gain(other.time, faster.time),
            min: gain(other.low, faster.high),
            max: gain(other.high, faster.low),
        }
    }
}

/// A row's improvement, before neighbouring rows are merged.
struct RowImprovement {
    row: usize,
    collective: Collective,
    bytes: Bytes,
    strategy: Strategy,
    gain: Gain,
}

/// Returns the advice on a library for the rows of a plan that is not restricted to it.
#[must_use]
pub fn advise(request: &PlanRequest<'_>, capabilities: LibraryCapabilities, rows: &[PlanRow]) -> Advice {
    let entries = library_table(request, capabilities, rows);
    let mut advice = Advice { rows: Vec::new(), changes: Vec::new(), other_kernels: Vec::new(), unknown: 0 };
    let (mut changes, mut kernels) = (Vec::new(), Vec::new());
    let runs = |timed: &TimedStrategy, row: &PlanRow| {
        capabilities.runs(timed.strategy.algorithm, timed.strategy.protocol, row.collective)
    };
    for (number, (row, entry)) in rows.iter().zip(entries).enumerate() {
        let improvement = |strategy: Strategy, gain| RowImprovement {
            row: number,
            collective: row.collective,
            bytes: row.bytes,
            strategy,
            gain,
        };
        let Some(best) = entry else {
            advice.unknown += 1;
            advice.rows.push(row.clone());
            continue;
        };
        let default = row.library_default.as_ref().map(|default| default.timed);
        let best = match default {
            Some(default) if default.strategy != best.strategy => {
                let gain = Gain::new(&default, &best);
                let is_notable = gain.predicted >= MIN_GAIN;
                if is_notable {
                    changes.push(improvement(best.strategy, gain));
                }
                if is_notable { best } else { default }
            }
            Some(_) => best,
            None => {
                advice.unknown += 1;
                best
            }
        };
        let kernel_gain = Gain::new(&best, &row.fastest);
        if !runs(&row.fastest, row) && kernel_gain.predicted >= MIN_GAIN {
            kernels.push(improvement(row.fastest.strategy, kernel_gain));
        }
        let runner_up = row.library_pairs.iter().find(|pair| !pair.has_same_pair(&best)).copied();
        advice.rows.push(PlanRow { pick: best, runner_up, preference: Preference::Fastest, ..row.clone() });
    }
    advice.changes = merge(&changes);
    advice.other_kernels = merge(&kernels);
    advice
}

/// Merges neighbouring rows that have the same algorithm and protocol.
fn merge(rows: &[RowImprovement]) -> Vec<Improvement> {
    let pair = |row: &RowImprovement| (row.collective, row.strategy.algorithm, row.strategy.protocol);
    let ranges = rows.chunk_by(|a, b| a.row + 1 == b.row && pair(a) == pair(b));
    let improvement = |range: &[RowImprovement]| {
        let (first, last) = (range.first()?, range.last()?);
        let mut gains: Vec<Gain> = range.iter().map(|row| row.gain).collect();
        gains.sort_by(|a, b| a.predicted.total_cmp(&b.predicted));
        Some(Improvement {
            collective: first.collective,
            min: first.bytes,
            max: last.bytes,
            strategies: range.iter().map(|row| row.strategy).collect(),
            gain: *gains.get(gains.len() / 2)?,
        })
    };
    ranges.filter_map(improvement).collect()
}

impl Improvement {
    /// Algorithm of the faster strategies.
    #[must_use]
    pub fn algorithm(&self) -> Option<Algorithm> {
        self.strategies.first().map(|strategy| strategy.algorithm)
    }

    /// Protocol of the faster strategies.
    #[must_use]
    pub fn protocol(&self) -> Option<Protocol> {
        self.strategies.first().map(|strategy| strategy.protocol)
    }

    /// Software that runs the faster strategies, other than the library on plain buffers.
    #[must_use]
    pub fn runners(&self, capabilities: LibraryCapabilities) -> Vec<Runner> {
        let (Some(algorithm), Some(protocol)) = (self.algorithm(), self.protocol()) else { return Vec::new() };
        let registered = LibraryCapabilities::new(capabilities.library, BufferRegistration::Symmetric);
        // NCCL has these kernels, but does not use switches of a network by default. Generated kernels cannot use them.
        if matches!(algorithm, Algorithm::Nvls | Algorithm::CollnetChain)
            && registered.runs(algorithm, protocol, self.collective)
        {
            return vec![Runner::NetworkPlugin];
        }
        let mut runners = Vec::new();
        if registered.runs(algorithm, protocol, self.collective) {
            runners.push(Runner::RegisteredWindows);
        }
        let is_custom = matches!(algorithm, Algorithm::OneShot | Algorithm::TwoShot) && protocol == Protocol::Symmetric;
        if is_custom && self.collective == Collective::AllReduce {
            runners.push(Runner::InferenceEngines);
        }
        runners.push(Runner::GeneratedKernels);
        runners
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::candidates::Restriction;
    use crate::plan::{Effort, plan};
    use fabricast_libraries::{Chooser, Conditions, Library};
    use fabricast_sim::LaunchMode;
    use fabricast_sim::monitor::Monitor;
    use fabricast_sim::profile::Profile;
    use fabricast_sim::schedule::BufferUse;
    use fabricast_topologies::route::{RouteOptions, Router};
    use fabricast_topologies::{FabricRequest, load};

    /// Plans all_reduce, all_gather and broadcast of 1 KiB to 1 GiB on the first four GPUs of each host, with and without
    /// a restriction to NCCL, and passes both plans with the advice of the unrestricted one to `check`.
    fn with_plans(nodes: u32, check: impl Fn(&Advice, &[PlanRow], &[PlanRow], LibraryCapabilities)) {
        let network = (nodes > 1).then(|| "rail".parse().unwrap());
        let fabric = FabricRequest { gpus: Some(4), nodes: Some(nodes), network, ..FabricRequest::new("hgx-h200") };
        let fabric = load(&fabric).unwrap();
        let router = Router::new(&fabric, RouteOptions::default());
        let profile = Profile::named("nccl-2.28-h200").unwrap();
        let library: Library = "nccl-2.28.9".parse().unwrap();
        let chooser = Chooser::new(library, &fabric, &router, fabric.gpus(), Conditions::default());
        let sizes: Vec<Bytes> = (10..=30).step_by(2).map(|power| Bytes(1 << power)).collect();
        let capabilities = chooser.capabilities();
        let for_library = Restriction { library: Some(capabilities), ..Restriction::default() };
        let request = |restriction| PlanRequest {
            fabric: &fabric,
            router: &router,
            placement: fabric.gpus(),
            profile: &profile,
            ranks_per_node: 4,
            mode: LaunchMode { gpus_per_host: 4, ..LaunchMode::default() },
            buffers: BufferUse::OutOfPlace,
            root: 0,
            matrix: None,
            collectives: &[Collective::AllReduce, Collective::AllGather, Collective::Broadcast],
            sizes: &sizes,
            restriction,
            library: Some(&chooser),
            effort: Effort::Contenders,
        };
        let any = Restriction::default();
        let rows = plan(&request(&any), Monitor::default()).unwrap().rows;
        let restricted = plan(&request(&for_library), Monitor::default()).unwrap().rows;
        check(&advise(&request(&any), capabilities, &rows), &rows, &restricted, capabilities);
    }

    /// Advice departs from the library's default only if the gain is positive at the unfavourable ends of the
    /// intervals. Kernels that the library lacks are listed separately.
    #[test]
    fn advice_departs_from_the_library_only_for_a_certain_gain() {
        with_plans(1, |advice, rows, _, capabilities| {
            assert_eq!((advice.rows.len(), advice.unknown), (rows.len(), 0));
            let changed: usize = advice.changes.iter().map(|change| change.strategies.len()).sum();
            let departures = advice.rows.iter().zip(rows);
            let departures = departures.filter(|(best, row)| {
                row.library_default.as_ref().is_some_and(|default| default.timed.strategy != best.pick.strategy)
            });
            assert_eq!(changed, departures.count());
            for row in &advice.rows {
                assert!(capabilities.runs(row.pick.strategy.algorithm, row.pick.strategy.protocol, row.collective));
            }
            assert!(
                advice.changes.iter().all(|change| change.gain.predicted > 0.0 && change.gain.max > change.gain.min)
            );
            let small =
                advice.other_kernels.iter().find(|kernels| kernels.collective == Collective::AllReduce).unwrap();
            assert_eq!((small.min, small.protocol()), (Bytes(1024), Some(Protocol::Symmetric)));
            assert_eq!(
                small.runners(capabilities),
                [Runner::RegisteredWindows, Runner::InferenceEngines, Runner::GeneratedKernels]
            );
            assert!(advice.other_kernels.iter().all(|kernels| kernels.gain.predicted > 0.0));
        });
    }

    /// A plan over all software knows the best strategy of the library as well as a plan for the library alone, also
    /// where other kernels, or more channels than the library uses, are faster.
    #[test]
    fn advice_finds_what_a_plan_for_the_library_finds() {
        for nodes in [1, 4] {
            with_plans(nodes, |advice, _, restricted, _| {
                for (advised, row) in advice.rows.iter().zip(restricted) {
                    let (known, best) = (advised.library_pairs[0], row.pairs[0]);
                    assert_eq!(known, best, "{} {}", row.collective, row.bytes);
                }
            });
        }
    }
}
