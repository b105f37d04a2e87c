//! `table --check`: any table, held against a fabric and a version of its library, and priced.

use std::path::Path;

use fabricast_planner::export::nccl_tuner::{self, Buffers, Finding, Lookup, Machine, Severity};
use fabricast_planner::export::open_mpi::Routine;
use fabricast_planner::export::{AnyTable, SavedPlan};
use fabricast_planner::library::nccl::{Function, Settings};
use fabricast_planner::library::{Chooser, Conditions, Library, mpi};
use fabricast_planner::plan::{Effort, Plan, PlanRequest, Watcher, plan, prices};
use fabricast_planner::strategy::{Restriction, Strategy};
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule};
use fabricast_sim::verify::{VerifyOptions, verify};
use fabricast_sim::{LaunchMode, Surroundings, engine::Watch, simulate};
use fabricast_topologies::route::Router;
use fabricast_topologies::{Bytes, Fabric, NodeId, Picos};

use super::refused;
use super::report::{Checked, Row};
use crate::args::{CallArgs, CollectiveChoice, LibraryChoice, StrategyArgs, TableArgs, WhatIfArgs};
use crate::failure::Failure;
use crate::output::Output;
use crate::setup;

/// The largest table that is read.
const MOST: u64 = 256 << 20;

pub fn run(file: &Path, args: &TableArgs, output: &Output) -> Result<(), Failure> {
    let name = file.display().to_string();
    let text = fabricast_topologies::read::text_up_to(file, MOST)?;
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
    if let AnyTable::Schedule(schedule) = &table {
        return place.schedule(schedule, &strategy, output);
    }
    let findings = place.findings(&table);
    let asked = place.asked(&table, args);
    let sizes = args.sizes.clone().unwrap_or_default().0;
    let rows = place.rows(&table, &asked, &sizes, &strategy)?;
    let checked =
        Checked { format: table.format(), fabric: fabric.name(), profile: &profile.name, library, findings, rows };
    checked.write(output)
}

struct Place<'a> {
    fabric: &'a Fabric,
    router: &'a Router<'a>,
    placement: &'a [NodeId],
    profile: &'a Profile,
    mode: LaunchMode,
    chooser: &'a Chooser,
}

/// What a table takes for a call.
enum Taken {
    /// This.
    Strategy(Strategy),
    /// What the library takes by itself.
    Default,
    /// Something that does not exist here, or of which there is no schedule.
    Invalid(String),
}

impl Place<'_> {
    fn ranks(&self) -> u32 {
        self.placement.len() as u32
    }

    fn findings(&self, table: &AnyTable) -> Vec<Finding> {
        match (table, self.chooser.communicator(), self.chooser.table()) {
            (AnyTable::NcclTuner(table), Some(communicator), Some(cells)) => {
                let machine = Machine { communicator, cells, settings: self.chooser.settings() };
                nccl_tuner::findings(table, machine)
            }
            (AnyTable::NcclTuner(_) | AnyTable::NcclEnv(_), ..) => vec![Finding {
                line: None,
                severity: Severity::Warning,
                message: "which cells NCCL takes on this fabric is not known: its search is not modelled for it"
                    .to_owned(),
            }],
            _ => Vec::new(),
        }
    }

    /// The collectives to price: those that the table speaks of.
    fn asked(&self, table: &AnyTable, args: &TableArgs) -> Vec<Collective> {
        let speaks = |collective: Collective| match table {
            AnyTable::NcclTuner(table) => {
                Function::of(collective).is_some_and(|function| table.rows.iter().any(|row| row.function == function))
            }
            AnyTable::NcclEnv(settings) => Function::of(collective).is_some_and(|function| settings.names(function)),
            AnyTable::OpenMpi(rules) => {
                Routine::of(collective).is_some_and(|routine| rules.routines.iter().any(|(known, _)| *known == routine))
            }
            AnyTable::Plan(plan) => plan.ranges.iter().any(|range| range.collective == collective),
            AnyTable::Schedule(_) => false,
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
        let request = PlanRequest {
            fabric: self.fabric,
            router: self.router,
            placement: self.placement,
            profile: self.profile,
            ranks_per_node: self.fabric.most_on_a_host(self.placement),
            mode: self.mode,
            buffers: BufferUse::OutOfPlace,
            root: 0,
            matrix: None,
            collectives,
            sizes,
            restriction: &restriction,
            library: Some(self.chooser),
            effort: Effort::Contenders,
        };
        let ours: Plan = plan(&request, Watcher::default())?;
        let takes = Takes::new(table, self);
        let as_known = |row: &fabricast_planner::plan::Row, strategy: Strategy| {
            let default = row.library_default.as_ref().map(|default| default.priced.strategy);
            let pair = |one: Strategy| (one.algorithm, one.protocol, one.channels);
            let known = default.into_iter().chain([row.pick.strategy]).find(|known| pair(*known) == pair(strategy));
            known.unwrap_or(strategy)
        };
        let taken = ours.rows.iter().map(|row| match takes.of(row.collective, row.bytes) {
            Taken::Strategy(strategy) => Taken::Strategy(as_known(row, strategy)),
            taken => taken,
        });
        let taken: Vec<Taken> = taken.collect();
        let wanted = ours.rows.iter().zip(&taken).filter_map(|(row, taken)| match taken {
            Taken::Strategy(strategy) => Some((row.collective, row.bytes, *strategy)),
            _ => None,
        });
        let wanted: Vec<(Collective, Bytes, Strategy)> = wanted.collect();
        let mut priced = prices(&request, &wanted, Watcher::default())?.into_iter();
        let rows = ours.rows.iter().zip(taken).map(|(row, taken)| {
            let default = row.library_default.as_ref().map(|default| default.priced);
            let (strategy, time, reason) = match taken {
                Taken::Strategy(strategy) => match priced.next() {
                    Some(Ok(found)) => (Some(strategy), Some(found.time), None),
                    Some(Err(why)) => (Some(strategy), None, Some(why.to_string())),
                    None => (Some(strategy), None, None),
                },
                Taken::Default => (default.map(|default| default.strategy), default.map(|default| default.time), None),
                Taken::Invalid(why) => (None, None, Some(why)),
            };
            Row {
                collective: row.collective,
                bytes: row.bytes,
                strategy,
                time,
                library_default: default.map(|default| default.time),
                plan: row.pick.time,
                reason,
            }
        });
        Ok(rows.collect())
    }

    /// A schedule has one size: it is proved, and priced at that.
    fn schedule(&self, schedule: &Schedule, flags: &StrategyArgs, output: &Output) -> Result<(), Failure> {
        let header = schedule.header();
        let call = header.call;
        if call.ranks != self.ranks() {
            let message =
                format!("the schedule is of {} ranks, {} has {}", call.ranks, self.fabric.name(), self.ranks());
            return Err(Failure::input(message));
        }
        let fault = verify(schedule, &VerifyOptions::default()).err().map(|fault| fault.to_string());
        let delays = Vec::new();
        let setting = setup::setting(self.fabric, self.router, self.placement, self.profile, &delays);
        let time = match fault {
            Some(_) => None,
            None => Some(simulate(schedule, setting, self.mode, Surroundings::default(), Watch::default())?.time),
        };
        // (The plan is that of the same call.)
        let own = Restriction { ..setup::restriction(flags) };
        let request = PlanRequest {
            fabric: self.fabric,
            router: self.router,
            placement: self.placement,
            profile: self.profile,
            ranks_per_node: self.fabric.most_on_a_host(self.placement),
            mode: self.mode,
            buffers: call.buffers,
            root: call.root.0,
            matrix: None,
            collectives: &[call.collective],
            sizes: &[call.bytes],
            restriction: &own,
            library: Some(self.chooser),
            effort: Effort::Contenders,
        };
        let ours = plan(&request, Watcher::default())?;
        let best = ours.rows.first();
        let row = Row {
            collective: call.collective,
            bytes: call.bytes,
            strategy: None,
            time,
            library_default: best.and_then(|row| row.library_default.as_ref()).map(|default| default.priced.time),
            plan: best.map_or(Picos::ZERO, |row| row.pick.time),
            reason: fault,
        };
        let checked = Checked {
            format: "schedule",
            fabric: self.fabric.name(),
            profile: &self.profile.name,
            library: self.chooser.library(),
            findings: Vec::new(),
            rows: vec![row],
        };
        checked.write(output)
    }
}

/// A table made ready for look-ups.
struct Takes<'a> {
    place: &'a Place<'a>,
    of: Of<'a>,
}

enum Of<'a> {
    Tuner(Lookup),
    Chooser(Box<Chooser>),
    Rules(&'a fabricast_planner::export::open_mpi::Rules),
    Plan(&'a SavedPlan),
}

impl<'a> Takes<'a> {
    fn new(table: &'a AnyTable, place: &'a Place<'a>) -> Self {
        let nodes = place.chooser.communicator().map_or_else(|| hosts(place), |communicator| communicator.nodes);
        let of = match table {
            AnyTable::NcclTuner(table) => Of::Tuner(Lookup::new(table, nodes, place.ranks())),
            AnyTable::NcclEnv(settings) => Of::Chooser(Box::new(place.chooser_with(settings))),
            AnyTable::OpenMpi(rules) => Of::Rules(rules),
            AnyTable::Plan(plan) => Of::Plan(plan),
            // (Checked on a way of their own.)
            AnyTable::Schedule(_) => Of::Chooser(Box::new(place.chooser.clone())),
        };
        Self { place, of }
    }

    fn of(&self, collective: Collective, bytes: Bytes) -> Taken {
        let ranks = self.place.ranks();
        let call = Call { collective, bytes, ranks, root: Rank(0), buffers: BufferUse::OutOfPlace };
        match &self.of {
            Of::Tuner(lookup) => {
                let Some(function) = Function::of(collective) else { return Taken::Default };
                let Some(answer) = lookup.find(function, bytes.0, 1, Buffers::Plain) else { return Taken::Default };
                self.cell(&call, function, &answer)
            }
            Of::Chooser(chooser) => match chooser.choose(&call) {
                Ok(choice) => Taken::Strategy(choice.strategy),
                Err(unknown) => Taken::Invalid(unknown.to_string()),
            },
            Of::Rules(rules) => {
                let Some(routine) = Routine::of(collective) else { return Taken::Default };
                let Some(rule) = rules.find(routine, ranks, bytes.0) else { return Taken::Default };
                let ways = routine.ways().filter(|(number, _)| *number == rule.algorithm);
                let ours = ways.filter_map(|(_, way)| mpi::schedule_of(way, collective)).next();
                match ours {
                    Some(algorithm) => Taken::Strategy(Strategy {
                        algorithm,
                        protocol: Protocol::Simple,
                        channels: 1,
                        threads: None,
                        chunk: None,
                    }),
                    None => {
                        let name = routine.algorithm(rule.algorithm).unwrap_or("unknown");
                        Taken::Invalid(format!("there is no schedule of Open MPI's {name} here"))
                    }
                }
            }
            Of::Plan(plan) => {
                let inside = |range: &&fabricast_planner::export::SavedRange| {
                    range.collective == collective && (range.min_bytes..=range.max_bytes).contains(&bytes)
                };
                match plan.ranges.iter().find(inside) {
                    None => Taken::Default,
                    Some(range) => {
                        let (algorithm, protocol, channels) = (range.algorithm, range.protocol, range.channels);
                        Taken::Strategy(Strategy { algorithm, protocol, channels, threads: None, chunk: None })
                    }
                }
            }
        }
    }

    /// A cell of NCCL's tables: with its own channels where the row names none.
    fn cell(&self, call: &Call, function: Function, answer: &nccl_tuner::Answer) -> Taken {
        let cells = self.place.chooser.table();
        if let Some(Err(why)) = cells.map(|cells| cells.cell(function, answer.algo, answer.proto).taken) {
            return Taken::Invalid(format!("{} {}: {why}", answer.algo, answer.proto));
        }
        let Some(algorithm) = answer.algo.ours() else {
            return Taken::Invalid(format!("there is no schedule of {} here", answer.algo));
        };
        match self.place.chooser.forced(call, (answer.algo, answer.proto)) {
            Some(strategy) => {
                let own = Strategy { threads: None, chunk: None, ..strategy };
                Taken::Strategy(
                    answer.channels.map_or(strategy, |channels| Strategy { channels: channels.get(), ..own }),
                )
            }
            None => {
                let channels = answer.channels.map_or(1, std::num::NonZeroU16::get);
                Taken::Strategy(Strategy {
                    algorithm,
                    protocol: answer.proto.ours(),
                    channels,
                    threads: None,
                    chunk: None,
                })
            }
        }
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
