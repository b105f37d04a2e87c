
// A step: an operation and its memory. Every block processes its own part of the bytes and has its own signals, so
// blocks do not wait for each other.
struct Row {
    u32 kind;    // 0 send, 1 await, 2 copy, 3 reduce
    u32 peer;    // destination rank of a send
    u64 signal;  // signal of the first block, for sends and awaits: an address in this rank's heap
    u64 left;    // source of a send or copy, first operand of a reduction
    u64 right;   // second operand of a reduction
    u64 to;      // destination; for a send, the symmetric address in this rank's heap
    u64 bytes;   // size
};

// Parameters of a rank.
struct Plan {
    u64 rows;       // address of the steps
    u64 count;      // number of steps
    u64 calls;      // one word per block: number of completed calls
    u64 ready;      // one word per rank and block: last call that it has entered
    u64 senders;    // bit mask of the ranks that send to this one
    u64 receivers;  // bit mask of the ranks that this one sends to
    u64 self;       // number of this rank
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
        // An empty message is signalled as well, by the first block.
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
