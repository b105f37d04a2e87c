//! Parsers of the figures in logs: times in microseconds, sizes, counts.

use fabricast_topologies::{Bytes, Picos};

use super::Reason;

/// Upper limit of a call's time in microseconds (11 days).
const LONGEST_US: f64 = 1e12;

/// Parses a time in microseconds; it must be positive and at most [`LONGEST_US`].
pub(super) fn time(column: &'static str, text: &str) -> Result<Picos, Reason> {
    let expected = "a time in microseconds, over 0";
    let wrong = || Reason::NotANumber { column, text: text.to_owned(), expected };
    let microseconds = text.parse::<f64>().map_err(|_| wrong())?;
    time_from_us(microseconds).ok_or_else(wrong)
}

/// Converts microseconds to a time; `None` if they are not positive or exceed [`LONGEST_US`].
pub(super) fn time_from_us(microseconds: f64) -> Option<Picos> {
    let time = (microseconds > 0.0 && microseconds <= LONGEST_US).then(|| Picos::from_us(microseconds))?;
    (time > Picos::ZERO).then_some(time)
}

/// Parses a bandwidth or a share; any number is valid.
pub(super) fn figure(column: &'static str, text: &str) -> Result<f64, Reason> {
    text.parse().map_err(|_| Reason::NotANumber { column, text: text.to_owned(), expected: "a number" })
}

/// Parses a size in bytes, from 1 to [`Bytes::MAX`].
pub(super) fn bytes(text: &str) -> Result<Bytes, Reason> {
    let read = text.parse::<u64>().ok().map(Bytes).filter(|&bytes| bytes <= Bytes::MAX);
    let bytes = read.ok_or_else(|| Reason::NotANumber {
        column: "size",
        text: text.to_owned(),
        expected: "a whole number of bytes up to 1 PiB",
    })?;
    if bytes.0 == 0 { Err(Reason::NoBytes) } else { Ok(bytes) }
}

/// Parses a count of elements: a whole number.
pub(super) fn count(text: &str) -> Result<u64, Reason> {
    text.parse().map_err(|_| Reason::NotANumber {
        column: "count",
        text: text.to_owned(),
        expected: "a whole number of elements",
    })
}
