//! Proves that a schedule computes its collective. (To be filled.)
