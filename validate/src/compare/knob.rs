//! Profile parameters that may explain a deviation.

use std::fmt;

use fabricast_sim::profile::{ChannelLimit, Launch, Processes, Profile, Role};
use fabricast_sim::schedule::Protocol;
use fabricast_topologies::{Bandwidth, LinkKind, Picos};

/// A parameter of a profile that may explain the error of a prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileParameter {
    /// Start-up cost of a protocol, added once per call.
    Startup(Protocol),
    /// Cost of a protocol before every operation.
    Step(Protocol),
    /// Maximum rate of a channel, for protocols whose blocks have a rate.
    Channel(Protocol),
    /// Time of a pass that sends local data or forwards received data, for protocols whose blocks work in passes.
    Pass(Protocol, Role),
    /// Efficiency of all links of a kind. A value above 1 means that links are faster than the fabric states.
    Links(LinkKind),
    /// Efficiency of multicast and reduction in switches.
    Multicast,
    /// Cost that a launch adds to every call.
    Added(Launch, Processes),
    /// Minimum time of a call.
    Floor(Launch, Processes),
    /// Increase of the minimum time of a call per GPU of a host.
    FloorPerGpu(Launch, Processes),
}

impl ProfileParameter {
    /// Value of the parameter in a profile: picoseconds, bytes per second or a fraction. `None` if the profile does not
    /// have the parameter, or if the value is zero, which no factor can change.
    #[must_use]
    pub fn value(self, profile: &Profile) -> Option<f64> {
        let mut profile = profile.clone();
        let value = match self.value_mut(&mut profile) {
            Figure::Time(time) => time.0 as f64,
            Figure::Rate(rate) => rate.0 as f64,
            Figure::Share(share) => *share,
            Figure::None => return None,
        };
        (value > 0.0).then_some(value)
    }

    /// Description of the parameter as the beginning of a sentence about its value, such as "each step of simple took".
    #[must_use]
    pub fn describe(self) -> String {
        match self {
            Self::Startup(protocol) => format!("the start of a call with {protocol} took"),
            Self::Step(protocol) => format!("each step of {protocol} took"),
            Self::Channel(protocol) => format!("a channel of {protocol} moved"),
            Self::Pass(protocol, Role::Send) => format!("a sending pass of {protocol} took"),
            Self::Pass(protocol, Role::Forward) => format!("a forwarding pass of {protocol} took"),
            Self::Links(LinkKind::Infiniband | LinkKind::Ethernet) => {
                "transfers over the network reached a share of its rate of".to_owned()
            }
            Self::Links(kind) => format!("transfers over {} reached a share of its rate of", kind.title()),
            Self::Multicast => "multicast in switches reached a share of the link rate of".to_owned(),
            Self::Added(..) => "the launch added to each call".to_owned(),
            Self::Floor(..) => "the shortest call took".to_owned(),
            Self::FloorPerGpu(..) => "the shortest call took, per GPU of a host,".to_owned(),
        }
    }

    /// Returns true if a larger value of the parameter prolongs calls, false if a larger value shortens them.
    #[must_use]
    pub fn is_cost(self) -> bool {
        !matches!(self, Self::Channel(_) | Self::Links(_) | Self::Multicast)
    }

    /// Returns the profile with this parameter multiplied by a factor.
    #[must_use]
    pub fn scale(self, profile: &Profile, factor: f64) -> Profile {
        let mut profile = profile.clone();
        match self.value_mut(&mut profile) {
            Figure::Time(time) => *time = Picos((time.0 as f64 * factor).round() as u64),
            Figure::Rate(rate) => *rate = Bandwidth(((rate.0 as f64 * factor).round() as u64).max(1)),
            Figure::Share(share) => *share *= factor,
            Figure::None => {}
        }
        profile
    }

    /// Formats the parameter's value in a profile with its unit; empty if the profile does not have the parameter. An
    /// efficiency above 1 is not possible, so the text adds that the links are faster than the fabric describes.
    #[must_use]
    pub fn format_value(self, profile: &Profile) -> String {
        let mut profile = profile.clone();
        match self.value_mut(&mut profile) {
            Figure::Time(time) => time.to_string(),
            Figure::Rate(rate) => rate.to_string(),
            Figure::Share(share) if *share > 1.0 => format!("{share:.3}, faster than the fabric describes"),
            Figure::Share(share) => format!("{share:.3}"),
            Figure::None => String::new(),
        }
    }

    fn value_mut(self, profile: &mut Profile) -> Figure<'_> {
        match self {
            Self::Startup(protocol) => Figure::Time(&mut profile.protocols[protocol as usize].startup),
            Self::Step(protocol) => Figure::Time(&mut profile.protocols[protocol as usize].step),
            Self::Channel(protocol) => match &mut profile.protocols[protocol as usize].channel_limit {
                ChannelLimit::Rate(rate) => Figure::Rate(rate),
                ChannelLimit::Passes(_) | ChannelLimit::Unlimited => Figure::None,
            },
            Self::Pass(protocol, role) => match (&mut profile.protocols[protocol as usize].channel_limit, role) {
                (ChannelLimit::Passes(passes), Role::Send) => Figure::Time(&mut passes.send),
                (ChannelLimit::Passes(passes), Role::Forward) => Figure::Time(&mut passes.forward),
                (ChannelLimit::Rate(_) | ChannelLimit::Unlimited, _) => Figure::None,
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

/// Mutable reference to a parameter's value, with one variant per type of value.
enum Figure<'a> {
    Time(&'a mut Picos),
    Rate(&'a mut Bandwidth),
    Share(&'a mut f64),
    None,
}

impl fmt::Display for ProfileParameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let launch = |launch: Launch, processes: Processes| {
            let launch_mode = crate::measured::manifest::launch_name(launch);
            format!("launch.{launch_mode}.{}", crate::measured::manifest::processes_name(processes))
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
            Self::Added(launch_mode, processes) => format!("{}.added", launch(launch_mode, processes)),
            Self::Floor(launch_mode, processes) => format!("{}.floor", launch(launch_mode, processes)),
            Self::FloorPerGpu(launch_mode, processes) => format!("{}.floor_per_gpu", launch(launch_mode, processes)),
        };
        f.pad(&name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn efficiency_above_one_is_attributed_to_the_fabric() {
        let profile = Profile::named("nccl-2.28-h200").unwrap();
        for parameter in [ProfileParameter::Links(LinkKind::Nvlink), ProfileParameter::Multicast] {
            let value = parameter.value(&profile).unwrap();
            assert_eq!(parameter.format_value(&profile), format!("{value:.3}"));
            let text = parameter.format_value(&parameter.scale(&profile, 1.2 / value));
            assert_eq!(text, "1.200, faster than the fabric describes", "{parameter}");
        }
    }

    #[test]
    fn scaling_a_parameter_changes_no_other() {
        let profile = Profile::named("nccl-2.28-h200").unwrap();
        let knobs = [
            ProfileParameter::Startup(Protocol::Ll),
            ProfileParameter::Step(Protocol::Simple),
            ProfileParameter::Channel(Protocol::Symmetric),
            ProfileParameter::Pass(Protocol::Ll128, Role::Send),
            ProfileParameter::Pass(Protocol::Ll128, Role::Forward),
            ProfileParameter::Links(LinkKind::Nvlink),
            ProfileParameter::Multicast,
            ProfileParameter::Floor(Launch::Graph, Processes::PerGpu),
            ProfileParameter::FloorPerGpu(Launch::Stream, Processes::Single),
        ];
        for knob in knobs {
            let scaled = knob.scale(&profile, 2.0);
            let ratio = knob.value(&scaled).unwrap() / knob.value(&profile).unwrap();
            assert!((ratio - 2.0).abs() < 1e-3, "{knob}");
            for other in knobs.into_iter().filter(|&other| other != knob) {
                assert_eq!(other.value(&scaled), other.value(&profile), "{knob} changed {other}");
            }
            assert_eq!(knob.scale(&profile, 1.0), profile, "{knob}");
        }
        assert_eq!(ProfileParameter::Startup(Protocol::Ll).value(&Profile::ideal()), None);
        assert_eq!(ProfileParameter::Channel(Protocol::Ll).value(&Profile::ideal()), None);
        // A protocol limits a channel either by a rate or by passes.
        assert_eq!(ProfileParameter::Channel(Protocol::Ll128).value(&profile), None);
        assert_eq!(ProfileParameter::Pass(Protocol::Symmetric, Role::Send).value(&profile), None);
        assert_eq!(ProfileParameter::Startup(Protocol::Ll).to_string(), "protocol.ll.startup");
        assert_eq!(ProfileParameter::Pass(Protocol::Ll, Role::Forward).to_string(), "protocol.ll.pass.forward");
        assert_eq!(ProfileParameter::Floor(Launch::Graph, Processes::PerGpu).to_string(), "launch.graph.per_gpu.floor");
    }
}
