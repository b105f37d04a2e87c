
// Computes to = left + right; each thread handles words of 16 bytes.
extern "C" __global__ void __launch_bounds__(THREADS) combine_buffers(u64 to, u64 left, u64 right, u64 bytes) {
    const u64 words = (bytes + 15) / 16, stride = (u64)gridDim.x * blockDim.x;
    for (u64 word = (u64)blockIdx.x * blockDim.x + threadIdx.x; word < words; word += stride) {
        const Span s = span_of((u32)word);
        store(to, bytes, s, reduce(load(left, bytes, s), load(right, bytes, s)));
    }
}
