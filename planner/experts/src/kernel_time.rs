//! Completion time of each kind of kernel, derived from the structure of the kernel's source.

use fabricast_topologies::Picos;

use crate::costs::ExchangeCosts;
use crate::exchange::{Exchange, ExchangeLoad};
use crate::exchange_time::{ExchangeTime, Timing};
use crate::kernel::{CopyTarget, ExchangeKernel, Operation};
use crate::link_load::bytes_per_us;
use crate::routing::RoutingPattern;
use crate::token::TokenType;

/// Warps of a DeepEP forwarder block that sum tokens (`internode.cu`, `kNumCombineForwarderWarps`).
const FORWARDER_WARPS: f64 = 24.0;
/// Tokens that a DeepEP channel collects before it sends them: dispatch and combine (`deep_ep/buffers/legacy.py`,
/// `get_dispatch_config` and `get_combine_config`, of 16 ranks).
const CHUNK_TOKENS: [f64; 2] = [20.0, 12.0];
/// Bytes of a round of a warp that sums tokens: 16 bytes per lane (`internode.cu`, `kNumTMALoadBytes`).
const ROUND_BYTES: f64 = 512.0;
/// Share of a summing round that a single token needs, as its warps have the SM to themselves; assumed.
const IDLE_ROUND: f64 = 0.25;
/// Threads of a block that counts the tokens for a rank, with a power of two of threads per token (TensorRT-LLM
/// `moePrepareKernels.cu`, `computeCountAndIndice`), and of a block that moves the indices for a rank (`moveIndice`).
const COUNTING_THREADS: u32 = 1024;
const MOVING_THREADS: u32 = 512;
/// Time of a warp lane per element that it converts to or from NVFP4, in µs: five dependent instructions of five cycles
/// at 1.9 GHz (load, convert, maximum or scale, round, store; `fusedMoeCommKernels.cu`, `quantize_nvfp4_sharedmem`).
const CONVERT_US: f64 = 0.0132;
/// Share of the nominal memory bandwidth that copies between buffers reach; assumed.
const MEMORY_SHARE: f64 = 0.8;

/// Times of one exchange in µs, before rounding.
#[derive(Clone, Copy, Default)]
struct Micros {
    fixed: f64,
    transfer: f64,
    fill: f64,
    receive: f64,
    bottleneck: &'static str,
}

/// Load of an operation, with the costs that determine its time.
struct CostedLoad<'a> {
    exchange: &'a Exchange<'a>,
    load: &'a ExchangeLoad,
    costs: &'a ExchangeCosts,
}

impl Exchange<'_> {
    /// Predicts the completion time of an operation.
    #[must_use]
    pub fn time(&self, load: &ExchangeLoad, costs: &ExchangeCosts, timing: Timing) -> ExchangeTime {
        CostedLoad { exchange: self, load, costs }.time(timing)
    }
}

impl CostedLoad<'_> {
    /// Completion time, by part.
    fn time(&self, timing: Timing) -> ExchangeTime {
        let micros = match self.exchange.kernel {
            ExchangeKernel::DeepEpLowLatency | ExchangeKernel::NcclEpLowLatency | ExchangeKernel::Pplx => {
                self.direct_puts()
            }
            ExchangeKernel::DeepEp | ExchangeKernel::DeepEpElastic => self.forwarded(),
            ExchangeKernel::TensorRtOneSided => self.one_sided(),
            ExchangeKernel::TensorRtTwoSided => self.two_sided(),
        };
        let host = if timing == Timing::Host { self.costs.host } else { Picos::ZERO };
        ExchangeTime {
            fixed: Picos::from_us(micros.fixed) + host,
            transfer: Picos::from_us(micros.transfer),
            fill: Picos::from_us(micros.fill),
            receive: Picos::from_us(micros.receive),
            bottleneck: micros.bottleneck,
        }
    }

    /// Time of launches, dependent rounds, flags of peers and writes over the network.
    fn fixed(&self, launches: f64, rounds: f64, network_writes: f64) -> f64 {
        let peers = f64::from(self.exchange.ranks.largest_domain() - 1);
        let networks = if self.exchange.ranks.domains().len() > 1 { network_writes } else { 0.0 };
        launches * self.costs.launch.us()
            + rounds * self.costs.round.us()
            + peers * self.costs.peer.us()
            + networks * self.costs.network.us()
    }

    /// A copy of a token for each expert or rank, put by a warp over NVLink or by the NIC; the receiver then packs or
    /// sums.
    ///
    /// Five rounds: local counts, grid synchronization, the flag of each expert, its poll, and the end of the grid
    /// (`internode_ll.cu`). With NVSHMEM's shared queue pairs (pplx), a second write carries the counts.
    fn direct_puts(&self) -> Micros {
        let per_expert = self.load.tokens * f64::from(self.exchange.routing.top_k());
        let copies = match self.load.copies {
            CopyTarget::Expert => per_expert,
            CopyTarget::Rank | CopyTarget::Domain => self.load.tokens * self.load.ranks_per_token,
        };
        let is_shared_queue = self.exchange.kernel == ExchangeKernel::Pplx;
        let mut fixed = self.fixed(1.0, 5.0, if is_shared_queue { 2.0 } else { 1.0 });
        let domains = self.exchange.ranks.domains().len() as f64;
        if is_shared_queue && domains > 1.0 {
            fixed += copies / f64::from(self.exchange.ranks.count()) * self.costs.queue_message.us();
            if self.load.operation == Operation::Dispatch {
                let remote_experts = f64::from(self.exchange.routing.experts()) * (domains - 1.0) / domains;
                fixed += remote_experts * self.costs.signal.us();
            }
        }
        let moved = match self.load.operation {
            Operation::Combine => {
                copies * self.load.wire_bytes + self.load.tokens * 2.0 * f64::from(self.exchange.routing.hidden())
            }
            // Each expert of a rank has its own copy, regardless of how many copies arrived.
            Operation::Prepare | Operation::Dispatch => (copies + per_expert) * self.load.wire_bytes,
        };
        let receive = self.exchange.memory_rate().map_or(0.0, |rate| moved / (rate * MEMORY_SHARE));
        let limits = [("NVLink", self.local_us()), ("network", self.network_us())];
        let (bottleneck, transfer) = slowest(&limits);
        Micros { fixed, transfer, fill: 0.0, receive, bottleneck }
    }

    /// Tokens once to each domain, forwarded there over NVLink.
    ///
    /// A channel has two SMs. Dispatch: a warp per destination GPU forwards a token at a time, each a load and a store
    /// that it waits for. Combine: 24 warps sum tokens in rounds of 512 bytes, each a load and a store.
    fn forwarded(&self) -> Micros {
        let sms = self.exchange.sms.unwrap_or(self.exchange.kernel.default_sms());
        let channels = f64::from((sms / 2).max(1));
        let is_elastic = self.exchange.kernel == ExchangeKernel::DeepEpElastic;
        let is_combine = self.load.operation == Operation::Combine;
        let round_us = self.costs.load.us() + self.costs.store.us();
        let sum_rounds = self.load.token_bytes / ROUND_BYTES;
        let pass = if is_combine && !is_elastic { sum_rounds * round_us * IDLE_ROUND } else { 0.0 };
        let mut limits = vec![("NVLink", self.local_us()), ("network", self.network_us())];
        if self.exchange.ranks.domains().len() < 2 {
            if !is_elastic {
                let bytes = self.load.tokens * self.load.ranks_per_token * self.load.token_bytes;
                limits.push(("SMs", bytes / (channels * bytes_per_us(self.costs.sm))));
            }
            let (bottleneck, transfer) = slowest(&limits);
            return Micros { fixed: self.fixed(1.0, 5.0, 0.0) + pass, transfer, bottleneck, ..Micros::default() };
        }
        let mut fill_tokens = 0.0;
        if !is_elastic {
            let blocks_us = if is_combine {
                self.load.tokens * self.load.domains_per_token * sum_rounds * round_us / (FORWARDER_WARPS * channels)
            } else {
                let per_warp =
                    self.load.tokens * self.load.ranks_per_token / f64::from(self.exchange.ranks.largest_domain());
                per_warp * (round_us + self.load.token_bytes / bytes_per_us(self.costs.warp)) / channels
            };
            limits.push(("SMs", blocks_us));
            let [dispatch, combine] = CHUNK_TOKENS;
            fill_tokens = self.load.tokens.min(channels * if is_combine { combine } else { dispatch });
        }
        let (bottleneck, transfer) = slowest(&limits);
        // Summing happens before and after the network.
        let fixed = self.fixed(1.0, 7.0, 2.0) + 2.0 * pass;
        Micros { fixed, transfer, fill: transfer / self.load.tokens * fill_tokens, receive: 0.0, bottleneck }
    }

    /// Stores into the memory of other GPUs (dispatch), loads from it (combine), each with a preparing kernel. Two
    /// rounds of flags; loads need two more.
    fn one_sided(&self) -> Micros {
        let rounds = if self.load.operation == Operation::Combine { 4.0 } else { 2.0 };
        let fixed = self.fixed(2.0, rounds, 0.0);
        Micros { fixed, transfer: self.local_us(), bottleneck: "NVLink", ..Micros::default() }
    }

    /// FIFOs with flags. Half of the SMs are used, and half of these send. A warp per peer and channel transfers one
    /// token at a time.
    fn two_sided(&self) -> Micros {
        if self.load.operation == Operation::Prepare {
            let counted = f64::from(COUNTING_THREADS / self.exchange.routing.top_k().clamp(1, 32).next_power_of_two());
            let moved = self.load.tokens * self.load.ranks_per_token / f64::from(self.exchange.ranks.count());
            let passes = (self.load.tokens / counted).ceil() + (moved / f64::from(MOVING_THREADS)).ceil();
            let transfer = passes * self.costs.load.us();
            return Micros { fixed: self.fixed(2.0, 1.0, 0.0), transfer, bottleneck: "SMs", ..Micros::default() };
        }
        let ranks = f64::from(self.exchange.ranks.count());
        let blocks_per_channel = self.exchange.ranks.count().div_ceil(8) * 2;
        let channels = f64::from((self.exchange.sm_count() / 2 / blocks_per_channel).max(1));
        let mut token_us = self.costs.load.us() + self.load.wire_bytes / bytes_per_us(self.costs.warp);
        if self.load.operation == Operation::Combine {
            token_us += self.costs.store.us();
            if self.load.token_type == TokenType::Nvfp4 {
                token_us += f64::from(self.exchange.routing.hidden()) / 32.0 * CONVERT_US;
            }
        }
        let per_warp = (self.load.tokens * self.load.ranks_per_token / ranks / channels).ceil();
        // Every byte passes an SM's shared memory twice: from memory, and from there to the FIFO.
        let sm_us = self.load.tokens * self.load.ranks_per_token * self.load.wire_bytes
            / (channels * bytes_per_us(self.costs.sm) / 2.0);
        let limits = [("NVLink", self.local_us()), ("warps", per_warp * token_us), ("SMs", sm_us)];
        let (bottleneck, transfer) = slowest(&limits);
        Micros { fixed: self.fixed(1.0, 3.0, 0.0), transfer, bottleneck, ..Micros::default() }
    }

    /// Time of the busiest link inside domains.
    fn local_us(&self) -> f64 {
        let is_random = self.exchange.routing.pattern() != RoutingPattern::Balanced;
        self.load.links.local_us / if is_random { self.costs.random_share } else { 1.0 }
    }

    /// Time of the busiest link on paths between domains. Forwarding blocks send a chunk of tokens per message, other
    /// kernels one token.
    fn network_us(&self) -> f64 {
        let links = &self.load.links;
        let network_us = match self.load.copies {
            CopyTarget::Domain => links.network_us(0.0) / self.costs.forward_share,
            CopyTarget::Rank | CopyTarget::Expert => links.network_us(self.costs.nic_message.us()),
        };
        network_us.max(links.attachment_us)
    }
}

/// Name and time of the slowest of several resources that work concurrently.
fn slowest(limits: &[(&'static str, f64)]) -> (&'static str, f64) {
    limits.iter().fold(("NVLink", 0.0), |slowest, &limit| if limit.1 > slowest.1 { limit } else { slowest })
}
