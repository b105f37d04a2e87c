//! Timeline of a step in `results.json`: one text per interval, in whole nanoseconds.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::step::{Course, Doing, Lane};

/// Timeline of the stages of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CourseRow {
    /// Kind of step: `step`, or `with prompts` and `without prompts` for inference.
    pub step: String,
    /// Number of omitted stages.
    #[serde(default)]
    pub stages_left_out: u64,
    /// Tracks of the other stages, first to last.
    pub lanes: Vec<LaneRow>,
}

/// Track of a timeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneRow {
    /// Index of the stage, from 0.
    pub stage: u64,
    /// Kind of track.
    pub lane: LaneKind,
    /// Intervals in order of time.
    pub intervals: Vec<IntervalRow>,
}

/// Kind of track.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaneKind {
    /// Computation on the stage's GPUs.
    Work,
    /// Communication that overlaps with the computation.
    Beside,
}

/// Interval, written as `forward 3.0 1000..2500`: activity, index (micro-batch, layer or bucket), model chunk, begin
/// and end in ns. For `more` the index is the number of merged intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct IntervalRow {
    /// The activity.
    pub doing: Doing,
    /// Index from 0.
    pub number: u64,
    /// Model chunk, from 0.
    pub chunk: u64,
    /// Start time in ns.
    pub begin_ns: u64,
    /// End time in ns.
    pub end_ns: u64,
}

/// Invalid text of an interval.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no interval: expected what, numbers and nanoseconds, such as `forward 3.0 1000..2500`")]
pub struct IntervalError(String);

impl fmt::Display for IntervalRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { doing, number, chunk, begin_ns, end_ns } = self;
        write!(f, "{} {number}.{chunk} {begin_ns}..{end_ns}", doing.name())
    }
}

impl FromStr for IntervalRow {
    type Err = IntervalError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let read = || {
            let mut words = text.split(' ');
            let (doing, which, when) = (words.next()?, words.next()?, words.next()?);
            let doing = Doing::ALL.into_iter().find(|one| one.name() == doing)?;
            let ((number, chunk), (begin, end)) = (which.split_once('.')?, when.split_once("..")?);
            let number_of = |text: &str| text.parse::<u64>().ok();
            let row = Self {
                doing,
                number: number_of(number)?,
                chunk: number_of(chunk)?,
                begin_ns: number_of(begin)?,
                end_ns: number_of(end)?,
            };
            (words.next().is_none() && row.begin_ns <= row.end_ns).then_some(row)
        };
        read().ok_or_else(|| IntervalError(text.to_owned()))
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

impl CourseRow {
    /// Converts a timeline and shortens it.
    #[must_use]
    pub fn of(step: &str, course: Course) -> Self {
        let course = course.shortened();
        let lanes = course.lanes.into_iter().map(|(lane, intervals)| {
            let (stage, lane) = match lane {
                Lane::Stage(stage) => (stage, LaneKind::Work),
                Lane::Beside(stage) => (stage, LaneKind::Beside),
            };
            let rows = intervals.iter().map(|one| IntervalRow {
                doing: one.doing,
                number: one.number,
                chunk: one.chunk,
                begin_ns: one.begin.0 / 1000,
                end_ns: one.end.0 / 1000,
            });
            LaneRow { stage, lane, intervals: rows.collect() }
        });
        Self { step: step.to_owned(), stages_left_out: course.stages_left_out, lanes: lanes.collect() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn intervals_round_trip_through_text(doing in 0..Doing::ALL.len(), number: u64, chunk in 0u64..9, begin_ns: u32, time: u32) {
            let (begin_ns, doing) = (u64::from(begin_ns), Doing::ALL[doing]);
            let row = IntervalRow { doing, number, chunk, begin_ns, end_ns: begin_ns + u64::from(time) };
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
                text.parse::<IntervalRow>().unwrap_err().to_string().starts_with(&format!("`{text}` is no interval"))
            );
        }
    }
}
