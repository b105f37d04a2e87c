//! Classes of interchangeable devices (twins) that have the same mark.

use std::hash::Hash;

use rustc_hash::FxHashMap;

use super::shape::Shape;

/// Classes of twins that a survey treats as equivalent.
pub(super) struct TwinClasses<'s> {
    shape: &'s Shape,
    /// First device of the class of each device.
    first: Vec<u32>,
    /// Members of each class in ascending order, at its first device; empty at other devices.
    members: Vec<Vec<u32>>,
}

impl<'s> TwinClasses<'s> {
    /// Groups the twins that have the same mark. A device without a mark forms a class by itself.
    pub fn marked<M: Copy + Eq + Hash>(shape: &'s Shape, mark: impl Fn(u32) -> Option<M>) -> Self {
        let mut known: FxHashMap<(u32, M), u32> = FxHashMap::default();
        let twins = shape.twins();
        let class = |device: u32| match mark(device) {
            Some(mark) => *known.entry((twins.first[device as usize], mark)).or_insert(device),
            None => device,
        };
        let first: Vec<u32> = (0..shape.nodes().len() as u32).map(class).collect();
        let mut members = vec![Vec::new(); first.len()];
        for (device, &first) in (0..).zip(&first) {
            members[first as usize].push(device);
        }
        Self { shape, first, members }
    }

    /// Returns true if some class has several devices.
    pub fn has_multiple_members(&self) -> bool {
        self.members.iter().any(|members| members.len() > 1)
    }

    /// Pairs of different devices that represent all pairs of devices for which `wanted` is true. `wanted` must be
    /// equal for all devices of a class.
    pub fn pairs(&self, wanted: impl Fn(u32) -> bool) -> Vec<(u32, u32)> {
        let classes: Vec<&Vec<u32>> =
            self.members.iter().filter(|members| members.first().is_some_and(|&first| wanted(first))).collect();
        let mut pairs = Vec::new();
        for from in &classes {
            let Some(&x) = from.first() else { continue };
            for to in &classes {
                let y = if from.first() == to.first() { to.get(1) } else { to.first() };
                pairs.extend(y.map(|&y| (x, y)));
            }
        }
        pairs
    }

    /// Representative of a link: the link between the first devices of its ends' classes.
    pub fn representative_link(&self, link: u32) -> u32 {
        let ends = self.shape.link(link);
        self.moved(link, self.first[ends.from as usize], self.first[ends.to as usize])
    }

    /// All links with the same representative, in ascending order.
    pub fn class_links(&self, link: u32) -> Vec<u32> {
        let ends = self.shape.link(link);
        let class = |device: u32| &self.members[self.first[device as usize] as usize];
        let ends = class(ends.from).iter().flat_map(|&from| class(ends.to).iter().map(move |&to| (from, to)));
        let mut links: Vec<u32> = ends.map(|(from, to)| self.moved(link, from, to)).collect();
        links.sort_unstable();
        links
    }

    fn moved(&self, link: u32, from: u32, to: u32) -> u32 {
        let ends = self.shape.link(link);
        if (ends.from, ends.to) == (from, to) {
            return link;
        }
        self.shape.twins().map_link(self.shape.graph(), link, from, to)
    }
}
