//! Browser tests of pages of all kinds of inputs.

use fabricast_reports::page::{Input, report, study_page, study_page_with_details};

use super::chromium::works;
use super::synthetic::{library_defaults, study, study_with_names};

#[test]
fn a_study_works() {
    let Some(counts) = works(&study_page(&study(5, 2), &[]).html()) else { return };
    assert_eq!((counts.tables, counts.plots, counts.choices), (11, 14, 6), "{counts:?}");
    assert!(counts.points > 100 && counts.switched > 30, "{counts:?}");
}

#[test]
fn a_study_with_the_librarys_choices_works() {
    let answer = study(5, 2);
    let Some(counts) = works(&study_page_with_details(&answer, &[], &library_defaults(&answer)).html()) else { return };
    assert_eq!((counts.choices, counts.plots), (9, 20), "{counts:?}");
}

#[test]
fn hostile_names_run_no_script() {
    let name = "</script><script>window.pwned = 1</script>\"><img src=http://example.org/x onerror='window.pwned = 1'>";
    works(&study_page(&study_with_names(3, 2, |kind, number| format!("{kind} {number}{name}")), &[]).html());
}

#[test]
fn a_plan_a_comparison_and_a_run_work() {
    let read = |name: &str, text: &str| (name.to_owned(), Input::read(text, name).expect(name));
    let inputs = [
        read("plan.json", include_str!("data/plan.json")),
        read("compare.json", include_str!("data/compare.json")),
        read("run.json", include_str!("data/run.json")),
        read("trace.json", include_str!("data/trace.json")),
        read("fabric.json", include_str!("data/fabric.json")),
    ];
    let Some(counts) = works(&report(&inputs, &|answer| study_page(answer, &[])).expect("a page").html()) else {
        return;
    };
    assert!(counts.tables >= 5 && counts.plots >= 4, "{counts:?}");
}
