//! Logs of nccl-tests, as text and as JSON, and CSV.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    let _ = fabricast_validate::measured::read_log(text, "fuzz");
});
