//! Result of `gpu prove` as table and JSON.

use std::collections::BTreeSet;

use fabricast_reports::table::{Cell, Column, Emphasis, Table, Unit, Value};
use fabricast_search::export::nccl_tuner::TableEntry as TunerAnswer;
use fabricast_topologies::{Bytes, Picos};
use fabricast_validate::ab_test::Trial;
use fabricast_validate::ab_test::logged::LoggedStrategy;
use schemars::JsonSchema;
use serde::Serialize;

use super::verdict::{RankSumTest, SIGNIFICANCE, TOLERANCE, TableCompliance, Verdict};
use crate::failure::Failure;

/// Measured times of a collective at one size, with and without the table; first index: process pair, second index:
/// turn.
#[derive(Clone, Debug)]
pub(super) struct CallTimes {
    pub(super) trial: Trial,
    pub(super) default: Vec<Vec<Picos>>,
    pub(super) tuned: Vec<Vec<Picos>>,
}

impl CallTimes {
    /// Creates a measurement without times.
    pub(super) fn new(trial: Trial) -> Self {
        Self { trial, default: Vec::new(), tuned: Vec::new() }
    }
}

fn micros(times: &[Vec<Picos>]) -> Vec<Vec<f64>> {
    times.iter().map(|round| round.iter().map(|time| time.us()).collect()).collect()
}

/// Median time of each process.
fn medians(times: &[Vec<f64>]) -> Vec<f64> {
    times.iter().map(|round| median(round)).collect()
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let value_at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
    if sorted.len() % 2 == 1 { value_at(middle) } else { (value_at(middle.wrapping_sub(1)) + value_at(middle)) / 2.0 }
}

/// Result of `gpu prove`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ProveAnswer {
    /// NCCL version.
    pub(super) nccl: String,
    /// Number of ranks.
    pub(super) ranks: u32,
    /// File of the tuner table.
    pub(super) table: String,
    /// Number of process pairs.
    pub(super) rounds: u32,
    /// Number of turns of each process at each size.
    pub(super) turns: u32,
    /// True if all rounds and sizes were measured within the time limit.
    pub(super) is_complete: bool,
    /// Log lines of the plugin.
    pub(super) plugin: Vec<String>,
    /// Results by collective and size.
    pub(super) rows: Vec<ProveRow>,
}

/// Result for a collective and size.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Row")]
pub(super) struct ProveRow {
    /// The collective, as nccl-tests names it.
    collective: &'static str,
    /// Size of the call in bytes: the larger buffer of a rank.
    bytes: Bytes,
    /// Strategy that the table selects; `None` if the table has no row for the call.
    table: Option<String>,
    /// Strategies in NCCL's log of the processes without the plugin.
    default_ran: BTreeSet<LoggedStrategy>,
    /// Strategies in NCCL's log of the processes with the plugin.
    tuned_ran: BTreeSet<LoggedStrategy>,
    /// Comparison of NCCL's log with the table.
    obeyed: TableCompliance,
    /// Median time of the processes without the table, in µs.
    default_us: f64,
    /// Median time of the processes with the table, in µs.
    tuned_us: f64,
    /// Median time with the table ÷ median time without it.
    ratio: f64,
    /// Verdict on the times; also given for control rows.
    verdict: Verdict,
    /// True if both sides ran the same strategy. The row is then a control, and time differences are noise.
    is_control: bool,
    /// Probability of a ratio at least this much above 1.02 by chance.
    chance_slower: f64,
    /// Probability of a ratio at least this much below 0.98 by chance.
    chance_faster: f64,
    /// Times of all turns without the table by process, in order, in µs.
    default_turns_us: Vec<Vec<f64>>,
    /// Times of all turns with the table by process, in order, in µs.
    tuned_turns_us: Vec<Vec<f64>>,
}

impl ProveRow {
    pub(super) fn new(
        measured: &CallTimes,
        table_entry: Option<TunerAnswer>,
        default_ran: BTreeSet<LoggedStrategy>,
        tuned_ran: BTreeSet<LoggedStrategy>,
    ) -> Self {
        let (default_turns_us, tuned_turns_us) = (micros(&measured.default), micros(&measured.tuned));
        let (default, tuned) = (medians(&default_turns_us), medians(&tuned_turns_us));
        let RankSumTest { verdict, chance_slower, chance_faster } = Verdict::from_times(&default, &tuned);
        let (default_us, tuned_us) = (median(&default), median(&tuned));
        let text = |table_entry: TunerAnswer| match table_entry.channels {
            Some(channels) => format!("{} {} {channels}", table_entry.algo, table_entry.proto),
            None => format!("{} {}", table_entry.algo, table_entry.proto),
        };
        Self {
            collective: measured.trial.collective.name(),
            bytes: measured.trial.bytes,
            table: table_entry.map(text),
            obeyed: TableCompliance::new(table_entry.as_ref(), &default_ran, &tuned_ran),
            is_control: !tuned_ran.is_empty() && default_ran == tuned_ran,
            default_ran,
            tuned_ran,
            default_us,
            tuned_us,
            ratio: tuned_us / default_us,
            verdict,
            chance_slower,
            chance_faster,
            default_turns_us,
            tuned_turns_us,
        }
    }

    fn has_verdict(&self, verdict: Verdict) -> bool {
        !self.is_control && self.verdict == verdict
    }

    /// Description of the strategies without the plugin. There are several if calls outside graphs use another one.
    fn default_choice_text(&self) -> String {
        self.default_ran.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }
}

impl ProveAnswer {
    fn count(&self, predicate: impl Fn(&ProveRow) -> bool) -> usize {
        self.rows.iter().filter(|row| predicate(row)).count()
    }

    /// Results as a text table.
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
        let verdicts = |rows: &dyn Fn(&ProveRow) -> bool| {
            let count = |verdict| self.count(|row| rows(row) && row.verdict == verdict);
            format!(
                "{} faster, {} alike, {} slower",
                count(Verdict::Faster),
                count(Verdict::Equal),
                count(Verdict::Slower)
            )
        };
        table.note(format!(
            "{} sizes do not run as by default: {}",
            self.count(|row| !row.is_control),
            verdicts(&|row| !row.is_control)
        ));
        let control: Vec<f64> = self.rows.iter().filter(|row| row.is_control).map(|row| row.ratio).collect();
        let min = control.iter().copied().fold(f64::INFINITY, f64::min);
        let max = control.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if !control.is_empty() {
            table.note(format!(
                "{} sizes run the same, which is the control: ratios {min:.3} to {max:.3}; verdict of the test: {}",
                control.len(),
                verdicts(&|row| row.is_control)
            ));
        }
        table.note(format!(
            "faster, slower: by more than {:.0} %, rank sums of the medians of {} processes each, of {} turns (chance below {SIGNIFICANCE})",
            100.0 * TOLERANCE,
            self.rounds,
            self.turns
        ));
        table.note(format!("{} sizes do not run as the table specifies", self.count(|row| row.obeyed.is_no())));
        if !self.is_complete {
            table.note("the time limit ended the run before all rounds and sizes");
        }
        table
    }

    /// Results as a CSV table.
    pub(super) fn csv(&self) -> Table {
        let keys = ["collective", "bytes", "default", "table", "obeyed", "default_us", "tuned_us", "ratio", "verdict"];
        self.table(&keys.map(|key| Column::new(key, key, Unit::Text)))
    }

    fn table(&self, columns: &[Column]) -> Table {
        let mut table = Table::new(columns.to_vec());
        for row in &self.rows {
            let (verdict, tone) = match row.verdict {
                _ if row.is_control => ("same", Emphasis::Faint),
                Verdict::Slower => ("slower", Emphasis::Bad),
                Verdict::Faster => ("faster", Emphasis::Good),
                Verdict::Equal => ("equal", Emphasis::Plain),
            };
            let obeyed = if row.obeyed.is_no() { Emphasis::Bad } else { Emphasis::Plain };
            let cells: Vec<Cell> = vec![
                Value::text(row.collective).into(),
                Value::Bytes(row.bytes).into(),
                Value::text(row.default_choice_text()).into(),
                Value::or_missing(row.table.clone(), Value::Text).into(),
                Cell::from(Value::text(row.obeyed.description())).tone(obeyed),
                Value::Number(rounded(row.default_us)).into(),
                Value::Number(rounded(row.tuned_us)).into(),
                Value::Number(rounded(row.ratio)).into(),
                Cell::from(Value::text(verdict)).tone(tone),
            ];
            table.row(cells);
        }
        table
    }

    /// Returns an error, which sets exit code 1, if NCCL is slower with the table at some size, does not follow the
    /// table, or was not measured.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let (slower, disobeyed) =
            (self.count(|row| row.has_verdict(Verdict::Slower)), self.count(|row| row.obeyed.is_no()));
        let mut faults = Vec::new();
        if slower > 0 {
            faults.push(format!("{slower} sizes are slower than NCCL's default"));
        }
        if disobeyed > 0 {
            faults.push(format!("{disobeyed} sizes do not run as the table specifies"));
        }
        if !self.is_complete {
            faults.push("the time limit ended the run before all rounds and sizes".to_owned());
        }
        if faults.is_empty() { Ok(()) } else { Err(Failure::Failed(faults.join("; "))) }
    }
}

/// Rounds to three decimals, the resolution of the measured times.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabricast_libraries::nccl::{Algo, Proto};
    use fabricast_sim::schedule::{Collective, DataType};

    fn row(channels: [u32; 2], table_channels: u16, tuned: f64) -> ProveRow {
        let trial = Trial { collective: Collective::AllReduce, bytes: Bytes(1 << 20), dtype: DataType::F32, calls: 1 };
        // Test data: times of processes differ by 1 %, times of turns by less.
        let times = |factor: f64| {
            let process =
                |p: u32| (0..3).map(move |t| Picos((factor * f64::from(10_000_000 + 15_000 * p + 100 * t)) as u64));
            (0..7).map(|p| process(p).collect()).collect()
        };
        let strategies =
            |channels| BTreeSet::from([LoggedStrategy { algorithm: Algo::Ring, protocol: Proto::Ll, channels }]);
        let table_channels = std::num::NonZeroU16::new(table_channels);
        let table_entry = TunerAnswer { algo: Algo::Ring, proto: Proto::Ll, channels: table_channels, row: 0 };
        ProveRow::new(
            &CallTimes { trial, default: times(1.0), tuned: times(tuned) },
            Some(table_entry),
            strategies(channels[0]),
            strategies(channels[1]),
        )
    }

    fn answer(rows: Vec<ProveRow>) -> ProveAnswer {
        let (nccl, table) = ("2.28.9".to_owned(), "t.csv".to_owned());
        ProveAnswer { nccl, ranks: 2, table, rounds: 7, turns: 3, is_complete: true, plugin: Vec::new(), rows }
    }

    #[test]
    fn equal_choices_are_controls_and_not_faults() {
        let all = answer(vec![row([24, 24], 24, 1.05), row([24, 22], 22, 1.0), row([24, 8], 8, 0.9)]);
        assert!(all.check().is_ok());
        let text = all.text().text(&fabricast_reports::table::TextOptions::default());
        assert!(text.contains("2 sizes do not run as by default: 1 faster, 1 alike, 0 slower"), "{text}");
        assert!(text.contains("ratios 1.050 to 1.050; verdict of the test: 0 faster, 0 alike, 1 slower"), "{text}");
        let json = serde_json::to_value(&all).unwrap();
        assert_eq!(json["rows"][0]["is_control"], true);
        assert_eq!(json["rows"][1]["tuned_turns_us"].as_array().unwrap().len(), 7);
        assert_eq!(json["rows"][2]["default_ran"][0], "Ring LL 24");
    }

    #[test]
    fn slower_deviating_and_incomplete_results_are_faults() {
        let fault = |all: ProveAnswer| all.check().unwrap_err().to_string();
        assert_eq!(fault(answer(vec![row([24, 8], 8, 1.05)])), "1 sizes are slower than NCCL's default");
        assert_eq!(fault(answer(vec![row([24, 8], 4, 1.0)])), "1 sizes do not run as the table specifies");
        let unfinished = ProveAnswer { is_complete: false, ..answer(Vec::new()) };
        assert_eq!(fault(unfinished), "the time limit ended the run before all rounds and sizes");
    }
}
