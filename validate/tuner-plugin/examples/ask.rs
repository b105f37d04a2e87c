//! Measures the time of a tuner answer in ns per call: `cargo run --release -p fabricast-tuner-plugin --example ask
//! [TABLE RANKS]`.
//!
//! The default table has 105 rows, one per size and collective; the plan of an 8-GPU host has about 60.
#![allow(unsafe_code, reason = "calls as C makes them")]
#![expect(clippy::print_stdout, reason = "an example prints")]

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

use nccl_tuner_fabricast::exports::ncclTunerPlugin_v6;

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let generated = std::env::temp_dir().join(format!("ask-{}.csv", std::process::id()));
    let table = arguments.next().map(PathBuf::from);
    let ranks = arguments.next().and_then(|ranks| ranks.parse().ok()).unwrap_or(8);
    if table.is_none() {
        std::fs::write(&generated, rows())?;
    }
    let context = context(table.as_deref().unwrap_or(&generated), ranks);
    for (name, function, costs) in [
        ("a row", 4, [9.0_f32; 21]),
        ("the row after one that NCCL cannot", 2, {
            let mut costs = [9.0; 21];
            costs[4 * 3 + 2] = -1.0;
            costs
        }),
        ("no row", 1, [9.0; 21]),
    ] {
        let mut times: Vec<f64> = (0..15).map(|_| nanoseconds(context, function, costs)).collect();
        times.sort_by(f64::total_cmp);
        println!(
            "{name}: {:.1} ns a call (median of {}; from {:.1} to {:.1})",
            times[7],
            times.len(),
            times[0],
            times[14]
        );
    }
    // SAFETY: finalized once, at the end.
    unsafe { (ncclTunerPlugin_v6.finalize)(context) };
    let _ = std::fs::remove_file(generated);
    Ok(())
}

fn rows() -> String {
    let row = |function: &str, strategy: &str, k: u32| {
        let (min, max) = (1_u64 << k, (2_u64 << k) - 1);
        format!("{function},{min},{max},{strategy},{},1,-1\n", 1 + k % 24)
    };
    (10..=30)
        .flat_map(|k| {
            [
                row("allreduce", "ring,ll128", k),
                row("allgather", "nvls,simple", k),
                row("allgather", "ring,simple", k),
                row("broadcast", "ring,ll", k),
                row("reducescatter", "ring,simple", k),
            ]
        })
        .collect()
}

fn context(table: &Path, ranks: usize) -> *mut c_void {
    let mut context = std::ptr::null_mut();
    // SAFETY: no other thread runs; called as by NCCL.
    unsafe {
        std::env::set_var("FABRICAST_TUNER_FILE", table);
        (ncclTunerPlugin_v6.init)(&raw mut context, 1, ranks, 1, None, std::ptr::null_mut(), std::ptr::null_mut());
    }
    context
}

fn nanoseconds(context: *mut c_void, function: c_int, costs: [f32; 21]) -> f64 {
    const CALLS: usize = 1_000_000;
    let start = Instant::now();
    for call in 0..CALLS {
        // Sizes are in pseudo-random order.
        let bytes = (call.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16) & ((1 << 31) - 1);
        let (mut costs, mut channels) = (costs, 0);
        // SAFETY: called as by NCCL.
        unsafe {
            (ncclTunerPlugin_v6.get_coll_info)(
                context,
                function,
                bytes,
                1,
                costs.as_mut_ptr().cast(),
                7,
                3,
                1,
                &raw mut channels,
            );
        }
        black_box((costs, channels));
    }
    start.elapsed().as_secs_f64() * 1e9 / CALLS as f64
}
