//! Failures as texts on standard error.

use miette::{GraphicalReportHandler, GraphicalTheme};

use crate::failure::{DisplayedFailure, Failure};
use crate::terminal::{self, Colours};

/// Reports a failure on standard error, with the erroneous line of the input if there is one. Lines are wrapped on a
/// terminal only; elsewhere the message is a single line that programs can parse.
pub fn report(failure: &Failure) {
    let terminal = terminal::is_error_shown();
    let mut theme = if terminal { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
    // The first line begins as clap's errors do.
    theme.characters.error = "error:".to_owned();
    let handler = GraphicalReportHandler::new_themed(theme)
        .with_width(terminal::width().map_or(110, usize::from))
        .with_wrap_lines(terminal)
        .with_links(false);
    let failure = DisplayedFailure::new(failure);
    let mut text = String::new();
    if handler.render_report(&mut text, &failure).is_err() {
        text = failure.to_string();
    }
    terminal::write_stderr_coloured(text.trim(), if terminal { Colours::Own } else { Colours::None });
}
