//! Streamed reading of one Kineto trace: only the events and arguments that the replay needs are stored.
//!
//! The layout is that of `ChromeTraceLogger` (pytorch/kineto, `libkineto/src/output_json.cpp`): an object with metadata
//! (`distributedInfo`) and the list `traceEvents` of complete events (`ph` = `X`) with `ts` and `dur` in µs.

use std::borrow::Cow;
use std::fmt;

use rustc_hash::FxHashMap;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::super::json::{self, Loose};
use super::arguments::EventArguments;
use super::communication::{CommunicationInfo, ProcessGroup};
use crate::job::JobError;

/// Time in a trace, in ns. CPU and GPU events of a trace have the same clock.
pub(super) type Nanos = i64;

/// Operation on a GPU stream: a kernel, a copy or a fill.
#[derive(Clone, Debug)]
pub(super) struct GpuOperation {
    pub start: Nanos,
    pub end: Nanos,
    pub stream: i64,
    /// Number that a launch and its operations share.
    pub correlation: Option<i64>,
    /// Id of the PyTorch operator that launched the operation.
    pub external: Option<i64>,
    /// True for kernels of NCCL or RCCL.
    pub is_nccl: bool,
    /// Arguments of the collective, which Kineto copies to NCCL's kernels since PyTorch 2.2.
    pub info: Option<CommunicationInfo>,
}

/// Kind of a call of the CUDA or HIP runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuntimeCall {
    /// Launch, or a call without effect on the order of operations.
    Other,
    /// `cudaStreamWaitEvent`.
    StreamWait,
    /// `cudaStreamSynchronize` or `cudaEventSynchronize`.
    StreamSynchronize,
    /// `cudaDeviceSynchronize`.
    DeviceSynchronize,
}

/// Call of the runtime on a host thread.
#[derive(Clone, Debug)]
pub(super) struct HostCall {
    pub call: RuntimeCall,
    pub start: Nanos,
    pub end: Nanos,
    pub thread: i64,
}

/// `record_param_comms` of PyTorch, which encloses the launch of a collective or a wait for one.
#[derive(Clone, Debug)]
pub(super) struct CommunicationCall {
    pub start: Nanos,
    pub end: Nanos,
    pub thread: i64,
    pub external: Option<i64>,
    pub info: CommunicationInfo,
}

/// Range of a training step on the host (`ProfilerStep#N`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub number: i64,
    pub start: Nanos,
    pub end: Nanos,
}

/// Metadata of the job, as `torch.profiler` adds them.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct DistributedInfo {
    pub rank: Option<u32>,
    pub world_size: Option<u32>,
    #[serde(default, rename = "pg_config", deserialize_with = "groups_or_none")]
    pub groups: Vec<ProcessGroup>,
}

/// Groups of `pg_config`, whose format differs between versions. An unknown format has no groups.
fn groups_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<ProcessGroup>, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).unwrap_or_default())
}

/// Events and metadata of one trace.
#[derive(Debug, Default)]
pub(super) struct Recording {
    pub distributed: DistributedInfo,
    pub operations: Vec<GpuOperation>,
    /// Launches by correlation number.
    pub launches: FxHashMap<i64, HostCall>,
    /// Waits and synchronizations, in the order of the file.
    pub blocking: Vec<HostCall>,
    pub communication: Vec<CommunicationCall>,
    pub steps: Vec<Step>,
    /// Devices with operations, ascending.
    pub devices: Vec<i64>,
}

/// Reads a trace.
///
/// # Errors
/// [`JobError`] with line and column: no JSON, another structure, or times that are no numbers.
pub(super) fn read(text: &[u8], source: &str) -> Result<Recording, JobError> {
    let mut recording = Recording::default();
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let visitor = FileVisitor { recording: &mut recording };
    let result = (&mut deserializer).deserialize_map(visitor).and_then(|()| deserializer.end());
    result.map_err(|error| json::error(source, &error))?;
    recording.steps.sort_by_key(|step| (step.number, step.start));
    recording.steps.dedup_by_key(|step| step.number);
    Ok(recording)
}

struct FileVisitor<'r> {
    recording: &'r mut Recording,
}

impl<'de> Visitor<'de> for FileVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with `traceEvents`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut has_events = false;
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            match &*key {
                "traceEvents" => {
                    has_events = true;
                    map.next_value_seed(EventList { recording: self.recording })?;
                }
                "distributedInfo" => self.recording.distributed = map.next_value()?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        match has_events {
            true => Ok(()),
            false => Err(serde::de::Error::custom("no list `traceEvents`: expected a trace of PyTorch's profiler")),
        }
    }
}

struct EventList<'r> {
    recording: &'r mut Recording,
}

impl<'de> DeserializeSeed<'de> for EventList<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for EventList<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut events: A) -> Result<(), A::Error> {
        while let Some(event) = events.next_element::<RawEvent<'de>>()? {
            self.recording.add(&event).map_err(serde::de::Error::custom)?;
        }
        Ok(())
    }
}

/// Event as it is in the file.
#[derive(Deserialize)]
struct RawEvent<'a> {
    #[serde(borrow, default)]
    ph: Cow<'a, str>,
    #[serde(borrow, default)]
    cat: Cow<'a, str>,
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    tid: Loose<'a>,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
    #[serde(borrow, default)]
    args: EventArguments<'a>,
}

impl Recording {
    fn add(&mut self, event: &RawEvent<'_>) -> Result<(), String> {
        if event.ph != "X" {
            return Ok(());
        }
        let category = event.cat.to_ascii_lowercase();
        let kind = match category.as_str() {
            "kernel" | "gpu_memcpy" | "gpu_memset" | "memcpy" | "memset" => Kind::Gpu,
            "cuda_runtime" | "cuda_driver" | "hip_runtime" | "hip_driver" | "runtime" => Kind::Runtime,
            "user_annotation" | "cpu_op" | "operator" => match event.name.strip_prefix("ProfilerStep#") {
                Some(number) => number.trim().parse().map_or(Kind::Ignored, Kind::Step),
                None if event.name == "record_param_comms" => Kind::Communication,
                None => Kind::Ignored,
            },
            _ => Kind::Ignored,
        };
        if kind == Kind::Ignored {
            return Ok(());
        }
        let (start, end) = span(event)?;
        let thread = event.tid.integer().unwrap_or_default();
        let arguments = &event.args;
        match kind {
            Kind::Gpu => {
                let is_nccl = category == "kernel" && is_nccl_kernel(&event.name);
                let info = if is_nccl { CommunicationInfo::new(arguments) } else { None };
                let device = arguments.device.integer().unwrap_or_default();
                if let Err(position) = self.devices.binary_search(&device) {
                    self.devices.insert(position, device);
                }
                self.operations.push(GpuOperation {
                    start,
                    end,
                    stream: arguments.stream.integer().unwrap_or(thread),
                    correlation: arguments.correlation.integer(),
                    external: arguments.external.integer(),
                    is_nccl,
                    info,
                });
            }
            Kind::Runtime => {
                let call = HostCall { call: runtime_call(&event.name), start, end, thread };
                if call.call != RuntimeCall::Other {
                    self.blocking.push(call);
                } else if let Some(correlation) = arguments.correlation.integer() {
                    self.launches.insert(correlation, call);
                }
            }
            Kind::Communication => {
                let info = CommunicationInfo::new(arguments).unwrap_or_default();
                let external = arguments.external.integer();
                self.communication.push(CommunicationCall { start, end, thread, external, info });
            }
            Kind::Step(number) => self.steps.push(Step { number, start, end }),
            Kind::Ignored => {}
        }
        Ok(())
    }
}

/// Kind of an event.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Gpu,
    Runtime,
    Communication,
    Step(i64),
    Ignored,
}

/// Kernels of NCCL and RCCL: `ncclKernel_…`, `ncclDevKernel_…`, `rcclGenericKernel`, `mscclKernel`.
fn is_nccl_kernel(name: &str) -> bool {
    ["nccl", "rccl", "mscclKernel"].iter().any(|prefix| name.contains(prefix))
}

fn runtime_call(name: &str) -> RuntimeCall {
    match name {
        _ if name.ends_with("StreamWaitEvent") => RuntimeCall::StreamWait,
        _ if name.ends_with("StreamSynchronize") || name.ends_with("EventSynchronize") => {
            RuntimeCall::StreamSynchronize
        }
        _ if name.ends_with("DeviceSynchronize") => RuntimeCall::DeviceSynchronize,
        _ => RuntimeCall::Other,
    }
}

/// Returns start and end in ns.
fn span(event: &RawEvent<'_>) -> Result<(Nanos, Nanos), String> {
    /// Half the range of a time in ns: 146 years.
    const MAX_MICROS: f64 = 4.6e15;
    let is_time = |micros: f64| (0.0..MAX_MICROS).contains(&micros);
    if !is_time(event.ts) || !is_time(event.dur) {
        return Err(format!(
            "`{}`: ts {} and dur {} are not a time and a duration in µs",
            event.name, event.ts, event.dur
        ));
    }
    let start = (event.ts * 1000.0).round() as Nanos;
    Ok((start, start + (event.dur * 1000.0).round() as Nanos))
}
