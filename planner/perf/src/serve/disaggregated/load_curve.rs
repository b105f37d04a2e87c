//! Requests per second of a part of a job by its number of concurrent requests, and two parts in sequence.

use std::cell::RefCell;

use fabricast_search::plan::PlanError;
use fabricast_topologies::Picos;
use rustc_hash::FxHashMap;

/// Relative precision of rates and numbers of requests.
const PRECISION: f64 = 1e-6;

/// Largest number of halvings of an interval.
const MAX_HALVINGS: u32 = 60;

/// Requests per second of a part by its number of concurrent requests. Between whole numbers the rate is linear; fewer than
/// one request are one that is elsewhere at times.
pub(super) struct LoadCurve<F> {
    rate: F,
    known: RefCell<FxHashMap<u64, f64>>,
}

impl<F: Fn(u64) -> Result<f64, PlanError>> LoadCurve<F> {
    /// Creates the curve of a function of the number of concurrent requests, at least 1.
    pub(super) fn new(rate: F) -> Self {
        Self { rate, known: RefCell::default() }
    }

    fn at(&self, requests: u64) -> Result<f64, PlanError> {
        let known = self.known.borrow().get(&requests).copied();
        match known {
            Some(rate) => Ok(rate),
            None => {
                let rate = (self.rate)(requests)?;
                self.known.borrow_mut().insert(requests, rate);
                Ok(rate)
            }
        }
    }

    /// Returns the rate of a mean number of requests.
    pub(super) fn rate(&self, requests: f64) -> Result<f64, PlanError> {
        let (whole, part) = (requests.floor(), requests.fract());
        if whole < 1.0 {
            return Ok(requests * self.at(1)?);
        }
        let below = self.at(whole as u64)?;
        if part < PRECISION {
            return Ok(below);
        }
        Ok(below * (1.0 - part) + self.at(whole as u64 + 1)? * part)
    }

    /// Returns the smallest number of requests with a rate, up to `limit`; `None` if more are needed.
    pub(super) fn requests(&self, rate: f64, limit: f64) -> Result<Option<f64>, PlanError> {
        if self.rate(limit)? < rate * (1.0 - PRECISION) {
            return Ok(None);
        }
        let (mut low, mut high) = (0.0, limit);
        for _ in 0..MAX_HALVINGS {
            if high - low <= PRECISION * high {
                break;
            }
            let middle = f64::midpoint(low, high);
            if self.rate(middle)? < rate { low = middle } else { high = middle }
        }
        Ok(Some(high))
    }
}

/// Requests of a closed loop that are in prefill, on the network, and in decode.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct SequentialLoad {
    /// Requests per second.
    pub rate: f64,
    /// Mean number of requests in prefill.
    pub prefill: f64,
    /// Mean number of requests on the network.
    pub transfer: f64,
    /// Mean number of requests in decode.
    pub decode: f64,
}

/// Limits of requests in sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SequentialLimits {
    /// Number of concurrent requests.
    pub requests: f64,
    /// Requests per second that the network carries.
    pub network: f64,
    /// Time of a request on the network.
    pub transfer: Picos,
}

/// Divides the requests of a closed loop among prefill, network and decode, through which each passes at the same rate
/// (Little's law). Requests that exceed the capacity of the network wait there.
pub(super) fn sequential_load<P, D>(
    prefill: &LoadCurve<P>,
    decode: &LoadCurve<D>,
    limits: SequentialLimits,
) -> Result<SequentialLoad, PlanError>
where
    P: Fn(u64) -> Result<f64, PlanError>,
    D: Fn(u64) -> Result<f64, PlanError>,
{
    let total = limits.requests;
    let on_network = |rate: f64| rate * limits.transfer.0 as f64 / 1e12;
    // Numbers of requests in prefill and decode at a rate; `None` if it is not reached.
    let numbers = |rate: f64| -> Result<Option<[f64; 2]>, PlanError> {
        let Some(prefill) = prefill.requests(rate, total)? else { return Ok(None) };
        Ok(decode.requests(rate, total)?.map(|decode| [prefill, decode]))
    };
    let (mut low, mut high) = (0.0, prefill.rate(total)?.min(decode.rate(total)?).min(limits.network));
    for _ in 0..MAX_HALVINGS {
        if high - low <= PRECISION * high {
            break;
        }
        let middle = f64::midpoint(low, high);
        let is_reached =
            numbers(middle)?.is_some_and(|[prefill, decode]| prefill + decode + on_network(middle) <= total);
        if is_reached { low = middle } else { high = middle }
    }
    let rate = low;
    let [in_prefill, in_decode] = numbers(rate)?.unwrap_or_default();
    // A bottleneck holds the others.
    let waiting = (total - in_prefill - in_decode - on_network(rate)).max(0.0);
    let is_network_full = rate >= limits.network * (1.0 - 4.0 * PRECISION);
    let prefill_rate = prefill.rate((in_prefill + waiting).min(total))?;
    let holds_prefill = !is_network_full && prefill_rate <= rate * (1.0 + 4.0 * PRECISION);
    let [at_prefill, at_network, at_decode] = match (is_network_full, holds_prefill) {
        (true, _) => [0.0, waiting, 0.0],
        (false, true) => [waiting, 0.0, 0.0],
        (false, false) => [0.0, 0.0, waiting],
    };
    Ok(SequentialLoad {
        rate,
        prefill: in_prefill + at_prefill,
        transfer: on_network(rate) + at_network,
        decode: in_decode + at_decode,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Station whose requests take `time` seconds alone, of which at most `limit` end per second.
    fn station(time: f64, limit: f64) -> LoadCurve<impl Fn(u64) -> Result<f64, PlanError>> {
        LoadCurve::new(move |requests: u64| Ok((requests as f64 / time).min(limit)))
    }

    fn load(requests: f64, prefill: (f64, f64), transfer: f64, decode: (f64, f64), network: f64) -> SequentialLoad {
        let limits = SequentialLimits { requests, network, transfer: Picos((transfer * 1e12) as u64) };
        sequential_load(&station(prefill.0, prefill.1), &station(decode.0, decode.1), limits).unwrap()
    }

    /// A lone request is in one part at a time.
    #[test]
    fn time_of_a_lone_request_is_the_sum_of_its_parts() {
        let found = load(1.0, (0.5, 1e9), 0.25, (3.25, 1e9), 1e9);
        assert!((found.rate - 0.25).abs() < 1e-5, "{found:?}");
        assert!((found.prefill - 0.125).abs() < 1e-4 && (found.decode - 0.8125).abs() < 1e-4, "{found:?}");
    }

    #[test]
    fn bottleneck_holds_the_waiting_requests() {
        let prefill = load(100.0, (1.0, 4.0), 1.0, (2.0, 50.0), 1e9);
        assert!((prefill.rate - 4.0).abs() < 1e-4 && (prefill.prefill - 88.0).abs() < 0.01, "{prefill:?}");
        let decode = load(100.0, (1.0, 50.0), 1.0, (2.0, 4.0), 1e9);
        assert!((decode.rate - 4.0).abs() < 1e-4 && (decode.decode - 92.0).abs() < 0.01, "{decode:?}");
        let network = load(100.0, (1.0, 50.0), 1.0, (2.0, 50.0), 4.0);
        assert!((network.rate - 4.0).abs() < 1e-4 && (network.transfer - 88.0).abs() < 0.01, "{network:?}");
    }

    proptest! {
        /// All requests are somewhere, and faster parts never reduce the rate.
        #[test]
        fn requests_are_conserved_and_faster_parts_never_hurt(
            requests in 1u32..300,
            times in (0.01..10.0f64, 0.0..2.0f64, 0.01..10.0f64),
            limits in (0.1..100.0f64, 0.1..100.0f64, 0.1..100.0f64),
            factor in 1.0..3.0f64,
        ) {
            let with = |scale: [f64; 3]| {
                load(
                    requests.into(),
                    (times.0 / scale[0], limits.0 * scale[0]),
                    times.1 / scale[1],
                    (times.2 / scale[2], limits.1 * scale[2]),
                    limits.2 * scale[1],
                )
            };
            let found = with([1.0; 3]);
            let sum = found.prefill + found.transfer + found.decode;
            prop_assert!((sum / f64::from(requests) - 1.0).abs() < 1e-3, "{found:?}");
            prop_assert!(found.rate <= limits.0.min(limits.1).min(limits.2) * (1.0 + 1e-9));
            for part in 0..3 {
                let mut scale = [1.0; 3];
                scale[part] = factor;
                prop_assert!(with(scale).rate >= found.rate * (1.0 - 1e-4), "{part}");
            }
        }
    }
}
