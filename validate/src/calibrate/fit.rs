//! The problem that [`solve`](super::solve) solves: parameters of a profile, residuals of points.

use fabricast_sim::profile::Profile;
use rayon::prelude::*;

use super::parameters::Parameter;
use super::points::Point;
use super::solve::{Minimum, Problem, minimise};

/// Parameters to fit to points, from a profile on.
pub(super) struct Fit<'a, 'p> {
    pub points: Vec<&'p Point<'a>>,
    pub base: &'p Profile,
    pub parameters: &'p [Parameter],
}

impl Fit<'_, '_> {
    /// The profile at the minimum, and the minimum.
    pub fn run(&self) -> (Profile, Minimum) {
        let start: Vec<f64> = self.parameters.iter().map(|parameter| parameter.get(self.base)).collect();
        let minimum = minimise(self, &start);
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

/// Residuals of points with a profile.
pub(super) fn residuals(points: &[&Point<'_>], profile: &Profile) -> Vec<f64> {
    points.par_iter().map(|point| point.residual(profile)).collect()
}

impl Problem for Fit<'_, '_> {
    fn residuals(&self, at: &[f64]) -> Vec<f64> {
        residuals(&self.points, &self.profile(at))
    }

    /// Differences over a step of a hundredth, or of a few nanoseconds where the parameter is small.
    fn derivatives(&self, at: &[f64], found: &[f64]) -> Vec<Vec<f64>> {
        let column = |(number, &parameter): (usize, &Parameter)| {
            let value = at.get(number).copied().unwrap_or_default();
            let step = (value.abs() * 0.01).max(0.003);
            // Fractions have no room above one.
            let step = if value + step > parameter.most() { -step } else { step };
            let mut moved = at.to_vec();
            moved[number] = value + step;
            let profile = self.profile(&moved);
            let derivative = |(point, before): (&&Point<'_>, &f64)| {
                if point.feels(parameter) { (point.residual(&profile) - before) / step } else { 0.0 }
            };
            self.points.par_iter().zip(found).map(derivative).collect()
        };
        self.parameters.iter().enumerate().map(column).collect()
    }

    fn expected(&self) -> Vec<(f64, f64)> {
        let of = |parameter: &Parameter| {
            let value = parameter.get(self.base);
            (value, value.abs().max(parameter.usual()))
        };
        self.parameters.iter().map(of).collect()
    }

    fn clamp(&self, at: &mut [f64]) {
        for (parameter, value) in self.parameters.iter().zip(at) {
            *value = value.clamp(parameter.least(), parameter.most());
        }
    }
}
