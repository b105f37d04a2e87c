//! Tables on the page of a study.

use fabricast_study::answer::{
    Answer, CandidateRow, CostsRow, JobKind, JobRow, ModelRow, RankedRow, ResultRow, ScoreRow,
};

use super::{candidate_results, price, step_term};
use crate::format;
use crate::table::{Cell, Column, Emphasis, Table, Unit, Value};

pub(super) fn text(key: &str, title: &str) -> Column {
    Column::new(key, title, Unit::Text)
}

pub(super) fn number(key: &str, title: &str) -> Column {
    Column::new(key, title, Unit::Number)
}

pub(super) fn share(key: &str, title: &str) -> Column {
    Column::new(key, title, Unit::Percent)
}

fn optional_number(value: Option<f64>) -> Cell {
    Value::or_missing(value, Value::Number).into()
}

fn words(values: &[String]) -> Cell {
    if values.is_empty() { Value::Missing.into() } else { Value::text(values.join("; ")).into() }
}

/// Column, and the function that computes its cell from a row.
type Field<'a, R> = (Column, Box<dyn Fn(&R) -> Cell + 'a>);

/// Creates a table without the columns that are empty in all rows.
fn filled<R>(rows: &[R], fields: Vec<Field<'_, R>>) -> Table {
    let fields: Vec<_> = fields.into_iter().filter(|(_, cell)| rows.iter().any(|row| cell(row).is_known())).collect();
    let (columns, cells): (Vec<Column>, Vec<_>) = fields.into_iter().unzip();
    let mut table = Table::new(columns);
    rows.iter().for_each(|row| table.row(cells.iter().map(|cell| cell(row)).collect()));
    table
}

macro_rules! fields {
    ($($column:expr => $cell:expr),* $(,)?) => { vec![$(($column, Box::new($cell) as Box<dyn Fn(&_) -> Cell>)),*] };
}

pub(super) fn ranking(answer: &Answer) -> Table {
    let first = |row: &RankedRow| candidate_results(answer, &row.candidate).next();
    // The cost is that of the whole machine, although a job may leave some GPUs idle.
    let machine = |row: &RankedRow| answer.candidates.iter().find(|one| one.name == row.candidate);
    let score = format!(
        "{} per {}",
        if answer.scored_by().is_cost() { &answer.currency } else { "s" },
        answer.scored_by().unit()
    );
    let name = |row: &RankedRow| {
        let cell = Cell::from(Value::text(&row.candidate));
        if row.rank == 1 && row.meets_constraints { cell.tone(Emphasis::Strong) } else { cell }
    };
    let beyond = |row: &RankedRow| match row.violations.is_empty() {
        true => Cell::from(Value::Missing),
        false => Cell::from(Value::text(row.violations.join("; "))).tone(Emphasis::Bad),
    };
    let pareto = |row: &RankedRow| {
        Cell::from(Value::or_missing(row.pareto, |front| {
            Value::text(if front { "Pareto-optimal" } else { "dominated" })
        }))
    };
    let hourly = |row: &RankedRow| optional_number(first(row).and_then(|one| one.cost_per_hour));
    filled(
        &answer.ranking,
        fields![
            number("rank", "rank") => |row: &RankedRow| Value::Count(row.rank as u64).into(),
            text("candidate", "candidate") => name,
            number("score", &score) => |row: &RankedRow| optional_number(row.score),
            share("probability_best", "P(best)") => |row: &RankedRow| Value::or_missing(row.best_probability(), Value::Share).into(),
            text("pareto", "cost and speed") => pareto,
            number("gpus", "GPUs") => |row: &RankedRow| Value::or_missing(machine(row), |one| Value::Count(one.gpus)).into(),
            number("cost_per_hour", &format!("{} per hour", answer.currency)) => hourly,
            number("cost_per_month", &format!("{} per month", answer.currency)) => |row: &RankedRow| optional_number(machine(row).and_then(|one| Some(one.costs?.total_per_month))),
            text("jobs", "its jobs") => |row: &RankedRow| words(&row.jobs),
            text("violations", "constraints violated") => beyond,
        ],
    )
}

pub(super) fn results(answer: &Answer) -> Table {
    let seconds = |value: Option<f64>| Cell::from(Value::or_missing(value, Value::Number));
    let fits = |row: &ResultRow| match (row.memory_excess_gb, row.host_memory_excess_gb) {
        (Some(over), _) => {
            Cell::from(Value::text(format!("no, by {} GB", format::significant(over)))).tone(Emphasis::Bad)
        }
        (None, Some(over)) => {
            let violation = format!("no, by {} GB of the CPUs' memory", format::significant(over));
            Cell::from(Value::text(violation)).tone(Emphasis::Bad)
        }
        (None, None) => Value::text(if row.fits { "yes" } else { "no" }).into(),
    };
    let money = &answer.currency;
    filled(
        &answer.results,
        fields![
            text("candidate", "candidate") => |row: &ResultRow| Value::text(&row.candidate).into(),
            text("job", "job") => |row: &ResultRow| Value::text(&row.job).into(),
            number("ranks", "GPUs") => |row: &ResultRow| Value::Count(row.ranks).into(),
            text("parallel", "parallel") => |row: &ResultRow| Value::or_missing(row.parallel, |parallel| Value::text(parallel.to_string())).into(),
            number("step_time_s", "step s") => |row: &ResultRow| Value::Number(row.step_time_s).into(),
            number("concurrent_requests", "concurrent requests") => |row: &ResultRow| Value::or_missing(row.concurrent_requests, Value::Count).into(),
            number("ttft_s", "TTFT s") => move |row: &ResultRow| seconds(row.ttft_s),
            number("adapter_swap_s", "Adapter swap s") => move |row: &ResultRow| seconds(row.adapter_swap_s),
            number("ttft_p99_s", "TTFT p99 s") => move |row: &ResultRow| seconds(row.latencies.and_then(|latencies| Some(latencies.ttft_s?.p99))),
            number("tpot_s", "TPOT s") => move |row: &ResultRow| seconds(row.tpot_s),
            number("tokens_per_s", "tokens/s") => |row: &ResultRow| optional_number(row.tokens_per_s),
            share("exposed_comm_share", "exposed communication") => |row: &ResultRow| Value::Share(row.exposed_comm_share).into(),
            share("hidden_comm_share", "hidden part of communication") => |row: &ResultRow| Value::or_missing(row.hidden_comm_share, Value::Share).into(),
            share("efficiency", "efficiency vs 1 GPU") => |row: &ResultRow| Value::or_missing(row.efficiency, Value::Share).into(),
            share("efficiency_node", "efficiency vs 1 node") => |row: &ResultRow| Value::or_missing(row.efficiency_node, Value::Share).into(),
            number("memory_gb", "memory GB") => |row: &ResultRow| optional_number(row.memory_gb),
            text("fits", "fits") => fits,
            number("cost_per_hour", &format!("{money} per hour")) => |row: &ResultRow| optional_number(row.cost_per_hour),
            number("cost_per_step", &format!("{money} per step")) => |row: &ResultRow| optional_number(row.cost_per_step.filter(|_| row.kind == JobKind::Trace)),
            number("cost_per_million_tokens", &format!("{money} per M tokens")) => |row: &ResultRow| optional_number(row.cost_per_million_tokens),
            number("cost_per_million_tokens_low", "low") => |row: &ResultRow| optional_number(row.cost_per_million_tokens_low),
            number("cost_per_million_tokens_high", "high") => |row: &ResultRow| optional_number(row.cost_per_million_tokens_high),
            number("kwh_per_million_tokens", "kWh per M tokens") => |row: &ResultRow| optional_number(row.kwh_per_million_tokens),
            number("kwh_per_million_tokens_low", "low kWh") => |row: &ResultRow| optional_number(row.kwh_per_million_tokens_low),
            number("kwh_per_million_tokens_high", "high kWh") => |row: &ResultRow| optional_number(row.kwh_per_million_tokens_high),
            number("time_to_train_h", "hours to train") => |row: &ResultRow| optional_number(row.time_to_train_h),
            number("cost_to_train", &format!("{money} to train")) => |row: &ResultRow| optional_number(row.cost_to_train),
            share("goodput", "goodput") => |row: &ResultRow| Value::or_missing(row.goodput, |goodput| Value::Share(goodput.share)).into(),
            share("goodput_low", "low goodput") => |row: &ResultRow| Value::or_missing(row.goodput, |goodput| Value::Share(goodput.low)).into(),
            share("goodput_high", "high goodput") => |row: &ResultRow| Value::or_missing(row.goodput, |goodput| Value::Share(goodput.high)).into(),
            number("failures_per_month", "failures per 30 days") => |row: &ResultRow| optional_number(row.goodput.map(|goodput| goodput.failures_per_month)),
            number("checkpoint_interval_s", "checkpoint every s") => |row: &ResultRow| optional_number(row.goodput.map(|goodput| goodput.checkpoint_interval_s)),
            text("slo_violations", "SLO violations") => |row: &ResultRow| words(&row.slo_violations),
            text("would_fit", "changes that would fit") => |row: &ResultRow| words(&row.would_fit),
            text("bottleneck", "bottleneck") => |row: &ResultRow| Value::text(step_term(&row.bottleneck)).into(),
        ],
    )
}

/// Costs of the candidates per year, per month and over the depreciation period.
#[must_use]
pub fn costs(answer: &Answer) -> Table {
    let priced: Vec<(&CandidateRow, CostsRow)> =
        answer.candidates.iter().filter_map(|row| Some((row, row.costs?))).collect();
    let money = |value: f64| Cell::from(Value::or_missing(Some(value).filter(|value| *value > 0.0), Value::Number));
    let total = format!("{} years", answer.assumptions.years);
    let mut table = filled(
        &priced,
        fields![
            text("candidate", "candidate") => |(row, _): &(&CandidateRow, CostsRow)| Value::text(&row.name).into(),
            number("total_per_month", "per month") => move |(_, costs): &(&CandidateRow, CostsRow)| money(costs.total_per_month),
            number("total_per_year", "per year") => move |(_, costs): &(&CandidateRow, CostsRow)| money(costs.total_per_year),
            number("total", &total) => move |(_, costs): &(&CandidateRow, CostsRow)| money(costs.total),
            number("purchase", "purchase").spare() => move |(_, costs): &(&CandidateRow, CostsRow)| money(costs.purchase),
            number("depreciation_per_year", "depreciation/year").spare() => move |(_, costs): &(&CandidateRow, CostsRow)| money(costs.depreciation_per_year),
            number("rent_per_year", "rent/year").spare() => move |(_, costs): &(&CandidateRow, CostsRow)| money(costs.rent_per_year),
            number("energy_per_year", "energy/year").spare() => move |(_, costs): &(&CandidateRow, CostsRow)| money(costs.energy_per_year),
            number("cooling_per_year", "cooling/year").spare() => move |(_, costs): &(&CandidateRow, CostsRow)| money(costs.cooling_per_year),
            number("hosting_per_year", "hosting/year").spare() => move |(_, costs): &(&CandidateRow, CostsRow)| money(costs.hosting_per_year),
            number("maintenance_per_year", "maintenance/year").spare() => move |(_, costs): &(&CandidateRow, CostsRow)| money(costs.maintenance_per_year),
            number("staff_per_year", "staff/year").spare() => move |(_, costs): &(&CandidateRow, CostsRow)| money(costs.staff_per_year),
        ],
    );
    let stated = &answer.assumptions;
    table.note(format!(
        "middle of the price bands; energy, cooling and rent in the hours of use, {} % of all",
        format::percent(stated.utilization)
    ));
    table
}

pub(super) fn sensitivities(answer: &Answer) -> Table {
    let best: Vec<&str> =
        answer.comparable_groups().iter().filter_map(|part| Some(part.first()?.candidate.as_str())).collect();
    let mut columns =
        vec![text("name", "assumption"), text("setting", "to"), text("first", "first"), text("changed", "order")];
    let candidates: Vec<&str> = answer.ranking.iter().map(|one| one.candidate.as_str()).collect();
    columns.extend(candidates.iter().map(|name| number(name, name)));
    columns.push(text("unchanged", "does not apply to"));
    let mut table = Table::new(columns);
    for row in &answer.sensitivities {
        let firsts = answer.first_candidates(row);
        let names: Vec<&str> = firsts.iter().map(|one| one.candidate.as_str()).collect();
        let no_candidate = |one: &ScoreRow| format!("none; {}: {}", one.candidate, one.violations.join("; "));
        let candidate_text =
            |one: &&ScoreRow| if one.meets_constraints { one.candidate.clone() } else { no_candidate(one) };
        let tone = match firsts.iter().any(|one| one.meets_constraints) {
            true if names == best => Emphasis::Plain,
            true => Emphasis::Strong,
            false => Emphasis::Bad,
        };
        let score = |name: &&str| {
            optional_number(row.ranking.iter().find(|one| one.candidate == *name).and_then(|one| one.score))
        };
        let mut cells: Vec<Cell> = vec![
            Value::text(row.name.replace('_', " ")).into(),
            Value::text(&row.setting).into(),
            words(&firsts.iter().map(candidate_text).collect::<Vec<_>>()).tone(tone),
            Value::text(if row.changed { "changes" } else { "stays" }).into(),
        ];
        cells.extend(candidates.iter().map(score));
        cells.push(if row.unchanged.is_empty() {
            Value::Missing.into()
        } else {
            Value::text(row.unchanged.join("; ")).into()
        });
        table.row(cells);
    }
    table
}

pub(super) fn candidates(answer: &Answer) -> Table {
    let mut table = Table::new(vec![
        text("candidate", "candidate"),
        text("fabric", "fabric"),
        number("nodes", "nodes"),
        number("gpus", "GPUs"),
        text("network", "network"),
        text("price", "price"),
        text("item", "from the list"),
        number("power_kw", "power kW"),
        number("racks", "racks"),
        text("profile", "profile"),
        text("location", "defined in"),
    ]);
    for one in &answer.candidates {
        let item = one.price.as_ref().and_then(|price| price.item.as_ref());
        table.row(vec![
            Value::text(&one.name).into(),
            Value::text(&one.fabric_name).into(),
            Value::Count(one.nodes).into(),
            Value::Count(one.gpus).into(),
            Value::or_missing(one.network.as_ref(), Value::text).into(),
            Value::or_missing(one.price.as_ref(), |one| Value::text(price(one, &answer.currency))).into(),
            Value::or_missing(item, Value::text).into(),
            power(one),
            optional_number(one.racks),
            Value::text(&one.profile).into(),
            Value::text(&one.location).into(),
        ]);
    }
    table
}

/// Returns the power of a candidate in kW, as a number or a range.
fn power(candidate: &CandidateRow) -> Cell {
    match (candidate.power_kw_low, candidate.power_kw_high) {
        (Some(low), Some(high)) => {
            Value::text(format!("{} to {}", format::significant(low), format::significant(high))).into()
        }
        _ => optional_number(candidate.power_kw),
    }
}

pub(super) fn jobs(answer: &Answer) -> Table {
    let kind = |job: &JobRow| Cell::from(Value::text(job.kind.name()));
    let batch = |job: &JobRow| {
        let trained = job.global_batch.zip(job.model);
        let trained = trained.map(|(batch, model)| format!("{batch} sequences of {} tokens", model.seq));
        let tokens = job.prompt_tokens.zip(job.output_tokens);
        let served = tokens.map(|(prompt, output)| {
            let count = job.concurrency.or(job.requests).map(|count| format!("{count} requests"));
            let (requests, arrival) = match (job.request_rate, count) {
                (Some(rate), count) => (
                    count.unwrap_or_else(|| "requests".to_owned()),
                    format!(", {} arrive per second", format::significant(rate)),
                ),
                (None, Some(count)) if job.requests.is_some() => (count, ", all queued at the start".to_owned()),
                (None, Some(count)) => (count, String::new()),
                (None, None) => ("as many requests as fit,".to_owned(), String::new()),
            };
            format!("{requests} of {prompt} prompt tokens and {output} output tokens{arrival}")
        });
        Cell::from(Value::or_missing(trained.or(served), Value::text))
    };
    let some = |value: Option<String>| Cell::from(Value::or_missing(value, Value::text));
    let other_keys = |job: &JobRow| {
        let keys = job.keys.iter().filter(|(key, _)| !SHOWN.contains(&key.as_str()));
        words(&keys.map(|(key, value)| format!("{key} = {value}")).collect::<Vec<_>>())
    };
    filled(
        &answer.jobs,
        fields![
            text("job", "job") => |job: &JobRow| Value::text(&job.name).into(),
            text("kind", "kind") => kind,
            number("weight", "weight") => |job: &JobRow| Value::Number(job.weight).into(),
            text("candidates", "runs on") => |job: &JobRow| words(&job.candidates),
            text("model", "model") => |job: &JobRow| some(job.model.map(model).or_else(|| job.file.clone())),
            text("precision", "precision") => |job: &JobRow| some(job.precision.clone()),
            text("batch", "batch") => batch,
            text("recompute", "recompute") => |job: &JobRow| some(job.recompute.clone()),
            text("placement", "ranks on GPUs") => |job: &JobRow| some(job.placement.as_deref().map(cut)),
            text("keys", "other keys") => other_keys,
            text("location", "defined in") => |job: &JobRow| Value::text(&job.location).into(),
        ],
    )
}

/// Job parameters that have separate columns.
const SHOWN: [&str; 13] = [
    "kind",
    "model",
    "precision",
    "global_batch",
    "recompute",
    "recompute_layers",
    "placement",
    "file",
    "prompt_tokens",
    "output_tokens",
    "concurrency",
    "requests",
    "request_rate",
];

/// Maximum number of characters of a placement in a table.
const MAX_SHOWN: usize = 40;

/// Returns a placement, truncated if it is longer than [`MAX_SHOWN`].
fn cut(placement: &str) -> String {
    match placement.char_indices().nth(MAX_SHOWN) {
        None => placement.to_owned(),
        Some((end, _)) => {
            let shown = placement.get(..end).unwrap_or_default();
            format!("{}, …", shown.rsplit_once(',').map_or(shown, |(head, _)| head))
        }
    }
}

fn model(model: ModelRow) -> String {
    let experts = match model.experts {
        0 => String::new(),
        some => format!(", {} of {some} experts", model.experts_per_token),
    };
    let parameters = format::significant(model.parameters as f64 / 1e9);
    format!("{parameters} billion parameters, {} layers of {}{experts}", model.layers, model.hidden)
}

pub(super) fn sources(answer: &Answer) -> Table {
    let mut table = Table::new(vec![
        text("item", "item"),
        number("low", "low"),
        number("high", "high"),
        text("currency", "currency"),
        text("date", "seen"),
        text("source", "source"),
    ]);
    for one in &answer.sources {
        table.row(vec![
            Value::text(&one.item).into(),
            Value::Number(one.low).into(),
            Value::Number(one.high).into(),
            Value::text(&one.currency).into(),
            Value::text(&one.date).into(),
            Value::text(&one.source).into(),
        ]);
    }
    table
}

/// Returns the table of measured figures with their predictions.
#[must_use]
pub fn measured(answer: &Answer) -> Table {
    let mut table = Table::new(vec![
        Column::new("candidate", "candidate", Unit::Text),
        Column::new("job", "job", Unit::Text),
        Column::new("figure", "figure", Unit::Text),
        Column::new("measured", "measured", Unit::Number),
        Column::new("predicted", "predicted", Unit::Number),
        Column::new("error", "error of the time", Unit::Percent),
    ]);
    for one in &answer.measured {
        table.row(vec![
            Value::text(&one.candidate).into(),
            Value::text(&one.job).into(),
            Value::text(&one.figure).into(),
            Value::Number(one.measured).into(),
            Value::or_missing(one.predicted, Value::Number).into(),
            Value::or_missing(one.error(), Value::Deviation).into(),
        ]);
    }
    table
}
