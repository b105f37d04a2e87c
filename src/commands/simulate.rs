//! `simulate`: one run of one strategy, or of a schedule file.

use fabricast_planner::bound::Bounds;
use fabricast_planner::plan::{algbw_gbps, busbw_gbps};
use fabricast_reports::format;
use fabricast_reports::share::{self, Part};
use fabricast_reports::table::{Column, Table, Unit, Value};
use fabricast_reports::trace::{self, TraceSpan};
use fabricast_sim::engine::{Recording, Watch};
use fabricast_sim::lower::Resource;
use fabricast_sim::schedule::{Generate, Header, Rank};
use fabricast_sim::timeline::Utilization;
use fabricast_sim::{Folding, Surroundings, Timeline, simulate};
use fabricast_topologies::route::Router;
use fabricast_topologies::{Bytes, Fabric, LinkId, NodeId, Picos};
use serde::Serialize;

use super::{binds, counted, strategy};
use crate::args::SimulateArgs;
use crate::failure::Failure;
use crate::output::{self, Format, Output};
use crate::{setup, watch};

pub fn run(args: &SimulateArgs, output: &Output) -> Result<(), Failure> {
    if let Some(path) = &args.trace {
        output.check_beside(path)?;
    }
    let fabric = setup::fabric(&args.fabric.fabric, &args.fabric.size, &args.what_if, output)?;
    if let Some(path) = &args.flows {
        return super::flows::run(args, path, &fabric, output);
    }
    let gpus = setup::ranks(&fabric)?;
    let router = Router::new(&fabric, setup::route_options(&args.fabric.size));
    let profile = setup::profile(&args.costs, &fabric)?;
    setup::sources(&fabric, &profile, output);
    let generator: Box<dyn Generate + Send + Sync> = match &args.schedule {
        Some(path) => {
            let bytes = args.call.bytes.map(|size| args.call.whole(size)).transpose()?;
            Box::new(super::schedule::read(path)?.scaled(bytes))
        }
        None => {
            let mode = setup::launch_mode(&args.costs, &fabric);
            let place = strategy::Place { fabric: &fabric, router: &router, profile: &profile, mode };
            strategy::single(&args.call, &args.strategy, place)?
        }
    };
    let call = generator.header().call;
    let placement = placement(gpus, call.ranks)?;
    let delays = setup::delays(&args.stragglers, &fabric, placement)?;
    let setting = setup::setting(&fabric, &router, placement, &profile, &delays);
    let mode = setup::launch_mode(&args.costs, &fabric);
    let recording = if args.trace.is_some() { Recording::Spans } else { Recording::End };
    let watching = Watch { interrupt: Some(watch::interrupt()), recording, ..Watch::default() };
    let background = match &args.background {
        Some(path) => setup::flows(path, &fabric)?,
        None => Vec::new(),
    };
    let folding = if args.no_fold { Folding::Off } else { Folding::WhereProved };
    let surroundings = Surroundings { folding, background: &background };
    let timeline = simulate(generator.as_ref(), setting, mode, surroundings, watching)?;
    let bound = Bounds::new(&fabric, &router, placement, call.root.0).of(&call);
    let answer = Answer::new(generator.header(), &timeline, bound.time, &fabric, output.format);
    let text = match output.format {
        Format::Json => output::json(&answer)?,
        Format::Text => answer.text(fabric.name(), &profile.name, output),
        Format::Csv => super::csv(&answer.table(Figures::WithLabels))?,
    };
    match &args.trace {
        Some(path) => output.write_with(&text, Some((path, &trace_of(generator.as_ref(), &timeline, output)?))),
        None => output.write(&text),
    }
}

fn placement(gpus: &[NodeId], ranks: u32) -> Result<&[NodeId], Failure> {
    gpus.get(..ranks as usize).ok_or_else(|| {
        Failure::input(format!("the schedule has {ranks} ranks and the fabric has {} GPUs in use", gpus.len()))
    })
}

/// What `simulate --format json` prints.
#[derive(Serialize)]
struct Answer {
    schedule: String,
    protocol: &'static str,
    channels: u16,
    collective: &'static str,
    bytes: Bytes,
    ranks: u32,
    time_us: f64,
    algbw_gbps: f64,
    busbw_gbps: f64,
    bound_us: f64,
    bound_share: f64,
    binds: String,
    operations: u64,
    events: u64,
    folded: bool,
    fold_factor: f64,
    cost_us: CostsJson,
    links: Vec<LinkJson>,
    links_omitted: usize,
    #[serde(skip)]
    busiest: Option<String>,
    #[serde(skip)]
    time: Picos,
    #[serde(skip)]
    bound: Picos,
    #[serde(skip)]
    costs: Vec<Part>,
}

/// What a table of a run holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Figures {
    /// What came out, for a text that says above what was run.
    Alone,
    /// What was run, too.
    WithLabels,
}

#[derive(Serialize)]
struct CostsJson {
    software: f64,
    latency: f64,
    bandwidth: f64,
    waiting: f64,
}

/// How much of a link direction was used.
#[derive(Serialize)]
pub struct LinkJson {
    link: String,
    bytes: u64,
    utilization: f64,
}

/// Links are listed up to this number; of more, those that were used most.
const MOST_LINKS: usize = 20_000;

impl LinkJson {
    /// The links among the capacities that were used, in order of id, and how many were left out.
    pub fn list(utilization: &[Utilization], fabric: &Fabric) -> (Vec<Self>, usize) {
        let mut links: Vec<(LinkId, &Utilization)> = utilization
            .iter()
            .filter_map(|used| match used.resource {
                Resource::Link(link) => Some((link, used)),
                _ => None,
            })
            .collect();
        let omitted = links.len().saturating_sub(MOST_LINKS);
        if omitted > 0 {
            links.sort_by(|a, b| b.1.fraction.total_cmp(&a.1.fraction).then(a.0.cmp(&b.0)));
            links.truncate(MOST_LINKS);
        }
        links.sort_by_key(|&(link, _)| link);
        let listed = links.into_iter().map(|(link, used)| Self {
            link: fabric.link_name(link),
            bytes: used.bytes.round() as u64,
            utilization: used.fraction,
        });
        (listed.collect(), omitted)
    }
}

impl Answer {
    fn new(header: &Header, timeline: &Timeline, bound: Picos, fabric: &Fabric, format: Format) -> Self {
        // Only JSON lists links; naming half a million of them takes a while.
        let (links, links_omitted) = match format {
            Format::Json => LinkJson::list(&timeline.utilization, fabric),
            Format::Text | Format::Csv => Default::default(),
        };
        let call = header.call;
        let costs = timeline.costs;
        let part = |name: &str, time| Part { name: name.to_owned(), time };
        Self {
            schedule: header.name.clone(),
            protocol: header.protocol.name(),
            channels: header.channels,
            collective: call.collective.name(),
            bytes: call.bytes,
            ranks: call.ranks,
            time_us: timeline.time.us(),
            algbw_gbps: algbw_gbps(call.bytes, timeline.time),
            busbw_gbps: busbw_gbps(call.collective, call.bytes, timeline.time, call.ranks),
            bound_us: bound.us(),
            bound_share: if timeline.time.0 == 0 { 1.0 } else { bound.0 as f64 / timeline.time.0 as f64 },
            binds: binds::of_utilization(&timeline.utilization, fabric),
            operations: timeline.operations,
            events: timeline.events,
            folded: timeline.fold_factor.is_some(),
            fold_factor: timeline.fold_factor.unwrap_or(1.0),
            cost_us: CostsJson {
                software: costs.software.us(),
                latency: costs.latency.us(),
                bandwidth: costs.bandwidth.us(),
                waiting: costs.waiting.us(),
            },
            links,
            links_omitted,
            busiest: busiest_links(&timeline.utilization, fabric),
            time: timeline.time,
            bound,
            costs: vec![
                part("software", costs.software),
                part("latency", costs.latency),
                part("bandwidth", costs.bandwidth),
                part("waiting", costs.waiting),
            ],
        }
    }

    /// What was run, then what came out.
    fn table(&self, figures: Figures) -> Table {
        let labels = [
            (Column::new("collective", "collective", Unit::Text), Value::text(self.collective)),
            (Column::new("schedule", "schedule", Unit::Text), Value::text(&*self.schedule)),
            (Column::new("protocol", "protocol", Unit::Text), Value::text(self.protocol)),
            (Column::new("channels", "channels", Unit::Number), Value::Count(self.channels.into())),
            (Column::new("ranks", "ranks", Unit::Number), Value::Count(self.ranks.into())),
            (Column::new("bytes", "size", Unit::Bytes), Value::Bytes(self.bytes)),
        ];
        let results = [
            (Column::new("time_us", "time", Unit::Micros), Value::Time(self.time)),
            (Column::new("algbw_gbps", "algbw", Unit::Gbps), Value::Rate(self.algbw_gbps)),
            (Column::new("busbw_gbps", "busbw", Unit::Gbps), Value::Rate(self.busbw_gbps)),
            (Column::new("bound_us", "bound", Unit::Micros), Value::Time(self.bound)),
            (Column::new("bound_share", "of bound", Unit::Percent), Value::Share(self.bound_share)),
            (Column::new("binds", "binds", Unit::Text), Value::text(&*self.binds)),
        ];
        let labels = labels.into_iter().filter(|_| figures == Figures::WithLabels);
        let (columns, values): (Vec<Column>, Vec<Value>) = labels.chain(results).unzip();
        let mut table = Table::new(columns);
        table.row(values.into_iter().map(Into::into).collect());
        table
    }

    fn text(&self, fabric: &str, profile: &str, output: &Output) -> String {
        let mut table = self.table(Figures::Alone);
        table.heading(format!(
            "{} of {} on {fabric} · {} · {} {} × {} · profile {profile}",
            self.collective,
            format::bytes(self.bytes),
            counted(self.ranks.into(), "rank"),
            self.schedule,
            self.protocol,
            self.channels
        ));
        let mut text = table.text(&output.look());
        text.push_str("\nwhere the time goes\n");
        text.push_str(&share::bars(&self.costs, 40, output.look().glyphs));
        text.push('\n');
        if let Some(busiest) = &self.busiest {
            text.push_str(&format!("busiest links: {busiest}\n"));
        }
        let folded = if self.folded {
            format!(", folded {}-fold", format::grouped(self.fold_factor.round() as u64))
        } else {
            String::new()
        };
        let (operations, events) = (counted(self.operations, "operation"), counted(self.events, "event"));
        text.push_str(&format!("{operations}{folded}, {events}\n"));
        text
    }
}

/// The link that was used most, how many others were used as much, and how much that is.
fn busiest_links(utilization: &[Utilization], fabric: &Fabric) -> Option<String> {
    let links = || utilization.iter().filter(|used| matches!(used.resource, Resource::Link(_)));
    let most = links().reduce(|a, b| if b.fraction > a.fraction { b } else { a }).filter(|most| most.bytes > 0.0)?;
    let like = links().filter(|used| used.fraction >= most.fraction * 0.999).count();
    let others = if like > 1 { format!(" and {} more", format::grouped(like as u64 - 1)) } else { String::new() };
    let share = format::percent(most.fraction);
    Some(format!("{}{others}, used to {share} %", binds::name(most.resource, fabric)))
}

/// A span per operation, a process per rank, a thread per channel.
fn trace_of(generator: &dyn Generate, timeline: &Timeline, output: &Output) -> Result<Vec<u8>, Failure> {
    let lanes = Lanes::new(generator);
    let spans = timeline.spans.iter().map(|span| {
        let rank = timeline.rank_of(span.run);
        let run = lanes.run(rank, span.run - timeline.rank_starts[rank.0 as usize]);
        TraceSpan {
            rank,
            channel: run.channel,
            name: lanes.name(rank, span.run - timeline.rank_starts[rank.0 as usize], span.index).into(),
            start: span.ready,
            end: span.done,
            arguments: vec![
                ("operation", trace::Argument::Number(span.index.into())),
                ("first byte", trace::Argument::Time(span.flowing)),
            ],
        }
    });
    let mut bytes = Vec::new();
    let written = trace::write(spans, trace::BUDGET, &mut bytes)
        .map_err(|error| Failure::Failed(format!("cannot write the trace: {error}")))?;
    if written.joined > 1 {
        output.warn(&format!("the trace joins {} operations into one span to stay small", written.joined));
    }
    Ok(bytes)
}

/// The runs of all ranks, to name the spans of a trace.
struct Lanes(Vec<fabricast_sim::schedule::Program>);

impl Lanes {
    fn new(generator: &dyn Generate) -> Self {
        let programs = (0..generator.header().call.ranks).map(|rank| {
            let mut program = fabricast_sim::schedule::Program::default();
            generator.program(Rank(rank), &mut program);
            program
        });
        Self(programs.collect())
    }

    fn run(&self, rank: Rank, run: u32) -> &fabricast_sim::schedule::Run {
        &self.0[rank.0 as usize].runs()[run as usize]
    }

    fn name(&self, rank: Rank, run: u32, index: u32) -> String {
        let run = self.run(rank, run);
        let chunk = run.dst.at(index);
        if run.kind.is_transfer() {
            format!(
                "{} chunk {chunk} {} rank {}",
                run.kind.name(),
                if run.kind.reads_peer() { "from" } else { "to" },
                run.peer.at(index)
            )
        } else {
            format!("{} chunk {chunk}", run.kind.name())
        }
    }
}
