//! Parser of the lines with `#` before a table: version, program, flags, devices.

use super::super::MeasuredLibrary;
use super::super::table::{Counting, Header, ListedDevice, PciBus};
use super::{launch_mode, process_layout, program_collective};

/// Kind of a header line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeaderLine {
    /// The line begins the header of a run: version, program or flags.
    Starts,
    /// The line continues the header: list of devices.
    Continues,
    /// The line ends a table: result of the checks, or conclusion of the run.
    Closes,
    /// The line is not part of a header of nccl-tests.
    Other,
}

/// Stores the properties that a line (without its `#`) states in the header, and returns the kind of the line.
pub(super) fn parse_header_line(header: &mut Header, line: &str) -> HeaderLine {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        ["nccl-tests", "version", version, rest @ ..] => {
            header.tests_version = Some((*version).to_owned());
            header.counting = Counting::Blocks;
            let code = rest.iter().find_map(|word| word.strip_prefix("nccl-library="));
            header.library = code.and_then(|code| code.parse().ok()).map(MeasuredLibrary::from_nccl_code);
            HeaderLine::Starts
        }
        ["Collective", "test", "starting:", program, ..] => {
            header.program = Some((*program).to_owned());
            header.collective = program_collective(program);
            HeaderLine::Starts
        }
        ["nThread", threads, "nGpus", gpus, rest @ ..] => {
            header.threads = threads.parse().ok();
            header.gpus_per_thread = gpus.parse().ok();
            header.processes = header.gpus_per_thread.map(process_layout);
            // Versions without support for graphs do not print this word, so a missing word means no graph.
            header.launch = Some(launch_mode(number_after(rest, "graph:").unwrap_or(0)));
            // "warmup iters:" and "agg iters:" also end with "iters:", but another word precedes it there.
            header.iterations = rest
                .windows(3)
                .find(|words| words[1] == "iters:" && !matches!(words[0], "warmup" | "agg"))
                .and_then(|words| words[2].parse().ok());
            HeaderLine::Starts
        }
        ["Rank", ..] => {
            header.devices.extend(device(&words));
            HeaderLine::Continues
        }
        ["Using", "devices"] => HeaderLine::Continues,
        ["Out", "of", "bounds", "values", ..] | ["Collective", "test", "concluded:", ..] => HeaderLine::Closes,
        _ => HeaderLine::Other,
    }
}

/// Returns true for lines (without their `#`) that nccl-tests writes, other than the header line of a table.
pub(super) fn is_known(line: &str) -> bool {
    let mut words = line.split_whitespace();
    match (words.next(), words.next()) {
        (Some("(B)"), Some("(elements)")) | (Some("out-of-place"), _) => true,
        (Some("Avg"), Some("bus")) => true,
        _ => parse_header_line(&mut Header::default(), line) != HeaderLine::Other,
    }
}

fn number_after(words: &[&str], name: &str) -> Option<u64> {
    let index = words.iter().position(|word| *word == name)?;
    words.get(index + 1)?.parse().ok()
}

/// Parses a device line, such as `Rank 0 Group 0 Pid 4822 on host device 0 [0000:00:06] NVIDIA H200`. Older versions
/// print no group. Host names may contain blanks.
fn device(words: &[&str]) -> Option<ListedDevice> {
    let index = words.iter().position(|word| *word == "on")?;
    let host_ends = words
        .windows(3)
        .rposition(|next| next[0] == "device" && next[1].parse::<u32>().is_ok() && next[2].starts_with('['))?;
    let before = words.get(..index)?;
    let number = |name: &str| number_after(before, name).and_then(|n| u32::try_from(n).ok());
    let bus = words.get(host_ends + 2..)?;
    let bus_ends = bus.iter().position(|word| word.ends_with(']')).unwrap_or(0);
    Some(ListedDevice {
        rank: number("Rank")?,
        group: number("Group").unwrap_or(0),
        pid: number("Pid").unwrap_or(0),
        host: words.get(index + 1..host_ends).filter(|host| !host.is_empty())?.join(" "),
        device: words.get(host_ends + 1)?.parse().ok()?,
        model: bus.get(bus_ends + 1..).unwrap_or_default().join(" "),
        bus: bus.first().and_then(|address| PciBus::parse(address)),
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
            parse_header_line(&mut header, line);
        }
        header
    }

    #[test]
    fn headers_name_version_program_and_devices() {
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
    fn host_names_may_contain_blanks() {
        for (name, host) in [("NODE A", "NODE A"), ("my  device 3", "my device 3"), ("on", "on")] {
            let line = format!("  Rank  3 Group  0 Pid 5 on {name} device  1 [0000:23:00] NVIDIA H100 80GB HBM3");
            let header = header(&[&line]);
            let device = &header.devices[0];
            assert_eq!((device.host.as_str(), device.device, device.rank), (host, 1, 3), "{name}");
            assert_eq!(device.model, "NVIDIA H100 80GB HBM3");
        }
    }

    #[test]
    fn old_headers_lack_version_and_graphs() {
        let header = header(&[
            " nThread 1 nGpus 8 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 validation: 1 ",
            "   Rank  7 Pid  1 on dgx device  7 [0xbd] Tesla V100",
        ]);
        assert_eq!((header.launch, header.processes), (Some(Launch::Stream), Some(Processes::Single)));
        assert_eq!((header.iterations, header.devices[0].rank), (Some(20), 7));
        assert_eq!((header.collective, header.library), (None, None));
    }
}
