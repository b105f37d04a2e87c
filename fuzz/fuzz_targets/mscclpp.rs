//! MSCCL++'s execution plans; what is written must be read again, and as the same if it is right.
#![no_main]

use fabricast_sim::schedule::mscclpp::{from_plan, to_plan};
use fabricast_sim::verify::{VerifyOptions, verify};

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(schedule) = from_plan(text, "fuzz")
        && let Ok(written) = to_plan(&schedule)
    {
        let again = from_plan(&written, "written").map(|again| to_plan(&again));
        assert!(again.is_ok());
        if verify(&schedule, &VerifyOptions::default()).is_ok() {
            assert_eq!(again.ok(), Some(Ok(written)));
        }
    }
});
