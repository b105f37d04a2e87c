//! Timeline of a step in `results.json`: each interval is a text with times in whole nanoseconds.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use fabricast_perf::step::Activity;

/// Timeline of the pipeline stages of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TimelineRow {
    /// Kind of step: `step`, or for inference `with prompts` (with prefill) and `without prompts` (decode only).
    pub step: String,
    /// Number of pipeline stages without tracks here.
    #[serde(default)]
    #[serde(alias = "stages_left_out")]
    pub omitted_stages: u64,
    /// Tracks of the shown stages, from the first stage to the last.
    #[serde(alias = "lanes")]
    pub tracks: Vec<TrackRow>,
}

/// Track of a timeline: intervals of one kind on one stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TrackRow {
    /// Index of the pipeline stage, from 0.
    pub stage: u64,
    /// Kind of track.
    #[serde(alias = "lane")]
    pub kind: TrackKind,
    /// Intervals in order of time.
    pub intervals: Vec<IntervalRow>,
}

/// Kind of track.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TrackKind {
    /// Computation on the stage's GPUs.
    #[serde(alias = "work")]
    Compute,
    /// Communication that overlaps with the computation.
    #[serde(alias = "beside")]
    Communication,
}

/// Interval, written as `forward 3.0 1000..2500`: activity, index (micro-batch, layer or bucket), model chunk, begin
/// and end in ns. For the activity `more`, the index is the number of merged intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct IntervalRow {
    /// Activity during the interval.
    #[serde(alias = "doing")]
    pub activity: Activity,
    /// Index of the micro-batch, layer or bucket, from 0. For the activity `more`, the number of merged intervals.
    pub number: u64,
    /// Index of the model chunk, from 0.
    pub chunk: u64,
    /// Start of the interval in ns, from the start of the step.
    pub begin_ns: u64,
    /// End of the interval in ns, from the start of the step.
    pub end_ns: u64,
}

/// Error for a text that is not a valid interval.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an interval: expected activity, numbers and nanoseconds, such as `forward 3.0 1000..2500`")]
pub struct IntervalError(String);

impl fmt::Display for IntervalRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { activity, number, chunk, begin_ns, end_ns } = self;
        write!(f, "{} {number}.{chunk} {begin_ns}..{end_ns}", activity.name())
    }
}

impl FromStr for IntervalRow {
    type Err = IntervalError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let mut parts = text.split(' ');
            let (name, index, span) = (parts.next()?, parts.next()?, parts.next()?);
            let activity = Activity::ALL.into_iter().find(|activity| activity.name() == name)?;
            let ((number, chunk), (begin, end)) = (index.split_once('.')?, span.split_once("..")?);
            let parse_number = |text: &str| text.parse::<u64>().ok();
            let row = Self {
                activity,
                number: parse_number(number)?,
                chunk: parse_number(chunk)?,
                begin_ns: parse_number(begin)?,
                end_ns: parse_number(end)?,
            };
            (parts.next().is_none() && row.begin_ns <= row.end_ns).then_some(row)
        };
        parse().ok_or_else(|| IntervalError(text.to_owned()))
    }
}

impl TryFrom<String> for IntervalRow {
    type Error = IntervalError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<IntervalRow> for String {
    fn from(row: IntervalRow) -> Self {
        row.to_string()
    }
}

/// Schema of an interval, which is serialized as a text.
impl JsonSchema for IntervalRow {
    fn schema_name() -> Cow<'static, str> {
        "IntervalRow".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Interval, such as `forward 3.0 1000..2500`: activity, index (micro-batch, layer or bucket), \
                model chunk, begin and end in ns. For `more` the index is the number of merged intervals.",
            "type": "string",
            "pattern": r"^\S+ \d+\.\d+ \d+\.\.\d+$",
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn intervals_round_trip_through_text(activity in 0..Activity::ALL.len(), number: u64, chunk in 0u64..9, begin_ns: u32, time: u32) {
            let (begin_ns, activity) = (u64::from(begin_ns), Activity::ALL[activity]);
            let row = IntervalRow { activity, number, chunk, begin_ns, end_ns: begin_ns + u64::from(time) };
            prop_assert_eq!(row.to_string().parse::<IntervalRow>(), Ok(row));
        }

        #[test]
        fn invalid_intervals_are_rejected(text in "[a-z0-9 .]{0,30}") {
            if let Ok(row) = text.parse::<IntervalRow>() {
                prop_assert_eq!(row.to_string().parse::<IntervalRow>(), Ok(row));
            }
        }
    }

    #[test]
    fn interval_errors_quote_the_text() {
        for text in [
            "",
            "forward",
            "forward 3 1..2",
            "forward 3.0 2..1",
            "sideways 3.0 1..2",
            "forward 3.0 1..2 x",
            "forward 3.0 -1..2",
        ] {
            assert!(
                text.parse::<IntervalRow>()
                    .unwrap_err()
                    .to_string()
                    .starts_with(&format!("`{text}` is not an interval"))
            );
        }
    }
}
