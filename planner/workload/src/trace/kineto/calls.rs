//! Assignment of recorded calls to NCCL's kernels.
//!
//! Since PyTorch 2.2 Kineto copies the arguments of a collective to its kernel. Otherwise the kernel belongs to the
//! `record_param_comms` with its external id, or to the one that encloses its launch on the host. Calls of a group
//! (`batch_isend_irecv`, coalesced collectives) are recorded one by one and share the kernel that is launched at the
//! end of the group: a call without a kernel belongs to the next kernel of a group on its thread.

use std::sync::Arc;

use fabricast_sim::schedule::Collective;
use fabricast_topologies::Bytes;
use rustc_hash::FxHashMap;

use super::communication::{CommunicationInfo, Operation};
use super::recording::{CommunicationCall, Nanos, Recording};

/// Call of a kernel, with its group and size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KernelCall {
    /// Name of the group, which is the same on all ranks.
    pub name: String,
    pub kind: CallKind,
    pub bytes: Bytes,
    pub sequence: Option<i64>,
}

/// Kind of a call, with the ranks that take part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    /// Collective of these ranks.
    Collective(Collective, Arc<[u32]>),
    /// Message to a rank.
    Send(u32),
    /// Message from a rank.
    Receive(u32),
}

/// Calls of NCCL's kernels, and the numbers of kernels whose call is unknown.
#[derive(Debug, Default)]
pub(super) struct KernelCalls {
    /// Calls by the index of the GPU operation.
    pub by_operation: FxHashMap<usize, Vec<KernelCall>>,
    /// NCCL kernels without a recorded call, as in CUDA graphs.
    pub unrecorded: usize,
    /// NCCL kernels whose call has no size: arguments are missing or the element type is unknown.
    pub unsized_calls: usize,
    /// NCCL kernels of groups whose ranks are unknown, by the name of the group.
    pub unknown_groups: std::collections::BTreeMap<String, usize>,
}

/// Recorded calls by host thread and time.
pub(super) struct CallIndex<'a> {
    by_thread: FxHashMap<i64, Vec<&'a CommunicationCall>>,
}

impl<'a> CallIndex<'a> {
    pub fn new(calls: &'a [CommunicationCall]) -> Self {
        let mut by_thread: FxHashMap<i64, Vec<&CommunicationCall>> = FxHashMap::default();
        for call in calls {
            by_thread.entry(call.thread).or_default().push(call);
        }
        by_thread.values_mut().for_each(|calls| calls.sort_by_key(|call| call.start));
        Self { by_thread }
    }

    /// Returns the last call that started on a thread by a time and had not ended.
    pub fn enclosing(&self, thread: i64, time: Nanos) -> Option<&'a CommunicationCall> {
        let calls = self.by_thread.get(&thread)?;
        let count = calls.partition_point(|call| call.start <= time);
        calls.get(count.checked_sub(1)?).copied().filter(|call| call.end >= time)
    }
}

/// Finds the calls of all NCCL kernels of a recording.
pub(super) fn kernel_calls(recording: &Recording, index: &CallIndex<'_>) -> KernelCalls {
    let launches = |operation: usize| {
        let correlation = recording.operations.get(operation)?.correlation?;
        recording.launches.get(&correlation)
    };
    let mut kernels: Vec<usize> = (0..recording.operations.len())
        .filter(|operation| recording.operations.get(*operation).is_some_and(|operation| operation.is_nccl))
        .collect();
    let time = |operation: &usize| {
        let start = recording.operations.get(*operation).map_or(0, |operation| operation.start);
        (launches(*operation).map_or(start, |launch| launch.start), start)
    };
    kernels.sort_by_key(time);
    let by_external: FxHashMap<i64, &CommunicationCall> =
        recording.communication.iter().filter_map(|call| Some((call.external?, call))).collect();
    // Call of each kernel, before calls of groups are added.
    let direct: Vec<Option<&CommunicationCall>> = kernels
        .iter()
        .map(|operation| {
            let external = recording.operations.get(*operation).and_then(|operation| operation.external);
            external
                .and_then(|id| by_external.get(&id).copied())
                .or_else(|| launches(*operation).and_then(|launch| index.enclosing(launch.thread, launch.start)))
        })
        .collect();
    let mut grouped = GroupedCalls::new(recording, &direct);
    let mut result = KernelCalls::default();
    for (operation, call) in kernels.iter().zip(&direct) {
        let Some(kernel) = recording.operations.get(*operation) else { continue };
        let own = kernel.info.as_ref().or(call.map(|call| &call.info));
        let mut infos: Vec<&CommunicationInfo> = Vec::new();
        let is_group =
            own.is_none_or(|info| matches!(info.operation, Operation::Other | Operation::Send | Operation::Receive));
        if is_group && let Some(launch) = launches(*operation) {
            infos = grouped.take(launch.thread, launch.start);
        }
        infos.extend(own.filter(|info| !matches!(info.operation, Operation::Other | Operation::Wait)));
        if infos.is_empty() {
            // Before PyTorch 2.2 a call is recorded without arguments.
            match call {
                Some(_) => result.unsized_calls += 1,
                None => result.unrecorded += 1,
            }
            continue;
        }
        let calls: Result<Vec<KernelCall>, Gap> = infos.iter().map(|info| resolve(info, recording)).collect();
        match calls {
            Ok(calls) => drop(result.by_operation.insert(*operation, calls)),
            Err(Gap::Size) => result.unsized_calls += 1,
            Err(Gap::Group(name)) => *result.unknown_groups.entry(name).or_default() += 1,
        }
    }
    result
}

/// Recorded calls without a kernel of their own, by thread, in order of time.
struct GroupedCalls<'a> {
    by_thread: FxHashMap<i64, std::collections::VecDeque<&'a CommunicationCall>>,
}

impl<'a> GroupedCalls<'a> {
    fn new(recording: &'a Recording, direct: &[Option<&CommunicationCall>]) -> Self {
        let own: rustc_hash::FxHashSet<*const CommunicationCall> =
            direct.iter().flatten().map(|call| std::ptr::from_ref(*call)).collect();
        let mut by_thread: FxHashMap<i64, std::collections::VecDeque<&CommunicationCall>> = FxHashMap::default();
        let mut calls: Vec<&CommunicationCall> = recording.communication.iter().collect();
        calls.sort_by_key(|call| call.start);
        for call in calls {
            // A group of one rank has no kernel.
            let has_kernel = !matches!(call.info.operation, Operation::Wait | Operation::Other)
                && call.info.group_size != Some(1)
                && !own.contains(&std::ptr::from_ref(call));
            if has_kernel {
                by_thread.entry(call.thread).or_default().push_back(call);
            }
        }
        Self { by_thread }
    }

    /// Removes and returns the calls of a thread that started before a time.
    fn take(&mut self, thread: i64, before: Nanos) -> Vec<&'a CommunicationInfo> {
        let Some(calls) = self.by_thread.get_mut(&thread) else { return Vec::new() };
        let mut infos = Vec::new();
        while let Some(call) = calls.front().filter(|call| call.start < before) {
            infos.push(&call.info);
            calls.pop_front();
        }
        infos
    }
}

/// Missing part of a recorded call.
enum Gap {
    Size,
    Group(String),
}

fn resolve(info: &CommunicationInfo, recording: &Recording) -> Result<KernelCall, Gap> {
    let unknown = || Gap::Group(info.group.clone());
    let (kind, bytes) = match info.operation {
        Operation::Send | Operation::Receive => {
            let peer = info.peer.ok_or_else(unknown)?;
            let kind = if info.operation == Operation::Send { CallKind::Send(peer) } else { CallKind::Receive(peer) };
            (kind, Bytes(info.message_bytes().ok_or(Gap::Size)?))
        }
        _ => {
            let members = info.members(&recording.distributed.groups).ok_or_else(unknown)?;
            let (collective, bytes) = info.collective(members.len()).ok_or(Gap::Size)?;
            (CallKind::Collective(collective, members), bytes)
        }
    };
    Ok(KernelCall { name: info.group.clone(), kind, bytes, sequence: info.sequence })
}
