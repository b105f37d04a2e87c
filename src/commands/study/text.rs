//! Text of a study's answer: ranking, results, breakdown of step times, and sensitivities.

use fabricast_planner::study::answer::{Answer, JobRow, ScoreRow};
use fabricast_reports::page::{breakdown, measured};
use fabricast_reports::share::{self, Part};
use fabricast_reports::table::{Cell, Column, Look, Table, Tone, Unit, Value};
use fabricast_topologies::Picos;

use super::results::{results, whole};

/// Width of a full bar, in characters.
const BAR: u16 = 40;

/// All tables, and bars of the step time breakdown.
pub fn page(answer: &Answer, look: &Look) -> String {
    let mut parts = vec![ranking(answer).text(look), results(answer).text(look)];
    parts.extend(whole(answer).map(|table| table.text(look)));
    parts.extend(steps(answer, look));
    if !answer.measured.is_empty() {
        let mut measured = measured(answer);
        measured.heading("measured, and predicted");
        parts.push(measured.text(look));
    }
    if !answer.sensitivities.is_empty() {
        parts.push(sensitivities(answer).text(look));
    }
    parts.iter().map(|part| part.trim_end()).collect::<Vec<_>>().join("\n\n")
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
    let parts = answer.compared().len();
    let columns = columns.into_iter().chain((parts > 1).then(|| Column::new("jobs", "jobs", Unit::Text)));
    let mut table = Table::new(columns.collect());
    for one in &answer.ranking {
        let name = Cell::from(Value::text(&one.candidate));
        let mut cells: Vec<Cell> = vec![
            Value::Count(one.rank as u64).into(),
            if one.rank == 1 { name.tone(Tone::Strong) } else { name },
            Value::or_missing(one.score, Value::Number).into(),
            Value::or_missing(one.probability_best, Value::Share).into(),
            Value::or_missing(one.pareto, |front| Value::text(if front { "yes" } else { "no" })).into(),
            Value::text(one.beyond.join("; ")).into(),
        ];
        cells.extend((parts > 1).then(|| Cell::from(Value::text(one.jobs.join(", ")))));
        table.row(cells);
    }
    table.heading(match parts {
        0 | 1 => "candidates, weighted geometric mean over jobs",
        _ => "candidates, among those with the same jobs, weighted geometric mean over these",
    });
    for job in answer.beyond_all() {
        table.note(format!("no candidate can run {}", job.name));
    }
    table
}

/// Breakdown of the step time of each job on the best candidate, as bars.
fn steps(answer: &Answer, look: &Look) -> Vec<String> {
    let of_job = |job: &JobRow| {
        let chart = breakdown(answer, &job.name);
        let best = chart.bars.first()?;
        let parts = chart.parts.iter().zip(&best.parts);
        let parts = parts.map(|(name, &us)| Part { name: name.clone(), time: Picos::from_us(us) });
        let parts: Vec<Part> = parts.filter(|part| part.time > Picos::ZERO).collect();
        let heading = format!("where the time of a step goes: {} on {}", job.name, best.name);
        (!parts.is_empty()).then(|| format!("{heading}\n{}", share::bars(&parts, BAR, look.glyphs)))
    };
    answer.jobs.iter().filter_map(of_job).collect()
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
    for one in &answer.sensitivities {
        let firsts = answer.firsts(one);
        for nearest in firsts.iter().filter(|nearest| !nearest.within) {
            let (name, setting) = (&one.name, &one.setting);
            table.note(format!("{name} {setting}: none is left; {}: {}", nearest.candidate, nearest.beyond.join("; ")));
        }
        let said = |first: &&ScoreRow| if first.within { first.candidate.clone() } else { "none".to_owned() };
        // Scores over different jobs are not comparable.
        let score = match firsts.as_slice() {
            [first] if first.within => first.score,
            _ => None,
        };
        let unchanged = one.unchanged.len();
        let unchanged = match unchanged {
            0 => String::new(),
            _ => format!("{unchanged} of {}", answer.candidates.len()),
        };
        table.row(vec![
            Value::text(&one.name).into(),
            Value::text(&one.setting).into(),
            Value::text(firsts.iter().map(said).collect::<Vec<_>>().join(", ")).into(),
            Value::or_missing(score, Value::Number).into(),
            Value::text(if one.changed { "another" } else { "the same" }).into(),
            Value::text(unchanged).into(),
        ]);
    }
    table.heading("what changes the order, one thing at a time");
    table
}
