//! Collective algorithms, strategies, and lower bounds on their completion time.
//!
//! This crate contains the generators that write schedules ([`algorithm`], one file each), strategies and the table of
//! valid combinations ([`strategy`]), the capabilities of a fabric that they depend on ([`capabilities`]), and lower
//! bounds on the completion time of any schedule ([`bound`]).
//!
//! ```text
//! Strategy, Call ─► algorithm::generator ─► Schedule
//! Fabric, Router ─► bound::Bounds ─► lower bound of a call
//! ```
//!
//! # Example
//!
//! Writes a ring all_reduce of eight ranks, proves that it computes the sum, and bounds the time of any all_reduce of
//! that size: every rank sends 2(n−1)/n of 3.6 GB through a port of 450 GB/s, after a latency of 0.5 µs.
//!
//! ```
//! use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
//! use fabricast_collectives::bound::{BoundSource, Bounds, InNetwork};
//! use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank, Schedule};
//! use fabricast_sim::verify::{VerifyOptions, verify};
//! use fabricast_topologies::route::{RouteOptions, Router};
//! use fabricast_topologies::{Bytes, FabricRequest, Picos, load};
//!
//! let (collective, buffers) = (Collective::AllReduce, BufferUse::OutOfPlace);
//! let call = Call { collective, bytes: Bytes(3_600_000_000), ranks: 8, root: Rank(0), buffers };
//! let ring = generator(Algorithm::Ring, &Shape::new(call, Protocol::Simple))?;
//! let schedule = Schedule::build(ring.as_ref())?;
//! assert_eq!(verify(&schedule, &VerifyOptions::default())?.operations, 8 * 14);
//!
//! let fabric = load(&FabricRequest::new("hgx-h200"))?;
//! let router = Router::new(&fabric, RouteOptions::default());
//! let bounds = Bounds::new(&fabric, &router, fabric.gpus(), 0).with_in_network(InNetwork::Off);
//! let bound = bounds.bound(&call);
//! assert_eq!((bound.time, bound.limited_by), (Picos::from_us(14_000.5), BoundSource::RankPorts));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![warn(missing_docs)]

pub mod algorithm;
pub mod bound;
pub mod capabilities;
mod cutting_planes;
mod flow;
pub mod packing;
pub mod strategy;
mod union_find;
