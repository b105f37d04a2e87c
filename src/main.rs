//! The `fabricast` program. The library of this package holds its commands.

use std::process::ExitCode;

fn main() -> ExitCode {
    fabricast::command_line::main()
}
