//! Tests of traffic, times and bounds.

mod routing;
mod time;
