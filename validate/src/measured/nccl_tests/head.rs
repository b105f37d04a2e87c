//! The lines that begin with `#` before a table: version, program, flags, devices.

use super::super::Library;
use super::super::table::{Counting, Device, Header};
use super::{collective_of, launch_of, processes_of};

/// What a line of the header is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// It begins the header of a run.
    Starts,
    /// It belongs to the header.
    Continues,
    /// It closes a table.
    Closes,
    /// Nothing that matters.
    Other,
}

/// Takes what a line (without its `#`) says into the header.
pub(super) fn take(header: &mut Header, line: &str) -> Line {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        ["nccl-tests", "version", version, rest @ ..] => {
            header.tests_version = Some((*version).to_owned());
            header.counting = Counting::Blocks;
            let code = rest.iter().find_map(|word| word.strip_prefix("nccl-library="));
            header.library = code.and_then(|code| code.parse().ok()).map(Library::nccl_of_code);
            Line::Starts
        }
        ["Collective", "test", "starting:", program, ..] => {
            header.program = Some((*program).to_owned());
            header.collective = collective_of(program);
            Line::Starts
        }
        ["nThread", threads, "nGpus", gpus, rest @ ..] => {
            header.threads = threads.parse().ok();
            header.gpus_per_thread = gpus.parse().ok();
            header.processes = header.gpus_per_thread.map(processes_of);
            // Versions that cannot launch from graphs have no such word.
            header.launch = Some(launch_of(number_after(rest, "graph:").unwrap_or(0)));
            // "iters:" also ends "warmup iters:" and "agg iters:", which have a word before it.
            header.iterations = rest
                .windows(3)
                .find(|words| words[1] == "iters:" && !matches!(words[0], "warmup" | "agg"))
                .and_then(|words| words[2].parse().ok());
            Line::Starts
        }
        ["Rank", ..] => {
            header.devices.extend(device(&words));
            Line::Continues
        }
        ["Using", "devices"] => Line::Continues,
        ["Out", "of", "bounds", "values", ..] | ["Collective", "test", "concluded:", ..] => Line::Closes,
        _ => Line::Other,
    }
}

fn number_after(words: &[&str], name: &str) -> Option<u64> {
    let at = words.iter().position(|word| *word == name)?;
    words.get(at + 1)?.parse().ok()
}

/// `Rank 0 Group 0 Pid 4822 on host device 0 [0000:00:06] NVIDIA H200`; older versions have no group.
fn device(words: &[&str]) -> Option<Device> {
    let number = |name: &str| number_after(words, name).and_then(|n| u32::try_from(n).ok());
    let host = words.iter().position(|word| *word == "on").and_then(|at| words.get(at + 1))?;
    let bus = words.iter().position(|word| word.starts_with('['))?;
    Some(Device {
        rank: number("Rank")?,
        group: number("Group").unwrap_or(0),
        pid: number("Pid").unwrap_or(0),
        host: (*host).to_owned(),
        device: number("device")?,
        model: words.get(bus + 1..).unwrap_or_default().join(" "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabricast_sim::profile::{Launch, Processes};
    use fabricast_sim::schedule::Collective;

    fn header(lines: &[&str]) -> Header {
        let mut header = Header::default();
        for line in lines {
            take(&mut header, line);
        }
        header
    }

    #[test]
    fn a_run_says_what_it_is() {
        let header = header(&[
            " nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809",
            " Collective test starting: ./build/all_gather_perf_mpi",
            " nThread 2 nGpus 1 minBytes 8 maxBytes 16 step: 2(factor) warmup iters: 10 iters: 50 agg iters: 1 validation: 0 graph: 5 unalign: 0",
            "  Rank  0 Group  0 Pid   5560 on host device  0 [0000:00:06] NVIDIA H200",
        ]);
        assert_eq!(header.collective, Some(Collective::AllGather));
        assert_eq!(header.library.as_ref().map(ToString::to_string).as_deref(), Some("nccl-2.28.9"));
        assert_eq!((header.launch, header.processes), (Some(Launch::Graph), Some(Processes::PerGpu)));
        assert_eq!((header.iterations, header.threads, header.gpus_per_thread), (Some(50), Some(2), Some(1)));
        assert_eq!(header.devices[0].model, "NVIDIA H200");
    }

    #[test]
    fn old_headers_say_less() {
        let header = header(&[
            " nThread 1 nGpus 8 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 validation: 1 ",
            "   Rank  7 Pid  1 on dgx device  7 [0xbd] Tesla V100",
        ]);
        assert_eq!((header.launch, header.processes), (Some(Launch::Stream), Some(Processes::Single)));
        assert_eq!((header.iterations, header.devices[0].rank), (Some(20), 7));
        assert_eq!((header.collective, header.library), (None, None));
    }
}
