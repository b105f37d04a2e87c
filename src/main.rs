//! The `fabricast` command.
fn main() {}
