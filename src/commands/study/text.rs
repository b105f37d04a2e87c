//! Text of a study's answer: ranking, results, breakdown of step times, and sensitivities.

use fabricast_reports::format::{percent, significant};
use fabricast_reports::page::{breakdown, measured};
use fabricast_reports::share::{self, TimePart};
use fabricast_reports::table::{Cell, Column, Emphasis, Table, TextOptions, Unit, Value};
use fabricast_study::answer::{Answer, DECISIVE, JobRow, RankedRow, ScoreRow};
use fabricast_topologies::Picos;

use super::results::{results, training_table};

/// Width of a bar that represents the whole, in characters.
const BAR: u16 = 40;

/// Formats all tables, and bars for the breakdown of step times.
pub fn page(answer: &Answer, options: &TextOptions) -> String {
    let decision = decision(answer).iter().map(|line| options.wrap(line)).collect::<Vec<_>>().join("\n");
    let mut parts = vec![format!("{decision}\n\n{}", ranking(answer).text(options)), results(answer).text(options)];
    parts.extend(training_table(answer).map(|table| table.text(options)));
    parts.extend(steps(answer, options));
    if !answer.measured.is_empty() {
        let mut measured = measured(answer);
        measured.heading("measured and predicted");
        parts.push(measured.text(options));
    }
    if !answer.sensitivities.is_empty() {
        parts.push(sensitivities(answer).text(options));
    }
    parts.iter().map(|part| part.trim_end()).collect::<Vec<_>>().join("\n\n")
}

/// Opening lines: the best candidate of each group of comparable results, or the leading candidates if the difference
/// is too small to decide.
fn decision(answer: &Answer) -> Vec<String> {
    let groups = answer.ranking.chunk_by(|a, b| a.jobs == b.jobs);
    groups.filter_map(|compared| decision_of(answer, compared)).collect()
}

fn decision_of(answer: &Answer, compared: &[RankedRow]) -> Option<String> {
    let scope = match compared.first()?.jobs.as_slice() {
        [] => String::new(),
        jobs => format!("{}: ", jobs.join(", ")),
    };
    let mut valid = compared.iter().filter(|row| row.meets_constraints);
    let Some(first) = valid.next() else {
        let first = compared.first().filter(|row| !row.violations.is_empty());
        let reason = first.map(|row| format!("; {}: {}", row.candidate, row.violations.join("; ")));
        return Some(format!("{scope}no candidate runs all jobs within the constraints{}", reason.unwrap_or_default()));
    };
    let unit = format!("{}/{}", if first.by.is_cost() { answer.currency.as_str() } else { "s" }, first.by.unit());
    let is_cost = first.by.is_cost();
    let score = |row: &RankedRow| format!("{} {unit}", significant(row.score.unwrap_or(f64::NAN)));
    let Some(second) = valid.next() else {
        return Some(format!(
            "{scope}{} is the only candidate that meets all constraints: {}",
            first.candidate,
            score(first)
        ));
    };
    let more = percent(second.score.zip(first.score).map_or(0.0, |(second, first)| second / first - 1.0));
    let share = |row: &RankedRow| row.probability_best_with_errors.unwrap_or(0.0);
    let best = if is_cost { "cheapest" } else { "fastest" };
    if share(first) >= DECISIVE {
        return Some(format!(
            "{scope}{} is {best}: {}; {} needs {more} % more ({} % sure, by prices and the model's error)",
            first.candidate,
            score(first),
            second.candidate,
            percent(share(first)),
        ));
    }
    let mut likely: Vec<&RankedRow> = compared.iter().filter(|row| share(row) > 0.0).collect();
    likely.sort_by(|a, b| share(b).total_cmp(&share(a)));
    let mut covered = 0.0;
    let contenders: Vec<String> = likely
        .into_iter()
        .take_while(|row| {
            let is_open = covered < DECISIVE;
            covered += share(row);
            is_open
        })
        .map(|row| format!("{} ({} %, {})", row.candidate, percent(share(row)), score(row)))
        .collect();
    Some(format!("{scope}too close to call: {best} with prices and the model's error is {}", contenders.join(" or ")))
}

fn ranking(answer: &Answer) -> Table {
    let score = format!("{}/{}", if answer.scored_by().is_cost() { "USD" } else { "s" }, answer.scored_by().unit());
    let columns = [
        Column::new("rank", "rank", Unit::Number),
        Column::new("candidate", "candidate", Unit::Text),
        Column::new(answer.scored_by().name(), &score, Unit::Number),
        Column::new("probability_best", "P(best)", Unit::Percent),
        Column::new("pareto", "pareto", Unit::Text),
        Column::new("violations", "violates", Unit::Text),
    ];
    let parts = answer.comparable_groups().len();
    let columns = columns.into_iter().chain((parts > 1).then(|| Column::new("jobs", "jobs", Unit::Text)));
    let mut table = Table::new(columns.collect());
    for entry in &answer.ranking {
        let name = Cell::from(Value::text(&entry.candidate));
        let mut cells: Vec<Cell> = vec![
            Value::Count(entry.rank as u64).into(),
            if entry.rank == 1 { name.tone(Emphasis::Strong) } else { name },
            Value::or_missing(entry.score, Value::Number).into(),
            Value::or_missing(entry.best_probability(), Value::Share).into(),
            Value::or_missing(entry.pareto, |is_optimal| Value::text(if is_optimal { "yes" } else { "no" })).into(),
            Value::text(entry.violations.join("; ")).into(),
        ];
        cells.extend((parts > 1).then(|| Cell::from(Value::text(entry.jobs.join(", ")))));
        table.row(cells);
    }
    table.heading(match parts {
        0 | 1 => "candidates, weighted geometric mean over jobs",
        _ => "candidates with the same jobs, weighted geometric mean over these",
    });
    for job in answer.infeasible_jobs() {
        table.note(format!("no candidate can run {}", job.name));
    }
    table
}

/// Breakdown of the step time of each job on the best candidate, as bars.
fn steps(answer: &Answer, options: &TextOptions) -> Vec<String> {
    let job_bars = |job: &JobRow| {
        let chart = breakdown(answer, &job.name);
        let best = chart.bars.first()?;
        let parts = chart.parts.iter().zip(&best.parts);
        let parts = parts.map(|(name, &us)| TimePart { name: name.clone(), time: Picos::from_us(us) });
        let parts: Vec<TimePart> = parts.filter(|part| part.time > Picos::ZERO).collect();
        let heading = format!("breakdown of a step: {} on {}", job.name, best.name);
        (!parts.is_empty()).then(|| format!("{heading}\n{}", share::bars(&parts, BAR, options.glyphs)))
    };
    answer.jobs.iter().filter_map(job_bars).collect()
}

/// Best candidate under each sensitivity setting.
fn sensitivities(answer: &Answer) -> Table {
    let mut table = Table::new(vec![
        Column::new("name", "if", Unit::Text),
        Column::new("setting", "is", Unit::Text),
        Column::new("first", "first", Unit::Text),
        Column::new("score", "score", Unit::Number),
        Column::new("order", "order", Unit::Text),
        Column::new("unchanged", "does not apply to", Unit::Text),
    ]);
    for sensitivity in &answer.sensitivities {
        let leaders = answer.first_candidates(sensitivity);
        for nearest in leaders.iter().filter(|nearest| !nearest.meets_constraints) {
            let (name, setting) = (&sensitivity.name, &sensitivity.setting);
            table.note(format!(
                "{name} {setting}: no candidate remains; {}: {}",
                nearest.candidate,
                nearest.violations.join("; ")
            ));
        }
        let label =
            |first: &&ScoreRow| if first.meets_constraints { first.candidate.clone() } else { "none".to_owned() };
        // Scores that are computed from different jobs are not comparable.
        let score = match leaders.as_slice() {
            [first] if first.meets_constraints => first.score,
            _ => None,
        };
        let unchanged = sensitivity.unchanged.len();
        let unchanged = match unchanged {
            0 => String::new(),
            _ => format!("{unchanged} of {}", answer.candidates.len()),
        };
        table.row(vec![
            Value::text(&sensitivity.name).into(),
            Value::text(&sensitivity.setting).into(),
            Value::text(leaders.iter().map(label).collect::<Vec<_>>().join(", ")).into(),
            Value::or_missing(score, Value::Number).into(),
            Value::text(if sensitivity.changed { "another" } else { "the same" }).into(),
            Value::text(unchanged).into(),
        ]);
    }
    table.heading("sensitivity of the ranking, one assumption at a time");
    table
}
