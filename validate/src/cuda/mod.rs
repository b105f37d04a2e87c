//! The CUDA driver, with errors where it has codes and owners where it has handles.
//!
//! Everything that runs on a GPU goes through this layer: contexts, streams, events, graphs, modules, memory, peer
//! access, and the host threads that drive several GPUs at once. It exists because cudarc's own safe layer panics where
//! a library or a symbol is missing and adds event waits of its own to copies and launches that are to be timed; here
//! every result is checked, a failure names call, device and code, and whatever was taken is given back on every path.
//!
//! The way through: [`Driver::load`] → [`Device`] → [`Context`] → [`Stream`], [`DeviceMemory`], [`Module`]; a
//! [`team`](team::run) of host threads, one a GPU; a [`Watchdog`] wherever something may wait forever.

mod arguments;
mod cache;
pub mod compile;
mod context;
mod copy;
mod device;
mod driver;
mod error;
mod event;
mod gate;
mod graph;
mod host_memory;
pub mod interrupt;
mod memory;
mod module;
mod signal;
mod stream;
pub mod team;
mod watchdog;

pub use arguments::Arguments;
pub use compile::{Arch, CompileError, Cubin};
pub use context::{Context, join, leave, leave_what_hangs};
pub use device::{Access, Atomics, Attribute, Device, PeerPath};
pub use driver::{CudaVersion, Driver, SYMBOLS};
pub use error::CudaError;
pub use event::Event;
pub use graph::Graph;
pub use host_memory::HostMemory;
pub use memory::{DeviceAddress, DeviceMemory, Part};
pub use module::{Function, Launch, LaunchMode, Module};
pub use signal::{Until, WordStep};
pub use stream::{Progress, Stream};
pub use team::{Consequence, Member};
pub use watchdog::{Clock, Watchdog};
