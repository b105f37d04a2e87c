//! What stands between the rows: NCCL's own messages, which go to the same output, and what launchers put before lines.

/// What of a line is nccl-tests' own: without the launcher's mark at its start, and without the message of NCCL that may
/// begin anywhere in it (the two share standard output, and a row is printed in pieces).
pub(super) fn own_part(line: &str) -> &str {
    let line = without_mark(line);
    match message_start(line) {
        Some(start) => line.get(..start).unwrap_or_default(),
        None => line,
    }
}

/// The version in NCCL's line `NCCL version 2.19.3+cuda12.2`.
pub(super) fn library_version(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("NCCL version ")?;
    let word = rest.split_whitespace().next()?;
    let version = word.split('+').next()?;
    version.starts_with(|c: char| c.is_ascii_digit()).then_some(version)
}

/// Without `[1,0]<stdout>:` (mpirun --tag-output) or `0: ` (srun -l).
fn without_mark(line: &str) -> &str {
    if line.starts_with('[')
        && let Some((mark, rest)) = line.split_once(">:")
        && (mark.ends_with("<stdout") || mark.ends_with("<stderr"))
    {
        return rest;
    }
    match line.trim_start().split_once(": ") {
        Some((label, rest)) if !label.is_empty() && label.len() <= 6 && label.bytes().all(|b| b.is_ascii_digit()) => {
            rest
        }
        _ => line,
    }
}

/// Where a message of NCCL begins: `host:pid:tid [device] NCCL INFO …`, with a time before it in newer versions.
fn message_start(line: &str) -> Option<usize> {
    const KINDS: [&str; 5] = ["NCCL INFO", "NCCL WARN", "NCCL TRACE", "NCCL CALL", "NCCL version"];
    let mut start = KINDS.iter().filter_map(|kind| line.find(kind)).min()?;
    // Backwards over what introduces it, as long as it has that form.
    let introduces = |word: &str| {
        let device = word.strip_prefix('[').and_then(|word| word.strip_suffix(']'));
        let process =
            word.rsplitn(3, ':').take(2).all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
        device.is_some_and(|word| word.bytes().all(|b| b.is_ascii_digit()))
            || (process && word.split(':').count() >= 3)
            || word.starts_with('[')
            || word.ends_with(']')
    };
    loop {
        let before = line.get(..start).unwrap_or_default().trim_end();
        let at = before.rfind(char::is_whitespace).map_or(0, |at| at + 1);
        let word = before.get(at..).unwrap_or_default();
        let glued = if before.get(..at).is_some_and(|rest| !rest.trim().is_empty()) { figure_length(word) } else { 0 };
        match word.get(glued..) {
            Some(rest) if glued > 0 && is_name(rest) && introduces(rest) => return Some(at + glued),
            _ if !word.is_empty() && introduces(word) => start = at,
            _ => return Some(start),
        }
    }
}

/// Whether a word begins as hosts and times in brackets do.
fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '[')
}

/// How much of a word is a figure of a row: rows are printed without a blank at the end of their pieces.
fn figure_length(word: &str) -> usize {
    if word.starts_with("N/A") {
        return 3;
    }
    let digits = word.strip_prefix('-').unwrap_or(word);
    let rest = digits.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    if rest.len() == digits.len() { 0 } else { word.len() - rest.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_off() {
        for (line, own) in [
            ("  1024  256  float", "  1024  256  float"),
            ("node1:123:456 [0] NCCL INFO Bootstrap : Using eth0", ""),
            ("  1024  256 node1:123:456 [0] NCCL INFO AllReduce: opCount 1", "  1024  256 "),
            ("[2026-01-02 10:11:12] node1:123:456 [0] NCCL INFO x", ""),
            ("  12  3 [2026-01-02 10:11:12.123] n:1:2 [7] NCCL WARN x", "  12  3 "),
            ("NCCL version 2.19.3+cuda12.2", ""),
            ("  12  3  -1h:1:2 [7] NCCL INFO x", "  12  3  -1"),
            ("  12  3  N/A[2026-01-02 10:11:12.123] n:1:2 [7] NCCL WARN x", "  12  3  N/A"),
            ("  12  3  0.25node:1:2 [7] NCCL WARN x", "  12  3  0.25"),
            ("[1,0]<stdout>:# nThread 1", "# nThread 1"),
            ("[1,0]<stdout>:n:1:2 [7] NCCL INFO x", ""),
            ("0:   1024  256", "  1024  256"),
            ("12:# nThread", "12:# nThread"),
        ] {
            assert_eq!(own_part(line), own, "{line}");
        }
        assert_eq!(library_version("n:1:2 [0] NCCL INFO NCCL version 2.19.3+cuda12.2"), Some("2.19.3"));
        assert_eq!(library_version("NCCL version unknown"), None);
    }
}
