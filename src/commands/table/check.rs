//! `table --check`: checks a tuning table against a fabric and a library version, and predicts its times.

use std::num::NonZeroU16;
use std::path::Path;

use fabricast_collectives::algorithm::Algorithm;
use fabricast_collectives::strategy::Strategy;
use fabricast_libraries::nccl::{Algo, AlgoProto, Function, MAX_CHANNELS, Proto};
use fabricast_libraries::{Chooser, Conditions, Library, mpi};
use fabricast_search::candidates::Restriction;
use fabricast_search::export::nccl_env::{self, SettingsFile};
use fabricast_search::export::nccl_tuner::{self, Buffers, CheckContext, Lookup};
use fabricast_search::export::open_mpi::{self, Routine};
use fabricast_search::export::{AnyTable, Finding, SavedPlan, SavedRange, ncclx};
use fabricast_search::plan::{Effort, Plan, PlanRequest, StrategyCall, plan, simulate_strategies};
use fabricast_sim::monitor::Monitor;
use fabricast_sim::profile::Launch;
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank};
use fabricast_topologies::Bytes;
use fabricast_topologies::route::Router;

use super::check_setting::CheckSetting;
use super::report::{SelectedStrategy, SelectionRow, TableReport};
use super::schedule_check::{self, CheckedSchedule};
use super::table_failure;
use crate::args::{CallArgs, CollectiveChoice, LibraryChoice, StrategyArgs, TableArgs, WhatIfArgs};
use crate::failure::Failure;
use crate::output::Output;
use crate::setup;

/// Maximum number of channels of any implementation.
const MAX_CHANNELS_ANY: u16 = 1024;

pub fn run(file: &Path, args: &TableArgs, output: &Output) -> Result<(), Failure> {
    let name = file.display().to_string();
    let text = fabricast_topologies::read::read_text_file(file, fabricast_topologies::read::Limit::TABLE)?;
    let table = AnyTable::read(&text, &name).map_err(|error| table_failure(&error))?;
    let Some(fabric) = &args.fabric else { return Err(Failure::input("--check needs --fabric")) };
    let fabric = setup::fabric(fabric, &args.size, &WhatIfArgs::default(), output)?;
    let placement = setup::ranks(&fabric, 1)?;
    let router = Router::new(&fabric, setup::route_options(&args.size));
    let mut flags = args.library.clone();
    if let (AnyTable::OpenMpi(_), None) = (&table, flags.library) {
        flags.library = Some(LibraryChoice::One(Library::OpenMpi(mpi::OpenMpiVersion::NEWEST)));
    }
    let profile = setup::library_profile(&flags, &args.costs, &fabric)?;
    let strategy = StrategyArgs { no_nvls: args.no_nvls, ..StrategyArgs::default() };
    let library = setup::library(&flags, &profile).unwrap_or(Library::NEWEST_NCCL);
    let chooser = setup::chooser(library, &router, &placement, &flags, &CallArgs::default(), &strategy);
    let mode = setup::launch_mode(&args.costs, &fabric, &placement);
    let setting = CheckSetting {
        fabric: &fabric,
        router: &router,
        placement: &placement,
        profile: &profile,
        mode,
        chooser: &chooser,
    };
    if let AnyTable::Schedule(format, schedule, sizes) = &table {
        let file = CheckedSchedule { format: *format, schedule, sizes: *sizes, name: &name };
        let (findings, rows) = schedule_check::rows(&file, &setting, args.sizes.as_ref(), &strategy)?;
        let (format, fabric, profile) = (table.format(), fabric.name(), profile.name.as_str());
        return TableReport { format, fabric, profile, library, findings, rows }.write(output);
    }
    let findings = setting.findings(&table);
    let collectives = setting.collectives(&table, args);
    let sizes = args.sizes.clone().unwrap_or_default().0;
    let rows = setting.rows(&table, &collectives, &sizes, &strategy)?;
    let checked =
        TableReport { format: table.format(), fabric: fabric.name(), profile: &profile.name, library, findings, rows };
    checked.write(output)
}

/// Strategy that a tuning table selects for a call.
enum TableSelection {
    /// Strategy with the channel count of the table. Small calls may use fewer channels.
    Strategy { strategy: Strategy, channels: u16 },
    /// The library's default choice, because no entry of the table applies to the call.
    Default,
    /// Entry that is not available or not supported, with the reason.
    Invalid(Option<SelectedStrategy>, String),
}

impl CheckSetting<'_> {
    fn findings(&self, table: &AnyTable) -> Vec<Finding> {
        let (ranks, hosts) = (self.ranks(), hosts(self));
        let mut findings = Vec::new();
        if let AnyTable::NcclEnv(file) = table {
            let ignored = file.ignored.iter();
            findings.extend(ignored.map(|(line, name)| {
                Finding::warning(Some(*line), format!("{name} is ignored: it is not known to change a choice"))
            }));
        }
        if let AnyTable::AllReduceLimit(file) = table {
            let ignored = file.ignored.iter();
            findings.extend(ignored.map(|(line, name)| {
                Finding::warning(Some(*line), format!("{name} is ignored: it does not limit all_reduce"))
            }));
            if !file.framework.supports(ranks) {
                findings.push(Finding::error(None, format!("FlashInfer has no all_reduce for {ranks} ranks")));
            }
        }
        if let AnyTable::NcclTuner(table) = table {
            findings.extend(table.minus_one_lines.iter().map(|&line| {
                Finding::warning(
                    Some(line),
                    "-1 for algorithm or protocol: some plugins leave that to NCCL and set channels alone; NCCL's example plugin forces ring and simple instead, which is evaluated here",
                )
            }));
        }
        match (table, self.nccl()) {
            (AnyTable::NcclTuner(table), Some(machine)) => findings.extend(nccl_tuner::findings(table, machine)),
            (AnyTable::Ncclx(rules), Some(machine)) => findings.extend(ncclx::findings(rules, machine)),
            (AnyTable::NcclEnv(file), Some(machine)) => findings.extend(nccl_env::findings(file, machine.version)),
            (AnyTable::NcclTuner(_) | AnyTable::NcclEnv(_) | AnyTable::Ncclx(_), ..) => {
                findings.push(Finding::warning(
                    None,
                    "cannot predict NCCL's choice on this fabric: its search is not modelled for it",
                ));
            }
            (AnyTable::OpenMpi(rules), ..) => {
                findings.extend(open_mpi::findings(rules, open_mpi::Ranks { ranks, hosts }));
            }
            (AnyTable::Plan(plan), Some(machine)) if plan.ranks == ranks && plan.nodes == hosts => {
                findings.extend(nccl_tuner::plan_findings(plan, machine));
            }
            (AnyTable::Plan(plan), ..) if plan.ranks != ranks || plan.nodes != hosts => {
                let describe = |ranks: u32, hosts: u32| format!("{ranks} ranks on {hosts} hosts");
                let (planned, actual) = (describe(plan.ranks, plan.nodes), describe(ranks, hosts));
                findings.push(Finding::warning(
                    None,
                    format!("the plan is for {planned}, {} has {actual}", self.fabric.name()),
                ));
            }
            _ => {}
        }
        findings
    }

    /// Buffer registration as NCCL sees it: it registers the buffers of calls captured in a graph.
    fn buffers(&self) -> Buffers {
        match self.mode.launch {
            Launch::Graph => Buffers::Registered,
            Launch::Stream => Buffers::Plain,
        }
    }

    /// NCCL's context on this fabric; `None` for other libraries, or if NCCL's tables are not known.
    fn nccl(&self) -> Option<CheckContext<'_>> {
        let Library::Nccl(version) = self.chooser.library() else { return None };
        let (communicator, cells) = (self.chooser.communicator()?, self.chooser.table()?);
        Some(CheckContext { communicator, version, cells, settings: self.chooser.settings() })
    }

    /// Collectives to predict: the requested one, otherwise those for which the table has entries.
    fn collectives(&self, table: &AnyTable, args: &TableArgs) -> Vec<Collective> {
        let has_entries = |collective: Collective| match table {
            AnyTable::NcclTuner(table) => Function::from_collective(collective)
                .is_some_and(|function| table.rows.iter().any(|row| row.function == function)),
            AnyTable::AllReduceLimit(_) => collective == Collective::AllReduce,
            AnyTable::Ncclx(rules) => Function::from_collective(collective)
                .is_some_and(|function| rules.rules.iter().any(|rule| rule.function == function)),
            AnyTable::NcclEnv(file) => {
                Function::from_collective(collective).is_some_and(|function| file.settings.mentions(function))
            }
            AnyTable::OpenMpi(rules) => Routine::from_collective(collective)
                .is_some_and(|routine| rules.routines.iter().any(|(known, _)| *known == routine)),
            AnyTable::Plan(plan) => plan.ranges.iter().any(|range| range.collective == collective),
            AnyTable::Schedule(..) => false,
        };
        let all = Collective::ALL.into_iter().filter(|collective| collective.has_variable_size());
        match args.collective {
            Some(CollectiveChoice::One(collective)) => vec![collective],
            _ => all.filter(|&collective| has_entries(collective)).collect(),
        }
    }

    fn rows(
        &self,
        table: &AnyTable,
        collectives: &[Collective],
        sizes: &[Bytes],
        flags: &StrategyArgs,
    ) -> Result<Vec<SelectionRow>, Failure> {
        if collectives.is_empty() {
            return Ok(Vec::new());
        }
        let restriction = Restriction { library: Some(self.chooser.capabilities()), ..setup::restriction(flags) };
        let request = self.request(BufferUse::OutOfPlace, Rank(0), collectives, sizes, &restriction);
        let planned: Plan = plan(&request, Monitor::default())?;
        let mut lookup = TableLookup::new(table, self);
        if let (AnyTable::AllReduceLimit(file), [Collective::AllReduce]) = (table, collectives) {
            lookup.kind = LookupKind::Limit(file.limit, self.own_kernels(sizes, flags)?);
        }
        // Strategies with the algorithm, protocol and channels of a plan's entry are replaced by that entry, which also
        // has threads and chunk size.
        let with_details = |row: &fabricast_search::plan::PlanRow, strategy: Strategy, channels: u16| {
            let default = row.library_default.as_ref().map(|default| default.timed.strategy);
            let key = (strategy.algorithm, strategy.protocol, channels);
            let has_key = |entry: &Strategy| (entry.algorithm, entry.protocol, entry.channels) == key;
            default.into_iter().chain([row.pick.strategy]).find(has_key).unwrap_or(strategy)
        };
        let selections = planned.rows.iter().map(|row| match lookup.select(row.collective, row.bytes) {
            TableSelection::Strategy { strategy, channels } => {
                TableSelection::Strategy { strategy: with_details(row, strategy, channels), channels }
            }
            selection => selection,
        });
        let selections: Vec<TableSelection> = selections.collect();
        let calls = planned.rows.iter().zip(&selections).filter_map(|(row, selection)| match selection {
            TableSelection::Strategy { strategy, .. } => {
                Some(StrategyCall { collective: row.collective, bytes: row.bytes, strategy: *strategy })
            }
            _ => None,
        });
        let calls: Vec<StrategyCall> = calls.collect();
        let mut priced = simulate_strategies(&request, &calls, Monitor::default())?.into_iter();
        let rows = planned.rows.iter().zip(selections).map(|(row, selection)| {
            let default = row.library_default.as_ref().map(|default| default.timed);
            let (selected, time, reason) = match selection {
                TableSelection::Strategy { strategy, channels } => {
                    let selected = Some(Strategy { channels, ..strategy }.into());
                    match priced.next() {
                        Some(Ok(result)) => (selected, Some(result.time), None),
                        Some(Err(error)) => (selected, None, Some(error.to_string())),
                        None => (selected, None, None),
                    }
                }
                TableSelection::Default => {
                    (default.map(|default| default.strategy.into()), default.map(|default| default.time), None)
                }
                TableSelection::Invalid(selected, reason) => (selected, None, Some(reason)),
            };
            SelectionRow {
                collective: row.collective,
                bytes: row.bytes,
                selected,
                time,
                library_default: default.map(|default| default.time),
                plan: row.pick.time,
                reason,
            }
        });
        Ok(rows.collect())
    }

    /// Returns the faster of one_shot and two_shot over `symmetric` for each size, as frameworks run all_reduce with their
    /// own kernels.
    fn own_kernels(&self, sizes: &[Bytes], flags: &StrategyArgs) -> Result<Vec<(Bytes, Strategy)>, Failure> {
        let restriction = Restriction {
            algorithms: vec![Algorithm::OneShot, Algorithm::TwoShot],
            protocols: vec![Protocol::Symmetric],
            ..setup::restriction(flags)
        };
        let collectives = [Collective::AllReduce];
        let request = self.request(BufferUse::OutOfPlace, Rank(0), &collectives, sizes, &restriction);
        let rows = plan(&request, Monitor::default())?.rows;
        Ok(rows.into_iter().map(|row| (row.bytes, row.fastest.strategy)).collect())
    }

    /// Creates the plan request with the fabric, placement and profile of the check.
    pub fn request<'r>(
        &'r self,
        buffers: BufferUse,
        root: Rank,
        collectives: &'r [Collective],
        sizes: &'r [Bytes],
        restriction: &'r Restriction,
    ) -> PlanRequest<'r> {
        PlanRequest {
            fabric: self.fabric,
            router: self.router,
            placement: self.placement,
            profile: self.profile,
            ranks_per_node: self.fabric.max_devices_per_host(self.placement),
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

/// Table in a form in which the selection for a call can be looked up.
struct TableLookup<'a> {
    setting: &'a CheckSetting<'a>,
    kind: LookupKind<'a>,
}

enum LookupKind<'a> {
    Tuner(Lookup),
    Chooser(Box<Chooser>),
    Rules(&'a open_mpi::Rules),
    Plan(&'a SavedPlan),
    /// Largest call of a framework's own kernels, and the strategies of those kernels by size.
    Limit(Bytes, Vec<(Bytes, Strategy)>),
}

impl<'a> TableLookup<'a> {
    fn new(table: &'a AnyTable, setting: &'a CheckSetting<'a>) -> Self {
        let nodes = setting.chooser.communicator().map_or_else(|| hosts(setting), |communicator| communicator.nodes);
        let kind = match table {
            AnyTable::NcclTuner(table) => LookupKind::Tuner(Lookup::new(table, nodes, setting.ranks())),
            AnyTable::Ncclx(rules) => {
                let table = rules.table(nodes, setting.ranks());
                LookupKind::Tuner(Lookup::new(&table, nodes, setting.ranks()))
            }
            AnyTable::NcclEnv(file) => LookupKind::Chooser(Box::new(setting.chooser_with(file))),
            AnyTable::OpenMpi(rules) => LookupKind::Rules(rules),
            AnyTable::Plan(plan) => LookupKind::Plan(plan),
            AnyTable::AllReduceLimit(file) => LookupKind::Limit(file.limit, Vec::new()),
            // Schedules are checked by another function; this value is not used for them.
            AnyTable::Schedule(..) => LookupKind::Chooser(Box::new(setting.chooser.clone())),
        };
        Self { setting, kind }
    }

    fn select(&self, collective: Collective, bytes: Bytes) -> TableSelection {
        let ranks = self.setting.ranks();
        let call = Call { collective, bytes, ranks, root: Rank(0), buffers: BufferUse::OutOfPlace };
        match &self.kind {
            LookupKind::Tuner(lookup) => {
                let Some(function) = Function::from_collective(collective) else { return TableSelection::Default };
                let Some(answer) = lookup.find(function, bytes.0, 1, self.setting.buffers()) else {
                    return TableSelection::Default;
                };
                self.cell(&call, function, &answer)
            }
            LookupKind::Chooser(chooser) => match chooser.choose(&call) {
                Ok(choice) => TableSelection::from_strategy(choice.strategy),
                Err(unknown) => TableSelection::Invalid(None, unknown.to_string()),
            },
            LookupKind::Rules(rules) => {
                let Some(routine) = Routine::from_collective(collective) else { return TableSelection::Default };
                let Some(rule) = rules.find(routine, open_mpi::Ranks { ranks, hosts: hosts(self.setting) }, bytes.0)
                else {
                    return TableSelection::Default;
                };
                let modelled = routine.modelled_algorithms().filter(|(number, _)| *number == rule.algorithm);
                let schedule_algorithm =
                    modelled.filter_map(|(_, algorithm)| mpi::equivalent_schedule(algorithm, collective)).next();
                match schedule_algorithm {
                    Some(algorithm) => TableSelection::from_strategy(Strategy::new(algorithm, Protocol::Simple, 1)),
                    None => {
                        let name = routine.algorithm(rule.algorithm).unwrap_or("unknown");
                        let selected = SelectedStrategy { algorithm: name.to_owned(), protocol: None, channels: None };
                        TableSelection::Invalid(
                            Some(selected),
                            format!("there is no schedule of Open MPI's {name} here"),
                        )
                    }
                }
            }
            LookupKind::Limit(limit, strategies) => {
                let own = strategies.iter().find(|(size, _)| *size == bytes && bytes <= *limit);
                own.map_or(TableSelection::Default, |(_, strategy)| TableSelection::from_strategy(*strategy))
            }
            LookupKind::Plan(plan) => match plan.find_range(collective, bytes) {
                None => TableSelection::Default,
                Some(range) => self.range(&call, range),
            },
        }
    }

    /// Selection of a range of fabricast's table. For NCCL, the range is converted to a cell of NCCL's tables.
    fn range(&self, call: &Call, range: &SavedRange) -> TableSelection {
        let (algorithm, protocol, channels) = (range.algorithm, range.protocol, range.channels);
        let strategy = Strategy::new(algorithm, protocol, channels);
        let is_nccl = matches!(self.setting.chooser.library(), Library::Nccl(_));
        let cell = (
            Function::from_collective(call.collective),
            Algo::from_algorithm(algorithm),
            Proto::from_protocol(protocol),
            NonZeroU16::new(channels),
        );
        let max_channels = if is_nccl { MAX_CHANNELS } else { MAX_CHANNELS_ANY };
        match cell {
            _ if channels > max_channels => TableSelection::Invalid(
                Some(strategy.into()),
                format!("{channels} channels: expected at most {max_channels}"),
            ),
            (Some(function), Some(algo), Some(proto), channels @ Some(_)) if is_nccl => {
                self.cell(call, function, &nccl_tuner::TableEntry { algo, proto, channels, row: 0 })
            }
            _ => TableSelection::from_strategy(strategy),
        }
    }

    /// Selection of a cell of NCCL's tables. NCCL's own channel count applies if the row names none.
    fn cell(&self, call: &Call, function: Function, answer: &nccl_tuner::TableEntry) -> TableSelection {
        let cells = self.setting.chooser.table();
        let invalid = |reason: String| {
            let algorithm = answer
                .algo
                .to_algorithm()
                .map_or_else(|| answer.algo.to_string(), |algorithm| algorithm.name().to_owned());
            let channels = answer.channels.map(NonZeroU16::get);
            TableSelection::Invalid(
                Some(SelectedStrategy { algorithm, protocol: Some(answer.proto.to_protocol()), channels }),
                reason,
            )
        };
        if let Some(Err(reason)) = cells.map(|cells| cells.cell(function, answer.algo, answer.proto).availability) {
            return invalid(format!("{} {}: {reason}", answer.algo, answer.proto));
        }
        let Some(algorithm) = answer.algo.to_algorithm() else {
            return invalid(format!("there is no schedule of {} here", answer.algo));
        };
        let channels = answer.channels.map(NonZeroU16::get);
        match self.setting.chooser.predict_strategy(
            call,
            AlgoProto { algo: answer.algo, proto: answer.proto },
            answer.channels,
        ) {
            Some(strategy) => TableSelection::Strategy { strategy, channels: channels.unwrap_or(strategy.channels) },
            None => {
                let channels = channels.unwrap_or(1);
                let protocol = answer.proto.to_protocol();
                TableSelection::from_strategy(Strategy::new(algorithm, protocol, channels))
            }
        }
    }
}

impl TableSelection {
    fn from_strategy(strategy: Strategy) -> Self {
        Self::Strategy { strategy, channels: strategy.channels }
    }
}

impl CheckSetting<'_> {
    /// Predictor of NCCL's choices with a settings file, under the other conditions of the check.
    fn chooser_with(&self, file: &SettingsFile) -> Chooser {
        let conditions = self.chooser.conditions();
        let settings = file.settings_with_defaults(&conditions.settings);
        let conditions = Conditions { settings, ..conditions.clone() };
        Chooser::new(self.chooser.library(), self.fabric, self.router, self.placement, conditions)
    }
}

fn hosts(setting: &CheckSetting<'_>) -> u32 {
    (setting.ranks() / setting.fabric.max_devices_per_host(setting.placement)).max(1)
}
