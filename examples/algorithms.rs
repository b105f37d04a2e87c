//! Prints docs/algorithms.md: `cargo run --example algorithms > docs/algorithms.md`.
#![allow(clippy::print_stdout, missing_docs)] // a program for people

fn main() {
    print!("{}", fabricast_reports::algorithms::markdown());
}
