//! The least-squares problem for [`solve`](super::solve): parameters of a profile, residuals of points.

use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::Protocol;

use super::cases::Cases;
use super::parameters::{Cost, Parameter};
use super::points::Point;
use super::prior::Prior;
use super::solve::{Alike, Minimum, Nothing, Problem, Start, minimise};

/// Expected relative duration of the waits of each pass. Sending waits for its loads, forwarding and taking wait for
/// arriving data (which hides a load), once per pass each. Nobody waits for a store, here or at a peer; it only
/// delays what follows.
const WAITS: [(Cost, f64); 4] = [(Cost::Send, 1.0), (Cost::Forward, 1.0), (Cost::Take, 1.0), (Cost::Store, 0.5)];
/// Smallest finite-difference step, relative to the usual size of a parameter.
const LEAST_STEP: f64 = 0.006;
/// Lower bound of an expected wait, in microseconds.
const LEAST_WAIT: f64 = 0.05;

/// Parameters to fit to points, starting from a profile.
pub(super) struct Fit<'a, 'p> {
    pub cases: &'p Cases<'a>,
    pub points: Vec<&'p Point>,
    pub base: &'p Profile,
    pub parameters: &'p [Parameter],
    pub prior: Prior,
}

impl Fit<'_, '_> {
    /// Returns the fitted profile and the minimum. With a proportional prior the common factors are fitted first:
    /// those shared by all protocols, then those of each protocol.
    pub fn run(&self, start: Start) -> (Profile, Minimum) {
        if self.prior != Prior::Proportional {
            return self.run_from(self.base, start);
        }
        // Launch costs and exchange costs are fitted apart from the common factors: host delays are no slower device,
        // and blocks that send and receive concurrently say nothing about other blocks. Included, they make A100
        // passes 1.4 times as long as measured on hosts with eight A100 (p4de, validate/data/public).
        let others = self
            .parameters
            .iter()
            .copied()
            .filter(|parameter| parameter.is_of_links() || parameter.is_of_launch() || parameter.is_of_exchanges());
        let others: Vec<Parameter> = others.collect();
        let common = [Parameter::Pace, Parameter::PassPace];
        let of_each = Protocol::ALL.map(Parameter::PaceOf);
        let of_each = of_each.into_iter().filter(|&pace| self.points.iter().any(|point| point.feels(pace)));
        let mut paced = self.base.clone();
        for factors in [common.to_vec(), of_each.chain([Parameter::PassPace]).collect()] {
            let parameters: Vec<Parameter> = factors.into_iter().chain(others.iter().copied()).collect();
            let fit = Fit { parameters: &parameters, base: &paced, points: self.points.clone(), ..*self };
            paced = fit.run_from(&paced, start).0;
        }
        Fit { base: &paced, points: self.points.clone(), ..*self }.run_from(&paced, start)
    }

    fn run_from(&self, base: &Profile, from: Start) -> (Profile, Minimum) {
        let start: Vec<f64> = self.parameters.iter().map(|parameter| parameter.get(base)).collect();
        let minimum = minimise(self, &start, from);
        (self.profile(&minimum.at), minimum)
    }

    fn profile(&self, at: &[f64]) -> Profile {
        let mut profile = self.base.clone();
        for (parameter, &value) in self.parameters.iter().zip(at) {
            parameter.set(&mut profile, value);
        }
        profile
    }
}

/// Weighted residuals of points with a profile.
pub(super) fn residuals(cases: &Cases<'_>, points: &[&Point], profile: &Profile) -> Vec<f64> {
    let wanted: Vec<usize> = points.iter().map(|point| point.case).collect();
    let devices = cases.run(&wanted, profile);
    points.iter().zip(devices).map(|(point, device)| point.trust * point.residual(device, profile)).collect()
}

impl Problem for Fit<'_, '_> {
    fn residuals(&self, at: &[f64]) -> Vec<f64> {
        residuals(self.cases, &self.points, &self.profile(at))
    }

    /// Finite differences with a step of 1 % of the value, or of a small part of the usual size for small values.
    fn derivatives(&self, at: &[f64], found: &[f64]) -> Vec<Vec<f64>> {
        let column = |(number, &parameter): (usize, &Parameter)| {
            let value = at.get(number).copied().unwrap_or_default();
            // Per-warp costs need finer steps.
            let step = (value.abs() * 0.01).max(LEAST_STEP * parameter.usual().min(1.0));
            // Fractions cannot exceed one, so the step is downwards.
            let step = if value + step > parameter.most() { -step } else { step };
            let mut moved = at.to_vec();
            moved[number] = value + step;
            let profile = self.profile(&moved);
            let feel: Vec<usize> =
                (0..).zip(&self.points).filter(|(_, point)| point.feels(parameter)).map(|(n, _)| n).collect();
            let points: Vec<&Point> = feel.iter().filter_map(|&number| self.points.get(number).copied()).collect();
            let mut derivatives = vec![0.0; self.points.len()];
            for (number, after) in feel.into_iter().zip(residuals(self.cases, &points, &profile)) {
                if let (Some(slot), Some(before)) = (derivatives.get_mut(number), found.get(number)) {
                    *slot = (after - before) / step;
                }
            }
            derivatives
        };
        self.parameters.iter().enumerate().map(column).collect()
    }

    fn expected(&self) -> Vec<(f64, f64)> {
        let of = |parameter: &Parameter| {
            let value = parameter.get(self.base);
            (value, value.abs().max(parameter.usual()) / self.prior.held())
        };
        self.parameters.iter().map(of).collect()
    }

    fn alike(&self) -> Vec<Alike> {
        let Some(held) = self.prior.alike() else { return Vec::new() };
        let place = |wanted| self.parameters.iter().position(|&parameter| parameter == wanted);
        let ties = Protocol::ALL.into_iter().flat_map(|protocol| {
            let passes = WAITS.map(|(cost, waits)| (Parameter::Protocol(protocol, cost), 1.0 / waits));
            let each = passes.map(|(parameter, times)| parameter.get(self.base) * times);
            let far = (each.iter().sum::<f64>() / each.len() as f64).max(LEAST_WAIT) / held;
            let pairs = (0..passes.len()).flat_map(move |one| (0..one).map(move |other| (passes[one], passes[other])));
            pairs.filter_map(move |(one, other)| {
                Some(Alike { of: (place(one.0)?, place(other.0)?), times: (one.1, other.1), far })
            })
        });
        ties.collect()
    }

    fn nothing(&self) -> Vec<Nothing> {
        let Some(held) = self.prior.nothing() else { return Vec::new() };
        let of = |(of, parameter): (usize, &Parameter)| Some(Nothing { of, far: parameter.correction()? / held });
        self.parameters.iter().enumerate().filter_map(of).collect()
    }

    fn clamp(&self, at: &mut [f64]) {
        for (parameter, value) in self.parameters.iter().zip(at) {
            *value = value.clamp(parameter.least(), parameter.most());
        }
    }
}
