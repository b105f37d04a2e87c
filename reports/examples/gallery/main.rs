//! Writes one picture of each kind into a folder, for visual inspection after a change:
//! `cargo run -p fabricast-reports --example gallery -- FOLDER`. The times are invented from a latency and a rate.

mod fabrics;

use std::path::Path;

use fabricast_reports::chart::{
    self, Format, MeasuredSeries, Pick, PlanChart, PlanPoint, PredictionInterval, Strategy,
};
use fabricast_reports::topology::{self, Options};
use fabricast_topologies::{Bytes, Fabric, Picos};

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let folder = std::env::args().nth(1).ok_or("expected a folder to write into")?;
    let folder = Path::new(&folder);
    std::fs::create_dir_all(folder)?;
    for name in ["plan.svg", "plan.png"] {
        let path = folder.join(name);
        std::fs::write(&path, chart::render(&plan().figure(), Format::from_path(&path)?)?)?;
    }
    let fabrics: [(&str, Fabric); 5] = [
        ("switched", fabrics::switched()),
        ("cube-mesh", fabrics::cube_mesh()),
        ("rails", fabrics::rails()),
        ("rack", fabrics::rack()),
        ("pcie-tree", fabrics::pcie_tree()),
    ];
    for (name, fabric) in &fabrics {
        std::fs::write(folder.join(format!("{name}.svg")), topology::svg(fabric, &Options::default()))?;
        let load: Vec<f64> = (0..fabric.link_count()).map(|k| (k * 37 % 100) as f64 / 99.0).collect();
        let options = Options { utilization: Some(&load), ..Options::default() };
        std::fs::write(folder.join(format!("{name}-load.svg")), topology::svg(fabric, &options))?;
    }
    Ok(())
}

/// Strategies of the example plan: name, start-up time in µs, and bus bandwidth in GB/s at large sizes.
const STRATEGIES: [(&str, f64, f64); 12] = [
    ("one_shot symmetric · 8 ch", 4.6, 62.0),
    ("two_shot symmetric · 16 ch", 7.4, 330.0),
    ("ring simple · 24 ch", 46.0, 478.0),
    ("ring ll128 · 16 ch", 21.0, 345.0),
    ("ring ll · 8 ch", 15.5, 120.0),
    ("tree ll · 8 ch", 13.0, 96.0),
    ("tree ll128 · 16 ch", 18.0, 290.0),
    ("tree simple · 24 ch", 38.0, 402.0),
    ("two_shot copy_engine", 62.0, 366.0),
    ("one_shot simple · 8 ch", 9.0, 60.0),
    ("bruck simple · 4 ch", 33.0, 44.0),
    ("ring simple · 1 ch", 44.0, 21.0),
];

fn plan() -> PlanChart {
    const FACTOR: f64 = 1.75;
    let sizes = || (10..=30).map(|k| Bytes(1 << k));
    let time = |start: f64, rate: f64, bytes: Bytes| Picos::from_us(start + bytes.0 as f64 * FACTOR / rate / 1e3);
    let curve =
        |start, rate| sizes().map(|bytes| PlanPoint { bytes, time: time(start, rate, bytes) }).collect::<Vec<_>>();
    let strategies: Vec<Strategy> = STRATEGIES
        .iter()
        .map(|&(name, start, rate)| Strategy { name: name.to_owned(), points: curve(start, rate) })
        .collect();
    let fastest = |bytes| {
        let cost = |&(_, &(_, start, rate)): &(usize, &(&str, f64, f64))| time(start, rate, bytes);
        STRATEGIES.iter().enumerate().min_by_key(cost).map_or(0, |(number, _)| number)
    };
    let picks: Vec<Pick> = sizes().map(|bytes| Pick { bytes, strategy: fastest(bytes) }).collect();
    let picked_time =
        |pick: &Pick| STRATEGIES.get(pick.strategy).map(|&(_, start, rate)| time(start, rate, pick.bytes));
    let interval = |pick: &Pick| {
        let time = picked_time(pick)?;
        Some(PredictionInterval { bytes: pick.bytes, low: Picos(time.0 * 9 / 10), high: Picos(time.0 * 23 / 20) })
    };
    let sample = |pick: &Pick| {
        let percent = 97 + u64::from(pick.bytes.0.trailing_zeros()) * 7 % 11;
        Some(PlanPoint { bytes: pick.bytes, time: Picos(picked_time(pick)?.0 * percent / 100) })
    };
    PlanChart {
        title: "all_reduce on hgx-h200".into(),
        subtitle: "8 ranks · profile nccl-2.28-h200 · CUDA graphs · made-up figures".into(),
        bus_factor: FACTOR,
        bound: curve(1.0, 487.0),
        band: picks.iter().filter_map(interval).collect(),
        measured: Some(MeasuredSeries {
            name: "measured".into(),
            points: picks.iter().skip(4).step_by(3).filter_map(sample).collect(),
        }),
        strategies,
        picks,
        ..PlanChart::default()
    }
}
