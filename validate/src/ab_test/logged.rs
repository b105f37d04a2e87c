//! NCCL's own choices, parsed from log lines of `NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=TUNING`.
//!
//! Format: `AllReduce: 1048576 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..23}` (`src/enqueue.cc` of 2.28.3 and
//! 2.28.9). Numeric algorithms and protocols are accepted as well. The number of bytes is the one that a rank passes to
//! the call: one block for all_gather and reduce_scatter.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use fabricast_libraries::nccl::{Algo, Function, Proto};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;

/// A strategy that NCCL ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoggedStrategy {
    /// Algorithm that NCCL reports.
    pub algorithm: Algo,
    /// Protocol that NCCL reports.
    pub protocol: Proto,
    /// Number of channels of the call.
    pub channels: u32,
}

impl std::fmt::Display for LoggedStrategy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&format!("{} {} {}", self.algorithm, self.protocol, self.channels))
    }
}

impl Serialize for LoggedStrategy {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Schema of the serialized text of a strategy, such as `Ring LL 24`.
impl JsonSchema for LoggedStrategy {
    fn schema_name() -> Cow<'static, str> {
        "LoggedStrategy".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Strategy that NCCL ran: algorithm, protocol and number of channels, such as `Ring LL 24`.",
            "type": "string",
        })
    }
}

/// Returns all strategies in a log, by function and size of the larger buffer in bytes, for a communicator of `ranks`
/// ranks.
#[must_use]
pub fn parse_log(log: &str, ranks: u32) -> BTreeMap<(Function, u64), BTreeSet<LoggedStrategy>> {
    let mut strategies: BTreeMap<_, BTreeSet<LoggedStrategy>> = BTreeMap::new();
    for LoggedCall { function, bytes, strategy } in log.lines().filter_map(parse_line) {
        let blocks = match function {
            Function::AllGather | Function::ReduceScatter => u64::from(ranks),
            _ => 1,
        };
        strategies.entry((function, bytes.saturating_mul(blocks))).or_default().insert(strategy);
    }
    strategies
}

/// NCCL call reported by one line of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedCall {
    /// Function that was called.
    pub function: Function,
    /// Bytes that a rank passes to the call: one block for all_gather and reduce_scatter.
    pub bytes: u64,
    /// Strategy that NCCL ran.
    pub strategy: LoggedStrategy,
}

/// Parses a line that reports a strategy; `None` for any other line.
#[must_use]
pub fn parse_line(line: &str) -> Option<LoggedCall> {
    let (before, after) = line.split_once(" Bytes -> Algo ")?;
    let (before, bytes) = before.rsplit_once(": ")?;
    let function = before.rsplit(' ').next()?;
    let function = Function::ALL.into_iter().find(|one| equals_ignoring_case_and_underscores(one.name(), function))?;
    let mut words = after.split_whitespace();
    let algorithm = named(words.next()?, &Algo::ALL, Algo::name)?;
    (words.next()? == "proto").then_some(())?;
    let protocol = named(words.next()?, &Proto::ALL, Proto::name)?;
    let range = words.next()?.strip_prefix("channel{Lo..Hi}={")?.split_once('}')?.0;
    let (low, high) = range.split_once("..")?;
    let (low, high): (u32, u32) = (low.parse().ok()?, high.parse().ok()?);
    let channels = high.checked_sub(low)?.checked_add(1)?;
    let strategy = LoggedStrategy { algorithm, protocol, channels };
    Some(LoggedCall { function, bytes: bytes.parse().ok()?, strategy })
}

fn named<T: Copy>(word: &str, variants: &[T], name: fn(T) -> &'static str) -> Option<T> {
    let by_number = word.parse::<usize>().ok().and_then(|number| variants.get(number));
    by_number
        .or_else(|| variants.iter().find(|&&variant| equals_ignoring_case_and_underscores(name(variant), word)))
        .copied()
}

/// Returns true if two names are equal without case and underscores: NCCL writes both `NVLSTree` and `NVLS_TREE`.
fn equals_ignoring_case_and_underscores(left: &str, right: &str) -> bool {
    let letters = |word: &str| {
        word.bytes().filter(|&letter| letter != b'_').map(|letter| letter.to_ascii_lowercase()).collect::<Vec<_>>()
    };
    letters(left) == letters(right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_log_of_nccl_2_28_are_read() {
        let log = include_str!("../../data/h200-node/nccl-2.28.9-tuning.txt");
        let lines = log.lines().filter(|line| line.contains("-> Algo")).count();
        assert_eq!(log.lines().filter_map(parse_line).count(), lines);
        let strategies = parse_log(log, 8);
        let ran = &strategies[&(Function::AllReduce, 1 << 20)];
        let expected = LoggedStrategy { algorithm: Algo::Ring, protocol: Proto::Ll, channels: 24 };
        assert_eq!(ran.iter().copied().collect::<Vec<_>>(), [expected]);
    }

    #[test]
    fn prefixes_numbers_and_spelling_variants_are_read() {
        let line = "host:12:34 [1] NCCL INFO AllGather: 64 Bytes -> Algo NVLS_TREE proto SIMPLE channel{Lo..Hi}={2..5}";
        let strategy = LoggedStrategy { algorithm: Algo::NvlsTree, protocol: Proto::Simple, channels: 4 };
        assert_eq!(parse_line(line), Some(LoggedCall { function: Function::AllGather, bytes: 64, strategy }));
        assert!(parse_log(line, 4).contains_key(&(Function::AllGather, 256)));
        let line = "Reduce: 8 Bytes -> Algo 1 proto 0 channel{Lo..Hi}={0..0}";
        let strategy = LoggedStrategy { algorithm: Algo::Ring, protocol: Proto::Ll, channels: 1 };
        assert_eq!(parse_line(line), Some(LoggedCall { function: Function::Reduce, bytes: 8, strategy }));
        for bad in [
            "",
            "AllReduce: 8 Bytes -> Algo ",
            "AllReduce: x Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}",
            "AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={3..1}",
        ] {
            assert_eq!(parse_line(bad), None, "{bad}");
        }
    }
}
