// Headers of NVSHMEM's device library. NVRTC has no host headers, so those of libcu++ replace them.
#include <cuda/std/type_traits>
#include <cuda/std/cstdint>
namespace std {
using namespace cuda::std;
}
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <cuda/atomic>
#include <cuda/std/tuple>
#include <cooperative_groups.h>
#include <cuda_awbarrier.h>
#include <cuda_pipeline.h>
// The library's symbols are mangled with `unsigned long` for 64-bit integers, as host compilers define them.
#define uint64_t unsigned long
#define int64_t long
#include <nvshmem.h>
#include <nvshmemx.h>
#undef uint64_t
#undef int64_t

