//! Compares max–min fair sharing with an oracle written from the definition, and tests its properties.

use fabricast_sim::quantity::Rate;
use fabricast_sim::sharing::{ResourceId, RouteId, Sharing, System, Use, WHOLE};
use proptest::prelude::*;

/// Sharing problem in plain numbers: capacities, and routes with (capacity → coefficient), cap, weight and number of
/// transfers.
#[derive(Clone, Debug)]
struct SharingProblem {
    capacities: Vec<u64>,
    routes: Vec<ProblemRoute>,
}

#[derive(Clone, Debug)]
struct ProblemRoute {
    uses: Vec<(usize, u64)>,
    cap: Option<u64>,
    weight: u32,
    count: u32,
}

/// Returns the rates by dense progressive filling in floating point: the level of all routes rises until the first
/// limit, where the limited routes are frozen.
fn oracle(problem: &SharingProblem) -> Vec<f64> {
    let n = problem.routes.len();
    let (mut rate, mut frozen) = (vec![0.0f64; n], vec![false; n]);
    for (i, route) in problem.routes.iter().enumerate() {
        frozen[i] = route.count == 0;
    }
    while frozen.iter().any(|f| !f) {
        let mut level = f64::INFINITY;
        for (i, route) in problem.routes.iter().enumerate() {
            if let (false, Some(cap)) = (frozen[i], route.cap) {
                level = level.min(cap as f64 / f64::from(route.weight));
            }
        }
        let mut limit = vec![f64::INFINITY; problem.capacities.len()];
        for (r, &capacity) in problem.capacities.iter().enumerate() {
            let (mut used, mut load) = (0.0, 0.0);
            for (i, route) in problem.routes.iter().enumerate() {
                for &(resource, coefficient) in &route.uses {
                    if resource == r && route.count > 0 {
                        let a = coefficient as f64 / WHOLE as f64 * f64::from(route.count);
                        if frozen[i] { used += a * rate[i] } else { load += a * f64::from(route.weight) }
                    }
                }
            }
            if load > 0.0 {
                limit[r] = (capacity as f64 - used) / load;
                level = level.min(limit[r]);
            }
        }
        if level.is_infinite() {
            for i in 0..n {
                if !frozen[i] {
                    (rate[i], frozen[i]) = (f64::INFINITY, true);
                }
            }
            break;
        }
        let is_at_level = |x: f64| x <= level * (1.0 + 1e-12);
        for (i, route) in problem.routes.iter().enumerate() {
            let capped = route.cap.is_some_and(|cap| is_at_level(cap as f64 / f64::from(route.weight)));
            if !frozen[i] && (capped || route.uses.iter().any(|&(r, _)| is_at_level(limit[r]))) {
                rate[i] = level * f64::from(route.weight);
                frozen[i] = true;
            }
        }
    }
    rate
}

fn build(problem: &SharingProblem) -> (System, Vec<RouteId>) {
    let mut system = System::new();
    let ids: Vec<ResourceId> = problem.capacities.iter().map(|&c| system.add_resource(Rate(c))).collect();
    let routes = problem
        .routes
        .iter()
        .map(|route| {
            let uses: Vec<Use> =
                route.uses.iter().map(|&(r, coefficient)| Use { resource: ids[r], coefficient }).collect();
            system.add_route(&uses, route.cap.map_or(Rate::UNLIMITED, Rate), route.weight)
        })
        .collect();
    (system, routes)
}

fn solve(problem: &SharingProblem) -> Vec<Rate> {
    let (system, routes) = build(problem);
    let mut sharing = Sharing::new(&system);
    for (id, route) in routes.iter().zip(&problem.routes) {
        for _ in 0..route.count {
            sharing.start(&system, *id);
        }
    }
    sharing.settle(&system, |_| {});
    routes.iter().map(|&id| sharing.rate(id)).collect()
}

/// Generates rates from megabytes to terabytes per second; equal capacities are likely.
fn capacity() -> impl Strategy<Value = u64> {
    prop_oneof![
        prop::sample::select(vec![50_000_000_000_000u64, 450_000_000_000_000, 25_000_000_000_000]),
        1_000_000_000_000..5_000_000_000_000_000u64,
    ]
}

fn problem() -> impl Strategy<Value = SharingProblem> {
    (prop::collection::vec(capacity(), 1..12)).prop_flat_map(|capacities| {
        let n = capacities.len();
        let coefficient = prop::sample::select(vec![WHOLE, WHOLE, WHOLE, WHOLE / 2, WHOLE / 3, 3 * WHOLE]);
        let uses = prop::collection::btree_map(0..n, coefficient, 1..=n.min(5));
        let route =
            (uses, prop::option::weighted(0.2, capacity()), 1u32..4, 0u32..4).prop_map(|(uses, cap, weight, count)| {
                ProblemRoute { uses: uses.into_iter().collect(), cap, weight, count }
            });
        prop::collection::vec(route, 1..20)
            .prop_map(move |routes| SharingProblem { capacities: capacities.clone(), routes })
    })
}

fn is_close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn shares_equal_the_oracle(problem in problem()) {
        for (i, (rate, expected)) in solve(&problem).into_iter().zip(oracle(&problem)).enumerate() {
            if problem.routes[i].count > 0 {
                prop_assert!(is_close(rate.0 as f64, expected), "route {i}: {} against {expected}", rate.0);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// No capacity is exceeded, and every route is limited by a capacity that no faster route shares.
    #[test]
    fn shares_are_feasible_and_max_min_fair(problem in problem()) {
        let rates = solve(&problem);
        let scale = u128::from(WHOLE);
        let mut used = vec![0u128; problem.capacities.len()];
        for (route, rate) in problem.routes.iter().zip(&rates) {
            for &(r, coefficient) in &route.uses {
                used[r] += u128::from(coefficient) * u128::from(route.count) * u128::from(rate.0);
            }
        }
        for (r, &capacity) in problem.capacities.iter().enumerate() {
            prop_assert!(used[r] <= u128::from(capacity) * scale);
        }
        for (i, route) in problem.routes.iter().enumerate().filter(|(_, route)| route.count > 0) {
            let level = |j: usize| rates[j].0 as f64 / f64::from(problem.routes[j].weight);
            let is_capped = route.cap.is_some_and(|cap| is_close(cap as f64, rates[i].0 as f64));
            let limited = route.uses.iter().any(|&(r, _)| {
                let is_saturated = is_close(used[r] as f64, problem.capacities[r] as f64 * WHOLE as f64);
                let users = problem.routes.iter().enumerate().filter(|(_, other)| other.count > 0 && other.uses.iter().any(|u| u.0 == r));
                is_saturated && users.map(|(j, _)| level(j)).all(|other| other <= level(i) * (1.0 + 1e-9))
            });
            prop_assert!(is_capped || limited, "route {i} could be faster");
        }
    }

    /// Renumbering capacities and routes, and starting routes in another order, changes no rate.
    #[test]
    fn shares_do_not_depend_on_order_or_ids(problem in problem(), seed in any::<u64>()) {
        let rates = solve(&problem);
        let order = |n: usize, salt: u64| {
            let mut order: Vec<usize> = (0..n).collect();
            order.sort_by_key(|&i| (i as u64 ^ seed.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ salt));
            order
        };
        let (resources, routes) = (order(problem.capacities.len(), 1), order(problem.routes.len(), 2));
        let position = |r: usize| resources.iter().position(|&x| x == r).unwrap();
        let shuffled = SharingProblem {
            capacities: resources.iter().map(|&r| problem.capacities[r]).collect(),
            routes: routes
                .iter()
                .map(|&i| {
                    let route = &problem.routes[i];
                    ProblemRoute { uses: route.uses.iter().rev().map(|&(r, a)| (position(r), a)).collect(), ..route.clone() }
                })
                .collect(),
        };
        let shuffled_rates = solve(&shuffled);
        for (j, &i) in routes.iter().enumerate() {
            prop_assert_eq!(shuffled_rates[j], rates[i]);
        }
    }

    /// Any history of starts and stops ends at the rates of a problem solved from scratch, so re-solving only the
    /// affected part is exact.
    #[test]
    fn shares_do_not_depend_on_history(problem in problem(), actions in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 0..60)) {
        let (system, routes) = build(&problem);
        let mut sharing = Sharing::new(&system);
        let mut counts = vec![0u32; routes.len()];
        for (selector, settle) in actions {
            let i = selector.index(routes.len());
            if counts[i] < 3 && (counts[i] == 0 || settle) {
                sharing.start(&system, routes[i]);
                counts[i] += 1;
            } else {
                sharing.stop(&system, routes[i]);
                counts[i] -= 1;
            }
            if settle {
                sharing.settle(&system, |_| {});
            }
        }
        sharing.settle(&system, |_| {});
        let mut final_problem = problem.clone();
        for (route, &count) in final_problem.routes.iter_mut().zip(&counts) {
            route.count = count;
        }
        for (i, rate) in solve(&final_problem).into_iter().enumerate().filter(|&(i, _)| counts[i] > 0) {
            prop_assert_eq!(sharing.rate(routes[i]), rate);
        }
    }
}

/// One capacity of 450 GB/s is shared by 4,096 routes, each of which gets 1/4,096, apart from rounding.
#[test]
fn thousands_of_routes_share_one_capacity_equally() {
    let route = ProblemRoute { uses: vec![(0, WHOLE)], cap: None, weight: 1, count: 1 };
    let problem = SharingProblem { capacities: vec![450_000_000_000_000], routes: vec![route; 4096] };
    assert!(solve(&problem).iter().all(|rate| rate.0 == 450_000_000_000_000 / 4096));
}
