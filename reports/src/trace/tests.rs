//! Tests of traces that are read back: exact, with non-overlapping threads, and within the budget.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::Value;

use super::*;

fn span(rank: u32, channel: u16, start: u64, end: u64) -> TraceSpan<'static> {
    TraceSpan {
        rank: Rank(rank),
        channel: Channel(channel),
        name: "put".into(),
        start: Picos(start),
        end: Picos(end),
        arguments: Vec::new(),
        arrows: Arrows::default(),
    }
}

fn written(spans: &[TraceSpan<'_>], budget: Bytes) -> (TraceStats, String) {
    let mut output = Vec::new();
    let summary = write(spans.iter().cloned(), &[], &TraceNames::schedule(Vec::new()), budget, &mut output).unwrap();
    assert_eq!(summary.bytes.0, output.len() as u64);
    (summary, String::from_utf8(output).unwrap())
}

fn events(text: &str, phase: &str) -> Vec<Value> {
    let trace: Value = serde_json::from_str(text).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    events.iter().filter(|event| event["ph"] == phase).cloned().collect()
}

/// Parses a time of the text, and returns it in picoseconds.
fn picos(value: &Value) -> u64 {
    let text = value.to_string();
    let (micros, rest) = text.split_once('.').unwrap_or((&text, ""));
    format!("{micros}{rest:0<6}").parse().unwrap()
}

#[test]
fn a_trace_names_ranks_and_channels() {
    let mut second = span(3, 1, 2_000_001, 4_500_000);
    second.name = "put \"3\" → 4\n".into();
    second.arguments = vec![
        ("bytes", Argument::Number(4096)),
        ("waited", Argument::Time(Picos(1_500_000))),
        ("protocol", Argument::Text("ll\\128".into())),
    ];
    let (summary, text) = written(&[span(3, 0, 0, 1_000_000), second], BUDGET);
    assert_eq!((summary.spans, summary.joined), (2, 1));
    insta::assert_snapshot!(text, @r#"
        {"displayTimeUnit":"ns","traceEvents":[
        {"ph":"M","name":"process_name","pid":3,"args":{"name":"rank 3"}},
        {"ph":"M","name":"process_sort_index","pid":3,"args":{"sort_index":3}},
        {"ph":"M","name":"thread_name","pid":3,"tid":0,"args":{"name":"channel 0"}},
        {"ph":"M","name":"thread_sort_index","pid":3,"tid":0,"args":{"sort_index":0}},
        {"ph":"M","name":"thread_name","pid":3,"tid":4096,"args":{"name":"channel 1"}},
        {"ph":"M","name":"thread_sort_index","pid":3,"tid":4096,"args":{"sort_index":4096}},
        {"ph":"X","pid":3,"tid":0,"name":"put","ts":0,"dur":1},
        {"ph":"X","pid":3,"tid":4096,"name":"put \"3\" → 4\n","ts":2.000001,"dur":2.499999,"args":{"bytes":4096,"waited":1.5,"protocol":"ll\\128"}}
        ]}
        "#);
    let read = events(&text, "X");
    assert_eq!(read[1]["name"], "put \"3\" → 4\n");
    assert_eq!(read[1]["args"]["protocol"], "ll\\128");
}

/// Both ends of an arrow are on the thread of their span and within its time. Merged spans have no arrows.
#[test]
fn arrows_connect_the_spans_of_the_critical_path() {
    let mut spans =
        vec![span(0, 0, 0, 10_000_000), span(0, 0, 5_000_000, 15_000_000), span(1, 3, 20_000_000, 30_000_000)];
    (spans[1].arrows.outgoing, spans[2].arrows.incoming) = (vec![7], vec![7]);
    let (_, text) = written(&spans, BUDGET);
    let (starts, ends) = (events(&text, "s"), events(&text, "f"));
    assert_eq!((starts.len(), ends.len()), (1, 1));
    assert_eq!((&starts[0]["id"], &ends[0]["id"], &ends[0]["bp"]), (&7.into(), &7.into(), &"e".into()));
    // The overlapping span is on the second thread of its channel.
    assert_eq!((&starts[0]["pid"], &starts[0]["tid"], picos(&starts[0]["ts"])), (&0.into(), &1.into(), 5_000_000));
    assert_eq!((&ends[0]["pid"], &ends[0]["tid"], picos(&ends[0]["ts"])), (&1.into(), &(3 << 12).into(), 20_000_000));
    let mut many: Vec<_> = (0..1000).map(|k| span(0, 0, 10 * k, 10 * k + 5)).collect();
    for (number, span) in many.iter_mut().enumerate() {
        span.arrows = Arrows { incoming: vec![number as u32], outgoing: vec![number as u32 + 1] };
    }
    let (summary, text) = written(&many, Bytes(4000));
    assert!(summary.joined > 1 && events(&text, "s").is_empty() && events(&text, "f").is_empty());
}

#[test]
fn facts_and_names_are_valid_json() {
    let names = TraceNames {
        process: &|rank| format!("stage \"{}\"", rank.0),
        thread: &|_, _| "ranks 0\\1".to_owned(),
        arrow: "dependency",
        metadata: vec![("fabric", "\"my\" fabric".to_owned()), ("profile", "nccl".to_owned())],
    };
    let mut output = Vec::new();
    let summary = write([span(2, 1, 0, 5)].into_iter(), &[], &names, BUDGET, &mut output).unwrap();
    assert_eq!(summary.bytes.0, output.len() as u64);
    let text = String::from_utf8(output).unwrap();
    let trace: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(trace["otherData"], serde_json::json!({"fabric": "\"my\" fabric", "profile": "nccl"}));
    let named: Vec<Value> = events(&text, "M").iter().map(|event| event["args"]["name"].clone()).collect();
    assert_eq!((&named[0], &named[3]), (&"stage \"2\"".into(), &"ranks 0\\1".into()));
    assert_eq!(events(&text, "M")[2]["args"]["labels"], "\"my\" fabric, nccl");
}

#[test]
fn overlapping_spans_get_separate_threads() {
    let spans = [span(0, 2, 0, 10), span(0, 2, 5, 15), span(0, 2, 10, 20)];
    let (_, text) = written(&spans, BUDGET);
    let threads: Vec<u64> = events(&text, "X").iter().map(|event| event["tid"].as_u64().unwrap()).collect();
    assert_eq!(threads, [2 << 12, (2 << 12) + 1, 2 << 12]);
}

#[test]
fn channels_with_many_overlapping_spans_share_no_thread() {
    let mut spans = vec![span(0, 0, 0, 10); 4098];
    spans.push(span(0, 1, 0, 10));
    let (summary, text) = written(&spans, BUDGET);
    assert_eq!(summary.joined, 1);
    let threads: BTreeSet<u64> = events(&text, "X").iter().map(|event| event["tid"].as_u64().unwrap()).collect();
    assert_eq!(threads.len(), 4099);
}

#[test]
fn empty_traces_are_valid() {
    let (summary, text) = written(&[], Bytes(0));
    assert_eq!(summary.spans, 0);
    assert!(events(&text, "X").is_empty());
}

#[test]
fn neighbours_are_merged_above_the_budget() {
    let spans: Vec<_> = (0..1000).map(|k| span(k % 2, 0, 1000 * u64::from(k), 1000 * u64::from(k) + 400)).collect();
    let (complete, _) = written(&spans, BUDGET);
    let budget = Bytes(complete.bytes.0 / 10);
    let (summary, text) = written(&spans, budget);
    assert!(summary.bytes <= budget, "{summary:?} for {budget}");
    assert!(summary.bytes.0 * 4 > budget.0, "{summary:?} joins more than it must for {budget}");
    let first = &events(&text, "X")[0];
    assert_eq!(first["name"], format!("{} × put", summary.joined));
    assert_eq!(picos(&first["args"]["busy_us"]), 400 * u64::from(summary.joined));
    // With a budget of 0, each thread has one span.
    let (_, smallest) = written(&spans, Bytes(0));
    assert_eq!(events(&smallest, "X").len(), 2);
}

#[test]
fn counters_are_graphs_above_the_ranks() {
    let counter = Counter { name: "a->b".into(), slice: Picos(500_000), values: &[0.25, 0.25, 1.0, 0.000_01, 0.5] };
    let mut output = Vec::new();
    let summary = write(
        [span(1, 0, 0, 2_500_000)].into_iter(),
        &[counter],
        &TraceNames::schedule(Vec::new()),
        BUDGET,
        &mut output,
    )
    .unwrap();
    assert_eq!(summary.bytes.0, output.len() as u64);
    let text = String::from_utf8(output).unwrap();
    let graph: Vec<(f64, f64)> = events(&text, "C")
        .iter()
        .map(|event| (event["ts"].as_f64().unwrap(), event["args"]["percent"].as_f64().unwrap()))
        .collect();
    assert_eq!(graph, [(0.0, 25.0), (1.0, 100.0), (1.5, 0.0), (2.0, 50.0), (2.5, 0.0)]);
    assert!(events(&text, "C").iter().all(|event| event["pid"] == 2 && event["name"] == "a->b"));
    assert_eq!(events(&text, "M")[4]["args"]["name"], "fabric");
}

#[test]
fn a_failing_writer_fails_the_trace() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::Error::from(io::ErrorKind::StorageFull))
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let error =
        write(std::iter::once(span(0, 0, 0, 1)), &[], &TraceNames::schedule(Vec::new()), BUDGET, Full).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn nothing_is_lost_and_no_thread_overlaps(
        mut input in prop::collection::vec((0..3_u32, 0..3_u16, 0..1_u64 << 50, 0..1_u64 << 40), 0..60),
        budget in 0_u64..10_000,
    ) {
        input.sort_by_key(|&(_, _, start, _)| start);
        let spans: Vec<_> = input.iter().map(|&(r, c, start, length)| span(r, c, start, start + length)).collect();
        let (summary, text) = written(&spans, Bytes(budget));
        let mut threads: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        let (mut count, mut busy) = (0, 0);
        let mut exact = Vec::new();
        let mut now = 0;
        for event in &events(&text, "X") {
            prop_assert!(now <= picos(&event["ts"]), "{} comes after {}", event, now);
            now = picos(&event["ts"]);
            let (start, length) = (picos(&event["ts"]), picos(&event["dur"]));
            let thread = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
            prop_assert!(summary.joined == 1 || thread.1 % 4096 < 4, "{}", event);
            let free = threads.entry(thread).or_default();
            prop_assert!(*free <= start, "{} begins before {}", event, *free);
            *free = start + length;
            match event["args"]["spans"].as_u64() {
                Some(merged) => {
                    count += merged;
                    busy += picos(&event["args"]["busy_us"]);
                }
                None => {
                    count += 1;
                    busy += length;
                    exact.push((thread.0 as u32, start, length));
                }
            }
        }
        prop_assert_eq!(count, input.len() as u64);
        prop_assert_eq!(busy, input.iter().map(|&(_, _, _, length)| length).sum::<u64>());
        if summary.joined == 1 {
            let mut expected: Vec<_> = input.iter().map(|&(rank, _, start, length)| (rank, start, length)).collect();
            expected.sort_unstable();
            exact.sort_unstable();
            prop_assert_eq!(exact, expected);
        } else {
            prop_assert!(summary.bytes.0 <= budget || u64::from(summary.joined) >= input.len() as u64);
        }
    }
}
