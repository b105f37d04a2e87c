//! The command as users run it: the built binary is run, and its output, files and exit codes are compared.
//!
//! `transcripts/` holds sessions as in the README (`TRYCMD=overwrite cargo test --test cli` updates them). The
//! modules check what a transcript cannot: JSON for programs, files, pipes, and hostile input that is not stored in
//! files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod bad_measurements;
#[expect(clippy::print_stderr, reason = "says that it skips")]
#[path = "../../reports/tests/page/chromium.rs"]
mod chromium;
mod compare;
#[cfg(unix)]
mod devtools;
mod evaluated_tables;
mod exports;
mod fastest;
mod files;
mod formats;
mod golden_tables;
mod gpu;
mod gpu_run;
mod hostile;
mod identical;
mod job_traces;
mod json;
mod measured_plans;
mod open_mpi;
mod prove;
mod random_plans;
mod recorded_steps;
mod report;
mod run;
mod schedule_exports;
mod schema;
mod serve;
mod serve_page;
mod shell;
mod simulate_is_plan;
mod stop;
mod stored_logs;
mod study;
mod study_traces;
mod table_findings;
mod table_messages;
mod tables;
mod terminal;
mod timeline;
mod tuner_csv;
mod user_files;
mod verified;
mod what_if;

#[test]
fn transcripts() {
    trycmd::TestCases::new()
        .register_bin("fabricast", std::path::Path::new(env!("CARGO_BIN_EXE_fabricast")))
        .env("COLUMNS", "")
        .case("tests/cli/transcripts/*.trycmd");
}
