//! Tests of JSON output as nccl-tests' `util.cu` writes it: on one line, unless another tool reformatted it.

use fabricast_sim::profile::{Launch, Processes};
use fabricast_sim::schedule::Collective;

use crate::measured::read_log;

const LOG: &str = r#"{"version":3,"start_time":"2026-01-01 00:00:00","args":["/x/build/all_gather_perf","-b","8"],
"env":["A=\/b"],"nccl_version":22809,"config":{"nthreads":1,"ngpus":1,"minimum_bytes":8,"maximum_bytes":16,"step_factor":2,
"warmup_iters":1,"iterations":20,"aggregated_iterations":1,"validation":1,"graph":0,"blocking_collectives":"false",
"devices":[{"rank":0,"group":0,"pid":1,"hostname":"a","device":0,"device_hex":"0000:00:06","device_info":"NVIDIA H200"},
{"rank":1,"group":0,"pid":2,"hostname":"b","device":0,"device_hex":"0000:00:06","device_info":"NVIDIA H200"}]},
"results":[
{"size":32,"count":4,"type":"float","redop":"none","root":"    -1","out_of_place":{"time":5.830000,"alg_bw":0.1,"bus_bw":0.1,"nwrong":0.0},
 "out_of_place_per_iter":{"min_us":5.0,"max_us":7.0,"avg_us":5.8,"p50_us":5.8,"p95_us":6,"p99_us":6.5,"stdev_us":1,"cv_pct":2,"times_us":[5.0,7.0]},
 "in_place":{"time":5.5,"alg_bw":0.1,"bus_bw":0.1,"nwrong":null},"actual_iterations":20,"experiment_name":""},
{"size":32,"count":4,"type":"float","redop":"none","root":"    -1","out_of_place":null,"in_place":{"time":5.5,"alg_bw":0.1,"bus_bw":0.1,"nwrong":null}},
{"size":32,"count":4,"type":"float","redop":"none","root":"    -1","out_of_place":{"time":"nan","alg_bw":0.1,"bus_bw":0.1,"nwrong":0}},
{"size":32,"count":8,"type":"float","redop":"none","root":"    -1","out_of_place":{"time":1.0,"alg_bw":0.1,"bus_bw":0.1,"nwrong":0}},
{"size":32,"count":4,"type":"float","redop":"none","root":"    -1","out_of_place":{"time":1.0,"alg_bw":0.1,"bus_bw":0.1,"nwrong":3}},
{"size":32,"count":4,"type":"float"},
{"size":32}
],"out_of_bounds":{"count":0,"okay":"true"},"average_bus_bandwidth":{"bandwidth":1.0,"okay":"unchecked"},"errors":[],"end_time":"x"}"#;

#[test]
fn rows_and_header() {
    let table = read_log(LOG, "log.json").unwrap().remove(0);
    let header = &table.header;
    assert_eq!((header.collective, header.ranks, header.hosts()), (Some(Collective::AllGather), Some(2), Some(2)));
    assert_eq!((header.launch, header.processes), (Some(Launch::Stream), Some(Processes::PerGpu)));
    assert_eq!(header.library.as_ref().map(ToString::to_string).as_deref(), Some("nccl-2.28.9"));
    let rows: Vec<_> = table.rows.iter().map(|row| (row.line, row.measured().0)).collect();
    assert_eq!(rows, [(7, 5_830_000), (10, 5_500_000)]);
    assert_eq!(table.rows[0].out_of_place.unwrap().spread.unwrap().p99.0, 6_500_000);
    let rejected: Vec<_> = table.rejected.iter().map(|one| (one.line, one.reason.to_string())).collect();
    assert_eq!(rejected.iter().map(|one| one.0).collect::<Vec<_>>(), [11, 12, 13, 14, 15], "{rejected:?}");
    for (index, part) in ["`nan`", "not 32 B", "3 wrong", "has no time", "truncated"].into_iter().enumerate() {
        assert!(rejected[index].1.contains(part), "{rejected:?}");
    }
}

#[test]
fn invalid_json_is_reported() {
    for (text, expected) in [
        ("{\"results\": [", "log:1:13: not the JSON of nccl-tests: EOF"),
        ("{\n\"a\": 1}", "log:2:7: not the JSON of nccl-tests: missing field `results`"),
        ("{}", "missing field `results`"),
    ] {
        let error = read_log(text, "log").unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}
