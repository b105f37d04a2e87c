//! Lines in NCCL's own log: `NCCL_DEBUG=INFO`, subsystem `TUNING` (and `INIT` for what is told once).
//!
//! Every line goes out by the format `%s`, so nothing that a file says is ever a format. NCCL returns at once where a level or a
//! subsystem is not asked for.
#![allow(unsafe_code, reason = "calls NCCL's logger")]

use std::ffi::{CStr, c_char, c_int, c_ulong};
use std::fmt::{self, Write};

use crate::abi::{LOG_INFO, LOG_OF_INIT, LOG_OF_TUNING, LOG_WARN, Logger};

/// NCCL's logger, where it gave one.
#[derive(Debug, Clone, Copy)]
pub struct Log(Option<Logger>);

impl Log {
    /// To this logger.
    #[must_use]
    pub fn to(logger: Option<Logger>) -> Self {
        Self(logger)
    }

    /// What is to be seen even where nothing else is.
    pub fn warn(self, text: fmt::Arguments<'_>) {
        self.line(LOG_WARN, LOG_OF_INIT | LOG_OF_TUNING, text);
    }

    /// What is told once in a communicator.
    pub fn start(self, text: fmt::Arguments<'_>) {
        self.line(LOG_INFO, LOG_OF_INIT | LOG_OF_TUNING, text);
    }

    /// What is told of single choices.
    pub fn choice(self, text: fmt::Arguments<'_>) {
        self.line(LOG_INFO, LOG_OF_TUNING, text);
    }

    /// Writes a line, on the stack: `answer` calls this too, which does not allocate.
    fn line(self, level: c_int, subsystems: c_ulong, text: fmt::Arguments<'_>) {
        const FILE: &CStr = c"fabricast";
        let Some(logger) = self.0 else { return };
        let mut line = Line::default();
        // A line that is too long is cut.
        let _ = write!(line, "TUNER/fabricast: {text}");
        let said = line.ended();
        // SAFETY: NCCL's logger takes a format and what it names: one text that ends with a zero. All outlive the call.
        unsafe { logger(level, subsystems, FILE.as_ptr(), 0, c"%s".as_ptr(), said) };
    }
}

/// A longer line is cut.
const LONGEST: usize = 900;

struct Line {
    bytes: [u8; LONGEST + 1],
    length: usize,
}

impl Default for Line {
    fn default() -> Self {
        Self { bytes: [0; LONGEST + 1], length: 0 }
    }
}

impl Line {
    /// The text, which ends with a zero.
    fn ended(&self) -> *const c_char {
        self.bytes.as_ptr().cast()
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            // A log is a line, and a zero would end it.
            let character = if character.is_control() { '\u{fffd}' } else { character };
            let end = self.length + character.len_utf8();
            let Some(room) = self.bytes.get_mut(self.length..end).filter(|_| end <= LONGEST) else {
                return Err(fmt::Error);
            };
            character.encode_utf8(room);
            self.length = end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(line: &Line) -> &str {
        CStr::from_bytes_until_nul(&line.bytes).unwrap().to_str().unwrap()
    }

    #[test]
    fn a_line_is_cut_at_a_letter_and_keeps_no_control_characters() {
        let mut line = Line::default();
        write!(line, "a\nb\0c").unwrap();
        assert_eq!(text(&line), "a\u{fffd}b\u{fffd}c");
        let mut line = Line::default();
        assert!(write!(line, "{}", "é".repeat(LONGEST)).is_err());
        assert_eq!(text(&line), "é".repeat(LONGEST / 2));
    }
}
