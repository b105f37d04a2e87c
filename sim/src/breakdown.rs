//! Breakdown of a completion time into the costs of the profile. Each figure of the profile is listed once, by name.
//!
//! A completion time is homogeneous in its costs: if all software times, latencies and times per byte double, the
//! completion time doubles. It is therefore the sum of each cost multiplied by its derivative (Euler's theorem). That
//! product is the contribution of the cost to the critical path: the number of times that it is charged there,
//! multiplied by the cost. Derivatives are differences between runs with a cost one hundredth longer and one hundredth
//! shorter, so that no cost formula is written twice.
//!
//! Costs are lengthened one after the other, from a run in which all are shorter to a run in which all are longer. The
//! parts then add up to the difference between these two runs, even if the critical path changes in between. (If each
//! cost were changed alone, two chains of nearly equal length would each count the costs that make it the longer one,
//! and the sum would count both chains.)

use fabricast_topologies::{Bandwidth, Picos};

use crate::profile::{
    ChannelLimit, LaunchCosts, LinkEfficiency, MessageCosts, NetworkCosts, Passes, Profile, ProtocolCosts,
};
use crate::schedule::Protocol;
use crate::timeline::{LaunchMode, Timeline};

/// Completion time as the sum of the contributions of a profile's costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Breakdown {
    /// Completion time with the unchanged profile.
    pub time: Picos,
    /// Non-zero parts, in the order of a profile file; with `unexplained` they add up to the time.
    pub parts: Vec<TimePart>,
    /// Time that no part explains: waiting for capacities other than links (memory, copy engines), and changes of the
    /// critical path.
    pub unexplained: Picos,
}

/// Contribution of one cost to a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimePart {
    /// Name of the figure in the profile file, such as `protocol.ll.step`. The latency of paths is named `latency`.
    pub name: String,
    /// Part of the completion time that is due to this cost.
    pub time: Picos,
}

/// Relative change of a cost in each direction: one hundredth.
const STEP: f64 = 0.01;

/// Field of a table of a profile: its name in profile files, and its accessor.
type NamedFigure<Table, Figure> = (&'static str, fn(&mut Table) -> &mut Figure);

/// Times among the costs of a protocol, by their names in profile files.
const TIMES: [NamedFigure<ProtocolCosts, Picos>; 10] = [
    ("startup", |costs| &mut costs.startup),
    ("startup_per_warp", |costs| &mut costs.startup_per_warp),
    ("startup_per_peer", |costs| &mut costs.startup_per_peer),
    ("step", |costs| &mut costs.step),
    ("step_per_warp", |costs| &mut costs.step_per_warp),
    ("reduce", |costs| &mut costs.reduce),
    ("copy", |costs| &mut costs.copy),
    ("reload", |costs| &mut costs.reload),
    ("fan", |costs| &mut costs.split_block),
    ("settle", |costs| &mut costs.settle),
];

/// Field of the costs of a thread block that works in passes: its name in profile files, and its accessor, which
/// returns `None` if the profile does not have the field.
type Optional = (&'static str, fn(&mut Passes) -> Option<&mut Picos>);

/// Times of thread blocks that move data in passes.
const PASSES: [Optional; 7] = [
    ("pass.send", |passes| Some(&mut passes.send)),
    ("pass.forward", |passes| Some(&mut passes.forward)),
    ("pass.take", |passes| Some(&mut passes.receive)),
    ("pass.per_warp", |passes| Some(&mut passes.per_warp)),
    ("pass.store", |passes| Some(&mut passes.store)),
    ("pass.first_take", |passes| Some(&mut passes.first_receive)),
    ("pass.exchange", |passes| passes.exchange.as_mut()),
];

/// Efficiencies of links. A lower efficiency lengthens the time per byte. The overhead of protocol framing
/// (`wire_efficiency`) and of NVLink multicast is counted as part of the link's.
const LINKS: [NamedFigure<LinkEfficiency, f64>; 6] = [
    ("nvlink", |links| &mut links.nvlink),
    ("c2c", |links| &mut links.c2c),
    ("pcie", |links| &mut links.pcie),
    ("pcie_peers", |links| &mut links.pcie_peers),
    ("upi", |links| &mut links.upi),
    ("network", |links| &mut links.network),
];

/// Times among the costs of messages between hosts, by their names in profile files.
const NETWORK_TIMES: [NamedFigure<NetworkCosts, Picos>; 7] = [
    ("post", |costs| &mut costs.post),
    ("fence", |costs| &mut costs.fence),
    ("arrive", |costs| &mut costs.arrive),
    ("flush", |costs| &mut costs.flush),
    ("message", |costs| &mut costs.message),
    ("rendezvous", |costs| &mut costs.rendezvous),
    ("signal", |costs| &mut costs.signal),
];

/// Times among the costs of two-sided messages, by their names in profile files.
const MESSAGE_TIMES: [NamedFigure<MessageCosts, Picos>; 6] = [
    ("post", |costs| &mut costs.post),
    ("progress", |costs| &mut costs.progress),
    ("copy_out", |costs| &mut costs.copy_out),
    ("copy_in", |costs| &mut costs.copy_in),
    ("control", |costs| &mut costs.control),
    ("launch", |costs| &mut costs.launch),
];

/// Rates of two-sided messages: a lower one lengthens the time.
const MESSAGE_RATES: [NamedFigure<MessageCosts, Bandwidth>; 3] = [
    ("copy_out_rate", |costs| &mut costs.copy_out_rate),
    ("copy_in_rate", |costs| &mut costs.copy_in_rate),
    ("host_rate", |costs| &mut costs.host_rate),
];

/// Times among the costs of a launch mode, by their names in profile files.
const LAUNCHES: [NamedFigure<LaunchCosts, Picos>; 7] = [
    ("added", |costs| &mut costs.added),
    ("added_per_gpu", |costs| &mut costs.added_per_gpu),
    ("floor", |costs| &mut costs.floor),
    ("floor_per_gpu", |costs| &mut costs.floor_per_gpu),
    ("floor_per_peer", |costs| &mut costs.floor_per_peer),
    ("floor_one_way", |costs| &mut costs.floor_one_way),
    ("jitter", |costs| &mut costs.jitter),
];

/// Computes the breakdown of a time. `run` simulates with a given profile.
///
/// # Errors
/// The first error of `run`.
pub fn breakdown<E>(
    profile: &Profile,
    protocol: Protocol,
    mode: LaunchMode,
    mut run: impl FnMut(&Profile) -> Result<Timeline, E>,
) -> Result<Breakdown, E> {
    let baseline = run(profile)?;
    let costs: Vec<(String, Scale)> =
        costs(protocol, mode).into_iter().filter(|(_, scale)| scale(&mut profile.clone(), 1.0)).collect();
    // Simulates with the first `longer` costs longer and the others shorter.
    let mut run_with = |longer: usize| {
        let mut moved = profile.clone();
        for (number, (_, scale)) in costs.iter().enumerate() {
            scale(&mut moved, if number < longer { 1.0 + STEP } else { 1.0 - STEP });
        }
        run(&moved)
    };
    let mut before = run_with(0)?;
    let mut path_latency = baseline.costs.latency.max(before.costs.latency);
    let mut parts = Vec::new();
    for (longer, (name, _)) in (1..).zip(&costs) {
        let after = run_with(longer)?;
        let time = (after.time.0 as f64 - before.time.0 as f64) / (2.0 * STEP);
        let time = Picos(time.round().max(0.0) as u64);
        if time > Picos::ZERO {
            parts.push(TimePart { name: name.clone(), time });
        }
        before = after;
    }
    path_latency = path_latency.max(before.costs.latency);
    // If a launch floor determines the time, the chain on the device does not.
    let known: Picos = parts.iter().map(|part| part.time).sum();
    // Latencies of messages between hosts are counted as part of the path latency.
    let named = |part: &&TimePart| {
        NETWORK_TIMES.iter().any(|(name, _)| part.name == format!("network.{name}"))
            || MESSAGE_TIMES
                .iter()
                .filter(|(name, _)| !["progress", "copy_out"].contains(name))
                .any(|(name, _)| part.name == format!("message.{name}"))
            || part.name == "message.copy_in_rate"
    };
    let message_latency: Picos = parts.iter().filter(named).map(|part| part.time).sum();
    // Of alternating critical paths, the one with the largest latency counts.
    let latency =
        Picos(path_latency.0.saturating_sub(message_latency.0)).min(Picos(baseline.time.0.saturating_sub(known.0)));
    if latency > Picos::ZERO {
        parts.push(TimePart { name: "latency".to_owned(), time: latency });
    }
    let known = known + latency;
    Ok(Breakdown { time: baseline.time, parts, unexplained: Picos(baseline.time.0.saturating_sub(known.0)) })
}

/// Function that scales a cost of a profile by a factor; returns false if the profile does not have the cost.
type Scale = Box<dyn Fn(&mut Profile, f64) -> bool>;

/// Returns the costs that may contribute to a run with a protocol, by name.
fn costs(protocol: Protocol, mode: LaunchMode) -> Vec<(String, Scale)> {
    let mut costs: Vec<(String, Scale)> = Vec::new();
    let number = protocol as usize;
    for (name, field) in TIMES {
        let scaled: Scale =
            Box::new(move |profile, factor| scale(profile.protocols.get_mut(number).map(field), factor));
        costs.push((format!("protocol.{protocol}.{name}"), scaled));
    }
    let startup: Scale = Box::new(move |profile, factor| {
        scale(profile.protocols.get_mut(number).and_then(|costs| costs.startup_p2p.as_mut()), factor)
    });
    costs.push((format!("protocol.{protocol}.startup_p2p"), startup));
    let add: Scale = Box::new(move |profile, factor| {
        scale_rate(profile.protocols.get_mut(number).and_then(|costs| costs.add.as_mut()), factor)
    });
    costs.push((format!("protocol.{protocol}.add"), add));
    for (name, field) in PASSES {
        let scaled: Scale = Box::new(move |profile, factor| {
            match profile.protocols.get_mut(number).map(|costs| &mut costs.channel_limit) {
                Some(ChannelLimit::Passes(passes)) => scale(field(passes), factor),
                _ => false,
            }
        });
        costs.push((format!("protocol.{protocol}.{name}"), scaled));
    }
    let channel: Scale = Box::new(move |profile, factor| {
        match profile.protocols.get_mut(number).map(|costs| &mut costs.channel_limit) {
            Some(ChannelLimit::Rate(rate)) => scale_rate(Some(rate), factor),
            _ => false,
        }
    });
    costs.push((format!("protocol.{protocol}.channel"), channel));
    for (name, field) in LINKS {
        let scaled: Scale = Box::new(move |profile, factor| {
            *field(&mut profile.links) /= factor;
            true
        });
        costs.push((format!("links.{name}"), scaled));
    }
    for (name, field) in NETWORK_TIMES {
        let scaled: Scale = Box::new(move |profile, factor| scale(Some(field(&mut profile.network)), factor));
        costs.push((format!("network.{name}"), scaled));
    }
    let scan: Scale = Box::new(|profile, factor| scale_rate(profile.network.scan.as_mut(), factor));
    costs.push(("network.scan".to_owned(), scan));
    for (name, field) in MESSAGE_TIMES {
        let scaled: Scale = Box::new(move |profile, factor| scale(profile.messages.as_mut().map(field), factor));
        costs.push((format!("message.{name}"), scaled));
    }
    for (name, field) in MESSAGE_RATES {
        let scaled: Scale = Box::new(move |profile, factor| scale_rate(profile.messages.as_mut().map(field), factor));
        costs.push((format!("message.{name}"), scaled));
    }
    for (name, field) in LAUNCHES {
        let scaled: Scale = Box::new(move |profile, factor| {
            let modes = profile.launches.get_mut(mode.launch as usize);
            scale(modes.and_then(|modes| modes.get_mut(mode.processes as usize)).map(field), factor)
        });
        costs.push((format!("launch.{}.{name}", mode.name()), scaled));
    }
    costs
}

/// Scales a time by a factor; returns false if the time is absent or 0.
fn scale(time: Option<&mut Picos>, factor: f64) -> bool {
    match time {
        Some(time) if *time > Picos::ZERO => {
            *time = Picos((time.0 as f64 * factor).round() as u64);
            true
        }
        _ => false,
    }
}

/// Divides a rate by a factor; returns false if the rate is absent.
fn scale_rate(rate: Option<&mut Bandwidth>, factor: f64) -> bool {
    match rate {
        Some(rate) => {
            rate.0 = (rate.0 as f64 / factor).round() as u64;
            true
        }
        None => false,
    }
}
