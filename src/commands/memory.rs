//! Check of buffer sizes against GPU memory. Calls that do not fit are simulated as if the memory were sufficient, with
//! a warning.

use std::collections::BTreeMap;

use fabricast_perf::call_mix::CallGroup;
use fabricast_search::plan::PlanRequest;
use fabricast_sim::schedule::{BufferUse, Collective, Header};
use fabricast_topologies::fabric::Figures;
use fabricast_topologies::{Bytes, Fabric, NodeId};
use fabricast_validate::measured::manifest::Measurement;
use schemars::JsonSchema;
use serde::Serialize;

use crate::output::Output;

/// A GPU whose memory cannot hold the buffers of its ranks.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct MemoryShortfall {
    /// Size of the call: the larger buffer of a rank, in bytes.
    bytes: Bytes,
    /// Size of the buffers of all ranks on the GPU, in bytes.
    needed: Bytes,
    /// Memory of the GPU, in bytes.
    memory: Bytes,
    /// Id of the GPU.
    device: String,
}

impl MemoryShortfall {
    /// Returns the GPU with the least memory among those whose memory is too small for the buffers. `None` if the
    /// buffers fit on all GPUs or no memory size is known.
    fn check(size: Bytes, buffers: Bytes, fabric: &Fabric, placement: &[NodeId]) -> Option<Self> {
        let mut ranks: BTreeMap<NodeId, u64> = BTreeMap::new();
        for &device in placement {
            *ranks.entry(device).or_default() += 1;
        }
        let shortfalls = ranks.into_iter().filter_map(|(device, count)| {
            let Figures::Gpu(figures) = &fabric.node(device).figures else { return None };
            let (memory, needed) = (figures.memory?, Bytes(buffers.0.saturating_mul(count)));
            (needed > memory).then_some((memory, device, needed))
        });
        let (memory, device, needed) = shortfalls.min()?;
        Some(Self { bytes: size, needed, memory, device: fabric.node(device).id.to_string() })
    }

    /// Returns the shortfall of a schedule's call, if any.
    pub fn check_schedule(header: &Header, fabric: &Fabric, placement: &[NodeId]) -> Option<Self> {
        let call = header.call;
        let size = header.size();
        Self::check(size, buffers(call.collective, size, call.ranks, call.buffers), fabric, placement)
    }

    /// Returns the shortfall of the smallest size of a plan that exceeds a GPU's memory, if any.
    pub fn check_plan(request: &PlanRequest<'_>) -> Option<Self> {
        let ranks = request.placement.len() as u32;
        let calls = request
            .collectives
            .iter()
            .flat_map(|&collective| request.sizes.iter().map(move |&size| (size, collective)));
        let shortfalls = calls.filter_map(|(size, collective)| {
            // The bytes of the matrix are divided equally over the ranks.
            let largest =
                if collective == Collective::AllToAllV { Bytes(size.0 / u64::from(ranks.max(1))) } else { size };
            let buffers = buffers(collective, largest, ranks, request.buffers);
            Self::check(size, buffers, request.fabric, request.placement)
        });
        shortfalls.min_by_key(|shortfall| shortfall.bytes)
    }

    /// Returns the shortfall of the smallest call of a job that exceeds a GPU's memory, if any.
    pub fn check_calls(calls: &[CallGroup], fabric: &Fabric) -> Option<Self> {
        let shortfalls = calls.iter().filter_map(|call| {
            let ranks = call.devices.len() as u32;
            let buffers = buffers(call.collective, call.bytes, ranks, BufferUse::InPlace);
            Self::check(call.bytes, buffers, fabric, &call.devices)
        });
        shortfalls.min_by_key(|shortfall| shortfall.bytes)
    }

    /// Returns the shortfall of the smallest measured size that exceeds a GPU's memory. Such a size cannot have been
    /// measured on the stated GPU.
    pub fn check_measurements(measurements: &[Measurement]) -> Option<Self> {
        let shortfalls = measurements.iter().filter_map(|measurement| {
            let check_row = |bytes| {
                let buffers =
                    buffers(measurement.configuration.collective, bytes, measurement.ranks(), BufferUse::InPlace);
                Self::check(bytes, buffers, &measurement.fabric, measurement.fabric.gpus())
            };
            measurement.rows.iter().filter_map(|row| check_row(row.bytes)).min_by_key(|shortfall| shortfall.bytes)
        });
        shortfalls.min_by_key(|shortfall| shortfall.bytes)
    }

    /// Warns of the shortfall on standard error.
    pub fn warn(&self, output: &Output) {
        let Self { bytes, needed, memory, device } = self;
        output.warn(&format!(
            "a call of {bytes} needs buffers of {needed} on {device}, which has {memory}: the time assumes that they fit"
        ));
    }
}

/// Total size of a rank's input and output buffers, of which the larger has `size`.
fn buffers(collective: Collective, size: Bytes, ranks: u32, buffer_use: BufferUse) -> Bytes {
    use Collective as C;
    let other = match (buffer_use, collective) {
        (BufferUse::InPlace, _) => 0,
        (_, C::AllGather | C::ReduceScatter | C::Gather | C::Scatter) => size.0 / u64::from(ranks.max(1)),
        _ => size.0,
    };
    Bytes(size.0.saturating_add(other))
}
