//! Links of the network that carry the same part of every flow, whatever flows there are: one of them stands for all.
//!
//! The spines of a fat tree are such, and so are a leaf's links up to them. Switches are told apart by where they lead until nothing
//! tells them apart any more (colour refinement: Weisfeiler and Leman, 1968), each one that an island is joined to by itself. From one
//! of those as many ways of equal length lead to every switch of a class, and on to another of those as well, so that flows which are
//! spread over all their ways burden all links between two classes alike ([`Ecmp::Averaged`](super::Ecmp::Averaged)). Three tiers
//! of switches of 64 ports have 2,112 links between two leaves, of which four are not like others.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::{Bandwidth, Fabric, LinkId, Picos};

/// A direction of a link between two forwarding devices, by their numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Joint {
    pub from: u32,
    pub to: u32,
    pub link: LinkId,
}

/// What routing asks of a link in both directions.
type Record = [(Option<Bandwidth>, Picos, bool); 2];

/// Forwarding devices by class, and the links that stand for others.
#[derive(Debug, Default)]
pub(super) struct Alike {
    /// The class of each forwarding device.
    pub class: Vec<u32>,
    /// Of each kind of link between two classes: the first link, with how many of it leave a device and come to one.
    pub joints: Vec<(Joint, Multiple)>,
    /// The links that each stands for where it stands for several, itself among them, ascending.
    pub members: FxHashMap<LinkId, Vec<LinkId>>,
}

/// How many links one stands for at its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Multiple {
    /// From each device that it leaves.
    pub out: u64,
    /// To each device that it comes to.
    pub into: u64,
}

impl Multiple {
    /// A link by itself.
    pub const ONE: Self = Self { out: 1, into: 1 };
}

impl Alike {
    /// Of so many forwarding devices and the links between them; `is_joined` says which of them islands are joined to.
    pub fn of(fabric: &Fabric, is_joined: &[bool], joints: &[Joint]) -> Self {
        let class = classes(fabric, is_joined, joints);
        let mut sizes: FxHashMap<u32, u64> = FxHashMap::default();
        class.iter().for_each(|&class| *sizes.entry(class).or_default() += 1);
        let size = |of: u32| sizes.get(&of).copied().unwrap_or(1);
        let class_of = |device: u32| class.get(device as usize).copied().unwrap_or_default();
        let mut kinds: BTreeMap<(u32, u32, Record), Vec<LinkId>> = BTreeMap::new();
        for joint in joints {
            let key = (class_of(joint.from), class_of(joint.to), record(fabric, joint.link));
            kinds.entry(key).or_default().push(joint.link);
        }
        let mut alike = Self::default();
        for ((from, to, _), mut links) in kinds {
            links.sort_unstable();
            let Some(&link) = links.first() else { continue };
            let count = links.len() as u64;
            let multiple = Multiple { out: count / size(from), into: count / size(to) };
            alike.joints.push((Joint { from, to, link }, multiple));
            if count > 1 {
                alike.members.insert(link, links);
            }
        }
        alike.class = class;
        alike
    }
}

/// The coarsest classes of which every device has as many links of each kind to each class as every other of its own.
fn classes(fabric: &Fabric, is_joined: &[bool], joints: &[Joint]) -> Vec<u32> {
    // Those that islands are joined to first, each by itself, then all others.
    let mut count = 0;
    let mut class: Vec<u32> = is_joined
        .iter()
        .map(|&joined| {
            count += u32::from(joined);
            if joined { count } else { 0 }
        })
        .collect();
    let others: Vec<u32> = (0u32..).zip(is_joined).filter(|(_, joined)| !**joined).map(|(device, _)| device).collect();
    let mut leaving: FxHashMap<u32, Vec<&Joint>> = FxHashMap::default();
    for joint in joints.iter().filter(|joint| is_joined.get(joint.from as usize) == Some(&false)) {
        leaving.entry(joint.from).or_default().push(joint);
    }
    let mut known = usize::from(!others.is_empty());
    loop {
        let mut seen: BTreeMap<(u32, Vec<(u32, Record)>), u32> = BTreeMap::new();
        let mut next = class.clone();
        for &device in &others {
            let class_of = |device: u32| class.get(device as usize).copied().unwrap_or_default();
            let around = leaving.get(&device).into_iter().flatten();
            let mut around: Vec<(u32, Record)> =
                around.map(|joint| (class_of(joint.to), record(fabric, joint.link))).collect();
            around.sort_unstable();
            let number = count + 1 + seen.len() as u32;
            let number = *seen.entry((class_of(device), around)).or_insert(number);
            if let Some(next) = next.get_mut(device as usize) {
                *next = number;
            }
        }
        class = next;
        if seen.len() <= known {
            break;
        }
        known = seen.len();
    }
    // Numbered from 0, in the order of their first devices.
    let mut numbers: FxHashMap<u32, u32> = FxHashMap::default();
    for class in &mut class {
        let next = numbers.len() as u32;
        *class = *numbers.entry(*class).or_insert(next);
    }
    class
}

fn record(fabric: &Fabric, link: LinkId) -> Record {
    [link, link.reverse()].map(|id| {
        let link = fabric.link(id);
        (link.bandwidth, link.latency, link.failed)
    })
}
