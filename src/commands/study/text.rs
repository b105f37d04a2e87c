//! Text of a study's answer: ranking, results, breakdown of step times, and sensitivities.

use fabricast_reports::page::{breakdown, costs, measured, opening_lines};
use fabricast_reports::share::{self, TimePart};
use fabricast_reports::table::{Cell, Column, Emphasis, Table, TextOptions, Unit, Value};
use fabricast_study::answer::{Answer, JobRow, ScoreRow};
use fabricast_topologies::Picos;

use super::disaggregation::disaggregation_table;
use super::goodput::goodput_table;
use super::results::{results, training_table};

/// Width of a bar that represents the whole, in characters.
const BAR: u16 = 40;

/// Formats all tables, and bars for the breakdown of step times.
pub fn page(answer: &Answer, options: &TextOptions) -> String {
    let decision = opening_lines(answer).iter().map(|line| options.wrap(line)).collect::<Vec<_>>().join("\n");
    let mut parts = vec![format!("{decision}\n\n{}", ranking(answer).text(options)), results(answer).text(options)];
    parts.extend(training_table(answer).map(|table| table.text(options)));
    parts.extend(disaggregation_table(answer).map(|table| table.text(options)));
    parts.extend(goodput_table(answer).map(|table| table.text(options)));
    if answer.candidates.iter().any(|candidate| candidate.costs.is_some()) {
        let mut costs = costs(answer);
        costs.heading(format!("costs, {}", answer.currency));
        parts.push(costs.text(options));
    }
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
