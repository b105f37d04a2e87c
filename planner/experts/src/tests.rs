//! Tests of traffic, times and bounds.

mod monotony;
mod routing;
mod time;
mod traffic;
