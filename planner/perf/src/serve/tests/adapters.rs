//! Tests of inference with low-rank adapters of which some are in host memory.

use super::degrees::best_on_host;

/// Requests whose adapters are not resident wait: more resident adapters never serve fewer tokens per second.
#[test]
fn throughput_never_falls_with_resident_adapters() {
    for (concurrency, number) in [(8, 200), (512, 200), (512, 1000), (2048, 20)] {
        // 1,000 adapters of rank 4 fit in memory.
        let rank = if number == 1000 { 4 } else { 32 };
        let residents = [1, 2, 4, 8, 20, 64, 200, 1000].map(|resident: u64| resident.min(number));
        let services = best_on_host(residents.map(|resident| {
            format!(
                "prompt_tokens = 1000\noutput_tokens = 200\nconcurrency = {concurrency}\nparallel = {{ tp = 1, dp = 8 }}\n\
                 model = {{ layers = 32, hidden = 4096, heads = 32, kv_heads = 8, ffn = 14336, gated = true, vocab = 128256 }}\n\
                 adapters = {{ rank = {rank}, targets = \"all\", number = {number}, resident = {resident} }}\n"
            )
        }));
        let rates = services.map(|run| run.service.tokens_per_s);
        assert!(rates.is_sorted(), "{concurrency} requests, {number} adapters: {rates:?}");
    }
}
