//! Costs that all kernels share, fitted to published tables (`validate/data/clusters/ep`).

use fabricast_topologies::variants::variants;
use fabricast_topologies::{Bandwidth, Picos};
use strum::{EnumCount, VariantArray};

/// Costs of exchanges, independent of library and table. The structure of kernels is defined by
/// [`crate::ExchangeKernel`], the rates of links by the fabric and its profile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExchangeCosts {
    /// Start and end of a kernel on the device.
    pub launch: Picos,
    /// Time of a dependent round of a kernel: a flag to another GPU and the poll for its answer, or a grid-wide
    /// synchronization.
    pub round: Picos,
    /// Additional time per other GPU of the domain, for writing and polling its counters and flags.
    pub peer: Picos,
    /// Additional time of a write over the network that a GPU posts itself, including its completion flag.
    pub network: Picos,
    /// Host time of a call with two kernels of a framework extension. Applies to times measured on the host, not to
    /// those from a graph or the profiler.
    pub host: Picos,
    /// Round trip of a warp's load from device memory.
    pub load: Picos,
    /// Time for which a warp waits for its own bulk store.
    pub store: Picos,
    /// Rate at which one warp moves a token through registers or shared memory.
    pub warp: Bandwidth,
    /// Total rate at which the warps of one SM move tokens.
    pub sm: Bandwidth,
    /// Time of a NIC per message, in addition to the time of its bytes.
    pub nic_message: Picos,
    /// Time between two messages of one NVSHMEM queue pair whose posting warps wait for each other (pplx).
    pub queue_message: Picos,
    /// Time of one signal posted to the network, one per expert of another domain (pplx).
    pub signal: Picos,
    /// Fraction of the rate of links inside a domain that is achieved if the destinations of consecutive tokens are
    /// random: several GPUs then write to one GPU at the same time.
    pub random_share: f64,
    /// Fraction of the rate of NICs that is achieved if tokens are forwarded through buffers of limited size.
    pub forward_share: f64,
}

/// Parameter of [`ExchangeCosts`] that a fit changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EnumCount, VariantArray)]
pub enum CostParameter {
    /// [`ExchangeCosts::launch`].
    Launch,
    /// [`ExchangeCosts::round`].
    Round,
    /// [`ExchangeCosts::peer`].
    Peer,
    /// [`ExchangeCosts::network`].
    Network,
    /// [`ExchangeCosts::host`].
    Host,
    /// [`ExchangeCosts::load`].
    Load,
    /// [`ExchangeCosts::store`].
    Store,
    /// [`ExchangeCosts::warp`].
    Warp,
    /// [`ExchangeCosts::sm`].
    Sm,
    /// [`ExchangeCosts::nic_message`].
    NicMessage,
    /// [`ExchangeCosts::queue_message`].
    QueueMessage,
    /// [`ExchangeCosts::signal`].
    Signal,
    /// [`ExchangeCosts::random_share`].
    RandomShare,
    /// [`ExchangeCosts::forward_share`].
    ForwardShare,
}

impl CostParameter {
    /// All parameters.
    pub const ALL: [Self; Self::COUNT] = variants();

    /// Returns true if the parameter is a time, which can be absent; false if it is a rate or a share.
    #[must_use]
    pub fn is_time(self) -> bool {
        !matches!(self, Self::Warp | Self::Sm | Self::RandomShare | Self::ForwardShare)
    }
}

impl ExchangeCosts {
    /// Costs fitted to all tables with the role `fit` (`cargo run --example exchange_costs`, 2026-11-27).
    pub const FITTED: Self = Self {
        launch: Picos(4_483_000),
        round: Picos(1_637_000),
        peer: Picos(321_500),
        network: Picos(3_375_000),
        host: Picos(26_450_000),
        load: Picos(736_200),
        store: Picos(1_058_000),
        warp: Bandwidth(12_540_000_000),
        sm: Bandwidth(32_880_000_000),
        nic_message: Picos(24_610),
        queue_message: Picos(6_818_000),
        signal: Picos(337_500),
        random_share: 0.8443,
        forward_share: 0.9234,
    };

    /// Initial values of fits: orders of magnitude of launches, flags and memory accesses. Costs that apply to a single
    /// library are 0.
    pub const PRIOR: Self = Self {
        launch: Picos(5_000_000),
        round: Picos(1_500_000),
        peer: Picos(400_000),
        network: Picos(5_000_000),
        host: Picos(20_000_000),
        load: Picos(1_000_000),
        store: Picos(1_000_000),
        warp: Bandwidth(15_000_000_000),
        sm: Bandwidth(30_000_000_000),
        nic_message: Picos(4_000),
        queue_message: Picos(5_000_000),
        signal: Picos(500_000),
        random_share: 0.95,
        forward_share: 0.95,
    };

    /// Costs with one parameter multiplied by a factor; shares are at most 1.
    #[must_use]
    pub fn scaled(mut self, parameter: CostParameter, factor: f64) -> Self {
        let time = |time: &mut Picos| *time = Picos((time.0 as f64 * factor).round() as u64);
        let rate = |rate: &mut Bandwidth| *rate = Bandwidth((rate.0 as f64 * factor).round() as u64);
        let share = |share: &mut f64| *share = (*share * factor).min(1.0);
        match parameter {
            CostParameter::Launch => time(&mut self.launch),
            CostParameter::Round => time(&mut self.round),
            CostParameter::Peer => time(&mut self.peer),
            CostParameter::Network => time(&mut self.network),
            CostParameter::Host => time(&mut self.host),
            CostParameter::Load => time(&mut self.load),
            CostParameter::Store => time(&mut self.store),
            CostParameter::Warp => rate(&mut self.warp),
            CostParameter::Sm => rate(&mut self.sm),
            CostParameter::NicMessage => time(&mut self.nic_message),
            CostParameter::QueueMessage => time(&mut self.queue_message),
            CostParameter::Signal => time(&mut self.signal),
            CostParameter::RandomShare => share(&mut self.random_share),
            CostParameter::ForwardShare => share(&mut self.forward_share),
        }
        self
    }
}

/// Extent of an exchange, on which the width of its prediction interval depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExchangeExtent {
    /// All ranks are in one NVLink domain.
    OneDomain,
    /// Tokens cross the network.
    Network,
}

impl ExchangeExtent {
    /// 80 % prediction interval of a predicted time: the predicted time multiplied by the 10th and the 90th percentile
    /// of measured ÷ predicted time. Each cluster was predicted with costs that were fitted to the other clusters
    /// (`cargo run --example exchange_costs`, 2026-11-27).
    #[must_use]
    pub fn prediction_interval(self, predicted: Picos) -> [Picos; 2] {
        let factors = match self {
            Self::OneDomain => [0.865, 1.276],
            Self::Network => [0.763, 1.384],
        };
        factors.map(|factor: f64| Picos((predicted.0 as f64 * factor).round() as u64))
    }
}
