//! Writer of profile files, in the form that [`parse`](super::Profile::parse) reads and the order of the shipped files.

use std::fmt::Write as _;

use fabricast_topologies::{Bandwidth, Bytes, Picos};

use super::{ChannelLimit, LaunchCosts, Profile, ProtocolCosts};
use crate::schedule::Protocol;

impl Profile {
    /// Returns the profile as TOML. Reading the text gives the same profile; fractions have seven digits.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        for (key, value) in [("name", &self.name), ("library", &self.library)] {
            writeln!(out, "{key} = {}", quoted(value))?;
        }
        writeln!(out, "compute_capability = {}", self.compute_capability)?;
        writeln!(out, "gpus = [{}]\ndate = {}", listed(&self.gpus, |model| quoted(model)), quoted(&self.date))?;
        write_sources(&self.sources, out)?;
        self.bands.write(out)?;
        let links = &self.links;
        writeln!(out, "\n[links]")?;
        for (key, value) in [
            ("nvlink", links.nvlink),
            ("c2c", links.c2c),
            ("pcie", links.pcie),
            ("pcie_peers", links.pcie_peers),
            ("upi", links.upi),
            ("network", links.network),
            ("multicast", links.multicast),
        ] {
            writeln!(out, "{key} = {}", fraction(value))?;
        }
        self.network.write(out)?;
        if let Some(messages) = &self.messages {
            messages.write(out)?;
        }
        for protocol in Protocol::ALL {
            writeln!(out, "\n[protocol.{protocol}]")?;
            self.protocol(protocol).write(protocol, out)?;
        }
        for (launch, modes) in ["graph", "stream"].into_iter().zip(&self.launches) {
            for (processes, costs) in ["per_gpu", "single"].into_iter().zip(modes) {
                writeln!(out, "\n[launch.{launch}.{processes}]")?;
                costs.write(out)?;
            }
        }
        Ok(())
    }
}

impl ProtocolCosts {
    fn write(&self, protocol: Protocol, out: &mut String) -> std::fmt::Result {
        let times = [
            ("startup", self.startup),
            ("startup_per_warp", self.startup_per_warp),
            ("startup_per_peer", self.startup_per_peer),
            ("step", self.step),
            ("step_per_warp", self.step_per_warp),
            ("reduce", self.reduce),
            ("copy", self.copy),
            ("reload", self.reload),
            ("fan", self.split_block),
            ("settle", self.settle),
        ];
        write_times(&times, out)?;
        if let Some(startup) = self.startup_p2p {
            write_times(&[("startup_p2p", startup)], out)?;
        }
        if let Some(rate) = self.add {
            write_rates(&[("add", rate)], out)?;
        }
        writeln!(out, "settle_half = {}", bytes(self.settle_half))?;
        writeln!(out, "wire_efficiency = {}", fraction(self.wire_efficiency))?;
        if let ChannelLimit::Rate(rate) = self.channel_limit {
            write_rates(&[("channel", rate)], out)?;
        }
        writeln!(out, "threads = {}\nsplit = {}\nslices = {}", self.threads, fraction(self.split), self.slices)?;
        for (key, size) in [("chunk", self.chunk), ("stream", self.stream)] {
            if let Some(size) = size {
                writeln!(out, "{key} = {}", bytes(size))?;
            }
        }
        if let ChannelLimit::Passes(passes) = self.channel_limit {
            writeln!(out, "[protocol.{protocol}.pass]\nbytes_per_thread = {}", bytes(passes.bytes_per_thread))?;
            let times = [
                ("send", passes.send),
                ("forward", passes.forward),
                ("take", passes.receive),
                ("store", passes.store),
                ("per_warp", passes.per_warp),
                ("first_take", passes.first_receive),
            ];
            write_times(&times, out)?;
            if let Some(pass) = passes.exchange {
                write_times(&[("exchange", pass)], out)?;
            }
        }
        Ok(())
    }
}

impl LaunchCosts {
    fn write(&self, out: &mut String) -> std::fmt::Result {
        let times = [
            ("added", self.added),
            ("added_per_gpu", self.added_per_gpu),
            ("floor", self.floor),
            ("floor_per_gpu", self.floor_per_gpu),
            ("floor_per_peer", self.floor_per_peer),
            ("floor_one_way", self.floor_one_way),
            ("jitter", self.jitter),
        ];
        write_times(&times, out)
    }
}

/// Returns a text as a TOML string; the escapes of JSON are valid in TOML.
pub(super) fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

/// Returns a time in nanoseconds with its unit, exact to a picosecond.
pub(super) fn nanoseconds(time: Picos) -> String {
    let (whole, rest) = (time.0 / 1000, time.0 % 1000);
    if rest == 0 { format!("\"{whole} ns\"") } else { format!("\"{whole}.{rest:03} ns\"") }
}

/// Writes times, one per line.
pub(super) fn write_times(times: &[(&str, Picos)], out: &mut String) -> std::fmt::Result {
    times.iter().try_for_each(|&(key, time)| writeln!(out, "{key} = {}", nanoseconds(time)))
}

/// Writes rates, one per line.
pub(super) fn write_rates(rates: &[(&str, Bandwidth)], out: &mut String) -> std::fmt::Result {
    rates.iter().try_for_each(|&(key, rate)| writeln!(out, "{key} = \"{} B/s\"", rate.0))
}

pub(super) fn bytes(size: Bytes) -> String {
    format!("\"{}\"", size.0)
}

/// Rounds to seven decimal digits.
pub(super) fn fraction(value: f64) -> f64 {
    (value * 1e7).round() / 1e7
}

/// Writes sources, one per line.
pub(super) fn write_sources(sources: &[String], out: &mut String) -> std::fmt::Result {
    writeln!(out, "source = [")?;
    for source in sources {
        writeln!(out, "  {},", quoted(source))?;
    }
    writeln!(out, "]")
}

/// Joins the items of a list with commas.
pub(super) fn listed<T>(items: &[T], shown: impl Fn(&T) -> String) -> String {
    items.iter().map(shown).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_profiles_round_trip() {
        for name in Profile::names().filter(|&name| name != "ideal") {
            let profile = Profile::named(name).unwrap();
            let text = profile.to_toml();
            assert_eq!(Profile::parse(&text, "written").unwrap(), profile, "{text}");
        }
    }
}
