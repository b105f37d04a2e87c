//! Reads damaged real files: if a file is truncated, changed, repeated or made huge, a reader reports the fault or
//! accepts the file. No reader panics, hangs or allocates gigabytes.
//!
//! `PROPTEST_CASES=20000` runs as many cases as the fuzz targets would.

use std::path::PathBuf;

use fabricast_sim::schedule::format::{Format, write};
use fabricast_sim::schedule::{msccl_xml, mscclpp};
use fabricast_sim::verify::{VerifyOptions, verify};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::corpus::{READERS, Reader, files, folder};

/// A modification of a file.
#[derive(Clone, Debug)]
enum Damage {
    /// Removes the end of the text.
    Truncate(Index),
    /// Replaces a few bytes.
    Flip(Index, Vec<u8>),
    /// Removes a part of the text.
    Cut(Index, usize),
    /// Repeats a part a number of times.
    Repeat(Index, usize, usize),
    /// Moves a line to another position.
    Move(Index, Index),
    /// Replaces a number by another text.
    Number(Index, &'static str),
    /// Nests a part many times.
    Nest(Index, &'static str, usize),
}

const NUMBERS: [&str; 14] = [
    "0",
    "-1",
    "1",
    "4294967295",
    "4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "9223372036854775807",
    "-9223372036854775808",
    "1e308",
    "1e400",
    "nan",
    "0.0000000000000000000000001",
    "99999999999999999999999999999999999999999999",
];

const OPENINGS: [&str; 8] = ["[", "{", "<a>", "{\"a\":", "[[", "(", "a.", "{a={"];

fn damage() -> impl Strategy<Value = Damage> {
    let position = any::<Index>;
    prop_oneof![
        2 => position().prop_map(Damage::Truncate),
        3 => (position(), prop::collection::vec(any::<u8>(), 1..4)).prop_map(|(position, bytes)| Damage::Flip(position, bytes)),
        2 => (position(), 1usize..200).prop_map(|(position, len)| Damage::Cut(position, len)),
        2 => (position(), 1usize..400, 1usize..40).prop_map(|(position, len, times)| Damage::Repeat(position, len, times)),
        2 => (position(), position()).prop_map(|(from, to)| Damage::Move(from, to)),
        6 => (position(), prop::sample::select(NUMBERS.to_vec())).prop_map(|(position, number)| Damage::Number(position, number)),
        1 => (position(), prop::sample::select(OPENINGS.to_vec()), 1usize..100_000).prop_map(|(position, opening, times)| Damage::Nest(position, opening, times)),
    ]
}

impl Damage {
    fn apply(&self, text: &mut Vec<u8>) {
        let offset = |position: &Index, len: usize| position.index(len + 1);
        match self {
            Self::Truncate(position) => text.truncate(offset(position, text.len())),
            Self::Flip(position, bytes) => {
                let from = offset(position, text.len());
                text.iter_mut().skip(from).zip(bytes).for_each(|(byte, new)| *byte = new % 127);
            }
            Self::Cut(position, len) => {
                let from = offset(position, text.len());
                text.drain(from..(from + len).min(text.len()));
            }
            Self::Repeat(position, len, times) => {
                let from = offset(position, text.len());
                let part = text[from..(from + len).min(text.len())].repeat(*times);
                text.splice(from..from, part);
            }
            Self::Move(from, to) => {
                let mut lines: Vec<Vec<u8>> = text.split_inclusive(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
                if !lines.is_empty() {
                    let line = lines.remove(from.index(lines.len()));
                    lines.insert(offset(to, lines.len()), line);
                    *text = lines.concat();
                }
            }
            Self::Number(position, number) => {
                let is_start = |i: &usize| text[*i].is_ascii_digit() && (*i == 0 || !text[*i - 1].is_ascii_digit());
                let starts: Vec<usize> = (0..text.len()).filter(is_start).collect();
                if !starts.is_empty() {
                    let from = starts[position.index(starts.len())];
                    let len = text[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                    text.splice(from..from + len, number.bytes());
                }
            }
            Self::Nest(position, opening, times) => {
                let from = offset(position, text.len());
                text.splice(from..from, opening.repeat(*times).into_bytes());
            }
        }
    }
}

/// Returns the seeds of a target that were written by a person or a tool; seeds found by fuzzing have no file
/// extension.
fn seeds(target: &str) -> Vec<PathBuf> {
    let mut seeds = files(&folder().join("corpus").join(target));
    seeds.retain(|path| path.extension().is_some());
    seeds
}

/// Returns true if a reader accepts a text. Schedules of other tools are verified or rejected, and written schedules
/// are read again; only undamaged files must be written again identically.
fn is_accepted((name, read): Reader, text: &str) -> bool {
    let (schedule, format) = match name {
        "msccl_xml" => (msccl_xml::from_xml(text, "damaged"), Format::MscclXml),
        "mscclpp" => (mscclpp::from_plan(text, "damaged"), Format::Mscclpp),
        _ => return read(text),
    };
    let Ok(schedule) = schedule else { return false };
    let header = schedule.header();
    if header.layout.chunks().max(header.scratch_chunks) < 10_000 {
        let _ = verify(&schedule, &VerifyOptions { fifo_depth: Some(1) });
        if let Ok(written) = write(&schedule, format) {
            let reread = fabricast_sim::schedule::format::read(&written, "written");
            assert!(reread.is_ok(), "{}", reread.unwrap_err());
        }
    }
    true
}

proptest! {
    #[test]
    fn damaged_files_do_not_make_readers_panic(
        target in any::<Index>(),
        seed in any::<Index>(),
        damages in prop::collection::vec(damage(), 1..4),
    ) {
        let reader = *target.get(&READERS);
        let seeds = seeds(reader.0);
        prop_assume!(!seeds.is_empty());
        let mut text = std::fs::read(seed.get(&seeds)).unwrap();
        for damage in &damages {
            damage.apply(&mut text);
        }
        let text = String::from_utf8_lossy(&text);
        is_accepted(reader, &text);
    }
}

#[test]
fn every_target_has_real_files() {
    for (name, read) in READERS {
        let seeds = seeds(name);
        let accepted = seeds.iter().filter(|path| read(&std::fs::read_to_string(path).unwrap())).count();
        assert!(accepted > 0, "{name}: {} files", seeds.len());
    }
}

#[test]
fn deep_nesting_is_rejected_without_overflow() {
    for reader @ (name, _) in READERS {
        for opening in OPENINGS {
            for times in [1_000, 300_000] {
                assert!(!is_accepted(reader, &opening.repeat(times)), "{name}: {opening} {times} times");
            }
            for seed in seeds(name) {
                let text = std::fs::read_to_string(seed).unwrap();
                let middle = (text.len() / 2..).find(|&i| text.is_char_boundary(i)).unwrap();
                is_accepted(reader, &format!("{}{}{}", &text[..middle], opening.repeat(100_000), &text[middle..]));
            }
        }
    }
}
