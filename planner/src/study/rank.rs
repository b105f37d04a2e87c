//! The order of candidates: those that fit first, by what their jobs cost, or by how fast they are where there are no prices.
//!
//! Jobs count by weight, in a geometric mean, so that a job of long steps counts no more than one of short ones.

use super::served::shortfalls;
use super::{JobResult, Study};
use crate::job::Job;

/// A candidate and its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranked {
    /// Number of the candidate in the study.
    pub candidate: usize,
    /// Weighted geometric mean over jobs: of the cost of a million tokens where there are prices, otherwise of the seconds
    /// that a million tokens take.
    pub score: f64,
    /// Whether nothing else is both cheaper by the hour and faster over all jobs; `None` without prices.
    pub pareto: Option<bool>,
    /// Why it stands behind: jobs that do not fit, constraints that it breaks.
    pub beyond: Vec<String>,
}

/// Ranks the candidates of a study by its results.
#[must_use]
pub fn rank(study: &Study, results: &[JobResult]) -> Vec<Ranked> {
    let mean = |candidate: usize, of: fn(&JobResult) -> f64| {
        let own = results.iter().filter(|one| one.candidate == candidate);
        let (sum, weights) = own.fold((0.0, 0.0), |(sum, weights), one| {
            let weight = study.jobs.get(one.job).map_or(1.0, Job::weight);
            (sum + weight * of(one).ln(), weights + weight)
        });
        (sum / weights).exp()
    };
    let seconds = |candidate| mean(candidate, |one| 1e6 / one.tokens_per_s);
    let priced = results.iter().all(|one| one.cost_per_million_tokens.is_some());
    let hourly = |candidate: usize| {
        let own = results.iter().find(|one| one.candidate == candidate);
        own.and_then(|one| one.cost_per_hour).map_or(0.0, super::Band::middle)
    };
    let mut ranked: Vec<Ranked> = study
        .candidates
        .iter()
        .enumerate()
        .map(|(number, candidate)| {
            let own = results.iter().filter(|one| one.candidate == number);
            let lacking = own.flat_map(|one| {
                let name = study.jobs.get(one.job).map_or("", Job::name);
                match (&one.service, one.beyond) {
                    (Some(service), _) => shortfalls(name, service),
                    (None, Some(over)) => vec![format!("{name} lacks {:.1} GB of memory", over.0 as f64 / 1e9)],
                    (None, None) => Vec::new(),
                }
            });
            let hour = results.iter().find(|one| one.candidate == number).and_then(|one| one.cost_per_hour);
            let beyond = lacking.chain(candidate.beyond(hour, &study.constraints)).collect();
            let score = if priced {
                mean(number, |one| one.cost_per_million_tokens.map_or(f64::INFINITY, super::Band::middle))
            } else {
                seconds(number)
            };
            Ranked { candidate: number, score, pareto: None, beyond }
        })
        .collect();
    if priced {
        let points: Vec<(usize, f64, f64, bool)> = ranked
            .iter()
            .map(|one| (one.candidate, hourly(one.candidate), seconds(one.candidate), one.beyond.is_empty()))
            .collect();
        for (one, own) in ranked.iter_mut().zip(&points) {
            let better = |other: &&(usize, f64, f64, bool)| {
                other.3 && other.1 <= own.1 && other.2 <= own.2 && (other.1 < own.1 || other.2 < own.2)
            };
            one.pareto = Some(own.3 && points.iter().find(better).is_none());
        }
    }
    ranked.sort_by(|a, b| {
        let key = |one: &Ranked| !one.beyond.is_empty();
        key(a).cmp(&key(b)).then(a.score.total_cmp(&b.score)).then(a.candidate.cmp(&b.candidate))
    });
    ranked
}

#[cfg(test)]
mod tests {
    use fabricast_topologies::load;

    use super::super::{read_study, run};
    use super::*;

    fn study(extra: &str) -> Study {
        let text = format!(
            "[[candidate]]\nname = \"dear\"\nfabric = \"hgx-h100\"\nprice_usd = {{ low = 500000, high = 900000 }}\npower_kw = 10\n\
             [[candidate]]\nname = \"cheap\"\nfabric = \"hgx-h100\"\nprice_usd = 300000\npower_kw = 10\n\
             [[candidate]]\nname = \"small\"\nfabric = \"hgx-h100\"\ngpus = 1\nprice_usd = 40000\npower_kw = 2\n\
             [[job]]\nname = \"j\"\nglobal_batch = 32\nparallel = \"auto\"\nrecompute = \"full\"\ntrain_tokens = 1e9\n\
             model = {{ layers = 32, hidden = 4096, heads = 32, vocab = 51200, seq = 2048 }}\n{extra}"
        );
        read_study(&text, "s.toml").unwrap()
    }

    fn ranking(study: &Study) -> Vec<(String, bool)> {
        let fabrics: Vec<_> = study.candidates.iter().map(|one| load(&one.fabric).unwrap()).collect();
        let results = run(study, &fabrics, None).unwrap();
        for one in &results {
            let tokens = one.tokens_per_s * one.step.time.0 as f64 / 1e12;
            assert!((tokens - 65_536.0).abs() < 1e-3);
            assert!((one.train_hours.unwrap() * 3600.0 * one.tokens_per_s / 1e9 - 1.0).abs() < 1e-9);
            let (cost, hour) = (one.cost_per_million_tokens.unwrap(), one.cost_per_hour.unwrap());
            assert!((cost.high * one.tokens_per_s * 3600.0 / 1e6 / hour.high - 1.0).abs() < 1e-9);
        }
        let name = |one: &Ranked| (study.candidates[one.candidate].name.clone(), one.beyond.is_empty());
        rank(study, &results).iter().map(name).collect()
    }

    #[test]
    fn the_cheapest_that_fits_is_first() {
        let expected = |rows: [(&str, bool); 3]| rows.map(|(name, fits)| (name.to_owned(), fits)).to_vec();
        // One GPU lacks memory, however little it costs.
        assert_eq!(ranking(&study("")), expected([("cheap", true), ("dear", true), ("small", false)]));
        let limited = study("[constraints]\nbudget_usd = 200000\n");
        assert!(ranking(&limited).iter().all(|(_, within)| !within));
    }
}
