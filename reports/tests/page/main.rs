//! Tests of pages as users receive them: complete, escaped, small, and working in a browser.
#![expect(clippy::expect_used, clippy::panic, clippy::print_stderr, reason = "tests, and what they share")]

mod browser;
mod chromium;
mod escaping;
mod synthetic;

use fabricast_reports::chart::{self, Format};
use fabricast_reports::page::{
    Input, InputError, breakdown, links, memory, opening_lines, pareto, report, study_page, study_page_with_details,
    timelines,
};
use fabricast_study::answer::{Answer, JobKind, SizeRow, SizingRow};
use fabricast_study::library_comparison::LibraryComparison;

use synthetic::{decided, study};

#[test]
fn the_answer_comes_first() {
    let html = study_page(&study(3, 2), &[]).html();
    let position = |text: &str| html.find(text).unwrap_or_else(|| panic!("{text}"));
    assert!(
        position("machine 0 is cheapest: 1.00 USD/M tokens; machine 1 needs 10 % more (80 % sure")
            < position("Candidates by rank")
    );
    assert!(position("Candidates by rank") < position("against the time of a step"));
    assert!(position("against the time of a step") < position("breakdown of a step"));
    for text in ["list of prices", "Constraints violated by machine 2", "remains first under all 2"] {
        position(text);
    }
}

#[test]
fn the_same_page_is_the_same_bytes() {
    assert_eq!(study_page(&study(4, 3), &[]).html(), study_page(&study(4, 3), &[]).html());
}

#[test]
fn twenty_candidates_and_ten_jobs_stay_under_five_megabytes() {
    let html = study_page(&study(20, 10), &[]).html();
    // The file is for visual inspection after a change.
    std::fs::write(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("study-20x10.html"), &html).unwrap();
    assert!(html.len() < 5_000_000, "{} bytes", html.len());
    // The page contains all options.
    assert_eq!(html.matches("<div class=\"option\">").count(), 60);
}

#[test]
fn charts_of_a_study_are_drawn_as_files() {
    let answer = study(3, 1);
    for format in [Format::Svg, Format::Png] {
        assert!(chart::render(&pareto(&answer, "job 0").unwrap(), format).unwrap().len() > 1000);
        for bars in [breakdown(&answer, "job 0"), memory(&answer, "job 0").unwrap()] {
            assert!(chart::render_bars(&bars, format).unwrap().len() > 1000);
        }
    }
    for format in [Format::Svg, Format::Png] {
        assert!(chart::render_bars(&links(&answer, "job 0").unwrap(), format).unwrap().len() > 1000);
        let steps = timelines(&answer, "job 0");
        assert_eq!(steps.len(), 3);
        assert!(steps.iter().all(|spans| chart::render_spans(spans, format).unwrap().len() > 1000));
    }
    // The parts of a bar add up to its step.
    let bars = breakdown(&answer, "job 0");
    for (bar, row) in bars.bars.iter().zip(&answer.results) {
        assert!((bar.parts.iter().sum::<f64>() / 1e6 / row.step_time_s - 1.0).abs() < 1e-9);
    }
}

#[test]
fn saved_results_render_the_same_page() {
    let answer = study(3, 2);
    let text = serde_json::to_string(&answer).unwrap();
    let input = Input::read(&text, "results.json").unwrap();
    assert_eq!(
        report(&[("results.json".into(), input)], &|answer| study_page(answer, &[])).unwrap(),
        study_page(&answer, &[])
    );
}

#[test]
fn unknown_inputs_are_rejected_with_advice() {
    let read_error = |text: &str| Input::read(text, "file").unwrap_err();
    for (text, help) in [
        ("", "it is empty"),
        ("{}", "a page is made of results.json"),
        ("{\"colour\": 1}", "the keys colour"),
        ("# title\nsome words = more", "a page is made of"),
        ("[[candidate]]\nname = \"a\"", "study FILE -o DIR"),
        (" [[ candidate ]]\nname = \"a\"", "study FILE -o DIR"),
        ("candidate = [{ name = \"a\" }]", "study FILE -o DIR"),
        ("[[measurement]]\nfile = \"a\"", "compare MANIFEST"),
    ] {
        let error = read_error(text);
        assert!(matches!(error, InputError::Unknown { .. } | InputError::Study { .. }), "{text}: {error}");
        assert!(error.to_string().starts_with("file: "), "{error}");
        assert!(error.help().is_some_and(|advice| advice.contains(help)), "{text}: {:?}", error.help());
    }
    for (text, location) in [
        ("{\"results\": [], \"ranking\":\n 3}", "file:"),
        ("{\"rows\": [],\n\"ranges\": 3}", "file:"),
        ("{\"traceEvents\":\n3}", "file:2:"),
        ("{\"time_us\": 3, \"links\": []}", "file:1:"),
        ("{", "file:1:"),
    ] {
        assert!(read_error(text).to_string().starts_with(location), "{text}: {}", read_error(text));
    }
}

/// Shares and phases are shown with the terms of the field, although results retain their earlier names, so that saved
/// results can be read.
#[test]
fn shares_and_phases_have_terms_of_the_field() {
    let mut answer = study(3, 1);
    for row in &mut answer.results {
        row.calls[0].phase = "word_gradients".to_owned();
    }
    let parts = breakdown(&answer, "job 0").parts;
    assert!(parts.iter().any(|part| part == "pipeline transfer"), "{parts:?}");
    let html = study_page(&answer, &[]).html();
    assert!(html.contains("embedding gradients") && !html.contains("word gradients") && !html.contains("hand-off"));
}

/// The timeline of a step ends at the end of the step and states the number of omitted stages. The link chart names the
/// busiest link.
#[test]
fn timelines_and_link_loads_match_the_results() {
    let answer = study(3, 1);
    for (spans, row) in timelines(&answer, "job 0").iter().zip(&answer.results) {
        assert!((spans.end / 1e6 / row.step_time_s - 1.0).abs() < 1e-6 && spans.title.contains(&row.candidate));
        assert!(spans.remark.contains("8 more stages are not shown") && spans.rows.len() == 16);
        assert_eq!(spans.spans.len(), 8 * (32 + 8));
    }
    let bars = links(&answer, "job 0").unwrap();
    assert_eq!(bars.bars.iter().map(|bar| bar.parts.iter().sum::<f64>()).collect::<Vec<_>>(), [0.3, 0.3]);
    assert!(bars.subtitle.contains("n0/nic0->leaf0, 30 %") && bars.title.contains("machine 0"));
    // Results of an older version have no timelines and no link loads.
    let mut older = answer.clone();
    for row in &mut older.results {
        (row.timelines, row.calls, row.load) = (Vec::new(), Vec::new(), Vec::new());
    }
    let html = study_page(&older, &[]).html();
    assert!(!html.contains("Timeline of a step") && !html.contains("Link utilization") && html.contains("All results"));
}

/// The heading names no winner if the ranking does not decide.
#[test]
fn close_decisions_name_no_winner() {
    let mut answer: Answer = study(2, 1);
    for (row, probability) in answer.ranking.iter_mut().zip([0.6, 0.4]) {
        row.probability_best_with_errors = Some(probability);
    }
    let answer = decided(&answer);
    let page = study_page(&answer, &[]);
    let heading = "too close to call: cheapest with prices and the model's error is machine 0 (60 %, 1.00 USD/M tokens) or \
        machine 1 (40 %, 1.10 USD/M tokens).";
    assert_eq!(page.answer.first().map(String::as_str), Some(heading));
    let html = page.html();
    assert!(["has the lowest cost", "is cheapest"].iter().all(|claim| !html.contains(claim)));
    assert_eq!(opening_lines(&answer), [heading.trim_end_matches('.')]);
}

#[test]
fn fewest_nodes_of_a_goal_are_the_heading() {
    let mut answer: Answer = study(3, 1);
    for row in &mut answer.candidates {
        row.machine = Some("m".into());
    }
    let size = |number: usize, nodes: u64, meets_constraints: bool| SizeRow {
        candidate: format!("machine {number}"),
        nodes,
        gpus: 8 * nodes,
        meets_constraints,
        violations: if meets_constraints { Vec::new() } else { vec![format!("{nodes} are too slow")] },
    };
    let sizing = |sizes: Vec<SizeRow>| {
        let fewest = sizes.iter().find(|size| size.meets_constraints);
        SizingRow {
            machine: "m".into(),
            candidate: fewest.map(|size| size.candidate.clone()),
            nodes: fewest.map(|size| size.nodes),
            gpus: fewest.map(|size| size.gpus),
            sizes,
        }
    };
    answer.sizings = vec![sizing(vec![size(0, 1, false), size(1, 2, true), size(2, 4, true)])];
    let page = study_page(&answer, &[]);
    let heading =
        "m: 2 nodes are enough (16 GPUs), the fewest of 1, 2 and 4 within the constraints; with 1: 1 are too slow.";
    assert_eq!((page.title.as_str(), page.answer[0].as_str()), ("How many nodes for job 0?", heading));
    answer.sizings = vec![sizing(vec![size(0, 1, false), size(2, 4, false)])];
    assert_eq!(study_page(&answer, &[]).answer[0], "m: none of 1 and 4 nodes is enough; with 4: 4 are too slow.");
}

#[test]
fn studies_without_a_winner_state_it() {
    let mut answer: Answer = study(2, 1);
    for row in &mut answer.ranking {
        row.meets_constraints = false;
        row.violations = vec!["budget 5 of 4".into()];
    }
    let page = study_page(&decided(&answer), &[]);
    assert_eq!(
        page.answer.first().map(String::as_str),
        Some("no candidate runs all jobs within the constraints; machine 0: budget 5 of 4.")
    );
    answer.ranking.clear();
    answer.results.clear();
    answer.candidates.clear();
    assert!(study_page(&answer, &[]).html().contains("There is no candidate."));
}

/// The library's strategies are compared with the selected ones: slower and unknown ones are stated, and the page is
/// small.
#[test]
fn library_choices_are_reported() {
    let answer = study(20, 10);
    let defaults = synthetic::library_defaults(&answer);
    let page = study_page_with_details(&answer, &[], &defaults);
    let html = page.html();
    let expected = "On machine 0, the default of NCCL 2.28.9 is slower than the pick for 5 of the 10 calls of job 0; the step time is 2.20 s instead of 2 s, 10 % more. Its choice in 1 of 10 calls cannot be predicted";
    assert!(html.contains(expected), "{}", &html[html.find("the default of").unwrap_or(0)..][..400]);
    assert!(
        html.contains("all_reduce among the 4 ranks of one tensor group: bus bandwidth")
            && html.contains("The step calls it at 1 MiB")
    );
    let pick = answer.results[0].calls[0].pick;
    let caption = format!(
        "send_recv of 8 MiB among the 2 ranks of each tensor group by {pick}: transfers between ranks on one channel"
    );
    assert!(html.contains(&caption), "{caption}");
    assert!(html.len() < 5_000_000, "{} bytes", html.len());
    let equal_times: Vec<_> = defaults
        .into_iter()
        .map(|(job, one)| (job, LibraryComparison { step: synthetic::step_times(2.0, 2.002), ..one }))
        .collect();
    assert!(
        study_page_with_details(&answer, &[], &equal_times).html().contains("the step time is the same within 0.5 %")
    );
}

#[test]
fn single_candidates_are_not_compared() {
    let page = study_page(&study(1, 1), &[]);
    assert_eq!(page.title, "job 0 on machine 0");
    assert_eq!(page.answer.first().map(String::as_str), Some("machine 0 costs 1.00 USD/M tokens."));
    assert!(page.answer.iter().all(|sentence| !sentence.contains("order")), "{:?}", page.answer);
    assert_eq!(study_page(&study(1, 3), &[]).title, "3 jobs on machine 0");
    let mut answer = study(1, 1);
    for row in &mut answer.ranking {
        (row.meets_constraints, row.violations) = (false, vec!["budget 5 of 4".into()]);
    }
    assert_eq!(
        study_page(&decided(&answer), &[]).answer,
        ["no candidate runs all jobs within the constraints; machine 0: budget 5 of 4."]
    );
}

/// Inference steps differ in their work, so the chart compares candidates by the time per million tokens, as the
/// ranking does.
#[test]
fn inference_is_compared_by_time_per_token() {
    let mut answer = study(2, 1);
    for (row, (step, rate)) in answer.results.iter_mut().zip([(0.137, 6354.0), (0.076, 5545.0)]) {
        (row.kind, row.step_time_s, row.tokens_per_s) = (JobKind::Inference, step, Some(rate));
    }
    let figure = pareto(&answer, "job 0").unwrap();
    assert_eq!(figure.panels[0].x_title, "time of a million tokens");
    let time_of = |name: &str| {
        let points = |line: &&chart::Line| line.name == name && matches!(line.role, chart::Role::Points(_));
        figure.panels[0].lines.iter().find(points).unwrap().points[0].0
    };
    assert!(time_of("machine 0") < time_of("machine 1") && (time_of("machine 0") - 1e12 / 6354.0).abs() < 1.0);
}

/// A candidate that is first under all assumptions is reported as such, although the order of the others may change.
#[test]
fn stable_winners_are_reported() {
    let html = |answer: &Answer| study_page(answer, &[]).html();
    let mut answer = study(3, 2);
    assert!(
        html(&answer).contains("machine 0 remains first under all 2 other assumptions tested; the order of the others")
    );
    answer.sensitivities[0].ranking.swap(0, 1);
    assert!(html(&answer).contains("The order changes under 1 of 2 other assumptions"));
}
