"""Times groups of NCCL calls on two GPUs, and the same calls without a group; see README.md."""

import ctypes
import json
import os
import sys

import nvidia.nccl
import torch
import torch.distributed
import torch.multiprocessing

LARGEST = 16 << 20
FLOAT32 = 7
SUM = 0


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_byte * 128)]


def check(status):
    if status != 0:
        raise RuntimeError(f"NCCL returned {status}")


class Communicator:
    """Communicator of two ranks, a process each, with buffers for eight calls."""

    def __init__(self, rank):
        self.nccl = ctypes.CDLL(list(nvidia.nccl.__path__)[0] + "/lib/libnccl.so.2")
        pointer, size, integer = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        self.nccl.ncclCommInitRank.argtypes = [pointer, integer, UniqueId, integer]
        self.nccl.ncclAllReduce.argtypes = [pointer, pointer, size, integer, integer, pointer, pointer]
        self.nccl.ncclAllGather.argtypes = [pointer, pointer, size, integer, pointer, pointer]
        self.nccl.ncclReduceScatter.argtypes = [pointer, pointer, size, integer, integer, pointer, pointer]
        unique = UniqueId()
        if rank == 0:
            check(self.nccl.ncclGetUniqueId(ctypes.byref(unique)))
        shared = [bytes(unique)]
        torch.distributed.broadcast_object_list(shared, 0)
        self.handle = ctypes.c_void_p()
        check(self.nccl.ncclCommInitRank(ctypes.byref(self.handle), 2, UniqueId.from_buffer_copy(shared[0]), rank))
        self.send = torch.zeros(8 * LARGEST, dtype=torch.uint8, device="cuda")
        self.receive = torch.zeros_like(self.send)

    def call(self, number, name, size, stream):
        send = self.send.data_ptr() + number * LARGEST
        receive = self.receive.data_ptr() + number * LARGEST
        if name == "all_reduce":
            check(self.nccl.ncclAllReduce(send, receive, size // 4, FLOAT32, SUM, self.handle, stream))
        elif name == "all_gather":
            check(self.nccl.ncclAllGather(send, receive, size // 8, FLOAT32, self.handle, stream))
        else:
            check(self.nccl.ncclReduceScatter(send, receive, size // 8, FLOAT32, SUM, self.handle, stream))

    def issue(self, calls, is_group, stream):
        if is_group:
            check(self.nccl.ncclGroupStart())
        for number, (name, size) in enumerate(calls):
            self.call(number, name, size, stream)
        if is_group:
            check(self.nccl.ncclGroupEnd())

    def median_us(self, calls, is_group):
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.issue(calls, is_group, stream.cuda_stream)
        torch.cuda.synchronize()
        torch.distributed.barrier()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(10):
                self.issue(calls, is_group, stream.cuda_stream)
        times = []
        with torch.cuda.stream(stream):
            for _ in range(5):
                graph.replay()
            for _ in range(12):
                stream.synchronize()
                torch.distributed.barrier()
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record(stream)
                for _ in range(4):
                    graph.replay()
                end.record(stream)
                stream.synchronize()
                times.append(start.elapsed_time(end) * 1000 / 40)
        return sorted(times)[len(times) // 2]


def groups():
    for name in ["all_reduce", "all_gather", "reduce_scatter"]:
        for size in [4 << 10, 64 << 10, 1 << 20, LARGEST]:
            for count in [1, 2, 4, 8]:
                yield [(name, size)] * count
    for size in [64 << 10, 1 << 20, LARGEST]:
        yield [("all_reduce", size), ("all_gather", size)]
    yield [("all_reduce", 64 << 10), ("all_reduce", LARGEST)]


def measure(rank, path):
    torch.cuda.set_device(rank)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    communicator = Communicator(rank)
    rows = []
    for calls in groups():
        times = {name: communicator.median_us(calls, name == "group_us") for name in ["group_us", "separate_us"]}
        rows.append({"calls": [f"{name}:{size}" for name, size in calls], **times})
    if rank == 0:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(measure, (sys.argv[1],), 2)
