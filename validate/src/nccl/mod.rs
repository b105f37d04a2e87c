//! NCCL through its shared library: communicators of one rank each, collectives on streams, registered windows.
//!
//! This module is used instead of cudarc's bindings, which never search for `libnccl.so.2` (the only file in NVIDIA's
//! wheel) and panic on missing functions and on aborts. Every result is checked here, and a request for a missing
//! function returns an error.
//!
//! NCCL reads its settings from the environment when a communicator is created. An algorithm, a protocol or a number of
//! channels is therefore [forced](ForcedChoice) while communicators are created, in a process that has [reserved](reserve)
//! its environment. [`SHARED_HOST`], which disables NVLink multicast, is set at the same time.

mod collectives;
mod communicator;
mod error;
mod forced;
mod library;
mod types;
mod window;

pub use collectives::{Operands, Operation};
pub use communicator::{Communicator, CommunicatorConfig, Registration};
pub use error::NcclError;
pub use forced::{EnvironmentError, ForcedChoice, SHARED_HOST, reserve};
pub use library::{Nccl, NcclUniqueId, NcclVersion};
pub use window::WindowMemory;
