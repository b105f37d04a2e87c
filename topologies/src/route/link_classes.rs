//! Equivalence classes of network links. Links that carry an equal share of every flow are represented by one of them.
//!
//! Examples are the links from a leaf to the spines of a fat tree. Switches are partitioned by colour refinement
//! (Weisfeiler and Leman, 1968), which starts with a separate class for each switch that an island is connected to.
//! Each such switch has equally many paths of equal length to every switch of a class, and through that class to any
//! other such switch. Flows that are spread over all their paths ([`Ecmp::Averaged`](super::Ecmp::Averaged)) therefore
//! load all links between two classes equally. With three tiers of 64-port switches, four representatives replace the
//! 2,112 links between two leaves.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::{Bandwidth, Fabric, LinkId, Picos};

/// A link direction between two forwarding devices, given by their numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct NetworkLink {
    pub from: u32,
    pub to: u32,
    pub link: LinkId,
}

/// Properties of a link that routing uses, for both directions.
type LinkProperties = [(Option<Bandwidth>, Picos, bool); 2];

/// Classes of forwarding devices, and representatives of equivalent links.
#[derive(Debug, Default)]
pub(super) struct LinkClasses {
    /// The class of each forwarding device, indexed by the number of the device.
    pub class: Vec<u32>,
    /// First link of each kind between two classes, and the number of links of that kind per device at both ends.
    pub links: Vec<(NetworkLink, Multiplicity)>,
    /// Links represented by each link that represents several, including itself, in ascending order.
    pub members: FxHashMap<LinkId, Vec<LinkId>>,
}

/// Number of links that one link represents, per device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Multiplicity {
    /// Links that leave each device of the source class.
    pub out: u64,
    /// Links that arrive at each device of the target class.
    pub into: u64,
}

impl Multiplicity {
    /// A link that represents only itself.
    pub const ONE: Self = Self { out: 1, into: 1 };
}

impl LinkClasses {
    /// Partitions the forwarding devices and groups the links between them; `is_joined` marks the devices that are
    /// connected to an island.
    pub fn new(fabric: &Fabric, is_joined: &[bool], joints: &[NetworkLink]) -> Self {
        let class = classes(fabric, is_joined, joints);
        let mut sizes: FxHashMap<u32, u64> = FxHashMap::default();
        class.iter().for_each(|&class| *sizes.entry(class).or_default() += 1);
        let size = |class: u32| sizes.get(&class).copied().unwrap_or(1);
        let device_class = |device: u32| class.get(device as usize).copied().unwrap_or_default();
        let mut kinds: BTreeMap<(u32, u32, LinkProperties), Vec<LinkId>> = BTreeMap::new();
        for joint in joints {
            let key = (device_class(joint.from), device_class(joint.to), record(fabric, joint.link));
            kinds.entry(key).or_default().push(joint.link);
        }
        let mut link_classes = Self::default();
        for ((from, to, _), mut links) in kinds {
            links.sort_unstable();
            let Some(&link) = links.first() else { continue };
            let count = links.len() as u64;
            let multiple = Multiplicity { out: count / size(from), into: count / size(to) };
            link_classes.links.push((NetworkLink { from, to, link }, multiple));
            if count > 1 {
                link_classes.members.insert(link, links);
            }
        }
        link_classes.class = class;
        link_classes
    }
}

/// The coarsest partition in which all devices of a class have equally many links of each kind to each class (colour
/// refinement).
fn classes(fabric: &Fabric, is_joined: &[bool], joints: &[NetworkLink]) -> Vec<u32> {
    // Initial partition: a separate class for each device that is connected to an island, and one class for all others.
    let mut count = 0;
    let mut class: Vec<u32> = is_joined
        .iter()
        .map(|&joined| {
            count += u32::from(joined);
            if joined { count } else { 0 }
        })
        .collect();
    let others: Vec<u32> = (0u32..).zip(is_joined).filter(|(_, joined)| !**joined).map(|(device, _)| device).collect();
    let mut leaving: FxHashMap<u32, Vec<&NetworkLink>> = FxHashMap::default();
    for joint in joints.iter().filter(|joint| is_joined.get(joint.from as usize) == Some(&false)) {
        leaving.entry(joint.from).or_default().push(joint);
    }
    let mut known = usize::from(!others.is_empty());
    loop {
        let mut numbers: BTreeMap<(u32, Vec<(u32, LinkProperties)>), u32> = BTreeMap::new();
        let mut next = class.clone();
        for &device in &others {
            let device_class = |device: u32| class.get(device as usize).copied().unwrap_or_default();
            let around = leaving.get(&device).into_iter().flatten();
            let mut around: Vec<(u32, LinkProperties)> =
                around.map(|joint| (device_class(joint.to), record(fabric, joint.link))).collect();
            around.sort_unstable();
            let number = count + 1 + numbers.len() as u32;
            let number = *numbers.entry((device_class(device), around)).or_insert(number);
            if let Some(next) = next.get_mut(device as usize) {
                *next = number;
            }
        }
        class = next;
        if numbers.len() <= known {
            break;
        }
        known = numbers.len();
    }
    // Renumbered from 0, in the order of their first devices.
    let mut numbers: FxHashMap<u32, u32> = FxHashMap::default();
    for class in &mut class {
        let next = numbers.len() as u32;
        *class = *numbers.entry(*class).or_insert(next);
    }
    class
}

fn record(fabric: &Fabric, link: LinkId) -> LinkProperties {
    [link, link.reverse()].map(|id| {
        let link = fabric.link(id);
        (link.bandwidth, link.latency, link.failed)
    })
}
