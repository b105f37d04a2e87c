//! Double binary tree over hosts, each tree carrying half of the bytes of a reduction. A host is a leaf of at most one
//! tree.
//!
//! Sources: Sanders, Speck, Träff, *Two-tree algorithms for full bandwidth broadcast, reduction and scan*, Parallel
//! Computing 2009; NCCL 2.28 src/graph/trees.cc (`ncclGetBtree`, `ncclGetDtree`).

/// Neighbours of a host or rank in a binary tree: its parent with this node's index among the parent's children, and
/// its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TreeNeighbours {
    pub(super) parent: Option<(u32, usize)>,
    pub(super) children: [Option<u32>; 2],
}

/// Returns the neighbours of a host in the in-order binary tree of `hosts`: the lowest set bit of a host determines its
/// height, and host 0 is the root.
fn binary_tree(host: u32, hosts: u32) -> TreeNeighbours {
    if host == 0 {
        let child = (hosts > 1).then(|| hosts.next_power_of_two() / 2);
        return TreeNeighbours { parent: None, children: [None, child] };
    }
    let bit = host & host.wrapping_neg();
    let above = (host ^ bit) | (bit << 1);
    let parent = if above >= hosts { host ^ bit } else { above };
    let lower = (bit > 1).then(|| host - bit / 2);
    let higher = std::iter::successors(Some(bit / 2), |step| Some(step / 2))
        .take_while(|&step| step > 0)
        .map(|step| host + step)
        .find(|&child| child < hosts);
    TreeNeighbours { parent: Some((parent, usize::from(host > parent))), children: [lower, higher] }
}

/// Returns the neighbours of a host in the second tree, in which hosts are mirrored (if their number is even) or
/// shifted by one (if odd), so that leaves of the first tree become inner nodes.
fn second_tree(host: u32, hosts: u32) -> TreeNeighbours {
    let even = hosts.is_multiple_of(2);
    let relabel = |host: u32| if even { hosts - 1 - host } else { (host + hosts - 1) % hosts };
    let restore = |host: u32| if even { hosts - 1 - host } else { (host + 1) % hosts };
    let neighbours = binary_tree(relabel(host), hosts);
    TreeNeighbours {
        parent: neighbours.parent.map(|(parent, index)| (restore(parent), index)),
        children: neighbours.children.map(|child| child.map(restore)),
    }
}

/// Returns the neighbours of a host in the tree of a lane; lanes alternate between the two trees.
pub(super) fn host_tree(host: u32, hosts: u32, lane: u32) -> TreeNeighbours {
    if lane.is_multiple_of(2) { binary_tree(host, hosts) } else { second_tree(host, hosts) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_and_children_agree_in_both_trees() {
        for hosts in 1..70 {
            for tree in [binary_tree, second_tree] {
                let mut roots = 0;
                for host in 0..hosts {
                    let neighbours = tree(host, hosts);
                    match neighbours.parent {
                        None => roots += 1,
                        Some((parent, index)) => assert_eq!(tree(parent, hosts).children[index], Some(host)),
                    }
                    for child in neighbours.children.into_iter().flatten() {
                        assert_eq!(tree(child, hosts).parent.map(|p| p.0), Some(host));
                    }
                }
                assert_eq!(roots, 1);
            }
        }
    }

    #[test]
    fn leaves_of_one_tree_are_inner_nodes_of_the_other() {
        for hosts in (2..70).step_by(2) {
            for host in 0..hosts {
                let inner = |neighbours: TreeNeighbours| neighbours.children.iter().any(Option::is_some);
                assert!(inner(binary_tree(host, hosts)) != inner(second_tree(host, hosts)), "{host} of {hosts}");
            }
        }
    }
}
