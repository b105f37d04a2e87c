//! Prior and posterior probabilities of causes.
//!
//! All classes of causes that any machine may have share the same prior probability, and the variants of a class share
//! its probability equally, so that a class with more severities is not more likely. The absence of a fault has
//! [`SOUND_ODDS`] times the probability of all these classes. Causes with a [`Basis`] have its odds against the absence
//! of a fault.

use std::collections::BTreeMap;

use super::RankedCause;
use super::basis::{self, Basis};
use super::cause::Cause;
use crate::measured::manifest::Measurement;

/// Prior odds against any fault at all. An estimate. The share of machines without a fault that get a cause without a basis
/// is at most its inverse (Markov's inequality for the likelihood ratio), if they scatter as the intervals state.
const SOUND_ODDS: f64 = 10.0;
/// Maximum odds of the first cause against further reported causes.
const SIMILAR_ODDS: f64 = 20.0;
/// Maximum number of reported causes.
const MAX_CAUSES: usize = 4;

/// A hypothesis with its prior probability, relative to that of a class of causes without a basis.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub cause: Cause,
    pub basis: Basis,
    pub prior: f64,
}

/// Hypotheses with their prior probabilities.
pub(super) struct Priors {
    pub candidates: Vec<Candidate>,
    /// Prior probability of the absence of a fault, in the unit of the candidates' probabilities.
    pub no_fault: f64,
}

impl Priors {
    pub fn new(causes: Vec<Cause>, measurement: &Measurement) -> Self {
        let reasons = causes.into_iter().map(|cause| {
            let basis = basis::basis(&cause, measurement);
            (cause, basis)
        });
        Self::from_reasons(reasons.collect())
    }

    /// Assigns the prior probabilities to causes and the reasons to expect them.
    fn from_reasons(reasons: Vec<(Cause, Basis)>) -> Self {
        let mut variants: BTreeMap<(&'static str, bool), usize> = BTreeMap::new();
        let key = |cause: &Cause, basis: &Basis| (cause.class(), basis.odds().is_some());
        for (cause, basis) in &reasons {
            *variants.entry(key(cause, basis)).or_default() += 1;
        }
        let classes = variants.keys().filter(|(_, is_expected)| !is_expected).count();
        let no_fault = SOUND_ODDS * classes.max(1) as f64;
        let candidate = |(cause, basis): (Cause, Basis)| {
            let count = variants.get(&key(&cause, &basis)).copied().unwrap_or(1) as f64;
            let prior = basis.odds().map_or(1.0, |odds| odds * no_fault) / count;
            Candidate { cause, basis, prior }
        };
        Self { candidates: reasons.into_iter().map(candidate).collect(), no_fault }
    }
}

/// A cause whose times were predicted and compared.
#[derive(Clone, Debug)]
pub(super) struct ComparedCause {
    pub ranked: RankedCause,
    /// Prior probability of the cause.
    pub prior: f64,
    /// [`surprise`](super::evidence::surprise) of the measured times under the cause.
    pub surprise: f64,
}

/// Absence of a fault.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoFault {
    /// Prior probability.
    pub prior: f64,
    /// [`surprise`](super::evidence::surprise) of the measured times without a fault.
    pub surprise: f64,
}

/// Returns the most likely cause of each class: those that the log states, then others, in order of decreasing
/// probability.
pub(super) fn likeliest(causes: Vec<ComparedCause>, no_fault: NoFault) -> Vec<RankedCause> {
    /// Causes of one class.
    struct Class {
        odds: f64,
        /// Odds of the reported cause.
        highest: f64,
        cause: RankedCause,
    }
    let best = causes.iter().map(|cause| cause.surprise).fold(f64::INFINITY, f64::min);
    let mut classes: Vec<Class> = Vec::new();
    for ComparedCause { ranked, prior, surprise } in causes {
        let odds = ((best - surprise) / 2.0).exp() * prior;
        match classes.iter_mut().find(|class| class.cause.cause.class() == ranked.cause.class()) {
            Some(class) => {
                class.odds += odds;
                if odds > class.highest {
                    (class.highest, class.cause) = (odds, ranked);
                }
            }
            None => classes.push(Class { odds, highest: odds, cause: ranked }),
        }
    }
    let is_stated = |class: &Class| class.cause.basis.is_stated();
    classes.sort_by(|a, b| is_stated(b).cmp(&is_stated(a)).then(b.odds.total_cmp(&a.odds)));
    let no_fault = no_fault.prior * ((best - no_fault.surprise) / 2.0).exp();
    let any = classes.iter().map(|class| class.odds).sum::<f64>();
    let highest = classes.iter().map(|class| class.odds).fold(0.0, f64::max);
    classes.retain(|class| is_stated(class) || class.odds * SIMILAR_ODDS >= highest);
    let fault_probability = any / (any + no_fault);
    let ranked = |class: Class| RankedCause {
        probability: class.odds / any * fault_probability,
        fault_probability,
        ..class.cause
    };
    classes.into_iter().take(MAX_CAUSES).map(ranked).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks NVLS off (the only variant of its class) and four severities of slow copies, given the surprise of each class
    /// and without a fault.
    fn ranked_with(reason: &Basis, nvls: f64, peer_access: f64, sound: f64) -> Vec<RankedCause> {
        let copies = [1, 2, 4, 8].map(|divisor| (Cause::PeerAccessOff { divisor }, Basis::Assumed));
        let reasons = copies.into_iter().chain([(Cause::NvlsOff, reason.clone())]).collect();
        let Priors { candidates, no_fault } = Priors::from_reasons(reasons);
        let compared = candidates.into_iter().map(|Candidate { cause, basis, prior }| {
            let surprise = if cause == Cause::NvlsOff { nvls } else { peer_access };
            let ranked = RankedCause { cause, basis, closed: 1.0, probability: 0.0, fault_probability: 0.0, sizes: 5 };
            ComparedCause { ranked, prior, surprise }
        });
        likeliest(compared.collect(), NoFault { prior: no_fault, surprise: sound })
    }

    fn ranked(nvls: f64, peer_access: f64, sound: f64) -> Vec<RankedCause> {
        ranked_with(&Basis::Assumed, nvls, peer_access, sound)
    }

    #[test]
    fn classes_that_fit_equally_well_are_equally_likely() {
        let causes = ranked(0.0, 0.0, 1e3);
        assert_eq!(causes.len(), 2);
        assert!(causes.iter().all(|cause| (cause.probability - 0.5).abs() < 1e-9 && !cause.is_likely()), "{causes:?}");
        let causes = ranked(0.0, 3.0, 1e3);
        assert!(causes[0].cause == Cause::NvlsOff && causes[0].is_likely(), "{causes:?}");
    }

    /// A fault is established if it makes the times ten times likelier for each class that might have explained them.
    #[test]
    fn scatter_is_preferred_to_faults_that_fit_little_better() {
        let odds = |odds: f64| 2.0 * odds.ln();
        let alone = |sound| ranked(0.0, 1e3, sound)[0].clone();
        let (below, above) = (alone(odds(19.0)), alone(odds(21.0)));
        assert!(!below.is_established() && above.is_established(), "{below:?} {above:?}");
        // Established, but a wrong prediction is nearly as likely.
        assert!(!above.is_likely() && alone(odds(60.0)).is_likely());
        assert!((above.probability / above.fault_probability - 1.0).abs() < 1e-9);
    }

    /// A documented cause needs no better fit than the absence of a fault to be established, and precedes a cause that
    /// fits as well. It does not replace a cause that fits far better.
    #[test]
    fn causes_with_a_basis_are_expected() {
        let documented = Basis::Documented("source".to_owned());
        let causes = ranked_with(&documented, 0.0, 0.0, 1.0);
        assert!(causes[0].cause == Cause::NvlsOff && causes[0].is_established(), "{causes:?}");
        assert!(!ranked_with(&documented, 1.0, 1e3, 0.0)[0].is_established());
        assert!(!ranked_with(&Basis::Assumed, 0.0, 1e3, 1.0)[0].is_established());
        let better = ranked_with(&documented, 30.0, 0.0, 1e3);
        assert!(matches!(better[0].cause, Cause::PeerAccessOff { .. }), "{better:?}");
        let stated = ranked_with(&Basis::Stated(String::new()), 8.0, 0.0, 1e3);
        assert_eq!(stated[0].cause, Cause::NvlsOff);
    }
}
