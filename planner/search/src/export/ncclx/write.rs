//! Writer of the CSV format, which every build of NCCLX reads.

use std::fmt::Write as _;

use super::Rules;
use crate::export::nccl_tuner::names;

/// Returns the CSV text of rules: comments, then one rule per line. The last column is written only where a rule has a
/// chunk size.
#[must_use]
pub fn write(rules: &Rules) -> String {
    let mut text = String::new();
    for comment in &rules.comments {
        for line in comment.lines() {
            text.push_str(format!("# {line}").trim_end());
            text.push('\n');
        }
    }
    for rule in &rules.rules {
        let channels = rule.channels.map_or_else(|| "-1".to_owned(), |count| count.to_string());
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "{},{},{},{},{channels},{},{}",
            names::function_name(rule.function),
            rule.bytes_per_rank,
            names::algo_name(rule.algo),
            names::proto_name(rule.proto),
            rule.nodes,
            rule.local_ranks,
        );
        if let Some(chunk) = rule.chunk {
            let _ = write!(text, ",{}", chunk.0);
        }
        text.push('\n');
    }
    text
}
