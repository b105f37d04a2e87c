//! `libnccl_tuner_fabricast.so`: a tuner plugin that NCCL loads, and that answers by a table of fabricast's.
//!
//! NCCL opens the file that `NCCL_TUNER_PLUGIN` names, takes the newest of the symbols `ncclTunerPlugin_v6`, `_v5`, `_v4` that it
//! knows ([`abi`]), makes a context for each communicator ([`border`]) and asks it before every collective. The table comes from
//! the file that an environment variable names ([`source`]); what it says for the communicator's ranks and nodes is laid out
//! flat once ([`choices`]), so that an answer ([`context`]) is a search of sorted lists: no allocation, no lock.
//!
//! A tuner must not harm the job that it is loaded into. NCCL gives up a communicator whose plugin fails to start, and a
//! collective whose plugin fails to answer, so nothing here ever fails: a file that cannot be read is told by a warning with its
//! line, and the plugin leaves every choice to NCCL, as it does for each call of which the table says nothing that NCCL could do.

pub mod abi;
pub mod border;
pub mod choices;
pub mod context;
pub mod log;
pub mod source;
