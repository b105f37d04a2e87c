//! Names of links and devices in the notation of the command line and of files.
//!
//! A direction is `a->b`; both directions are `a-b` or `b-a`. Parallel links between two devices are numbered behind
//! `#` (`a->b#0`, `a->b#1`); the name without a number refers to all of them.

use petgraph::graph::NodeIndex;
use petgraph::visit::EdgeRef;
use rustc_hash::FxHashMap;

use super::{Fabric, LinkId, NodeId, suggest_names};
use crate::error::{Error, Result};

/// Longest name of a link, in bytes, that is looked up: two ids of maximum length and the separators.
const MAX_LINK_NAME_LENGTH: usize = 600;

impl Fabric {
    /// Looks up a device by its textual id.
    ///
    /// # Errors
    /// [`Error::Unknown`] with similar ids.
    pub fn device(&self, id: &str) -> Result<NodeId> {
        self.find(id).ok_or_else(|| Error::Unknown {
            item: "device",
            name: id.to_owned(),
            suggestions: suggest_names(id, self.nodes().map(|(_, node)| &*node.id)),
        })
    }

    /// Link directions from one device to another, in id order. The cost is proportional to the number of links of the
    /// end that has fewer links, because the links of both ends are examined alternately.
    fn links_between(&self, from: NodeId, to: NodeId) -> Vec<LinkId> {
        let index = |node: NodeId| NodeIndex::new(node.0 as usize);
        let (mut from_edges, mut to_edges) = (self.graph.edges(index(from)), self.graph.edges(index(to)));
        let (mut forward, mut backward) = (Vec::new(), Vec::new());
        let mut links = loop {
            match from_edges.next() {
                None => break forward,
                Some(edge) if edge.target() == index(to) => forward.push(LinkId(edge.id().index() as u32)),
                Some(_) => {}
            }
            match to_edges.next() {
                None => break backward,
                Some(edge) if edge.target() == index(from) => {
                    backward.push(LinkId(edge.id().index() as u32).reverse());
                }
                Some(_) => {}
            }
        };
        links.sort_unstable();
        links
    }

    /// Name of a link direction: `a->b`, followed by `#k` if the link has parallel links.
    ///
    /// The cost is linear in the number of links at the end with fewer links; [`Fabric::link_names`] names all links in
    /// one pass.
    #[must_use]
    pub fn link_name(&self, id: LinkId) -> String {
        let (from, to) = self.ends(id);
        let parallel = self.links_between(from, to);
        let number = (parallel.len() > 1).then(|| parallel.iter().position(|&link| link == id)).flatten();
        self.format_link_name(from, to, number)
    }

    /// Names of all link directions, in id order.
    #[must_use]
    pub fn link_names(&self) -> Vec<String> {
        let mut counts: FxHashMap<(NodeId, NodeId), (usize, usize)> = FxHashMap::default();
        for (id, _) in self.links() {
            counts.entry(self.ends(id)).or_default().0 += 1;
        }
        self.links()
            .map(|(id, _)| {
                let (from, to) = self.ends(id);
                let (total, seen) = counts.entry((from, to)).or_default();
                *seen += 1;
                let number = (*total > 1).then_some(*seen - 1);
                self.format_link_name(from, to, number)
            })
            .collect()
    }

    fn format_link_name(&self, from: NodeId, to: NodeId, number: Option<usize>) -> String {
        let (from, to) = (&self.node(from).id, &self.node(to).id);
        number.map_or_else(|| format!("{from}->{to}"), |k| format!("{from}->{to}#{k}"))
    }

    /// Looks up link directions by name: `a->b` is one direction, `a-b` both, `#k` selects one of several parallel
    /// links.
    ///
    /// Ids may themselves contain `-` and `#`. A name is resolved to the first interpretation in which both ids exist
    /// and are linked; `->` is tried before `-`.
    ///
    /// # Errors
    /// [`Error::Unknown`] with the names of similar links.
    pub fn find_link(&self, name: &str) -> Result<Vec<LinkId>> {
        let text = name.trim();
        let mut near = Vec::new();
        if text.len() <= MAX_LINK_NAME_LENGTH {
            for (ends, number) in parse_link_number(text) {
                for LinkEnds { a, b, directions } in parse_link_ends(ends) {
                    match (self.find(a), self.find(b)) {
                        (Some(a), Some(b)) => {
                            let links = self.numbered_links(a, b, directions, number);
                            if !links.is_empty() {
                                return Ok(links);
                            }
                            near.extend(self.outgoing_links(a).first().map(|&link| self.link_name(link)));
                        }
                        (Some(a), None) => near.extend(self.similar_link_names(a, b)),
                        (None, Some(b)) => near.extend(self.similar_link_names(b, a)),
                        (None, None) => {}
                    }
                }
            }
        }
        near.truncate(3);
        Err(Error::Unknown { item: "link", name: name.to_owned(), suggestions: near })
    }

    fn numbered_links(&self, a: NodeId, b: NodeId, directions: LinkDirections, number: Option<usize>) -> Vec<LinkId> {
        let forward = self.links_between(a, b);
        // Both directions of a link are added in one step, so the k-th links of the two directions belong to one link.
        let backward = match directions {
            LinkDirections::Forward => Vec::new(),
            LinkDirections::Both => self.links_between(b, a),
        };
        let mut links: Vec<LinkId> = match number {
            None => forward.into_iter().chain(backward).collect(),
            Some(k) => forward.get(k).into_iter().chain(backward.get(k)).copied().collect(),
        };
        links.sort_unstable();
        links
    }

    /// Names of the links of `known` whose other end has an id similar to `wrong`.
    fn similar_link_names(&self, known: NodeId, wrong: &str) -> Vec<String> {
        let links = self.outgoing_links(known);
        let other_end_id = |link: LinkId| &*self.node(self.ends(link).1).id;
        let near = suggest_names(wrong, links.iter().map(|&link| other_end_id(link)));
        near.iter()
            .filter_map(|id| links.iter().find(|&&link| other_end_id(link) == id))
            .map(|&l| self.link_name(l))
            .collect()
    }
}

/// Splits a link name into its ends and its number. Yields the whole text without a number and, if the text ends with
/// `#` and a number, the text before `#` with that number.
fn parse_link_number(text: &str) -> impl Iterator<Item = (&str, Option<usize>)> {
    let with_number = text.rsplit_once('#').and_then(|(ends, k)| Some((ends, Some(k.parse().ok()?))));
    std::iter::once((text, None)).chain(with_number)
}

/// Ends of a link as stated in its name.
struct LinkEnds<'a> {
    a: &'a str,
    b: &'a str,
    directions: LinkDirections,
}

/// Directions of a link that its name selects.
#[derive(Clone, Copy)]
enum LinkDirections {
    /// Only the direction from the first end to the second.
    Forward,
    Both,
}

/// Interpretations of `a->b` and `a-b` as two ids.
fn parse_link_ends(text: &str) -> impl Iterator<Item = LinkEnds<'_>> {
    let ends = move |a: usize, b: usize, directions: LinkDirections| LinkEnds {
        a: text[..a].trim(),
        b: text[b..].trim(),
        directions,
    };
    let arrows = text.match_indices("->").map(move |(i, _)| ends(i, i + 2, LinkDirections::Forward));
    let dashes = text.match_indices('-').map(move |(i, _)| ends(i, i + 1, LinkDirections::Both));
    arrows.chain(dashes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::{FabricBuilder, Figures, LinkKind, LinkSpec, NodeKind};
    use crate::{Bandwidth, Picos};

    /// Test fabric with two parallel links between `a-1` and `b`, and one link between `b` and `n0/c#1`.
    fn fabric() -> Fabric {
        let mut builder = FabricBuilder::new("t");
        let host = builder.host("h");
        let [a, b, c] = ["a-1", "b", "n0/c#1"].map(|id| builder.node(id, NodeKind::Gpu, host, Figures::None).unwrap());
        let spec = LinkSpec::symmetric(LinkKind::Pcie, Bandwidth(1), Picos(0));
        builder.link(a, b, &spec);
        builder.link(b, c, &spec);
        builder.link(b, a, &spec);
        builder.finish()
    }

    #[test]
    fn link_names_resolve_to_their_link() {
        let fabric = fabric();
        let names = fabric.link_names();
        assert_eq!(names, ["a-1->b#0", "b->a-1#0", "b->n0/c#1", "n0/c#1->b", "b->a-1#1", "a-1->b#1"]);
        for (id, _) in fabric.links() {
            assert_eq!(fabric.link_name(id), names[id.0 as usize]);
            assert_eq!(fabric.find_link(&names[id.0 as usize]).unwrap(), [id]);
        }
    }

    #[test]
    fn dashes_and_missing_numbers_select_several_links() {
        let fabric = fabric();
        let ids = |name: &str| fabric.find_link(name).unwrap().iter().map(|link| link.0).collect::<Vec<_>>();
        assert_eq!(ids("a-1->b"), [0, 5]);
        assert_eq!(ids("a-1-b"), [0, 1, 4, 5]);
        assert_eq!(ids("b-a-1#1"), [4, 5]);
        assert_eq!(ids("n0/c#1-b"), [2, 3]);
        assert_eq!(ids("n0/c#1-b#0"), [2, 3]);
    }

    #[test]
    fn unknown_names_suggest_similar_links() {
        let fabric = fabric();
        let near = |name: &str| match fabric.find_link(name).unwrap_err() {
            Error::Unknown { suggestions: near, .. } => near,
            other => panic!("{other}"),
        };
        assert_eq!(near("b->a-2"), ["b->a-1#0"]);
        assert_eq!(near("a-1->n0/c#1"), ["a-1->b#0"]);
        assert!(near("").is_empty() && near("->").is_empty() && near(&"-".repeat(5000)).is_empty());
        assert!(fabric.find_link("a-1-b#2").is_err());
        assert_eq!(fabric.device("a-1").unwrap(), NodeId(0));
        assert!(fabric.device("a-2").unwrap_err().to_string().contains("did you mean a-1?"));
    }
}
