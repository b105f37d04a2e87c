//! Lower bounds on a strategy's completion time, computed before its simulation. They follow from the traffic that the
//! collective requires on the fabric, from step counts of the algorithm, and from the critical path and the resource
//! loads of one loop of the schedule (`sim::template`).
//!
//! None of the bounds exceeds the simulated time, so a search that prunes by them finds the same result as a search
//! that simulates every candidate.

use fabricast_sim::profile::{ChannelLimit, HostWork};
use fabricast_sim::schedule::{Call, Header, Processor, TrafficMatrix};
use fabricast_topologies::Picos;

use super::PlanRequest;
use super::templates::GroupTemplate;
use fabricast_collectives::algorithm::facts::{Count, LowerBoundCounts, lower_bound_counts};
use fabricast_collectives::bound::{Bounds, InNetwork, RateEfficiency, Sharing, minimum_traffic};
use fabricast_collectives::strategy::Strategy;

/// Lower bounds on the times of all strategies for a call.
pub(super) struct LowerBounds<'a> {
    pub(super) request: &'a PlanRequest<'a>,
    pub(super) bounds: &'a Bounds,
    pub(super) call: Call,
    pub(super) matrix: Option<&'a TrafficMatrix>,
}

impl LowerBounds<'_> {
    /// Lower bound on the strategy's time, including the launch, without a schedule. The bound is the start-up time
    /// plus the larger of two terms: the sequential steps of the algorithm; or one step plus the time to move the bytes
    /// through the fabric, through the channels at the protocol's rate, or through the port of the rank that sends
    /// most. A step that overlaps with arriving data is shorter by at most half of the time for which its operation then
    /// occupies its block, so that both together take at least a step; but the first byte may be sent at once.
    pub(super) fn traffic_bound(&self, strategy: Strategy) -> Picos {
        let (request, call) = (self.request, &self.call);
        let costs = request.profile.protocol(strategy.protocol);
        let links = request.profile.links;
        let max_link_efficiency =
            [links.nvlink, links.c2c, links.pcie, links.upi, links.network].into_iter().fold(0.0, f64::max);
        // Efficiencies in the simulator have rounding errors of less than 10⁻⁶.
        let with_tolerance = |efficiency: f64| efficiency + 1e-6;
        let efficiency =
            RateEfficiency { wire: with_tolerance(costs.wire_efficiency), links: with_tolerance(max_link_efficiency) };
        let fabric = self.bounds.time_at_efficiency(call, strategy.algorithm.in_network(), efficiency);
        let first_byte = self.bounds.first_byte();
        let channel_time = first_byte + Picos(self.channel_time_ps(strategy) as u64);
        let step = if call.ranks > 1 { costs.min_software() } else { Picos::ZERO };
        let first_step = if costs.overlaps_steps() { Picos::ZERO } else { step };
        let count = Count::on_hosts(call.ranks, request.ranks_per_node);
        // Between ranks of one device a step has no latency, and messages use no port. Messages between CPUs use no
        // port either.
        let on_device = request.profile.processor(call.collective) == Processor::Device;
        let LowerBoundCounts { steps, sent } = match self.bounds.sharing() {
            Sharing::None if on_device => lower_bound_counts(strategy.algorithm, call.collective, count),
            _ => LowerBoundCounts::default(),
        };
        let port = first_byte + self.bounds.send_time_at_efficiency(sent * call.bytes.0 as f64, efficiency);
        let steps = Picos(((step + first_byte).0 as f64 * steps) as u64);
        self.add_launch(
            strategy,
            costs.min_startup(call.collective) + (first_step + fabric.max(channel_time).max(port)).max(steps),
        )
    }

    /// Variant of [`Self::traffic_bound`] with a known lower bound on the time on the device.
    pub(super) fn device_bound(&self, strategy: Strategy, device: Picos) -> Picos {
        self.traffic_bound(strategy).max(self.add_launch(strategy, device))
    }

    /// Variant of [`Self::traffic_bound`] with the schedule's header and template.
    pub(super) fn template_bound(&self, strategy: Strategy, header: &Header, group_template: &GroupTemplate) -> Picos {
        let bound = group_template
            .template()
            .and_then(|template| template.lower_bound(header, group_template.groups, self.request.profile));
        self.device_bound(strategy, bound.unwrap_or_default())
    }

    /// Variant of [`Self::template_bound`] with a template of a part of the schedule, one of whose `groups` equal groups
    /// is bounded: of the first channel, or of the ranks on a longest chain of dependencies.
    pub(super) fn part_bound(
        &self,
        strategy: Strategy,
        header: &Header,
        group_template: &GroupTemplate,
        groups: u16,
    ) -> Picos {
        let (template, profile) = (group_template.template(), self.request.profile);
        let bound = template.and_then(|template| template.first_group_lower_bound(header, groups, profile));
        self.device_bound(strategy, bound.unwrap_or_default())
    }

    fn add_launch(&self, strategy: Strategy, device: Picos) -> Picos {
        let mode = self.request.mode;
        let work = HostWork::for_call(mode.gpus_per_host, self.call.collective, strategy.protocol, self.call.ranks);
        self.request.profile.launch(mode.launch, mode.processes).call_time(device, work)
    }

    /// Lower bound, in picoseconds, on the time that the channels of all ranks need to move the traffic that the call
    /// requires. Copies within a rank are ignored.
    fn channel_time_ps(&self, strategy: Strategy) -> f64 {
        let ChannelLimit::Rate(rate) = self.request.profile.protocol(strategy.protocol).channel_limit else {
            return 0.0;
        };
        // Data that switches replicate does not pass through a channel.
        if strategy.algorithm.in_network() == InNetwork::Allowed {
            return 0.0;
        }
        let channels = f64::from(strategy.channels) * f64::from(strategy.algorithm.channels_per_block());
        let total_rate = f64::from(self.call.ranks) * channels * rate.0 as f64;
        let traffic = match self.matrix {
            Some(matrix) => matrix.bytes_between_ranks().0.into(),
            None => minimum_traffic(&self.call),
        };
        traffic as f64 * 1e12 / total_rate.max(1.0)
    }
}
