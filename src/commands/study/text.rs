//! A study's answer as text: the ranking, then every job on every candidate.

use fabricast_planner::study::answer::{Answer, JobKind, ScoredBy};
use fabricast_reports::table::{Cell, Column, Look, Table, Tone, Unit, Value};

/// Both tables.
pub fn page(answer: &Answer, look: &Look) -> String {
    format!("{}\n\n{}", ranking(answer).text(look).trim_end(), results(answer).text(look))
}

fn ranking(answer: &Answer) -> Table {
    let score = match answer.by() {
        ScoredBy::CostPerMillionTokens => "USD/M tokens",
        ScoredBy::SecondsPerMillionTokens => "s/M tokens",
    };
    let columns = [
        Column::new("rank", "rank", Unit::Number),
        Column::new("candidate", "candidate", Unit::Text),
        Column::new(answer.by().name(), score, Unit::Number),
        Column::new("pareto", "pareto", Unit::Text),
        Column::new("beyond", "beyond", Unit::Text),
    ];
    let mut table = Table::new(columns.into());
    for one in &answer.ranking {
        let name = Cell::from(Value::text(&one.candidate));
        table.row(vec![
            Value::Count(one.rank as u64).into(),
            if one.rank == 1 { name.tone(Tone::Strong) } else { name },
            Value::Number(one.score).into(),
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
        share("efficiency", "efficiency"),
        number("memory_gb", "memory GB"),
        text("fits", "fits"),
        number("cost_per_hour", "USD/h"),
        number("cost_per_million_tokens", "USD/M tokens"),
        text("binds", "binds"),
    ]);
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
            Value::text(one.parallel.to_string()).into(),
            Value::Number(one.step_time_s).into(),
            Value::Number(one.tokens_per_s).into(),
        ];
        row.extend(seen.into_iter().filter(|_| serves));
        row.extend([
            Value::Share(one.exposed_comm_share).into(),
            Value::Share(one.total_comm_share).into(),
            Value::Share(one.efficiency).into(),
            Value::Number(one.memory_gb).into(),
            Value::text(fits).into(),
            Value::or_missing(one.cost_per_hour, Value::Number).into(),
            Value::or_missing(one.cost_per_million_tokens, Value::Number).into(),
            Value::text(&one.binds).into(),
        ]);
        table.row(row);
    }
    if serves {
        table.note("tokens of inference are those of answers; a step is the mean one, with prompts in it or not");
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
    table
}
