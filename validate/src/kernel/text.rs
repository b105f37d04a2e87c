//! CUDA source of a kernel: the prelude and, for every body, a function that runs one tile.

use std::fmt::Write as _;
use std::ops::Range;

use super::Carrier;
use super::body::{CodeLine, Sizes};
use super::phases::{LineRange, Tiles, line_ranges};

/// Fixed CUDA source at the start of every kernel.
const PRELUDE: &str = include_str!("prelude.cu");

/// Maximum number of receives whose packets are polled together.
const MAX_PACKETS_PER_POLL: usize = 8;

/// Names and values of the constants defined before the prelude.
pub(super) type Constants = Vec<(&'static str, u64)>;

/// Returns the CUDA source of a kernel. The source is deterministic, and its first lines state the collective and the
/// algorithm.
pub(super) fn text(
    title: &str,
    constants: &Constants,
    bodies: &[Vec<CodeLine>],
    carrier: Carrier,
    sizes: Sizes,
    tiles: Tiles,
) -> String {
    let mut text = prelude(title, constants);
    for (number, lines) in bodies.iter().enumerate() {
        body(&mut text, number, lines, carrier, sizes, tiles);
    }
    frame(&mut text, bodies.len());
    text
}

/// Returns the source that precedes a kernel's own functions: title, constants and [`PRELUDE`].
pub(super) fn prelude(title: &str, constants: &Constants) -> String {
    let mut text = format!(
        "// {title}\n// Generated. The operand table of a rank holds addresses and sizes of the numbered operands.\n"
    );
    for (name, value) in constants {
        let _ = writeln!(text, "#define {name} {value}ull");
    }
    // The preprocessor and array bounds need numbers without a suffix.
    let mut text = text.replace("ull\n", "\n");
    text.push_str(PRELUDE);
    text
}

fn body(text: &mut String, number: usize, lines: &[CodeLine], carrier: Carrier, sizes: Sizes, tiles: Tiles) {
    let _ = write!(
        text,
        "\n__device__ __forceinline__ void body_{number}(const Params& p, Here& h, u32 row, u32 first, u32 tiles, u32 words) {{\n    \
         const u32 flag = (u32)h.call;\n    const u64 parity = (h.call & 1) * p.parity;\n    (void)tiles;\n"
    );
    for line_range in line_ranges(lines, tiles) {
        match line_range {
            LineRange::Once(i) => write_lines(text, lines, i..i + 1, carrier, sizes),
            LineRange::EachTile(range) => {
                text.push_str("    EACH_TILE {\n    u32 word[UNROLL];\n    bool on[UNROLL];\n    words_of(tile, words, word, on);\n");
                write_lines(text, lines, range, carrier, sizes);
                text.push_str("    }\n");
            }
        }
    }
    text.push_str("}\n");
}

fn write_lines(text: &mut String, lines: &[CodeLine], range: Range<usize>, carrier: Carrier, sizes: Sizes) {
    let mut i = range.start;
    while let Some(line) = lines.get(i).filter(|_| i < range.end) {
        let _ = match *line {
            CodeLine::Load { value, operand } => write!(
                text,
                "    Word v{v}[UNROLL];\n{EACH}if (on[u]) v{v}[u] = load(OPERAND(row + {operand}), OPERAND(row + {}), span_of(word[u]));\n",
                operand + 1,
                v = value.0
            ),
            CodeLine::Store { value, operand } => writeln!(
                text,
                "{EACH}if (on[u]) store(OPERAND(row + {operand}), OPERAND(row + {}), span_of(word[u]), v{}[u]);",
                operand + 1,
                value.0
            ),
            CodeLine::Send { value, operand } => {
                let flag = if carrier == Carrier::Flags { "" } else { ", flag" };
                let condition = word_condition(sizes, operand);
                writeln!(
                    text,
                    "{EACH}if ({condition}) send(OPERAND(row + {operand}) + parity, word[u], v{}[u]{flag});",
                    value.0
                )
            }
            CodeLine::Receive { .. } if carrier != Carrier::Flags => {
                let receives = lines[i..].iter().take(MAX_PACKETS_PER_POLL).map_while(|line| match *line {
                    CodeLine::Receive { value, operand } => Some((value.0, operand)),
                    _ => None,
                });
                let receives: Vec<(u32, u32)> = receives.collect();
                i += receives.len() - 1;
                write_polled_receives(text, i, &receives, sizes)
            }
            CodeLine::Receive { value, operand } => write!(
                text,
                "    Word v{v}[UNROLL];\n{EACH}if ({}) v{v}[u] = take(OPERAND(row + {operand}) + parity, word[u]);\n",
                word_condition(sizes, operand),
                v = value.0
            ),
            CodeLine::Reduce { value, left, right } => write!(
                text,
                "    Word v{v}[UNROLL];\n{EACH}v{v}[u] = reduce(v{}[u], v{}[u]);\n",
                left.0,
                right.0,
                v = value.0
            ),
            CodeLine::Token { value } => write!(text, "    Word v{v}[UNROLL];\n{EACH}v{v}[u] = Word();\n", v = value.0),
            CodeLine::Flush { flush, operand, count } => write!(
                text,
                "    __syncthreads();\n    if (threadIdx.x < {count}) tell(p.arena[OPERAND(row + {operand} + threadIdx.x)] + \
                 p.ticks + ((u64)h.block * RANKS + p.self) * 8, tick(p, h, {flush}));\n"
            ),
            CodeLine::Wait { operand, count } => write!(
                text,
                "    h.line = {i};\n    if (threadIdx.x < {count}) {{\n        const u64 one = OPERAND(row + {operand} + \
                 threadIdx.x);\n        wait_for(p, h, p.arena[p.self] + p.ticks + ((u64)h.block * RANKS + (u32)one) * 8, \
                 tick(p, h, (u32)(one >> 32)), row + {operand} + threadIdx.x);\n    }}\n    __syncthreads();\n"
            ),
        };
        i += 1;
    }
}

const EACH: &str = "#pragma unroll\n    for (int u = 0; u < UNROLL; ++u) ";

/// CUDA condition under which a word is part of a message.
fn word_condition(sizes: Sizes, operand: u32) -> String {
    match sizes {
        Sizes::Uniform => "on[u]".to_owned(),
        Sizes::Mixed => format!("on[u] && word[u] < OPERAND(row + {})", operand + 1),
    }
}

/// Writes several receives. The packets of all of them are polled once before the kernel waits for any of them.
fn write_polled_receives(text: &mut String, line: usize, receives: &[(u32, u32)], sizes: Sizes) -> std::fmt::Result {
    writeln!(text, "    h.line = {line};")?;
    for (v, operand) in receives {
        let condition = word_condition(sizes, *operand);
        write!(
            text,
            "    Word v{v}[UNROLL];\n    Packet k{v}[UNROLL];\n{EACH}if ({condition}) k{v}[u] = peek(OPERAND(row + {operand}) + parity, word[u]);\n"
        )?;
    }
    for (v, operand) in receives {
        let condition = word_condition(sizes, *operand);
        writeln!(
            text,
            "{EACH}if ({condition}) v{v}[u] = take(p, h, k{v}[u], OPERAND(row + {operand}) + parity, word[u], flag, row + {operand});"
        )?;
    }
    Ok(())
}

/// Writes the kernel function: one rank per grid, or all ranks of a device in one grid.
fn frame(text: &mut String, bodies: usize) {
    let cases = |indent: &str| {
        let mut cases = String::new();
        for number in 0..bodies {
            let _ = writeln!(cases, "{indent}case {number}: body_{number}(p, h, row, first, tiles, words); break;");
        }
        cases
    };
    let call = if bodies == 1 {
        "            body_0(p, h, row, first, tiles, words);\n".to_owned()
    } else {
        format!("                switch (number) {{\n{}                }}\n", cases("                "))
    };
    let _ = write!(
        text,
        r#"
// Runs a block's share of a call: the rows of its channel, in order. A row holds the number of its body, its numbers of
// operands and of words, and its operands. The first entries of the table are the bounds of each channel's rows.
__device__ __forceinline__ void run(const Params& p, u32 block) {{
    Here h = {{0, 0, block, 0, 0}};
    after_the_call_before();
    const u64 counter = p.arena[p.self] + (u64)block * 8;
    h.call = *(volatile const u64*)counter + 1;
    const u32 t = threadIdx.x, split = (u32)p.split, threads = blockDim.x;
    if (block == 0 && t < RANKS && (p.tell >> t & 1)) tell(p.arena[t] + p.ready + p.self * 8, h.call);
    if (p.enter) {{
        if (t < RANKS && (p.enter >> t & 1)) wait_for(p, h, p.arena[p.self] + p.ready + t * 8, h.call, t);
        __syncthreads();
    }}
    const u32 channel = CHANNELS == 1 ? 0 : block / split, part = CHANNELS == 1 ? block : block % split;
#if ROW > 0
    {{
        const u32 number = 0, at = CHANNELS + channel * ROW;
#else
    const u32 end = (u32)(OPERAND(channel) >> 32);
    for (u32 at = (u32)OPERAND(channel), next; at < end; at = next) {{
        const u64 head = OPERAND(at);
        const u32 number = (u32)head;
        next = at + 2 + (u32)(head >> 32);
#endif
        const u32 words = (u32)OPERAND(at + 1), row = at + 2;
        const u32 tiles = (words + threads * UNROLL - 1) / (threads * UNROLL);
        for (u32 first = part; first < tiles; first += split * TOGETHER, ++h.item) {{
            (void)number;
{call}        }}
    }}
    if (block == 0 && t < RANKS && (p.close >> t & 1)) wait_for(p, h, p.arena[p.self] + p.ready + t * 8, h.call, t);
    __syncthreads();
    // Kernels that share an arena may have different numbers of blocks: counters of further blocks are kept equal.
    const u64 blocks = (u64)CHANNELS * split;
    for (u64 each = block + t * blocks; each < p.counters; each += threads * blocks) {{
        *(volatile u64*)(p.arena[p.self] + each * 8) = h.call;
    }}
}}

#if SHARED
// All ranks of this device, in consecutive parts of the grid.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) run_kernel(const Params* all, u32 blocks) {{
    run(all[blockIdx.x / blocks], blockIdx.x % blocks);
}}
#else
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) run_kernel(const __grid_constant__ Params p) {{ run(p, blockIdx.x); }}
#endif
"#
    );
}
