//! Tests of the reader of PyTorch's profiler, with written traces, an independent model of streams, and a real trace.

use std::fmt::Write;

use fabricast_sim::schedule::Collective;
use fabricast_topologies::Picos;
use proptest::prelude::*;

use super::read_kineto;
use crate::job::JobError;
use crate::trace::Contents;
use crate::trace::{EventKind, Processor, Trace, read};

/// Step of a ResNet on two A100, rank 0; see planner/data/traces/README.md.
const RESNET: &[u8] = include_bytes!("../../../../data/traces/resnet-rank0.json.gz");

/// Trace in the layout of Kineto. Times are in µs.
#[derive(Default)]
struct Writer {
    events: String,
    correlation: u32,
}

impl Writer {
    fn event(&mut self, category: &str, name: &str, thread: u32, span: (u64, u64), arguments: &str) {
        let comma = if self.events.is_empty() { "" } else { ",\n" };
        let (start, end) = span;
        write!(
            self.events,
            "{comma}{{\"ph\": \"X\", \"cat\": \"{category}\", \"name\": \"{name}\", \"pid\": 1, \"tid\": {thread}, \
             \"ts\": {start}.000, \"dur\": {}.000, \"args\": {{{arguments}}}}}",
            end - start
        )
        .unwrap();
    }

    fn operation(&mut self, name: &str, stream: u32, launch: u64, span: (u64, u64), arguments: &str) {
        self.correlation += 1;
        let id = format!("\"correlation\": {}", self.correlation);
        self.event("cuda_runtime", "cudaLaunchKernel", 1, (launch, launch), &id);
        self.event("kernel", name, stream, span, &format!("{id}, \"stream\": {stream}{arguments}"));
    }

    fn kernel(&mut self, launch: u64, span: (u64, u64)) {
        self.operation("gemm", 7, launch, span, "");
    }

    fn call(&mut self, launch: u64, span: (u64, u64), arguments: &str) {
        self.event("cpu_op", "record_param_comms", 1, (launch, launch), arguments);
        self.event("cuda_runtime", "cudaStreamWaitEvent", 1, (launch, launch), "");
        self.operation("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20, launch, span, "");
    }

    fn wait(&mut self, time: u64, sequence: u64) {
        let call = format!("\"Collective name\": \"wait\", \"Process Group Name\": \"0\", \"Seq\": {sequence}");
        self.event("cpu_op", "record_param_comms", 1, (time, time), &call);
        self.event("cuda_runtime", "cudaStreamWaitEvent", 1, (time, time), "");
    }

    fn finish(&self, rank: u32, ranks: u32) -> Contents {
        let text = format!(
            "{{\"schemaVersion\": 1, \"distributedInfo\": {{\"backend\": \"nccl\", \"rank\": {rank}, \
             \"world_size\": {ranks}}}, \"traceEvents\": [{}]}}",
            self.events
        );
        (format!("rank-{rank}.json"), text.into_bytes())
    }
}

/// Arguments of an all_reduce of `elements` floats, of all of `ranks` (a list as text).
fn all_reduce(elements: u64, ranks: &str, sequence: u64) -> String {
    let size = ranks.split(',').count();
    format!(
        "\"Collective name\": \"allreduce\", \"In msg nelems\": {elements}, \"Out msg nelems\": {elements}, \
         \"dtype\": \"Float\", \"Group size\": {size}, \"Process Group Name\": \"0\", \
         \"Process Group Ranks\": \"[{ranks}]\", \"Seq\": {sequence}"
    )
}

/// Returns the end of the last event if calls take the time that `call` returns for the bytes of each.
fn evaluate(trace: &Trace, call: impl Fn(u64) -> Picos) -> Picos {
    let (mut waiting, followers) = trace.dependencies();
    let mut begins = vec![Picos::ZERO; trace.events.len()];
    let mut ready: Vec<usize> = (0..trace.events.len()).filter(|event| waiting[*event] == 0).collect();
    let mut last = Picos::ZERO;
    while let Some(event) = ready.pop() {
        let time = match &trace.events[event].kind {
            EventKind::Compute { time, .. } => *time,
            EventKind::Wait(_) => Picos::ZERO,
            EventKind::Call(one) | EventKind::Message(one) => call(one.bytes.0),
        };
        let end = begins[event] + time;
        last = last.max(end);
        for &next in &followers[event] {
            let next = next as usize;
            begins[next] = begins[next].max(end);
            waiting[next] -= 1;
            if waiting[next] == 0 {
                ready.push(next);
            }
        }
    }
    last
}

fn us(time: u64) -> Picos {
    Picos(time * 1_000_000)
}

fn messages(trace: &Trace) -> String {
    trace.ignored.join("\n")
}

/// Two kernels, an all_reduce that overlaps with a third, and a fourth that waits for it.
fn overlapped(rank: u32, ranks: u32, group: &str) -> Contents {
    let mut writer = Writer::default();
    writer.kernel(0, (10, 110));
    writer.kernel(20, (110, 210));
    writer.call(30, (210, 260), &all_reduce(1 << 20, group, 1));
    writer.kernel(40, (210, 240));
    writer.wait(50, 1);
    writer.kernel(60, (260, 280));
    writer.finish(rank, ranks)
}

#[test]
fn overlap_is_replayed() {
    let trace = read_kineto(&[overlapped(0, 2, "0, 1")]).unwrap();
    assert_eq!((trace.ranks, trace.recorded), (2, Some(us(280))));
    let calls: Vec<_> = trace.events.iter().filter_map(|event| event.kind.call()).collect();
    assert_eq!((calls.len(), calls[0].collective, calls[0].bytes.0), (1, Collective::AllReduce, 4 << 20));
    // As recorded, hidden behind the third kernel, and three times as long.
    for (call, expected) in [(50, 280), (20, 260), (150, 380)] {
        assert_eq!(evaluate(&trace, |_| us(call)), us(expected), "{call}");
    }
    assert!(messages(&trace).contains("rank 0 of 2 has a trace: the other ranks are assumed to equal it"));
}

/// Groups of one rank's trace are repeated for the other ranks.
#[test]
fn one_rank_represents_all() {
    let trace = read_kineto(&[overlapped(2, 8, "2, 3")]).unwrap();
    let groups: Vec<Vec<u32>> =
        trace.events.iter().filter_map(|event| event.kind.call()).map(|call| call.group.to_vec()).collect();
    assert_eq!(groups, [[0, 1], [2, 3], [4, 5], [6, 7]]);
    assert_eq!(evaluate(&trace, |_| us(50)), us(280));
    let irregular = read_kineto(&[overlapped(0, 4, "0, 3")]).unwrap();
    assert!(
        messages(&irregular).contains("1 calls of groups without equal shifted copies"),
        "{}",
        messages(&irregular)
    );
}

#[test]
fn ranks_are_joined_by_group_and_number() {
    let mut late = Writer::default();
    late.kernel(0, (0, 400));
    late.call(30, (400, 450), &all_reduce(1 << 20, "0, 1", 1));
    let files = [late.finish(1, 3), overlapped(0, 3, "0, 1")];
    let trace = read_kineto(&files).unwrap();
    assert_eq!(trace.events.iter().filter(|event| event.kind.call().is_some()).count(), 1);
    // Rank 0 waits for rank 1: its last kernel follows the call.
    assert_eq!(evaluate(&trace, |_| us(50)), us(470));
    assert!(messages(&trace).contains("ranks 2 of 3 have no trace"), "{}", messages(&trace));

    let more = {
        let mut writer = Writer::default();
        writer.call(0, (0, 50), &all_reduce(1 << 20, "0, 1", 1));
        writer.call(60, (60, 90), &all_reduce(1 << 10, "0, 1", 2));
        writer.finish(1, 2)
    };
    let trace = read_kineto(&[overlapped(0, 2, "0, 1"), more]).unwrap();
    assert!(messages(&trace).contains("group `0`: rank 0 recorded 1 of 2 calls"), "{}", messages(&trace));

    let mut other = Writer::default();
    let gather = all_reduce(1 << 20, "0, 1", 1).replace("allreduce", "_allgather_base");
    other.call(0, (0, 50), &gather);
    let error = read_kineto(&[overlapped(0, 2, "0, 1"), other.finish(1, 2)]).unwrap_err().to_string();
    assert!(error.starts_with("rank-1.json: call 1 of group `0` is all_gather here, and all_reduce"), "{error}");
    let error = read_kineto(&[overlapped(0, 2, "0, 1"), overlapped(0, 2, "0, 1")]).unwrap_err().to_string();
    assert!(error.contains("a second trace of rank 0"), "{error}");
}

#[test]
fn messages_are_matched_with_their_receives() {
    let call = |name: &str, peer: &str| {
        format!(
            "\"Collective name\": \"{name}\", \"In msg nelems\": 256, \"Out msg nelems\": 256, \"dtype\": \"Half\", \
             \"Group size\": 2, \"Process Group Name\": \"1\", {peer}"
        )
    };
    let mut sender = Writer::default();
    sender.kernel(0, (0, 100));
    sender.call(10, (100, 130), &call("send", "\"Dst Rank\": 1"));
    let mut receiver = Writer::default();
    receiver.call(0, (0, 130), &call("recv", "\"Src Rank\": 0"));
    receiver.event("cuda_runtime", "cudaStreamWaitEvent", 1, (5, 5), "");
    receiver.kernel(10, (130, 150));
    let trace = read_kineto(&[sender.finish(0, 2), receiver.finish(1, 2)]).unwrap();
    let calls: Vec<_> = trace.events.iter().filter_map(|event| event.kind.call()).collect();
    assert_eq!(calls.len(), 1);
    assert_eq!((calls[0].group.to_vec(), calls[0].bytes.0), (vec![0, 1], 512));
    assert_eq!(evaluate(&trace, |_| us(30)), us(150));
    // A batch of messages is one kernel, which is launched after all of them were recorded.
    let mut batch = Writer::default();
    batch.event("cpu_op", "record_param_comms", 1, (1, 2), &call("send", "\"Dst Rank\": 1"));
    batch.event("cpu_op", "record_param_comms", 1, (3, 4), &call("recv", "\"Src Rank\": 1"));
    batch.operation("ncclDevKernel_SendRecv", 20, 6, (10, 20), "");
    let trace = read_kineto(&[batch.finish(0, 2)]).unwrap();
    let groups: Vec<_> =
        trace.events.iter().filter_map(|event| event.kind.call()).map(|call| call.group.to_vec()).collect();
    assert_eq!(groups, [[0, 1], [1, 0]]);
    assert!(messages(&trace).contains("messages of 2 pairs have a side without a trace"), "{}", messages(&trace));
}

/// Kernels whose call is unknown keep their time as computation, and are named.
#[test]
fn unknown_calls_are_named() {
    let no_type = all_reduce(8, "0, 1", 1).replace("Float", "Complex17");
    let no_ranks = all_reduce(8, "0, 1, ..., 63", 1);
    for (arguments, expected) in [
        ("", "rank 0: 1 NCCL kernels have no message size"),
        (&*no_type, "rank 0: 1 NCCL kernels have no message size"),
        (&*no_ranks, "rank 0: 1 NCCL kernels are of group `0`, whose ranks the trace does not list"),
    ] {
        let mut writer = Writer::default();
        writer.kernel(0, (0, 100));
        writer.call(10, (100, 150), arguments);
        let trace = read_kineto(&[writer.finish(0, 2)]).unwrap();
        assert!(messages(&trace).contains(expected), "{}", messages(&trace));
        assert_eq!(evaluate(&trace, |_| Picos::ZERO), us(150));
    }
    let mut graph = Writer::default();
    graph.operation("ncclDevKernel_AllReduce", 20, 0, (10, 60), "");
    let trace = read_kineto(&[graph.finish(0, 2)]).unwrap();
    let expected = "rank 0: 1 NCCL kernels have no record_param_comms, as in CUDA graphs";
    assert!(messages(&trace).contains(expected), "{}", messages(&trace));
}

/// The step of median time is replayed, from the end of the GPU's earlier work.
#[test]
fn median_step_is_selected() {
    let mut writer = Writer::default();
    for (number, (start, end)) in [(3, (0, 100)), (4, (100, 190)), (5, (190, 390))] {
        writer.event("user_annotation", &format!("ProfilerStep#{number}"), 1, (start, end), "");
    }
    // The host runs ahead: the kernel of step 3 starts in step 4.
    writer.kernel(90, (110, 150));
    writer.kernel(120, (150, 180));
    writer.kernel(200, (200, 380));
    let trace = read_kineto(&[writer.finish(0, 1)]).unwrap();
    // Of 90, 100 and 200 µs the median is step 3, whose kernel ends at 150.
    assert_eq!(trace.recorded, Some(us(150)));
    assert_eq!(evaluate(&trace, |_| Picos::ZERO), us(150));
    assert!(messages(&trace).contains("ProfilerStep#3, of median time, is replayed"), "{}", messages(&trace));
}

#[test]
fn real_trace_is_replayed_in_its_time() {
    let trace = read(&[("resnet-rank0.json.gz".to_owned(), RESNET.to_vec())], None).unwrap();
    let calls: Vec<_> = trace.events.iter().filter_map(|event| event.kind.call()).collect();
    assert_eq!((trace.ranks, calls.len()), (2, 7));
    assert!(calls.iter().all(|call| *call.group == [0, 1]));
    let gradients: u64 =
        calls.iter().filter(|call| call.collective == Collective::AllReduce).map(|call| call.bytes.0).sum();
    // The parameters of ResNet-50 in 32 bits.
    assert_eq!(gradients, 4 * 25_557_032);
    let recorded = trace.recorded.unwrap();
    // Durations of the kernels in the trace, in µs, by bytes.
    let durations = [
        (4 * 53_120, 30.8),
        (8 * 53, 7.6),
        (4 * 2_049_000, 2520.6),
        (4 * 7_875_584, 2673.9),
        (4 * 6_563_840, 2621.5),
        (4 * 6_637_568, 2417.2),
        (4 * 2_431_040, 2028.3),
    ];
    let duration = |bytes: u64| {
        let known = durations.iter().find(|row| row.0 == bytes);
        Picos::from_us(known.unwrap_or_else(|| panic!("{bytes}")).1)
    };
    let replayed = evaluate(&trace, duration);
    let error = replayed.us() / recorded.us() - 1.0;
    assert!(error.abs() < 0.001, "{replayed:?} {recorded:?}");
    assert!((219.0..221.0).contains(&(recorded.us() / 1000.0)), "{recorded:?}");
}

/// Operation of a host program.
#[derive(Clone, Copy, Debug)]
enum Step {
    Kernel(u64),
    Call(u64),
    /// Wait of the compute stream for the oldest call without a wait.
    Wait,
    Work(u64),
    Synchronize,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1u64..60).prop_map(Step::Kernel),
        2 => (1u64..80).prop_map(Step::Call),
        2 => Just(Step::Wait),
        2 => (1u64..50).prop_map(Step::Work),
        1 => Just(Step::Synchronize),
    ]
}

/// Runs a program on one compute stream and one stream of calls. Returns its time and trace. `scale`: percentage of the
/// time of calls. Each launch needs 2 µs of the host.
fn run(program: &[Step], scale: u64) -> (u64, Contents) {
    let mut writer = Writer::default();
    let (mut host, mut computing, mut calling) = (0u64, 0u64, 0u64);
    let (mut ends, mut next): (Vec<u64>, usize) = (Vec::new(), 0);
    for step in program {
        match *step {
            Step::Kernel(time) => {
                let start = host.max(computing);
                computing = start + time;
                writer.kernel(host, (start, computing));
                host += 2;
            }
            Step::Call(time) => {
                // The kernel reads what has been launched before it, after waits of the compute stream.
                let start = host.max(computing).max(calling);
                calling = start + time * scale;
                writer.call(host, (start, calling), &all_reduce(time, "0, 1", ends.len() as u64));
                ends.push(calling);
                host += 2;
            }
            Step::Wait => {
                if let Some(end) = ends.get(next) {
                    computing = computing.max(*end);
                    writer.wait(host, next as u64);
                    next += 1;
                    host += 2;
                }
            }
            Step::Work(time) => host += time,
            Step::Synchronize => {
                let until = host.max(computing).max(calling);
                writer.event("cuda_runtime", "cudaDeviceSynchronize", 1, (host, until), "");
                host = until + 1;
            }
        }
    }
    let end = host.max(computing).max(calling);
    writer.event("user_annotation", "ProfilerStep#1", 1, (0, host), "");
    (end, writer.finish(0, 2))
}

proptest! {
    /// The trace of a program, replayed with slower or faster calls, has the time of the program with these calls.
    #[test]
    fn replays_match_an_independent_model(program in prop::collection::vec(step(), 1..40)) {
        let program: Vec<Step> = [Step::Kernel(5)].into_iter().chain(program).collect();
        let (time, file) = run(&program, 4);
        let trace = read_kineto(&[file]).unwrap();
        prop_assert_eq!(trace.recorded, Some(us(time)));
        for scale in [4, 1, 20, 0] {
            // An element of 4 bytes represents 1 µs.
            let replayed = evaluate(&trace, |bytes| us(bytes / 4 * scale));
            prop_assert_eq!(replayed, us(run(&program, scale).0), "scale {}", scale);
        }
    }

    #[test]
    fn damaged_traces_are_no_panic(cut in 0usize..60_000, at in 0usize..60_000, byte: u8) {
        let (_, (source, text)) = run(&[Step::Kernel(9), Step::Call(5), Step::Wait, Step::Kernel(3), Step::Synchronize], 1);
        let mut damaged = text.clone();
        let index = at % text.len();
        damaged[index] = byte;
        let error = |result: Result<Trace, JobError>| result.err().map(|error| error.to_string());
        if let Some(message) = error(read_kineto(&[(source.clone(), damaged)])) {
            prop_assert!(message.starts_with("rank-0.json"), "{}", message);
        }
        let cut = cut % text.len();
        let message = error(read_kineto(&[(source, text[..cut].to_vec())])).unwrap();
        prop_assert!(message.starts_with("rank-0.json:"), "{}", message);
    }
}

#[test]
fn hostile_values_are_rejected_or_ignored() {
    let read_text = |text: &str| read_kineto(&[("t.json".to_owned(), text.as_bytes().to_vec())]);
    let kernel = |ts: &str, arguments: &str| {
        format!(
            "{{\"traceEvents\": [\n{{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"k\", \"ts\": {ts}, \"dur\": 5, \"args\": {arguments}}}]}}"
        )
    };
    for (text, expected) in [
        (kernel("-1", "{}"), "t.json:2:"),
        (kernel("1e300", "{}"), "t.json:2:"),
        (kernel("\"now\"", "{}"), "t.json:2:"),
        ("{\"traceEvents\": {}}".to_owned(), "t.json:1:"),
        ("{\"schemaVersion\": 1}".to_owned(), "no list `traceEvents`"),
        ("{\"traceEvents\": []}".to_owned(), "no GPU operations"),
        (format!("{{\"traceEvents\": {}", "[".repeat(1 << 20)), "t.json:1:"),
    ] {
        let error = read_text(&text).unwrap_err().to_string();
        assert!(error.starts_with("t.json") && error.contains(expected), "{error}");
    }
    // Deep lists where a value is ignored, and numbers as text.
    let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
    let trace =
        read_text(&kernel("1", &format!("{{\"Input Dims\": {deep}, \"stream\": {{}}, \"device\": \"0\"}}"))).unwrap();
    assert_eq!(trace.recorded, Some(us(5)));
    assert!(messages(&trace).contains("rank 0: 1 GPU operations have no launch in the trace"), "{}", messages(&trace));
    let on = |event: &crate::trace::Event| matches!(event.kind, EventKind::Compute { on: Processor::Gpu, .. });
    assert_eq!(trace.events.iter().filter(|event| on(event)).count(), 1);
    let error = read_kineto(&[("t.json".to_owned(), b"{\"traceEvents\": [{\"ph\": \"\xff\"}]}".to_vec())]).unwrap_err();
    assert!(error.to_string().starts_with("t.json:1:"), "{error}");
}
