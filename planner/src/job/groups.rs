//! Groups of ranks for each parallel dimension.

use super::layout::{Degrees, Experts, Layout};

/// Parallel dimension of a group of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dimension {
    /// Tensor parallelism: shards of the same matrices.
    Tensor,
    /// Context parallelism: parts of the same sequences.
    Context,
    /// Expert parallelism: different experts of the same layers.
    Expert,
    /// Data parallelism: replicas of the same weights. With hybrid sharding, the ranks over which one replica is
    /// sharded.
    Data,
    /// [`Self::Data`] for experts.
    ExpertData,
    /// Hybrid sharding: the same shard in different groups of [`Self::Data`].
    Replica,
    /// [`Self::Replica`] for experts.
    ExpertReplica,
    /// Pipeline parallelism: stages of the same model.
    Pipeline,
    /// First and last stage, which have a copy of the embedding each.
    Ends,
}

impl Dimension {
    /// Returns true for groups of the same shard in different replicas.
    #[must_use]
    pub fn is_of_replicas(self) -> bool {
        matches!(self, Self::Replica | Self::ExpertReplica)
    }

    /// Name for output.
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
            Self::Ends => "ends",
        }
    }
}

/// Regular pattern of the groups of a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GroupShape {
    /// Ranks of a group.
    pub size: u32,
    /// Distance between neighbouring ranks of a group.
    pub step: u32,
    /// Number of groups whose ranks interleave: they start on consecutive ranks.
    pub firsts: u32,
}

impl GroupShape {
    /// Pattern of groups that start on the first free rank each.
    fn close(size: u32, stride: u32) -> Self {
        Self { size, step: stride, firsts: stride }
    }

    /// Iterates over the first ranks of the groups among `ranks` ranks.
    pub(crate) fn begins(self, ranks: u64) -> impl Iterator<Item = u32> {
        let firsts = u64::from(self.firsts).max(1);
        let block = u64::from(self.size.saturating_sub(1)) * u64::from(self.step) + firsts;
        (0..ranks / block).flat_map(move |number| (0..firsts).map(move |first| (number * block + first) as u32))
    }

    /// Iterates over the ranks of the group that starts at `first`.
    pub(crate) fn group(self, first: u32) -> impl Iterator<Item = u32> {
        (0..self.size).map(move |number| first + number * self.step)
    }
}

/// Numbering order of the parallel dimensions, innermost first. Context and expert parallelism are inside data
/// parallelism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Order([Axis; 3]);

/// Axis of the rank numbering.
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
    /// Returns true if tensor-parallel ranks are numbered directly inside data-parallel ones.
    pub(super) fn has_tensor_inside_data(self) -> bool {
        self.0.windows(2).any(|axes| axes == [Axis::Tensor, Axis::Data])
    }

    /// Parses dimension names, innermost first: `tp`, `dp` and `pp` once each; `cp` and `ep`, if given, directly before
    /// `dp`.
    ///
    /// # Errors
    /// Description of the invalid name or order.
    pub(crate) fn parse<S: AsRef<str>>(words: &[S]) -> Result<Self, String> {
        let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
        let mut axes = Vec::new();
        for (place, &word) in words.iter().enumerate() {
            let axis = match word {
                "tp" => Axis::Tensor,
                "dp" => Axis::Data,
                "pp" => Axis::Pipeline,
                "cp" | "ep" => {
                    let rest = words.get(place + 1..).unwrap_or_default();
                    let next = rest.iter().find(|next| !matches!(**next, "cp" | "ep"));
                    if next != Some(&"dp") || rest.contains(&word) || (word == "ep" && rest.contains(&"cp")) {
                        return Err(format!("`{word}`: expected cp, then ep, right before dp"));
                    }
                    continue;
                }
                other => return Err(format!("`{other}` is none of tp, cp, ep, dp and pp")),
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
    /// Number of ranks of a group.
    #[must_use]
    pub fn size(&self, dimension: Dimension) -> u32 {
        self.shape(dimension).size
    }

    /// Returns the pattern of a dimension's groups. A data group includes context-parallel ranks, since they hold the
    /// same weights. Ranks that shard one replica are neighbours among them.
    pub(crate) fn shape(&self, dimension: Dimension) -> GroupShape {
        let Degrees { tensor, pipeline, data, expert, context, order, shard, .. } = self.degrees;
        let [copies, expert_copies] = [self.degrees.copies(), self.degrees.expert_copies()];
        let own = shard.map_or(copies, |shard| shard.min(copies)).max(1);
        // Expert replicas are split into as many groups as the replicas of the other weights.
        let of_experts = (expert_copies / (copies / own).max(1)).max(1);
        let stride = |wanted: Axis| {
            let inside = order.0.into_iter().take_while(|axis| *axis != wanted);
            inside
                .map(|axis| match axis {
                    Axis::Tensor => tensor,
                    Axis::Data => context * data,
                    Axis::Pipeline => pipeline,
                })
                .product::<u32>()
        };
        // Undivided experts are spread over tensor-parallel ranks first, which are then directly inside data
        // parallelism.
        let experts = stride(match self.degrees.experts {
            Experts::Divided => Axis::Data,
            Experts::Whole => Axis::Tensor,
        });
        let (size, step) = match dimension {
            Dimension::Tensor => (tensor, stride(Axis::Tensor)),
            Dimension::Context => (context, stride(Axis::Data)),
            Dimension::Expert => (expert, experts),
            Dimension::Data => (own, stride(Axis::Data)),
            Dimension::ExpertData => (of_experts, experts * expert),
            Dimension::Replica => (copies / own, stride(Axis::Data) * own),
            Dimension::ExpertReplica => (expert_copies / of_experts, experts * expert * of_experts),
            Dimension::Pipeline => (pipeline, stride(Axis::Pipeline)),
            Dimension::Ends if pipeline > 1 => {
                let firsts = stride(Axis::Pipeline);
                return GroupShape { size: 2, step: firsts * (pipeline - 1), firsts };
            }
            Dimension::Ends => (1, 1),
        };
        GroupShape::close(size, step)
    }

    /// Returns all groups of a dimension. Each rank is in exactly one, except for middle stages in [`Dimension::Ends`].
    #[must_use]
    pub fn groups(&self, dimension: Dimension) -> Vec<Vec<u32>> {
        let shape = self.shape(dimension);
        shape.begins(self.degrees.ranks()).map(|first| shape.group(first).collect()).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Each rank is in exactly one group of each dimension, and groups have the sizes of their degrees.
        #[test]
        fn groups_partition_the_ranks(tp in 1u32..4, pp in 1u32..4, cp in 1u32..3, ep in 1u32..3, rest in 1u32..3, shard in 1u32..4, whole in any::<bool>(), order in prop::sample::select(vec![["tp", "dp", "pp"], ["dp", "tp", "pp"], ["pp", "dp", "tp"], ["tp", "pp", "dp"]])) {
            let whole = whole && order == ["tp", "dp", "pp"];
            let order = Order::parse(&order).unwrap();
            let (data, experts) = if whole { (rest, Experts::Whole) } else { (ep * rest, Experts::Divided) };
            let tp = if whole { tp * ep } else { tp };
            let degrees = Degrees { order, tensor: tp, pipeline: pp, data, expert: ep, experts, context: cp, ..Degrees::default() };
            let divides = |copies: u32| copies.is_multiple_of(shard.min(copies));
            let shard = Some(shard).filter(|_| divides(degrees.copies()) && divides(degrees.expert_copies()));
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
            prop_assert!(pp == 1 || layout.groups(Dimension::Ends) == ends);
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
        // Undivided experts go over tensor groups first, and over context-parallel ranks before replicas.
        let whole = Layout { degrees: Degrees { experts: Experts::Whole, expert: 4, ..degrees } };
        assert_eq!(whole.groups(Dimension::Expert)[..2], [[0, 1, 2, 3], [4, 5, 6, 7]]);
        assert_eq!(whole.groups(Dimension::ExpertData)[1], [1, 5]);
        let folded = Layout { degrees: Degrees { tensor: 2, context: 2, data: 2, expert: 4, ..Degrees::default() } };
        assert_eq!(folded.groups(Dimension::Expert), [[0, 2, 4, 6], [1, 3, 5, 7]]);
        assert_eq!(folded.size(Dimension::ExpertData), 1);
    }

    #[test]
    fn order_determines_group_strides() {
        let first = |words: &[&str], dimension| {
            let order = Order::parse(words).unwrap();
            let degrees = Degrees { tensor: 2, data: 4, pipeline: 2, order, ..Degrees::default() };
            Layout { degrees }.groups(dimension).remove(0)
        };
        assert_eq!(first(&["tp", "cp", "ep", "dp", "pp"], Dimension::Data), [0, 2, 4, 6]);
        assert_eq!(first(&["dp", "tp", "pp"], Dimension::Data), [0, 1, 2, 3]);
        assert_eq!(first(&["dp", "tp", "pp"], Dimension::Tensor), [0, 4]);
        assert_eq!(first(&["pp", "tp", "dp"], Dimension::Pipeline), [0, 1]);
        assert_eq!(first(&["tp", "pp", "dp"], Dimension::Data), [0, 4, 8, 12]);
        for words in [
            &["tp", "dp"][..],
            &["tp", "dp", "pp", "tp"],
            &["tp", "cp", "pp", "dp"],
            &["tp", "ep", "cp", "dp", "pp"],
            &["xp"],
        ] {
            assert!(Order::parse(words).is_err(), "{words:?}");
        }
    }
}
