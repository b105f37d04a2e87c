//! NCCL's selection: which algorithm, protocol, channels, threads and chunk it takes, by version.
//!
//! The facts are those of NCCL's source (files named in each module), checked against tables and choices that NCCL itself
//! logged (tests/tests/nccl.rs). What it decides from is in [`Communicator`], what it expects of each way in [`Table`],
//! and what it takes is the least of those ([`pick`]).

mod communicator;
mod constants;
pub mod graph;
mod index;
mod kernel;
mod lists;
mod p2p;
mod settings;
mod symmetric;
mod table;
mod time;
mod version;

pub use communicator::{Communicator, Cpu, MAX_CHANNELS, Nearness, Nic, NvlsShape};
pub use index::{Algo, Function, Proto};
pub use kernel::{Kernel, kernel, kernel_on, most_threads, working_channels};
pub use lists::{ListError, Lists};
pub use p2p::{P2p, p2p};
pub use settings::{Farthest, NvlsSetting, PatSetting, SettingError, Settings, Windows};
pub use symmetric::{SYMMETRIC_THREADS, SymmetricKernel, SymmetricPick, symmetric};
pub use table::{Absent, Cell, Cells, Table, has_kernel};
pub use time::{Pick, Request, expected, pick};
pub use version::{UnknownVersion, Version};
