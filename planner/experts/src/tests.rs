//! Tests of traffic, times and bounds.

mod concurrent;
mod monotony;
mod routing;
mod time;
mod traffic;
