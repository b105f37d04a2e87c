// Common code of all generated kernels. The generator defines before this text:
//   RANKS, CHANNELS: number of ranks and of channels
//   THREADS: largest number of threads of a block
//   UNROLL: words per thread and tile
//   ROWS: number of operands in the kernel parameters; 0 if they are in memory
//   ROW: length of a row if every channel has one row and all have the same body; otherwise 0
//   CARRIER: 0 packets, 1 lines, 2 flags
//   TYPE, OP: element type and reduction operation, as numbered below
//   ALIGNED: 1 if the chunks of the caller's buffers are aligned to 16 bytes
//   FLUSHES: largest number of flushes of a tile
//   GROUPED: 1 if several tiles of a block share a phase
//   RESIDENT: number of blocks that must be co-resident on a multiprocessor
//   SHARED: 1 if several ranks share this device
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char s8;
typedef int s32;
typedef long long s64;

// Parameters of a rank.
struct Params {
    u64 arena[RANKS];  // addresses of all ranks' arenas, valid on this rank's device
    u64 table;         // operand table, if the operands do not fit into the parameters
    u64 watch;         // records of blocks whose waits timed out, in host memory
    u64 patience;      // time limit of a wait, in nanoseconds
    u64 tell;          // bit mask of the ranks to signal when this rank enters a call
    u64 enter;         // bit mask of the ranks that must have entered before this one starts
    u64 close;         // bit mask of the ranks that must have entered before this one ends
    u64 self;          // number of this rank
    u64 ready;         // offset in an arena: last call that each rank has entered
    u64 ticks;         // offset in an arena: flush counters
    u64 parity;        // distance from the slots of even calls to those of odd calls, in bytes
    u64 span;          // distance from the flush counters of a call to those of the next call
    u64 counters;      // number of call counters; at least the number of blocks
    u64 split;         // number of blocks that share a channel
    u64 together;      // number of tiles of a block that share a phase
    u64 rows[ROWS > 0 ? ROWS : 1];
};

#if ROWS > 0
#define OPERAND(i) p.rows[(i)]
#else
#define OPERAND(i) (((const u64*)p.table)[(i)])
#endif

// ---- words: the unit that a thread loads and stores

#if CARRIER == 0
#define LANES 2  // 8 bytes of data and 8 of flags: a packet
#else
#define LANES 4
#endif
struct Word {
    u32 x[LANES];
};

// Offset of a word from the start of its chunk, and its width, in bytes.
struct Span {
    u64 offset;
    u32 width;
};

__device__ __forceinline__ Span span_of(u32 word) {
#if CARRIER == 0
    return Span{(u64)word * 8, 8};
#elif CARRIER == 1
    // A warp handles four lines of 128 bytes. Every eighth thread stores the flag of its line in the upper half of its
    // 16 bytes. The data of the other threads come first in the chunk, then the lower halves of these four.
    const u32 warp = word >> 5, lane = word & 31;
    const u64 base = (u64)warp * 480;
    return (lane & 7) == 7 ? Span{base + 448 + (lane >> 3) * 8, 8} : Span{base + (lane - (lane >> 3)) * 16, 16};
#else
    return Span{(u64)word * 16, 16};
#endif
}

__device__ __forceinline__ u64 pair(u32 low, u32 high) { return (u64)high << 32 | low; }

// Loads and stores the part of a word that lies inside the chunk, byte by byte: optimized for code size, not speed.
__device__ __forceinline__ void load_bytes(u64 from, u32 count, u64& low, u64& high) {
#pragma unroll 1
    for (u32 i = 0; i < count; ++i) {
        const u64 byte = (u64) * (const u8*)(from + i) << (i % 8 * 8);
        if (i < 8) low |= byte;
        else high |= byte;
    }
}
__device__ __forceinline__ void store_bytes(u64 to, u32 count, u64 low, u64 high) {
#pragma unroll 1
    for (u32 i = 0; i < count; ++i) *(u8*)(to + i) = (u8)((i < 8 ? low : high) >> (i % 8 * 8));
}
__device__ __forceinline__ u32 left(u64 bytes, Span s) {
    return s.offset >= bytes ? 0 : (u32)(bytes - s.offset < s.width ? bytes - s.offset : s.width);
}

__device__ __forceinline__ Word load(u64 base, u64 bytes, Span s) {
    Word v;
#pragma unroll
    for (int i = 0; i < LANES; ++i) v.x[i] = 0;
    if (ALIGNED && s.offset + s.width <= bytes) {
        if (LANES == 4 && s.width == 16) {
            const uint4 t = *(const uint4*)(base + s.offset);
            v.x[0] = t.x, v.x[1] = t.y, v.x[LANES - 2] = t.z, v.x[LANES - 1] = t.w;
        } else {
            const uint2 t = *(const uint2*)(base + s.offset);
            v.x[0] = t.x, v.x[1] = t.y;
        }
        return v;
    }
    u64 low = 0, high = 0;
    load_bytes(base + s.offset, left(bytes, s), low, high);
    v.x[0] = (u32)low, v.x[1] = (u32)(low >> 32);
    if (LANES == 4) v.x[LANES - 2] = (u32)high, v.x[LANES - 1] = (u32)(high >> 32);
    return v;
}

__device__ __forceinline__ void store(u64 base, u64 bytes, Span s, Word v) {
    if (ALIGNED && s.offset + s.width <= bytes) {
        if (LANES == 4 && s.width == 16) {
            *(uint4*)(base + s.offset) = make_uint4(v.x[0], v.x[1], v.x[LANES - 2], v.x[LANES - 1]);
        } else {
            *(uint2*)(base + s.offset) = make_uint2(v.x[0], v.x[1]);
        }
        return;
    }
    store_bytes(base + s.offset, left(bytes, s), pair(v.x[0], v.x[1]), pair(v.x[LANES - 2], v.x[LANES - 1]));
}

// ---- reductions: OP 0 sum, 1 product, 2 maximum, 3 minimum

template <typename T> __device__ __forceinline__ T combine(T a, T b) {
    if (OP == 0) return (T)(a + b);
    if (OP == 1) return (T)(a * b);
    if (OP == 2) return a > b ? a : b;
    return a < b ? a : b;
}
template <> __device__ __forceinline__ float combine<float>(float a, float b) {
    return OP == 0 ? a + b : OP == 1 ? a * b : OP == 2 ? fmaxf(a, b) : fminf(a, b);
}
template <> __device__ __forceinline__ double combine<double>(double a, double b) {
    return OP == 0 ? a + b : OP == 1 ? a * b : OP == 2 ? fmax(a, b) : fmin(a, b);
}

// Reduces integers narrower than 32 bits, packed in a 32-bit word.
template <typename T> __device__ __forceinline__ u32 combine_narrow(u32 a, u32 b) {
    u32 all = 0;
    const int bits = sizeof(T) * 8;
#pragma unroll
    for (int i = 0; i < 32; i += bits) {
        const T one = combine<T>((T)(a >> i), (T)(b >> i));
        all |= ((u32)one & ((1ull << bits) - 1)) << i;
    }
    return all;
}

__device__ __forceinline__ u32 combine_f16(u32 a, u32 b) {
    u32 r;
    if (OP == 0) asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    if (OP == 1) asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    if (OP == 2) asm("max.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    if (OP == 3) asm("min.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

__device__ __forceinline__ u32 combine_bf16(u32 a, u32 b) {
    u32 r;
    // GPUs before sm_90 cannot add bfloat16: the fused a·1 + b and a·b − 0 also round once.
    if (OP == 0) asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(0x3f803f80u), "r"(b));
    if (OP == 1) asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0x80008000u));
    if (OP == 2) asm("max.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    if (OP == 3) asm("min.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

#if TYPE == 4 || TYPE == 5
#if TYPE == 4
#define FP8 "e4m3x2"
#else
#define FP8 "e5m2x2"
#endif
__device__ __forceinline__ u32 combine_f8(u32 a, u32 b) {
    u32 all = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const u16 x = (u16)(a >> (16 * i)), y = (u16)(b >> (16 * i));
        u32 wide_x, wide_y;
        u16 r;
        asm("cvt.rn.f16x2." FP8 " %0, %1;" : "=r"(wide_x) : "h"(x));
        asm("cvt.rn.f16x2." FP8 " %0, %1;" : "=r"(wide_y) : "h"(y));
        asm("cvt.rn.satfinite." FP8 ".f16x2 %0, %1;" : "=h"(r) : "r"(combine_f16(wide_x, wide_y)));
        all |= (u32)r << (16 * i);
    }
    return all;
}
#endif

// TYPE: 0 f32, 1 f64, 2 f16, 3 bf16, 4 f8e4m3, 5 f8e5m2, 6 i8, 7 u8, 8 i32, 9 u32, 10 i64, 11 u64
__device__ __forceinline__ Word reduce(Word a, Word b) {
    Word r;
#if TYPE == 1 || TYPE == 10 || TYPE == 11
#pragma unroll
    for (int i = 0; i < LANES; i += 2) {
        const u64 x = pair(a.x[i], a.x[i + 1]), y = pair(b.x[i], b.x[i + 1]);
#if TYPE == 1
        const u64 z = (u64)__double_as_longlong(combine<double>(__longlong_as_double((s64)x), __longlong_as_double((s64)y)));
#elif TYPE == 10
        const u64 z = (u64)combine<s64>((s64)x, (s64)y);
#else
        const u64 z = combine<u64>(x, y);
#endif
        r.x[i] = (u32)z, r.x[i + 1] = (u32)(z >> 32);
    }
#else
#pragma unroll
    for (int i = 0; i < LANES; ++i) {
        const u32 x = a.x[i], y = b.x[i];
#if TYPE == 0
        r.x[i] = __float_as_uint(combine<float>(__uint_as_float(x), __uint_as_float(y)));
#elif TYPE == 2
        r.x[i] = combine_f16(x, y);
#elif TYPE == 3
        r.x[i] = combine_bf16(x, y);
#elif TYPE == 4 || TYPE == 5
        r.x[i] = combine_f8(x, y);
#elif TYPE == 6
        r.x[i] = combine_narrow<s8>(x, y);
#elif TYPE == 7
        r.x[i] = combine_narrow<u8>(x, y);
#elif TYPE == 8
        r.x[i] = (u32)combine<s32>((s32)x, (s32)y);
#else
        r.x[i] = combine<u32>(x, y);
#endif
    }
#endif
    return r;
}

// ---- waiting

// Position of a block in its work, and the start of its current wait.
struct Here {
    u64 call;   // number of the call, from 1
    u64 since;  // start of the wait; 0: not waiting; LOST: timed out
    u32 block;  // number of the block in its rank
    u32 item;   // number of tiles that the block has started in this call
    u32 line;   // line of the body
};
#define LOST 1

__device__ __forceinline__ u64 now() {
    u64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

// Called after every 65,536 unsuccessful polls. Returns the start of the wait, or LOST after the time limit, with a
// record of four numbers for the host.
__device__ __noinline__ u64 waiting_since(u64 since, u64 patience, u64 records, u32 line, u32 operand, u32 item) {
    if (since == LOST) return LOST;
    const u64 time = now();
    if (since == 0) return time;
    if (time - since < patience) return since;
    volatile u32* record = (volatile u32*)records;
    record[1] = line, record[2] = operand, record[3] = item;
    __threadfence_system();
    record[0] = 1;
    return LOST;
}
#define WAITING_IN_VAIN(spins, operand)                                                                              \
    (((++spins & (h.since == LOST ? 0u : 0xffffu)) == 0) &&                                                         \
     (h.since = waiting_since(h.since, p.patience, p.watch + h.block * 16, h.line, (operand), h.item)) == LOST)
#define NO_LONGER_WAITING (h.since = h.since == LOST ? LOST : 0)

__device__ __forceinline__ u64 look(u64 flag) {
    u64 v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(flag) : "memory");
    return v;
}

__device__ __forceinline__ void tell(u64 flag, u64 value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}

__device__ __forceinline__ void wait_for(const Params& p, Here& h, u64 flag, u64 value, u32 operand) {
    u32 spins = 0;
    while ((s64)(look(flag) - value) < 0) {
        if (WAITING_IN_VAIN(spins, operand)) break;
    }
    NO_LONGER_WAITING;
}

// ---- packets and lines: data with embedded flags

#if CARRIER == 0
struct Packet {
    u32 x, f, y, g;
};
__device__ __forceinline__ void send(u64 slot, u32 word, Word v, u32 flag) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(slot + (u64)word * 16), "r"(v.x[0]), "r"(flag),
                 "r"(v.x[1]), "r"(flag) : "memory");
}
__device__ __forceinline__ Packet peek(u64 slot, u32 word) {
    Packet k;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(k.x), "=r"(k.f), "=r"(k.y), "=r"(k.g) : "l"(slot + (u64)word * 16) : "memory");
    return k;
}
__device__ __forceinline__ bool is_here(Packet k, u32 flag) { return k.f == flag && k.g == flag; }
__device__ __forceinline__ Word opened(Packet k) { return Word{{k.x, k.y}}; }
#elif CARRIER == 1
struct Packet {
    u64 x, y;
};
__device__ __forceinline__ void send(u64 slot, u32 word, Word v, u32 flag) {
    const u64 high = (word & 7) == 7 ? pair(flag, flag) : pair(v.x[2], v.x[3]);
    asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(slot + (u64)word * 16), "l"(pair(v.x[0], v.x[1])),
                 "l"(high) : "memory");
}
__device__ __forceinline__ Packet peek(u64 slot, u32 word) {
    Packet k;
    asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];" : "=l"(k.x), "=l"(k.y) : "l"(slot + (u64)word * 16) : "memory");
    return k;
}
// A line has arrived when its flag has, because a warp reads a line in one access. All threads of the warp take part.
__device__ __forceinline__ bool is_here(Packet k, u32 flag) {
    return __all_sync(0xffffffffu, (threadIdx.x & 7) != 7 || k.y == pair(flag, flag));
}
__device__ __forceinline__ Word opened(Packet k) {
    return Word{{(u32)k.x, (u32)(k.x >> 32), (u32)k.y, (u32)(k.y >> 32)}};
}
#else
__device__ __forceinline__ void send(u64 slot, u32 word, Word v) {
    *(uint4*)(slot + (u64)word * 16) = make_uint4(v.x[0], v.x[1], v.x[2], v.x[3]);
}
__device__ __forceinline__ Word take(u64 slot, u32 word) {
    const uint4 t = *(const uint4*)(slot + (u64)word * 16);
    return Word{{t.x, t.y, t.z, t.w}};
}
#endif

#if CARRIER != 2
__device__ __forceinline__ Word take(const Params& p, Here& h, Packet k, u64 slot, u32 word, u32 flag, u32 operand) {
    u32 spins = 0;
    while (!is_here(k, flag)) {
        k = peek(slot, word);
        if (WAITING_IN_VAIN(spins, operand)) break;
    }
    NO_LONGER_WAITING;
    return opened(k);
}
#endif

// Value of a flag: counts calls, items of a call and flushes of an item.
__device__ __forceinline__ u64 tick(const Params& p, const Here& h, u32 flush) {
    return h.call * p.span + (u64)h.item * FLUSHES + flush + 1;
}

// ---- consecutive calls

// Programmatic dependent launch: a call may be launched while the previous one runs, which hides the launch time. Waits
// for the end of the previous call before any memory access, then permits the launch of the next call. Calls that were
// launched otherwise are not affected.
__device__ __forceinline__ void after_the_call_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// ---- tiles

// Iterates over the tiles of a block that share a phase, from `first`.
#if GROUPED
#define TOGETHER ((u32)p.together)
#define EACH_TILE for (u32 tile = first, more = TOGETHER; more > 0 && tile < tiles; tile += (u32)p.split, --more)
#else
#define TOGETHER 1u
#define EACH_TILE for (u32 tile = first, more = 1; more > 0; --more)
#endif

// Words of a thread in a tile; `on` is true for those inside the chunk, rounded up to a warp.
__device__ __forceinline__ void words_of(u32 tile, u32 words, u32 (&word)[UNROLL], bool (&on)[UNROLL]) {
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        word[u] = (tile * UNROLL + u) * blockDim.x + threadIdx.x;
        on[u] = (word[u] & ~31u) < words;
    }
}
