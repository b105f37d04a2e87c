//! What was proved, as a table and as JSON.

use std::collections::BTreeSet;

use fabricast_planner::export::nccl_tuner::Answer as Told;
use fabricast_reports::table::{Cell, Column, Table, Tone, Unit, Value};
use fabricast_topologies::{Bytes, Picos};
use fabricast_validate::prove::Trial;
use fabricast_validate::prove::logged::Ran;
use serde::Serialize;

use super::verdict::{Obeyed, TOLERANCE, UNLIKELY, Verdict};
use crate::failure::Failure;

/// Times of a size, in turns.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) trial: Trial,
    pub(super) default: Vec<Picos>,
    pub(super) tuned: Vec<Picos>,
}

impl Measured {
    /// Of medians: with the table over without.
    pub(super) fn ratio(&self) -> f64 {
        median(&micros(&self.tuned)) / median(&micros(&self.default))
    }
}

fn micros(times: &[Picos]) -> Vec<f64> {
    times.iter().map(|time| time.us()).collect()
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let at = |place: usize| sorted.get(place).copied().unwrap_or(f64::NAN);
    if sorted.len() % 2 == 1 { at(middle) } else { (at(middle.wrapping_sub(1)) + at(middle)) / 2.0 }
}

/// All of it.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    /// NCCL's version.
    pub(super) nccl: String,
    pub(super) ranks: u32,
    /// The table's file.
    pub(super) table: String,
    /// Turns of each side at each size.
    pub(super) turns: u32,
    /// Whether all sizes were reached before the time was over.
    pub(super) is_whole: bool,
    /// What the plugin logged.
    pub(super) plugin: Vec<String>,
    pub(super) rows: Vec<Row>,
}

/// A size.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    collective: &'static str,
    bytes: Bytes,
    /// The table's word, if it has one.
    table: Option<String>,
    /// What NCCL logged without and with the plugin.
    default_ran: BTreeSet<Ran>,
    tuned_ran: BTreeSet<Ran>,
    obeyed: Obeyed,
    default_us: f64,
    tuned_us: f64,
    /// Of medians: with the table over without.
    ratio: f64,
    verdict: Verdict,
    /// How likely it is to look this much slower, or faster, than 2 % by chance.
    chance_slower: f64,
    chance_faster: f64,
    /// All turns, in order.
    default_trials_us: Vec<f64>,
    tuned_trials_us: Vec<f64>,
}

impl Row {
    pub(super) fn new(
        one: &Measured,
        told: Option<Told>,
        default_ran: BTreeSet<Ran>,
        tuned_ran: BTreeSet<Ran>,
    ) -> Self {
        let (default, tuned) = (micros(&one.default), micros(&one.tuned));
        let (verdict, chance_slower, chance_faster) = Verdict::of(&default, &tuned);
        let words = |told: Told| match told.channels {
            Some(channels) => format!("{} {} {channels}", told.algo, told.proto),
            None => format!("{} {}", told.algo, told.proto),
        };
        Self {
            collective: one.trial.collective.name(),
            bytes: one.trial.bytes,
            table: told.map(words),
            obeyed: Obeyed::of(told.as_ref(), &default_ran, &tuned_ran),
            default_ran,
            tuned_ran,
            default_us: median(&default),
            tuned_us: median(&tuned),
            ratio: one.ratio(),
            verdict,
            chance_slower,
            chance_faster,
            default_trials_us: default,
            tuned_trials_us: tuned,
        }
    }

    /// What ran by default, in words; several where calls outside of graphs are done otherwise.
    fn by_default(&self) -> String {
        self.default_ran.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }
}

impl Answer {
    fn count(&self, of: impl Fn(&Row) -> bool) -> usize {
        self.rows.iter().filter(|row| of(row)).count()
    }

    /// For people.
    pub(super) fn text(&self) -> Table {
        let mut table = self.table(&[
            Column::new("collective", "collective", Unit::Text),
            Column::new("bytes", "size", Unit::Bytes),
            Column::new("default", "NCCL's default", Unit::Text),
            Column::new("table", "the table", Unit::Text),
            Column::new("obeyed", "logged", Unit::Text),
            Column::new("default_us", "default", Unit::Micros),
            Column::new("tuned_us", "tuned", Unit::Micros),
            Column::new("ratio", "ratio", Unit::Number),
            Column::new("verdict", "verdict", Unit::Text),
        ]);
        table.heading(format!("NCCL {} on {} GPUs with {}", self.nccl, self.ranks, self.table));
        let (slower, faster) = (self.count(is(Verdict::Slower)), self.count(is(Verdict::Faster)));
        table.note(format!(
            "{} sizes: {faster} faster, {} alike, {slower} slower, by more than {:.0} % in the rank sums of {} turns each (chance below {UNLIKELY})",
            self.rows.len(),
            self.count(is(Verdict::Alike)),
            100.0 * TOLERANCE,
            self.turns,
        ));
        table.note(format!("{} of them not as the table says", self.count(|row| row.obeyed.is_no())));
        if !self.is_whole {
            table.note("the time was over before all sizes were reached");
        }
        table
    }

    /// For programs.
    pub(super) fn csv(&self) -> Table {
        let keys = ["collective", "bytes", "default", "table", "obeyed", "default_us", "tuned_us", "ratio", "verdict"];
        self.table(&keys.map(|key| Column::new(key, key, Unit::Text)))
    }

    fn table(&self, columns: &[Column]) -> Table {
        let mut table = Table::new(columns.to_vec());
        for row in &self.rows {
            let tone = match row.verdict {
                Verdict::Slower => Tone::Bad,
                Verdict::Faster => Tone::Good,
                Verdict::Alike => Tone::Plain,
            };
            let obeyed = if row.obeyed.is_no() { Tone::Bad } else { Tone::Plain };
            let cells: Vec<Cell> = vec![
                Value::text(row.collective).into(),
                Value::Bytes(row.bytes).into(),
                Value::text(row.by_default()).into(),
                Value::or_missing(row.table.clone(), Value::Text).into(),
                Cell::from(Value::text(row.obeyed.words())).tone(obeyed),
                Value::Number(rounded(row.default_us)).into(),
                Value::Number(rounded(row.tuned_us)).into(),
                Value::Number(rounded(row.ratio)).into(),
                Cell::from(Value::text(row.verdict.name())).tone(tone),
            ];
            table.row(cells);
        }
        table
    }

    /// The answer as an exit code: an error where it is not proved.
    pub(super) fn judged(&self) -> Result<(), Failure> {
        let (slower, disobeyed) = (self.count(is(Verdict::Slower)), self.count(|row| row.obeyed.is_no()));
        let mut faults = Vec::new();
        if slower > 0 {
            faults.push(format!("{slower} sizes are slower than NCCL's default"));
        }
        if disobeyed > 0 {
            faults.push(format!("{disobeyed} sizes do not run as the table says"));
        }
        if !self.is_whole {
            faults.push("not all sizes were measured in time".to_owned());
        }
        if faults.is_empty() { Ok(()) } else { Err(Failure::Failed(faults.join("; "))) }
    }
}

fn is(verdict: Verdict) -> impl Fn(&Row) -> bool {
    move |row| row.verdict == verdict
}

/// Three digits behind the point are as many as a clock of events has.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
