//! Collectives and algorithms of Open MPI by number and name.

use fabricast_sim::schedule::Collective;

use crate::library::mpi::Way;

/// A collective of MPI, as Open MPI numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Routine(u32);

/// Name and collective of ours, where equal blocks make it one; its algorithms from number 1 on.
type Facts = (&'static str, Option<Collective>, &'static [(&'static str, Option<Way>)]);

/// From id 0 on (COLLTYPE_T, `coll_base_functions.h`).
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
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..ROUTINES.len() as u32).map(Self)
    }

    /// By its number.
    #[must_use]
    pub fn of_id(id: u64) -> Option<Self> {
        u32::try_from(id).ok().filter(|&id| (id as usize) < ROUTINES.len()).map(Self)
    }

    /// By its name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::all().find(|one| one.name() == name)
    }

    /// That of a collective of ours; `None` where none has one.
    #[must_use]
    pub fn of(collective: Collective) -> Option<Self> {
        Self::all().find(|one| one.collective() == Some(collective))
    }

    /// Its number.
    #[must_use]
    pub fn id(self) -> u32 {
        self.0
    }

    fn facts(self) -> &'static Facts {
        ROUTINES.get(self.0 as usize).unwrap_or(&("", None, &[]))
    }

    /// Its name: `reduce_scatter_block`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.facts().0
    }

    /// The collective of ours.
    #[must_use]
    pub fn collective(self) -> Option<Collective> {
        self.facts().1
    }

    /// The names of its algorithms, from number 1 on.
    pub fn algorithms(self) -> impl Iterator<Item = &'static str> {
        self.facts().2.iter().map(|algorithm| algorithm.0)
    }

    /// The name of an algorithm; `ignore` for 0, `None` for a number that there is not.
    #[must_use]
    pub fn algorithm(self, number: u32) -> Option<&'static str> {
        match (number as usize).checked_sub(1) {
            None => Some("ignore"),
            Some(place) => self.facts().2.get(place).map(|algorithm| algorithm.0),
        }
    }

    /// The algorithms that a rule may name, in words.
    pub(super) fn expected(self) -> String {
        let known: Vec<String> = self.algorithms().zip(1..).map(|(name, number)| format!("{number} {name}")).collect();
        if known.is_empty() { "expected 0".to_owned() } else { format!("expected 0 or one of {}", known.join(", ")) }
    }

    /// The number of an algorithm by its name.
    #[must_use]
    pub fn number(self, name: &str) -> Option<u32> {
        if name == "ignore" {
            return Some(0);
        }
        self.algorithms().position(|known| known == name).map(|place| place as u32 + 1)
    }

    /// The number of a way.
    #[must_use]
    pub fn number_of(self, way: Way) -> Option<u32> {
        self.facts().2.iter().position(|known| known.1 == Some(way)).map(|place| place as u32 + 1)
    }

    /// The ways of its algorithms, with their numbers.
    pub fn ways(self) -> impl Iterator<Item = (u32, Way)> {
        self.facts().2.iter().enumerate().filter_map(|(place, known)| Some((place as u32 + 1, known.1?)))
    }
}
