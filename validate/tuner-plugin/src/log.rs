//! Lines in NCCL's log, shown with `NCCL_DEBUG=INFO` for the subsystem `TUNING` (and `INIT` for messages that are
//! logged once).
//!
//! Every line uses the format `%s`, so that text from a file is never a format string. NCCL's logger returns
//! immediately if a level or subsystem is not enabled.
#![allow(unsafe_code, reason = "calls NCCL's logger")]

use std::ffi::{CStr, c_char, c_int, c_ulong};
use std::fmt::{self, Write};

use crate::abi::{LOG_INFO, LOG_OF_INIT, LOG_OF_TUNING, LOG_WARN, Logger};

/// Destination of log messages: NCCL's logger, or none if NCCL passed none.
#[derive(Debug, Clone, Copy)]
pub struct Log(Option<Logger>);

impl Log {
    /// Creates a log that writes to a logger.
    #[must_use]
    pub fn new(logger: Option<Logger>) -> Self {
        Self(logger)
    }

    /// Logs a warning, which NCCL shows with `NCCL_DEBUG=WARN`.
    pub fn warn(self, text: fmt::Arguments<'_>) {
        self.line(LOG_WARN, LOG_OF_INIT | LOG_OF_TUNING, text);
    }

    /// Logs a message that occurs once per communicator.
    pub fn start(self, text: fmt::Arguments<'_>) {
        self.line(LOG_INFO, LOG_OF_INIT | LOG_OF_TUNING, text);
    }

    /// Logs a message about the strategy of a single call.
    pub fn choice(self, text: fmt::Arguments<'_>) {
        self.line(LOG_INFO, LOG_OF_TUNING, text);
    }

    /// Formats a line on the stack and logs it. Does not allocate, because `answer` calls this function.
    fn line(self, level: c_int, subsystems: c_ulong, text: fmt::Arguments<'_>) {
        const FILE: &CStr = c"fabricast";
        let Some(logger) = self.0 else { return };
        let mut line = Line::default();
        // Lines that exceed the buffer are truncated.
        let _ = write!(line, "TUNER/fabricast: {text}");
        let message = line.ended();
        // SAFETY: NCCL's logger takes a format and its argument, one zero-terminated text. All outlive the call.
        unsafe { logger(level, subsystems, FILE.as_ptr(), 0, c"%s".as_ptr(), message) };
    }
}

/// Maximum length of a line in bytes; longer lines are truncated.
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
    /// Pointer to the zero-terminated text of the line.
    fn ended(&self) -> *const c_char {
        self.bytes.as_ptr().cast()
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            // A message must be one line without zero bytes, which would end it.
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
    fn lines_are_truncated_at_a_character_without_control_characters() {
        let mut line = Line::default();
        write!(line, "a\nb\0c").unwrap();
        assert_eq!(text(&line), "a\u{fffd}b\u{fffd}c");
        let mut line = Line::default();
        assert!(write!(line, "{}", "é".repeat(LONGEST)).is_err());
        assert_eq!(text(&line), "é".repeat(LONGEST / 2));
    }
}
