// A driver without GPUs: it reports some, does no work, and reports that all of it is done. Memory is the host's, and
// what is read back is zero. With STAND_IN_WRONG=n, the n-th comparison that is read, from 1, and all later ones found
// a wrong element. With STAND_IN_HANG, streams never end.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long address;

int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *count) { const char *given = getenv("STAND_IN_GPUS"); *count = given ? atoi(given) : 4; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int length, int device) { strncpy(name, "NVIDIA H200", length); return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = 150000000000ul; return 0; }
int cuDeviceGetPCIBusId(char *id, int length, int device) { strncpy(id, "0000:06:00.0", length); id[6] += device; return 0; }

// Compute capability 9.0, 132 multiprocessors; every other attribute is 1.
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 16 ? 132 : 1;
    return 0;
}
int cuDeviceCanAccessPeer(int *can, int device, int peer) { *can = 1; return 0; }
int cuDeviceGetP2PAttribute(int *value, int attribute, int from, int to) { *value = 1; return 0; }

int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(uintptr_t)(device + 1); return 0; }
int cuEventCreate(void **event, unsigned flags) { *event = (void *)1; return 0; }
int cuEventElapsedTime_v2(float *milliseconds, void *from, void *to) { *milliseconds = 1.0f; return 0; }
int cuStreamCreateWithPriority(void **stream, unsigned flags, int priority) { *stream = (void *)1; return 0; }
int cuStreamQuery(void *stream) { return getenv("STAND_IN_HANG") ? 600 : 0; }
int cuStreamEndCapture(void *stream, void **graph) { *graph = (void *)1; return 0; }
int cuGraphInstantiateWithFlags(void **executable) { *executable = (void *)1; return 0; }
int cuModuleLoadData(void **module, const void *image) { *module = (void *)1; return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) { *function = (void *)1; return 0; }
int cuFuncGetAttribute(int *value, int attribute, void *function) { *value = 32; return 0; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks) { *blocks = 2; return 0; }

static void *memory(size_t bytes) { return calloc(1, bytes + 16); }
int cuMemAlloc_v2(address *at, size_t bytes) { *at = (address)(uintptr_t)memory(bytes); return 0; }
int cuMemFree_v2(address at) { free((void *)(uintptr_t)at); return 0; }
int cuMemHostAlloc(void **at, size_t bytes, unsigned flags) { *at = memory(bytes); return 0; }
int cuMemFreeHost(void *at) { free(at); return 0; }
int cuMemHostGetDevicePointer_v2(address *device, void *at, unsigned flags) { *device = (address)(uintptr_t)at; return 0; }
int cuMemGetInfo_v2(size_t *left, size_t *all) { *left = *all = 150000000000ul; return 0; }

// The second word of the 56 bytes that record a rank's errors is the number of wrong elements.
int cuMemcpyDtoHAsync_v2(void *to, address from, size_t bytes) {
    memset(to, 0, bytes);
    static int comparisons = 0;
    const char *first_wrong = getenv("STAND_IN_WRONG");
    if (first_wrong && bytes == 56) {
        const int comparison = __atomic_add_fetch(&comparisons, 1, __ATOMIC_RELAXED);
        ((uint64_t *)to)[1] = comparison >= atoi(first_wrong);
    }
    return 0;
}
