//! Prediction of NCCL's algorithm, protocol, channels, threads and chunk, by version.
//!
//! The rules are those of NCCL's source (files are named in each module), checked against tables and choices that NCCL
//! logged (tests/tests/nccl). The inputs of a decision are in [`Communicator`], the estimates of each algorithm and
//! protocol in [`CostTable`], and the choice with the minimum expected time is made by [`pick`]. The number of channels of
//! a communicator is [`Communicator::channels`], from the rings and trees that the topology search finds ([`graph`]).
//! Module `kernel` has the number that a call uses.

mod channel_graph;
mod communicator;
mod constants;
pub mod graph;
mod group;
mod index;
mod kernel;
mod lists;
mod nvls_shape;
mod p2p;
mod settings;
mod symmetric;
mod table;
mod time;
mod version;

pub use channel_graph::{ChannelPaths, Graph, Graphs, Pattern};
pub use communicator::{Communicator, Cpu, Nic, NicDistance};
pub use group::{CallChoice, ChannelKind, ChannelPart, ChannelRange, GroupCall, Placement, joint_choices, place};
pub use index::{Algo, AlgoProto, Function, Proto};
pub use kernel::{Kernel, kernel, kernel_with_max_channels, max_threads, working_channels};
pub use lists::{ListError, Lists};
pub use nvls_shape::{MAX_CHANNELS, NvlsShape};
pub use p2p::{P2p, p2p};
pub use settings::{CollNetSetting, LinkDistance, Msccl, NvlsSetting, PatSetting, SettingError, Settings, Windows};
pub use symmetric::{SYMMETRIC_THREADS, SymmetricKernel, SymmetricPick, pick_symmetric};
pub use table::{Cell, Cells, CostTable, Unavailable, has_kernel};
pub use time::{Pick, Request, expected_time, pick};
pub use version::{NcclVersion, UnknownNcclVersion};

pub(crate) use group::min_channel_traffic;
pub(crate) use kernel::{channels_with_work, justified_channels};
pub(crate) use p2p::{ChannelLimits, PeerChannels, SendHosts, bytes_per_peer};
pub(crate) use time::pick_group_call;
pub(crate) use version::{ChannelSplit, SendParts};
