//! Tests of the parts that are drawn and of those that are omitted.

use fabricast_sim::schedule::{Schedule, json};

use super::*;

/// Returns a schedule in which each rank of a ring forwards its input in two steps.
fn circle(ranks: u32) -> Schedule {
    let before = |rank: u32| (rank + ranks - 1) % ranks;
    let programs: Vec<String> = (0..ranks)
        .map(|rank| {
            let next = (rank + 1) % ranks;
            format!(
                r#"[{{"kind":"put","len":1,"channel":0,"peer":{next},"src":["input",0],"dst":["scratch",0],"span":1}},
                {{"kind":"put","len":2,"channel":0,"peer":{next},"src":["scratch",0],"dst":["output",0],"span":1,
                  "after":[[{},0,0,0]]}}]"#,
                before(rank)
            )
        })
        .collect();
    let text = format!(
        r#"{{"fabricast_schedule":1,"name":"a <circle>","call":{{"collective":"send_recv","bytes":64,"ranks":{ranks},
        "root":0,"buffers":"out_of_place"}},"protocol":"simple","channels":1,"layout":[{{"bytes":64,"parts":1}}],
        "scratch_chunks":1,"programs":[{}]}}"#,
        programs.join(",")
    );
    json::from_json(&text, "circle").unwrap()
}

fn svg(schedule: &Schedule) -> String {
    String::from_utf8(render(schedule, Format::Svg).unwrap()).unwrap()
}

#[test]
fn transfers_of_one_step_between_the_same_ranks_are_one_arrow() {
    let picture = SchedulePicture::new(&circle(4)).unwrap();
    assert_eq!((picture.ranks, picture.steps, picture.marks.len()), (4, 2, 8));
    assert_eq!(picture.marks.iter().map(|drawn| drawn.operations).collect::<Vec<_>>(), [1, 1, 1, 1, 2, 2, 2, 2]);
    assert_eq!(picture.remark, "");
}

#[test]
fn the_picture_is_xml_and_names_every_rank_and_step() {
    let text = svg(&circle(4));
    let document = roxmltree::Document::parse(&text).unwrap();
    let labels: Vec<&str> = document.descendants().filter_map(|node| node.text()).map(str::trim).collect();
    for word in ["a <circle>: send_recv", "rank 0", "rank 3", "0", "1", "put"] {
        assert!(labels.contains(&word), "{word} in {labels:?}");
    }
    assert!(!labels.contains(&"rank 4") && !labels.contains(&"get"));
}

#[test]
fn large_schedules_are_truncated_with_a_remark() {
    let picture = SchedulePicture::new(&circle(1000)).unwrap();
    assert_eq!((picture.ranks, picture.remark.as_str()), (32, "not drawn: ranks 32 to 999"));
    assert!(picture.marks.iter().all(|drawn| drawn.mark.from < 32 && drawn.mark.to < 32));
    assert!(svg(&circle(1000)).len() < 1 << 20);
}

#[test]
fn cyclic_schedules_are_errors() {
    let text = json::to_json(&circle(2)).replace("\"after\":[]", "\"after\":[[0,1,0,0],[1,1,0,0]]");
    let schedule = json::from_json(&text, "stuck").unwrap();
    let error = render(&schedule, Format::Svg).unwrap_err();
    assert!(matches!(error, StepsError::Cycle(_)), "{error}");
}
