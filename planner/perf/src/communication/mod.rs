//! Communication cost model: completion times of calls that the groups of a layout make concurrently.
//!
//! ```text
//! exchange      call of all groups of a dimension; sm_usage: GPU resources that it uses
//! cost_model    interface: Exchange ─► time, SM usage
//! simulated     facade: RestrictedCosts ─► answers by query (cost_cache)
//!   strategy_selector   picks the fastest strategy with all groups concurrent
//!     candidate_search    candidates of one group, from `plan`
//!       timing_method       decides how a call is timed: simulation, or extrapolation from a smaller call
//!         concurrent_calls    simulation of the groups that represent all (link_sharing)
//!           placement           devices, NVLink domains and concurrent groups of ranks
//!   planned_calls       plans of single calls, as recorded jobs make them
//!   token_exchange      dispatch and combine by kernels of libraries
//! dispatcher    support of a job's kernels for dispatch and combine on a machine
//! estimated, listed   other models: first estimate, list of known times
//! sampled       interpolation between sizes of another model, for many calls of different sizes
//! ```

mod cache;
mod call_traffic;
mod calls;
mod candidate_class;
mod candidate_search;
mod concurrent_calls;
mod cost_cache;
mod cost_model;
mod dispatcher;
mod estimated;
mod exchange;
mod extrapolation;
mod host_classes;
mod link_load;
mod link_sharing;
mod listed;
mod nvlink_peers;
mod placement;
mod planned_calls;
mod sampled;
mod shared_links;
mod simulated;
mod sm_usage;
mod step_link_load;
mod strategy_selector;
mod timing_method;
mod token_exchange;

pub use calls::{CallCount, CallWithStrategy, StepCall, StepExchange, TimedCall};
pub(crate) use calls::{GroupCall, PlacedCall};
pub use candidate_search::LibraryChoiceScope;
pub use cost_model::CommunicationCostModel;
pub use dispatcher::unsupported_dispatcher;
pub(crate) use dispatcher::{JobDispatch, replaced_dispatch};
pub use estimated::EstimatedCosts;
pub use exchange::Exchange;
pub(crate) use host_classes::HostClasses;
pub use link_load::LinkLoad;
pub use listed::{ListedCall, ListedCosts};
pub(crate) use sampled::SampledCosts;
pub use simulated::{RestrictedCosts, SimulatedCosts};
pub use sm_usage::{CallExtent, SmUsage};

#[cfg(test)]
mod tests;
