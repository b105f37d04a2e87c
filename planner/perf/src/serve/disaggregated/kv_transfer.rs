//! Transfer of keys and values from GPUs for prefill to GPUs for decode: flows on the fabric, and the software's time to
//! post them.
//!
//! A rank for decode receives the layers and heads that it stores, from the ranks for prefill that have them; with different
//! degrees on both sides these are parts of several ranks' caches (vLLM, `nixl_connector.py`, `_read_blocks`; SGLang,
//! `mooncake/conn.py`, `send_kvcache_slice`). Flows share links as the simulator of flows determines, with the efficiency of
//! links of the fabric's profile.

use fabricast_sim::engine::Watch;
use fabricast_sim::flows::{self, Flow};
use fabricast_sim::lower::Environment;
use fabricast_topologies::{Bytes, NodeId, Picos};
use fabricast_workload::job::{Dimension, JobError, KvTransfer, Layout, Serving, TransferUnit};

use super::super::open_loop::{TransferPaths, TransferTime};
use crate::step::{Machine, TimeError};
use crate::time::{scaled, share};

/// Share of the rate of links between hosts that transfers reach, in addition to the efficiency of the profile: geometric
/// mean of two fits to published tables (0.744 and 0.873; `planner/data/jobs/kv-transfer.toml`).
const NETWORK_SHARE: f64 = 0.806;

/// Time to post the blocks of a tensor (the keys or the values of a layer): geometric mean of the same fits (5.30 and
/// 9.80 µs).
const TENSOR_POST: Picos = Picos(7_210_000);

/// Additional time for each further message of a tensor whose blocks are not contiguous: 4,563 messages of 16 KiB instead of
/// 70 took 3.1 ms longer (vLLM pull request 53825, Mooncake on H200).
const MESSAGE_POST: Picos = Picos(690_000);

/// Largest number of transfers that are simulated concurrently.
const MAX_TRANSFERS: u32 = 256;

/// Keys and values that a rank for decode receives from a rank for prefill.
#[derive(Clone, Copy, Debug, PartialEq)]
struct RankPair {
    /// Position of the sending rank in its replica.
    from: ReplicaRank,
    /// Position of the receiving rank in its replica.
    to: ReplicaRank,
    /// Bytes of a token.
    bytes: f64,
    /// Tensors of which the bytes are parts.
    tensors: u64,
}

/// Position of a rank in a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReplicaRank {
    stage: u32,
    tensor: u32,
}

impl ReplicaRank {
    fn all(layout: &Layout) -> impl Iterator<Item = Self> {
        let tensor_ranks = layout.degrees.tensor;
        (0..layout.degrees.pipeline).flat_map(move |stage| (0..tensor_ranks).map(move |tensor| Self { stage, tensor }))
    }

    /// Number of the rank of a replica.
    fn number(self, layout: &Layout, replica: u32) -> u32 {
        let stride = |dimension| layout.shape(dimension).stride;
        self.tensor * stride(Dimension::Tensor)
            + replica * stride(Dimension::Data)
            + self.stage * stride(Dimension::Pipeline)
    }
}

/// Number of common elements of two ranges.
fn overlap([start, end]: [u64; 2], [other_start, other_end]: [u64; 2]) -> u64 {
    end.min(other_end).saturating_sub(start.max(other_start))
}

/// Layers of a stage, from the first to that after the last.
fn layers(job: &Serving, layout: &Layout, stage: u32) -> [u64; 2] {
    let each = job.model.layers / u64::from(layout.degrees.pipeline).max(1);
    [u64::from(stage) * each, (u64::from(stage) + 1) * each]
}

/// Heads of keys and values that a tensor-parallel rank stores. Ranks beyond the number of heads have copies; all have the
/// whole of a compressed cache, which counts as one head.
fn heads(job: &Serving, layout: &Layout, tensor: u32) -> [u64; 2] {
    let (heads, ranks, rank) = (kv_heads(job), u64::from(layout.degrees.tensor).max(1), u64::from(tensor));
    match heads < ranks {
        true => [rank * heads / ranks, rank * heads / ranks + 1],
        false => [rank * heads / ranks, (rank + 1) * heads / ranks],
    }
}

fn is_compressed(job: &Serving) -> bool {
    job.model.latent.is_some() || job.kv_bytes_per_token.is_some()
}

fn kv_heads(job: &Serving) -> u64 {
    if is_compressed(job) { 1 } else { job.model.kv_heads.max(1) }
}

/// Transfers of a token between the ranks of a replica for prefill and those of one for decode.
fn rank_pairs(job: &Serving, prefill: &Layout, decode: &Layout) -> Vec<RankPair> {
    let part_bytes = job.kv_bytes() as f64 / (job.model.layers.max(1) * kv_heads(job)) as f64;
    let tensors_per_layer = if is_compressed(job) { 1 } else { 2 };
    let copies = |layout: &Layout| (u64::from(layout.degrees.tensor) / kv_heads(job)).max(1);
    let mut pairs = Vec::new();
    for to in ReplicaRank::all(decode) {
        let wanted = (layers(job, decode, to.stage), heads(job, decode, to.tensor));
        for from in ReplicaRank::all(prefill) {
            let shared_layers = overlap(layers(job, prefill, from.stage), wanted.0);
            let shared_heads = overlap(heads(job, prefill, from.tensor), wanted.1);
            // Of the copies of a head, receivers use all in turn.
            let is_used = u64::from(from.tensor) % copies(prefill) == u64::from(to.tensor) % copies(prefill);
            if shared_layers * shared_heads > 0 && is_used {
                let bytes = (shared_layers * shared_heads) as f64 * part_bytes;
                pairs.push(RankPair { from, to, bytes, tensors: shared_layers * tensors_per_layer });
            }
        }
    }
    pairs
}

/// Replicas whose concurrent transfers are simulated.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SimulatedReplicas {
    sources: u32,
    destinations: u32,
    /// Capacity of all replicas relative to that of these.
    scale: f64,
}

impl SimulatedReplicas {
    /// Selects the replicas: all, or those with at most [`MAX_TRANSFERS`] transfers that leave out the smallest share of
    /// either side.
    fn new(sources: u32, destinations: u32) -> Self {
        let mut best = Self { sources: 1, destinations: 1, scale: f64::from(sources.min(destinations)) };
        let mut best_ratio = f64::INFINITY;
        for source_count in 1..=sources.min(MAX_TRANSFERS) {
            for destination_count in 1..=destinations.min(MAX_TRANSFERS) {
                let ratios = [(sources, source_count), (destinations, destination_count)]
                    .map(|(all, simulated)| f64::from(all) / f64::from(simulated));
                let ratio = f64::max(ratios[0], ratios[1]);
                if ratio < best_ratio && common_multiple(source_count, destination_count) <= MAX_TRANSFERS {
                    best_ratio = ratio;
                    let scale = f64::min(ratios[0], ratios[1]);
                    best = Self { sources: source_count, destinations: destination_count, scale };
                }
            }
        }
        best
    }

    /// Sources and destinations of concurrent transfers that load all sources equally, and all destinations.
    fn transfers(&self) -> Vec<[u32; 2]> {
        let count = common_multiple(self.sources, self.destinations);
        (0..count).map(|number| [number % self.sources, number % self.destinations]).collect()
    }
}

/// Least common multiple of two positive numbers.
fn common_multiple(one: u32, other: u32) -> u32 {
    let (mut divisor, mut rest) = (one, other);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (one / divisor.max(1)).saturating_mul(other)
}

/// GPUs for prefill and for decode, and what they send.
pub(super) struct KvRoutes<'a> {
    job: &'a Serving,
    machine: &'a Machine<'a>,
    /// Devices of the ranks for prefill and for decode.
    ranks: [&'a [NodeId]; 2],
    /// Layouts of prefill and decode.
    layouts: [Layout; 2],
    pairs: Vec<RankPair>,
}

impl<'a> KvRoutes<'a> {
    pub(super) fn new(
        job: &'a Serving,
        machine: &'a Machine<'a>,
        ranks: [&'a [NodeId]; 2],
        layouts: [Layout; 2],
    ) -> Self {
        let [prefill, decode] = layouts;
        Self { job, machine, ranks, layouts, pairs: rank_pairs(job, &prefill, &decode) }
    }

    /// Bytes of a prompt.
    pub(super) fn bytes(&self, tokens: u64) -> Bytes {
        Bytes((self.pairs.iter().map(|pair| pair.bytes).sum::<f64>() * tokens as f64).round() as u64)
    }

    /// Measures the times of transfers on the fabric.
    ///
    /// # Errors
    /// [`TimeError`] if two GPUs have no path between them.
    pub(super) fn transfers(&self, transfer: KvTransfer, prefill_time: Picos) -> Result<KvTransfers, TimeError> {
        let tokens = self.job.prompt_tokens.max(1);
        let alone = self.makespan(&[[0, 0]], tokens)?;
        let twice = self.makespan(&[[0, 0]], 2 * tokens)?;
        let [sources, destinations] = self.layouts.map(|layout| layout.degrees.data.max(1));
        let simulated = SimulatedReplicas::new(sources, destinations);
        let concurrent = simulated.transfers();
        let makespan = self.makespan(&concurrent, tokens)?;
        let capacity = concurrent.len() as f64 * simulated.scale / (makespan.0.max(1) as f64 / 1e12);
        let rank_tensors = |rank: &dyn Fn(&RankPair) -> ReplicaRank| {
            let tensors = |pair: &RankPair| -> u64 {
                self.pairs.iter().filter(|other| rank(other) == rank(pair)).map(|other| other.tensors).sum()
            };
            self.pairs.iter().map(tensors).max().unwrap_or_default()
        };
        Ok(KvTransfers {
            transfer,
            latency: alone + alone - twice,
            token: (twice - alone).0 as f64 / tokens as f64,
            tensors: rank_tensors(&|pair| pair.from).max(rank_tensors(&|pair| pair.to)),
            layers: self.job.model.layers,
            chunk: self.job.max_batched_tokens,
            prefix_hit: self.job.prefix_hit,
            prefill_token: prefill_time.0 as f64 / self.job.new_tokens() as f64,
            paths: TransferPaths {
                sources: sources.into(),
                destinations: destinations.into(),
                network: (capacity * alone.0 as f64 / 1e12).max(f64::MIN_POSITIVE),
            },
            capacity,
        })
    }

    /// Time until all of several concurrent transfers between replicas have ended.
    fn makespan(&self, transfers: &[[u32; 2]], tokens: u64) -> Result<Picos, TimeError> {
        let [prefill_ranks, decode_ranks] = self.ranks;
        let [prefill, decode] = &self.layouts;
        let fabric = self.machine.router.fabric();
        let flow = |[source, destination]: [u32; 2], pair: &RankPair| {
            let src = *prefill_ranks.get(pair.from.number(prefill, source) as usize)?;
            let dst = *decode_ranks.get(pair.to.number(decode, destination) as usize)?;
            let reached = if fabric.node(src).host == fabric.node(dst).host { 1.0 } else { NETWORK_SHARE };
            let bytes = Bytes((pair.bytes * tokens as f64 / reached).round() as u64);
            Some(Flow { src, dst, bytes, start: Picos::ZERO })
        };
        let flows: Vec<Flow> =
            transfers.iter().flat_map(|&ends| self.pairs.iter().filter_map(move |pair| flow(ends, pair))).collect();
        let setting = Environment {
            fabric,
            router: self.machine.router,
            placement: prefill_ranks,
            profile: self.machine.simulated.profile(),
            delays: &[],
        };
        let outcome = flows::simulate(&flows, setting, Watch::default()).map_err(|error| {
            let message = format!("keys and values cannot be transferred: {error}");
            TimeError::Job(JobError::at(&self.job.spans.parallel, message))
        })?;
        Ok(outcome.ends.into_iter().max().unwrap_or_default())
    }
}

/// Times of transfers of one job between two layouts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct KvTransfers {
    transfer: KvTransfer,
    /// Latency of the longest path.
    latency: Picos,
    /// Time of the bytes of a token on the bottleneck, in picoseconds.
    token: f64,
    /// Tensors that a rank posts.
    tensors: u64,
    layers: u64,
    /// Largest number of tokens of a step with prefill.
    chunk: u64,
    /// Share of a prompt whose keys and values are known before its prefill.
    prefix_hit: f64,
    /// Time of prefill per token that it computes, in picoseconds.
    prefill_token: f64,
    /// Replicas that share links.
    pub paths: TransferPaths,
    /// Requests of mean length per second that links carry with all replicas.
    pub capacity: f64,
}

impl KvTransfers {
    /// Number of tokens of a prompt that prefill computes: at least the last.
    fn computed_tokens(&self, prompt: u64) -> u64 {
        let cached = (prompt as f64 * self.prefix_hit).floor() as u64;
        prompt.saturating_sub(cached).max(1)
    }

    /// Parts of a prompt in the order in which they are computed and sent.
    fn parts(&self, prompt: u64) -> Vec<PromptPart> {
        let computed = self.computed_tokens(prompt);
        match self.transfer.unit {
            TransferUnit::Request => vec![self.part(1.0, prompt, computed)],
            TransferUnit::Layer => {
                let layers = self.layers.max(1);
                (0..layers).map(|_| self.part(1.0 / layers as f64, prompt, computed)).collect()
            }
            TransferUnit::Chunk => {
                let chunk = self.chunk.max(1);
                let mut first_cached = prompt.saturating_sub(computed);
                let chunks = (0..computed.div_ceil(chunk)).map(|index| chunk.min(computed - index * chunk));
                // The cached tokens are sent with the first chunk.
                chunks.map(|tokens| self.part(1.0, tokens + std::mem::take(&mut first_cached), tokens)).collect()
            }
        }
    }

    /// Part of the layers of `sent` tokens, of which `computed` are computed.
    fn part(&self, layers: f64, sent: u64, computed: u64) -> PromptPart {
        let blocks = self.transfer.block_tokens.map_or(1, |tokens| sent.div_ceil(tokens.max(1)).max(1));
        let posts = scaled(TENSOR_POST, self.tensors) + scaled(MESSAGE_POST, self.tensors * (blocks - 1));
        PromptPart {
            prefill: layers * self.prefill_token * computed as f64,
            transfer: layers * (posts.0 as f64 + self.token * sent as f64),
        }
    }

    /// Time of the transfer of a prompt, without regard to prefill that hides it: posts of all parts, latency, and bytes.
    pub(super) fn time(&self, prompt: u64) -> Picos {
        self.latency + share(Picos(1), self.parts(prompt).iter().map(|part| part.transfer).sum())
    }
}

/// Part of a prompt that is sent as soon as it is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
struct PromptPart {
    /// Time of its prefill, in picoseconds.
    prefill: f64,
    /// Time of its posts and bytes, in picoseconds.
    transfer: f64,
}

impl TransferTime for KvTransfers {
    /// Each part is sent when it is computed and the part before it is sent.
    fn exposed_time(&self, prompt: u64) -> Picos {
        // Time from the end of the prefill of a part until it is sent.
        let exposed = |behind: f64, part: &PromptPart| (behind - part.prefill).max(0.0) + part.transfer;
        self.latency + share(Picos(1), self.parts(prompt).iter().fold(0.0, exposed))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::served;
    use super::*;
    use fabricast_workload::job::{Degrees, KvTransfer};
    use proptest::prelude::*;

    fn layout(tensor: u32, pipeline: u32) -> Layout {
        Layout { degrees: Degrees { tensor, pipeline, ..Degrees::default() } }
    }

    /// Eight heads: ranks with two heads each receive from four of eight ranks, and four ranks from each of two.
    #[test]
    fn ranks_receive_the_heads_that_they_store() {
        let job = served("parallel = { tp = 8 }\n");
        let pairs = |from: (u32, u32), to: (u32, u32)| rank_pairs(&job, &layout(from.0, from.1), &layout(to.0, to.1));
        let ends = |pairs: &[RankPair]| -> Vec<(u32, u32)> {
            pairs.iter().map(|pair| (pair.from.tensor, pair.to.tensor)).collect()
        };
        assert_eq!(ends(&pairs((8, 1), (4, 1))), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (6, 3), (7, 3)]);
        assert_eq!(ends(&pairs((2, 1), (4, 1))), [(0, 0), (0, 1), (1, 2), (1, 3)]);
        // Sixteen ranks have two copies of each head.
        assert_eq!(ends(&pairs((16, 1), (8, 1)))[..3], [(0, 0), (3, 1), (4, 2)]);
        assert_eq!(ends(&pairs((16, 1), (16, 1))), (0..16).map(|rank| (rank, rank)).collect::<Vec<_>>());
        let staged = pairs((1, 2), (1, 4));
        assert_eq!(
            staged.iter().map(|pair| (pair.from.stage, pair.to.stage)).collect::<Vec<_>>(),
            [(0, 0), (0, 1), (1, 2), (1, 3)]
        );
        assert_eq!(staged[0].tensors, 40);
    }

    proptest! {
        /// The ranks of a replica for decode receive what they store, once.
        #[test]
        fn transferred_bytes_are_those_of_the_cache(
            from in 0u32..5,
            to in 0u32..5,
            stages in prop::sample::select(vec![(1u32, 1u32), (2, 1), (1, 4), (4, 2), (5, 4)]),
            is_latent in any::<bool>(),
        ) {
            let latent = "kv_bytes_per_token = 81920\n";
            let job = served(if is_latent { latent } else { "" });
            let [prefill, decode] = [layout(1 << from, stages.0), layout(1 << to, stages.1)];
            let sum: f64 = rank_pairs(&job, &prefill, &decode).iter().map(|pair| pair.bytes).sum();
            let stored = job.kv_bytes_per_rank(&decode) * u64::from(decode.degrees.tensor * decode.degrees.pipeline);
            prop_assert!((sum / stored as f64 - 1.0).abs() < 1e-9, "{sum} {stored}");
        }

        /// Transfers in parts are hidden behind prefill, up to the last part.
        #[test]
        fn exposed_time_is_that_of_a_schedule_of_parts(
            token in 1e3..1e9f64,
            prefill_token in 1e3..1e9f64,
            layers in 1u64..100,
            prompt in 1u64..20_000,
            (chunk, prefix_hit) in (1u64..9_000, prop_oneof![Just(0.0), 0.0..=1.0f64]),
            latency in 0u64..10_000_000,
        ) {
            let transfers = transfers(token, prefill_token);
            let transfers = |unit| KvTransfers {
                transfer: KvTransfer { unit, ..KvTransfer::default() },
                latency: Picos(latency),
                layers,
                chunk,
                prefix_hit,
                ..transfers
            };
            let whole = transfers(TransferUnit::Request);
            prop_assert_eq!(whole.exposed_time(prompt), whole.time(prompt));
            let cached = ((prompt as f64 * prefix_hit) as u64).min(prompt - 1);
            let prefill = prefill_token * (prompt - cached) as f64;
            let is_end = |unit, end: f64| {
                let (found, expected) = (transfers(unit).exposed_time(prompt).0 as f64, end - prefill + latency as f64);
                prop_assert!((found - expected).abs() <= 1e-9 * end + 3.0, "{found} {expected}");
                Ok(())
            };
            let [each, computed] = [token * prompt as f64, prefill].map(|time| time / layers as f64);
            let end = (1..=layers).fold(0.0f64, |free, layer| free.max(layer as f64 * computed) + each);
            is_end(TransferUnit::Layer, end)?;
            // A chunk is sent when all its tokens are computed; the first has the cached ones.
            let (mut end, mut sent) = (0.0f64, 0);
            while sent < prompt {
                let next = (sent.max(cached) + chunk).min(prompt);
                end = end.max(prefill_token * (next - cached) as f64) + token * (next - sent) as f64;
                sent = next;
            }
            is_end(TransferUnit::Chunk, end)?;
        }

        /// Keys and values of longer prompts arrive later. Where the transfer of a token needs more time than its prefill,
        /// longer prompts have a longer exposed time, too. (Otherwise the last chunk, if it is short, exposes less.)
        #[test]
        fn longer_prompts_arrive_later(
            token in 1e5..1e6f64,
            prefill_token in 1e5..1e6f64,
            tensors in 0u64..4,
            chunk in 1u64..4_000,
            (short, added) in (1u64..4_000, 0u64..400),
            unit in prop::sample::select(vec![TransferUnit::Request, TransferUnit::Chunk, TransferUnit::Layer]),
        ) {
            let transfer = KvTransfer { unit, block_tokens: Some(16), ..KvTransfer::default() };
            let transfers = KvTransfers { transfer, tensors, chunk, ..transfers(token, prefill_token) };
            let long = short + added;
            let exposed = |prompt| transfers.exposed_time(prompt).0 as f64;
            let delivery = |prompt: u64| prefill_token * prompt as f64 + exposed(prompt);
            prop_assert!(delivery(long) + 3.0 >= delivery(short));
            prop_assert!(token < prefill_token || exposed(long) + 3.0 >= exposed(short));
        }
    }

    fn transfers(token: f64, prefill_token: f64) -> KvTransfers {
        KvTransfers {
            transfer: KvTransfer::default(),
            latency: Picos(0),
            token,
            tensors: 0,
            layers: 16,
            chunk: 8192,
            prefix_hit: 0.0,
            prefill_token,
            paths: TransferPaths { sources: 1, destinations: 1, network: 1.0 },
            capacity: 1.0,
        }
    }

    #[test]
    fn simulated_replicas_have_the_proportions_of_all() {
        let selected = |sources, destinations| {
            let found = SimulatedReplicas::new(sources, destinations);
            assert!(found.transfers().len() <= MAX_TRANSFERS as usize);
            ((found.sources, found.destinations), found.scale)
        };
        assert_eq!(selected(2, 3), ((2, 3), 1.0));
        assert_eq!(selected(7, 8), ((7, 8), 1.0));
        assert_eq!(selected(1, 300), ((1, 256), 1.0));
        assert_eq!(selected(320, 320), ((256, 256), 1.25));
        assert_eq!(selected(17, 19), ((16, 18), 19.0 / 18.0));
    }
}
