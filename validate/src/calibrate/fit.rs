//! The least-squares problem for [`solve`](super::solve): parameters of a profile, residuals of points.

use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::Protocol;

use super::cases::Cases;
use super::parameters::{Cost, FitParameter};
use super::points::FitPoint;
use super::prior::Prior;
use super::solve::{EqualityPrior, Minimum, Problem, StartDistance, ZeroPrior, minimise};

/// Expected relative duration of the waits in each pass. A sending pass waits for its loads; a forwarding or receiving
/// pass waits for arriving data, which hides a load. Each of them waits once. No block waits for a store, neither on
/// this rank nor at a peer, but a store delays the following operations.
const EXPECTED_PASS_WAITS: [(Cost, f64); 4] =
    [(Cost::Send, 1.0), (Cost::Forward, 1.0), (Cost::Take, 1.0), (Cost::Store, 0.5)];
/// Minimum finite-difference step, relative to the usual size of a parameter.
const MIN_STEP: f64 = 0.006;
/// Minimum value of an expected wait, in microseconds.
const MIN_WAIT_US: f64 = 0.05;

/// Parameters to fit to points, starting from a profile.
pub(super) struct ProfileFit<'a, 'p> {
    pub cases: &'p Cases<'a>,
    pub points: Vec<&'p FitPoint>,
    pub base: &'p Profile,
    pub parameters: &'p [FitParameter],
    pub prior: Prior,
}

impl ProfileFit<'_, '_> {
    /// Returns the fitted profile and the minimum. With a proportional prior, the common factors of all protocols are
    /// fitted first, then those of each protocol, then all parameters.
    pub fn run(&self, start: StartDistance) -> (Profile, Minimum) {
        if self.prior != Prior::Proportional {
            return self.run_from(self.base, start);
        }
        // Launch costs and exchange costs are excluded from the fit of the common factors: delays of the host do not
        // mean a slower device, and blocks that send and receive concurrently do not represent other blocks. If they
        // were included, fitted A100 passes would be 1.4 times as long as those measured on hosts with eight A100
        // (p4de, validate/data/public).
        let others = self.parameters.iter().copied().filter(|parameter| {
            parameter.is_link_parameter() || parameter.is_launch_parameter() || parameter.is_exchange_parameter()
        });
        let others: Vec<FitParameter> = others.collect();
        let common = [FitParameter::LatencyFactor, FitParameter::PassTimeFactor];
        let protocol_factors = Protocol::ALL.map(FitParameter::ProtocolLatencyFactor);
        let protocol_factors =
            protocol_factors.into_iter().filter(|&pace| self.points.iter().any(|point| point.depends_on(pace)));
        let mut paced = self.base.clone();
        for factors in [common.to_vec(), protocol_factors.chain([FitParameter::PassTimeFactor]).collect()] {
            let parameters: Vec<FitParameter> = factors.into_iter().chain(others.iter().copied()).collect();
            let fit = ProfileFit { parameters: &parameters, base: &paced, points: self.points.clone(), ..*self };
            paced = fit.run_from(&paced, start).0;
        }
        ProfileFit { base: &paced, points: self.points.clone(), ..*self }.run_from(&paced, start)
    }

    fn run_from(&self, base: &Profile, distance: StartDistance) -> (Profile, Minimum) {
        let start: Vec<f64> = self.parameters.iter().map(|parameter| parameter.get(base)).collect();
        let minimum = minimise(self, &start, distance);
        (self.profile(&minimum.coordinates), minimum)
    }

    fn profile(&self, coordinates: &[f64]) -> Profile {
        let mut profile = self.base.clone();
        for (parameter, &value) in self.parameters.iter().zip(coordinates) {
            parameter.set(&mut profile, value);
        }
        profile
    }
}

/// Residuals of points under a profile, multiplied by the points' weights, in the order of the points.
pub(super) fn residuals(cases: &Cases<'_>, points: &[&FitPoint], profile: &Profile) -> Vec<f64> {
    let case_indices: Vec<usize> = points.iter().map(|point| point.case).collect();
    let devices = cases.run(&case_indices, profile);
    points.iter().zip(devices).map(|(point, device)| point.weight * point.residual(device, profile)).collect()
}

impl Problem for ProfileFit<'_, '_> {
    fn is_interrupted(&self) -> bool {
        self.cases.monitor().is_interrupted()
    }

    fn residuals(&self, coordinates: &[f64]) -> Vec<f64> {
        residuals(self.cases, &self.points, &self.profile(coordinates))
    }

    /// Derivatives by finite differences, with a step of 1 % of the value, or for small values a fixed fraction of the
    /// usual size.
    fn derivatives(&self, coordinates: &[f64], current: &[f64]) -> Vec<Vec<f64>> {
        let column = |(number, &parameter): (usize, &FitParameter)| {
            let value = coordinates.get(number).copied().unwrap_or_default();
            // Costs per warp are small and need smaller steps.
            let step = (value.abs() * 0.01).max(MIN_STEP * parameter.typical_size().min(1.0));
            // Fractions cannot exceed 1, so the step is downwards at the upper limit.
            let step = if value + step > parameter.upper_limit() { -step } else { step };
            let mut moved = coordinates.to_vec();
            moved[number] = value + step;
            let profile = self.profile(&moved);
            let affected: Vec<usize> =
                (0..).zip(&self.points).filter(|(_, point)| point.depends_on(parameter)).map(|(n, _)| n).collect();
            let points: Vec<&FitPoint> =
                affected.iter().filter_map(|&number| self.points.get(number).copied()).collect();
            let mut derivatives = vec![0.0; self.points.len()];
            for (number, after) in affected.into_iter().zip(residuals(self.cases, &points, &profile)) {
                if let (Some(slot), Some(before)) = (derivatives.get_mut(number), current.get(number)) {
                    *slot = (after - before) / step;
                }
            }
            derivatives
        };
        self.parameters.iter().enumerate().map(column).collect()
    }

    fn expected(&self) -> Vec<(f64, f64)> {
        let expected_value = |parameter: &FitParameter| {
            let value = parameter.get(self.base);
            (value, value.abs().max(parameter.typical_size()) / self.prior.deviation_residual())
        };
        self.parameters.iter().map(expected_value).collect()
    }

    fn equality_priors(&self) -> Vec<EqualityPrior> {
        let Some(residual) = self.prior.equal_waits_residual() else { return Vec::new() };
        let find_index = |target| self.parameters.iter().position(|&parameter| parameter == target);
        let ties = Protocol::ALL.into_iter().flat_map(|protocol| {
            let passes = EXPECTED_PASS_WAITS.map(|(cost, waits)| (FitParameter::Protocol(protocol, cost), 1.0 / waits));
            let costs = passes.map(|(parameter, times)| parameter.get(self.base) * times);
            let deviation = (costs.iter().sum::<f64>() / costs.len() as f64).max(MIN_WAIT_US) / residual;
            let pairs =
                (0..passes.len()).flat_map(move |first| (0..first).map(move |second| (passes[first], passes[second])));
            pairs.filter_map(move |(first, second)| {
                Some(EqualityPrior {
                    coordinates: (find_index(first.0)?, find_index(second.0)?),
                    factors: (first.1, second.1),
                    far: deviation,
                })
            })
        });
        ties.collect()
    }

    fn zero_priors(&self) -> Vec<ZeroPrior> {
        let Some(residual) = self.prior.zero_correction_residual() else { return Vec::new() };
        let prior = |(coordinate, parameter): (usize, &FitParameter)| {
            Some(ZeroPrior { coordinate, far: parameter.typical_correction()? / residual })
        };
        self.parameters.iter().enumerate().filter_map(prior).collect()
    }

    fn clamp(&self, coordinates: &mut [f64]) {
        for (parameter, value) in self.parameters.iter().zip(coordinates) {
            *value = value.clamp(parameter.lower_limit(), parameter.upper_limit());
        }
    }
}
