//! Rules of Open MPI's `tuned` component (`coll_tuned_dynamic_rules_filename`), in both of its formats.
//!
//! The classic format is a list of numbers with `#` comments: the number of collectives; for each its id and number of
//! communicator sizes; for each of those the size and the number of message sizes; for each of those the smallest size
//! in bytes, the algorithm, the fan-out and the segment size. The first message size must be 0. Open MPI 4.1 and 5.0
//! use the rules of the largest communicator size in the file that does not exceed the actual number of ranks.
//!
//! Open MPI 6.0 also reads JSON, with lower and upper limits for ranks and bytes, and the distribution of ranks over
//! hosts. The first communicator and the first rule that match win.
//!
//! Sources: `ompi/mca/coll/tuned/coll_tuned_dynamic_file.c` and `coll_tuned_dynamic_rules.c` (BSD-3-Clause-Open-MPI);
//! ids from `ompi/mca/coll/base/coll_base_functions.h`; algorithms as listed by `ompi_info` of 4.1.4. Sizes are those
//! of the whole buffer for all collectives written here (`coll_tuned_decision_dynamic.c`), as in nccl-tests.

mod classic;
mod findings;
mod from_plan;
mod json;
mod names;

pub use classic::{read as read_classic, write as write_classic};
pub use findings::findings;
pub use from_plan::ConvertedRules;
pub use json::{read as read_json, write as write_json};
pub use names::Routine;

use fabricast_topologies::Bytes;
use fabricast_topologies::variants::variants;
use strum::{EnumCount, VariantArray};

/// Rules file: rules of several collectives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Comment lines without their mark; JSON has none.
    pub comments: Vec<String>,
    /// Communicator rules by collective.
    pub routines: Vec<(Routine, Vec<Communicator>)>,
}

/// Rules for a range of communicator sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Communicator {
    /// Smallest number of ranks, inclusive.
    pub min_ranks: u32,
    /// Largest number of ranks, inclusive; `u32::MAX` for no limit.
    pub max_ranks: u32,
    /// Required distribution of the ranks over hosts.
    pub distribution: Distribution,
    /// Rules in ascending order of size in classic files; in JSON, in file order.
    pub rules: Vec<Rule>,
}

/// Required distribution of a communicator's ranks over hosts (`comm_rank_distribution`); only JSON can express it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, EnumCount, VariantArray)]
pub enum Distribution {
    /// No requirement on the distribution.
    #[default]
    Any,
    /// One rank per host.
    OnePerNode,
    /// All ranks on one host.
    SingleNode,
}

impl Distribution {
    /// All distributions.
    pub const ALL: [Self; Self::COUNT] = variants();

    /// Name of the distribution in Open MPI's files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::OnePerNode => "one-per-node",
            Self::SingleNode => "single-node",
        }
    }

    fn matches(self, ranks: Ranks) -> bool {
        match self {
            Self::Any => true,
            Self::OnePerNode => ranks.hosts == ranks.ranks,
            Self::SingleNode => ranks.hosts == 1,
        }
    }
}

/// Number of ranks and hosts of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranks {
    /// Number of ranks of the communicator.
    pub ranks: u32,
    /// Number of hosts that the ranks occupy.
    pub hosts: u32,
}

/// Algorithm for a range of message sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Smallest message size, in bytes, inclusive.
    pub min_bytes: Bytes,
    /// Largest message size, in bytes, inclusive; `u64::MAX` for no limit.
    pub max_bytes: Bytes,
    /// Open MPI's number of the algorithm; 0 leaves the choice to Open MPI.
    pub algorithm: u32,
    /// Fan-in or fan-out of the algorithm's tree; 0 for the algorithm's default.
    pub fanout: u32,
    /// Segment size in bytes; 0 for no segmentation.
    pub segment: u64,
}

impl Rules {
    /// Returns the first rules of a collective that match a communicator; `None` if no rules match, so that Open MPI
    /// uses its own decision.
    #[must_use]
    pub fn communicator(&self, routine: Routine, ranks: Ranks) -> Option<&Communicator> {
        let entry = self.routines.iter().find(|(known, _)| *known == routine)?;
        entry.1.iter().find(|communicator| {
            (communicator.min_ranks..=communicator.max_ranks).contains(&ranks.ranks)
                && communicator.distribution.matches(ranks)
        })
    }

    /// Returns the rule for a call; `None` if no rule matches, so that Open MPI uses its own decision.
    #[must_use]
    pub fn find(&self, routine: Routine, ranks: Ranks, bytes: u64) -> Option<&Rule> {
        let communicator = self.communicator(routine, ranks)?;
        let rule = communicator.rules.iter().find(|rule| (rule.min_bytes.0..=rule.max_bytes.0).contains(&bytes))?;
        (rule.algorithm != 0).then_some(rule)
    }
}
