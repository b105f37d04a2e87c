//! Kernels of the benchmark, in CUDA C, compiled at run time.

use std::sync::Arc;

use super::BenchError;
use crate::cuda::{Context, Function, Module, compile};

/// CUDA C source of the kernels: a copy by 16-byte stores with eight outstanding loads per thread, flags exchanged by
/// two GPUs, and an empty kernel.
const SOURCE: &str = r#"
typedef unsigned long long u64;

extern "C" __global__ void put(uint4 *to, const uint4 *from, u64 count) {
    const u64 step = (u64)gridDim.x * blockDim.x;
    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    for (; at + 7 * step < count; at += 8 * step) {
        uint4 held[8];
        #pragma unroll
        for (int k = 0; k < 8; k++) held[k] = from[at + k * step];
        #pragma unroll
        for (int k = 0; k < 8; k++) to[at + k * step] = held[k];
    }
    for (; at < count; at += step) to[at] = from[at];
}

__device__ u64 nanoseconds() {
    u64 now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

/* One thread: stores to `theirs` and waits for `mine`, round by round. The first rounds are not timed. Gives up, and
   leaves 0, when the whole takes longer than `limit`. */
template <bool ORDERED>
__device__ void to_and_fro(unsigned *mine, unsigned *theirs, unsigned rounds, unsigned leads, u64 limit, u64 *spent) {
    const unsigned untimed = 32;
    const u64 begin = nanoseconds();
    u64 start = begin;
    for (unsigned round = 1; round <= untimed + rounds; round++) {
        if (leads) {
            if (ORDERED) asm volatile("st.release.sys.global.u32 [%0], %1;" :: "l"(theirs), "r"(round) : "memory");
            else asm volatile("st.relaxed.sys.global.u32 [%0], %1;" :: "l"(theirs), "r"(round) : "memory");
        }
        unsigned seen, tries = 0;
        do {
            if (ORDERED) asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(mine) : "memory");
            else asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(mine) : "memory");
            if ((++tries & 0xfff) == 0 && nanoseconds() - begin > limit) {
                *spent = 0;
                return;
            }
        } while (seen < round);
        if (!leads) {
            if (ORDERED) asm volatile("st.release.sys.global.u32 [%0], %1;" :: "l"(theirs), "r"(round) : "memory");
            else asm volatile("st.relaxed.sys.global.u32 [%0], %1;" :: "l"(theirs), "r"(round) : "memory");
        }
        if (round == untimed) start = nanoseconds();
    }
    *spent = nanoseconds() - start;
}

extern "C" __global__ void flag(unsigned *mine, unsigned *theirs, unsigned rounds, unsigned leads, u64 limit, u64 *spent) {
    to_and_fro<false>(mine, theirs, rounds, leads, limit, spent);
}

extern "C" __global__ void ordered_flag(unsigned *mine, unsigned *theirs, unsigned rounds, unsigned leads, u64 limit, u64 *spent) {
    to_and_fro<true>(mine, theirs, rounds, leads, limit, spent);
}

extern "C" __global__ void nothing() {}
"#;

/// Kernels of the benchmark, loaded on one GPU.
#[derive(Debug)]
pub(super) struct Kernels {
    /// Copy kernel. Parameters: `(to, from, count)`, with `count` in units of 16 bytes.
    pub put: Function,
    /// Flag exchange with relaxed stores and loads. Parameters: `(mine, theirs, rounds, leads, limit, spent)`: the flag
    /// of this GPU, the flag of the peer, number of round trips, 1 on the GPU that stores first, time limit in ns, and
    /// the address of the elapsed time in ns.
    pub flag: Function,
    /// Flag exchange with release stores and acquire loads. Parameters as for `flag`.
    pub ordered_flag: Function,
    /// Empty kernel, without parameters.
    pub nothing: Function,
}

impl Kernels {
    pub(super) fn load(context: &Arc<Context>) -> Result<Self, BenchError> {
        let code = compile::compile(SOURCE, context.device().arch()?, &["--std=c++17"])?;
        let module = Module::load(context, &code)?;
        Ok(Self {
            put: module.function("put")?,
            flag: module.function("flag")?,
            ordered_flag: module.function("ordered_flag")?,
            nothing: module.function("nothing")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::Arch;

    #[test]
    fn benchmark_kernels_compile() {
        match compile::version() {
            Ok(_) => {
                for arch in [80, 90, 100] {
                    compile::compile(SOURCE, Arch::new(arch), &["--std=c++17"]).unwrap();
                }
            }
            Err(error) if std::env::var_os("REQUIRE_NVRTC").is_none() => println!("skipped: {error}"),
            Err(error) => panic!("{error}"),
        }
    }
}
