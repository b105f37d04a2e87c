//! Reader of saved plans, as written by `plan --format json`.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use fabricast_sim::schedule::{Collective, Protocol};
use fabricast_topologies::{Bytes, Origin};
use serde::{Deserialize, Deserializer, de};

use super::json_text::{JsonText, strip_bom};
use super::{Departure, TableError};
use fabricast_collectives::algorithm::Algorithm;
use fabricast_collectives::packing::TreeVariant;
use fabricast_collectives::strategy::Strategy;
use fabricast_libraries::Library;

/// Saved plan: the input of all exports.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct SavedPlan {
    /// Name of the fabric that was planned.
    pub fabric: String,
    /// Name of the profile of software costs with which times were predicted.
    pub profile: String,
    /// Date when the profile was fitted; empty for `ideal`.
    #[serde(default)]
    pub profile_date: String,
    /// Number of ranks of the calls.
    pub ranks: u32,
    /// Number of hosts that the ranks occupy.
    pub nodes: u32,
    /// Library whose defaults are in the rows; `None` if no library was requested.
    #[serde(default, deserialize_with = "parse_optional_name")]
    pub library: Option<Library>,
    /// Number of nodes as NCCL counts them: NVLink domains if those span hosts. `None` if unknown; readers then use the
    /// number of hosts.
    #[serde(default)]
    pub library_nodes: Option<u32>,
    /// Options of the `plan` command that identify the fabric.
    #[serde(default)]
    #[serde(alias = "asked")]
    pub request: Option<FabricQuery>,
    /// Root rank of broadcast, reduce, gather and scatter.
    #[serde(default)]
    pub root: u32,
    /// True if input and output share one buffer.
    #[serde(default)]
    pub in_place: bool,
    /// Value of `--trees`: variant of packed trees; `None` if not given.
    #[serde(default)]
    pub trees: Option<TreeVariant>,
    /// Results at the requested sizes, sorted by collective, then size.
    pub rows: Vec<SavedRow>,
    /// Rows planned between the requested sizes, near sizes at which the selected strategy changes; sorted by
    /// collective, then size.
    #[serde(default)]
    #[serde(alias = "between")]
    pub refined_rows: Vec<SavedRow>,
    /// Ranges of adjacent sizes, from the requested and the refined rows, that share a selected strategy.
    pub ranges: Vec<SavedRange>,
    /// The library's defaults below the first size and above the last; empty if unknown.
    #[serde(default)]
    #[serde(alias = "beyond")]
    pub outside_ranges: Vec<SavedRange>,
    /// Departures of the ranges from the library's defaults. fabricast's own JSON table has no rows, so it stores the
    /// departures of the rows from which it was made. `None` if the file does not list them.
    #[serde(default)]
    pub departures: Option<Vec<Departure>>,
}

/// Options that identify the requested fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct FabricQuery {
    /// Value of `--fabric`: the name of a preset, or a file.
    pub fabric: String,
    /// Value of `--nodes`: number of hosts; `None` if not given.
    #[serde(default)]
    pub nodes: Option<u32>,
    /// Value of `--gpus`: number of GPUs per host; `None` if not given.
    #[serde(default)]
    pub gpus: Option<u32>,
    /// Value of `--network`; `None` if not given.
    #[serde(default)]
    pub network: Option<String>,
    /// Value of `--profile`; `None` if the best matching profile is used.
    #[serde(default)]
    pub profile: Option<String>,
}

/// Results for one collective and message size.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(from = "FlatRow")]
pub struct SavedRow {
    /// Collective of the call.
    pub collective: Collective,
    /// Message size of the call, in bytes.
    pub bytes: Bytes,
    /// Selected strategy.
    pub pick: SavedPick,
    /// The library's default strategy; `None` if no library was requested or its choice is unknown.
    pub library_default: Option<SavedPick>,
    /// Best strategy that the library can run, if it differs from the selected one.
    pub best_of_library: Option<SavedPick>,
    /// Fastest of all candidates. Plans of earlier versions include it only if the library's default or a neighbour's
    /// strategy was preferred.
    pub fastest: Option<SavedPick>,
    /// Best strategy with another algorithm or protocol than the selected one; the fastest strategy if the library's
    /// default is selected.
    pub runner_up: Option<SavedPick>,
    /// Lower bound on the completion time of every schedule, µs.
    pub bound_us: Option<f64>,
    /// Name of the resource with the highest utilization in the simulation of the selected strategy, or `latency` if
    /// every resource is used to less than half of its capacity.
    #[serde(alias = "binds")]
    pub bottleneck: Option<String>,
}

/// Serialized form of a row, with the selected strategy's keys inlined. The deserializer is implemented by hand,
/// because `#[serde(flatten)]` loses error positions.
#[derive(Deserialize)]
struct FlatRow {
    #[serde(deserialize_with = "parse_name")]
    collective: Collective,
    bytes: Bytes,
    #[serde(deserialize_with = "parse_name")]
    algorithm: Algorithm,
    #[serde(deserialize_with = "parse_name")]
    protocol: Protocol,
    channels: u16,
    #[serde(default)]
    chunk: Option<u64>,
    #[serde(default)]
    threads: Option<u16>,
    #[serde(default)]
    trees: Option<TreeVariant>,
    time_us: f64,
    #[serde(default)]
    low_us: Option<f64>,
    #[serde(default)]
    high_us: Option<f64>,
    #[serde(default)]
    measured_us: Option<f64>,
    #[serde(default)]
    library_default: Option<SavedPick>,
    #[serde(default)]
    best_of_library: Option<SavedPick>,
    #[serde(default)]
    fastest: Option<SavedPick>,
    #[serde(default)]
    runner_up: Option<SavedPick>,
    #[serde(default)]
    bound_us: Option<f64>,
    #[serde(default, alias = "binds")]
    bottleneck: Option<String>,
}

impl From<FlatRow> for SavedRow {
    fn from(row: FlatRow) -> Self {
        let FlatRow { algorithm, protocol, channels, chunk, threads, trees, time_us, low_us, .. } = row;
        let FlatRow { high_us, measured_us, .. } = row;
        Self {
            collective: row.collective,
            bytes: row.bytes,
            pick: SavedPick {
                algorithm,
                protocol,
                channels,
                chunk,
                threads,
                trees,
                time_us,
                low_us,
                high_us,
                measured_us,
                name: None,
                max_channels: None,
            },
            library_default: row.library_default,
            best_of_library: row.best_of_library,
            fastest: row.fastest,
            runner_up: row.runner_up,
            bound_us: row.bound_us,
            bottleneck: row.bottleneck,
        }
    }
}

/// Strategy with its predicted and measured times.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct SavedPick {
    /// Algorithm of the strategy.
    #[serde(deserialize_with = "parse_name")]
    pub algorithm: Algorithm,
    /// Protocol of the strategy.
    #[serde(deserialize_with = "parse_name")]
    pub protocol: Protocol,
    /// Number of channels.
    pub channels: u16,
    /// Chunk size in bytes, if not the profile's default.
    #[serde(default)]
    pub chunk: Option<u64>,
    /// Threads per block, if not the protocol's default.
    #[serde(default)]
    pub threads: Option<u16>,
    /// Variant of packed trees, for that algorithm.
    #[serde(default)]
    pub trees: Option<TreeVariant>,
    /// Predicted completion time, µs.
    pub time_us: f64,
    /// Lower end of the prediction interval, µs.
    #[serde(default)]
    pub low_us: Option<f64>,
    /// Upper end of the prediction interval, µs.
    #[serde(default)]
    pub high_us: Option<f64>,
    /// Measured completion time, µs; `None` if the strategy was not measured.
    #[serde(default)]
    pub measured_us: Option<f64>,
    /// The library's name for the strategy if it is the library's default: `Ring LL`, `rabenseifner`.
    #[serde(default)]
    pub name: Option<String>,
    /// Maximum number of channels that the library allows for the call, if the strategy is the library's default.
    /// `channels` is the number of channels to which the message size gives work.
    #[serde(default)]
    #[serde(alias = "most_channels")]
    pub max_channels: Option<u16>,
}

/// Size range with one selected strategy.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct SavedRange {
    /// Collective to which the range applies.
    #[serde(deserialize_with = "parse_name")]
    pub collective: Collective,
    /// Smallest message size, in bytes, inclusive.
    pub min_bytes: Bytes,
    /// Largest message size, in bytes, inclusive.
    pub max_bytes: Bytes,
    /// Algorithm of the selected strategy.
    #[serde(deserialize_with = "parse_name")]
    pub algorithm: Algorithm,
    /// Protocol of the selected strategy.
    #[serde(deserialize_with = "parse_name")]
    pub protocol: Protocol,
    /// Number of channels of the selected strategy.
    pub channels: u16,
    /// Variant of packed trees, for that algorithm.
    #[serde(default)]
    pub trees: Option<TreeVariant>,
}

impl SavedPlan {
    /// Returns true if a text looks like a saved plan and not like another JSON file.
    #[must_use]
    pub fn looks_like_plan(text: &str) -> bool {
        text.trim_start().starts_with('{') && text.contains("\"ranges\"") && text.contains("\"profile\"")
    }

    /// Returns the algorithms of the selected strategies, without duplicates.
    #[must_use]
    pub fn algorithms(&self) -> Vec<Algorithm> {
        let rows = self.rows.iter().chain(&self.refined_rows).map(|row| row.pick.algorithm);
        let ranges = self.ranges.iter().chain(&self.outside_ranges).map(|range| range.algorithm);
        let mut algorithms: Vec<Algorithm> = rows.chain(ranges).collect();
        algorithms.sort_unstable();
        algorithms.dedup();
        algorithms
    }

    /// Reads a plan; `source` is the file name used in errors. Unknown keys are ignored, because plans contain keys
    /// that exports do not need.
    ///
    /// # Errors
    /// [`TableError`] with line and column: JSON that is not a plan, unordered rows or ranges, an invalid time, no
    /// ranks.
    pub fn read(text: &str, source: &str) -> Result<Self, TableError> {
        let text = strip_bom(text);
        let origin = Origin::new(source, text);
        // Plans of `plan --job` have rows of several groups and are rejected.
        if let Some(start) = text.find("\"calls_each\"") {
            let message = "a plan for the calls of a job: expected a plan for collectives (plan --collective all)";
            return Err(TableError::new(source, text, start..start + 12, message));
        }
        let plan: Self =
            serde_json::from_str(text).map_err(|error| TableError::from_json_error(origin, 0..text.len(), &error))?;
        let json = JsonText::new(text, source);
        if plan.ranks == 0 || plan.nodes == 0 || plan.nodes > plan.ranks {
            let message = format!("{} ranks on {} nodes: expected at least one rank on each", plan.ranks, plan.nodes);
            return Err(error_at(json, "ranks", None, message));
        }
        if plan.root >= plan.ranks {
            let message = format!("root {}: expected one of {} ranks", plan.root, plan.ranks);
            return Err(error_at(json, "root", None, message));
        }
        let fail = |list, index, message: &str| Err(error_at(json, list, Some(index), message.to_owned()));
        let key = |row: &SavedRow| (row.collective, row.bytes);
        for (list, rows) in [("rows", &plan.rows), ("refined_rows", &plan.refined_rows)] {
            if let Some(pair) = rows.windows(2).position(|pair| key(&pair[0]) >= key(&pair[1])) {
                return fail(list, pair + 1, "expected rows by collective, then by size, each once");
            }
        }
        // True if the row lies between two rows of its collective.
        let is_between_rows = |row: &SavedRow| {
            let after = plan.rows.partition_point(|known| key(known) < key(row));
            let neighbours = [after.checked_sub(1), Some(after)].map(|index| plan.rows.get(index?));
            let is_other = |known: &SavedRow| known.collective == row.collective && known.bytes != row.bytes;
            neighbours.into_iter().all(|known| known.is_some_and(is_other))
        };
        if let Some(row) = plan.refined_rows.iter().position(|row| !is_between_rows(row)) {
            return fail("refined_rows", row, "expected sizes between those of the collective's rows");
        }
        let is_time = |time: f64| time.is_finite() && time >= 0.0;
        let is_valid_pick = |pick: &SavedPick| {
            let times = [Some(pick.time_us), pick.low_us, pick.high_us, pick.measured_us];
            pick.channels > 0 && pick.max_channels != Some(0) && times.into_iter().flatten().all(is_time)
        };
        let has_invalid_pick = |row: &SavedRow| {
            let alternatives = [&row.library_default, &row.best_of_library, &row.fastest, &row.runner_up];
            !is_valid_pick(&row.pick) || !alternatives.into_iter().flatten().all(is_valid_pick)
        };
        for (list, rows) in [("rows", &plan.rows), ("refined_rows", &plan.refined_rows)] {
            if let Some(row) = rows.iter().position(has_invalid_pick) {
                return fail(list, row, "expected at least one channel and times from 0 µs");
            }
        }
        let is_ordered = |pair: &[SavedRange]| match pair {
            [a, b] => a.collective < b.collective || (a.collective == b.collective && a.max_bytes < b.min_bytes),
            _ => true,
        };
        for (list, ranges) in [("ranges", &plan.ranges), ("outside_ranges", &plan.outside_ranges)] {
            let unordered = ranges.windows(2).position(|pair| !is_ordered(pair)).map(|index| index + 1);
            let empty = ranges.iter().position(|range| range.min_bytes > range.max_bytes || range.channels == 0);
            if let Some(range) = unordered.or(empty) {
                let message =
                    "expected ranges by collective, then by size, that do not overlap, each of at least one channel";
                return fail(list, range, message);
            }
        }
        if let Some(range) = plan.outside_ranges.iter().position(|range| !plan.is_outside_rows(range)) {
            return fail("outside_ranges", range, "expected sizes below the collective's first row or above its last");
        }
        Ok(plan)
    }

    fn is_outside_rows(&self, range: &SavedRange) -> bool {
        let mut rows = self.rows.iter().filter(|row| row.collective == range.collective);
        let Some(first) = rows.next() else { return false };
        let last = rows.next_back().unwrap_or(first);
        range.max_bytes < first.bytes || range.min_bytes > last.bytes
    }

    /// Iterates over the requested and the refined rows, by collective and size.
    pub fn all_rows(&self) -> impl Iterator<Item = &SavedRow> {
        let (mut rows, mut refined_rows) = (self.rows.iter().peekable(), self.refined_rows.iter().peekable());
        std::iter::from_fn(move || {
            let key = |row: Option<&&SavedRow>| row.map(|row| (row.collective, row.bytes));
            match (key(rows.peek()), key(refined_rows.peek())) {
                (Some(row), Some(refined)) if refined < row => refined_rows.next(),
                (Some(_), _) => rows.next(),
                (None, _) => refined_rows.next(),
            }
        })
    }

    /// Iterates over the ranges of collectives that have no rows.
    pub fn ranges_without_rows(&self) -> impl Iterator<Item = &SavedRange> {
        self.ranges.iter().filter(|range| !self.has_rows(range.collective))
    }

    /// Returns true if the collective has rows.
    #[must_use]
    pub fn has_rows(&self, collective: Collective) -> bool {
        let after = self.rows.partition_point(|row| row.collective < collective);
        self.rows.get(after).is_some_and(|row| row.collective == collective)
    }

    /// Returns the range that contains a message size of a collective; `None` if no range does.
    #[must_use]
    pub fn find_range(&self, collective: Collective, bytes: Bytes) -> Option<&SavedRange> {
        let after = self.ranges.partition_point(|range| (range.collective, range.max_bytes) < (collective, bytes));
        self.ranges.get(after).filter(|range| range.collective == collective && range.min_bytes <= bytes)
    }
}

/// Creates an error about a plan, located at the value of `key` or, with `index`, at that element of its list.
fn error_at(json: JsonText<'_>, key: &str, index: Option<usize>, message: String) -> TableError {
    let value = || -> Result<&str, TableError> {
        let root = json.root()?;
        let value = json.members(root, "a plan")?.get(key).unwrap_or(root);
        let element = match index {
            None => None,
            Some(index) => json.items(value, key)?.get(index).copied(),
        };
        Ok(element.unwrap_or(value).get())
    };
    let message = match index {
        None => message,
        Some(index) => format!("{key}[{index}]: {message}"),
    };
    value().map_or_else(|error| error, |part| json.error_at(part, message))
}

impl SavedRow {
    /// Returns the entry that a table uses for a strategy of the row. The library's default gets the maximum number of
    /// channels that the library allows.
    pub(super) fn table_entry(&self, pick: &SavedPick) -> SavedPick {
        // The chunk is ignored, because it is written even if it equals the profile's default.
        let without_chunk = |pick: &SavedPick| Strategy { chunk: None, ..pick.strategy() };
        let is_default = |default: &&SavedPick| without_chunk(default) == without_chunk(pick);
        let max_channels = self.library_default.as_ref().filter(is_default).and_then(|default| default.max_channels);
        SavedPick { channels: max_channels.unwrap_or(pick.channels), ..pick.clone() }
    }

    /// Creates a row that represents a range at its first size. Its times are unknown.
    pub(super) fn from_range(range: &SavedRange) -> Self {
        let pick = range.pick();
        Self {
            collective: range.collective,
            bytes: range.min_bytes,
            pick,
            library_default: None,
            best_of_library: None,
            fastest: None,
            runner_up: None,
            bound_us: None,
            bottleneck: None,
        }
    }
}

impl SavedRange {
    /// Returns the strategy of the range. Its times are unknown.
    pub(in crate::export) fn pick(&self) -> SavedPick {
        SavedPick {
            algorithm: self.algorithm,
            protocol: self.protocol,
            channels: self.channels,
            chunk: None,
            threads: None,
            trees: self.trees,
            time_us: 0.0,
            low_us: None,
            high_us: None,
            measured_us: None,
            name: None,
            max_channels: None,
        }
    }
}

impl SavedPick {
    /// The measured completion time if there is one, otherwise the predicted one, µs.
    #[must_use]
    pub fn effective_us(&self) -> f64 {
        self.measured_us.unwrap_or(self.time_us)
    }
}

impl fmt::Display for SavedPick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} × {}", self.algorithm, self.protocol, self.channels)
    }
}

/// Visitor that parses a name with [`FromStr`].
struct NameVisitor<T>(PhantomData<T>);

impl<T: FromStr<Err: fmt::Display>> de::Visitor<'_> for NameVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

fn parse_name<'de, T: FromStr<Err: fmt::Display>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    deserializer.deserialize_str(NameVisitor(PhantomData))
}

fn parse_optional_name<'de, T: FromStr<Err: fmt::Display>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| text.parse().map_err(de::Error::custom)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str = r#"{"collective": "all_reduce", "bytes": 8, "algorithm": "ring", "protocol": "ll", "channels": 2, "time_us": 9.5}"#;
    const RANGE: &str = r#"{"collective": "all_reduce", "min_bytes": 1, "max_bytes": 9, "algorithm": "ring", "protocol": "ll", "channels": 2}"#;

    /// Returns a plan with its rows on line 2 and its ranges on line 3.
    fn plan(rows: &[&str], ranges: &[&str]) -> String {
        format!(
            "{{\"fabric\": \"f\", \"profile\": \"p\", \"ranks\": 8, \"nodes\": 1, \"rows\":\n[{}], \"ranges\":\n[{}]}}",
            rows.join(","),
            ranges.join(",")
        )
    }

    #[test]
    fn invalid_plans_are_rejected_with_location() {
        let good = plan(&[ROW], &[RANGE]);
        assert!(SavedPlan::read(&good, "p").is_ok());
        assert!(SavedPlan::read(&format!("\u{feff}{}", good.replace('\n', "\r\n")), "p").is_ok());
        let after = 2 + ROW.len() as u32 + 1;
        let after_range = 2 + RANGE.len() as u32 + 1;
        for (text, line, column, expected) in [
            (String::new(), 1, 1, "EOF"),
            (plan(&[ROW, ROW], &[]), 2, after, "rows[1]: expected rows by collective"),
            (plan(&[&ROW.replace("9.5", "-1")], &[]), 2, 2, "rows[0]: expected at least one channel and times"),
            (plan(&[&ROW.replace("9.5", "9.5, \"measured_us\": -3")], &[]), 2, 2, "times from 0"),
            (plan(&[&ROW.replace("\"channels\": 2", "\"channels\": 0")], &[]), 2, 2, "at least one channel"),
            (plan(&[], &[RANGE, RANGE]), 3, after_range, "ranges[1]: expected ranges"),
            (plan(&[], &[&RANGE.replace("9", "0")]), 3, 2, "ranges[0]: expected ranges"),
            (good.replace("\"ranks\": 8", "\"ranks\": 0"), 1, 42, "0 ranks on 1 nodes"),
            (good.replace("\"ranks\": 8", "\"calls_each\": 8"), 1, 33, "a plan for the calls of a job"),
            (plan(&[&ROW.replace("ring", "rong")], &[]), 2, 0, "rong"),
            (plan(&[&ROW.replace("8", "-8")], &[]), 2, 0, "-8"),
            (plan(&[&ROW.replace("2", "70000")], &[]), 2, 0, "70000"),
            (good.replace("}]}", "}]"), 3, 0, "EOF"),
        ] {
            let error = SavedPlan::read(&text, "p").unwrap_err();
            assert_eq!(error.location.line, line, "{text}: {error}");
            assert!(column == 0 || error.location.column == column, "{text}: {error}");
            assert!(error.location.column > 0 && error.message.contains(expected), "{text}: {error}");
        }
    }
}
