//! Terminal output. This is the only module that writes to standard output and standard error (clippy rejects other
//! uses). It makes control characters from files, names and arguments visible, so that they cannot control the
//! terminal.

use std::io::{IsTerminal, Write};

use fabricast_topologies::visible::{visible_coloured, visible_lines, visible_marked};

/// Treatment of colour sequences in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colours {
    /// All escape sequences are made visible.
    None,
    /// Colour sequences of tables, which their marks identify, are written; all others are made visible.
    Marked,
    /// Colour sequences are not escaped. They are those of clap and miette, which get external text in visible form.
    Own,
}

/// Writes to standard output.
///
/// # Errors
/// Writing fails. A closed pipe (`| head`) is not an error.
#[expect(clippy::disallowed_methods, reason = "this module is where output passes")]
pub fn print(text: &str, colours: Colours) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let written = match colours {
        Colours::None => out.write_all(visible_lines(text).as_bytes()),
        Colours::Marked => out.write_all(visible_marked(text).as_bytes()),
        Colours::Own => out.write_all(visible_coloured(text).as_bytes()),
    };
    match written.and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// Writes a line to standard error. Errors are ignored.
pub fn write_stderr(text: &str) {
    write_stderr_coloured(text, Colours::None);
}

/// Variant of [`write_stderr`] with colours.
#[expect(clippy::disallowed_methods, reason = "this module is where output passes")]
pub fn write_stderr_coloured(text: &str, colours: Colours) {
    let mut out = std::io::stderr().lock();
    let _ = match colours {
        Colours::None => writeln!(out, "{}", visible_lines(text)),
        Colours::Marked => writeln!(out, "{}", visible_marked(text)),
        Colours::Own => writeln!(out, "{}", visible_coloured(text)),
    };
}

/// Returns true if standard output is a terminal.
#[expect(clippy::disallowed_methods, reason = "nothing is written")]
pub fn is_output_shown() -> bool {
    std::io::stdout().is_terminal()
}

/// Returns true if standard error is a terminal.
#[expect(clippy::disallowed_methods, reason = "nothing is written")]
pub fn is_error_shown() -> bool {
    std::io::stderr().is_terminal()
}

/// Width of the terminal in columns: the value of the environment variable COLUMNS, otherwise the size of the terminal,
/// if there is one.
pub fn width() -> Option<u16> {
    stated_width().or_else(|| terminal_size::terminal_size().map(|(terminal_size::Width(width), _)| width))
}

/// Width that the environment variable COLUMNS states, if it is a number of columns.
pub fn stated_width() -> Option<u16> {
    std::env::var("COLUMNS").ok()?.parse().ok().filter(|&width| width > 0)
}
