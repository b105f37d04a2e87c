
// A step: what is done with which memory. Every block does it with its own part of the bytes, so blocks need not wait for
// each other, and each has signals of its own.
struct Row {
    u32 kind;    // 0 send, 1 await, 2 copy, 3 reduce
    u32 peer;    // of a send
    u64 signal;  // of a send or an await: the first block's, in the own heap
    u64 left;    // what is sent, copied or reduced
    u64 right;   // the other operand
    u64 to;      // where to; of a send in the own heap, whose place at the peer is meant
    u64 bytes;
};

// One rank's parameters.
struct Plan {
    u64 rows;
    u64 count;
    u64 calls;      // a word for every block: calls so far
    u64 ready;      // a word for every rank and block: the call that it entered
    u64 senders;    // ranks that send to this one, a bit each
    u64 receivers;  // ranks that this one sends to
    u64 self;
};

__device__ __forceinline__ unsigned long* word_of(u64 address) { return (unsigned long*)address; }

extern "C" __global__ void __launch_bounds__(THREADS) run_kernel(const __grid_constant__ Plan p) {
    const u64 blocks = gridDim.x, block = blockIdx.x;
    const u32 t = threadIdx.x;
    const u64 call = *(volatile const u64*)(p.calls + block * 8) + 1;
    if (t < 64 && (p.senders >> t & 1)) {
        nvshmemx_signal_op(word_of(p.ready + (p.self * blocks + block) * 8), call, NVSHMEM_SIGNAL_SET, (int)t);
    }
    if (t < 64 && (p.receivers >> t & 1)) {
        nvshmem_signal_wait_until(word_of(p.ready + (t * blocks + block) * 8), NVSHMEM_CMP_GE, call);
    }
    __syncthreads();
    for (u64 i = 0; i < p.count; ++i) {
        const Row r = ((const Row*)p.rows)[i];
        const u64 words = (r.bytes + 15) / 16, each = (words + blocks - 1) / blocks;
        const u64 first = min(block * each, words), last = min(first + each, words);
        const u64 begin = first * 16, bytes = min(last * 16, r.bytes) - min(begin, r.bytes);
        // A message of nothing still comes: its first block tells.
        const bool speaks = bytes > 0 || block == 0;
        if (r.kind == 0 && speaks) {
            nvshmemx_putmem_signal_block((void*)(r.to + begin), (void*)(r.left + begin), bytes, word_of(r.signal + block * 8),
                                         call, NVSHMEM_SIGNAL_SET, (int)r.peer);
        } else if (r.kind == 1 && speaks) {
            if (t == 0) nvshmem_signal_wait_until(word_of(r.signal + block * 8), NVSHMEM_CMP_GE, call);
        } else if (r.kind == 2) {
            for (u64 word = first + t; word < last; word += blockDim.x) {
                const Span s = span_of((u32)word);
                store(r.to, r.bytes, s, load(r.left, r.bytes, s));
            }
        } else if (r.kind == 3) {
            for (u64 word = first + t; word < last; word += blockDim.x) {
                const Span s = span_of((u32)word);
                store(r.to, r.bytes, s, reduce(load(r.left, r.bytes, s), load(r.right, r.bytes, s)));
            }
        }
        __syncthreads();
    }
    if (t == 0) *(volatile u64*)(p.calls + block * 8) = call;
}
