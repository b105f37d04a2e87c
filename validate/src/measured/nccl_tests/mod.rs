//! Logs of nccl-tests, as text and as JSON.

pub(super) mod json;
pub(super) mod rccl_json;
pub(super) mod text;

mod columns;
mod head;
#[cfg(test)]
mod json_tests;
mod messages;
mod prefix;
mod runs;
#[cfg(test)]
mod stored_tests;
#[cfg(test)]
mod text_tests;

use fabricast_sim::profile::{Launch, Processes};
use fabricast_sim::schedule::Collective;

use super::table::{Clock, Header, Table};
use super::{LibraryName, MeasuredLibrary, Reason, size_rule};
use fabricast_topologies::gpus::name::is_amd;

/// Collective that an nccl-tests program measures, from the program's name or path.
fn program_collective(program: &str) -> Option<Collective> {
    let name = program.rsplit('/').next().unwrap_or(program);
    name.strip_suffix("_mpi").unwrap_or(name).parse().ok()
}

/// Launch mode, from the number of launches captured in a graph (`-G`).
fn launch_mode(graph: u64) -> Launch {
    if graph == 0 { Launch::Stream } else { Launch::Graph }
}

/// Process layout, from the number of GPUs per thread.
fn process_layout(gpus_per_thread: u32) -> Processes {
    if gpus_per_thread > 1 { Processes::Single } else { Processes::PerGpu }
}

/// Number of ranks of the communicator, from the listed devices. If the ranks are split into groups, the size of the
/// first group is returned. If a process's list is truncated, its number of threads and GPUs per thread determine its
/// number of ranks.
fn count_ranks(header: &Header) -> Option<u32> {
    let groups = header.devices.iter().any(|device| device.group > 0);
    if groups {
        let first = header.devices.iter().map(|device| device.group).min()?;
        return u32::try_from(header.devices.iter().filter(|device| device.group == first).count()).ok();
    }
    let listed = header.devices.iter().map(|device| device.rank).max()?.checked_add(1)?;
    match (header.threads, header.gpus_per_thread) {
        (Some(threads), Some(gpus)) => listed.checked_next_multiple_of(threads.checked_mul(gpus)?.max(1)),
        _ => Some(listed),
    }
}

/// Infers the collective and the number of ranks of a finished table if they are missing, then rejects rows that
/// contradict its header.
fn check(table: &mut Table) {
    table.infer(None, None);
    // rccl-tests is a fork of nccl-tests and does not always state its name, so AMD GPUs identify it.
    if table.header.devices.iter().any(|device| is_amd(&device.model)) {
        let header = &mut table.header;
        let version = header.library.take().filter(|library| library.name == LibraryName::Rccl);
        header.library = Some(version.unwrap_or(MeasuredLibrary { name: LibraryName::Rccl, version: String::new() }));
    }
    if let (None, Some(program)) = (table.header.collective, table.header.program.clone()) {
        table.reject(|_| Some(Reason::UnknownTest(program.clone())));
    }
    table.reject(|row| {
        let timing = row.out_of_place.or(row.in_place);
        timing.is_some_and(|timing| timing.clock == Clock::Cpu).then_some(Reason::CpuTime)
    });
    match (table.header.collective, table.header.ranks) {
        (Some(collective), Some(ranks)) if table.header.separate_runs.is_none() => table.check_sizes(collective, ranks),
        _ => table.reject(size_rule::violation_for_any_collective),
    }
}
