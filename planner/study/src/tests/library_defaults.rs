//! Tests of the comparison of selected strategies with the library default.

use super::*;
use crate::prediction::Prediction;

/// Every call of a result has a library default. Equal strategies have equal times, the step with the selected
/// strategies is that of the result, and curves contain the message sizes of the step, with times above the lower
/// bounds.
#[test]
fn library_defaults_are_compared_with_picks() {
    let completed = CompletedStudy::new(
        &PAIR.replace("parallel = { tp = 2 }", "placement = \"cyclic\"\nparallel = { tp = 2, sequence = true }"),
    );
    let answer = completed.answer();
    for (number, row) in answer.results.iter().enumerate() {
        let (job, fabric) = (&completed.study.jobs[number % 2], &completed.fabrics[number / 2]);
        let prediction = Prediction::from_row(row).unwrap();
        let curve = completed.study.curve(number / 2, fabric);
        let comparison = library_comparison::compare(job, &prediction, fabric, curve).unwrap();
        assert_eq!(comparison.calls.len(), row.calls.len());
        let library_comparison::StepTimes { picked, library_default } = comparison.step;
        let [picked, library_default] = [picked, library_default].map(|time| time.0 as f64 / 1e12);
        assert!((picked / row.step_time_s - 1.0).abs() < 1e-6, "{} {}", picked, row.step_time_s);
        let mut slower = 0.0;
        for (call, default) in row.calls.iter().zip(&comparison.calls) {
            let default = default.as_ref().unwrap();
            assert!(
                (default.strategy != call.pick || default.time.us() == call.time_us) && !default.name.is_empty(),
                "{default:?} {call:?}"
            );
            slower += (default.time.us() - call.time_us) * call.times / 1e6;
        }
        // Hidden calls cost no additional time; exposed calls cost at most the difference.
        assert!(library_default - picked <= slower.max(0.0) + 1e-9, "{:?} {slower}", comparison.step);
        assert!(!comparison.curves.is_empty() && comparison.curves.len() <= 3);
        for curve in &comparison.curves {
            let sizes: Vec<_> = curve.plan.rows.iter().map(|row| row.bytes).collect();
            assert!(sizes.is_sorted() && curve.sizes.iter().all(|size| sizes.contains(size)), "{sizes:?}");
            for row in &curve.plan.rows {
                let (low, high) = (row.pick.low_us.unwrap(), row.pick.high_us.unwrap());
                assert!(
                    low <= row.pick.time_us && row.pick.time_us <= high && row.bound_us.unwrap() <= row.pick.time_us
                );
            }
        }
        // The schedule shown is that of the call with the most time in the step.
        let shown = comparison.shown.unwrap();
        let heaviest = row.calls.iter().max_by(|a, b| (a.time_us * a.times).total_cmp(&(b.time_us * b.times))).unwrap();
        assert_eq!((shown.bytes.0, shown.pick), (heaviest.bytes, heaviest.pick));
        assert_eq!(shown.schedule.header().call.collective.to_string(), heaviest.collective);
        fabricast_sim::verify::verify(&shown.schedule, &fabricast_sim::verify::VerifyOptions::default()).unwrap();
        // There is no comparison for a result of another job.
        let without_calls = Prediction { calls: Vec::new(), ..prediction };
        assert!(library_comparison::compare(job, &without_calls, fabric, curve).is_none());
    }
}
