//! Rotations of ranks under which the routes of a fabric are alike, so that the trees of few roots are those of all.
//!
//! Rotations of hosts are symmetries of the whole fabric ([`Router::orbits`]). Rotations within hosts are tested on routes
//! alone: a rotation is a symmetry if it maps each route to one with the same shares, through links of the same rates,
//! by a permutation of the links.

use std::sync::Arc;

use fabricast_sim::schedule::{Rank, RotationDigit, Symmetry};
use fabricast_topologies::route::{Orbits, Router};
use fabricast_topologies::{Fabric, NodeId};

use super::routes::Routes;

/// Largest number of pairs of a representative and a rank whose routes are stored.
const MAX_PAIRS: usize = 1 << 16;

/// Largest number of ranks whose trees are found by symmetry.
const MAX_RANKS: usize = 1 << 11;

/// Returns the routes of representative ranks under all rotations that are found; `None` if there are none, or too many
/// routes. `hosts`: host of each rank.
pub(super) fn symmetric_routes(
    fabric: &Fabric,
    router: &Router<'_>,
    placement: &[NodeId],
    hosts: &[u32],
) -> Option<Routes> {
    let digits = host_digits(hosts)?;
    if placement.len() > MAX_RANKS {
        return None;
    }
    let mut proven: Vec<RotationDigit> = Vec::new();
    let mut orbits: Option<Arc<Orbits>> = None;
    // The part of each digit that no proven rotation moves.
    let mut rest: Vec<RotationDigit> = Vec::with_capacity(digits.len());
    for digit in digits {
        let found = steps(digit, |rotation| {
            let rotations = [proven.as_slice(), &[rotation]].concat();
            let images = rotations.iter().map(|&digit| images(placement, digit)).collect::<Option<Vec<_>>>();
            let Some(found) = images.and_then(|images| router.orbits(placement, &images)) else { return false };
            (proven, orbits) = (rotations, Some(found));
            true
        });
        let length = found.last().map_or(digit.length, |smallest| smallest.stride / digit.stride);
        rest.push(RotationDigit { length, ..digit });
    }
    let symmetry = if proven.is_empty() { Symmetry::None } else { Symmetry::Rotations(proven) };
    let representatives = placement.len() / symmetry.rotation_count().max(1) as usize;
    if representatives * placement.len() > MAX_PAIRS {
        return None;
    }
    let mut routes = Routes::of_classes(fabric, router, placement, symmetry, orbits.as_deref());
    for digit in rest {
        steps(digit, |rotation| match routes.under_rotation(rotation) {
            Some(found) => {
                routes = found;
                true
            }
            None => false,
        });
    }
    (*routes.symmetry() != Symmetry::None).then_some(routes)
}

/// Digits of the ranks' numbers: the host, and the position in it. `None` unless each host has the same number of
/// successive ranks.
fn host_digits(hosts: &[u32]) -> Option<Vec<RotationDigit>> {
    let runs: Vec<&[u32]> = hosts.chunk_by(|a, b| a == b).collect();
    let per_host = runs.first()?.len();
    let mut distinct: Vec<u32> = runs.iter().filter_map(|run| run.first().copied()).collect();
    distinct.sort_unstable();
    distinct.dedup();
    if distinct.len() != runs.len() || runs.iter().any(|run| run.len() != per_host) {
        return None;
    }
    let digit = |stride: usize, length: usize| RotationDigit { stride: stride as u32, length: length as u32 };
    let digits = [digit(per_host, runs.len()), digit(1, per_host)];
    Some(digits.into_iter().filter(|digit| digit.length > 1).collect())
}

/// Divides a digit into rotations that are symmetries: by its smallest step that is one, then within the step.
fn steps(digit: RotationDigit, mut is_symmetry: impl FnMut(RotationDigit) -> bool) -> Vec<RotationDigit> {
    let mut found = Vec::new();
    let mut length = digit.length;
    loop {
        let rotation = |step: u32| RotationDigit { stride: digit.stride * step, length: length / step };
        let mut rotations = (1..=length / 2).filter(|&step| length.is_multiple_of(step));
        let Some(step) = rotations.find(|&step| is_symmetry(rotation(step))) else { return found };
        found.push(rotation(step));
        length = step;
    }
}

/// Image of each rank's device under the smallest rotation of a digit.
fn images(placement: &[NodeId], digit: RotationDigit) -> Option<Vec<NodeId>> {
    let rotation = Symmetry::Rotations(vec![digit]);
    (0..placement.len() as u32).map(|rank| placement.get(rotation.rotate(Rank(rank), 1).0 as usize).copied()).collect()
}

#[cfg(test)]
mod tests {
    use fabricast_topologies::route::RouteOptions;
    use fabricast_topologies::{FabricRequest, load};

    use super::super::forest::BlockKind;
    use super::super::mixture::{FastestMixture, Network};
    use super::super::requirement::Roots;
    use super::super::routes::Flow;
    use super::super::variant::TreeVariant;
    use super::*;

    fn digit(stride: u32, length: u32) -> RotationDigit {
        RotationDigit { stride, length }
    }

    #[test]
    fn digits_are_hosts_and_positions() {
        assert_eq!(host_digits(&[4, 4, 7, 7, 5, 5]), Some(vec![digit(2, 3), digit(1, 2)]));
        assert_eq!(host_digits(&[1, 1, 1]), Some(vec![digit(1, 3)]));
        assert_eq!(host_digits(&[1, 2]), Some(vec![digit(1, 2)]));
        for uneven in [&[1, 1, 2][..], &[1, 2, 1, 2], &[]] {
            assert_eq!(host_digits(uneven), None, "{uneven:?}");
        }
    }

    fn fabric(preset: &str, nodes: u32, network: &str) -> Fabric {
        let network = Some(network.parse().unwrap());
        load(&FabricRequest { nodes: Some(nodes), network, ..FabricRequest::new(preset) }).unwrap()
    }

    /// Trees of representative roots need the same time as their images over the routes of all ranks.
    #[test]
    fn images_of_trees_need_the_time_of_their_classes() {
        let single = load(&FabricRequest::new("mi300x")).unwrap();
        let cases = [
            (single, 8),
            (fabric("hgx-h100", 3, "rail"), 24),
            (fabric("hgx-h100", 8, "fat_tree,radix=8"), 8),
            (fabric("hgx-h200", 4, "dragonfly"), 4),
        ];
        for (fabric, rotations) in cases {
            let router = Router::new(&fabric, RouteOptions::default());
            let hosts: Vec<u32> = fabric.gpus().iter().map(|&gpu| fabric.node(gpu).host.0).collect();
            let classes = symmetric_routes(&fabric, &router, fabric.gpus(), &hosts).unwrap();
            assert!(classes.symmetry().rotation_count() >= rotations, "{}: {:?}", fabric.name(), classes.symmetry());
            let all = Routes::new(&fabric, &router, fabric.gpus());
            for (blocks, flow) in [
                (BlockKind::Common, Flow::Spread),
                (BlockKind::Common, Flow::Collect),
                (BlockKind::PerRank, Flow::Spread),
            ] {
                let fastest = FastestMixture::new(vec![Network::new(&classes, Roots::All, blocks, flow)]).unwrap();
                let forest = match blocks {
                    BlockKind::Common => fastest.common_trees(TreeVariant::Optimal).unwrap().remove(0),
                    BlockKind::PerRank => fastest.personalised_trees(TreeVariant::Optimal).unwrap().forest,
                };
                let time = classes.time_per_byte(&[(&forest, flow)]);
                assert_eq!(time, all.time_per_byte(&[(&forest.without_symmetry(), flow)]), "{}", fabric.name());
                assert!(time.is_some());
            }
        }
    }

    /// A failed link leaves the ranks of other hosts alike, if there are several.
    #[test]
    fn damage_reduces_the_symmetry() {
        let fabric = fabric("hgx-h100", 4, "rail").with_failed("n0/nic1").unwrap();
        let router = Router::new(&fabric, RouteOptions::default());
        let hosts: Vec<u32> = fabric.gpus().iter().map(|&gpu| fabric.node(gpu).host.0).collect();
        let classes = symmetric_routes(&fabric, &router, fabric.gpus(), &hosts);
        assert!(classes.is_none_or(|classes| classes.symmetry().rotation_count() < 8));
    }

    /// Eight hosts on leaf switches of two: a rotation by two is a symmetry, and one within the leaves.
    #[test]
    fn rotations_within_a_step_are_found() {
        let alike = [digit(8, 4), digit(4, 2)];
        assert_eq!(steps(digit(4, 8), |rotation| alike.contains(&rotation)), alike);
        assert_eq!(steps(digit(1, 7), |_| false), []);
        assert_eq!(steps(digit(1, 7), |_| true), [digit(1, 7)]);
    }
}
