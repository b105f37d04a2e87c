//! MSCCL's algorithm files; what is written must be read again, and as the same if it is right.
#![no_main]

use fabricast_sim::schedule::msccl_xml::{from_xml, to_xml};
use fabricast_sim::verify::{VerifyOptions, verify};

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(schedule) = from_xml(text, "fuzz")
        && let Ok(written) = to_xml(&schedule)
    {
        let again = from_xml(&written, "written").map(|again| to_xml(&again));
        assert!(again.is_ok());
        if verify(&schedule, &VerifyOptions::default()).is_ok() {
            assert_eq!(again.ok(), Some(Ok(written)));
        }
    }
});
