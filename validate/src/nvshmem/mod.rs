//! NVSHMEM through its host library: one process per GPU (a *processing element*, PE), a symmetric heap, one-sided puts
//! with signals, and NVSHMEM's own collectives on a stream.
//!
//! ```text
//! library        the shared library: location, version, functions
//! initialization structures of the library's initialization, with the ID by which processes find each other
//! element        this process as a PE, until the process ends
//! heap           symmetric memory
//! on_stream      collectives, puts and signals on a stream
//! device_code    compilation and linking with the device library
//! processes      one process per GPU, and communication with them
//! ```
//!
//! NVSHMEM keeps its state per process, so every GPU needs its own process, which the program starts from its own
//! executable. Names are those of `nvshmem.h` and `nvshmemx.h` 3.4.5; structures contain their version and size, as in
//! the headers.

mod device_code;
mod element;
mod error;
mod heap;
mod initialization;
mod library;
mod on_stream;
mod processes;

pub use device_code::{DeviceCodeError, compile_with_library};
pub use element::{Element, PreparedModule};
pub use error::NvshmemError;
pub use heap::SymmetricMemory;
pub use initialization::NvshmemUniqueId;
pub use library::{Nvshmem, NvshmemVersion, Reduction};
pub use on_stream::{Signal, SourceAndDestination};
pub use processes::{Channel, ProcessMessage, Processes, environment};
