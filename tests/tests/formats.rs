//! Schedules in the formats of other tools: what is written is read back as a schedule that computes the same collective
//! with the same traffic, and is written again to the same text.

use std::collections::BTreeMap;

use fabricast_sim::schedule::format::{Format, FormatError, WriteError, read, write};
use fabricast_sim::schedule::{OpKind, Schedule};
use fabricast_sim::verify::{VerifyOptions, verify};
use proptest::prelude::*;

use crate::generators::{Case, cases};

/// Bytes from the memory of each rank into that of each other.
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

/// Writes, reads and writes again; nothing where the format cannot say what the schedule says.
fn round_trip(case: &Case, schedule: &Schedule, format: Format) -> Result<bool, TestCaseError> {
    let text = match write(schedule, format) {
        Ok(text) => text,
        Err(WriteError::UnequalChunks { .. }) => return Ok(false),
        Err(WriteError::Unsupported { .. }) if !schedule.header().teams.is_empty() => return Ok(false),
        Err(other) => return Err(TestCaseError::fail(format!("{case:?}: {other}"))),
    };
    prop_assert_eq!(Format::of(&text), format);
    let back = read(&text, "written").map_err(|error: FormatError| TestCaseError::fail(format!("{error}\n{text}")))?;
    prop_assert_eq!(back.header().call, schedule.header().call);
    prop_assert_eq!(&back.header().name, &schedule.header().name);
    if let Err(fault) = verify(&back, &VerifyOptions::default()) {
        return Err(TestCaseError::fail(format!("{fault}\n{text}")));
    }
    let (before, after) = (traffic(schedule), traffic(&back));
    prop_assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    for (pair, bytes) in &before {
        prop_assert!((after[pair] - bytes).abs() <= bytes * 1e-9, "{pair:?}: {bytes} became {}", after[pair]);
    }
    let again = write(&back, format).map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
    prop_assert!(again == text, "written\n{text}\nagain\n{again}");
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

/// A published file.
fn sample(name: &str) -> Schedule {
    let path = format!("{}/data/schedules/{name}", env!("CARGO_MANIFEST_DIR"));
    read(&std::fs::read_to_string(path).unwrap(), name).unwrap()
}

#[test]
fn published_files_become_each_other() {
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
fn a_ring_is_written_as_relays() {
    // One send, then as many relays as there are other steps but the last, which only receives.
    let text = write(&sample("msccl-all-reduce-ring-ll.xml"), Format::MscclXml).unwrap();
    let count = |kind: &str| text.matches(&format!("type=\"{kind}\"")).count();
    assert_eq!([count("s"), count("r"), count("rrc"), count("rrcs") + count("rcs")], [384, 384, 0, 11_520 - 384]);
    let back = read(&text, "relays").unwrap();
    assert_eq!(back.operations().filter(|op| op.kind == OpKind::PutReduceInput).count(), 5760);
}
