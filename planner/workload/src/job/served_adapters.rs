//! Low-rank adapters of an inference job: many adapters share the weights of one model (Chen et al., Punica, arXiv
//! 2310.18547; Sheng et al., S-LoRA, arXiv 2311.03285).

use fabricast_topologies::Bytes;
use serde::Deserialize;

use super::lora::Adapter;
use super::{Layout, Serving};

/// Adapters that the requests of an inference job use, all of one shape, with evenly distributed requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedAdapters {
    /// Shape of each adapter. Its weights have 16 bits or, if that is more, the precision of activations.
    pub adapter: Adapter,
    /// Number of adapters, at least 1.
    pub number: u64,
    /// Number of adapters in the memory of each replica's GPUs, 1 to `number`: vLLM's `max_loras`. The others are in host
    /// memory, and a request for one of them waits until it has replaced another ([`Self::running_requests`]).
    pub resident: u64,
    /// Allocation of the adapters in host memory.
    pub host_memory: HostAllocation,
    /// Wait for an adapter that is not resident.
    pub loading: AdapterLoading,
}

/// Wait for an adapter that is copied from host memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AdapterLoading {
    /// All requests of the step wait (vLLM, `vllm/v1/worker/lora_model_runner_mixin.py`, `set_active_loras`).
    #[default]
    Blocking,
    /// The copy overlaps with steps of the other requests (Punica, section 5.2; S-LoRA, section 5.1).
    Overlapped,
}

/// Allocation of data in host memory that GPUs read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HostAllocation {
    /// Page-locked memory, which the GPU reads by itself (vLLM, `vllm/lora/lora_weights.py`, `pin_memory`).
    #[default]
    Pinned,
    /// Pageable memory, which the driver copies to a page-locked buffer first.
    Pageable,
}

impl ServedAdapters {
    /// Probability that the adapter of a request is not resident.
    #[must_use]
    pub fn miss_probability(&self) -> f64 {
        1.0 - self.resident as f64 / self.number.max(1) as f64
    }

    /// Mean number of different adapters of `requests` concurrent requests, at most the resident ones: requests of
    /// others wait ([`Self::running_requests`]).
    #[must_use]
    pub fn distinct(&self, requests: f64) -> f64 {
        let number = self.number.max(1) as f64;
        let expected = number * (1.0 - (1.0 - 1.0 / number).powf(requests));
        expected.max(1.0).min(self.resident as f64)
    }

    /// Largest number of requests whose mean number of different adapters is at most that of the resident ones;
    /// `u64::MAX` if all are resident.
    #[must_use]
    pub fn max_resident_requests(&self) -> u64 {
        if self.resident >= self.number {
            return u64::MAX;
        }
        let (number, resident) = (self.number as f64, self.resident as f64);
        let requests = (-resident / number).ln_1p() / (-1.0 / number).ln_1p();
        // One request per adapter is exact; rounding may yield slightly less.
        ((requests + 1e-6).floor() as u64).max(self.resident)
    }

    /// Number of requests of a replica that run if `requests` are present. A step only has requests of resident
    /// adapters, and others wait (vLLM, `vllm/v1/core/sched/scheduler.py`, `max_loras`): the first requests run up to
    /// the number of resident adapters, and those of the rest that use one of these adapters.
    #[must_use]
    pub fn running_requests(&self, requests: u64) -> u64 {
        let first = requests.min(self.max_resident_requests());
        let later = u128::from(requests - first) * u128::from(self.resident) / u128::from(self.number.max(1));
        first + u64::try_from(later).unwrap_or(u64::MAX)
    }
}

impl Serving {
    /// Bytes of a weight of an adapter.
    #[must_use]
    pub fn adapter_element_bytes(&self) -> u64 {
        self.precision.bytes().max(2)
    }

    /// Size of one adapter on a rank, in the layers of its pipeline stage; 0 without adapters.
    #[must_use]
    pub fn adapter_bytes_per_rank(&self, layout: &Layout) -> Bytes {
        let parameters = self
            .adapters
            .as_ref()
            .map_or(0, |served| served.adapter.layer_parameters(&self.model, layout.degrees.tensor));
        Bytes(parameters * self.stage_layers(layout) * self.adapter_element_bytes())
    }

    /// Number of matrices of one adapter on a rank; 0 without adapters.
    #[must_use]
    pub fn adapter_tensors_per_rank(&self, layout: &Layout) -> u64 {
        self.adapters.as_ref().map_or(0, |served| served.adapter.layer_tensors() * self.stage_layers(layout))
    }

    /// Size of the resident adapters on a rank, which have a slot each; 0 without adapters.
    #[must_use]
    pub fn resident_adapter_bytes(&self, layout: &Layout) -> Bytes {
        Bytes(self.adapters.as_ref().map_or(0, |served| served.resident) * self.adapter_bytes_per_rank(layout).0)
    }

    /// Size of a rank's parts of all adapters in host memory; 0 if all are resident.
    #[must_use]
    pub fn host_adapter_bytes(&self, layout: &Layout) -> Bytes {
        let stored = self.adapters.as_ref().filter(|served| served.resident < served.number);
        Bytes(stored.map_or(0, |served| served.number) * self.adapter_bytes_per_rank(layout).0)
    }

    fn stage_layers(&self, layout: &Layout) -> u64 {
        self.model.layers.div_ceil(u64::from(layout.degrees.pipeline).max(1))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::read::serving_tests::served;
    use super::super::{MemoryLimits, serving_footprint};
    use super::*;

    const ADAPTERS: &str = "parallel = { tp = 2 }\nmodel = { layers = 32, hidden = 4096, heads = 32, kv_heads = 8, ffn = 14336, gated = true, vocab = 128256 }\n";

    /// Rank 16 on all linear layers of Llama 3 8B has 41.9 million parameters, 84 MB.
    #[test]
    fn resident_adapters_count_as_weights() {
        let bytes = |lines: &str| {
            let job = served(&format!("{ADAPTERS}{lines}"));
            let layout = Layout::specified_by_serving(&job, 2).unwrap().unwrap();
            let footprint = serving_footprint(&job.with_concurrency(&layout, None), &layout);
            (job.adapter_bytes_per_rank(&layout).0, footprint.weights.0, footprint.host.0)
        };
        let base = bytes("");
        let all = bytes("adapters = { rank = 16, targets = \"all\", number = 10 }\n");
        // Two ranks have half of B of q, k, v, gate and up and of A of o and down, and the other matrices in full.
        let halves = 16 * 32 * (4096 + 1024 + 1024 + 2 * 14_336 + 4096 + 14_336);
        let whole = 16 * 32 * 7 * 4096;
        assert_eq!(all.0, 2 * (halves / 2 + whole));
        assert_eq!((all.1 - base.1, all.2), (10 * all.0, 0));
        let some = bytes("adapters = { rank = 16, targets = \"all\", number = 10, resident = 4 }\n");
        assert_eq!((some.1 - base.1, some.2), (4 * all.0, 10 * all.0));
    }

    /// Adapters in host memory leave the rest of it to an offloaded KV cache.
    #[test]
    fn host_memory_holds_adapters_and_kv_cache() {
        let requests = |adapters: &str| {
            let job =
                served(&format!("{ADAPTERS}requests = 100000\nmax_num_seqs = 100000\nkv_tier = \"host\"\n{adapters}"));
            let layout = Layout::specified_by_serving(&job, 2).unwrap().unwrap();
            let memories = MemoryLimits { gpu: Bytes(1 << 40), host: Bytes(100_000_000_000) };
            let loaded = job.with_concurrency(&layout, Some(memories));
            (loaded.concurrent_requests, job.host_adapter_bytes(&layout).0, 2500 * job.kv_bytes_per_rank(&layout))
        };
        let (without, _, each) = requests("");
        let (with, bytes, _) = requests("adapters = { rank = 64, targets = \"all\", number = 300, resident = 1 }\n");
        assert_eq!(without, 100_000_000_000 / each);
        assert_eq!(with, (100_000_000_000 - bytes) / each);
    }

    /// A step with one resident adapter has one request, and those of the waiting requests that use the same adapter.
    #[test]
    fn requests_of_other_adapters_wait() {
        let running = |concurrency: u64, resident: u64, replicas: u64| {
            let job = served(&format!(
                "concurrency = {concurrency}\nparallel = {{ tp = 1, dp = {replicas} }}\n\
                 model = {{ layers = 32, hidden = 4096, heads = 32, kv_heads = 8, ffn = 14336, gated = true, vocab = 128256 }}\n\
                 adapters = {{ rank = 16, number = 200, resident = {resident} }}\n"
            ));
            let layout = Layout::specified_by_serving(&job, replicas as u32).unwrap().unwrap();
            let loaded = job.with_concurrency(&layout, None);
            (loaded.concurrent_requests, loaded.waiting_requests())
        };
        assert_eq!(running(64, 200, 1), (64, 0));
        assert_eq!(running(64, 1, 1), (1, 63));
        // 76 requests have 63.4 different adapters of 200 in the mean.
        assert_eq!(running(64, 64, 1), (64, 0));
        assert_eq!(running(1077, 64, 1), (76 + 1001 * 64 / 200, 1001 - 320));
        assert_eq!(running(2 * 1077, 64, 2), (2 * (76 + 320), 2 * (1001 - 320)));
    }

    proptest! {
        /// One more resident adapter admits at least one more request among those of different adapters. No fewer
        /// requests run, and all run if all adapters are resident.
        #[test]
        fn resident_adapters_admit_requests(number in 2u64..100_000, resident in 1u64..100_000, requests in 1u64..5000) {
            let served = |resident: u64| ServedAdapters {
                adapter: Adapter { rank: 1, targets: Vec::new() },
                number,
                resident: resident.min(number),
                host_memory: HostAllocation::Pinned,
                loading: AdapterLoading::Blocking,
            };
            let resident = resident.min(number - 1);
            let (fewer, more) = (served(resident), served(resident + 1));
            let first = fewer.max_resident_requests();
            prop_assert!(more.max_resident_requests() > first);
            prop_assert!(more.running_requests(requests) >= fewer.running_requests(requests));
            prop_assert!(served(number).running_requests(requests) == requests);
            let mean = number as f64 * (1.0 - (1.0 - 1.0 / number as f64).powf(first as f64));
            prop_assert!(mean <= resident as f64 + 1e-4 * number as f64, "{mean} of {resident}");
        }

        /// The number of different adapters grows with the requests, up to their number and to the resident ones.
        #[test]
        fn distinct_adapters_are_bounded(number in 1u64..1000, resident in 1u64..1000, requests in 1.0f64..500.0) {
            let served = ServedAdapters {
                adapter: Adapter { rank: 1, targets: Vec::new() },
                number,
                resident: resident.min(number),
                host_memory: HostAllocation::Pinned,
                loading: AdapterLoading::Blocking,
            };
            let distinct = served.distinct(requests);
            prop_assert!(distinct >= 1.0 && distinct <= served.resident as f64 && distinct <= requests.max(1.0) + 1e-9);
            prop_assert!(served.distinct(requests + 1.0) >= distinct);
            prop_assert!((0.0..1.0).contains(&served.miss_probability()));
        }
    }
}
