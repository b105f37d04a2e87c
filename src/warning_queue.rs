//! Warnings that are held until the result is written, so that a terminal shows the answer first.

use std::sync::{Mutex, PoisonError};

/// Warnings of a command, in order.
#[derive(Debug)]
pub struct WarningQueue(Mutex<State>);

/// State of a queue.
#[derive(Debug)]
enum State {
    /// The result is not written yet.
    Holding(Vec<String>),
    /// The result is written, so warnings follow it at once.
    Released,
}

impl WarningQueue {
    /// Creates an empty queue, which holds warnings.
    pub fn new() -> Self {
        Self(Mutex::new(State::Holding(Vec::new())))
    }

    /// Holds a warning; returns it if the result is written already, so that the caller writes it.
    pub fn hold<'a>(&self, message: &'a str) -> Option<&'a str> {
        match &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Holding(held) => {
                held.push(message.to_owned());
                None
            }
            State::Released => Some(message),
        }
    }

    /// Returns the held warnings. Later ones are not held.
    pub fn release(&self) -> Vec<String> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, State::Released) {
            State::Holding(held) => held,
            State::Released => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_follow_the_result_in_their_order() {
        let queue = WarningQueue::new();
        assert_eq!((queue.hold("a"), queue.hold("b")), (None, None));
        assert_eq!(queue.release(), ["a", "b"]);
        assert_eq!(queue.hold("c"), Some("c"));
        assert!(queue.release().is_empty());
    }
}
