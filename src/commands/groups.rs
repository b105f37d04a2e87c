//! `simulate --group`: the same call on several groups of ranks at once.

use fabricast_planner::bound::Bounds;
use fabricast_planner::plan::{algbw_gbps, busbw_gbps};
use fabricast_reports::format;
use fabricast_reports::table::{Column, Table, Unit, Value};
use fabricast_sim::engine::Recording;
use fabricast_sim::lower::Setting;
use fabricast_sim::schedule::{Generate, Header};
use fabricast_sim::{Party, Surroundings, Timeline, simulate_together};
use fabricast_topologies::route::Router;
use fabricast_topologies::{Bytes, Fabric, NodeId, Picos};
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::simulate::watched;
use super::{counted, strategy};
use crate::args::{RankSet, SimulateArgs};
use crate::failure::Failure;
use crate::output::{self, Format, Output};
use crate::setup;

pub fn run(args: &SimulateArgs, fabric: &Fabric, output: &Output) -> Result<(), Failure> {
    let ranks = setup::ranks(fabric, args.fabric.ranks_per_gpu)?;
    let router = Router::new(fabric, setup::route_options(&args.fabric.size));
    let profile = setup::profile(&args.costs, fabric)?;
    setup::sources(fabric, &profile, output);
    let mode = setup::launch_mode(&args.costs, fabric, &ranks);
    let placements = placements(&args.groups, &ranks)?;
    let everywhere = setup::delays(&args.stragglers, fabric, &ranks)?;
    let delay_of: FxHashMap<NodeId, Picos> = ranks.iter().copied().zip(everywhere).collect();
    let generators: Vec<Box<dyn Generate + Send + Sync>> = placements
        .iter()
        .map(|placement| {
            let place = strategy::Place { fabric, router: &router, placement, profile: &profile, mode };
            strategy::single(&args.call, &args.strategy, place)
        })
        .collect::<Result<_, _>>()?;
    let delays: Vec<Vec<Picos>> = placements
        .iter()
        .map(|placement| placement.iter().map(|gpu| delay_of.get(gpu).copied().unwrap_or_default()).collect())
        .collect();
    let background = setup::background(args.background.as_deref(), fabric)?;
    let surroundings = Surroundings { folding: args.folding(), background: &background };
    let settings = placements.iter().zip(&delays).map(|(p, d)| setup::setting(fabric, &router, p, &profile, d));
    let settings: Vec<Setting<'_>> = settings.collect();
    let parties: Vec<Party<'_>> = generators
        .iter()
        .zip(&settings)
        .map(|(generator, &setting)| Party { generator: generator.as_ref(), setting })
        .collect();
    let (together, alone) = watched(output, Recording::End, |watch| {
        let together = simulate_together(&parties, mode, surroundings, watch)?;
        let alone = parties.iter().map(|&party| simulate_together(&[party], mode, surroundings, watch));
        Ok::<_, Failure>((together, alone.collect::<Result<Vec<_>, _>>()?))
    })?;
    let groups = args.groups.iter().zip(&parties).zip(together.party_times.iter().zip(&alone));
    let groups = groups.map(|((set, party), (&time, alone))| {
        let call = party.generator.header().call;
        let bounds = Bounds::new(fabric, &router, party.setting.placement, call.root.0);
        let bounds = bounds.with(setup::in_network(&args.strategy));
        let bound = bounds.with_matrix(party.generator.header().matrix().as_ref()).of(&call).time;
        Group::new(set, party.generator.header(), time, alone.time, bound)
    });
    let answer = Answer::new(&together, groups.collect());
    let text = match output.format {
        Format::Json => output::json(&answer)?,
        Format::Text => answer.text(fabric.name(), &profile.name, output),
        Format::Csv => super::csv(&answer.table())?,
    };
    output.write(&text)
}

/// The devices of each group; no rank is in two.
fn placements(groups: &[RankSet], gpus: &[NodeId]) -> Result<Vec<Vec<NodeId>>, Failure> {
    let mut taken = vec![false; gpus.len()];
    let mut placements = Vec::with_capacity(groups.len());
    for group in groups {
        let mut placement = Vec::with_capacity(group.ranks.len());
        for &rank in &group.ranks {
            let Some(&gpu) = gpus.get(rank as usize) else {
                let message = format!("--group {}: there is no rank {rank}; the fabric has {}", group.text, gpus.len());
                return Err(Failure::input(message));
            };
            if std::mem::replace(&mut taken[rank as usize], true) {
                return Err(Failure::input(format!("--group {}: rank {rank} is in another group", group.text)));
            }
            placement.push(gpu);
        }
        placements.push(placement);
    }
    Ok(placements)
}

/// What `simulate --group … --format json` prints.
#[derive(Serialize)]
struct Answer {
    collective: &'static str,
    bytes: Bytes,
    time_us: f64,
    operations: u64,
    events: u64,
    folded: bool,
    fold_factor: f64,
    groups: Vec<Group>,
}

/// What came out for one group.
#[derive(Serialize)]
struct Group {
    ranks: Vec<u32>,
    schedule: String,
    protocol: &'static str,
    channels: u16,
    time_us: f64,
    /// What it would have taken without the others.
    alone_us: f64,
    algbw_gbps: f64,
    busbw_gbps: f64,
    bound_us: f64,
    #[serde(skip)]
    name: String,
    #[serde(skip)]
    time: Picos,
    #[serde(skip)]
    alone: Picos,
    #[serde(skip)]
    bound: Picos,
    #[serde(skip)]
    collective: &'static str,
    #[serde(skip)]
    bytes: Bytes,
}

impl Group {
    fn new(set: &RankSet, header: &Header, time: Picos, alone: Picos, bound: Picos) -> Self {
        let call = header.call;
        Self {
            ranks: set.ranks.clone(),
            schedule: header.name.clone(),
            protocol: header.protocol.name(),
            channels: header.channels,
            time_us: time.us(),
            alone_us: alone.us(),
            algbw_gbps: algbw_gbps(header.size(), time),
            busbw_gbps: busbw_gbps(call.collective, header.size(), time, call.ranks),
            bound_us: bound.us(),
            name: set.text.clone(),
            time,
            alone,
            bound,
            collective: call.collective.name(),
            bytes: call.bytes,
        }
    }
}

impl Answer {
    fn new(together: &Timeline, groups: Vec<Group>) -> Self {
        let first = groups.first();
        Self {
            collective: first.map_or("", |group| group.collective),
            bytes: first.map_or(Bytes(0), |group| group.bytes),
            time_us: together.time.us(),
            operations: together.operations,
            events: together.events,
            folded: together.fold_factor.is_some(),
            fold_factor: together.fold_factor.unwrap_or(1.0),
            groups,
        }
    }

    fn table(&self) -> Table {
        let mut table = Table::new(vec![
            Column::new("ranks", "ranks", Unit::Text),
            Column::new("schedule", "schedule", Unit::Text),
            Column::new("protocol", "protocol", Unit::Text),
            Column::new("channels", "channels", Unit::Number),
            Column::new("time_us", "time", Unit::Micros),
            Column::new("alone_us", "alone", Unit::Micros),
            Column::new("algbw_gbps", "algbw", Unit::Gbps),
            Column::new("busbw_gbps", "busbw", Unit::Gbps),
            Column::new("bound_us", "bound alone", Unit::Micros),
        ]);
        for group in &self.groups {
            table.row(vec![
                Value::text(&*group.name).into(),
                Value::text(&*group.schedule).into(),
                Value::text(group.protocol).into(),
                Value::Count(group.channels.into()).into(),
                Value::Time(group.time).into(),
                Value::Time(group.alone).into(),
                Value::Rate(group.algbw_gbps).into(),
                Value::Rate(group.busbw_gbps).into(),
                Value::Time(group.bound).into(),
            ]);
        }
        table
    }

    fn text(&self, fabric: &str, profile: &str, output: &Output) -> String {
        let mut table = self.table();
        let groups = counted(self.groups.len() as u64, "group");
        let bytes = format::bytes(self.bytes);
        table.heading(format!("{} of {bytes} on {fabric} · {groups} at once · profile {profile}", self.collective));
        table.text(&output.look())
    }
}
