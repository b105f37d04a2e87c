//! Shapes of a generated kernel that `--shape sweep` tries.

use fabricast_validate::kernel::{Carrier, GridShape, Kernel, Tiles};

/// Returns the shapes to try: the default shape, and shapes with other numbers of threads, words and blocks.
pub(super) fn shapes(kernel: &Kernel) -> Vec<GridShape> {
    const MAX_BLOCKS: u32 = 264;
    let default_shape = kernel.shape(128);
    let mut shapes = vec![default_shape];
    // Plain vectors use more words per thread, so that more loads are outstanding. Packets and lines contain flags and
    // are spread over more threads.
    let (unrolls, widths): ([u32; 2], &[u32]) = match kernel.carrier() {
        Carrier::Flags => ([2, 4], &[256, 512]),
        Carrier::Packets | Carrier::Lines => ([1, 2], &[128, 256, 512]),
    };
    for unroll in unrolls {
        for &threads in widths {
            for split in [default_shape.split / 2, default_shape.split, default_shape.split * 2] {
                let shape = GridShape { threads, split, unroll, tiles_per_phase: 1 };
                let is_valid =
                    split > 0 && kernel.blocks(shape) <= MAX_BLOCKS && kernel.tiles(shape) >= u64::from(split);
                if !is_valid {
                    continue;
                }
                for shape in tile_variants(kernel, shape) {
                    if !shapes.contains(&shape) {
                        shapes.push(shape);
                    }
                }
            }
        }
    }
    shapes
}

/// Variants of a shape with one tile, a quarter of the tiles, or all tiles in a phase.
fn tile_variants(kernel: &Kernel, shape: GridShape) -> Vec<GridShape> {
    let max_tiles = kernel.tiles(shape).div_ceil(u64::from(shape.split.max(1))) as u32;
    let parts = match kernel.phases() {
        Tiles::Grouped => vec![1, max_tiles.div_ceil(4), max_tiles],
        Tiles::OneByOne => vec![1],
    };
    parts.into_iter().map(|tiles_per_phase| GridShape { tiles_per_phase, ..shape }).collect()
}
