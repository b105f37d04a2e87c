//! Tests of the search over degrees, and of concurrency within memory and SLO limits.

use fabricast_sim::profile::Profile;
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{FabricRequest, load};

use super::super::{ServiceRun, best_service};
use super::served;
use crate::communication::SimulatedCosts;
use crate::step::{Efficiency, Machine};

/// Returns the best performance of jobs with these lines on eight H100.
pub(super) fn best_on_host<const N: usize>(jobs: [String; N]) -> [ServiceRun; N] {
    let fabric = load(&FabricRequest::new("hgx-h100")).unwrap();
    let router = Router::new(&fabric, RouteOptions::default());
    let profile = Profile::for_fabric(&fabric).unwrap();
    let simulated = SimulatedCosts::new(&router, &profile, fabric.gpus());
    let machine =
        Machine { router: &router, ranks: fabric.gpus(), simulated: &simulated, curve: Efficiency::new(&fabric) };
    jobs.map(|lines| best_service(&served(&lines), &machine).unwrap())
}

/// With automatic concurrency, `max_num_seqs`, memory and SLO limits restrict the number of requests: one more request
/// per replica violates one of them.
#[test]
fn automatic_concurrency_fills_memory_within_limits() {
    let lines = "prompt_tokens = 200\noutput_tokens = 100\nparallel = { tp = 4, dp = 2 }\n";
    let automatic = |more: &str| format!("concurrency = \"auto\"\n{lines}{more}");
    let fixed = |concurrent_requests: u64, more: &str| format!("concurrency = {concurrent_requests}\n{lines}{more}");
    let [filled, capped] =
        best_on_host(["max_num_seqs = 20000\n", "max_num_seqs = 3\n"].map(automatic)).map(|run| run.service);
    let check = filled.memory_check.as_ref().unwrap();
    assert!(
        filled.concurrent_requests == check.requests && filled.concurrent_requests > 100 && check.missing.is_none(),
        "{filled:?}"
    );
    assert_eq!(capped.concurrent_requests, 6);
    // The limit is twice the TPOT of a few requests.
    let limit = format!("tpot_s = {}\n", capped.tpot.unwrap().0 as f64 * 2e-12);
    let [limited, hopeless] =
        best_on_host([limit.as_str(), "tpot_s = 0.00001\n"].map(automatic)).map(|run| run.service);
    assert!(
        limited.slo_violations.is_empty() && (7..filled.concurrent_requests).contains(&limited.concurrent_requests),
        "{limited:?}"
    );
    assert_eq!((hopeless.concurrent_requests, hopeless.slo_violations.len()), (2, 1));
    let [repeated, more] = best_on_host([0, 2].map(|more| fixed(limited.concurrent_requests + more, &limit)));
    assert_eq!(repeated.service.tokens_per_s, limited.tokens_per_s);
    assert_eq!(more.service.slo_violations.len(), 1);
    // A search over degrees also meets the limits, with at least the same throughput.
    let [searched] = best_on_host([automatic(&limit).replace("{ tp = 4, dp = 2 }", "\"auto\"")]);
    assert!(
        searched.service.slo_violations.is_empty() && searched.service.tokens_per_s >= limited.tokens_per_s,
        "{searched:?}"
    );
}

/// A KV cache in another memory tier is read over the fabric, which is slower than HBM, and much slower over PCIe.
#[test]
fn kv_cache_tiers_cost_fabric_reads() {
    let job = |tier| format!("kv_tier = \"{tier}\"\nprompt_tokens = 8000\nconcurrency = 16\n");
    let runs = best_on_host(["hbm", "peer", "host"].map(job));
    let [local, _, remote] = [0, 1, 2].map(|tier| runs[tier].footprint);
    let [hbm, peer, host] = runs.map(|run| run.service);
    assert!(hbm.tpot < peer.tpot && peer.tpot < host.tpot, "{hbm:?} {peer:?} {host:?}");
    assert_eq!((local.kv_cache.0 > 0, remote.kv_cache.0), (true, 0));
}

#[test]
fn searched_degrees_fit_and_meet_limits() {
    let lines = ["\"auto\"", "{ tp = 8 }", "{ tp = 4, dp = 2 }", "{ tp = 4, pp = 2 }"];
    let [ServiceRun { step, footprint, service }, fixed @ ..] =
        best_on_host(lines.map(|degrees| format!("parallel = {degrees}\n")));
    assert_eq!(step.layout.degrees.ranks(), 8);
    assert!(
        footprint.total().0 < 72_000_000_000 && service.memory_check.as_ref().unwrap().missing.is_none(),
        "{footprint:?}"
    );
    for (degrees, ServiceRun { service: other, .. }) in lines[1..].iter().zip(fixed) {
        let fits = other.memory_check.as_ref().unwrap().missing.is_none();
        assert!(!fits || other.tokens_per_s <= service.tokens_per_s * 1.02, "{degrees}: {other:?} {service:?}");
    }
}
