//! Performance of workloads on a fabric: training steps ([`step`]) and the time that checkpoints and failures leave for
//! them ([`goodput`]), inference serving ([`serve`]) and recorded traces ([`replay`]), the calls that they make
//! ([`call_mix`]) and the completion times of the calls ([`communication`]).
//!
//! ```text
//! Job × Machine (fabric, profile, kernel efficiency) ─► kernel times ─┐
//!        └──► calls ─► communication (simulation) ─► call times ──────┴─► Step, Service, replay
//! ```
//!
//! # Example
//! Reads a training job and predicts its step on eight H100.
//!
//! ```
//! use fabricast_perf::communication::SimulatedCosts;
//! use fabricast_perf::step::{Efficiency, Machine, Share, best_step};
//! use fabricast_sim::profile::Profile;
//! use fabricast_topologies::route::{RouteOptions, Router};
//! use fabricast_topologies::{FabricRequest, Picos, load};
//! use fabricast_workload::job::{Job, read_job};
//!
//! let text = r#"
//! name = "GPT-3 6.7B"
//! model = { layers = 32, hidden = 4096, heads = 32, vocab = 51200, seq = 2048 }
//! precision = "bf16"
//! flash_attention = true
//! global_batch = 64
//! parallel = { tp = 2 }
//! "#;
//! let Job::Training(job) = read_job(text, "job.toml")? else { panic!("not a training job") };
//! let fabric = load(&FabricRequest::new("hgx-h100"))?;
//! let router = Router::new(&fabric, RouteOptions::default());
//! let profile = Profile::for_fabric(&fabric)?;
//! let (ranks, curve) = (fabric.gpus(), Efficiency::new(&fabric));
//! let simulated = SimulatedCosts::new(&router, &profile, ranks);
//! let (step, footprint) = best_step(&job, &Machine { router: &router, ranks, simulated: &simulated, curve })?;
//!
//! assert_eq!(step.shares.iter().map(|&(_, time)| time).sum::<Picos>(), step.time);
//! assert_eq!((step.layout.degrees.data, step.bottleneck()), (4, Share::Compute));
//! assert!(step.efficiency() < 1.0 && footprint.total().0 < 80_000_000_000);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![warn(missing_docs)]

pub mod call_mix;
pub mod communication;
pub mod goodput;
pub mod replay;
pub mod serve;
pub mod step;
mod time;
