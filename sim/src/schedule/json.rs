//! JSON format of schedules: lossless, stored as runs rather than operations, validated on reading.
//!
//! ```json
//! {"fabricast_schedule": 1, "name": "ring",
//!  "call": {"collective": "send_recv", "bytes": 64, "ranks": 2, "root": 0, "buffers": "out_of_place"},
//!  "protocol": "simple", "channels": 1, "layout": [{"bytes": 64, "parts": 1}], "scratch_chunks": 0,
//!  "programs": [
//!   [{"kind": "put", "len": 1, "channel": 0, "peer": 1, "src": ["input", 0], "dst": ["output", 0], "span": 1, "after": []}],
//!   [{"kind": "put", "len": 1, "channel": 0, "peer": 0, "src": ["input", 0], "dst": ["output", 0], "span": 1,
//!     "after": [[0, 0, 0, 1]]}]
//!  ]}
//! ```
//!
//! `certificate`, if present, proves how near a synthesised schedule is to the optimum ([`Certificate`]).
//! `teams`, if present, lists the ranks of each multicast team; the `peer` of multicast operations is a team.
//! `programs` has a list of runs per rank. `peer` and the chunks of `src` and `dst` are a number, or a walk as `[base,
//! start, step, modulus, stride]` ([`Walk`]). `after` lists `[rank, run, start, step]` ([`Dependency`]).

use fabricast_topologies::{Bytes, SourceLocation};
use serde::de::{Deserializer, Error as _};
use serde::ser::SerializeTuple;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::certify::Certificate;

use super::{
    Blocks, Buffer, Call, Channel, Dependency, Header, Layout, OpKind, Protocol, Rank, Run, Schedule, ScheduleError,
    Segment, Walk,
};

/// Version of the format that is written. Other versions are not read.
pub const VERSION: u32 = 1;

/// Maximum number of ranks of a schedule in a file.
pub const MAX_RANKS: u32 = 1 << 20;

/// Error of reading a schedule, with its location in the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{location}: {message}")]
pub struct JsonError {
    /// Location in the text.
    pub location: SourceLocation,
    /// Content found and content expected.
    pub message: String,
}

/// Header of a schedule in file form, for writing.
#[derive(Serialize)]
struct HeaderText<'a> {
    fabricast_schedule: u32,
    name: &'a str,
    call: &'a Call,
    protocol: Protocol,
    channels: u16,
    #[serde(skip_serializing_if = "Blocks::is_default")]
    blocks: Blocks,
    layout: &'a [Segment],
    scratch_chunks: u32,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    teams: &'a [Vec<Rank>],
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate: Option<&'a Certificate>,
}

/// Version key, which files of all versions have.
#[derive(Deserialize)]
struct VersionText {
    fabricast_schedule: u32,
}

/// Schedule in file form, for reading. Programs are not parsed yet, so that each run retains its location in the text.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScheduleText<'a> {
    #[serde(rename = "fabricast_schedule")]
    _version: u32,
    name: String,
    call: Call,
    protocol: Protocol,
    channels: u16,
    #[serde(default)]
    blocks: Blocks,
    layout: Vec<Segment>,
    scratch_chunks: u32,
    #[serde(default)]
    teams: Vec<Vec<Rank>>,
    #[serde(default)]
    certificate: Option<Certificate>,
    #[serde(borrow)]
    programs: Vec<Vec<&'a RawValue>>,
}

/// A run in file form.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RunText {
    kind: OpKind,
    len: u32,
    channel: Channel,
    peer: WalkText,
    src: (Buffer, WalkText),
    dst: (Buffer, WalkText),
    span: u32,
    #[serde(default)]
    after: Vec<(Rank, u32, i32, u32)>,
}

/// Walk in file form: one number if the walk is fixed ([`Walk::fixed`]), otherwise its five parameters.
struct WalkText(Walk);

impl Serialize for WalkText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Walk { base, start, step, modulus, stride } = self.0;
        if self.0 == Walk::fixed(base) {
            return serializer.serialize_u32(base);
        }
        let mut tuple = serializer.serialize_tuple(5)?;
        for number in [base, start, step, modulus, stride] {
            tuple.serialize_element(&number)?;
        }
        tuple.end()
    }
}

impl<'de> Deserialize<'de> for WalkText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WalkVisitor).map(Self)
    }
}

struct WalkVisitor;

impl<'de> serde::de::Visitor<'de> for WalkVisitor {
    type Value = Walk;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a number from 0 to 4294967295 or [base, start, step, modulus, stride]")
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Walk, E> {
        let value = u32::try_from(value);
        value.map(Walk::fixed).map_err(|_| E::invalid_value(serde::de::Unexpected::Other("a larger number"), &self))
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Walk, A::Error> {
        let mut numbers = [0u32; 5];
        for (i, number) in numbers.iter_mut().enumerate() {
            *number = seq.next_element()?.ok_or_else(|| A::Error::invalid_length(i, &self))?;
        }
        if seq.next_element::<serde::de::IgnoredAny>()?.is_some() {
            return Err(A::Error::invalid_length(6, &self));
        }
        let [base, start, step, modulus, stride] = numbers;
        Ok(Walk { base, start, step, modulus, stride })
    }
}

impl RunText {
    fn new(run: &Run, dependencies: &[Dependency]) -> Self {
        Self {
            kind: run.kind,
            len: run.len,
            channel: run.channel,
            peer: WalkText(run.peer),
            src: (run.src_buffer, WalkText(run.src)),
            dst: (run.dst_buffer, WalkText(run.dst)),
            span: run.span,
            after: dependencies.iter().map(|d| (d.rank, d.run, d.start, d.step)).collect(),
        }
    }
}

/// Returns a schedule as JSON, with one line per run.
#[must_use]
pub fn to_json(schedule: &Schedule) -> String {
    let header = schedule.header();
    let written = HeaderText {
        fabricast_schedule: VERSION,
        name: &header.name,
        call: &header.call,
        protocol: header.protocol,
        channels: header.channels,
        blocks: header.blocks,
        layout: header.layout.segments(),
        scratch_chunks: header.scratch_chunks,
        teams: &header.teams,
        certificate: header.certificate.as_ref(),
    };
    let mut text = line(&written);
    // The programs are appended as the last member of the object.
    text.pop();
    text.push_str(",\"programs\":[");
    for rank in 0..header.call.ranks {
        text.push_str(if rank == 0 { "\n[" } else { ",\n[" });
        for (number, run) in schedule.rank_runs(Rank(rank)).enumerate() {
            text.push_str(if number == 0 { "\n" } else { ",\n" });
            text.push_str(&line(&RunText::new(schedule.run(run), schedule.dependencies(run))));
        }
        text.push(']');
    }
    text.push_str("\n]}\n");
    text
}

/// Serializes one value without line breaks. Serialization cannot fail, because the types contain no maps and are local
/// to this module.
fn line(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Reads a schedule and checks everything that it refers to. `source` names the text in errors.
///
/// # Errors
/// [`JsonError`] with line and column: invalid JSON, another format or version, too many ranks or operations, sizes
/// that do not add up, or ranks, runs, channels and chunks that do not exist.
pub fn from_json(text: &str, source: &str) -> Result<Schedule, JsonError> {
    let reader = TextPositions { text, source };
    // Other versions may have different keys.
    if let Ok(VersionText { fabricast_schedule: version }) = serde_json::from_str(text)
        && version != VERSION
    {
        let message = format!("version {version} of the format; this reads version {VERSION}");
        return Err(reader.error_at_key("fabricast_schedule", message));
    }
    let read: ScheduleText<'_> = serde_json::from_str(text).map_err(|error| reader.syntax(&error, 0))?;
    let ranks = read.call.ranks;
    if ranks == 0 || ranks > MAX_RANKS {
        return Err(reader.error_at_key("ranks", format!("{ranks} ranks; expected 1 to {MAX_RANKS}")));
    }
    if read.programs.len() != ranks as usize {
        let message = format!("{} programs for {ranks} ranks", read.programs.len());
        return Err(reader.error_at_key("programs", message));
    }
    let layout =
        checked_layout(&read.layout, read.call.bytes).map_err(|message| reader.error_at_key("layout", message))?;
    let header = Header {
        name: read.name,
        call: read.call,
        protocol: read.protocol,
        channels: read.channels,
        blocks: read.blocks,
        layout,
        scratch_chunks: read.scratch_chunks,
        teams: read.teams,
        certificate: read.certificate,
    };
    let mut schedule = Schedule {
        header,
        rank_starts: vec![0],
        runs: Vec::new(),
        first_ops: vec![0],
        dependency_starts: vec![0],
        dependencies: Vec::new(),
    };
    let mut operations = 0u32;
    for runs in &read.programs {
        for raw in runs {
            let run: RunText =
                serde_json::from_str(raw.get()).map_err(|error| reader.syntax(&error, reader.offset(raw)))?;
            operations = operations
                .checked_add(run.len)
                .ok_or_else(|| reader.error_at(reader.offset(raw), ScheduleError::TooManyOperations.to_string()))?;
            schedule.dependencies.extend(run.after.iter().map(|&(rank, run, start, step)| Dependency {
                rank,
                run,
                start,
                step,
            }));
            schedule.runs.push(Run {
                len: run.len,
                kind: run.kind,
                channel: run.channel,
                peer: run.peer.0,
                src_buffer: run.src.0,
                src: run.src.1.0,
                dst_buffer: run.dst.0,
                dst: run.dst.1.0,
                span: run.span,
            });
            schedule.first_ops.push(operations);
            schedule.dependency_starts.push(schedule.dependencies.len() as u32);
        }
        schedule.rank_starts.push(schedule.runs.len() as u32);
    }
    schedule.check().map_err(|error| match error.run() {
        Some((rank, run)) => {
            let raw = read.programs.get(rank.0 as usize).and_then(|runs| runs.get(run as usize));
            reader.error_at(raw.map_or(0, |raw| reader.offset(raw)), error.to_string())
        }
        None => reader.error_at_key(
            if matches!(error, ScheduleError::BadTeam { .. }) { "teams" } else { "root" },
            error.to_string(),
        ),
    })?;
    Ok(schedule)
}

/// Checks that the segments' chunks can be numbered and that their bytes add up to those of the call.
fn checked_layout(segments: &[Segment], bytes: Bytes) -> Result<Layout, String> {
    let (mut chunks, mut total) = (0u32, 0u64);
    for segment in segments {
        if segment.parts == 0 {
            return Err("a segment of no parts; expected at least 1".to_owned());
        }
        chunks = chunks.checked_add(segment.parts).ok_or_else(|| format!("more than {} chunks", u32::MAX))?;
        total = total.saturating_add(segment.bytes.0);
    }
    if total != bytes.0 {
        return Err(format!("segments of {total} bytes in all; the call is of {}", bytes.0));
    }
    if bytes > Bytes::MAX {
        return Err(format!("{} bytes; expected at most {}", bytes.0, Bytes::MAX));
    }
    Ok(Layout::new(segments.to_vec()))
}

/// Converts positions in the text into error locations.
struct TextPositions<'a> {
    text: &'a str,
    source: &'a str,
}

impl TextPositions<'_> {
    fn error_at(&self, offset: usize, message: String) -> JsonError {
        JsonError { location: SourceLocation::locate(self.source, self.text, offset..offset), message }
    }

    /// Creates an error located at the first occurrence of a key.
    fn error_at_key(&self, key: &str, message: String) -> JsonError {
        self.error_at(self.text.find(&format!("\"{key}\"")).unwrap_or(0), message)
    }

    /// Returns the byte offset of a substring in the text.
    fn offset(&self, raw: &RawValue) -> usize {
        (raw.get().as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize)
    }

    /// Converts an error of serde_json for the text that begins at byte `from`.
    fn syntax(&self, error: &serde_json::Error, from: usize) -> JsonError {
        let part = self.text.get(from..).unwrap_or_default();
        // serde_json counts lines from 1 and columns in bytes; column 0 is the preceding line break.
        let line_start: usize = part.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
        let offset = from + line_start + error.column().saturating_sub(1);
        let message = error.to_string();
        let message = message.split(" at line ").next().unwrap_or_default().to_owned();
        self.error_at(offset, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the example of the module's documentation.
    fn example() -> String {
        let doc = include_str!("json.rs");
        let lines = doc.lines().skip_while(|line| *line != "//! ```json").skip(1).take_while(|line| *line != "//! ```");
        lines.map(|line| line.trim_start_matches("//! ")).collect::<Vec<_>>().join("\n")
    }

    fn error(text: &str) -> String {
        from_json(text, "f.json").unwrap_err().to_string()
    }

    #[test]
    fn documented_example_round_trips() {
        let schedule = from_json(&example(), "doc").unwrap();
        assert_eq!(schedule.operation_count(), 2);
        assert_eq!(from_json(&to_json(&schedule), "again").unwrap(), schedule);
    }

    #[test]
    fn errors_name_line_and_column() {
        let example = example();
        assert!(error("").starts_with("f.json:1:1: "), "{}", error(""));
        assert!(error("{\n  \"name\": nope").starts_with("f.json:2:"), "{}", error("{\n  \"name\": nope"));
        let cases = [
            (
                "\"channel\": 0, \"peer\": 1",
                "\"channel\": 7, \"peer\": 1",
                "f.json:5:4: run 0 of rank 0 is on channel 7 of 1",
            ),
            ("\"peer\": 1", "\"peer\": 2", "f.json:5:4: operation 0 of run 0 of rank 0 names rank 2 of 2"),
            (
                "\"put\", \"len\": 1, \"channel\": 0, \"peer\": 0",
                "\"push\", \"len\": 1, \"channel\": 0, \"peer\": 0",
                "f.json:6:18: unknown variant `push`",
            ),
            ("[[0, 0, 0, 1]]", "[[0, 3, 0, 1]]", "f.json:6:4: run 0 of rank 1 waits for run 3 of rank 0"),
            // A later version may have other keys.
            (
                "\"fabricast_schedule\": 1",
                "\"fabricast_schedule\": 2, \"hosts\": 3",
                "f.json:1:2: version 2 of the format",
            ),
            ("\"ranks\": 2", "\"ranks\": 3", "f.json:4:2: 2 programs for 3 ranks"),
            ("\"ranks\": 2", "\"ranks\": 4294967295", "4294967295 ranks; expected 1 to 1048576"),
            ("\"root\": 0", "\"root\": 2", "f.json:2:63: the root is rank 2 of 2"),
            ("\"parts\": 1", "\"parts\": 0", "a segment of no parts"),
            ("[{\"bytes\": 64", "[{\"bytes\": 65", "segments of 65 bytes in all; the call is of 64"),
            ("\"span\": 1, \"after\": []", "\"span\": 2, \"after\": []", "uses input chunk 1 of 1"),
            ("\"src\": [\"input\", 0]", "\"src\": [\"input\", [0, 0]]", "expected a number from 0 to 4294967295 or"),
            ("\"len\": 1", "\"len\": 1, \"size\": 3", "unknown field `size`"),
        ];
        for (original, changed, expected) in cases {
            assert!(example.contains(original), "{original}");
            let message = error(&example.replacen(original, changed, 1));
            assert!(message.contains(expected), "{message}\nexpected {expected}");
        }
        let long = example.replace("\"len\": 1", "\"len\": 4294967295");
        assert!(error(&long).contains("more than 4294967295 operations"), "{}", error(&long));
    }

    #[test]
    fn long_runs_are_read_quickly() {
        let long = example().replacen("\"len\": 1", "\"len\": 4000000000", 1);
        assert_eq!(from_json(&long, "long").unwrap().operation_count(), 4_000_000_001);
    }

    #[test]
    fn largest_numbers_do_not_overflow() {
        let largest = example()
            .replace("\"parts\": 1", "\"parts\": 4294967295")
            .replace("\"span\": 1", "\"span\": 0")
            .replace("\"scratch_chunks\": 0", "\"scratch_chunks\": 4294967295");
        let schedule = from_json(&largest, "most").unwrap();
        let fault = crate::verify::verify(&schedule, &crate::verify::VerifyOptions::default()).unwrap_err();
        assert_eq!(fault.kind, crate::verify::FaultKind::TooLarge);
    }

    #[test]
    fn deep_nesting_is_an_error() {
        let deep = "[".repeat(1_000_000);
        assert!(from_json(&deep, "deep").is_err());
        let inside = example().replacen("\"after\": []", &format!("\"after\": {deep}"), 1);
        assert!(from_json(&inside, "deep").is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in ".{0,200}") {
            let _ = from_json(&text, "any");
        }

        #[test]
        fn corruption_does_not_panic(start in any::<prop::sample::Index>(), len in 0usize..20, replacement in ".{0,8}") {
            let mut chars: Vec<char> = example().chars().collect();
            let start = start.index(chars.len());
            let end = (start + len).min(chars.len());
            chars.splice(start..end, replacement.chars());
            let text: String = chars.into_iter().collect();
            if let Ok(schedule) = from_json(&text, "damaged") {
                prop_assert_eq!(&from_json(&to_json(&schedule), "again").unwrap(), &schedule);
                let chunks = schedule.header().layout.chunks().max(schedule.header().scratch_chunks);
                if schedule.operation_count().max(chunks) < 10_000 {
                    let _ = crate::verify::verify(&schedule, &crate::verify::VerifyOptions { fifo_depth: Some(1) });
                }
            }
        }

        #[test]
        fn walks_round_trip(base: u32, start: u32, step: u32, modulus: u32, stride: u32) {
            let walk = Walk { base, start, step, modulus, stride };
            let text = line(&WalkText(walk));
            prop_assert_eq!(serde_json::from_str::<WalkText>(&text).unwrap().0, walk);
        }
    }
}
