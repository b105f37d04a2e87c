//! Plans as they are, and plans with one thing wrong.

use super::from_plan;
use crate::schedule::Schedule;
use crate::verify::{VerifyOptions, verify};

fn text(name: &str) -> String {
    let path = format!("{}/../tests/data/schedules/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

fn sample(name: &str) -> Schedule {
    from_plan(&text(name), name).unwrap()
}

fn outcome(schedule: &Schedule) -> Result<u64, String> {
    verify(schedule, &VerifyOptions::default()).map(|v| v.operations).map_err(|fault| fault.to_string())
}

#[test]
fn published_plans_compute_what_they_say() {
    for (name, operations) in
        [("mscclpp-allreduce.json", 64), ("mscclpp-allreduce_packet.json", 12), ("mscclpp-transfer_pack.json", 5)]
    {
        assert_eq!(outcome(&sample(name)), Ok(operations), "{name}");
    }
}

#[test]
fn the_one_that_copies_for_nobody_is_right_without_the_copy() {
    // Gpu 0 copies chunks 2 and 3 into its scratch; gpu 1 reads them in gpu 0's input.
    let text = text("mscclpp-reduce.json");
    let fault = outcome(&from_plan(&text, "reduce").unwrap()).unwrap_err();
    assert!(
        fault.starts_with(
            "operation 0 (rank 0, channel 0, local copy): writes scratch chunk 2 of rank 0, which nobody reads"
        ),
        "{fault}"
    );
    let mut plan: serde_json::Value = serde_json::from_str(&text).unwrap();
    let ops = plan["gpus"][0]["threadblocks"][0]["ops"].as_array_mut().unwrap();
    assert_eq!(ops.remove(0)["name"], "copy");
    assert_eq!(outcome(&from_plan(&plan.to_string(), "reduce").unwrap()), Ok(16));
}
