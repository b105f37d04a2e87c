//! The terminal: the only module that writes to standard output and standard error (clippy refuses it elsewhere), so that no
//! command can pass on what a file, a name or an argument makes a terminal do.

use std::io::{IsTerminal, Write};

use fabricast_topologies::visible::{visible_coloured, visible_lines};

/// Whether a text has been coloured by the command, every part of it from outside made visible before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colours {
    /// No escape sequence is let through.
    None,
    /// Sequences that select colours are.
    Own,
}

/// Writes to standard output.
///
/// # Errors
/// What the system returns; a closed pipe (`| head`) is the reader's choice and no error.
#[expect(clippy::disallowed_methods, reason = "this module is where output passes")]
pub fn print(text: &str, colours: Colours) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let written = match colours {
        Colours::None => out.write_all(visible_lines(text).as_bytes()),
        Colours::Own => out.write_all(visible_coloured(text).as_bytes()),
    };
    match written.and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// Writes a line on standard error; where that is closed, nobody is left to tell.
pub fn note(text: &str) {
    note_with(text, Colours::None);
}

/// As [`note`], with colours.
#[expect(clippy::disallowed_methods, reason = "this module is where output passes")]
pub fn note_with(text: &str, colours: Colours) {
    let mut out = std::io::stderr().lock();
    let _ = match colours {
        Colours::None => writeln!(out, "{}", visible_lines(text)),
        Colours::Own => writeln!(out, "{}", visible_coloured(text)),
    };
}

/// True if standard output is a terminal.
#[expect(clippy::disallowed_methods, reason = "nothing is written")]
pub fn is_output_shown() -> bool {
    std::io::stdout().is_terminal()
}

/// True if standard error is a terminal.
#[expect(clippy::disallowed_methods, reason = "nothing is written")]
pub fn is_error_shown() -> bool {
    std::io::stderr().is_terminal()
}

/// Columns of the terminal, where there is one.
pub fn width() -> Option<u16> {
    terminal_size::terminal_size().map(|(terminal_size::Width(width), _)| width)
}
