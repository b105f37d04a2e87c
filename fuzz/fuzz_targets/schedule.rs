//! Schedules in JSON; what is read must be written and read again.
#![no_main]

use fabricast_sim::schedule::json::{from_json, to_json};

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(schedule) = from_json(text, "fuzz") {
        let written = to_json(&schedule);
        let again = from_json(&written, "written").map(|again| to_json(&again));
        assert_eq!(again.ok(), Some(written));
    }
});
