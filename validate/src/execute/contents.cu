// Fills buffers and checks results. Elements are small integers; a table holds the bits of each in the element type, so
// that the same code fills and compares all types.
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

struct Rule {
    u64 seed;
    u32 ranks;
    u32 active;  // number of ranks that contribute values other than the neutral element
    u32 range;   // number of different values, from 0 (products: 1 or 2)
    u32 op;      // 0 sum, 1 product, 2 maximum, 3 minimum
};

__device__ u32 number(const Rule& rule, u32 rank, u64 index) {
    u64 x = rule.seed + index * 0x9e3779b97f4a7c15ull + rank * 0xd1b54a32d192ed03ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    x ^= x >> 31;
    if (rule.op == 1) return rank < rule.active ? 1 + (u32)(x & 1) : 1;
    if (rule.op == 0 && rank >= rule.active) return 0;
    return (u32)(x % rule.range);
}

// Writes the elements first, first + 1, … of a rank's input.
extern "C" __global__ void fill(u8* to, u64 first, u64 count, u32 rank, Rule rule, const u64* codes, u32 size) {
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) {
        const u64 code = codes[number(rule, rank, first + i)];
        for (u32 b = 0; b < size; ++b) to[i * size + b] = (u8)(code >> (8 * b));
    }
}

// Compares the elements at, at + 1, … of a result with the elements first, first + 1, … of the input of rank `source`,
// or of the reduction of all inputs if `source` is not a rank. `wrong[0]` is the lowest index of a wrong element,
// `wrong[1]` the number of wrong elements. The first thread that finds one sets `wrong[2]` and records its index, the
// bits found and expected, and the seed of the contents.
extern "C" __global__ void check(const u8* found, u64 at, u64 first, u64 count, u32 source, Rule rule, const u64* codes,
                                 u32 size, u64* wrong) {
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) {
        u32 value;
        if (source < rule.ranks) {
            value = number(rule, source, first + i);
        } else {
            value = number(rule, 0, first + i);
            for (u32 rank = 1; rank < rule.ranks; ++rank) {
                const u32 next = number(rule, rank, first + i);
                value = rule.op == 0 ? value + next : rule.op == 1 ? value * next : rule.op == 2 ? max(value, next) : min(value, next);
            }
        }
        u64 code = 0;
        for (u32 b = 0; b < size; ++b) code |= (u64)found[i * size + b] << (8 * b);
        if (code != codes[value]) {
            atomicMin(&wrong[0], at + i);
            atomicAdd(&wrong[1], 1ull);
            if (atomicExch(&wrong[2], 1ull) == 0) {
                wrong[3] = at + i;
                wrong[4] = code;
                wrong[5] = codes[value];
                wrong[6] = rule.seed;
            }
        }
    }
}
