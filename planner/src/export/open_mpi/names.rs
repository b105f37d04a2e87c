//! Open MPI's numbers and names of collectives and algorithms.

use fabricast_sim::schedule::Collective;

use crate::library::mpi::Way;

/// MPI collective, by Open MPI's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Routine(u32);

/// Name; fabricast's collective, if it is one with equal blocks; and the algorithms, from number 1 on.
type Facts = (&'static str, Option<Collective>, &'static [(&'static str, Option<Way>)]);

/// Collectives from id 0 on (COLLTYPE_T, `coll_base_functions.h`).
const ROUTINES: [Facts; 22] = [
    (
        "allgather",
        Some(Collective::AllGather),
        &[
            ("linear", Some(Way::Linear)),
            ("bruck", Some(Way::Bruck)),
            ("recursive_doubling", Some(Way::RecursiveDoubling)),
            ("ring", Some(Way::Ring)),
            ("neighbor", Some(Way::NeighbourExchange)),
            ("two_proc", Some(Way::TwoProcesses)),
        ],
    ),
    ("allgatherv", None, &[("default", None), ("bruck", None), ("ring", None), ("neighbor", None), ("two_proc", None)]),
    (
        "allreduce",
        Some(Collective::AllReduce),
        &[
            ("basic_linear", None),
            ("nonoverlapping", Some(Way::ReduceThenBroadcast)),
            ("recursive_doubling", Some(Way::RecursiveDoubling)),
            ("ring", Some(Way::Ring)),
            ("segmented_ring", Some(Way::SegmentedRing)),
            ("rabenseifner", Some(Way::Rabenseifner)),
        ],
    ),
    (
        "alltoall",
        Some(Collective::AllToAll),
        &[
            ("linear", Some(Way::Linear)),
            ("pairwise", Some(Way::Pairwise)),
            ("modified_bruck", Some(Way::Bruck)),
            ("linear_sync", Some(Way::LinearSync)),
            ("two_proc", Some(Way::TwoProcesses)),
        ],
    ),
    ("alltoallv", None, &[("basic_linear", Some(Way::Linear)), ("pairwise", Some(Way::Pairwise))]),
    ("alltoallw", None, &[]),
    (
        "barrier",
        None,
        &[
            ("linear", None),
            ("double_ring", None),
            ("recursive_doubling", None),
            ("bruck", None),
            ("two_proc", None),
            ("tree", None),
        ],
    ),
    (
        "bcast",
        Some(Collective::Broadcast),
        &[
            ("basic_linear", Some(Way::Linear)),
            ("chain", Some(Way::Chain)),
            ("pipeline", Some(Way::Pipeline)),
            ("split_binary_tree", Some(Way::SplitBinaryTree)),
            ("binary_tree", Some(Way::BinaryTree)),
            ("binomial", Some(Way::Binomial)),
            ("knomial", Some(Way::Knomial)),
            ("scatter_allgather", Some(Way::ScatterAllGather)),
            ("scatter_allgather_ring", None),
        ],
    ),
    ("exscan", None, &[("linear", None), ("recursive_doubling", None)]),
    (
        "gather",
        Some(Collective::Gather),
        &[("linear", Some(Way::Linear)), ("binomial", Some(Way::Binomial)), ("linear_sync", Some(Way::LinearSync))],
    ),
    ("gatherv", None, &[]),
    (
        "reduce",
        Some(Collective::Reduce),
        &[
            ("linear", Some(Way::Linear)),
            ("chain", Some(Way::Chain)),
            ("pipeline", Some(Way::Pipeline)),
            ("binary", Some(Way::BinaryTree)),
            ("binomial", Some(Way::Binomial)),
            ("in-order_binary", Some(Way::InOrderBinaryTree)),
            ("rabenseifner", Some(Way::Rabenseifner)),
        ],
    ),
    (
        "reduce_scatter",
        None,
        &[("non-overlapping", None), ("recursive_halving", None), ("ring", None), ("butterfly", None)],
    ),
    (
        "reduce_scatter_block",
        Some(Collective::ReduceScatter),
        &[
            ("basic_linear", Some(Way::ReduceThenScatter)),
            ("recursive_doubling", Some(Way::RecursiveDoubling)),
            ("recursive_halving", Some(Way::RecursiveHalving)),
            ("butterfly", Some(Way::Butterfly)),
        ],
    ),
    ("scan", None, &[("linear", None), ("recursive_doubling", None)]),
    (
        "scatter",
        Some(Collective::Scatter),
        &[
            ("linear", Some(Way::Linear)),
            ("binomial", Some(Way::Binomial)),
            ("linear_nb", Some(Way::LinearNonblocking)),
        ],
    ),
    ("scatterv", None, &[]),
    ("neighbor_allgather", None, &[]),
    ("neighbor_allgatherv", None, &[]),
    ("neighbor_alltoall", None, &[]),
    ("neighbor_alltoallv", None, &[]),
    ("neighbor_alltoallw", None, &[]),
];

impl Routine {
    /// Iterates over all collectives.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..ROUTINES.len() as u32).map(Self)
    }

    /// Returns the collective with an id.
    #[must_use]
    pub fn of_id(id: u64) -> Option<Self> {
        u32::try_from(id).ok().filter(|&id| (id as usize) < ROUTINES.len()).map(Self)
    }

    /// Returns the collective with a name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::all().find(|one| one.name() == name)
    }

    /// Returns the counterpart of a fabricast collective; `None` if there is none.
    #[must_use]
    pub fn of(collective: Collective) -> Option<Self> {
        Self::all().find(|one| one.collective() == Some(collective))
    }

    /// The id.
    #[must_use]
    pub fn id(self) -> u32 {
        self.0
    }

    fn facts(self) -> &'static Facts {
        ROUTINES.get(self.0 as usize).unwrap_or(&("", None, &[]))
    }

    /// The name: `reduce_scatter_block`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.facts().0
    }

    /// The counterpart in fabricast, if there is one.
    #[must_use]
    pub fn collective(self) -> Option<Collective> {
        self.facts().1
    }

    /// Iterates over the names of its algorithms, from number 1 on.
    pub fn algorithms(self) -> impl Iterator<Item = &'static str> {
        self.facts().2.iter().map(|algorithm| algorithm.0)
    }

    /// Returns the name of an algorithm: `ignore` for 0, `None` for an unknown number.
    #[must_use]
    pub fn algorithm(self, number: u32) -> Option<&'static str> {
        match (number as usize).checked_sub(1) {
            None => Some("ignore"),
            Some(place) => self.facts().2.get(place).map(|algorithm| algorithm.0),
        }
    }

    /// Returns the algorithms that a rule may name, as text for errors.
    pub(super) fn expected(self) -> String {
        let known: Vec<String> = self.algorithms().zip(1..).map(|(name, number)| format!("{number} {name}")).collect();
        if known.is_empty() { "expected 0".to_owned() } else { format!("expected 0 or one of {}", known.join(", ")) }
    }

    /// Returns the number of an algorithm, given its name.
    #[must_use]
    pub fn number(self, name: &str) -> Option<u32> {
        if name == "ignore" {
            return Some(0);
        }
        self.algorithms().position(|known| known == name).map(|place| place as u32 + 1)
    }

    /// Returns the number of an algorithm of fabricast's Open MPI model.
    #[must_use]
    pub fn number_of(self, way: Way) -> Option<u32> {
        self.facts().2.iter().position(|known| known.1 == Some(way)).map(|place| place as u32 + 1)
    }

    /// Iterates over the algorithms of fabricast's Open MPI model, with their numbers.
    pub fn ways(self) -> impl Iterator<Item = (u32, Way)> {
        self.facts().2.iter().enumerate().filter_map(|(place, known)| Some((place as u32 + 1, known.1?)))
    }
}
