//! Manifests, without the files that they name.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    let _ = fabricast_validate::measured::manifest::read(text, "fuzz");
});
