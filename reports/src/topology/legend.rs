//! Legend under a picture: the classes of links.

use std::collections::BTreeMap;

use fabricast_topologies::{Bandwidth, Fabric, LinkKind};

use super::scene::MARGIN;
use super::style;
use super::wire::WireColours;
use crate::markup::{Markup, number};

/// Maximum number of link classes in the legend.
const CLASSES: usize = 9;
const ROW: f64 = 24.0;
const SAMPLE: f64 = 34.0;
/// Upper bound on the average character width in the legend, in pixels.
const LETTER: f64 = 7.0;

/// Class of equal links: kind, bandwidth (fastest first), lanes, and number of failed directions.
type LinkClass = (LinkKind, std::cmp::Reverse<Option<Bandwidth>>, u16, u8);

/// Legend entry of a class of links.
#[derive(Clone, Debug, PartialEq)]
struct LinkEntry {
    kind: Option<LinkKind>,
    is_failed: bool,
    width: f64,
    text: String,
}

/// Legend of a fabric, arranged in rows of the given width.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FabricLegend {
    entries: Vec<LinkEntry>,
    colours: WireColours,
    width: f64,
}

impl FabricLegend {
    pub(super) fn new(fabric: &Fabric, colours: WireColours, width: f64) -> Self {
        // Both directions of a link belong to the class of the faster direction.
        let mut classes: BTreeMap<LinkClass, u32> = BTreeMap::new();
        for (_, [link, back]) in fabric.link_pairs() {
            let bandwidth = link.bandwidth.zip(back.bandwidth).map(|(forward, back)| forward.max(back));
            let failed = u8::from(link.failed) + u8::from(back.failed);
            *classes.entry((link.kind, std::cmp::Reverse(bandwidth), link.lanes, failed)).or_default() += 1;
        }
        let more = classes.len().saturating_sub(CLASSES);
        let mut entries: Vec<LinkEntry> = classes
            .into_iter()
            .take(CLASSES)
            .map(|((kind, std::cmp::Reverse(bandwidth), lanes, failed), count)| {
                let rate = bandwidth.map_or("unlimited".to_owned(), |bandwidth| bandwidth.to_string());
                let lanes = if lanes > 1 { format!(" · {lanes} lanes") } else { String::new() };
                let state = match failed {
                    0 => "",
                    1 => " · one direction failed",
                    _ => " · failed",
                };
                let text = format!("{count} × {} {rate}{lanes}{state}", kind.title());
                let width = style::link_width(bandwidth.map(Bandwidth::gb_per_s));
                LinkEntry { kind: Some(kind), is_failed: failed > 0, width, text }
            })
            .collect();
        if more > 0 {
            let text = format!("and {more} more kinds of links");
            entries.push(LinkEntry { kind: None, is_failed: false, width: 0.0, text });
        }
        Self { entries, colours, width }
    }

    /// Returns the left edge in pixels and the row of each entry, and the number of rows.
    fn positions(&self) -> (Vec<(f64, usize)>, usize) {
        let (mut x, mut row) = (MARGIN, 0);
        let mut places = Vec::with_capacity(self.entries.len());
        for entry in &self.entries {
            let sample = if entry.kind.is_some() { SAMPLE + 8.0 } else { 0.0 };
            let wide = sample + entry.text.chars().count() as f64 * LETTER + 24.0;
            if x > MARGIN && x + wide > self.width - MARGIN {
                (x, row) = (MARGIN, row + 1);
            }
            places.push((x, row));
            x += wide;
        }
        (places, row + 1)
    }

    pub(super) fn height(&self) -> f64 {
        let rows = self.positions().1 + usize::from(self.colours == WireColours::Load);
        rows as f64 * ROW
    }

    pub(super) fn draw(&self, svg: &mut Markup, top: f64) {
        let (positions, rows) = self.positions();
        for (entry, &(x, row)) in self.entries.iter().zip(&positions) {
            let y = top + (row as f64 + 0.5) * ROW;
            let mut text_x = x;
            if let Some(kind) = entry.kind {
                let class = if entry.is_failed {
                    "link failed".to_owned()
                } else {
                    format!("link {}", style::link_class(kind))
                };
                let path = format!("M{} {}h{}", number(x), number(y), number(SAMPLE));
                // If the colours of lines show load, only the widths of the samples have a meaning.
                let grey = style::heat(0.0);
                let mut attributes = vec![("class", class.as_str()), ("d", path.as_str())];
                let width = number(entry.width);
                attributes.push(("stroke-width", &width));
                let paint = format!("stroke:{grey}");
                if self.colours == WireColours::Load && !entry.is_failed {
                    attributes.push(("style", &paint));
                }
                svg.empty("path", &attributes);
                text_x += SAMPLE + 8.0;
            }
            svg.text("text", &[("class", "faint"), ("x", &number(text_x)), ("y", &number(y + 4.0))], &entry.text);
        }
        if self.colours == WireColours::Load {
            draw_heat(svg, top + (rows as f64 + 0.5) * ROW);
        }
    }
}

/// Draws the colour scale of utilization, from idle to 100 %, centred at height `y`.
fn draw_heat(svg: &mut Markup, y: f64) {
    const STEPS: usize = 24;
    const STEP: f64 = 8.0;
    svg.text("text", &[("class", "faint"), ("x", &number(MARGIN)), ("y", &number(y + 4.0))], "idle");
    let left = MARGIN + 34.0;
    for step in 0..STEPS {
        let colour = style::heat((step as f64 + 0.5) / STEPS as f64);
        let x = number(left + step as f64 * STEP);
        let (y, width) = (number(y - 5.0), number(STEP + 0.3));
        svg.empty("rect", &[("x", &x), ("y", &y), ("width", &width), ("height", "10"), ("fill", &colour)]);
    }
    let x = number(left + STEPS as f64 * STEP + 8.0);
    svg.text("text", &[("class", "faint"), ("x", &x), ("y", &number(y + 4.0))], "utilization 100 %");
}
