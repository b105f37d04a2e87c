//! Which cost of the profile a time is made of: every figure once, with its name.
//!
//! A time is homogeneous in what it is made of: where all software times, latencies and times per byte are twice as long,
//! so is it. So it is the sum of each of them times its own derivative (Euler's theorem), and that product is what stands of
//! a cost on the critical path: how often it is charged there, times itself. Derivatives are differences over two runs with
//! the cost a hundredth longer and shorter, so that no formula of a cost is written twice.

use fabricast_topologies::{Bandwidth, Picos};

use crate::profile::{
    LaneSpeed, LaunchCosts, LinkEfficiency, MessageCosts, NetworkCosts, Passes, Profile, ProtocolCosts,
};
use crate::schedule::Protocol;
use crate::timeline::{LaunchMode, Timeline};

/// What a time is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Breakdown {
    /// The time.
    pub time: Picos,
    /// Its parts that are not nothing, in the order of a profile file; they and `rest` add up to it.
    pub parts: Vec<Part>,
    /// What no part explains: capacities that are no link's (memory, engines), and where two chains take turns.
    pub rest: Picos,
}

/// A part of a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The figure of the profile as its file calls it: `protocol.ll.step`; `latency` for that of paths.
    pub name: String,
    /// What it comes to.
    pub time: Picos,
}

/// How far a cost is moved each way.
const STEP: f64 = 0.01;

/// A figure in a table of a profile: its name there, and where it stands.
type Named<Table, Figure> = (&'static str, fn(&mut Table) -> &mut Figure);

/// Times of a protocol.
const TIMES: [Named<ProtocolCosts, Picos>; 10] = [
    ("startup", |costs| &mut costs.startup),
    ("startup_per_warp", |costs| &mut costs.startup_per_warp),
    ("startup_per_peer", |costs| &mut costs.startup_per_peer),
    ("step", |costs| &mut costs.step),
    ("step_per_warp", |costs| &mut costs.step_per_warp),
    ("reduce", |costs| &mut costs.reduce),
    ("copy", |costs| &mut costs.copy),
    ("reload", |costs| &mut costs.reload),
    ("fan", |costs| &mut costs.fan),
    ("settle", |costs| &mut costs.settle),
];

/// A time that not every profile has, by its name.
type Optional = (&'static str, fn(&mut Passes) -> Option<&mut Picos>);

/// Times of blocks that work by passes.
const PASSES: [Optional; 7] = [
    ("pass.send", |passes| Some(&mut passes.send)),
    ("pass.forward", |passes| Some(&mut passes.forward)),
    ("pass.take", |passes| Some(&mut passes.take)),
    ("pass.per_warp", |passes| Some(&mut passes.per_warp)),
    ("pass.store", |passes| Some(&mut passes.store)),
    ("pass.first_take", |passes| Some(&mut passes.first_take)),
    ("pass.exchange", |passes| passes.exchange.as_mut()),
];

/// What links reach: bytes take the longer the less it is. What a protocol's framing adds (`wire_efficiency`), and what of
/// NVLink multicast does not reach, is part of the link's.
const LINKS: [Named<LinkEfficiency, f64>; 5] = [
    ("nvlink", |links| &mut links.nvlink),
    ("c2c", |links| &mut links.c2c),
    ("pcie", |links| &mut links.pcie),
    ("upi", |links| &mut links.upi),
    ("network", |links| &mut links.network),
];

/// Times of messages between hosts.
const MESSAGES: [Named<NetworkCosts, Picos>; 5] = [
    ("post", |costs| &mut costs.post),
    ("fence", |costs| &mut costs.fence),
    ("arrive", |costs| &mut costs.arrive),
    ("flush", |costs| &mut costs.flush),
    ("message", |costs| &mut costs.message),
];

/// Times of two-sided messages.
const LETTERS: [Named<MessageCosts, Picos>; 6] = [
    ("post", |costs| &mut costs.post),
    ("progress", |costs| &mut costs.progress),
    ("copy_out", |costs| &mut costs.copy_out),
    ("copy_in", |costs| &mut costs.copy_in),
    ("control", |costs| &mut costs.control),
    ("launch", |costs| &mut costs.launch),
];

/// Rates of two-sided messages: what takes the longer the less they are.
const LETTER_RATES: [Named<MessageCosts, Bandwidth>; 3] = [
    ("copy_out_rate", |costs| &mut costs.copy_out_rate),
    ("copy_in_rate", |costs| &mut costs.copy_in_rate),
    ("host_rate", |costs| &mut costs.host_rate),
];

/// Times of a launch mode.
const LAUNCHES: [Named<LaunchCosts, Picos>; 7] = [
    ("added", |costs| &mut costs.added),
    ("added_per_gpu", |costs| &mut costs.added_per_gpu),
    ("floor", |costs| &mut costs.floor),
    ("floor_per_gpu", |costs| &mut costs.floor_per_gpu),
    ("floor_per_peer", |costs| &mut costs.floor_per_peer),
    ("floor_one_way", |costs| &mut costs.floor_one_way),
    ("jitter", |costs| &mut costs.jitter),
];

/// Takes a time apart. `run` is the run with any profile.
///
/// # Errors
/// The first of `run`.
pub fn breakdown<E>(
    profile: &Profile,
    protocol: Protocol,
    mode: LaunchMode,
    mut run: impl FnMut(&Profile) -> Result<Timeline, E>,
) -> Result<Breakdown, E> {
    let whole = run(profile)?;
    let mut parts = Vec::new();
    let mut part = |name: String, moved: &dyn Fn(&mut Profile, f64) -> bool| -> Result<(), E> {
        let mut times = [0.0; 2];
        for (time, factor) in times.iter_mut().zip([1.0 - STEP, 1.0 + STEP]) {
            let mut profile = profile.clone();
            if !moved(&mut profile, factor) {
                return Ok(());
            }
            *time = run(&profile)?.time.0 as f64;
        }
        let [shorter, longer] = times;
        let time = Picos(((longer - shorter) / (2.0 * STEP)).round().max(0.0) as u64);
        if time > Picos::ZERO {
            parts.push(Part { name, time });
        }
        Ok(())
    };
    for (name, of) in TIMES {
        part(format!("protocol.{protocol}.{name}"), &|profile, factor| {
            scale(profile.protocols.get_mut(protocol as usize).map(of), factor)
        })?;
    }
    part(format!("protocol.{protocol}.startup_p2p"), &|profile, factor| {
        scale(profile.protocols.get_mut(protocol as usize).and_then(|costs| costs.startup_p2p.as_mut()), factor)
    })?;
    part(format!("protocol.{protocol}.add"), &|profile, factor| match profile
        .protocols
        .get_mut(protocol as usize)
        .and_then(|costs| costs.add.as_mut())
    {
        Some(rate) => {
            rate.0 = (rate.0 as f64 / factor).round() as u64;
            true
        }
        None => false,
    })?;
    for (name, of) in PASSES {
        part(format!("protocol.{protocol}.{name}"), &|profile, factor| match profile
            .protocols
            .get_mut(protocol as usize)
            .map(|costs| &mut costs.lane)
        {
            Some(LaneSpeed::Passes(passes)) => scale(of(passes), factor),
            _ => false,
        })?;
    }
    part(format!("protocol.{protocol}.channel"), &|profile, factor| match profile
        .protocols
        .get_mut(protocol as usize)
        .map(|costs| &mut costs.lane)
    {
        Some(LaneSpeed::Rate(rate)) => {
            rate.0 = (rate.0 as f64 / factor).round() as u64;
            true
        }
        _ => false,
    })?;
    for (name, of) in LINKS {
        part(format!("links.{name}"), &|profile, factor| {
            *of(&mut profile.links) /= factor;
            true
        })?;
    }
    for (name, of) in MESSAGES {
        part(format!("network.{name}"), &|profile, factor| scale(Some(of(&mut profile.network)), factor))?;
    }
    part("network.scan".to_owned(), &|profile, factor| match &mut profile.network.scan {
        Some(rate) => {
            rate.0 = (rate.0 as f64 / factor).round() as u64;
            true
        }
        None => false,
    })?;
    for (name, of) in LETTERS {
        part(format!("message.{name}"), &|profile, factor| scale(profile.messages.as_mut().map(of), factor))?;
    }
    for (name, of) in LETTER_RATES {
        part(format!("message.{name}"), &|profile, factor| match profile.messages.as_mut().map(of) {
            Some(rate) => {
                rate.0 = (rate.0 as f64 / factor).round() as u64;
                true
            }
            None => false,
        })?;
    }
    for (name, of) in LAUNCHES {
        part(format!("launch.{}.{name}", mode.name()), &|profile, factor| {
            let modes = profile.launches.get_mut(mode.launch as usize);
            scale(modes.and_then(|modes| modes.get_mut(mode.processes as usize)).map(of), factor)
        })?;
    }
    // Where a floor decides, the chain of the device is not what the time is made of.
    let known: Picos = parts.iter().map(|part| part.time).sum();
    // What messages between hosts wait for is part of the latency of paths.
    let named = |part: &&Part| {
        MESSAGES.iter().any(|(name, _)| part.name == format!("network.{name}"))
            || LETTERS
                .iter()
                .filter(|(name, _)| *name != "progress")
                .any(|(name, _)| part.name == format!("message.{name}"))
            || ["message.copy_out_rate", "message.copy_in_rate"].contains(&&*part.name)
    };
    let of_messages: Picos = parts.iter().filter(named).map(|part| part.time).sum();
    let latency =
        Picos(whole.costs.latency.0.saturating_sub(of_messages.0)).min(Picos(whole.time.0.saturating_sub(known.0)));
    if latency > Picos::ZERO {
        parts.push(Part { name: "latency".to_owned(), time: latency });
    }
    let known = known + latency;
    Ok(Breakdown { time: whole.time, parts, rest: Picos(whole.time.0.saturating_sub(known.0)) })
}

/// Whether there was something to scale.
fn scale(time: Option<&mut Picos>, factor: f64) -> bool {
    match time {
        Some(time) if *time > Picos::ZERO => {
            *time = Picos((time.0 as f64 * factor).round() as u64);
            true
        }
        _ => false,
    }
}
