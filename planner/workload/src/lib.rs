//! Workloads: jobs with their parallelism, memory and traffic ([`job`]), and recorded traces ([`trace`]).
//!
//! ```text
//! TOML ─► Job ─► Layout (groups of ranks) ─► calls of each group, memory of a rank
//! CSV, NCCL's and PyTorch's traces, Chakra ─► events of a recorded job
//! ```
//!
//! The crate reads texts and does not access files. It contains no times; `fabricast-perf` predicts them.
//!
//! # Example
//! Reads a training job and derives its calls and memory on eight GPUs: two tensor-parallel ranks in each of four
//! replicas.
//!
//! ```
//! use fabricast_sim::schedule::Collective;
//! use fabricast_topologies::{Bytes, FabricRequest, load};
//! use fabricast_workload::job::{Dimension, Job, Layout, footprint, read_job, traffic};
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
//! assert_eq!(job.model.parameters(), 6_662_258_688);
//!
//! let fabric = load(&FabricRequest::new("hgx-h100"))?;
//! let layout = Layout::specified_by(&job, fabric.gpus().len() as u32)?.ok_or("no degrees")?;
//! assert_eq!((layout.degrees.data, layout.micro_batches(&job)), (4, 16));
//!
//! // Each layer sums its activations twice in the forward pass: 2,048 tokens × 4,096 elements of 2 bytes.
//! let first = traffic(&job, &layout)[0];
//! assert_eq!((first.dimension, first.collective), (Dimension::Tensor, Collective::AllReduce));
//! assert_eq!((first.bytes, first.count), (Bytes(16 << 20), 2));
//! assert_eq!(footprint(&job, &layout).weights, Bytes(6_662_258_688));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![warn(missing_docs)]

pub mod job;
pub mod trace;
