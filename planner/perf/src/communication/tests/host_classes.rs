//! Tests of wiring classes: hosts are in the same class only if their wiring is equal.

use fabricast_topologies::Fabric;
use fabricast_topologies::fabric::HostId;

use super::super::host_classes::HostClasses;
use crate::step::tests::rails;

#[test]
fn hosts_with_failed_links_have_their_own_class() {
    let fabric = rails(4);
    let classes = |fabric: &Fabric| {
        let classes = HostClasses::new(fabric);
        let mut hosts: Vec<HostId> = fabric.gpus().iter().map(|&gpu| fabric.node(gpu).host).collect();
        hosts.dedup();
        hosts.into_iter().map(|host| classes.class(host).unwrap()).collect::<Vec<u32>>()
    };
    let same = classes(&fabric);
    assert!(same.len() == 4 && same.iter().all(|class| *class == same[0]), "{same:?}");
    let broken = classes(&fabric.with_failed("n2/gpu5-n2/nvswitch0").unwrap());
    assert!(broken[0] == broken[1] && broken[1] == broken[3] && broken[2] != broken[3], "{broken:?}");
}
