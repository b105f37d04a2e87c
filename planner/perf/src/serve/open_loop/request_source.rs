//! Requests of an open loop in the order of their arrival, drawn at random.
//!
//! Gaps between arrivals have a gamma distribution (vLLM, `vllm/benchmarks/serve.py`, `--burstiness`), whose shape 1 is the
//! exponential distribution of a Poisson process. The generator starts from a fixed seed, so that equal jobs have equal
//! requests.

use fabricast_topologies::Picos;
use fabricast_workload::job::RequestVariation;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, Gamma, StandardUniform};

/// Request of an open loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// Position in the order of arrivals, from 0.
    pub number: u64,
    /// Time at which the request is sent.
    pub arrival: Picos,
    /// Number of prompt tokens.
    pub prompt: u64,
    /// Number of output tokens, including the first.
    pub output: u64,
    /// Number of prompt tokens that earlier requests have left in the prefix cache.
    pub cached: u64,
}

/// Draws the lengths of the requests of a benchmark, in the order in which they are sent. Their distribution has no
/// sampling error: the lengths are quantiles of equal distance in random order. Different `seed`s have different orders.
pub(super) fn shuffled_lengths(variation: &RequestVariation, requests: u64, seed: u64) -> Vec<RequestLengths> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut shares = || {
        let mut order: Vec<(f64, u64)> =
            (0..requests).map(|index| (StandardUniform.sample(&mut random), index)).collect();
        order.sort_by(|a, b| a.0.total_cmp(&b.0));
        order.into_iter().map(|(_, index)| (index as f64 + 0.5) / requests as f64).collect::<Vec<f64>>()
    };
    let [prompts, outputs] = [shares(), shares()];
    let lengths = prompts.into_iter().zip(outputs).map(|(prompt, output)| RequestLengths {
        prompt: variation.prompt.quantile(prompt),
        output: variation.output.quantile(output),
    });
    lengths.collect()
}

/// Lengths of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestLengths {
    /// Number of prompt tokens.
    pub prompt: u64,
    /// Number of output tokens, including the first.
    pub output: u64,
}

/// Endless source of requests.
pub(super) struct RequestSource<'a> {
    variation: &'a RequestVariation,
    gaps: Option<Gamma<f64>>,
    mean_gap: Picos,
    random: ChaCha8Rng,
    now: f64,
    next: u64,
}

impl<'a> RequestSource<'a> {
    /// Creates the source of requests that arrive every `mean_gap` in the mean. Sources with different `number` draw
    /// different requests.
    pub(super) fn new(variation: &'a RequestVariation, mean_gap: Picos, number: u64) -> Self {
        let shape = variation.burstiness;
        let gaps = Gamma::new(shape, mean_gap.0 as f64 / shape).ok();
        Self { variation, gaps, mean_gap, random: ChaCha8Rng::seed_from_u64(number), now: 0.0, next: 0 }
    }
}

impl Iterator for RequestSource<'_> {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        // (Gaps are equal if their distribution is not defined, which the ranges of its parameters exclude.)
        let gap = self.gaps.map_or(self.mean_gap.0 as f64, |gaps| gaps.sample(&mut self.random));
        self.now += gap;
        let [prompt, output]: [f64; 2] =
            [StandardUniform.sample(&mut self.random), StandardUniform.sample(&mut self.random)];
        let number = self.next;
        self.next += 1;
        Some(Request {
            number,
            arrival: Picos(self.now.round() as u64),
            prompt: self.variation.prompt.quantile(prompt),
            output: self.variation.output.quantile(output),
            cached: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabricast_workload::job::LengthDistribution;

    /// Means of gaps and lengths are those of their distributions, and the variance of gaps is their mean squared ÷ the
    /// shape.
    #[test]
    fn requests_have_the_stated_means() {
        for burstiness in [0.25, 1.0, 4.0] {
            let lengths = LengthDistribution::new(vec![10, 20, 100]).unwrap();
            let variation = RequestVariation { burstiness, prompt: lengths, output: LengthDistribution::fixed(5) };
            let requests: Vec<Request> = RequestSource::new(&variation, Picos(1_000_000), 3).take(200_000).collect();
            let gaps = requests.windows(2).map(|pair| (pair[1].arrival.0 - pair[0].arrival.0) as f64 / 1e6);
            let count = requests.len() as f64;
            let (mean, square) =
                gaps.fold((0.0, 0.0), |(sum, squares), gap| (sum + gap / count, squares + gap * gap / count));
            assert!((mean - 1.0).abs() < 0.02, "{mean}");
            assert!(((square - mean * mean) * burstiness - 1.0).abs() < 0.05, "{square} {mean}");
            let prompt = requests.iter().map(|request| request.prompt as f64 / count).sum::<f64>();
            assert!((prompt - 37.5).abs() < 0.5, "{prompt}");
            assert!(requests.iter().all(|request| request.output == 5));
        }
    }

    #[test]
    fn sources_repeat_and_differ_by_number() {
        let variation = RequestVariation {
            burstiness: 1.0,
            prompt: LengthDistribution::fixed(9),
            output: LengthDistribution::fixed(5),
        };
        let first = |number| RequestSource::new(&variation, Picos(1_000_000), number).take(5).collect::<Vec<Request>>();
        assert_eq!(first(1), first(1));
        assert_ne!(first(1), first(2));
    }
}
