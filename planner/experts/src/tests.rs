//! Tests of traffic, times and bounds.

mod concurrent;
mod monotony;
mod routing;
mod support;
mod time;
mod traffic;
