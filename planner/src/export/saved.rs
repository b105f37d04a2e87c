//! A saved plan: what `plan --format json` wrote, read back.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use fabricast_sim::schedule::{Collective, Protocol};
use fabricast_topologies::Bytes;
use serde::{Deserialize, Deserializer, de};

use super::TableError;
use crate::algorithm::Algorithm;
use crate::library::Library;

/// What tables are made of.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct SavedPlan {
    /// The fabric's name.
    pub fabric: String,
    /// The profile's name.
    pub profile: String,
    /// When the profile was fitted; empty for `ideal`.
    #[serde(default)]
    pub profile_date: String,
    /// Ranks.
    pub ranks: u32,
    /// Hosts.
    pub nodes: u32,
    /// Whose own choices stand in the rows.
    #[serde(default, deserialize_with = "optional_word")]
    pub library: Option<Library>,
    /// Nodes as NCCL counts them: NVLink domains where those span hosts; hosts where that is not known.
    #[serde(default)]
    pub library_nodes: Option<u32>,
    /// The call of `plan` that made the plan, as far as it says which fabric.
    #[serde(default)]
    pub asked: Option<Asked>,
    /// By collective, then size.
    pub rows: Vec<SavedRow>,
    /// Equal neighbours merged.
    pub ranges: Vec<SavedRange>,
}

/// Which fabric was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Asked {
    /// `--fabric`.
    pub fabric: String,
    /// `--nodes`.
    #[serde(default)]
    pub nodes: Option<u32>,
    /// `--gpus`.
    #[serde(default)]
    pub gpus: Option<u32>,
    /// `--network`.
    #[serde(default)]
    pub network: Option<String>,
}

/// A row.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(from = "FlatRow")]
pub struct SavedRow {
    /// The collective.
    pub collective: Collective,
    /// The size.
    pub bytes: Bytes,
    /// The pick.
    pub pick: SavedPick,
    /// What the library does by itself.
    pub library_default: Option<SavedPick>,
    /// The best that the library can run, where the pick is something else.
    pub best_of_library: Option<SavedPick>,
    /// The fastest by prediction, where the library's choice or a neighbour's was preferred.
    pub fastest: Option<SavedPick>,
    /// The second best.
    pub runner_up: Option<SavedPick>,
    /// What no schedule can beat, µs.
    pub bound_us: Option<f64>,
    /// What holds the pick back.
    pub binds: Option<String>,
}

/// A row as it is written: the pick's keys among its own. (Flattened by hand: errors keep their places.)
#[derive(Deserialize)]
struct FlatRow {
    #[serde(deserialize_with = "word")]
    collective: Collective,
    bytes: Bytes,
    #[serde(deserialize_with = "word")]
    algorithm: Algorithm,
    #[serde(deserialize_with = "word")]
    protocol: Protocol,
    channels: u16,
    #[serde(default)]
    chunk: Option<u64>,
    #[serde(default)]
    threads: Option<u16>,
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
    #[serde(default)]
    binds: Option<String>,
}

impl From<FlatRow> for SavedRow {
    fn from(row: FlatRow) -> Self {
        let FlatRow { algorithm, protocol, channels, chunk, threads, time_us, low_us, high_us, measured_us, .. } = row;
        Self {
            collective: row.collective,
            bytes: row.bytes,
            pick: SavedPick {
                algorithm,
                protocol,
                channels,
                chunk,
                threads,
                time_us,
                low_us,
                high_us,
                measured_us,
                name: None,
            },
            library_default: row.library_default,
            best_of_library: row.best_of_library,
            fastest: row.fastest,
            runner_up: row.runner_up,
            bound_us: row.bound_us,
            binds: row.binds,
        }
    }
}

/// A strategy with its time.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct SavedPick {
    /// The pattern.
    #[serde(deserialize_with = "word")]
    pub algorithm: Algorithm,
    /// How bytes move.
    #[serde(deserialize_with = "word")]
    pub protocol: Protocol,
    /// Channels.
    pub channels: u16,
    /// The chunk, where it is not the profile's own.
    #[serde(default)]
    pub chunk: Option<u64>,
    /// Threads of a block, where they are not the protocol's own.
    #[serde(default)]
    pub threads: Option<u16>,
    /// Predicted, µs.
    pub time_us: f64,
    /// Lower end of the band, µs.
    #[serde(default)]
    pub low_us: Option<f64>,
    /// Upper end of the band, µs.
    #[serde(default)]
    pub high_us: Option<f64>,
    /// Measured, µs.
    #[serde(default)]
    pub measured_us: Option<f64>,
    /// The library's own word for it, where it is its choice: `Ring LL`, `rabenseifner`.
    #[serde(default)]
    pub name: Option<String>,
}

/// Sizes with one pick.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct SavedRange {
    /// The collective.
    #[serde(deserialize_with = "word")]
    pub collective: Collective,
    /// First size, included.
    pub min_bytes: Bytes,
    /// Last size, included.
    pub max_bytes: Bytes,
    /// The pattern.
    #[serde(deserialize_with = "word")]
    pub algorithm: Algorithm,
    /// How bytes move.
    #[serde(deserialize_with = "word")]
    pub protocol: Protocol,
    /// Channels.
    pub channels: u16,
}

impl SavedPlan {
    /// Whether a text looks like a saved plan rather than another JSON file.
    #[must_use]
    pub fn is_one(text: &str) -> bool {
        text.trim_start().starts_with('{') && text.contains("\"ranges\"") && text.contains("\"profile\"")
    }

    /// Reads a plan; `source` is the file's name, for errors.
    ///
    /// # Errors
    /// [`TableError`] with line and column where the JSON is not that of a plan; with the row where rows are not in order or
    /// have a time that is none.
    pub fn read(text: &str, source: &str) -> Result<Self, TableError> {
        let plan: Self = serde_json::from_str(text).map_err(|error| TableError::json(source, text, &error))?;
        let wrong = |message: String| Err(TableError::of(source, message));
        if plan.ranks == 0 || plan.nodes == 0 || plan.nodes > plan.ranks {
            return wrong(format!("{} ranks on {} nodes: expected at least one rank on each", plan.ranks, plan.nodes));
        }
        let at = |row: &SavedRow| (row.collective, row.bytes);
        if let Some(pair) = plan.rows.windows(2).position(|pair| at(&pair[0]) >= at(&pair[1])) {
            return wrong(format!("rows[{}]: expected rows by collective, then by size, each once", pair + 1));
        }
        let is_time = |pick: &SavedPick| pick.time_us.is_finite() && pick.time_us >= 0.0 && pick.channels > 0;
        let no_time = plan.rows.iter().position(|row| {
            let others = [&row.library_default, &row.best_of_library, &row.fastest, &row.runner_up];
            !is_time(&row.pick) || !others.into_iter().flatten().all(is_time)
        });
        if let Some(row) = no_time {
            return wrong(format!("rows[{row}]: expected at least one channel and a time from 0 µs"));
        }
        let follows = |pair: &[SavedRange]| match pair {
            [a, b] => a.collective < b.collective || (a.collective == b.collective && a.max_bytes < b.min_bytes),
            _ => true,
        };
        let unordered = plan.ranges.windows(2).position(|pair| !follows(pair)).map(|before| before + 1);
        let empty = plan.ranges.iter().position(|range| range.min_bytes > range.max_bytes || range.channels == 0);
        if let Some(range) = unordered.or(empty) {
            return wrong(format!("ranges[{range}]: expected ranges by collective, then by size, that do not overlap"));
        }
        Ok(plan)
    }
}

impl SavedPick {
    /// What counts: the measured time, or else the predicted one.
    #[must_use]
    pub fn counted_us(&self) -> f64 {
        self.measured_us.unwrap_or(self.time_us)
    }
}

impl fmt::Display for SavedPick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} × {}", self.algorithm, self.protocol, self.channels)
    }
}

/// A word that names something.
struct Word<T>(PhantomData<T>);

impl<T: FromStr<Err: fmt::Display>> de::Visitor<'_> for Word<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

fn word<'de, T: FromStr<Err: fmt::Display>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    from.deserialize_str(Word(PhantomData))
}

fn optional_word<'de, T: FromStr<Err: fmt::Display>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| text.parse().map_err(de::Error::custom)).transpose()
}
