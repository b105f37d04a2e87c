//! Bandwidths and latencies that a reader of a topology file assumes in place of those of the fabric.

use std::collections::{BTreeMap, BTreeSet};

use super::keep_in_service;
use crate::error::Result;
use crate::fabric::{Fabric, LinkKind};
use crate::read::nccl_xml;
use crate::{Bandwidth, Picos};

/// Number of figures that a description lists.
const LISTED: usize = 4;

/// Distinct figures of the links of a technology.
#[derive(Default)]
struct LinkFigures {
    bandwidths: BTreeSet<Option<Bandwidth>>,
    latencies: BTreeSet<Picos>,
}

/// Bandwidths and latencies that a reader of a topology file assumes instead of those of the fabric, by technology:
/// `PCIe 250 ns instead of 150 ns`. `text` is the file that [`super::write`] returned for `fabric`. It states technologies,
/// lanes and PCIe rates; NCCL and [`nccl_xml::parse`] derive all figures from these.
///
/// # Errors
/// The errors of [`nccl_xml::parse`].
pub fn replaced_figures(fabric: &Fabric, text: &str) -> Result<Vec<String>> {
    let reader = nccl_xml::parse(text, "exported file")?;
    let (written, read) = (by_technology(&keep_in_service(fabric)), by_technology(&reader));
    let mut replaced = Vec::new();
    for (kind, LinkFigures { bandwidths, latencies }) in &written {
        let Some(known) = read.get(kind) else { continue };
        let mut compare = |ours: Vec<String>, theirs: Vec<String>| {
            if ours != theirs {
                let (ours, theirs) = (list(&ours), list(&theirs));
                replaced.push(format!("{} {theirs} instead of {ours}", kind.title()));
            }
        };
        let rates = |rates: &BTreeSet<Option<Bandwidth>>| {
            rates.iter().map(|rate| rate.map_or_else(|| "unlimited".to_owned(), |rate| rate.to_string())).collect()
        };
        let times = |times: &BTreeSet<Picos>| times.iter().map(ToString::to_string).collect();
        compare(rates(bandwidths), rates(&known.bandwidths));
        compare(times(latencies), times(&known.latencies));
    }
    Ok(replaced)
}

fn by_technology(fabric: &Fabric) -> BTreeMap<LinkKind, LinkFigures> {
    let mut figures: BTreeMap<LinkKind, LinkFigures> = BTreeMap::new();
    for (_, link) in fabric.links().filter(|(_, link)| !link.failed) {
        let known = figures.entry(link.kind).or_default();
        known.bandwidths.insert(link.bandwidth);
        known.latencies.insert(link.latency);
    }
    figures
}

fn list(figures: &[String]) -> String {
    let mut text = figures.iter().take(LISTED).cloned().collect::<Vec<_>>().join(", ");
    if figures.len() > LISTED {
        text.push_str(&format!(" and {} more", figures.len() - LISTED));
    }
    text
}
