//! Slots of a collection, in which each rank adds the sums of its children one after the other.

use super::forest::PackedTree;

/// Slots in which ranks send their sums to their parents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CollectionSlots {
    /// Number of slots.
    pub count: u32,
    /// Slot in which each rank sends; `count` for the root. Ranks send as late as the slots permit, so that few messages
    /// wait at a rank for the sums of its other children.
    pub sends: Vec<u32>,
    /// Children of each rank, in the order in which it adds their sums.
    pub children: Vec<Vec<u32>>,
}

impl CollectionSlots {
    /// Assigns slots to the edges of a tree: each rank adds the sums of its children as they become ready, one per slot.
    pub(crate) fn new(tree: &PackedTree) -> Self {
        let ranks = tree.parents.len();
        let order = tree.order();
        let mut children = tree.children();
        // Slot in which the sum of a rank is complete.
        let mut ready = vec![0u32; ranks];
        let distance = |rank: u32| (rank + ranks as u32 - tree.root) % ranks as u32;
        for &parent in order.iter().rev() {
            let of_parent = &mut children[parent as usize];
            of_parent.sort_by_key(|&child| (ready[child as usize], distance(child)));
            ready[parent as usize] = of_parent.iter().fold(0, |slot, &child| slot.max(ready[child as usize]) + 1);
        }
        let count = ready[tree.root as usize];
        let mut sends = vec![0; ranks];
        sends[tree.root as usize] = count;
        for &parent in &order {
            for (&child, later) in children[parent as usize].iter().rev().zip(1..) {
                sends[child as usize] = sends[parent as usize] - later;
            }
        }
        Self { count, sends, children }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(parents: Vec<u32>) -> CollectionSlots {
        CollectionSlots::new(&PackedTree { root: 0, units: 1, parents })
    }

    #[test]
    fn a_star_adds_one_child_per_slot() {
        let star = slots(vec![0; 9]);
        assert_eq!((star.count, star.sends), (8, vec![8, 0, 1, 2, 3, 4, 5, 6, 7]));
    }

    #[test]
    fn a_chain_adds_one_child_per_slot() {
        let chain = slots(vec![0, 0, 1, 2, 3]);
        assert_eq!((chain.count, chain.sends), (4, vec![4, 3, 2, 1, 0]));
    }

    /// In a binomial tree of 2^k ranks, the ranks that hold sums halve in every slot.
    #[test]
    fn a_binomial_tree_needs_logarithmically_many_slots() {
        let parents = (0..16u32).map(|rank| rank & rank.saturating_sub(1)).collect();
        let binomial = slots(parents);
        assert_eq!(binomial.count, 4);
        for slot in 0..4 {
            assert_eq!(binomial.sends.iter().filter(|&&sends| sends == slot).count(), 8 >> slot);
        }
    }
}
