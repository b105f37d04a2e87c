//! Open MPI's numbers and names of collectives and algorithms.

use fabricast_sim::schedule::Collective;

use fabricast_libraries::mpi::OpenMpiAlgorithm;

/// MPI collective, by Open MPI's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Routine(u32);

/// Open MPI's name of a collective, fabricast's counterpart if both define blocks in the same way, and the names of the
/// algorithms from number 1 on, each with its counterpart in fabricast's Open MPI model.
type CollectiveInfo = (&'static str, Option<Collective>, &'static [(&'static str, Option<OpenMpiAlgorithm>)]);

/// Open MPI's collectives, indexed by id from 0 on (`COLLTYPE_T`, `coll_base_functions.h`).
const ROUTINES: [CollectiveInfo; 22] = [
    (
        "allgather",
        Some(Collective::AllGather),
        &[
            ("linear", Some(OpenMpiAlgorithm::Linear)),
            ("bruck", Some(OpenMpiAlgorithm::Bruck)),
            ("recursive_doubling", Some(OpenMpiAlgorithm::RecursiveDoubling)),
            ("ring", Some(OpenMpiAlgorithm::Ring)),
            ("neighbor", Some(OpenMpiAlgorithm::NeighbourExchange)),
            ("two_proc", Some(OpenMpiAlgorithm::TwoProcesses)),
        ],
    ),
    ("allgatherv", None, &[("default", None), ("bruck", None), ("ring", None), ("neighbor", None), ("two_proc", None)]),
    (
        "allreduce",
        Some(Collective::AllReduce),
        &[
            ("basic_linear", None),
            ("nonoverlapping", Some(OpenMpiAlgorithm::ReduceThenBroadcast)),
            ("recursive_doubling", Some(OpenMpiAlgorithm::RecursiveDoubling)),
            ("ring", Some(OpenMpiAlgorithm::Ring)),
            ("segmented_ring", Some(OpenMpiAlgorithm::SegmentedRing)),
            ("rabenseifner", Some(OpenMpiAlgorithm::Rabenseifner)),
        ],
    ),
    (
        "alltoall",
        Some(Collective::AllToAll),
        &[
            ("linear", Some(OpenMpiAlgorithm::Linear)),
            ("pairwise", Some(OpenMpiAlgorithm::Pairwise)),
            ("modified_bruck", Some(OpenMpiAlgorithm::Bruck)),
            ("linear_sync", Some(OpenMpiAlgorithm::LinearSync)),
            ("two_proc", Some(OpenMpiAlgorithm::TwoProcesses)),
        ],
    ),
    (
        "alltoallv",
        None,
        &[("basic_linear", Some(OpenMpiAlgorithm::Linear)), ("pairwise", Some(OpenMpiAlgorithm::Pairwise))],
    ),
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
            ("basic_linear", Some(OpenMpiAlgorithm::Linear)),
            ("chain", Some(OpenMpiAlgorithm::Chain)),
            ("pipeline", Some(OpenMpiAlgorithm::Pipeline)),
            ("split_binary_tree", Some(OpenMpiAlgorithm::SplitBinaryTree)),
            ("binary_tree", Some(OpenMpiAlgorithm::BinaryTree)),
            ("binomial", Some(OpenMpiAlgorithm::Binomial)),
            ("knomial", Some(OpenMpiAlgorithm::Knomial)),
            ("scatter_allgather", Some(OpenMpiAlgorithm::ScatterAllGather)),
            ("scatter_allgather_ring", None),
        ],
    ),
    ("exscan", None, &[("linear", None), ("recursive_doubling", None)]),
    (
        "gather",
        Some(Collective::Gather),
        &[
            ("linear", Some(OpenMpiAlgorithm::Linear)),
            ("binomial", Some(OpenMpiAlgorithm::Binomial)),
            ("linear_sync", Some(OpenMpiAlgorithm::LinearSync)),
        ],
    ),
    ("gatherv", None, &[]),
    (
        "reduce",
        Some(Collective::Reduce),
        &[
            ("linear", Some(OpenMpiAlgorithm::Linear)),
            ("chain", Some(OpenMpiAlgorithm::Chain)),
            ("pipeline", Some(OpenMpiAlgorithm::Pipeline)),
            ("binary", Some(OpenMpiAlgorithm::BinaryTree)),
            ("binomial", Some(OpenMpiAlgorithm::Binomial)),
            ("in-order_binary", Some(OpenMpiAlgorithm::InOrderBinaryTree)),
            ("rabenseifner", Some(OpenMpiAlgorithm::Rabenseifner)),
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
            ("basic_linear", Some(OpenMpiAlgorithm::ReduceThenScatter)),
            ("recursive_doubling", Some(OpenMpiAlgorithm::RecursiveDoubling)),
            ("recursive_halving", Some(OpenMpiAlgorithm::RecursiveHalving)),
            ("butterfly", Some(OpenMpiAlgorithm::Butterfly)),
        ],
    ),
    ("scan", None, &[("linear", None), ("recursive_doubling", None)]),
    (
        "scatter",
        Some(Collective::Scatter),
        &[
            ("linear", Some(OpenMpiAlgorithm::Linear)),
            ("binomial", Some(OpenMpiAlgorithm::Binomial)),
            ("linear_nb", Some(OpenMpiAlgorithm::LinearNonblocking)),
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

    /// Returns the collective with Open MPI's id `id`; `None` if there is none.
    #[must_use]
    pub fn from_id(id: u64) -> Option<Self> {
        u32::try_from(id).ok().filter(|&id| (id as usize) < ROUTINES.len()).map(Self)
    }

    /// Returns the collective with Open MPI's name `name`; `None` if there is none.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::all().find(|routine| routine.name() == name)
    }

    /// Returns Open MPI's counterpart of a fabricast collective; `None` if there is none.
    #[must_use]
    pub fn from_collective(collective: Collective) -> Option<Self> {
        Self::all().find(|routine| routine.collective() == Some(collective))
    }

    /// Open MPI's id of the collective, from 0.
    #[must_use]
    pub fn id(self) -> u32 {
        self.0
    }

    fn info(self) -> &'static CollectiveInfo {
        ROUTINES.get(self.0 as usize).unwrap_or(&("", None, &[]))
    }

    /// Open MPI's name of the collective: `reduce_scatter_block`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.info().0
    }

    /// Counterpart of the collective in fabricast; `None` if there is none.
    #[must_use]
    pub fn collective(self) -> Option<Collective> {
        self.info().1
    }

    /// Iterates over the names of the collective's algorithms, from number 1 on.
    pub fn algorithms(self) -> impl Iterator<Item = &'static str> {
        self.info().2.iter().map(|algorithm| algorithm.0)
    }

    /// Returns the name of an algorithm: `ignore` for 0, `None` for an unknown number.
    #[must_use]
    pub fn algorithm(self, number: u32) -> Option<&'static str> {
        match (number as usize).checked_sub(1) {
            None => Some("ignore"),
            Some(index) => self.info().2.get(index).map(|algorithm| algorithm.0),
        }
    }

    /// Returns the numbers and names of the algorithms that a rule may use, as text for errors.
    pub(super) fn expected(self) -> String {
        let known: Vec<String> = self.algorithms().zip(1..).map(|(name, number)| format!("{number} {name}")).collect();
        if known.is_empty() { "expected 0".to_owned() } else { format!("expected 0 or one of {}", known.join(", ")) }
    }

    /// Returns the number of the algorithm with a name: 0 for `ignore`, `None` for an unknown name.
    #[must_use]
    pub fn number(self, name: &str) -> Option<u32> {
        if name == "ignore" {
            return Some(0);
        }
        self.algorithms().position(|known| known == name).map(|index| index as u32 + 1)
    }

    /// Returns Open MPI's number of an algorithm of fabricast's Open MPI model; `None` if this collective does not have
    /// it.
    #[must_use]
    pub fn algorithm_number(self, algorithm: OpenMpiAlgorithm) -> Option<u32> {
        self.info().2.iter().position(|known| known.1 == Some(algorithm)).map(|index| index as u32 + 1)
    }

    /// Iterates over the collective's algorithms in fabricast's Open MPI model, with Open MPI's numbers.
    pub fn modelled_algorithms(self) -> impl Iterator<Item = (u32, OpenMpiAlgorithm)> {
        self.info().2.iter().enumerate().filter_map(|(index, known)| Some((index as u32 + 1, known.1?)))
    }
}
