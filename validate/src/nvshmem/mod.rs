//! NVSHMEM through its host library: one process a GPU (a *processing element*, PE), a heap that lies alike on all of them,
//! one-sided puts with signals, and its own collectives on a stream.
//!
//! ```text
//! library     the shared library: finding it, its version, its functions
//! element     this process as one of the PEs; it ends with the process
//! heap        memory at the same place of every PE's heap
//! on_stream   collectives, puts and signals that a stream runs
//! device_code code with its device library in it
//! processes   starting a process for each GPU and talking with all of them
//! ```
//!
//! NVSHMEM keeps its state in the process, so every GPU takes a process of its own, which the program starts from itself.
//! Names are those of `nvshmem.h` and `nvshmemx.h` 3.4.5; structures carry their version and size, as the headers have it.

mod device_code;
mod element;
mod error;
mod heap;
mod library;
mod on_stream;
mod processes;

pub use device_code::{DeviceCodeError, compile_with_library};
pub use element::{Element, PreparedModule, UniqueId};
pub use error::NvshmemError;
pub use heap::SymmetricMemory;
pub use library::{Nvshmem, NvshmemVersion, Reduction};
pub use on_stream::Signal;
pub use processes::{Channel, Processes, Spoken, environment};
