//! Tests of schedules in the formats of other tools: a written schedule is read back as one that computes the same
//! collective with the same traffic, and is written again as the same text.

use std::collections::BTreeMap;

use fabricast_collectives::algorithm::{Algorithm, Shape};
use fabricast_collectives::bound::InNetwork;
use fabricast_sim::schedule::format::{Format, FormatError, WriteError, read, write};
use fabricast_sim::schedule::{BufferUse, Call, Collective, OpKind, Protocol, Rank, Schedule};
use fabricast_sim::verify::{VerifyOptions, verify};
use fabricast_topologies::Bytes;
use proptest::prelude::*;

use crate::generators::{Case, cases, supported_pairs};
use crate::msccl_interpreter::completes;

/// Returns the bytes from each rank's memory to each other rank's.
fn traffic(schedule: &Schedule) -> BTreeMap<(u32, u32), f64> {
    let mut traffic = BTreeMap::new();
    for op in schedule.operations().filter(|op| op.kind.is_transfer() && op.rank != op.peer) {
        let bytes: f64 = (op.src.index..op.src.index + op.span)
            .map(|chunk| schedule.header().layout.size(chunk))
            .map(|size| size.numerator as f64 / f64::from(size.denominator))
            .sum();
        let ends = if op.kind.reads_peer() { (op.peer, op.rank) } else { (op.rank, op.peer) };
        *traffic.entry((ends.0.0, ends.1.0)).or_insert(0.0) += bytes;
    }
    traffic
}

/// Number of messages that a connection of MSCCL holds: a message of `Simple` uses four of eight slots.
pub(crate) fn messages_in_flight(protocol: Protocol) -> u32 {
    if matches!(protocol, Protocol::Ll | Protocol::Ll128) { 8 } else { 2 }
}

/// Writes a schedule, reads it and writes it again; returns false if the format cannot express the schedule.
fn round_trip(case: &Case, schedule: &Schedule, format: Format) -> Result<bool, TestCaseError> {
    let text = match write(schedule, format) {
        Ok(text) => text,
        Err(WriteError::UnequalChunks { .. } | WriteError::TooFine { .. }) => return Ok(false),
        Err(WriteError::Collective { collective, .. }) if !collective.has_variable_size() => return Ok(false),
        Err(WriteError::Unsupported { .. }) if !schedule.header().teams.is_empty() => return Ok(false),
        Err(other) => return Err(TestCaseError::fail(format!("{case:?}: {other}"))),
    };
    prop_assert_eq!(Format::detect(&text), format);
    if format == Format::MscclXml {
        prop_assert!(completes(&text, messages_in_flight(schedule.header().protocol)), "{case:?}");
    }
    let back = read(&text, "written").map_err(|error: FormatError| TestCaseError::fail(format!("{error}\n{text}")))?;
    prop_assert_eq!(back.header().call, schedule.header().call);
    prop_assert_eq!(&back.header().name, &schedule.header().name);
    prop_assert_eq!(back.header().protocol, format.protocol(schedule.header().protocol));
    if let Err(fault) = verify(&back, &VerifyOptions::default()) {
        return Err(TestCaseError::fail(format!("{fault}\n{text}")));
    }
    let (before, after) = (traffic(schedule), traffic(&back));
    prop_assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    for (pair, bytes) in &before {
        prop_assert!((after[pair] - bytes).abs() <= bytes * 1e-9, "{pair:?}: {bytes} became {}", after[pair]);
    }
    let rewritten = match write(&back, format) {
        // One step of a file may be read as two operations, and the number of operations in a file is limited.
        Err(WriteError::TooFine { .. }) => return Ok(true),
        rewritten => rewritten.map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?,
    };
    // A text may contain redundant signals; reading it removes them, and after a few repetitions the text does not
    // change.
    let (mut before, mut rewritten) = (text.clone(), rewritten);
    for _ in 0..3 {
        if rewritten == before {
            return Ok(true);
        }
        let next = read(&rewritten, "again").map_err(|error| TestCaseError::fail(format!("{error}\n{rewritten}")))?;
        prop_assert_eq!(traffic(&next), traffic(&back));
        before = std::mem::replace(
            &mut rewritten,
            write(&next, format).map_err(|error| TestCaseError::fail(format!("{error}")))?,
        );
    }
    prop_assert!(rewritten == before, "written\n{before}\nagain\n{rewritten}");
    Ok(true)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn msccl_files_are_read_back(case in cases(10)) {
        round_trip(&case, &case.schedule(), Format::MscclXml)?;
    }

    #[test]
    fn mscclpp_plans_are_read_back(case in cases(10)) {
        round_trip(&case, &case.schedule(), Format::Mscclpp)?;
    }
}

#[test]
fn algorithms_are_written_in_every_format_that_can_express_them() {
    // Neither format can express a matrix or a barrier.
    for (algorithm, collective) in
        supported_pairs().into_iter().filter(|(_, collective)| collective.has_variable_size())
    {
        let call = Call { collective, bytes: Bytes(1 << 20), ranks: 8, root: Rank(0), buffers: BufferUse::OutOfPlace };
        let has_domains = matches!(algorithm, Algorithm::NvlsTree | Algorithm::CollnetChain);
        let ranks_per_team = if has_domains { 4 } else { 8 };
        let shape =
            Shape { channels: 2, ranks_per_node: ranks_per_team, ranks_per_team, ..Shape::new(call, Protocol::Simple) };
        let case = Case { algorithm, shape };
        for format in [Format::MscclXml, Format::Mscclpp] {
            let written = round_trip(&case, &case.schedule(), format);
            // MSCCL has no multicast; MSCCL++ has none whose result remains with its rank.
            let through_switch = algorithm.in_network() == InNetwork::Allowed;
            let expected = match (format, collective) {
                (Format::Mscclpp, Collective::AllReduce | Collective::AllGather) => {
                    !matches!(algorithm, Algorithm::NvlsTree | Algorithm::CollnetChain)
                }
                _ => !through_switch,
            };
            assert_eq!(written.unwrap(), expected, "{algorithm:?} {collective} as {format:?}");
        }
    }
}

#[test]
fn every_wait_of_a_file_is_necessary() {
    let call = Call {
        collective: Collective::AllReduce,
        bytes: Bytes(1 << 10),
        ranks: 4,
        root: Rank(0),
        buffers: BufferUse::InPlace,
    };
    for algorithm in [Algorithm::OneShot, Algorithm::TwoShot, Algorithm::Tree] {
        let case = Case { algorithm, shape: Shape::new(call, Protocol::Ll) };
        let is_valid =
            |text: &str| read(text, "cut").is_ok_and(|schedule| verify(&schedule, &VerifyOptions::default()).is_ok());
        let msccl = write(&case.schedule(), Format::MscclXml).unwrap();
        let plan = write(&case.schedule(), Format::Mscclpp).unwrap();
        assert!(is_valid(&msccl) && is_valid(&plan));
        // In MSCCL, the removed dependency is a step that waits for another thread block.
        let mut tried = 0;
        for (position, _) in
            msccl.match_indices("depid=\"").filter(|(position, _)| !msccl[*position..].starts_with("depid=\"-1\""))
        {
            let end = position + msccl[position..].find(" hasdep").unwrap();
            let changed = format!("{}depid=\"-1\" deps=\"-1\"{}", &msccl[..position], &msccl[end..]);
            assert!(!is_valid(&changed), "{algorithm:?}: {}", &msccl[position - 90..end]);
            tried += 1;
        }
        // In MSCCL++, it is a wait in the middle; without it, the next wait would match a later signal.
        for (position, wait) in plan.match_indices("{\"name\": \"wait\"") {
            if plan[position..].lines().nth(1).is_some_and(|next| next.contains("nop")) {
                let changed =
                    format!("{}{}{}", &plan[..position], "{\"name\": \"nop\"", &plan[position + wait.len()..]);
                assert!(!is_valid(&changed), "{algorithm:?}: {}", &plan[position..position + 60]);
                tried += 1;
            }
        }
        assert!(tried >= 8, "{algorithm:?}: {tried}");
    }
}

/// Reads a published schedule file.
fn sample(name: &str) -> Schedule {
    let path = format!("{}/data/schedules/{name}", env!("CARGO_MANIFEST_DIR"));
    read(&std::fs::read_to_string(path).unwrap(), name).unwrap()
}

#[test]
fn published_files_convert_between_formats() {
    for name in [
        "msccl-alltoall-8n-0-9kb.xml",
        "msccl-allreduce-allpairs-8n-ll-32tb.xml",
        "msccl-all-reduce-ring-ll.xml",
        "mscclpp-allreduce.json",
        "mscclpp-allreduce_packet.json",
        "mscclpp-transfer_pack.json",
    ] {
        let schedule = sample(name);
        for format in [Format::Json, Format::MscclXml, Format::Mscclpp] {
            let text = write(&schedule, format).unwrap_or_else(|error| panic!("{name} as {format:?}: {error}"));
            let back = read(&text, name).unwrap_or_else(|error| panic!("{name} as {format:?}: {error}"));
            assert_eq!(traffic(&back), traffic(&schedule), "{name} as {format:?}");
            let proof = verify(&back, &VerifyOptions::default());
            assert!(proof.is_ok(), "{name} as {format:?}: {}", proof.unwrap_err());
            assert_eq!(write(&back, format).unwrap(), text, "{name} as {format:?}");
        }
    }
}

#[test]
fn rings_are_written_as_relays() {
    // The ring consists of one send, then a relay for each further step except the last, which only receives.
    let text = write(&sample("msccl-all-reduce-ring-ll.xml"), Format::MscclXml).unwrap();
    let count = |kind: &str| text.matches(&format!("type=\"{kind}\"")).count();
    assert_eq!([count("s"), count("r"), count("rrc"), count("rrcs") + count("rcs")], [384, 384, 0, 11_520 - 384]);
    let back = read(&text, "relays").unwrap();
    assert_eq!(back.operations().filter(|op| op.kind == OpKind::PutReduceInput).count(), 5760);
}
