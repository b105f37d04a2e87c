//! `libnccl_tuner_fabricast.so`: an NCCL tuner plugin that selects strategies from a fabricast table.
//!
//! NCCL opens the file that `NCCL_TUNER_PLUGIN` names and uses the newest of the symbols `ncclTunerPlugin_v6`, `_v5`
//! and `_v4` that it supports ([`exports`]). It creates a context per communicator and queries the plugin before every
//! collective ([`ffi`]). The table is read from the file named by an environment variable ([`source`]). The rows for
//! the communicator's ranks and nodes are converted to sorted lists once ([`choices`]), so that an answer ([`context`])
//! is a search in these lists without allocation or locks.
//!
//! A tuner must not disturb the job that loads it. NCCL aborts a communicator if its plugin fails to initialize, and a
//! collective if the plugin fails to answer, so no function of this plugin returns an error. If the table cannot be
//! read, a warning with the line is logged, and NCCL makes all choices. NCCL also makes the choice for calls without a
//! table entry that it can run.

pub mod abi;
pub mod choices;
pub mod context;
pub mod exports;
pub mod ffi;
pub mod log;
pub mod source;
