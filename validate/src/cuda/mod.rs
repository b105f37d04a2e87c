//! Safe wrapper of the CUDA driver API: checked results, and handles with owners.
//!
//! All work on a GPU uses this layer: contexts, streams, events, graphs, modules, memory, peer access, and the host
//! threads that drive several GPUs concurrently. cudarc's own safe layer is not used, because it panics if a library or
//! symbol is missing, and because it adds event waits to copies and launches that are timed here. Every result is
//! checked, an error names the call, the device and the code, and resources are released on every path.
//!
//! Entry points: [`Driver::load`] → [`CudaDevice`] → [`Context`] → [`Stream`], [`DeviceMemory`], [`Module`]; a
//! [`team`](team::run) of host threads, one per GPU; a [`Watchdog`] for every wait that may never end.

mod arch;
mod arguments;
mod cache;
pub mod compile;
mod context;
mod copy;
mod device;
mod driver;
mod error;
mod event;
mod graph;
mod host_memory;
pub mod interrupt;
mod memory;
mod module;
mod progress;
mod signal;
mod spin_barrier;
mod stream;
pub mod team;
mod version;
mod watchdog;

pub use arch::Arch;
pub use arguments::Arguments;
pub use compile::{CompileError, Cubin};
pub use context::{Context, enable_peer_access_between, exit_if_hanging, exit_immediately};
pub use device::{Access, Atomics, Attribute, CudaDevice, PeerPath};
pub use driver::{Driver, SYMBOLS};
pub use error::CudaError;
pub use event::Event;
pub use graph::Graph;
pub use host_memory::HostMemory;
pub use memory::{DeviceAddress, DeviceMemory, DeviceSlice};
pub use module::{Function, Launch, LaunchMode, Module};
pub use progress::Progress;
pub use signal::{WaitCondition, WordOperation};
pub use stream::Stream;
pub use team::{Consequence, Member};
pub use version::CudaVersion;
pub use watchdog::{Deadline, Watchdog};
