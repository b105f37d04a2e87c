//! `table --check`: checks a tuning table against a fabric and a library version, and predicts its times.

use std::num::NonZeroU16;
use std::path::Path;

use fabricast_planner::export::nccl_env;
use fabricast_planner::export::nccl_tuner::{self, Buffers, Lookup, Machine};
use fabricast_planner::export::open_mpi::{self, Routine};
use fabricast_planner::export::{AnyTable, Finding, SavedPlan, SavedRange};
use fabricast_planner::library::nccl::{Algo, Function, MAX_CHANNELS, Proto, Settings};
use fabricast_planner::library::{Chooser, Conditions, Library, mpi};
use fabricast_planner::plan::{Effort, Plan, PlanRequest, Watcher, plan, prices};
use fabricast_planner::strategy::{Restriction, Strategy};
use fabricast_sim::LaunchMode;
use fabricast_sim::profile::{Launch, Profile};
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank};
use fabricast_topologies::route::Router;
use fabricast_topologies::{Bytes, Fabric, NodeId};

use super::refused;
use super::report::{Checked, Row, Said};
use super::schedule_check::{self, ForSizes};
use crate::args::{CallArgs, CollectiveChoice, LibraryChoice, StrategyArgs, TableArgs, WhatIfArgs};
use crate::failure::Failure;
use crate::output::Output;
use crate::setup;

/// Maximum number of channels of any implementation.
const MOST_CHANNELS: u16 = 1024;

pub fn run(file: &Path, args: &TableArgs, output: &Output) -> Result<(), Failure> {
    let name = file.display().to_string();
    let text = fabricast_topologies::read::text_of_file(file, fabricast_topologies::read::Limit::TABLE)?;
    let table = AnyTable::read(&text, &name).map_err(|error| refused(&error))?;
    let Some(fabric) = &args.fabric else { return Err(Failure::input("--check needs --fabric")) };
    let fabric = setup::fabric(fabric, &args.size, &WhatIfArgs::default(), output)?;
    let placement = setup::ranks(&fabric, 1)?;
    let router = Router::new(&fabric, setup::route_options(&args.size));
    let mut flags = args.library.clone();
    if let (AnyTable::OpenMpi(_), None) = (&table, flags.library) {
        flags.library = Some(LibraryChoice::One(Library::OpenMpi(mpi::Version::NEWEST)));
    }
    let profile = setup::profile_of(&flags, &args.costs, &fabric)?;
    let strategy = StrategyArgs { no_nvls: args.no_nvls, ..StrategyArgs::default() };
    let library = setup::library(&flags, &profile).unwrap_or(Library::NEWEST_NCCL);
    let chooser = setup::chooser(library, &router, &placement, &flags, &CallArgs::default(), &strategy);
    let mode = setup::launch_mode(&args.costs, &fabric, &placement);
    let place =
        Place { fabric: &fabric, router: &router, placement: &placement, profile: &profile, mode, chooser: &chooser };
    if let AnyTable::Schedule(format, schedule, sizes) = &table {
        let file = ForSizes { format: *format, schedule, sizes: *sizes, name: &name };
        let (findings, rows) = schedule_check::rows(&file, &place, args.sizes.as_ref(), &strategy)?;
        let (format, fabric, profile) = (table.format(), fabric.name(), profile.name.as_str());
        return Checked { format, fabric, profile, library, findings, rows }.write(output);
    }
    let findings = place.findings(&table);
    let asked = place.asked(&table, args);
    let sizes = args.sizes.clone().unwrap_or_default().0;
    let rows = place.rows(&table, &asked, &sizes, &strategy)?;
    let checked =
        Checked { format: table.format(), fabric: fabric.name(), profile: &profile.name, library, findings, rows };
    checked.write(output)
}

/// Setting that a table is checked against.
pub struct Place<'a> {
    pub fabric: &'a Fabric,
    pub router: &'a Router<'a>,
    pub placement: &'a [NodeId],
    pub profile: &'a Profile,
    pub mode: LaunchMode,
    pub chooser: &'a Chooser,
}

/// Selection of a table for a call.
enum Taken {
    /// Strategy with the channel count of the table. Small calls may use fewer channels.
    Strategy { strategy: Strategy, channels: u16 },
    /// The library's default choice.
    Default,
    /// Unavailable or unsupported entry, with the reason.
    Invalid(Option<Said>, String),
}

impl Place<'_> {
    pub fn ranks(&self) -> u32 {
        self.placement.len() as u32
    }

    fn findings(&self, table: &AnyTable) -> Vec<Finding> {
        let (ranks, hosts) = (self.ranks(), hosts(self));
        let mut found = Vec::new();
        if let AnyTable::NcclEnv(file) = table {
            let passed_over = file.passed_over.iter();
            found.extend(passed_over.map(|(line, name)| {
                Finding::warning(Some(*line), format!("{name} is passed over: it is not known to change a choice"))
            }));
        }
        if let AnyTable::NcclTuner(table) = table {
            found.extend(table.unnamed.iter().map(|&line| {
                Finding::warning(
                    Some(line),
                    "-1 for algorithm or protocol: some plugins leave that to NCCL and set channels alone; NCCL's example \
                     plugin knows no such word and forces ring and simple, which is priced here",
                )
            }));
        }
        match (table, self.nccl()) {
            (AnyTable::NcclTuner(table), Some(machine)) => found.extend(nccl_tuner::findings(table, machine)),
            (AnyTable::NcclEnv(file), Some(machine)) => found.extend(nccl_env::findings(file, machine.version)),
            (AnyTable::NcclTuner(_) | AnyTable::NcclEnv(_), ..) => found.push(Finding::warning(
                None,
                "which cells NCCL takes on this fabric is not known: its search is not modelled for it",
            )),
            (AnyTable::OpenMpi(rules), ..) => found.extend(open_mpi::findings(rules, open_mpi::Ranks { ranks, hosts })),
            (AnyTable::Plan(plan), Some(machine)) if plan.ranks == ranks && plan.nodes == hosts => {
                found.extend(nccl_tuner::findings_of_plan(plan, machine));
            }
            (AnyTable::Plan(plan), ..) if plan.ranks != ranks || plan.nodes != hosts => {
                let of = |ranks: u32, hosts: u32| format!("{ranks} ranks on {hosts} hosts");
                let (own, here) = (of(plan.ranks, plan.nodes), of(ranks, hosts));
                found.push(Finding::warning(None, format!("the plan is for {own}, {} has {here}", self.fabric.name())));
            }
            _ => {}
        }
        found
    }

    /// Buffer registration as NCCL sees it: it registers the buffers of calls captured in a graph.
    fn buffers(&self) -> Buffers {
        match self.mode.launch {
            Launch::Graph => Buffers::Registered,
            Launch::Stream => Buffers::Plain,
        }
    }

    /// NCCL on this fabric, if its tables are known.
    fn nccl(&self) -> Option<Machine<'_>> {
        let Library::Nccl(version) = self.chooser.library() else { return None };
        let (communicator, cells) = (self.chooser.communicator()?, self.chooser.table()?);
        Some(Machine { communicator, version, cells, settings: self.chooser.settings() })
    }

    /// Collectives to predict: the requested one, else those that the table has entries for.
    fn asked(&self, table: &AnyTable, args: &TableArgs) -> Vec<Collective> {
        let speaks = |collective: Collective| match table {
            AnyTable::NcclTuner(table) => {
                Function::of(collective).is_some_and(|function| table.rows.iter().any(|row| row.function == function))
            }
            AnyTable::NcclEnv(file) => Function::of(collective).is_some_and(|function| file.settings.names(function)),
            AnyTable::OpenMpi(rules) => {
                Routine::of(collective).is_some_and(|routine| rules.routines.iter().any(|(known, _)| *known == routine))
            }
            AnyTable::Plan(plan) => plan.ranges.iter().any(|range| range.collective == collective),
            AnyTable::Schedule(..) => false,
        };
        let all = Collective::ALL.into_iter().filter(|collective| collective.has_sizes());
        match args.collective {
            Some(CollectiveChoice::One(one)) => vec![one],
            _ => all.filter(|&collective| speaks(collective)).collect(),
        }
    }

    fn rows(
        &self,
        table: &AnyTable,
        collectives: &[Collective],
        sizes: &[Bytes],
        flags: &StrategyArgs,
    ) -> Result<Vec<Row>, Failure> {
        if collectives.is_empty() {
            return Ok(Vec::new());
        }
        let restriction = Restriction { library: Some(self.chooser.offer()), ..setup::restriction(flags) };
        let request = self.request((BufferUse::OutOfPlace, Rank(0)), collectives, sizes, &restriction);
        let ours: Plan = plan(&request, Watcher::default())?;
        let takes = Takes::new(table, self);
        // Replaces a strategy by the plan's own entry with the same algorithm, protocol and channels, which has more
        // detail.
        let as_known = |row: &fabricast_planner::plan::Row, strategy: Strategy, channels: u16| {
            let default = row.library_default.as_ref().map(|default| default.priced.strategy);
            let said = (strategy.algorithm, strategy.protocol, channels);
            let is_said = |known: &Strategy| (known.algorithm, known.protocol, known.channels) == said;
            default.into_iter().chain([row.pick.strategy]).find(is_said).unwrap_or(strategy)
        };
        let taken = ours.rows.iter().map(|row| match takes.of(row.collective, row.bytes) {
            Taken::Strategy { strategy, channels } => {
                Taken::Strategy { strategy: as_known(row, strategy, channels), channels }
            }
            taken => taken,
        });
        let taken: Vec<Taken> = taken.collect();
        let wanted = ours.rows.iter().zip(&taken).filter_map(|(row, taken)| match taken {
            Taken::Strategy { strategy, .. } => Some((row.collective, row.bytes, *strategy)),
            _ => None,
        });
        let wanted: Vec<(Collective, Bytes, Strategy)> = wanted.collect();
        let mut priced = prices(&request, &wanted, Watcher::default())?.into_iter();
        let rows = ours.rows.iter().zip(taken).map(|(row, taken)| {
            let default = row.library_default.as_ref().map(|default| default.priced);
            let (taken, time, reason) = match taken {
                Taken::Strategy { strategy, channels } => {
                    let said = Some(Strategy { channels, ..strategy }.into());
                    match priced.next() {
                        Some(Ok(found)) => (said, Some(found.time), None),
                        Some(Err(why)) => (said, None, Some(why.to_string())),
                        None => (said, None, None),
                    }
                }
                Taken::Default => {
                    (default.map(|default| default.strategy.into()), default.map(|default| default.time), None)
                }
                Taken::Invalid(said, why) => (said, None, Some(why)),
            };
            Row {
                collective: row.collective,
                bytes: row.bytes,
                taken,
                time,
                library_default: default.map(|default| default.time),
                plan: row.pick.time,
                reason,
            }
        });
        Ok(rows.collect())
    }

    /// Plan request for the same calls.
    pub fn request<'r>(
        &'r self,
        (buffers, root): (BufferUse, Rank),
        collectives: &'r [Collective],
        sizes: &'r [Bytes],
        restriction: &'r Restriction,
    ) -> PlanRequest<'r> {
        PlanRequest {
            fabric: self.fabric,
            router: self.router,
            placement: self.placement,
            profile: self.profile,
            ranks_per_node: self.fabric.most_on_a_host(self.placement),
            mode: self.mode,
            buffers,
            root: root.0,
            matrix: None,
            collectives,
            sizes,
            restriction,
            library: Some(self.chooser),
            effort: Effort::Contenders,
        }
    }
}

/// A table prepared for look-ups.
struct Takes<'a> {
    place: &'a Place<'a>,
    of: Of<'a>,
}

enum Of<'a> {
    Tuner(Lookup),
    Chooser(Box<Chooser>),
    Rules(&'a open_mpi::Rules),
    Plan(&'a SavedPlan),
}

impl<'a> Takes<'a> {
    fn new(table: &'a AnyTable, place: &'a Place<'a>) -> Self {
        let nodes = place.chooser.communicator().map_or_else(|| hosts(place), |communicator| communicator.nodes);
        let of = match table {
            AnyTable::NcclTuner(table) => Of::Tuner(Lookup::new(table, nodes, place.ranks())),
            AnyTable::NcclEnv(file) => Of::Chooser(Box::new(place.chooser_with(&file.settings))),
            AnyTable::OpenMpi(rules) => Of::Rules(rules),
            AnyTable::Plan(plan) => Of::Plan(plan),
            // Schedules are checked separately.
            AnyTable::Schedule(..) => Of::Chooser(Box::new(place.chooser.clone())),
        };
        Self { place, of }
    }

    fn of(&self, collective: Collective, bytes: Bytes) -> Taken {
        let ranks = self.place.ranks();
        let call = Call { collective, bytes, ranks, root: Rank(0), buffers: BufferUse::OutOfPlace };
        match &self.of {
            Of::Tuner(lookup) => {
                let Some(function) = Function::of(collective) else { return Taken::Default };
                let Some(answer) = lookup.find(function, bytes.0, 1, self.place.buffers()) else {
                    return Taken::Default;
                };
                self.cell(&call, function, &answer)
            }
            Of::Chooser(chooser) => match chooser.choose(&call) {
                Ok(choice) => Taken::of(choice.strategy),
                Err(unknown) => Taken::Invalid(None, unknown.to_string()),
            },
            Of::Rules(rules) => {
                let Some(routine) = Routine::of(collective) else { return Taken::Default };
                let Some(rule) = rules.find(routine, open_mpi::Ranks { ranks, hosts: hosts(self.place) }, bytes.0)
                else {
                    return Taken::Default;
                };
                let ways = routine.ways().filter(|(number, _)| *number == rule.algorithm);
                let ours = ways.filter_map(|(_, way)| mpi::schedule_of(way, collective)).next();
                match ours {
                    Some(algorithm) => Taken::of(Strategy {
                        algorithm,
                        protocol: Protocol::Simple,
                        channels: 1,
                        threads: None,
                        chunk: None,
                    }),
                    None => {
                        let name = routine.algorithm(rule.algorithm).unwrap_or("unknown");
                        let said = Said { algorithm: name.to_owned(), protocol: None, channels: None };
                        Taken::Invalid(Some(said), format!("there is no schedule of Open MPI's {name} here"))
                    }
                }
            }
            Of::Plan(plan) => match plan.range_of(collective, bytes) {
                None => Taken::Default,
                Some(range) => self.range(&call, range),
            },
        }
    }

    /// Selection of a range in fabricast's table; for NCCL it is looked up as a cell.
    fn range(&self, call: &Call, range: &SavedRange) -> Taken {
        let (algorithm, protocol, channels) = (range.algorithm, range.protocol, range.channels);
        let strategy = Strategy { algorithm, protocol, channels, threads: None, chunk: None };
        let is_nccl = matches!(self.place.chooser.library(), Library::Nccl(_));
        let cell = (Function::of(call.collective), Algo::of(algorithm), Proto::of(protocol), NonZeroU16::new(channels));
        let most = if is_nccl { MAX_CHANNELS } else { MOST_CHANNELS };
        match cell {
            _ if channels > most => {
                Taken::Invalid(Some(strategy.into()), format!("{channels} channels: expected at most {most}"))
            }
            (Some(function), Some(algo), Some(proto), channels @ Some(_)) if is_nccl => {
                self.cell(call, function, &nccl_tuner::Answer { algo, proto, channels, row: 0 })
            }
            _ => Taken::of(strategy),
        }
    }

    /// Selection of a cell of NCCL's tables. NCCL's own channel count applies if the row names none.
    fn cell(&self, call: &Call, function: Function, answer: &nccl_tuner::Answer) -> Taken {
        let cells = self.place.chooser.table();
        let invalid = |why: String| {
            let algorithm = answer.algo.ours().map_or_else(|| answer.algo.to_string(), |ours| ours.name().to_owned());
            let channels = answer.channels.map(NonZeroU16::get);
            Taken::Invalid(Some(Said { algorithm, protocol: Some(answer.proto.ours()), channels }), why)
        };
        if let Some(Err(why)) = cells.map(|cells| cells.cell(function, answer.algo, answer.proto).taken) {
            return invalid(format!("{} {}: {why}", answer.algo, answer.proto));
        }
        let Some(algorithm) = answer.algo.ours() else {
            return invalid(format!("there is no schedule of {} here", answer.algo));
        };
        let channels = answer.channels.map(NonZeroU16::get);
        match self.place.chooser.forced(call, (answer.algo, answer.proto), answer.channels) {
            Some(strategy) => Taken::Strategy { strategy, channels: channels.unwrap_or(strategy.channels) },
            None => {
                let channels = channels.unwrap_or(1);
                let protocol = answer.proto.ours();
                Taken::of(Strategy { algorithm, protocol, channels, threads: None, chunk: None })
            }
        }
    }
}

impl Taken {
    fn of(strategy: Strategy) -> Self {
        Self::Strategy { strategy, channels: strategy.channels }
    }
}

impl Place<'_> {
    fn chooser_with(&self, settings: &Settings) -> Chooser {
        let conditions = Conditions { settings: settings.clone(), ..Conditions::default() };
        Chooser::new(self.chooser.library(), self.fabric, self.router, self.placement, conditions)
    }
}

fn hosts(place: &Place<'_>) -> u32 {
    (place.ranks() / place.fabric.most_on_a_host(place.placement)).max(1)
}
