//! Table of the goodput of training jobs: use of a month, with its checkpoints and failures.

use fabricast_reports::table::{Cell, Column, Table, Unit, Value};
use fabricast_study::answer::{Answer, EstimateRow, GoodputRow};
use fabricast_workload::job::format_number;

/// Table of the use of a month; `None` if the study states neither failures nor checkpoints.
pub fn goodput_table(answer: &Answer) -> Option<Table> {
    let rows: Vec<_> = answer.results.iter().filter_map(|row| Some((row, row.goodput?))).collect();
    let mut table = Table::new(vec![
        Column::new("candidate", "candidate", Unit::Text),
        Column::new("job", "job", Unit::Text),
        Column::new("goodput", "goodput", Unit::Percent),
        Column::new("goodput_low", "low", Unit::Percent).spare(),
        Column::new("goodput_high", "high", Unit::Percent).spare(),
        Column::new("failures_per_month", "failures", Unit::Number),
        Column::new("month_steps_h", "steps h", Unit::Number).spare(),
        Column::new("month_checkpoints_h", "checkpoints h", Unit::Number),
        Column::new("month_lost_work_h", "lost work h", Unit::Number).spare(),
        Column::new("month_recovery_h", "recovery h", Unit::Number).spare(),
        Column::new("checkpoint_interval_s", "checkpoint every s", Unit::Number),
        Column::new("checkpoint_gb", "size GB", Unit::Number).spare(),
        Column::new("checkpoint_blocking_s", "stop s", Unit::Number).spare(),
        Column::new("checkpoint_background_s", "write s", Unit::Number).spare(),
    ]);
    for (row, goodput) in &rows {
        let shares = [goodput.share, goodput.low, goodput.high].map(|share| Cell::from(Value::Share(share)));
        let month = &goodput.month_h;
        let numbers = [
            goodput.failures_per_month,
            month.steps,
            month.checkpoints,
            month.lost_work,
            month.recovery,
            goodput.checkpoint_interval_s,
            goodput.checkpoint_gb,
            goodput.checkpoint_blocking_s,
            goodput.checkpoint_background_s,
        ];
        let names = [&row.candidate, &row.job].map(|name| Cell::from(Value::text(name)));
        table.row(names.into_iter().chain(shares).chain(numbers.map(|number| Value::Number(number).into())).collect());
    }
    let mut assumptions: Vec<(String, Vec<&str>)> = Vec::new();
    for (row, goodput) in &rows {
        let text = describe(goodput);
        match assumptions.iter_mut().find(|(known, _)| *known == text) {
            None => assumptions.push((text, vec![&row.candidate])),
            Some((_, names)) if names.contains(&row.candidate.as_str()) => {}
            Some((_, names)) => names.push(&row.candidate),
        }
    }
    let is_one = assumptions.len() == 1;
    for (text, names) in assumptions {
        table.note(if is_one { text } else { format!("{text}: {}", names.join(", ")) });
    }
    table.heading("goodput of a month of 30 days");
    (!rows.is_empty()).then_some(table)
}

/// Description of the failures and the recovery that a goodput assumes.
fn describe(goodput: &GoodputRow) -> String {
    let estimate = |EstimateRow { low, typical, high }: EstimateRow| {
        let rounded = |figure: f64| format_number(format!("{figure:.2}").parse().unwrap_or(figure));
        match low < high {
            true => format!("{} ({} to {})", rounded(typical), rounded(low), rounded(high)),
            false => rounded(typical),
        }
    };
    format!(
        "failures per 1,000 GPUs and day: {}; s to detect one: {}; s to restart: {}; low and high: all at their ends",
        estimate(goodput.failures_per_1000_gpu_days),
        estimate(goodput.detection_s),
        estimate(goodput.restart_s)
    )
}
