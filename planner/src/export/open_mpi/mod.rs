//! Rules of Open MPI's `tuned` component (`coll_tuned_dynamic_rules_filename`), in both of its formats.
//!
//! The classic one is numbers with `#` comments: how many collectives; for each its id, how many communicator sizes; for each
//! that size, how many message sizes; for each the least bytes, the algorithm, fan-out and segment size. The first
//! message size must be 0. Open MPI 4.1 and 5.0 take the rules of the greatest communicator size that is not above the
//! communicator's. Open MPI 6.0 reads JSON too, with both ends of ranks and bytes, and how ranks lie on hosts; the first that fits
//! counts, of communicators and of rules. Facts of
//! `ompi/mca/coll/tuned/coll_tuned_dynamic_file.c` and `coll_tuned_dynamic_rules.c` (BSD-3-Clause-Open-MPI); ids of
//! `ompi/mca/coll/base/coll_base_functions.h`, algorithms as `ompi_info` of 4.1.4 lists them. Bytes are of the whole buffer for
//! all collectives written here (`coll_tuned_decision_dynamic.c`), as nccl-tests' sizes are.

mod classic;
mod findings;
mod from_plan;
mod json;
mod names;

pub use classic::{read as read_classic, write as write_classic};
pub use findings::findings;
pub use from_plan::FromPlan;
pub use json::{read as read_json, write as write_json};
pub use names::Routine;

use fabricast_topologies::Bytes;

/// Rules of several collectives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Comment lines, without their mark; JSON has none.
    pub comments: Vec<String>,
    /// By collective.
    pub routines: Vec<(Routine, Vec<Communicator>)>,
}

/// Rules for communicators of a size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Communicator {
    /// Least ranks.
    pub min_ranks: u32,
    /// Most ranks.
    pub max_ranks: u32,
    /// How the ranks lie on hosts.
    pub distribution: Distribution,
    /// By size, rising.
    pub rules: Vec<Rule>,
}

/// How the ranks of a communicator must lie on hosts (`comm_rank_distribution`); only JSON can ask for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Distribution {
    /// Anyhow.
    #[default]
    Any,
    /// No two on a host.
    OnePerNode,
    /// All on one host.
    SingleNode,
}

impl Distribution {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Any, Self::OnePerNode, Self::SingleNode];

    /// Open MPI's word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::OnePerNode => "one-per-node",
            Self::SingleNode => "single-node",
        }
    }

    fn is_of(self, ranks: Ranks) -> bool {
        match self {
            Self::Any => true,
            Self::OnePerNode => ranks.hosts == ranks.ranks,
            Self::SingleNode => ranks.hosts == 1,
        }
    }
}

/// The ranks of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranks {
    /// How many.
    pub ranks: u32,
    /// On how many hosts.
    pub hosts: u32,
}

/// What is taken from a size on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Least size.
    pub min_bytes: Bytes,
    /// Greatest size.
    pub max_bytes: Bytes,
    /// The algorithm's number; 0 leaves it to Open MPI.
    pub algorithm: u32,
    /// Fan-in or fan-out; 0 is the algorithm's own.
    pub fanout: u32,
    /// Bytes of a segment; 0 does not cut.
    pub segment: u64,
}

impl Rules {
    /// The rules for a communicator: the first that fit it; `None` where Open MPI decides by itself.
    #[must_use]
    pub fn communicator(&self, routine: Routine, ranks: Ranks) -> Option<&Communicator> {
        let of = self.routines.iter().find(|(known, _)| *known == routine)?;
        of.1.iter().find(|one| (one.min_ranks..=one.max_ranks).contains(&ranks.ranks) && one.distribution.is_of(ranks))
    }

    /// The rule for a call; `None` where Open MPI decides by itself.
    #[must_use]
    pub fn find(&self, routine: Routine, ranks: Ranks, bytes: u64) -> Option<&Rule> {
        let communicator = self.communicator(routine, ranks)?;
        let rule = communicator.rules.iter().find(|rule| (rule.min_bytes.0..=rule.max_bytes.0).contains(&bytes))?;
        (rule.algorithm != 0).then_some(rule)
    }
}
