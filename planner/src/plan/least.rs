//! Lower bounds on a strategy's time before it is simulated, from the traffic that the collective forces on the fabric,
//! from facts about its algorithm, and from the longest chain and the loads of one loop of its schedule
//! (`sim::template`).
//!
//! These are bounds, not estimates: none exceeds the simulated time. A search that prunes by them finds the same result
//! as one that simulates everything.

use fabricast_sim::profile::{HostWork, LaneSpeed};
use fabricast_sim::schedule::{Call, Header, Matrix, Workplace};
use fabricast_topologies::Picos;

use super::PlanRequest;
use super::templates::Found;
use crate::algorithm::facts::{Count, Toll, toll};
use crate::bound::{Bounds, Efficiency, InNetwork, Sharing, least_traffic};
use crate::strategy::Strategy;

/// Lower bounds on the times of all strategies for a call.
pub(super) struct LeastTimes<'a> {
    pub(super) request: &'a PlanRequest<'a>,
    pub(super) bounds: &'a Bounds,
    pub(super) call: Call,
    pub(super) matrix: Option<&'a Matrix>,
}

impl LeastTimes<'_> {
    /// Lower bound on the strategy's time, including the launch, without a schedule. It is the start-up plus the larger
    /// of two terms: the steps that the algorithm does in sequence; or one step plus the time to move the bytes through
    /// the fabric, through the channels at the protocol's rate, or through the port of the algorithm's busiest rank.
    pub(super) fn at_sight(&self, strategy: Strategy) -> Picos {
        let (request, call) = (self.request, &self.call);
        let costs = request.profile.protocol(strategy.protocol);
        let links = request.profile.links;
        let best_link = [links.nvlink, links.c2c, links.pcie, links.upi, links.network].into_iter().fold(0.0, f64::max);
        // The simulator rounds efficiencies by less than a millionth.
        let counted = |efficiency: f64| efficiency + 1e-6;
        let efficiency = Efficiency { wire: counted(costs.wire_efficiency), links: counted(best_link) };
        let fabric = self.bounds.reached(call, strategy.algorithm.in_network(), efficiency);
        let first_byte = self.bounds.first_byte();
        let lanes = first_byte + Picos(self.lanes(strategy) as u64);
        let step = if call.ranks > 1 { costs.least_software() } else { Picos::ZERO };
        let count = Count::on_hosts(call.ranks, request.ranks_per_node);
        // Between ranks of one device a step has no latency, and their messages use no port. Messages between CPUs use
        // none either.
        let by_devices = request.profile.workplace(call.collective) == Workplace::Device;
        let Toll { steps, sent } = match self.bounds.sharing() {
            Sharing::None if by_devices => toll(strategy.algorithm, call.collective, count),
            _ => Toll::default(),
        };
        let port = first_byte + self.bounds.sending(sent * call.bytes.0 as f64, efficiency);
        let steps = Picos(((step + first_byte).0 as f64 * steps) as u64);
        self.launched(strategy, costs.least_startup(call.collective) + (step + fabric.max(lanes).max(port)).max(steps))
    }

    /// Variant of [`Self::at_sight`] with a known lower bound of the device's time.
    pub(super) fn by_device(&self, strategy: Strategy, device: Picos) -> Picos {
        self.at_sight(strategy).max(self.launched(strategy, device))
    }

    /// Variant of [`Self::at_sight`] with the schedule's header and template.
    pub(super) fn by_template(&self, strategy: Strategy, header: &Header, found: &Found) -> Picos {
        let least = found.template().and_then(|template| template.least(header, found.blocks, self.request.profile));
        self.by_device(strategy, least.unwrap_or_default())
    }

    /// Variant of [`Self::by_template`] with a template of the first channel alone.
    pub(super) fn by_first_channel(&self, strategy: Strategy, header: &Header, found: &Found) -> Picos {
        let (template, profile) = (found.template(), self.request.profile);
        let least = template.and_then(|template| template.least_of_first(header, strategy.channels, profile));
        self.by_device(strategy, least.unwrap_or_default())
    }

    fn launched(&self, strategy: Strategy, device: Picos) -> Picos {
        let mode = self.request.mode;
        let work = HostWork::of(mode.gpus_per_host, self.call.collective, strategy.protocol, self.call.ranks);
        self.request.profile.launch(mode.launch, mode.processes).apply(device, work)
    }

    /// Time in picoseconds that the channels of all ranks need to move the least traffic. Copies within a rank are
    /// ignored, which retains a lower bound.
    fn lanes(&self, strategy: Strategy) -> f64 {
        let LaneSpeed::Rate(lane) = self.request.profile.protocol(strategy.protocol).lane else { return 0.0 };
        // Data that switches copy does not use a channel.
        if strategy.algorithm.in_network() == InNetwork::Allowed {
            return 0.0;
        }
        let channels = f64::from(strategy.channels) * f64::from(strategy.algorithm.channels_per_block());
        let lanes = f64::from(self.call.ranks) * channels * lane.0 as f64;
        let least = match self.matrix {
            Some(matrix) => matrix.crossing().0.into(),
            None => least_traffic(&self.call),
        };
        least as f64 * 1e12 / lanes.max(1.0)
    }
}
