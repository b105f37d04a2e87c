//! Shapes of a generated kernel that `--shape sweep` tries.

use fabricast_validate::kernel::{Carrier, GridShape, Kernel, Tiles};

/// Returns the shapes that may be the fastest.
pub(super) fn shapes(kernel: &Kernel) -> Vec<GridShape> {
    const MOST_BLOCKS: u32 = 264;
    let usual = kernel.shape(128);
    let mut shapes = vec![usual];
    // Plain vectors use more words per thread, which keeps more loads in flight. Packets and lines carry their own
    // flags and are spread more widely.
    let (unrolls, widths): ([u32; 2], &[u32]) = match kernel.carrier() {
        Carrier::Flags => ([2, 4], &[256, 512]),
        Carrier::Packets | Carrier::Lines => ([1, 2], &[128, 256, 512]),
    };
    for unroll in unrolls {
        for &threads in widths {
            for split in [usual.split / 2, usual.split, usual.split * 2] {
                let shape = GridShape { threads, split, unroll, together: 1 };
                let is_sane =
                    split > 0 && kernel.blocks(shape) <= MOST_BLOCKS && kernel.tiles(shape) >= u64::from(split);
                if !is_sane {
                    continue;
                }
                for shape in together(kernel, shape) {
                    if !shapes.contains(&shape) {
                        shapes.push(shape);
                    }
                }
            }
        }
    }
    shapes
}

/// Variants of a shape with one tile, a quarter of the tiles, and all tiles in a phase.
fn together(kernel: &Kernel, shape: GridShape) -> Vec<GridShape> {
    let most = kernel.tiles(shape).div_ceil(u64::from(shape.split.max(1))) as u32;
    let parts = match kernel.phases() {
        Tiles::Together => vec![1, most.div_ceil(4), most],
        Tiles::OneByOne => vec![1],
    };
    parts.into_iter().map(|together| GridShape { together, ..shape }).collect()
}
