//! Template: a schedule that is lowered and folded once, then reused to simulate calls of other sizes, with more
//! channels or with other numbers of threads.
//!
//! If all chunks are equal, the size of a call determines only the chunk size. For programs that divide the data the
//! same way, routes, dependencies and equivalence classes of runs do not change. Costs that depend on the size are
//! identified by *tasks*: kind of operation and number of chunks moved. A task determines software time, spacing, the
//! load on its thread block and, if the operation leaves its host, the network latency and the load on its proxy. A
//! search therefore performs all other work once. For each size it runs the folded workload with other amounts or,
//! faster, computes the critical path ([`Template::lower_bound`]), which is a lower bound on every run. With more
//! thread blocks of the same program, the load on shared capacities is multiplied, and the load on each block's own
//! capacities is unchanged. A template of two loops also serves calls of more loops (`loops`).

mod amounts;
mod critical_path;
mod longest_chain;
mod loops;
mod outline;

use std::collections::BTreeMap;

use fabricast_topologies::Picos;

use crate::engine::{EngineError, PerOp, Watch, Workload};
use crate::fold;
use crate::lower::{
    self, Environment, Framing, Latency, LoweredWorkload, OperationCosts, PlaceholderRecovery, Resource,
    ScheduleInstance, SizelessLowering, Tasks, payload,
};
use crate::profile::Profile;
use crate::quantity::Work;
use crate::schedule::{ChunkSize, Header, Protocol, StoredPrograms};
use crate::sharing::{ResourceId, RouteId, System};
use crate::simulate_error::SimulateError;
use crate::timeline;
use amounts::{Amounts, Capacity, CapacityOwner, LoadKind, Route};
use critical_path::Chain;
pub use longest_chain::LongestChain;
use loops::{LoopAmounts, LoopOrder};
use outline::OutlineExtent;
pub use outline::{Fingerprint, Outline, OutlineSummary};

/// Maximum number of operations of a folded workload that is stored.
const MAX_OPERATIONS: u64 = 1 << 17;

/// Folded workload whose amounts can be replaced.
#[derive(Debug)]
pub struct Template {
    /// Number of chunks of one group.
    chunks: u32,
    /// Number of loop iterations of the program.
    rounds: u32,
    framing: Framing,
    /// Workload whose software times are task numbers, and whose latencies encode the number of crossings between
    /// hosts; without works and system.
    workload: Workload,
    tasks: Tasks,
    /// Number of the task of each passage of the workload.
    passage_tasks: Vec<u32>,
    /// Number of chunks of each entry of the workload's works; 0 if no data is moved.
    spans: Vec<u32>,
    capacities: Vec<Capacity>,
    routes: Vec<Route>,
    chain: Chain,
    extent: OutlineExtent,
    /// Order of the operations with respect to loops, which determines whether the template extends to more loops.
    loop_order: LoopOrder,
    /// State of the placeholders: recoverable from the costs, or not.
    codes: PlaceholderRecovery,
}

/// Result of running a template.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TemplateTime {
    /// Device time from the start of the call to its end.
    pub end: Picos,
    /// Part of the time spent on data transfer along the critical path, including contention and waiting.
    pub bytes: Picos,
    /// Capacity with the highest utilization (the first one if several are equal), and its utilization from 0 to 1;
    /// `None` if no capacity is used.
    pub busiest: Option<(Resource, f64)>,
}

/// Division of a call into loops and chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LoopSizes {
    /// Chunk size in all loops except the last.
    full: ChunkSize,
    /// Chunk size in the last loop.
    last: ChunkSize,
    loops: u32,
}

/// Groups of blocks of a schedule that are known to have a template's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EqualGroups {
    All,
    /// Only the first group is known to have the template's program.
    First,
}

impl Template {
    /// Lowers and folds a schedule with `rounds` loop iterations for one protocol. `None` if spans cannot be
    /// distinguished by size, if thread blocks share an SM, or if the workload is too large to retain.
    ///
    /// # Errors
    /// [`SimulateError::Lower`]: ranks without devices or paths.
    pub fn new(
        outline: &Outline,
        protocol: Protocol,
        rounds: u32,
        setting: Environment<'_>,
    ) -> Result<Option<Self>, SimulateError> {
        let header = &Header { protocol, ..outline.header.clone() };
        let classes = outline.classes.as_deref();
        let generator = &StoredPrograms { header, programs: &outline.programs, classes };
        if !Latency::is_separable(setting.fabric) {
            return Ok(None);
        }
        let party = ScheduleInstance::new(generator, setting);
        let Some(lowering) = lower::lower_for_any_size(party, classes)? else { return Ok(None) };
        let SizelessLowering { mut lowered, tasks, codes } = lowering;
        lowered.workload.background_from = lowered.workload.runs.len() as u32;
        let framing = Framing::new(setting.profile.protocol(header.protocol).wire_efficiency);
        let mut spans_by_work = BTreeMap::from([(Work(0), 0)]);
        for &span in &outline.spans {
            if spans_by_work.insert(framing.on_wire(payload(header, 0, span)), span).is_some() {
                return Ok(None);
            }
        }
        let spans: Option<Vec<u32>> =
            lowered.workload.works.iter().map(|work| spans_by_work.get(work).copied()).collect();
        let Some(spans) = spans else { return Ok(None) };
        let template = Self::folded(lowered, outline, tasks, spans, framing, rounds);
        Ok(template.map(|template| Self { codes, ..template }))
    }

    /// Returns true if [`Self::run`] gives the same result as [`crate::simulate`]. [`Self::lower_bound`] is valid in
    /// any case.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.extent == OutlineExtent::AllRanks && self.codes == PlaceholderRecovery::Recoverable
    }

    fn folded(
        lowered: LoweredWorkload,
        outline: &Outline,
        tasks: Tasks,
        spans: Vec<u32>,
        framing: Framing,
        rounds: u32,
    ) -> Option<Self> {
        let chunks = outline.known.print.chunks;
        let LoweredWorkload { workload: unfolded, resources, .. } = lowered;
        let folded = match outline.extent {
            OutlineExtent::AllRanks => fold::fold_with_classes(&unfolded, outline.known.colours.get()),
            OutlineExtent::LongestChain => None,
        };
        let folded = folded.map(|(folded, colours)| {
            outline.known.colours.get_or_init(|| colours);
            folded
        });
        let count = unfolded.system.resource_count();
        let classes: Vec<u32> = match &folded {
            Some(folded) => folded.resource_classes().to_vec(),
            None => (0..count as u32).collect(),
        };
        let class_count = classes.iter().max().map_or(0, |&last| last as usize + 1);
        let mut firsts: Vec<Option<usize>> = vec![None; class_count];
        for (id, (&class, resource)) in classes.iter().zip(&resources).enumerate() {
            let first = *firsts.get_mut(class as usize)?.get_or_insert(id);
            let is_crowded = matches!(resource, Resource::Processors(_));
            if is_crowded
                || CapacityOwner::from_resource(resources.get(first)?) != CapacityOwner::from_resource(resource)
            {
                return None;
            }
        }
        let mut capacities = Vec::with_capacity(class_count);
        let mut classes_by_first: Vec<Option<u32>> = vec![None; count];
        for (class, first) in (0..).zip(firsts) {
            let first = first?;
            *classes_by_first.get_mut(first)? = Some(class);
            let (resource, rate) = (*resources.get(first)?, unfolded.system.capacity(ResourceId(first as u32)));
            capacities.push(Capacity::new(resource, rate));
        }
        for run in &unfolded.runs {
            let PerOp::Same(work) = run.work else { return None };
            let span = *spans.get(work as usize)?;
            let (indexes, ops) = match (run.passage, run.pace) {
                (PerOp::Same(_), PerOp::Same(_)) => (0..run.len.min(1), run.len),
                _ => (0..run.len, 1),
            };
            for index in indexes {
                let task = unfolded.paces.get(run.pace.entry(index))?.software.0 as u32;
                let Some(route) = unfolded.passages.get(run.passage.entry(index)).route else { continue };
                for used in unfolded.system.uses(route) {
                    let Some(class) = classes_by_first[used.resource.0 as usize] else { continue };
                    let capacity = capacities.get_mut(class as usize)?;
                    let (kind, times) = LoadKind::decode(&capacity.resource, used.coefficient, task);
                    capacity.add_load(kind, span, ops, times);
                }
            }
        }
        let mut workload = match folded {
            Some(folded) => folded.workload,
            None => unfolded,
        };
        if workload.operation_count() > MAX_OPERATIONS || rounds == 0 || !chunks.is_multiple_of(rounds) {
            return None;
        }
        let mut passage_tasks: Vec<u32> = vec![0; workload.passages.len()];
        let mut route_tasks: Vec<u32> = vec![0; workload.system.route_count()];
        for (number, run) in (0..).zip(&workload.runs) {
            for index in 0..run.len {
                let task = workload.pace(number, index).software.0 as u32;
                *passage_tasks.get_mut(run.passage.entry(index))? = task;
                if let Some(route) = workload.passage(number, index).route {
                    *route_tasks.get_mut(route.0 as usize)? = task;
                }
            }
        }
        let routes = (0..).map(RouteId).zip(&route_tasks).map(|(route, &task)| {
            let uses = workload.system.uses(route).map(|used| {
                let resource = &capacities[used.resource.0 as usize].resource;
                let (kind, times) = LoadKind::decode(resource, used.coefficient, task);
                (used.resource, kind, times)
            });
            let (cap, weight) = workload.system.cap_and_weight(route);
            Route { uses: uses.collect(), cap, weight }
        });
        let routes = routes.collect();
        let chain = Chain::new(&workload)?;
        let loop_order = LoopOrder::find(outline, &workload, rounds);
        // Amounts and capacities are recomputed for each size.
        workload.system = System::new();
        workload.works = Vec::new();
        let (extent, codes) = (outline.extent, PlaceholderRecovery::default());
        Some(Self {
            chunks,
            rounds,
            framing,
            workload,
            tasks,
            passage_tasks,
            spans,
            capacities,
            routes,
            chain,
            extent,
            loop_order,
            codes,
        })
    }

    /// Returns the division of a schedule into loops if its groups have this program, regardless of the number of
    /// loops; `None` for other schedules.
    fn loop_sizes(&self, header: &Header, groups: u16) -> Option<LoopSizes> {
        let per_loop = (self.chunks / self.rounds).checked_mul(groups.into())?;
        let sizes = loop_sizes(header)?;
        let chunks = header.layout.chunks();
        let last = header.layout.segments().last()?.parts;
        let is_whole = chunks.is_multiple_of(per_loop) && (sizes.full == sizes.last || last == per_loop);
        is_whole.then_some(LoopSizes { loops: chunks / per_loop, ..sizes })
    }

    /// Returns true if a schedule's groups have this program, or repeat its loops more often, so that [`Self::run`]
    /// simulates the schedule.
    #[must_use]
    pub fn fits(&self, header: &Header, groups: u16) -> bool {
        self.loop_sizes(header, groups).is_some_and(|cut| self.extends_to(cut))
    }

    /// Returns true if a schedule has more loops than the template, or a last loop of smaller chunks, so that
    /// [`Self::run`] simulates more operations than the template has.
    #[must_use]
    pub fn is_prolonged_for(&self, header: &Header, groups: u16) -> bool {
        self.loop_sizes(header, groups).is_some_and(|cut| cut.loops > self.rounds || cut.full != cut.last)
    }

    fn extends_to(&self, cut: LoopSizes) -> bool {
        match self.loop_order {
            LoopOrder::Repeated => cut.loops >= self.rounds,
            LoopOrder::Other => cut.loops == self.rounds && cut.full == cut.last,
        }
    }

    /// Lower bound on the device time of a schedule whose groups have this program, regardless of the number of loops.
    /// It is the maximum of three lower bounds: the critical path of the first loops, in which each operation shares
    /// capacities only with equivalent operations; the load on each capacity in all loops, between the shortest path to
    /// a transfer that passes the capacity and the shortest one after such a transfer; and sequences of messages in all
    /// loops.
    ///
    /// A template of one loop applies to schedules of one loop, a template of two loops to those with two or more.
    /// `None` if no bound is known.
    #[must_use]
    pub fn lower_bound(&self, header: &Header, groups: u16, profile: &Profile) -> Option<Picos> {
        self.group_lower_bound(header, groups, EqualGroups::All, profile)
    }

    /// Lower bound on the device time of a schedule if only the first of its `groups` groups is known to have this
    /// program. The other groups only add load. In all other respects the bound is that of [`Self::lower_bound`].
    #[must_use]
    pub fn first_group_lower_bound(&self, header: &Header, groups: u16, profile: &Profile) -> Option<Picos> {
        self.group_lower_bound(header, groups, EqualGroups::First, profile)
    }

    fn group_lower_bound(
        &self,
        header: &Header,
        groups: u16,
        equal_groups: EqualGroups,
        profile: &Profile,
    ) -> Option<Picos> {
        let cut = self.loop_sizes(header, groups)?;
        if cut.loops < self.rounds || (self.rounds == 1 && cut.loops > 1) {
            return None;
        }
        let equal_groups = match equal_groups {
            EqualGroups::All => groups,
            EqualGroups::First => 1,
        };
        let operation_costs = OperationCosts::new(profile, header);
        let full = self.amounts(&operation_costs, cut.full, cut.loops, equal_groups);
        // Chunks of the last loop may be smaller. The critical path is that of the first loops.
        let last = (cut.full != cut.last).then(|| self.amounts(&operation_costs, cut.last, cut.loops, equal_groups));
        let lowest = self.chain.costs(self, &full, last.as_ref());
        let of_first_loops = (last.is_some() && cut.loops > self.rounds).then(|| self.chain.costs(self, &full, None));
        let path_costs = of_first_loops.as_ref().unwrap_or(&lowest);
        let times = self.chain.times(self, path_costs, operation_costs.startup(), cut.loops);
        let tails = self.chain.tails(self, &lowest);
        let is_repeated = self.extends_to(cut);
        let passed =
            self.capacities.iter().zip(times.first_flows.iter().zip(&tails)).map(|(capacity, (&first, &tail))| {
                let in_all = |amounts: &Amounts| match is_repeated {
                    true => self.passing(capacity, amounts),
                    false => self.min_passing(capacity, amounts),
                };
                let passing = |amounts: &Amounts| in_all(amounts).0 / u128::from(self.rounds);
                let all = passing(&full) * u128::from(cut.loops - 1) + passing(last.as_ref().unwrap_or(&full));
                let needed = u64::try_from(all / u128::from(capacity.rate.0.max(1))).unwrap_or(u64::MAX);
                if all == 0 { Picos::ZERO } else { Picos(first.0.saturating_add(needed).saturating_add(tail.0)) }
            });
        Some(passed.max().unwrap_or_default().max(times.end))
    }

    /// Device time of a schedule that has this program, as [`crate::simulate`] predicts it.
    ///
    /// # Errors
    /// [`EngineError`]: a deadlock, an interrupt, or an end time out of range.
    pub fn run(
        &self,
        header: &Header,
        groups: u16,
        profile: &Profile,
        watch: Watch<'_>,
    ) -> Result<TemplateTime, EngineError> {
        let operation_costs = OperationCosts::new(profile, header);
        let size = header.layout.size(0);
        let same = LoopSizes { full: size, last: size, loops: self.rounds };
        let cut = self.loop_sizes(header, groups).filter(|&cut| self.extends_to(cut)).unwrap_or(same);
        let amounts = LoopAmounts::new(cut, |size| self.amounts(&operation_costs, size, cut.loops, groups));
        let mut workload = self.workload(&amounts, operation_costs.startup());
        // With the amounts of this call, fewer capacities may limit a transfer. In a few operations, that saves less
        // than another refinement needs.
        let folded = if cut.loops > self.rounds {
            workload.remove_idle_capacities();
            fold::fold(&workload)
        } else {
            None
        };
        let outcome = timeline::run(&workload, folded.as_ref(), watch)?.outcome;
        let (end, bytes) = (outcome.end, outcome.costs.bandwidth + outcome.costs.waiting);
        let mut busiest: Option<(Resource, f64)> = None;
        // Classes are numbered in the order of their first members.
        for capacity in &self.capacities {
            let capacity_work = Work::passed(capacity.rate, end);
            let passed = self.passing_in_loops(capacity, &amounts);
            // Channels whose blocks make no passes have no capacity.
            if passed.0 == 0 {
                continue;
            }
            let fraction = if capacity_work.0 == 0 { 0.0 } else { passed.0 as f64 / capacity_work.0 as f64 };
            if busiest.is_none_or(|(_, max_fraction)| fraction > max_fraction) {
                busiest = Some((capacity.resource, fraction));
            }
        }
        Ok(TemplateTime { end, bytes, busiest })
    }
}

/// Returns the chunk sizes of a layout, either as one loop or as full loops and a last loop; `None` if chunk sizes
/// differ in another way.
fn loop_sizes(header: &Header) -> Option<LoopSizes> {
    let layout = &header.layout;
    let is_zero = layout.bytes().0 == 0;
    match layout.segments() {
        _ if is_zero => None,
        // An all_to_allv with equal blocks has one segment per block.
        _ if layout.is_even() => Some(LoopSizes { full: layout.size(0), last: layout.size(0), loops: 1 }),
        [_, _] => Some(LoopSizes { full: layout.size(0), last: layout.size(layout.segment_start(1)), loops: 1 }),
        _ => None,
    }
}
