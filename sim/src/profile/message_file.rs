//! Reader and writer of the `[message]` table of a profile: cost of two-sided messages.

use std::fmt::Write as _;

use fabricast_topologies::{Bandwidth, Bytes, Picos};
use serde::Deserialize;

use super::message::{MessageCosts, ReductionSite};
use super::reader::{ProfileError, ProfileReader};
use super::write::{bytes, write_rates, write_times};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MessageFile {
    post: String,
    progress: String,
    eager_limit: String,
    copy_out: String,
    copy_out_rate: String,
    copy_in: String,
    copy_in_rate: String,
    control: String,
    launch: String,
    fragment: String,
    host_rate: String,
    sums: SumsFile,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SumsFile {
    Host,
    Device,
}

impl MessageFile {
    pub(super) fn costs(&self, reader: &ProfileReader<'_>) -> Result<MessageCosts, ProfileError> {
        let at = |key: &str| format!("message.{key}");
        let time = |key: &str, text: &str| -> Result<Picos, ProfileError> { reader.quantity(&at(key), text) };
        let rate = |key: &str, text: &str| -> Result<Bandwidth, ProfileError> {
            match reader.quantity(&at(key), text)? {
                Bandwidth(0) => Err(reader.error(&at(key), "expected more than 0")),
                rate => Ok(rate),
            }
        };
        let fragment: Bytes = reader.quantity(&at("fragment"), &self.fragment)?;
        if fragment.0 == 0 {
            return Err(reader.error(&at("fragment"), "expected at least one byte"));
        }
        Ok(MessageCosts {
            post: time("post", &self.post)?,
            progress: time("progress", &self.progress)?,
            eager_limit: reader.quantity(&at("eager_limit"), &self.eager_limit)?,
            copy_out: time("copy_out", &self.copy_out)?,
            copy_out_rate: rate("copy_out_rate", &self.copy_out_rate)?,
            copy_in: time("copy_in", &self.copy_in)?,
            copy_in_rate: rate("copy_in_rate", &self.copy_in_rate)?,
            control: time("control", &self.control)?,
            launch: time("launch", &self.launch)?,
            fragment,
            host_rate: rate("host_rate", &self.host_rate)?,
            sums: match self.sums {
                SumsFile::Host => ReductionSite::Host,
                SumsFile::Device => ReductionSite::Device,
            },
        })
    }
}

impl MessageCosts {
    pub(super) fn write(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "\n[message]")?;
        let times = [
            ("post", self.post),
            ("progress", self.progress),
            ("copy_out", self.copy_out),
            ("copy_in", self.copy_in),
            ("control", self.control),
            ("launch", self.launch),
        ];
        write_times(&times, out)?;
        let rates =
            [("copy_out_rate", self.copy_out_rate), ("copy_in_rate", self.copy_in_rate), ("host_rate", self.host_rate)];
        write_rates(&rates, out)?;
        for (key, size) in [("eager_limit", self.eager_limit), ("fragment", self.fragment)] {
            writeln!(out, "{key} = {}", bytes(size))?;
        }
        let sums = match self.sums {
            ReductionSite::Host => "host",
            ReductionSite::Device => "device",
        };
        writeln!(out, "sums = \"{sums}\"")
    }
}
