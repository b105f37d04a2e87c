//! Random names from the operating system's source.

use std::fmt::Write;

/// The operating system has no random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the operating system provides no random numbers")]
pub struct RandomError;

/// Returns 128 random bits as 32 hexadecimal digits.
///
/// # Errors
/// [`RandomError`].
pub fn hexadecimal() -> Result<String, RandomError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|_| RandomError)?;
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    }))
}
