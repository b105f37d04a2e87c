//! Files as they are, and files with one thing wrong.

use super::from_xml;
use crate::schedule::{OpKind, Schedule};
use crate::verify::{VerifyOptions, verify};

fn sample(name: &str) -> Schedule {
    let path = format!("{}/../tests/data/schedules/{name}", env!("CARGO_MANIFEST_DIR"));
    from_xml(&std::fs::read_to_string(path).unwrap(), name).unwrap()
}

fn count(schedule: &Schedule, kind: OpKind) -> usize {
    schedule.operations().filter(|op| op.kind == kind).count()
}

#[test]
fn published_files_compute_what_they_say() {
    for (name, operations, kinds) in [
        ("msccl-alltoall-8n-0-9kb.xml", 64, [(OpKind::Put, 56), (OpKind::Copy, 8)]),
        ("msccl-allreduce-allpairs-8n-ll-32tb.xml", 2240, [(OpKind::Put, 448), (OpKind::Reduce, 1792)]),
        ("msccl-all-reduce-ring-ll.xml", 11_520, [(OpKind::PutReduceInput, 5760), (OpKind::Put, 5760)]),
    ] {
        let schedule = sample(name);
        let verified = verify(&schedule, &VerifyOptions { fifo_depth: Some(8) });
        assert_eq!(verified.map(|v| v.operations).map_err(|fault| fault.to_string()), Ok(operations), "{name}");
        for (kind, expected) in kinds {
            assert_eq!(count(&schedule, kind), expected, "{name} {kind:?}");
        }
    }
}
