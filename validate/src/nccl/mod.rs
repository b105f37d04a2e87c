//! NCCL through its shared library: communicators of one rank each, collectives on streams, registered windows.
//!
//! Our own thin module rather than cudarc's: that one never looks for `libnccl.so.2`, the only file of NVIDIA's wheel,
//! panics where a function is missing, and aborts by panic. Every result is checked here, and what a library lacks is an
//! error when it is asked for.
//!
//! NCCL reads its settings from the environment when a communicator is made, so an algorithm, a protocol or a number of
//! channels is [forced](Forced) while communicators are made, in a process that [reserved](reserve) its environment. With it goes
//! [`SHARED_HOST`], which keeps NVLink multicast off.

mod collectives;
mod communicator;
mod error;
mod forced;
mod library;
mod types;
mod window;

pub use collectives::{Operands, Operation};
pub use communicator::{Communicator, Config, Registration};
pub use error::NcclError;
pub use forced::{EnvironmentError, Forced, SHARED_HOST, reserve};
pub use library::{Nccl, NcclVersion, UniqueId};
pub use window::WindowMemory;
