//! Integration tests across crates; see the folder `tests`.
