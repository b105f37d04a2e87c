//! Text output of `gpu bench`: matrices of pairs, followed by one line per further measurement.

use std::fmt;

use super::{Bench, BenchPoint, Load, PointKind};

impl fmt::Display for Bench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, {}", self.machine, self.date)?;
        let rate = |kind, load| move |src, dst| self.rate(kind, load, Some(src), Some(dst));
        self.matrix("copy engine, GB/s, alone", rate(PointKind::CopyEngine, Load::Alone), f)?;
        self.matrix("thread blocks, GB/s, alone (best shape)", rate(PointKind::Blocks, Load::Alone), f)?;
        if self.probe.devices.len() > 1 {
            self.matrix("copy engine, GB/s, both directions", rate(PointKind::CopyEngine, Load::Bidirectional), f)?;
            for (title, kind) in [("flag", PointKind::Flag), ("flag with release and acquire", PointKind::OrderedFlag)]
            {
                let time = |src, dst| self.time(kind, Some(src), Some(dst));
                self.matrix(&format!("{title}, µs one way"), time, f)?;
            }
            self.write_concurrent(f)?;
        }
        self.host(f)?;
        self.launches(f)?;
        self.skipped.iter().try_for_each(|line| writeln!(f, "not measured: {line}"))
    }
}

impl Bench {
    /// Returns the points as CSV. Fields without a value are empty.
    pub fn csv(&self) -> String {
        let mut text = String::from("kind,load,src,dst,blocks,threads,bytes,time_us,fastest_us,slowest_us,gb_per_s\n");
        let number = |figure: Option<usize>| figure.map(|figure| figure.to_string()).unwrap_or_default();
        for point in &self.points {
            let BenchPoint { kind, load, src, dst, blocks, threads, bytes, time_us, fastest_us, slowest_us, gb_per_s } =
                point;
            let fields = [
                kind.name().to_owned(),
                load.name(),
                number(*src),
                number(*dst),
                number(blocks.map(|blocks| blocks as usize)),
                number(threads.map(|threads| threads as usize)),
                bytes.to_string(),
                time_us.to_string(),
                fastest_us.to_string(),
                slowest_us.to_string(),
                gb_per_s.map(|gb_per_s| gb_per_s.to_string()).unwrap_or_default(),
            ];
            text.push_str(&fields.join(","));
            text.push('\n');
        }
        text
    }

    /// Returns the time in µs of a kind, without other load, at the largest size measured. `None` if it was not
    /// measured.
    fn time(&self, kind: PointKind, src: Option<usize>, dst: Option<usize>) -> Option<f64> {
        let points = self.points_under_load(kind, Load::Alone).filter(|point| point.src == src && point.dst == dst);
        points.max_by_key(|point| point.bytes).map(|point| point.time_us)
    }

    fn matrix(
        &self,
        title: &str,
        figure: impl Fn(usize, usize) -> Option<f64>,
        f: &mut fmt::Formatter<'_>,
    ) -> fmt::Result {
        let count = self.probe.devices.len();
        writeln!(f, "{title} (row to column)")?;
        write!(f, "    ")?;
        (0..count).try_for_each(|dst| write!(f, "{dst:>8}"))?;
        writeln!(f)?;
        for src in 0..count {
            write!(f, "{src:>4}")?;
            for dst in 0..count {
                match figure(src, dst) {
                    Some(figure) if figure < 100.0 => write!(f, "{figure:>8.2}")?,
                    Some(figure) => write!(f, "{figure:>8.0}")?,
                    None => write!(f, "{:>8}", "-")?,
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }

    /// Prints the loads with several flows: the rate that each GPU sends, or receives for incast.
    fn write_concurrent(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, kind) in [("copy engine", PointKind::CopyEngine), ("thread blocks", PointKind::Blocks)] {
            let slowest = |load| {
                let points: Vec<&BenchPoint> = self.points_under_load(kind, load).collect();
                points.iter().filter_map(|point| point.gb_per_s).reduce(f64::min)
            };
            let shifts = (1..self.probe.devices.len()).filter_map(|step| slowest(Load::Shift(step)));
            if let Some(slowest) = shifts.reduce(f64::min) {
                writeln!(f, "{name}: every GPU sends to its neighbour, slowest {slowest:.0} GB/s")?;
            }
            let peer_count = self.probe.devices.len() - 1;
            if let Some(slowest) = slowest(Load::Incast) {
                let total = slowest * peer_count as f64;
                writeln!(f, "{name}: {peer_count} GPUs into one, {total:.0} GB/s in all")?;
            }
            if let Some(slowest) = slowest(Load::AllToAll) {
                let total = slowest * peer_count as f64;
                writeln!(f, "{name}: all to all, {total:.0} GB/s out of each GPU")?;
            }
        }
        Ok(())
    }

    fn host(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for device in &self.probe.devices {
            let gpu = Some(device.ordinal);
            let figure = |kind, load, src, dst| self.rate(kind, load, src, dst).unwrap_or(0.0);
            write!(
                f,
                "GPU {} and host: pinned {:.1} in, {:.1} out GB/s, pageable {:.1}, {:.1}",
                device.ordinal,
                figure(PointKind::PinnedToDevice, Load::Alone, None, gpu),
                figure(PointKind::DeviceToPinned, Load::Alone, gpu, None),
                figure(PointKind::PageableToDevice, Load::Alone, None, gpu),
                figure(PointKind::DeviceToPageable, Load::Alone, gpu, None),
            )?;
            if self.probe.devices.len() > 1 {
                write!(
                    f,
                    "; all GPUs concurrently, pinned {:.1}, {:.1}",
                    figure(PointKind::PinnedToDevice, Load::AllGpus, None, gpu),
                    figure(PointKind::DeviceToPinned, Load::AllGpus, gpu, None)
                )?;
            }
            writeln!(f)?;
        }
        Ok(())
    }

    fn launches(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.probe.devices.first() else { return Ok(()) };
        let time = |kind| self.time(kind, Some(first.ordinal), None).unwrap_or(0.0);
        writeln!(
            f,
            "launching a kernel on GPU {}: call {:.2} µs, back to back {:.2} µs, until the host sees it done {:.2} µs",
            first.ordinal,
            time(PointKind::LaunchKernelCall),
            time(PointKind::LaunchKernel),
            time(PointKind::LaunchKernelWait)
        )?;
        writeln!(
            f,
            "a graph of one kernel: call {:.2} µs, back to back {:.2} µs, until done {:.2} µs; a node of a graph {:.2} µs",
            time(PointKind::LaunchGraphCall),
            time(PointKind::LaunchGraph),
            time(PointKind::LaunchGraphWait),
            time(PointKind::GraphNode)
        )
    }
}
