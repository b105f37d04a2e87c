"""Checks fabricast.torch on the GPUs of a host and times it next to NCCL and PyTorch's symmetric memory.

    torchrun --nproc-per-node 2 validate/torch/collectives.py FOLDER [--phases exact,series] [--budget 240] [--max-bytes 64MiB]

Results are compared bit by bit with those of NCCL, on integers and on floating-point numbers whose reductions are exact.
FOLDER receives ``collectives.jsonl``, a JSON object per line. The exit code is 1 if a result is wrong, and 3 if a phase
exceeds its time limit.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import statistics
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

# Symmetric memory is set up without NVLink multicast, which kernels do not use.
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
# The last phase ends a process on purpose.
os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory

import fabricast
from fabricast.torch import Communicator
from fabricast.torch._kernels import Unsupported
from fabricast.torch._types import REDUCIBLE, torch_operation

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
LIMITS = {"compile": 60, "exact": 60, "special": 20, "series": 50, "streams": 20, "times": 100, "windows": 50, "death": 15}
"""Phases, in order, with their time limits in seconds."""

FULL = {"f32", "bf16", "i32"}
"""Types that are checked at all sizes; the others at three."""


class Run:
    """State of a process: its rank, communicators, and the output file."""

    def __init__(self, folder: str, max_bytes: int, plan: str | None) -> None:
        self.rank = int(os.environ["RANK"])
        self.ranks = int(os.environ["WORLD_SIZE"])
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(self.device)
        dist.init_process_group("nccl", device_id=self.device)
        self.control = dist.new_group(backend="gloo")
        self.max_bytes = max_bytes
        self.start = time.monotonic()
        self.errors = 0
        os.makedirs(folder, exist_ok=True)
        self.file = open(os.path.join(folder, "collectives.jsonl"), "a", encoding="utf-8") if self.rank == 0 else None
        self.phase, self.deadline = "setup", self.start + 60
        threading.Thread(target=self._watch, daemon=True).start()
        begin = time.monotonic()
        self.plan = plan
        self.communicator = Communicator(plan=plan, max_bytes=max_bytes, timeout=10)
        self.write(
            kind="setup",
            gpu=torch.cuda.get_device_name(self.device),
            ranks=self.ranks,
            torch=torch.__version__,
            nccl=".".join(map(str, torch.cuda.nccl.version())),
            fabricast=fabricast.__version__,
            fallback_reason=self.communicator.fallback_reason,
            setup_s=round(time.monotonic() - begin, 3),
        )

    def _watch(self) -> None:
        """Ends the process if a phase hangs."""
        while time.monotonic() < self.deadline + 15:
            time.sleep(0.5)
        print(f"rank {self.rank}: phase {self.phase} hangs", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(all_threads=True)
        os._exit(3)

    def write(self, **row: object) -> None:
        if self.file is not None:
            self.file.write(json.dumps(row) + "\n")
            self.file.flush()
            if row.get("kind") not in ("time", "exact"):
                print(json.dumps(row), flush=True)

    def agree(self, value: bool) -> bool:
        """Returns the value of rank 0 on all ranks."""
        flag = torch.tensor([int(value)])
        dist.broadcast(flag, 0, group=self.control)
        return bool(flag.item())

    def in_time(self) -> bool:
        return self.agree(time.monotonic() < self.deadline)

    def total(self, value: float) -> float:
        summed = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(summed, group=self.control)
        return summed.item()

    def barrier(self) -> None:
        torch.cuda.synchronize()
        dist.barrier(group=self.control)

    def fail(self, message: str) -> None:
        self.errors += 1
        if self.errors <= 20:
            print(f"rank {self.rank}: {message}", file=sys.stderr, flush=True)


def values(elements: int, dtype: torch.dtype, op: str, generator: torch.Generator, device: torch.device) -> torch.Tensor:
    """Random values whose reductions are exact in the type, in every order."""
    if op == "prod":
        low, high = (1, 3) if dtype.is_floating_point else (0, 256)
    elif dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        low, high = 0, 2
    elif dtype.is_floating_point:
        low, high = -8, 8
    else:
        low, high = (0, 128)
    if dtype in (torch.float32, torch.float64) and op == "sum":
        low, high = -(1 << 16), 1 << 16
    numbers = torch.randint(low, high, (elements,), generator=generator, device=device, dtype=torch.int64)
    if dtype in (torch.uint32, torch.uint64):
        return numbers.view(torch.uint64) if dtype == torch.uint64 else numbers.to(torch.int32).view(torch.uint32)
    return numbers.to(dtype)


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def buffers(collective: str, elements: int, dtype: torch.dtype, op: str, run: Run, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Input, and output with other contents. ``elements``: of the larger buffer of a rank, a multiple of the ranks."""
    part = elements // run.ranks
    inputs = part if collective == "all_gather" else elements
    outputs = part if collective == "reduce_scatter" else elements
    source = values(inputs, dtype, op, generator, run.device)
    target = torch.full((outputs * source.element_size(),), 0xA5, dtype=torch.uint8, device=run.device).view(dtype)
    return source, target


def call(library: object, collective: str, source: torch.Tensor, target: torch.Tensor, op: str, root: int) -> torch.Tensor:
    """Runs a call by a communicator, or by ``torch.distributed``, and returns its result."""
    if collective in ("all_reduce", "broadcast"):
        target = raw(target)[: raw(source).numel()].view(source.dtype)
        target.copy_(source)
        if isinstance(library, Communicator):
            return library.all_reduce(target, op) if collective == "all_reduce" else library.broadcast(target, root)
        if collective == "all_reduce":
            dist.all_reduce(target, torch_operation(op))
        else:
            dist.broadcast(target, root)
        return target
    if isinstance(library, Communicator):
        if collective == "all_gather":
            return library.all_gather(target, source)
        if collective == "all_to_all":
            return library.all_to_all(target, source)
        return library.reduce_scatter(target, source, op)
    if collective == "all_gather":
        dist.all_gather_into_tensor(target, source)
    elif collective == "all_to_all":
        dist.all_to_all_single(target, source)
    else:
        dist.reduce_scatter_tensor(target, source, torch_operation(op))
    return target


def reducing(collective: str) -> bool:
    return collective in ("all_reduce", "reduce_scatter")


def cases(run: Run) -> list[tuple[str, str, str, int]]:
    """Collective, type, reduction and elements of all exact checks."""
    ranks, largest = run.ranks, run.max_bytes
    sizes = [ranks * n for n in (1, 3, 7, 16, 61, 128, 250, 1000, 1024, 4097)]
    sizes += [ranks * (4 << 10), ranks * (16 << 10), ranks * 33333, 256 << 10, 1 << 20, ranks * 1000003]
    few = [ranks * 5, ranks * 4096, ranks * 70001]
    names = {name: dtype for dtype, name in REDUCIBLE.items()}
    all_cases = []
    for collective in COLLECTIVES:
        for name, dtype in names.items():
            if not reducing(collective) and name not in ("f32", "u8"):
                continue
            if name in ("u32", "u64", "f8e4m3", "f8e5m2"):
                continue  # NCCL's bindings in PyTorch do not reduce them everywhere.
            ops = ("sum", "max") if name in FULL else ("sum",)
            ops = ops + (("min", "prod") if name in ("f32", "i32") else ())
            for op in ops if reducing(collective) else ("sum",):
                every = sizes if name in FULL and op == "sum" or name == "u8" and not reducing(collective) else few
                for elements in every:
                    if elements * dtype.itemsize <= largest:
                        all_cases.append((collective, name, op, elements))
    return all_cases


def phase_compile(run: Run) -> None:
    """Compiles the kernels of all checks on several threads; each rank compiles its part, and all read the cache."""
    if run.communicator.fallback_reason is not None:
        return
    names = {name: dtype for dtype, name in REDUCIBLE.items()}
    sources: dict[str, object] = {}
    kernels = run.communicator._kernels
    for collective, name, op, elements in cases(run):
        dtype = names[name]
        whole = collective in ("all_reduce", "broadcast")
        for in_place in (True, False) if whole else (False,):
            try:
                one = run.communicator._call(collective, dtype, op, 0, elements * dtype.itemsize, in_place)
                prepared = kernels.prepare(one)
            except Unsupported as error:
                run.write(kind="unsupported", reason=str(error))
                continue
            if in_place and prepared.writes_peer_outputs:
                continue
            # Parts of odd sizes begin at any address.
            aligned = prepared.parameters.is_aligned(0, [0] * run.ranks)
            sources.setdefault(prepared.kernel.source(aligned), (prepared, aligned))
    mine = list(sources.values())[run.rank :: run.ranks]
    begin = time.monotonic()
    with ThreadPoolExecutor(max(2, (os.cpu_count() or 4) // run.ranks)) as pool:
        list(pool.map(lambda one: one[0].kernel.compile(one[1]), mine))
    run.write(kind="compile", kernels=len(sources), compile_s=round(time.monotonic() - begin, 2))


def phase_exact(run: Run) -> None:
    """Compares single calls of all collectives, types, reductions and sizes with NCCL."""
    names = {name: dtype for dtype, name in REDUCIBLE.items()}
    generator = torch.Generator(run.device)
    generator.manual_seed(1000 + run.rank)
    checked = wrong = 0
    every = cases(run)
    random.Random(5).shuffle(every)
    for index, (collective, name, op, elements) in enumerate(every):
        if index % 20 == 0 and not run.in_time():
            break
        dtype = names[name]
        root = index % run.ranks
        source, target = buffers(collective, elements, dtype, op, run, generator)
        other = target.clone()
        kernel = run.communicator.uses_kernel(collective, elements * dtype.itemsize, dtype, op)
        ours = call(run.communicator, collective, source, target, op, root)
        reference = call(dist, collective, source, other, op, root)
        equal = torch.equal(raw(ours), raw(reference))
        checked += 1
        if not equal:
            wrong += 1
            different = (raw(ours) != raw(reference)).nonzero()
            run.fail(f"{collective} {name} {op} of {elements} elements: {different.numel()} bytes differ, first {different[0].item()}")
        run.write(kind="exact", collective=collective, dtype=name, op=op, elements=elements, kernel=kernel, equal=equal)
    torch.cuda.synchronize()
    run.communicator.check()
    run.write(kind="exact_summary", checked=checked, cases=len(every), wrong=int(run.total(wrong)))


def raises(kind: type, work: object) -> bool:
    try:
        work()
    except kind:
        return True
    return False


def phase_special(run: Run) -> None:
    """Slices, in-place calls, symmetric outputs, refused arguments and fallbacks."""
    communicator, device, ranks = run.communicator, run.device, run.ranks
    generator = torch.Generator(device)
    generator.manual_seed(7 + run.rank)
    outcome: dict[str, bool] = {}

    def same(name: str, ours: torch.Tensor, reference: torch.Tensor) -> None:
        outcome[name] = outcome.get(name, True) and torch.equal(raw(ours), raw(reference))

    for elements in (1, 5, 1000, 40001, 300007, 2000003):
        base = values(elements + 3, torch.float32, "sum", generator, device)
        ours, reference = base.clone(), base.clone()
        communicator.all_reduce(ours[1 : 1 + elements])
        dist.all_reduce(reference[1 : 1 + elements])
        same("all_reduce of a slice leaves the rest unchanged", ours, reference)
        halves = values(ranks * elements + 1, torch.bfloat16, "max", generator, device)
        ours, reference = halves[1:].clone(), halves[1:].clone()
        part = slice(run.rank * elements, (run.rank + 1) * elements)
        communicator.all_gather(ours, ours[part])
        dist.all_gather_into_tensor(reference, reference[part].clone())
        same("all_gather in place", ours, reference)
        ours, reference = halves[1:].clone(), halves[1:].clone()
        communicator.reduce_scatter(ours[part], ours, "max")
        result = torch.empty(elements, dtype=torch.bfloat16, device=device)
        dist.reduce_scatter_tensor(result, reference, dist.ReduceOp.MAX)
        same("reduce_scatter in place", ours[part], result)
    for elements in (1024, 1 << 20, 4 << 20):
        if communicator.fallback_reason is None and elements * 4 <= run.max_bytes:
            symmetric = communicator.empty(elements, dtype=torch.float32)
            for _ in range(3):
                symmetric.copy_(values(elements, torch.float32, "sum", generator, device))
                reference = symmetric.clone()
                communicator.all_reduce(symmetric)
                dist.all_reduce(reference)
                same("all_reduce in symmetric memory", symmetric, reference)
                source = values(elements // ranks, torch.float32, "sum", generator, device)
                reference = torch.empty(elements, dtype=torch.float32, device=device)
                communicator.all_gather(symmetric, source)
                dist.all_gather_into_tensor(reference, source)
                same("all_gather to symmetric memory", symmetric, reference)
    flags = values(3001, torch.int32, "max", generator, device) > 60
    reference = flags.clone()
    communicator.broadcast(flags, ranks - 1)
    dist.broadcast(reference, ranks - 1)
    same("broadcast of bool", flags, reference)
    scalar = torch.tensor(float(run.rank + 1), device=device)
    communicator.all_reduce(scalar)
    outcome["all_reduce of a scalar"] = scalar.item() == ranks * (ranks + 1) / 2
    communicator.all_reduce(torch.empty(0, device=device))
    matrix = torch.ones(8, 8, device=device)
    one = torch.ones(8, device=device)
    line = torch.ones(8 * ranks, device=device)
    outcome["non-contiguous tensors are refused"] = raises(ValueError, lambda: communicator.all_reduce(matrix.t()[:, 1:]))
    outcome["wrong shapes are refused"] = raises(ValueError, lambda: communicator.all_gather(matrix, one[:3]))
    outcome["wrong types are refused"] = raises(ValueError, lambda: communicator.all_to_all(one, one.double()))
    outcome["tensors on the CPU are refused"] = raises(ValueError, lambda: communicator.all_reduce(torch.ones(3)))
    outcome["overlapping buffers are refused"] = raises(
        ValueError, lambda: communicator.all_gather(line[: 4 * ranks], line[2:6])
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            average = torch.full((100,), float(run.rank), device=device)
            communicator.all_reduce(average, "avg")
    own = [warning for warning in caught if issubclass(warning.category, fabricast.FabricastWarning)]
    outcome["unknown reductions use NCCL, with one warning"] = (
        len(own) == (1 if communicator.fallback_reason is None else 0) and average[0].item() == (ranks - 1) / 2
    )
    torch.cuda.synchronize()
    communicator.check()
    for name, passed in outcome.items():
        if not passed:
            run.fail(name)
    run.write(kind="special", outcome=outcome)


def phase_series(run: Run, calls: int = 10000) -> None:
    """Calls of changing collectives, types, sizes and data back to back, compared with NCCL on the GPU."""
    choice = random.Random(11)
    generator = torch.Generator(run.device)
    generator.manual_seed(13 + run.rank)
    types = [("f32", torch.float32), ("bf16", torch.bfloat16), ("i32", torch.int32)]
    sizes = [run.ranks * n for n in (1, 3, 61, 128, 1000, 4097, 4 << 10, 16 << 10, 33333, 70001)]
    errors = torch.zeros((), dtype=torch.int64, device=run.device)
    sleep = random.Random(run.rank)
    done = 0
    begin = time.monotonic()
    while done < calls:
        if done % 100 == 0 and not run.in_time():
            break
        collective = choice.choice(COLLECTIVES)
        name, dtype = choice.choice(types) if reducing(collective) else types[0]
        elements, root = choice.choice(sizes), choice.randrange(run.ranks)
        source, target = buffers(collective, elements, dtype, "sum", run, generator)
        other = target.clone()
        ours = call(run.communicator, collective, source, target, "sum", root)
        reference = call(dist, collective, source, other, "sum", root)
        errors += (raw(ours) != raw(reference)).any()
        if sleep.random() < 0.01:
            time.sleep(0.002 * sleep.random())
        done += 1
    torch.cuda.synchronize()
    run.communicator.check()
    wrong = int(run.total(errors.item()))
    if wrong:
        run.fail(f"{wrong} of {done} consecutive calls are wrong")
    run.write(kind="series", calls=done, wrong=wrong, seconds=round(time.monotonic() - begin, 1))


def phase_streams(run: Run, calls: int = 400) -> None:
    """Calls that alternate between two streams, and replays of a captured graph with new data."""
    communicator, device = run.communicator, run.device
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    generator = torch.Generator(device)
    generator.manual_seed(17 + run.rank)
    errors = torch.zeros((), dtype=torch.int64, device=device)
    ready = torch.cuda.Event()
    done = 0
    for index in range(calls):
        if index % 50 == 0 and not run.in_time():
            break
        elements = (1000, 70001, 1 << 20)[index % 3]
        ours = values(elements, torch.int32, "sum", generator, device)
        reference = ours.clone()
        dist.all_reduce(reference)
        ready = torch.cuda.Event()
        ready.record()
        stream = streams[index % 2]
        with torch.cuda.stream(stream):
            stream.wait_event(ready)
            communicator.all_reduce(ours)
        torch.cuda.current_stream().wait_stream(stream)
        if index % 5 == 0:
            torch.cuda.synchronize()
        errors += (ours != reference).any()
        done += 1
    torch.cuda.synchronize()
    wrong = int(run.total(errors.item()))
    errors.zero_()
    replays = 0
    elements = (1000, 40000, 1 << 20)
    inputs = [torch.empty(n, dtype=torch.int32, device=device) for n in elements]
    outputs = [torch.empty(n, dtype=torch.int32, device=device) for n in elements]
    gathered = [torch.empty(run.ranks * n, dtype=torch.int32, device=device) for n in elements]

    def work() -> None:
        for source, target, all_of_them in zip(inputs, outputs, gathered):
            target.copy_(source)
            communicator.all_reduce(target)
            communicator.all_gather(all_of_them, target)
            target.add_(1)
            communicator.all_reduce(target, "max")

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for tensor in inputs:
            tensor.fill_(1)
        work()
    torch.cuda.current_stream().wait_stream(side)
    run.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        work()
    for _ in range(100):
        for tensor in inputs:
            tensor.copy_(values(tensor.numel(), torch.int32, "sum", generator, device))
        references = [tensor.clone() for tensor in inputs]
        graph.replay()
        for reference, target, all_of_them in zip(references, outputs, gathered):
            dist.all_reduce(reference)
            errors += (target != reference + 1).any()
            errors += (all_of_them.view(run.ranks, -1) != reference).any()
        replays += 1
        # An eager call between replays, on the same stream.
        extra = torch.full((100,), run.rank, dtype=torch.int32, device=device)
        communicator.all_reduce(extra)
        errors += (extra != run.ranks * (run.ranks - 1) // 2).any()
    torch.cuda.synchronize()
    communicator.check()
    wrong_replays = int(run.total(errors.item()))
    if wrong or wrong_replays:
        run.fail(f"two streams: {wrong} of {done} calls wrong; graphs: {wrong_replays} comparisons of {replays} replays wrong")
    run.write(kind="streams", calls=done, wrong=wrong, replays=replays, wrong_in_replays=wrong_replays)


def time_graph(run: Run, enqueue: object, reset: object, calls: int, runs: int = 5) -> list[float]:
    """Times of a call in microseconds, of the slowest rank, in several runs of a graph of ``calls`` calls."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            enqueue()
    torch.cuda.current_stream().wait_stream(side)
    run.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(calls):
            enqueue()
    times = []
    for index in range(runs + 1):
        reset()
        run.barrier()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        slowest = torch.tensor([begin.elapsed_time(end) * 1e3 / calls], dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX, group=run.control)
        if index > 0:
            times.append(slowest.item())
    return times


def contenders(run: Run, collective: str, elements: int, dtype: torch.dtype, shared: dict[str, torch.Tensor]) -> dict[str, tuple[object, object]]:
    """Implementations of a call by name: a function that enqueues it, and one that restores its data."""
    communicator, ranks = run.communicator, run.ranks
    size = elements * dtype.itemsize
    group = dist.group.WORLD.group_name

    def of(memory: torch.Tensor, count: int) -> torch.Tensor:
        return raw(memory)[: count * dtype.itemsize].view(dtype)

    part = elements // ranks
    inputs = part if collective == "all_gather" else elements
    outputs = part if collective == "reduce_scatter" else elements
    pristine, source, target = of(shared["pristine"], inputs), of(shared["input"], inputs), of(shared["output"], outputs)
    window, own_window = of(shared["window"], outputs), of(shared["torch"], elements)

    def reset() -> None:
        source.copy_(pristine)
        if collective in ("all_reduce", "broadcast"):
            window.copy_(pristine)
            own_window.copy_(pristine)

    def by(library: object, into: torch.Tensor) -> object:
        if collective == "all_reduce":
            memory = source if into is target else into
            return (lambda: library.all_reduce(memory)) if isinstance(library, Communicator) else (lambda: dist.all_reduce(memory))
        if collective == "broadcast":
            memory = source if into is target else into
            return (lambda: library.broadcast(memory)) if isinstance(library, Communicator) else (lambda: dist.broadcast(memory, 0))
        return lambda: call(library, collective, source, into, "sum", 0)

    found = {"nccl": (by(dist, target), reset)}
    if communicator.fallback_reason is None and communicator.uses_kernel(collective, size, dtype):
        found["fabricast"] = (by(communicator, target), reset)
        found["fabricast-symmetric"] = (by(communicator, window), reset)
    if collective == "all_reduce" and dtype in (torch.float32, torch.bfloat16):
        operations = torch.ops.symm_mem
        if size <= 4 << 20 and size % (16 * ranks) == 0:
            found["torch-one_shot"] = (lambda: operations.one_shot_all_reduce(own_window, "sum", group), reset)
        if size % (16 * ranks) == 0:
            found["torch-two_shot"] = (lambda: operations.two_shot_all_reduce_(own_window, "sum", group), reset)
    return found


def nccl_windows(run: Run, largest: int) -> dict[str, torch.Tensor]:
    """Buffers that NCCL's communicator has as symmetric windows; none where PyTorch cannot register them."""
    backend = dist.group.WORLD._get_backend(run.device)
    try:
        run.pool = torch.cuda.MemPool(backend.mem_allocator)
        with torch.cuda.use_mem_pool(run.pool):
            buffers = {name: torch.zeros(largest, dtype=torch.uint8, device=run.device) for name in ("input", "output")}
        backend.register_mem_pool(run.pool, symm=True)
    except (AttributeError, RuntimeError, TypeError) as error:
        run.write(kind="refused", by="nccl-windows", error=str(error).splitlines()[0])
        buffers = {}
    # All ranks make the same calls.
    return buffers if run.total(len(buffers)) == 2 * run.ranks else {}


SIZES = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
"""Bytes of the larger buffer of timed calls."""


class Times:
    """Times of the calls of a phase by collective, type, bytes and implementation."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.table: dict[tuple[str, str, int], dict[str, float]] = {}

    def measure(self, collective: str, dtype: torch.dtype, size: int, found: dict[str, tuple[object, object]]) -> None:
        """Measures implementations of a call, each from a graph."""
        calls = 100 if size <= 1 << 20 else 20
        for name, (enqueue, reset) in found.items():
            try:
                times = time_graph(self.run, enqueue, reset, calls)
            except RuntimeError as error:
                self.run.write(kind="refused", collective=collective, bytes=size, by=name, error=str(error).splitlines()[0])
                continue
            self.table.setdefault((collective, REDUCIBLE[dtype], size), {})[name] = statistics.median(times)
            self.run.write(
                kind="time",
                collective=collective,
                dtype=REDUCIBLE[dtype],
                bytes=size,
                by=name,
                median_us=round(statistics.median(times), 3),
                low_us=round(min(times), 3),
                high_us=round(max(times), 3),
                calls=calls,
            )

    def in_time(self, collective: str, dtype: torch.dtype, size: int) -> bool:
        """Returns whether the phase has time for this call, and records where it was cut."""
        if self.run.in_time():
            return True
        self.run.write(kind="cut", phase=self.run.phase, collective=collective, dtype=REDUCIBLE[dtype], bytes=size)
        return False

    def print(self, names: list[str]) -> None:
        if self.run.rank != 0:
            return
        print(f"{'us from graphs':<26} {'bytes':>10} " + " ".join(f"{name:>19}" for name in names))
        for (collective, type_name, size), row in self.table.items():
            cells = [f"{row[name]:.2f}" if name in row else "-" for name in names]
            print(f"{collective + ' ' + type_name:<26} {size:>10} " + " ".join(f"{cell:>19}" for cell in cells), flush=True)


def phase_times(run: Run) -> None:
    """Times of calls from CUDA graphs: median of five runs, with the smallest and largest."""
    sizes = [size for size in SIZES if size <= run.max_bytes]
    extra = [2 << 10, 8 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20, 32 << 20]
    extra = [size for size in extra if size <= run.max_bytes]
    plan = [("all_reduce", torch.float32, sizes), ("all_reduce", torch.bfloat16, sizes)]
    plan += [(collective, torch.float32, sizes) for collective in COLLECTIVES[1:]]
    plan += [("all_reduce", torch.float32, extra)]
    largest = run.max_bytes
    shared = {name: torch.empty(largest, dtype=torch.uint8, device=run.device) for name in ("pristine", "input", "output")}
    shared["window"] = run.communicator.empty(largest, dtype=torch.uint8)
    shared["torch"] = symmetric_memory.empty(largest, dtype=torch.uint8, device=run.device)
    symmetric_memory.rendezvous(shared["torch"], dist.group.WORLD.group_name)
    generator = torch.Generator(run.device)
    generator.manual_seed(23 + run.rank)
    times = Times(run)
    for collective, dtype, wanted in plan:
        # The sum of a hundred calls in place stays finite.
        raw(shared["pristine"]).view(dtype).uniform_(0, 1e-3, generator=generator)
        raw(shared["output"]).zero_()
        for size in wanted:
            if not times.in_time(collective, dtype, size):
                break
            times.measure(collective, dtype, size, contenders(run, collective, size // dtype.itemsize, dtype, shared))
    torch.cuda.synchronize()
    run.communicator.check()
    times.print(["fabricast", "fabricast-symmetric", "nccl", "torch-one_shot", "torch-two_shot"])


def phase_windows(run: Run) -> None:
    """Times of NCCL whose buffers are symmetric windows. Broadcasts, for which NCCL has no symmetric kernel, are left out:
    NCCL 2.28.9 does not return from one of 4 MiB in a window (two H200)."""
    largest = run.max_bytes
    buffers = nccl_windows(run, largest)
    times = Times(run)
    if not buffers:
        return
    dtype = torch.float32
    pristine = torch.empty(largest // dtype.itemsize, dtype=dtype, device=run.device).uniform_(0, 1e-3)
    for collective in COLLECTIVES[:-1]:
        for size in [size for size in SIZES if size <= largest]:
            if not times.in_time(collective, dtype, size):
                break
            part = size // run.ranks
            source = buffers["input"][: part if collective == "all_gather" else size].view(dtype)
            target = buffers["output"][: part if collective == "reduce_scatter" else size].view(dtype)

            def enqueue() -> None:
                if collective == "all_reduce":
                    dist.all_reduce(source)
                else:
                    call(dist, collective, source, target, "sum", 0)

            def reset() -> None:
                source.copy_(pristine[: source.numel()])

            times.measure(collective, dtype, size, {"nccl-windows": (enqueue, reset)})
    times.print(["nccl-windows"])


def phase_death(run: Run) -> None:
    """Ends the process of the last rank, and checks that the others raise instead of waiting forever. The last phase."""
    communicator = Communicator(plan=run.plan, max_bytes=1 << 20, timeout=1.5)
    if communicator.fallback_reason is not None:
        run.write(kind="skipped", phase="death", fallback_reason=communicator.fallback_reason)
        return
    tensor = torch.ones(1000, device=run.device)
    communicator.all_reduce(tensor)
    run.barrier()
    if run.rank == run.ranks - 1:
        os._exit(1 if run.errors else 0)
    time.sleep(1)
    begin = time.monotonic()
    communicator.all_reduce(tensor)

    def finish() -> None:
        torch.cuda.synchronize()
        communicator.check()

    raised = raises(RuntimeError, finish)
    again = raises(RuntimeError, lambda: communicator.all_reduce(tensor))
    run.write(kind="death", raised=raised, again=again, seconds=round(time.monotonic() - begin, 2))
    if not (raised and again):
        run.fail("the end of another process is not reported")


def size_of(text: str) -> int:
    for unit, factor in (("KiB", 1 << 10), ("MiB", 1 << 20)):
        if text.endswith(unit):
            return int(text[: -len(unit)]) * factor
    return int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--phases", default=",".join(LIMITS))
    parser.add_argument("--budget", type=float, default=240, help="seconds for all phases")
    parser.add_argument("--max-bytes", type=size_of, default=64 << 20)
    parser.add_argument("--plan", help="JSON document of `fabricast plan`; default: the plan for the GPU's model")
    arguments = parser.parse_args()
    run = Run(arguments.folder, arguments.max_bytes, arguments.plan)
    phases = {"compile": phase_compile, "exact": phase_exact, "special": phase_special, "series": phase_series}
    phases |= {"streams": phase_streams, "times": phase_times, "windows": phase_windows, "death": phase_death}
    for name in arguments.phases.split(","):
        remaining = arguments.budget - (time.monotonic() - run.start)
        if not run.agree(remaining > 5):
            run.write(kind="skipped", phase=name)
            continue
        run.phase = name
        run.deadline = time.monotonic() + min(LIMITS[name], remaining)
        begin = time.monotonic()
        if name != "death":
            run.barrier()
        phases[name](run)
        if name != "death":
            run.barrier()
        run.write(kind="phase", phase=name, seconds=round(time.monotonic() - begin, 1), errors=run.errors)
    # A process that ended, as in the last phase, would make an orderly shutdown wait.
    sys.stdout.flush()
    os._exit(1 if run.errors else 0)


if __name__ == "__main__":
    main()
