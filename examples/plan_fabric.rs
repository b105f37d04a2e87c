//! Plans collectives on a fabric and prints the selected strategy of each size next to the choice of NCCL.
//!
//! ```text
//! cargo run --release --example plan_fabric
//! cargo run --release --example plan_fabric -- gb200-nvl72 36
//! ```
//!
//! The arguments are a preset or file (hgx-h200 if absent) and a number of hosts. It prints a row for each collective
//! and size, beginning with:
//!
//! ```text
//! hgx-h200 · 8 ranks · profile nccl-2.28-h200
//! collective   size  selected strategy       time µs  busbw GB/s  of peak %  nccl-2.28.9  its time µs
//! all_reduce  1 KiB  two_shot symmetric × 1     4.60       0.389         11  Ring LL            14.68
//! ```
#![allow(clippy::print_stdout, missing_docs)] // a program for people

use std::error::Error;

use fabricast_libraries::{Chooser, Conditions, Library};
use fabricast_reports::table::{Column, Table, TextOptions, Unit, Value};
use fabricast_search::candidates::Restriction;
use fabricast_search::plan::{Effort, PlanRequest, plan};
use fabricast_sim::LaunchMode;
use fabricast_sim::monitor::Monitor;
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{BufferUse, Collective};
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Bytes, FabricRequest, load};

const COLLECTIVES: [Collective; 3] = [Collective::AllReduce, Collective::AllGather, Collective::AllToAll];

const SIZES: [Bytes; 3] = [Bytes(1 << 10), Bytes(1 << 20), Bytes(1 << 30)];

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "hgx-h200".to_owned());
    let nodes = arguments.next().map(|text| text.parse::<u32>()).transpose()?;
    let fabric = load(&FabricRequest { nodes, ..FabricRequest::new(&name) })?;
    let router = Router::new(&fabric, RouteOptions::default());
    let profile = Profile::for_fabric(&fabric)?;
    let library: Library = "nccl-2.28.9".parse()?;
    let nccl = Chooser::new(library, &fabric, &router, fabric.gpus(), Conditions::default());
    let gpus_per_host = fabric.max_devices_per_host(fabric.gpus());
    let request = PlanRequest {
        fabric: &fabric,
        router: &router,
        placement: fabric.gpus(),
        profile: &profile,
        ranks_per_node: gpus_per_host,
        mode: LaunchMode { gpus_per_host, ..LaunchMode::default() },
        buffers: BufferUse::OutOfPlace,
        root: 0,
        matrix: None,
        collectives: &COLLECTIVES,
        sizes: &SIZES,
        restriction: &Restriction::default(),
        library: Some(&nccl),
        effort: Effort::Contenders,
    };
    let plan = plan(&request, Monitor::default())?;
    let mut table = Table::new(vec![
        Column::new("collective", "collective", Unit::Text),
        Column::new("bytes", "size", Unit::Bytes),
        Column::new("strategy", "selected strategy", Unit::Text),
        Column::new("time_us", "time", Unit::Micros),
        Column::new("busbw_gb_per_s", "busbw", Unit::GbPerS),
        Column::new("bound_share", "of peak", Unit::Percent),
        Column::new("library", &library.to_string(), Unit::Text),
        Column::new("library_time_us", "its time", Unit::Micros),
    ]);
    table.heading(format!("{} · {} ranks · profile {}", plan.fabric, plan.ranks, plan.profile));
    for row in &plan.rows {
        let default = row.library_default.as_ref();
        table.row(vec![
            Value::text(row.collective.name()).into(),
            Value::Bytes(row.bytes).into(),
            Value::text(row.pick.strategy.to_string()).into(),
            Value::Time(row.pick.time).into(),
            Value::Rate(row.busbw_gb_per_s(row.pick.time, plan.ranks)).into(),
            Value::Share(row.fraction_of_bound()).into(),
            Value::or_missing(default, |default| Value::text(&default.choice.name)).into(),
            Value::or_missing(default, |default| Value::Time(default.timed.time)).into(),
        ]);
    }
    print!("{}", table.text(&TextOptions::default()));
    Ok(())
}
