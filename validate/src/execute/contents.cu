// Contents of buffers, and whether results are right. Elements are small whole numbers, whose codes in the type of the
// elements stand in a table, so that every type is filled and compared alike.
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

struct Rule {
    u64 seed;
    u32 ranks;
    u32 active;  // ranks that bring more than the neutral number
    u32 range;   // numbers from 0, or from 1 for products
    u32 op;      // 0 sum, 1 product, 2 largest, 3 smallest
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

// Elements first, first + 1, … of a rank's input.
extern "C" __global__ void fill(u8* to, u64 first, u64 count, u32 rank, Rule rule, const u64* codes, u32 size) {
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) {
        const u64 code = codes[number(rule, rank, first + i)];
        for (u32 b = 0; b < size; ++b) to[i * size + b] = (u8)(code >> (8 * b));
    }
}

// Compares with the elements `first…` of `source`, or of all ranks combined where that is no rank. Of what is wrong, `wrong[0]` is
// the first place, counted from `at`, `wrong[1]` how many; who sets `wrong[2]` first notes a place, what was found there, what was
// expected and the contents' seed behind it.
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
