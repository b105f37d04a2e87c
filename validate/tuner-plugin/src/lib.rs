//! `libnccl_tuner_fabricast.so`: an NCCL tuner plugin that selects strategies from a fabricast table.
//!
//! NCCL opens the file named by `NCCL_TUNER_PLUGIN` and uses the newest symbol that it knows of `ncclTunerPlugin_v6`,
//! `_v5` and `_v4` ([`exports`]). It creates a context per communicator ([`ffi`]) and calls it before every
//! collective. The table is read from the file named by an environment variable ([`source`]). Its rows for the
//! communicator's ranks and nodes are flattened once ([`choices`]), so that an answer ([`context`]) is a search in
//! sorted lists without allocation or locks.
//!
//! A tuner must not harm the job that loads it. NCCL aborts a communicator whose plugin fails to initialize, and a
//! collective whose plugin fails to answer, so no function here ever fails. A table that cannot be read causes a
//! warning with its line, and all choices are left to NCCL. Calls without a table entry that NCCL can run are left to
//! NCCL as well.

pub mod abi;
pub mod choices;
pub mod context;
pub mod exports;
pub mod ffi;
pub mod log;
pub mod source;
