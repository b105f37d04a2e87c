//! A study's answer as text: the ranking, every job on every candidate, and what changes the order.

use fabricast_planner::study::answer::{Answer, JobKind};
use fabricast_reports::page::measured;
use fabricast_reports::table::{Cell, Column, Look, Table, Tone, Unit, Value};

/// All tables.
pub fn page(answer: &Answer, look: &Look) -> String {
    let mut tables = vec![ranking(answer), results(answer)];
    if !answer.measured.is_empty() {
        let mut measured = measured(answer);
        measured.heading("measured, and predicted");
        tables.push(measured);
    }
    if !answer.sensitivities.is_empty() {
        tables.push(sensitivities(answer));
    }
    tables.iter().map(|table| table.text(look).trim_end().to_owned()).collect::<Vec<_>>().join("\n\n")
}

fn ranking(answer: &Answer) -> Table {
    let score = format!("{}/{}", if answer.by().is_cost() { "USD" } else { "s" }, answer.by().unit());
    let columns = [
        Column::new("rank", "rank", Unit::Number),
        Column::new("candidate", "candidate", Unit::Text),
        Column::new(answer.by().name(), &score, Unit::Number),
        Column::new("probability_best", "best with", Unit::Percent),
        Column::new("pareto", "pareto", Unit::Text),
        Column::new("beyond", "beyond", Unit::Text),
    ];
    let mut table = Table::new(columns.into());
    for one in &answer.ranking {
        let name = Cell::from(Value::text(&one.candidate));
        table.row(vec![
            Value::Count(one.rank as u64).into(),
            if one.rank == 1 { name.tone(Tone::Strong) } else { name },
            Value::or_missing(one.score, Value::Number).into(),
            Value::or_missing(one.probability_best, Value::Share).into(),
            Value::or_missing(one.pareto, |front| Value::text(if front { "yes" } else { "no" })).into(),
            Value::text(one.beyond.join("; ")).into(),
        ]);
    }
    table.heading("candidates, weighted geometric mean over jobs");
    table
}

/// Every job on every candidate: the table of the CSV too.
pub fn results(answer: &Answer) -> Table {
    let text = |key: &str, title: &str| Column::new(key, title, Unit::Text);
    let number = |key: &str, title: &str| Column::new(key, title, Unit::Number);
    let share = |key: &str, title: &str| Column::new(key, title, Unit::Percent);
    // What requests see stands where there are any.
    let serves = answer.results.iter().any(|one| one.kind == JobKind::Inference);
    let seen = [number("ttft_s", "first token s"), number("tpot_s", "per token s")];
    // A step's cost where there is no other to tell.
    let traces = answer.results.iter().any(|one| one.kind == JobKind::Trace);
    let mut columns = vec![
        text("candidate", "candidate"),
        text("job", "job"),
        number("ranks", "GPUs"),
        text("parallel", "parallel"),
        number("step_time_s", "step s"),
        number("tokens_per_s", "tokens/s"),
    ];
    columns.extend(seen.into_iter().filter(|_| serves));
    columns.extend([
        share("exposed_comm_share", "exposed"),
        share("total_comm_share", "comm"),
        share("efficiency", "of 1 GPU"),
        share("efficiency_node", "of 1 node"),
        number("memory_gb", "memory GB"),
        text("fits", "fits"),
        number("cost_per_hour", "USD/h"),
    ]);
    columns.extend(traces.then(|| number("cost_per_step", "USD/step")));
    columns.extend([number("cost_per_million_tokens", "USD/M tokens"), text("binds", "binds")]);
    let mut table = Table::new(columns);
    for one in &answer.results {
        let lacking = one.memory_beyond_gb.map(|over| format!("no, by {over:.1} GB"));
        let late = (!one.late.is_empty()).then(|| format!("too late: {}", one.late.join(", ")));
        let why: Vec<String> = lacking.into_iter().chain(late).collect();
        let fits = if why.is_empty() { "yes".to_owned() } else { why.join("; ") };
        let seen = [one.ttft_s, one.tpot_s].map(|time| Cell::from(Value::or_missing(time, Value::Number)));
        let mut row = vec![
            Value::text(&one.candidate).into(),
            Value::text(&one.job).into(),
            Value::Count(one.ranks).into(),
            Value::or_missing(one.parallel, |own| Value::text(own.to_string())).into(),
            Value::Number(one.step_time_s).into(),
            Value::or_missing(one.tokens_per_s, Value::Number).into(),
        ];
        row.extend(seen.into_iter().filter(|_| serves));
        row.extend([
            Value::Share(one.exposed_comm_share).into(),
            Value::Share(one.total_comm_share).into(),
            Value::or_missing(one.efficiency, Value::Share).into(),
            Value::or_missing(one.efficiency_node, Value::Share).into(),
            Value::or_missing(one.memory_gb, Value::Number).into(),
            Value::text(fits).into(),
            Value::or_missing(one.cost_per_hour, Value::Number).into(),
        ]);
        row.extend(traces.then(|| Cell::from(Value::or_missing(one.cost_per_step, Value::Number))));
        row.extend([
            Value::or_missing(one.cost_per_million_tokens, Value::Number).into(),
            Value::text(&one.binds).into(),
        ]);
        table.row(row);
    }
    if serves {
        table.note("tokens of inference are those of answers; a step is the mean one, with prompts in it or not");
    }
    if traces {
        table.note(
            "a step of a trace is all of it, its ranks on the first GPUs; what it brings about and holds is not in it",
        );
    }
    if answer.is_priced() {
        let own = &answer.assumptions;
        table.note(format!(
            "costs: middle of the price bands; purchases over {} years at {:.0} % of the time, {} USD a kWh",
            own.years,
            own.utilization * 100.0,
            own.usd_per_kwh
        ));
    }
    answer.notes.iter().for_each(|note| table.note(note));
    table
}

/// What comes first under each setting.
fn sensitivities(answer: &Answer) -> Table {
    let mut table = Table::new(vec![
        Column::new("name", "if", Unit::Text),
        Column::new("setting", "is", Unit::Text),
        Column::new("first", "first", Unit::Text),
        Column::new("score", "score", Unit::Number),
        Column::new("order", "order", Unit::Text),
        Column::new("unchanged", "does not apply to", Unit::Text),
    ]);
    for one in &answer.sensitivities {
        let nearest = one.ranking.first();
        let first = nearest.filter(|first| first.within);
        if let Some(nearest) = nearest.filter(|nearest| !nearest.within) {
            let (name, setting) = (&one.name, &one.setting);
            table.note(format!("{name} {setting}: none is left; {}: {}", nearest.candidate, nearest.beyond.join("; ")));
        }
        let unchanged = one.unchanged.len();
        let unchanged = match unchanged {
            0 => String::new(),
            _ => format!("{unchanged} of {}", answer.candidates.len()),
        };
        table.row(vec![
            Value::text(&one.name).into(),
            Value::text(&one.setting).into(),
            Value::text(first.map_or("none", |first| first.candidate.as_str())).into(),
            Value::or_missing(first.and_then(|first| first.score), Value::Number).into(),
            Value::text(if one.changed { "another" } else { "the same" }).into(),
            Value::text(unchanged).into(),
        ]);
    }
    table.heading("what changes the order, one thing at a time");
    table
}
