//! Parser of a candidate's number of nodes, one or a list, and of figures that scale with it: power and racks.

use serde::Deserialize;

use super::price::BandText;
use super::{CandidateText, MAX_ITEMS, MAX_KW, Reader};
use crate::Band;
use fabricast_workload::job::JobError;
use toml::Spanned;

/// Maximum number of sizes of a machine.
const MAX_SIZES: usize = 64;

#[derive(Clone, Deserialize)]
#[serde(untagged, expecting = "expected a number of nodes, or a list of numbers")]
pub(super) enum NodesText {
    One(u32),
    Several(Vec<u32>),
}

/// Size of a candidate.
#[derive(Clone, Copy)]
pub(super) struct Size {
    /// Number of nodes; `None`: that of the preset or file.
    pub nodes: Option<u32>,
    /// True if the study lists several numbers of nodes for the machine.
    pub is_listed: bool,
}

impl Size {
    /// Returns the name of the candidate with this size.
    pub fn name(self, machine: &str) -> String {
        match self.nodes.filter(|_| self.is_listed) {
            Some(1) => format!("{machine}, 1 node"),
            Some(nodes) => format!("{machine}, {nodes} nodes"),
            None => machine.to_owned(),
        }
    }
}

impl Reader<'_> {
    /// Reads the sizes of a candidate, in the order of the study.
    ///
    /// # Errors
    /// [`JobError`] for an empty or too long list, for zero and for numbers that are given twice; and for figures of a
    /// whole machine if there are several sizes.
    pub(super) fn sizes(self, text: &CandidateText) -> Result<Vec<Size>, JobError> {
        let Some(nodes) = &text.nodes else { return Ok(vec![Size { nodes: None, is_listed: false }]) };
        let error = |message: String| Err(self.error_at(nodes.span(), format!("nodes: {message}")));
        let (counts, is_listed) = match nodes.get_ref() {
            NodesText::One(count) => (std::slice::from_ref(count), false),
            NodesText::Several(counts) => (counts.as_slice(), true),
        };
        if counts.is_empty() {
            return error("the list is empty".to_owned());
        }
        if counts.len() > MAX_SIZES {
            return error(format!("{} numbers, at most {MAX_SIZES}", counts.len()));
        }
        if counts.contains(&0) {
            return error("a candidate has 1 host or more, not 0".to_owned());
        }
        let is_earlier = |(number, count): &(usize, &u32)| counts.iter().take(*number).any(|earlier| earlier == *count);
        if let Some((_, count)) = counts.iter().enumerate().find(is_earlier) {
            return error(format!("{count} is given twice"));
        }
        let whole = [
            ("price_usd", text.price_usd.as_ref().map(Spanned::span), "node_price_usd"),
            ("price_per_hour_usd", text.price_per_hour_usd.as_ref().map(Spanned::span), "node_price_per_hour_usd"),
            ("price_count", text.price_count.as_ref().map(Spanned::span), "a price by node, GPU or rack"),
            ("power_kw", text.power_kw.as_ref().map(Spanned::span), "node_power_kw"),
            ("racks", text.racks.as_ref().map(Spanned::span), "nodes_per_rack"),
        ];
        let stated = whole.into_iter().find_map(|(key, span, instead)| Some((key, span?, instead)));
        if let Some((key, span, instead)) = stated.filter(|_| is_listed) {
            let message = format!("{key}: of a whole machine, and `nodes` lists several numbers: expected {instead}");
            return Err(self.error_at(span, message));
        }
        Ok(counts.iter().map(|&count| Size { nodes: Some(count), is_listed }).collect())
    }

    /// Reads the power of a candidate of this size.
    ///
    /// # Errors
    /// [`JobError`] at an invalid value, and for power by node without a number of nodes or next to that of the machine.
    pub(super) fn power(self, text: &CandidateText, size: Size) -> Result<Option<Band>, JobError> {
        let Some(power) = &text.node_power_kw else {
            return text.power_kw.as_ref().map(|power| self.band("power_kw", power, MAX_KW)).transpose();
        };
        let nodes = self.nodes_for("node_power_kw", power, text.power_kw.as_ref().map(|_| "power_kw"), size)?;
        Ok(Some(self.band("node_power_kw", power, MAX_KW / f64::from(nodes))?.scaled_by(f64::from(nodes))))
    }

    /// Reads the number of racks of a candidate of this size.
    ///
    /// # Errors
    /// [`JobError`] at an invalid value, and for nodes per rack without a number of nodes or next to a number of racks.
    pub(super) fn racks(self, text: &CandidateText, size: Size) -> Result<Option<f64>, JobError> {
        let Some(per_rack) = &text.nodes_per_rack else {
            return self.positive("racks", text.racks.as_ref(), MAX_ITEMS);
        };
        if *per_rack.get_ref() == 0 {
            return Err(self.error_at(per_rack.span(), "nodes_per_rack: 0 is not at least 1"));
        }
        let nodes = self.nodes_for("nodes_per_rack", per_rack, text.racks.as_ref().map(|_| "racks"), size)?;
        Ok(Some(f64::from(nodes.div_ceil(*per_rack.get_ref()))))
    }

    /// Number of nodes by which the value of `key` is multiplied. `other`: stated key with the value of the whole machine.
    ///
    /// # Errors
    /// [`JobError`] at the value without a number of nodes, or if `other` is stated as well.
    fn nodes_for<T>(self, key: &str, value: &Spanned<T>, other: Option<&str>, size: Size) -> Result<u32, JobError> {
        if let Some(other) = other {
            return Err(self.error_at(value.span(), format!("{key}: given next to {other}, expected one of them")));
        }
        size.nodes.ok_or_else(|| self.error_at(value.span(), format!("{key}: expected `nodes`, the number of nodes")))
    }

    /// Reads a price by node as a band.
    ///
    /// # Errors
    /// [`JobError`] at an invalid value.
    pub(super) fn node_price(self, key: &str, band: &Spanned<BandText>) -> Result<Band, JobError> {
        self.band(key, band, crate::value_limits::MAX_PRICE)
    }
}
