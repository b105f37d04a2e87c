//! Profile parameters that may explain a deviation.

use std::fmt;

use fabricast_sim::profile::{LaneSpeed, Launch, Processes, Profile, Role};
use fabricast_sim::schedule::Protocol;
use fabricast_topologies::{Bandwidth, LinkKind, Picos};

/// A parameter of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knob {
    /// Start-up cost of a protocol, once per call.
    Startup(Protocol),
    /// Cost of a protocol before every operation.
    Step(Protocol),
    /// Maximum rate of a channel, for protocols whose blocks have a rate.
    Channel(Protocol),
    /// Time of a pass that sends local data or forwards arriving data, for protocols whose blocks work in passes.
    Pass(Protocol, Role),
    /// Efficiency of the links of a kind; also covers links that differ from the fabric's description.
    Links(LinkKind),
    /// Efficiency of multicast and reduction in switches.
    Multicast,
    /// Cost that a launch adds to every call.
    Added(Launch, Processes),
    /// Minimum time of a call.
    Floor(Launch, Processes),
    /// Minimum time of a call per GPU of a host.
    FloorPerGpu(Launch, Processes),
}

impl Knob {
    /// The value; `None` if the profile does not have the parameter, or if it is zero, which no factor changes.
    #[must_use]
    pub fn value(self, profile: &Profile) -> Option<f64> {
        let mut profile = profile.clone();
        let value = match self.of(&mut profile) {
            Figure::Time(time) => time.0 as f64,
            Figure::Rate(rate) => rate.0 as f64,
            Figure::Share(share) => *share,
            Figure::None => return None,
        };
        (value > 0.0).then_some(value)
    }

    /// Returns true if a larger value prolongs calls; for the others it shortens them.
    #[must_use]
    pub fn is_cost(self) -> bool {
        !matches!(self, Self::Channel(_) | Self::Links(_) | Self::Multicast)
    }

    /// Returns the profile with this parameter multiplied by a factor.
    #[must_use]
    pub fn turned(self, profile: &Profile, factor: f64) -> Profile {
        let mut profile = profile.clone();
        match self.of(&mut profile) {
            Figure::Time(time) => *time = Picos((time.0 as f64 * factor).round() as u64),
            Figure::Rate(rate) => *rate = Bandwidth(((rate.0 as f64 * factor).round() as u64).max(1)),
            Figure::Share(share) => *share *= factor,
            Figure::None => {}
        }
        profile
    }

    /// The value with its unit.
    #[must_use]
    pub fn shown(self, profile: &Profile) -> String {
        let mut profile = profile.clone();
        match self.of(&mut profile) {
            Figure::Time(time) => time.to_string(),
            Figure::Rate(rate) => rate.to_string(),
            Figure::Share(share) => format!("{share:.3}"),
            Figure::None => String::new(),
        }
    }

    fn of(self, profile: &mut Profile) -> Figure<'_> {
        match self {
            Self::Startup(protocol) => Figure::Time(&mut profile.protocols[protocol as usize].startup),
            Self::Step(protocol) => Figure::Time(&mut profile.protocols[protocol as usize].step),
            Self::Channel(protocol) => match &mut profile.protocols[protocol as usize].lane {
                LaneSpeed::Rate(rate) => Figure::Rate(rate),
                LaneSpeed::Passes(_) | LaneSpeed::Unlimited => Figure::None,
            },
            Self::Pass(protocol, role) => match (&mut profile.protocols[protocol as usize].lane, role) {
                (LaneSpeed::Passes(passes), Role::Send) => Figure::Time(&mut passes.send),
                (LaneSpeed::Passes(passes), Role::Forward) => Figure::Time(&mut passes.forward),
                (LaneSpeed::Rate(_) | LaneSpeed::Unlimited, _) => Figure::None,
            },
            Self::Links(kind) => Figure::Share(match kind {
                LinkKind::Nvlink => &mut profile.links.nvlink,
                LinkKind::C2c => &mut profile.links.c2c,
                LinkKind::Pcie => &mut profile.links.pcie,
                LinkKind::Upi => &mut profile.links.upi,
                LinkKind::Infiniband | LinkKind::Ethernet => &mut profile.links.network,
            }),
            Self::Multicast => Figure::Share(&mut profile.links.multicast),
            Self::Added(launch, by) => Figure::Time(&mut profile.launches[launch as usize][by as usize].added),
            Self::Floor(launch, by) => Figure::Time(&mut profile.launches[launch as usize][by as usize].floor),
            Self::FloorPerGpu(launch, by) => {
                Figure::Time(&mut profile.launches[launch as usize][by as usize].floor_per_gpu)
            }
        }
    }
}

/// Access to a value by its kind.
enum Figure<'a> {
    Time(&'a mut Picos),
    Rate(&'a mut Bandwidth),
    Share(&'a mut f64),
    None,
}

impl fmt::Display for Knob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let launch = |launch: Launch, by: Processes| {
            let how = crate::measured::manifest::launch_name(launch);
            format!("launch.{how}.{}", crate::measured::manifest::processes_name(by))
        };
        let name = match *self {
            Self::Startup(protocol) => format!("protocol.{protocol}.startup"),
            Self::Step(protocol) => format!("protocol.{protocol}.step"),
            Self::Channel(protocol) => format!("protocol.{protocol}.channel"),
            Self::Pass(protocol, Role::Send) => format!("protocol.{protocol}.pass.send"),
            Self::Pass(protocol, Role::Forward) => format!("protocol.{protocol}.pass.forward"),
            Self::Links(LinkKind::Infiniband | LinkKind::Ethernet) => "links.network".to_owned(),
            Self::Links(kind) => format!("links.{}", kind.name()),
            Self::Multicast => "links.multicast".to_owned(),
            Self::Added(how, by) => format!("{}.added", launch(how, by)),
            Self::Floor(how, by) => format!("{}.floor", launch(how, by)),
            Self::FloorPerGpu(how, by) => format!("{}.floor_per_gpu", launch(how, by)),
        };
        f.pad(&name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scaling_a_parameter_changes_no_other() {
        let profile = Profile::named("nccl-2.28-h200").unwrap();
        let knobs = [
            Knob::Startup(Protocol::Ll),
            Knob::Step(Protocol::Simple),
            Knob::Channel(Protocol::Symmetric),
            Knob::Pass(Protocol::Ll128, Role::Send),
            Knob::Pass(Protocol::Ll128, Role::Forward),
            Knob::Links(LinkKind::Nvlink),
            Knob::Multicast,
            Knob::Floor(Launch::Graph, Processes::PerGpu),
            Knob::FloorPerGpu(Launch::Stream, Processes::Single),
        ];
        for knob in knobs {
            let turned = knob.turned(&profile, 2.0);
            let ratio = knob.value(&turned).unwrap() / knob.value(&profile).unwrap();
            assert!((ratio - 2.0).abs() < 1e-3, "{knob}");
            for other in knobs.into_iter().filter(|&other| other != knob) {
                assert_eq!(other.value(&turned), other.value(&profile), "{knob} changed {other}");
            }
            assert_eq!(knob.turned(&profile, 1.0), profile, "{knob}");
        }
        assert_eq!(Knob::Startup(Protocol::Ll).value(&Profile::ideal()), None);
        assert_eq!(Knob::Channel(Protocol::Ll).value(&Profile::ideal()), None);
        // A protocol limits a channel either by a rate or by passes.
        assert_eq!(Knob::Channel(Protocol::Ll128).value(&profile), None);
        assert_eq!(Knob::Pass(Protocol::Symmetric, Role::Send).value(&profile), None);
        assert_eq!(Knob::Startup(Protocol::Ll).to_string(), "protocol.ll.startup");
        assert_eq!(Knob::Pass(Protocol::Ll, Role::Forward).to_string(), "protocol.ll.pass.forward");
        assert_eq!(Knob::Floor(Launch::Graph, Processes::PerGpu).to_string(), "launch.graph.per_gpu.floor");
    }
}
