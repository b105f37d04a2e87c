//! Parser of NCCL's own messages, which are printed to the same output as the rows.

use super::super::LibraryName;
use super::super::nccl_report::Transport;
use super::super::table::P2pChannels;

/// Returns the part of a line before an NCCL message. A message may begin anywhere in a line, because nccl-tests
/// prints a row in pieces.
pub(super) fn strip_messages(line: &str) -> &str {
    match message_start(line) {
        Some(start) => line.get(..start).unwrap_or_default(),
        None => line,
    }
}

/// Property of the library that a message states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notice<'a> {
    /// `NCCL version 2.19.3+cuda12.2`: library and version.
    Version(LibraryName, &'a str),
    /// `rccl-tests: Version …`: the log is from rccl-tests.
    Rccl,
    /// `4 coll channels, 0 collnet channels, 0 nvls channels, 4 p2p channels, 2 p2p channels per peer`.
    Channels(P2pChannels),
    /// `Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA`: transport of a connection.
    Connection(Transport),
    /// `NCCL_P2P_LEVEL set by environment to LOC`: name and value of a variable.
    Variable(&'a str, &'a str),
    /// `Could not find a path for pattern 1, falling back to simple order`.
    SearchFellBack,
}

/// Returns the property of the library that a line states; `None` if the line states none.
pub(super) fn notice(line: &str) -> Option<Notice<'_>> {
    if let Some((_, rest)) = line.split_once("NCCL version ") {
        return version(rest).map(|version| Notice::Version(LibraryName::Nccl, version));
    }
    if let Some((_, rest)) = line.split_once("RCCL version") {
        let version = version(rest.trim_start_matches([' ', ':']));
        return Some(version.map_or(Notice::Rccl, |version| Notice::Version(LibraryName::Rccl, version)));
    }
    if line.contains("rccl-tests") {
        return Some(Notice::Rccl);
    }
    if let Some((before, value)) = line.split_once(" set by environment to ") {
        let name = before.rsplit(' ').next().filter(|name| name.starts_with("NCCL_"))?;
        return Some(Notice::Variable(name, value.trim().trim_end_matches('.')));
    }
    if line.contains("falling back to simple order") {
        return Some(Notice::SearchFellBack);
    }
    if let Some((_, via)) = line.split_once("NCCL INFO Channel ").and_then(|(_, rest)| rest.split_once("] via ")) {
        return transport(via).map(Notice::Connection);
    }
    let (before, rest) = line.split_once(" p2p channels, ")?;
    let per_peer = rest.split_once(" p2p channels per peer")?.0;
    let total = before.rsplit(' ').next()?;
    Some(Notice::Channels(P2pChannels { all: total.parse().ok()?, per_peer: per_peer.trim().parse().ok()? }))
}

/// Transport of a connection, such as `P2P/CUMEM`, `SHM/direct/direct` or `NET/IB/0/GDRDMA` (src/transport of NCCL).
/// `None` for others, such as trees in switches.
fn transport(via: &str) -> Option<Transport> {
    if via.starts_with("P2P/") {
        Some(Transport::PeerAccess)
    } else if via.starts_with("SHM") {
        Some(Transport::HostMemory)
    } else if via.starts_with("NET/Socket") {
        Some(Transport::Sockets)
    } else if via.starts_with("NET/") {
        Some(if via.contains("/GDRDMA") { Transport::GpuDirect } else { Transport::Staged })
    } else {
        None
    }
}

/// Version number at the start of a text, such as `2.19.3` of `2.19.3+cuda12.2`.
fn version(rest: &str) -> Option<&str> {
    let version = rest.split_whitespace().next()?.split(['+', '-']).next()?;
    version.starts_with(|c: char| c.is_ascii_digit()).then_some(version)
}

/// Byte offset of the start of an NCCL message: `host:pid:tid [device] NCCL INFO …`, preceded by a time in newer
/// versions.
fn message_start(line: &str) -> Option<usize> {
    const KINDS: [&str; 5] = ["NCCL INFO", "NCCL WARN", "NCCL TRACE", "NCCL CALL", "NCCL version"];
    let mut start = KINDS.iter().filter_map(|kind| line.find(kind)).min()?;
    // The words before the message are examined backwards, as long as they have the form of its prefix.
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
        let word_start = before.rfind(char::is_whitespace).map_or(0, |word_start| word_start + 1);
        let word = before.get(word_start..).unwrap_or_default();
        let glued = if before.get(..word_start).is_some_and(|prefix| !prefix.trim().is_empty()) {
            figure_length(word)
        } else {
            0
        };
        match word.get(glued..) {
            Some(prefix) if glued > 0 && is_name(prefix) && introduces(prefix) => return Some(word_start + glued),
            _ if !word.is_empty() && introduces(word) => start = word_start,
            _ => return Some(start),
        }
    }
}

/// Returns true if a word begins like a host name or a time in brackets.
fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '[')
}

/// Length in bytes of the figure of a row at the start of a word. nccl-tests prints parts of rows without a trailing
/// blank, so a message may follow immediately.
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
        for (line, expected) in [
            ("  1024  256  float", "  1024  256  float"),
            ("node1:123:456 [0] NCCL INFO Bootstrap : Using eth0", ""),
            ("  1024  256 node1:123:456 [0] NCCL INFO AllReduce: opCount 1", "  1024  256 "),
            ("[2026-01-02 10:11:12] node1:123:456 [0] NCCL INFO x", ""),
            ("  12  3 [2026-01-02 10:11:12.123] n:1:2 [7] NCCL WARN x", "  12  3 "),
            ("NCCL version 2.19.3+cuda12.2", ""),
            ("  12  3  -1h:1:2 [7] NCCL INFO x", "  12  3  -1"),
            ("  12  3  N/A[2026-01-02 10:11:12.123] n:1:2 [7] NCCL WARN x", "  12  3  N/A"),
            ("  12  3  0.25node:1:2 [7] NCCL WARN x", "  12  3  0.25"),
            ("[1,0]<stdout>:n:1:2 [7] NCCL INFO x", ""),
        ] {
            assert_eq!(strip_messages(line), expected, "{line}");
        }
        let version = |line| {
            notice(line).and_then(|notice| match notice {
                Notice::Version(name, version) => Some((name, version)),
                _ => None,
            })
        };
        let nccl = version("n:1:2 [0] NCCL INFO NCCL version 2.19.3+cuda12.2");
        assert_eq!(nccl, Some((LibraryName::Nccl, "2.19.3")));
        assert_eq!(version("RCCL version : 2.21.5-HEAD:0f4b6ca"), Some((LibraryName::Rccl, "2.21.5")));
        assert_eq!(notice("NCCL version unknown"), None);
        assert_eq!(notice("rccl-tests: Version :+"), Some(Notice::Rccl));
        let line = "h:1:2 [1] NCCL INFO 4 coll channels, 4 collnet channels, 0 nvls channels, 4 p2p channels, 2 p2p channels per peer";
        assert_eq!(notice(line), Some(Notice::Channels(P2pChannels { all: 4, per_peer: 2 })));
        assert_eq!(
            notice("h:1:2 [0] NCCL INFO NCCL_CROSS_NIC set by environment to 0."),
            Some(Notice::Variable("NCCL_CROSS_NIC", "0"))
        );
        assert_eq!(
            notice(
                "h:1:2 [0] graph/search.cc:1127 NCCL WARN Could not find a path for pattern 1, falling back to simple order"
            ),
            Some(Notice::SearchFellBack)
        );
    }

    #[test]
    fn connections_state_their_transport() {
        for (via, expected) in [
            ("[send] via NET/IB/1", Some(Transport::Staged)),
            ("[receive] via NET/IB/0(3)/GDRDMA/Shared", Some(Transport::GpuDirect)),
            ("[receive] via NET/NCCL RDMA Plugin v6/0/GDRDMA/Shared", Some(Transport::GpuDirect)),
            ("[send] via NET/Socket/0", Some(Transport::Sockets)),
            ("via SHM/direct/direct", Some(Transport::HostMemory)),
            ("via P2P/CUMEM/read", Some(Transport::PeerAccess)),
            ("via COLLNET/SHARP", None),
        ] {
            let line = format!("h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] {via}");
            assert_eq!(notice(&line), expected.map(Notice::Connection), "{via}");
        }
        assert_eq!(notice("h:1:2 [0] NCCL INFO Channel 00/04 : 0 3 2 1"), None);
    }
}
