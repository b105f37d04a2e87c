//! Test that answers do not allocate memory. It calls the exported functions with an allocator that counts allocations.
#![allow(unsafe_code, reason = "an allocator, and calls as C makes them")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::{c_char, c_int, c_ulong, c_void};

use nccl_tuner_fabricast::abi::Logger;
use nccl_tuner_fabricast::exports::ncclTunerPlugin_v6;

/// System allocator that counts the calls of each thread.
struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: all calls are forwarded.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    static LINES: Cell<usize> = const { Cell::new(0) };
}

/// Type of NCCL's logger with the arguments that the plugin passes: a format and a text.
type Fixed = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, *const c_char);

unsafe extern "C" fn logger(_: c_int, _: c_ulong, _: *const c_char, _: c_int, _: *const c_char, _: *const c_char) {
    LINES.set(LINES.get() + 1);
}

#[test]
fn answers_do_not_allocate_even_when_they_log() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("table.csv");
    let rows = (0..40).map(|k| {
        let (min, max) = (1_u64 << k, (2_u64 << k) - 1);
        format!("allreduce,{min},{max},nvls,simple,16,1,8\nallreduce,{min},{max},ring,ll128,{},1,8\n", 1 + k % 24)
    });
    std::fs::write(&path, rows.collect::<String>()).unwrap();
    let mut context: *mut c_void = std::ptr::null_mut();
    // SAFETY: the only test of this process; the logger is called with exactly these arguments.
    unsafe {
        std::env::set_var("FABRICAST_TUNER_FILE", &path);
        let log = std::mem::transmute::<Fixed, Logger>(logger as Fixed);
        (ncclTunerPlugin_v6.init)(&raw mut context, 1, 8, 1, Some(log), std::ptr::null_mut(), std::ptr::null_mut());
    }
    assert_eq!(LINES.get(), 1);
    let mut costs = [9.0_f32; 21];
    let before = COUNT.get();
    assert!(before > 0, "the counter counts");
    let mut answered = 0;
    for round in 0..3 {
        for bytes in (0..42).flat_map(|k| [(1_usize << k) - 1, 1 << k]) {
            for function in 0..6 {
                costs.fill(9.0);
                costs[4 * 3 + 2] = if round == 0 { 9.0 } else { -1.0 };
                let mut channels = 0;
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
                answered += usize::from(channels != 0);
            }
        }
    }
    assert_eq!(COUNT.get(), before);
    // Rows cover sizes from 1 to 2^40 − 1, queried at both ends of each row. Of the 84 sizes, 0 and three from 2^40 on
    // have no row.
    assert_eq!(answered, 3 * (2 * 40));
    // One line per row when it is first used or first found impossible, and one line per other function.
    assert_eq!(LINES.get(), 1 + 40 + 40 + 40 + 5);
    // SAFETY: finalized once.
    unsafe { (ncclTunerPlugin_v6.finalize)(context) };
}
