//! Groups of ranks for each parallel dimension.

use fabricast_topologies::variants::variants;
use strum::{EnumCount, VariantArray};

use super::layout::{Degrees, ExpertSharding, Layout};

/// Parallel dimension of a group of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EnumCount, VariantArray)]
pub enum Dimension {
    /// Tensor parallelism: ranks with different shards of the same matrices.
    Tensor,
    /// Context parallelism: ranks with different parts of the same sequences.
    Context,
    /// Expert parallelism: ranks with different experts of the same layers.
    Expert,
    /// Data parallelism: replicas of the same weights. With hybrid sharding, the ranks over which one replica is
    /// sharded.
    Data,
    /// Data parallelism for the weights of experts, in all other respects as [`Self::Data`].
    ExpertData,
    /// Hybrid sharding: ranks that have the same shard in different groups of [`Self::Data`].
    Replica,
    /// Hybrid sharding for the weights of experts, in all other respects as [`Self::Replica`].
    ExpertReplica,
    /// Pipeline parallelism: ranks with different stages of the same model.
    Pipeline,
    /// The first and the last pipeline stage, each of which has a copy of the embedding.
    FirstAndLastStage,
}

impl Dimension {
    /// All dimensions.
    const ALL: [Self; Self::COUNT] = variants();

    /// Returns the dimension with a [name](Self::name).
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dimension| dimension.name() == name)
    }

    /// Returns true for dimensions whose groups consist of ranks with the same shard in different replicas.
    #[must_use]
    pub fn is_replica_group(self) -> bool {
        matches!(self, Self::Replica | Self::ExpertReplica)
    }

    /// Returns the name of the dimension in JSON output and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tensor => "tensor",
            Self::Context => "context",
            Self::Expert => "expert",
            Self::Data => "data",
            Self::ExpertData => "expert data",
            Self::Replica => "replica",
            Self::ExpertReplica => "expert replica",
            Self::Pipeline => "pipeline",
            Self::FirstAndLastStage => "ends",
        }
    }
}

/// Regular pattern of the groups of a dimension: equal sizes and equal distances between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupShape {
    /// Number of ranks of a group.
    pub size: u32,
    /// Distance between neighbouring ranks of a group, in rank numbers.
    pub stride: u32,
    /// Number of groups whose ranks interleave: they start on consecutive ranks.
    pub interleaved_groups: u32,
}

impl GroupShape {
    /// Creates the pattern of interleaved groups, each of which starts at the first rank that belongs to no earlier
    /// group.
    fn strided(size: u32, stride: u32) -> Self {
        Self { size, stride, interleaved_groups: stride }
    }

    /// Iterates over the first ranks of the groups among `ranks` ranks.
    pub fn first_ranks(self, ranks: u64) -> impl Iterator<Item = u32> {
        let firsts = u64::from(self.interleaved_groups).max(1);
        let block = u64::from(self.size.saturating_sub(1)) * u64::from(self.stride) + firsts;
        (0..ranks / block).flat_map(move |number| (0..firsts).map(move |first| (number * block + first) as u32))
    }

    /// Iterates over the ranks of the group that starts at `first`.
    pub fn group(self, first: u32) -> impl Iterator<Item = u32> {
        (0..self.size).map(move |number| first + number * self.stride)
    }
}

/// Order in which the parallel dimensions are numbered, innermost first. Context and expert parallelism are part of
/// data parallelism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Order([Axis; 3]);

/// Axis along which ranks are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Axis {
    Tensor,
    Data,
    Pipeline,
}

impl Default for Order {
    fn default() -> Self {
        Self([Axis::Tensor, Axis::Data, Axis::Pipeline])
    }
}

impl Order {
    /// Returns true if tensor-parallel ranks are numbered immediately inside data-parallel ranks.
    pub(super) fn has_tensor_inside_data(self) -> bool {
        self.0.windows(2).any(|axes| axes == [Axis::Tensor, Axis::Data])
    }

    /// Parses dimension names, innermost first: `tp`, `dp` and `pp` once each; `cp` and `ep`, if given, directly before
    /// `dp`.
    ///
    /// # Errors
    /// Description of the invalid name or order.
    pub(crate) fn parse<S: AsRef<str>>(names: &[S]) -> Result<Self, String> {
        let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        let mut axes = Vec::new();
        for (index, &name) in names.iter().enumerate() {
            let axis = match name {
                "tp" => Axis::Tensor,
                "dp" => Axis::Data,
                "pp" => Axis::Pipeline,
                "cp" | "ep" => {
                    let remaining = names.get(index + 1..).unwrap_or_default();
                    let next = remaining.iter().find(|next| !matches!(**next, "cp" | "ep"));
                    if next != Some(&"dp") || remaining.contains(&name) || (name == "ep" && remaining.contains(&"cp")) {
                        return Err(format!("`{name}`: expected cp, then ep, right before dp"));
                    }
                    continue;
                }
                unknown => return Err(format!("`{unknown}` is none of tp, cp, ep, dp and pp")),
            };
            axes.push(axis);
        }
        let mut sorted = axes.clone();
        sorted.sort_unstable();
        match (sorted == Self::default().0, <[Axis; 3]>::try_from(axes)) {
            (true, Ok(axes)) => Ok(Self(axes)),
            _ => Err("expected tp, dp and pp, each once".to_owned()),
        }
    }
}

impl Layout {
    /// Returns the number of ranks of each group of a dimension.
    #[must_use]
    pub fn size(&self, dimension: Dimension) -> u32 {
        self.shape(dimension).size
    }

    /// Returns the pattern of a dimension's groups. A data-parallel group includes context-parallel ranks, since they
    /// have the same weights. Ranks that shard one replica are neighbours in the group.
    pub fn shape(&self, dimension: Dimension) -> GroupShape {
        let Degrees { tensor, pipeline, data, expert, context, order, shard, .. } = self.degrees;
        let [replicas, expert_replicas] = [self.degrees.weight_replicas(), self.degrees.expert_replicas()];
        let shard_ranks = shard.map_or(replicas, |shard| shard.min(replicas)).max(1);
        // Expert replicas are divided into as many groups as the replicas of other weights.
        let expert_shard_ranks = (expert_replicas / (replicas / shard_ranks).max(1)).max(1);
        let stride = |target: Axis| {
            let inside = order.0.into_iter().take_while(|axis| *axis != target);
            inside
                .map(|axis| match axis {
                    Axis::Tensor => tensor,
                    Axis::Data => context * data,
                    Axis::Pipeline => pipeline,
                })
                .product::<u32>()
        };
        // Undivided experts are distributed over tensor-parallel ranks first, which are then immediately inside
        // data-parallel ranks.
        let experts = stride(match self.degrees.experts {
            ExpertSharding::Divided => Axis::Data,
            ExpertSharding::Whole => Axis::Tensor,
        });
        let (size, step) = match dimension {
            Dimension::Tensor => (tensor, stride(Axis::Tensor)),
            Dimension::Context => (context, stride(Axis::Data)),
            Dimension::Expert => (expert, experts),
            Dimension::Data => (shard_ranks, stride(Axis::Data)),
            Dimension::ExpertData => (expert_shard_ranks, experts * expert),
            Dimension::Replica => (replicas / shard_ranks, stride(Axis::Data) * shard_ranks),
            Dimension::ExpertReplica => (expert_replicas / expert_shard_ranks, experts * expert * expert_shard_ranks),
            Dimension::Pipeline => (pipeline, stride(Axis::Pipeline)),
            Dimension::FirstAndLastStage if pipeline > 1 => {
                let firsts = stride(Axis::Pipeline);
                return GroupShape { size: 2, stride: firsts * (pipeline - 1), interleaved_groups: firsts };
            }
            Dimension::FirstAndLastStage => (1, 1),
        };
        GroupShape::strided(size, step)
    }

    /// Returns all groups of a dimension. Each rank belongs to exactly one group, except for middle stages in
    /// [`Dimension::FirstAndLastStage`], which belong to none.
    #[must_use]
    pub fn groups(&self, dimension: Dimension) -> Vec<Vec<u32>> {
        let shape = self.shape(dimension);
        shape.first_ranks(self.degrees.ranks()).map(|first| shape.group(first).collect()).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Each rank belongs to exactly one group of each dimension, and groups have the sizes of their degrees.
        #[test]
        fn groups_partition_the_ranks(tp in 1u32..4, pp in 1u32..4, cp in 1u32..3, ep in 1u32..3, data_factor in 1u32..3, shard in 1u32..4, undivided in any::<bool>(), order in prop::sample::select(vec![["tp", "dp", "pp"], ["dp", "tp", "pp"], ["pp", "dp", "tp"], ["tp", "pp", "dp"]])) {
            let undivided = undivided && order == ["tp", "dp", "pp"];
            let order = Order::parse(&order).unwrap();
            let (data, experts) = if undivided { (data_factor, ExpertSharding::Whole) } else { (ep * data_factor, ExpertSharding::Divided) };
            let tp = if undivided { tp * ep } else { tp };
            let degrees = Degrees { order, tensor: tp, pipeline: pp, data, expert: ep, experts, context: cp, ..Degrees::default() };
            let divides = |replicas: u32| replicas.is_multiple_of(shard.min(replicas));
            let shard = Some(shard).filter(|_| divides(degrees.weight_replicas()) && divides(degrees.expert_replicas()));
            let degrees = Degrees { shard, ..degrees };
            let layout = Layout { degrees };
            for dimension in [Dimension::Tensor, Dimension::Context, Dimension::Expert, Dimension::Data, Dimension::ExpertData, Dimension::Replica, Dimension::ExpertReplica, Dimension::Pipeline] {
                let groups = layout.groups(dimension);
                prop_assert!(groups.iter().all(|group| group.len() as u32 == layout.size(dimension)));
                let mut ranks: Vec<u32> = groups.into_iter().flatten().collect();
                ranks.sort_unstable();
                prop_assert_eq!(ranks, (0..degrees.ranks() as u32).collect::<Vec<_>>());
            }
            // First and last stage of each pipeline, in order.
            let ends: Vec<Vec<u32>> = layout.groups(Dimension::Pipeline).iter().map(|stages| vec![stages[0], *stages.last().unwrap()]).collect();
            prop_assert!(pp == 1 || layout.groups(Dimension::FirstAndLastStage) == ends);
        }
    }

    #[test]
    fn tensor_ranks_are_adjacent_and_stages_far_apart() {
        let degrees = Degrees { tensor: 2, data: 4, expert: 2, pipeline: 2, ..Degrees::default() };
        let layout = Layout { degrees };
        let first = |dimension| layout.groups(dimension).remove(0);
        assert_eq!(first(Dimension::Tensor), [0, 1]);
        assert_eq!(first(Dimension::Expert), [0, 2]);
        assert_eq!(first(Dimension::Data), [0, 2, 4, 6]);
        assert_eq!(first(Dimension::ExpertData), [0, 4]);
        assert_eq!(first(Dimension::Pipeline), [0, 8]);
        // Undivided experts are distributed over tensor-parallel groups first, and over context-parallel ranks before
        // replicas.
        let undivided = Layout { degrees: Degrees { experts: ExpertSharding::Whole, expert: 4, ..degrees } };
        assert_eq!(undivided.groups(Dimension::Expert)[..2], [[0, 1, 2, 3], [4, 5, 6, 7]]);
        assert_eq!(undivided.groups(Dimension::ExpertData)[1], [1, 5]);
        let folded = Layout { degrees: Degrees { tensor: 2, context: 2, data: 2, expert: 4, ..Degrees::default() } };
        assert_eq!(folded.groups(Dimension::Expert), [[0, 2, 4, 6], [1, 3, 5, 7]]);
        assert_eq!(folded.size(Dimension::ExpertData), 1);
    }

    #[test]
    fn order_determines_group_strides() {
        let first = |names: &[&str], dimension| {
            let order = Order::parse(names).unwrap();
            let degrees = Degrees { tensor: 2, data: 4, pipeline: 2, order, ..Degrees::default() };
            Layout { degrees }.groups(dimension).remove(0)
        };
        assert_eq!(first(&["tp", "cp", "ep", "dp", "pp"], Dimension::Data), [0, 2, 4, 6]);
        assert_eq!(first(&["dp", "tp", "pp"], Dimension::Data), [0, 1, 2, 3]);
        assert_eq!(first(&["dp", "tp", "pp"], Dimension::Tensor), [0, 4]);
        assert_eq!(first(&["pp", "tp", "dp"], Dimension::Pipeline), [0, 1]);
        assert_eq!(first(&["tp", "pp", "dp"], Dimension::Data), [0, 4, 8, 12]);
        for names in [
            &["tp", "dp"][..],
            &["tp", "dp", "pp", "tp"],
            &["tp", "cp", "pp", "dp"],
            &["tp", "ep", "cp", "dp", "pp"],
            &["xp"],
        ] {
            assert!(Order::parse(names).is_err(), "{names:?}");
        }
    }
}
