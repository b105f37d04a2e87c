//! A schedule lowered and folded once, to be timed for calls of other sizes, on more channels, with other threads.
//!
//! Where all chunks are equal, the size of a call says how large they are and nothing else of a program that is cut the
//! same way: routes, what waits for what, and which runs are alike stay. What depends on the size is told by *tasks*: what an
//! operation does and how many chunks it moves say its software time, the spacing behind it and what it takes of its block.
//! So a search works the rest out once; each size is a run of the folded workload with other amounts, or, quicker, its
//! longest chain (`least`), which no run can beat. On more thread blocks that do what the first does, capacities that all
//! share carry so many times as much, and each block's own carry the same.

mod chain;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use fabricast_topologies::{LinkKind, Picos};

use crate::engine::{self, EngineError, Pace, Passage, Passages, PerOp, Watch, Workload};
use crate::fold::{self, Colours, Signature};
use crate::lower::{self, Effort, Framing, Lowered, Party, Resource, Setting, Tasks, payload, sized_by};
use crate::profile::{NetworkCosts, Profile};
use crate::quantity::{Rate, Work};
use crate::schedule::{ChunkSize, Generate, Header, Program, Protocol, Rank};
use crate::sharing::{ResourceId, RouteId, System, Use, WHOLE};
use crate::timeline::{SimulateError, one_block};
use chain::Chain;

/// Longer folded workloads are not kept.
const MOST_OPERATIONS: u64 = 1 << 17;

/// What a template is good for: all schedules whose blocks have this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    program: Signature,
    /// Blocks of the schedule at hand.
    blocks: u16,
    /// Chunks of one block.
    chunks: u32,
}

/// A folded workload whose amounts may be changed.
#[derive(Debug)]
pub struct Template {
    /// Chunks of one block.
    chunks: u32,
    /// How often its program makes its loop.
    rounds: u32,
    framing: Framing,
    /// Numbers of tasks in place of software times.
    workload: Workload,
    tasks: Tasks,
    /// Chunks that each entry of the workload's works is as large as; 0 where nothing moves.
    spans: Vec<u32>,
    capacities: Vec<Capacity>,
    routes: Vec<Route>,
    chain: Chain,
    /// Whether messages may take a network that costs more than its links: what they cost depends on their sizes.
    crosses: bool,
}

/// Whether messages cost by their size: of an MPI, or over a network with costs of its own.
fn may_cross(setting: Setting<'_>) -> bool {
    let is_network = |kind| matches!(kind, LinkKind::Infiniband | LinkKind::Ethernet);
    let has_costs = setting.profile.network != NetworkCosts::FREE;
    setting.profile.messages.is_some() || has_costs && setting.fabric.links().any(|(_, link)| is_network(link.kind))
}

/// A capacity of the folded workload.
#[derive(Debug)]
struct Capacity {
    /// The first of those that it stands for.
    resource: Resource,
    rate: Rate,
    /// What passes it, in units of [`WHOLE`]: by whose coefficient it is, chunks of an operation, operations counted at once.
    passing: BTreeMap<(Taken, u32, u32), u128>,
}

/// What an operation takes of a capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Taken {
    /// A coefficient, and so much more for each further block.
    Shared,
    /// A coefficient, of a capacity of the block.
    Own,
    /// As the task says, of a block that counts passes.
    Passes(u32),
}

/// A route of the folded workload: the capacities with how often each is taken.
#[derive(Debug)]
struct Route {
    uses: Vec<(ResourceId, Taken, u64)>,
    cap: Rate,
    weight: u32,
}

/// What a run of a template says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timed {
    /// From the start of the device's side to its end.
    pub end: Picos,
    /// What of it bytes took along the chain that ended last, sharing and waiting included.
    pub bytes: Picos,
    /// The capacity that was used most, the first of equals, and how much of it.
    pub busiest: Option<(Resource, f64)>,
}

/// How a call is cut, in terms of a template's chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    /// Size of a chunk, in every loop but the last.
    full: ChunkSize,
    /// In the last loop.
    last: ChunkSize,
    loops: u32,
}

/// Costs of the tasks of a template, and amounts.
struct Amounts {
    /// By entry of the workload's works.
    works: Vec<Work>,
    /// By task.
    paces: Vec<Pace>,
    lanes: Vec<u64>,
    blocks: u64,
}

/// A schedule's programs, those of its first block where all blocks do the same, written once: what templates are made of,
/// one for each protocol.
#[derive(Debug)]
pub struct Outline {
    header: Header,
    /// By rank.
    programs: Vec<Program>,
    print: Fingerprint,
    /// How many chunks operations move at once.
    spans: Vec<u32>,
    /// What is alike in it, as it was found with the first protocol.
    colours: OnceLock<Colours>,
}

impl Outline {
    /// Of a schedule; `None` where its chunks differ in size.
    #[must_use]
    pub fn of(generator: &dyn Generate, setting: Setting<'_>) -> Option<Self> {
        let header = generator.header();
        if !size_of(header).is_some_and(|sizes| sizes.full == sizes.last) || !setting.delays.is_empty() {
            return None;
        }
        let all = Written { header, programs: &written(generator) };
        let one = one_block(&Party { generator: &all, setting });
        let (programs, blocks) = match one {
            Some(one) => (written(&one), one.blocks() as u16),
            None => (all.programs.to_vec(), 1),
        };
        let whole = Written { header, programs: &programs };
        let (program, spans) = (signature_of(&whole), spans_of(&whole)?);
        let chunks = header.layout.chunks();
        if !chunks.is_multiple_of(blocks.into()) {
            return None;
        }
        let print = Fingerprint { program, blocks, chunks: chunks / u32::from(blocks) };
        Some(Self { header: header.clone(), programs, print, spans, colours: OnceLock::new() })
    }

    /// What it is known by.
    #[must_use]
    pub fn print(&self) -> Fingerprint {
        self.print
    }
}

/// Programs that are there.
struct Written<'a> {
    header: &'a Header,
    programs: &'a [Program],
}

impl Generate for Written<'_> {
    fn header(&self) -> &Header {
        self.header
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        if let Some(own) = self.programs.get(rank.0 as usize) {
            program.clone_from(own);
        }
    }
}

/// The programs of all ranks.
fn written(generator: &dyn Generate) -> Vec<Program> {
    let write = |rank| {
        let mut program = Program::default();
        generator.program(rank, &mut program);
        program
    };
    (0..generator.header().call.ranks).map(Rank).map(write).collect()
}

impl Fingerprint {
    /// The same on so many blocks, each with chunks of its own.
    #[must_use]
    pub fn on_blocks(self, blocks: u16) -> Self {
        Self { blocks, ..self }
    }

    /// The same on one block: what a template is known by.
    #[must_use]
    pub fn of_block(self) -> Self {
        Self { blocks: 1, ..self }
    }

    /// Chunks of the schedule at hand.
    #[must_use]
    pub fn chunks(self) -> u32 {
        self.chunks * u32::from(self.blocks)
    }

    /// Blocks of the schedule at hand that do the same.
    #[must_use]
    pub fn blocks(self) -> u16 {
        self.blocks
    }
}

/// What a program does, chunks aside.
fn signature_of(generator: &dyn Generate) -> Signature {
    let header = generator.header();
    let call = &header.call;
    let mut signature = Signature::new();
    let words = [call.collective as u64, call.ranks.into(), call.root.0.into(), call.buffers as u64];
    let split = u64::from(header.blocks.split.channels());
    for word in words.into_iter().chain([split, header.teams.len() as u64]) {
        signature = signature.with(word);
    }
    for team in &header.teams {
        signature = team.iter().fold(signature.with(team.len() as u64), |all, rank| all.with(rank.0.into()));
    }
    let mut program = Program::default();
    for rank in (0..call.ranks).map(Rank) {
        program.clear();
        generator.program(rank, &mut program);
        signature = signature.with(program.runs().len() as u64);
        for (number, run) in program.runs().iter().enumerate() {
            let peer = run.peer;
            let places = u64::from(run.channel.0) << 48
                | (run.kind as u64) << 32
                | (run.src_buffer as u64) << 16
                | run.dst_buffer as u64;
            signature = signature
                .with(places)
                .with(u64::from(run.len) << 32 | u64::from(run.span))
                .with(u64::from(peer.base) << 32 | u64::from(peer.start))
                .with(u64::from(peer.step) << 32 | u64::from(peer.modulus))
                .with(peer.stride.into());
            let awaited = program.dependencies(number);
            signature = signature.with(awaited.len() as u64);
            for one in awaited {
                signature = signature
                    .with(u64::from(one.rank.0) << 32 | u64::from(one.run))
                    .with(u64::from(one.start as u32) << 32 | u64::from(one.step));
            }
        }
    }
    signature
}

impl Template {
    /// Lowers and folds a schedule that makes its loop `rounds` times, over a protocol. `None` where spans cannot be told
    /// apart by size, SMs are crowded, or it would be too long to keep.
    ///
    /// # Errors
    /// [`SimulateError::Lower`]: ranks without devices or paths.
    pub fn of(
        outline: &Outline,
        protocol: Protocol,
        rounds: u32,
        setting: Setting<'_>,
    ) -> Result<Option<Self>, SimulateError> {
        let header = &Header { protocol, ..outline.header.clone() };
        let generator = &Written { header, programs: &outline.programs };
        let (mut lowered, tasks) = lower::lower_for_any_size(Party { generator, setting })?;
        lowered.workload.background_from = lowered.workload.runs.len() as u32;
        let framing = Framing::new(setting.profile.protocol(header.protocol).wire_efficiency);
        let mut span_of = BTreeMap::from([(Work(0), 0)]);
        for &span in &outline.spans {
            if span_of.insert(framing.on_wire(payload(header, 0, span)), span).is_some() {
                return Ok(None);
            }
        }
        let spans: Option<Vec<u32>> = lowered.workload.works.iter().map(|work| span_of.get(work).copied()).collect();
        let Some(spans) = spans else { return Ok(None) };
        let template = Self::folded((lowered, outline), tasks, spans, framing, rounds);
        Ok(template.map(|template| Self { crosses: may_cross(setting), ..template }))
    }

    /// Whether a run says what [`crate::simulate`] says; [`Self::least`] always holds.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        !self.crosses
    }

    fn folded(
        (lowered, outline): (Lowered, &Outline),
        tasks: Tasks,
        spans: Vec<u32>,
        framing: Framing,
        rounds: u32,
    ) -> Option<Self> {
        let chunks = outline.print.chunks;
        let Lowered { workload: whole, resources, .. } = lowered;
        let folded = fold::fold_like(&whole, outline.colours.get()).map(|(folded, colours)| {
            outline.colours.get_or_init(|| colours);
            folded
        });
        let count = whole.system.resource_count();
        let classes: Vec<u32> = match &folded {
            Some(folded) => folded.resource_classes().to_vec(),
            None => (0..count as u32).collect(),
        };
        let is_lane = |resource: &Resource| matches!(resource, Resource::Lane(..));
        let class_count = classes.iter().max().map_or(0, |&last| last as usize + 1);
        let mut firsts: Vec<Option<usize>> = vec![None; class_count];
        for (id, (&class, resource)) in classes.iter().zip(&resources).enumerate() {
            let first = *firsts.get_mut(class as usize)?.get_or_insert(id);
            let is_crowded = matches!(resource, Resource::Processors(_));
            if is_crowded || is_lane(resources.get(first)?) != is_lane(resource) {
                return None;
            }
        }
        let mut capacities = Vec::with_capacity(class_count);
        let mut class_of_first: Vec<Option<u32>> = vec![None; count];
        for (class, first) in (0..).zip(firsts) {
            let first = first?;
            *class_of_first.get_mut(first)? = Some(class);
            let (resource, rate) = (*resources.get(first)?, whole.system.capacity(ResourceId(first as u32)));
            capacities.push(Capacity { resource, rate, passing: BTreeMap::new() });
        }
        let taken = |resource: &Resource, coefficient: u64, task: u32| match is_lane(resource) {
            false => (Taken::Shared, coefficient),
            true if coefficient >= Tasks::code(0) => (Taken::Passes(task), coefficient / Tasks::code(task)),
            true => (Taken::Own, coefficient),
        };
        for run in &whole.runs {
            let (PerOp::Same(work), PerOp::Same(pace)) = (run.work, run.pace) else { return None };
            let (span, task) = (*spans.get(work as usize)?, whole.paces.get(pace as usize)?.software.0 as u32);
            let (places, ops) = match run.passage {
                PerOp::Same(place) => (place as usize..place as usize + 1, run.len),
                PerOp::Each(first) => (first as usize..first as usize + run.len as usize, 1),
            };
            for route in places.filter(|_| run.len > 0).filter_map(|place| whole.passages.get(place).route) {
                for used in whole.system.uses(route) {
                    let Some(class) = class_of_first[used.resource.0 as usize] else { continue };
                    let capacity = capacities.get_mut(class as usize)?;
                    let (kind, times) = taken(&capacity.resource, used.coefficient, task);
                    *capacity.passing.entry((kind, span, ops)).or_default() += u128::from(times);
                }
            }
        }
        let workload = match folded {
            Some(folded) => folded.workload,
            None => whole,
        };
        if workload.operation_count() > MOST_OPERATIONS || rounds == 0 || !chunks.is_multiple_of(rounds) {
            return None;
        }
        let mut task_of_route: Vec<u32> = vec![0; workload.system.route_count()];
        for run in (0..workload.runs.len() as u32).filter(|&run| workload.runs[run as usize].len > 0) {
            for index in 0..workload.runs[run as usize].len {
                if let Some(route) = workload.passage(run, index).route {
                    *task_of_route.get_mut(route.0 as usize)? = workload.pace(run, index).software.0 as u32;
                }
            }
        }
        let routes = (0..).map(RouteId).zip(&task_of_route).map(|(route, &task)| {
            let uses = workload.system.uses(route).map(|used| {
                let resource = &capacities[used.resource.0 as usize].resource;
                let (kind, times) = taken(resource, used.coefficient, task);
                (used.resource, kind, times)
            });
            let (cap, weight) = workload.system.cap_and_weight(route);
            Route { uses: uses.collect(), cap, weight }
        });
        let routes = routes.collect();
        let chain = Chain::of(&workload)?;
        Some(Self { chunks, rounds, framing, workload, tasks, spans, capacities, routes, chain, crosses: false })
    }

    /// How a schedule is cut whose blocks have this program, loops aside; `None` where it is another.
    fn cut(&self, header: &Header, blocks: u16) -> Option<Cut> {
        let per_loop = (self.chunks / self.rounds).checked_mul(blocks.into())?;
        let sizes = size_of(header)?;
        let chunks = header.layout.chunks();
        let last = header.layout.segments().last()?.parts;
        let is_whole = chunks.is_multiple_of(per_loop) && (sizes.full == sizes.last || last == per_loop);
        is_whole.then_some(Cut { loops: chunks / per_loop, ..sizes })
    }

    /// Whether a schedule whose blocks have this program, loops aside, has it loops and all.
    #[must_use]
    pub fn fits(&self, header: &Header, blocks: u16) -> bool {
        self.cut(header, blocks).is_some_and(|cut| cut.loops == self.rounds && cut.full == cut.last)
    }

    /// What the device's side of a schedule takes at least whose blocks have this program, loops aside: no simulation says
    /// less. It is that of the longest chain of operations of the first loops, each alone with those that are just like
    /// it; of what must pass each capacity in all loops; and of messages that follow each other in all loops.
    ///
    /// A template of one loop tells of schedules of one loop, one of two of any with more. `None`: nothing is known.
    #[must_use]
    pub fn least(&self, header: &Header, blocks: u16, profile: &Profile) -> Option<Picos> {
        self.least_of(header, (blocks, blocks), profile)
    }

    /// The same where of so many blocks only the first is known to have this program: others only slow it down.
    #[must_use]
    pub fn least_of_first(&self, header: &Header, blocks: u16, profile: &Profile) -> Option<Picos> {
        self.least_of(header, (blocks, 1), profile)
    }

    fn least_of(&self, header: &Header, (blocks, alike): (u16, u16), profile: &Profile) -> Option<Picos> {
        let cut = self.cut(header, blocks)?;
        if cut.loops < self.rounds || (self.rounds == 1 && cut.loops > 1) {
            return None;
        }
        let effort = Effort::new(profile, header);
        let full = self.amounts(&effort, cut.full, alike);
        // In the last loop chunks may be smaller; the chain is that of the first ones.
        let last = (cut.full != cut.last).then(|| self.amounts(&effort, cut.last, alike));
        let of_chain = last.as_ref().filter(|_| cut.loops <= self.rounds);
        let times = self.chain.times((self, &full), of_chain.map(|last| (self, last)), effort.startup(), cut.loops);
        let passed = self.capacities.iter().zip(&times.first_flows).map(|(capacity, &first)| {
            let passing = |amounts: &Amounts| self.passing(capacity, amounts).0 / u128::from(self.rounds);
            let all = passing(&full) * u128::from(cut.loops - 1) + passing(last.as_ref().unwrap_or(&full));
            let needed = u64::try_from(all / u128::from(capacity.rate.0.max(1))).unwrap_or(u64::MAX);
            if all == 0 { Picos::ZERO } else { Picos(first.0.saturating_add(needed)) }
        });
        Some(passed.max().unwrap_or_default().max(times.end))
    }

    /// What [`crate::simulate`] says of the device's side of a schedule that fits.
    ///
    /// # Errors
    /// [`EngineError`]: a deadlock, an interrupt, an end that is too late.
    pub fn run(&self, header: &Header, blocks: u16, profile: &Profile, watch: Watch<'_>) -> Result<Timed, EngineError> {
        let effort = Effort::new(profile, header);
        let size = header.layout.size(0);
        let amounts = self.amounts(&effort, size, blocks);
        let startup = effort.startup();
        let paces = self.workload.paces.iter().map(|pace| {
            let task = amounts.paces.get(pace.software.0 as usize).copied().unwrap_or_default();
            Pace { not_before: startup, ..task }
        });
        let paces = paces.collect();
        let system = self.system(&amounts);
        let program = self.program(&system);
        let workload = Workload { paces, system, works: amounts.works.clone(), startup, ..program };
        let outcome = engine::run(&workload, watch)?;
        let (end, bytes) = (outcome.end, outcome.costs.bandwidth + outcome.costs.waiting);
        let mut busiest: Option<(Resource, f64)> = None;
        // (Classes are numbered as their first members are.)
        for capacity in &self.capacities {
            let could = Work::passed(capacity.rate, end);
            let passed = self.passing(capacity, &amounts);
            // Lanes on which no block passes twice are no capacities.
            if passed.0 == 0 {
                continue;
            }
            let fraction = if could.0 == 0 { 0.0 } else { passed.0 as f64 / could.0 as f64 };
            if busiest.is_none_or(|(_, most)| fraction > most) {
                busiest = Some((capacity.resource, fraction));
            }
        }
        Ok(Timed { end, bytes, busiest })
    }

    /// The workload without amounts.
    fn program(&self, system: &System) -> Workload {
        let Workload { runs, waits, wait_starts, passages, background_from, .. } = &self.workload;
        // What takes nothing of anything does not travel.
        let takes = |route: &RouteId| system.uses(*route).len() > 0;
        let places = (0..passages.len()).map(|place| passages.get(place));
        let mut left = Passages::default();
        if places.clone().all(|passage| passage.route.is_none_or(|route| takes(&route))) {
            left.clone_from(passages);
        } else {
            for passage in places {
                left.push(Passage { route: passage.route.filter(takes), ..passage });
            }
        }
        Workload {
            runs: runs.clone(),
            waits: waits.clone(),
            wait_starts: wait_starts.clone(),
            passages: left,
            background_from: *background_from,
            ..Workload::default()
        }
    }

    /// Costs and amounts where a chunk is of this size.
    fn amounts(&self, effort: &Effort<'_>, size: ChunkSize, blocks: u16) -> Amounts {
        let on_wire = |span: u32| match span {
            0 => Work(0),
            span => self.framing.on_wire(Work::of_chunks(size, span)),
        };
        let efforts = self.tasks.all.iter().map(|&(task, span)| {
            let work = on_wire(span);
            effort.of(task, self.framing.payload(work), work)
        });
        let (paces, lanes) = efforts.map(|effort| (effort.pace(Picos::ZERO), effort.lane.unwrap_or_default())).unzip();
        Amounts { works: self.spans.iter().map(|&span| on_wire(span)).collect(), paces, lanes, blocks: blocks.into() }
    }

    fn coefficient(taken: Taken, times: u64, amounts: &Amounts) -> u64 {
        match taken {
            Taken::Shared => times.saturating_mul(amounts.blocks),
            Taken::Own => times,
            Taken::Passes(task) => times.saturating_mul(amounts.lanes.get(task as usize).copied().unwrap_or_default()),
        }
    }

    fn system(&self, amounts: &Amounts) -> System {
        let mut system = System::new();
        for capacity in &self.capacities {
            system.add_resource(capacity.rate);
        }
        let mut uses: Vec<Use> = Vec::new();
        for route in &self.routes {
            uses.clear();
            uses.extend(route.uses.iter().map(|&(resource, taken, times)| Use {
                resource,
                coefficient: Self::coefficient(taken, times, amounts),
            }));
            system.add_route(&uses, route.cap, route.weight);
        }
        system
    }

    /// What passes a capacity.
    fn passing(&self, capacity: &Capacity, amounts: &Amounts) -> Work {
        let work = |span: u32| {
            let place = self.spans.iter().position(|&one| one == span);
            place.and_then(|place| amounts.works.get(place)).map_or(0, |work| work.0)
        };
        let passed = capacity.passing.iter().map(|(&(taken, span, ops), &times)| {
            let part = work(span) * u128::from(ops) / u128::from(WHOLE);
            part * times * u128::from(Self::coefficient(taken, 1, amounts))
        });
        Work(passed.sum())
    }
}

/// Sizes of the chunks of a layout, as that of one loop or more; `None` where they differ otherwise.
fn size_of(header: &Header) -> Option<Cut> {
    let layout = &header.layout;
    let is_zero = layout.bytes().0 == 0;
    match layout.segments() {
        _ if is_zero => None,
        [_] => Some(Cut { full: layout.size(0), last: layout.size(0), loops: 1 }),
        [full, last] => {
            let is_even =
                u128::from(full.bytes.0) * u128::from(last.parts) == u128::from(last.bytes.0) * u128::from(full.parts);
            let (first, second) = (layout.size(0), layout.size(layout.start_of(1)));
            Some(Cut { full: first, last: if is_even { first } else { second }, loops: 1 })
        }
        _ => None,
    }
}

/// How many chunks operations move at once, each number once; `None` where an operation's are not one piece of the
/// buffer.
fn spans_of(generator: &dyn Generate) -> Option<Vec<u32>> {
    let header = generator.header();
    let chunks = header.layout.chunks();
    let mut spans = Vec::new();
    let mut program = Program::default();
    for rank in (0..header.call.ranks).map(Rank) {
        program.clear();
        generator.program(rank, &mut program);
        for run in program.runs().iter().filter(|run| run.kind.moves_data() && run.len > 0) {
            if run.span == 0 || (sized_by(run).at(0) % chunks).checked_add(run.span)? > chunks {
                return None;
            }
            if spans.last() != Some(&run.span) && !spans.contains(&run.span) {
                spans.push(run.span);
            }
        }
    }
    Some(spans)
}
