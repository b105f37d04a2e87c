//! Completion state of enqueued work.

/// Completion state of enqueued work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All work is complete.
    Done,
    /// Work is pending.
    Pending,
}
