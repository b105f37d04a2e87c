"""Collectives of PyTorch tensors: launches with a fake driver, and all checks where there are two GPUs."""

import contextlib
import ctypes
import json
import math
import os
import shutil
import struct
import subprocess
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import fabricast
from fabricast.torch import _driver, _kernels, _strategies, _types

ROOT = os.path.join(os.path.dirname(__file__), "..", "..")


class FakeCuda:
    """Functions of ``libcuda`` that record their arguments."""

    def __init__(self, failing=None):
        self.launches, self.modes, self.failing = [], [], failing

    def cuGetErrorString(self, code, text):
        ctypes.cast(text, ctypes.POINTER(ctypes.c_char_p))[0] = b"invalid image"
        return 0

    def cuThreadExchangeStreamCaptureMode(self, mode):
        self.modes.append(mode._obj.value)
        mode._obj.value = 0
        return 0

    def cuModuleLoadData(self, module, code):
        module._obj.value = 0x77
        return 200 if self.failing == "cuModuleLoadData" else 0

    def cuModuleGetFunction(self, function, module, name):
        assert module.value == 0x77 and name == b"run_kernel"
        function._obj.value = 0x99
        return 0

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, blocks, function, threads, shared):
        blocks._obj.value = 2
        return 0

    def cuLaunchKernelEx(self, config, function, parameters, extra):
        config = config._obj
        argument = ctypes.string_at(parameters[0], 24)
        attribute = config.attributes[0]
        self.launches.append(
            (config.grid_x, config.block_x, config.stream, config.attribute_count, attribute.id, attribute.value, function.value, argument)
        )
        return 0


def test_launch_passes_configuration_and_argument():
    cuda = FakeCuda()
    driver = _driver.Driver(cuda)
    function = driver.load(b"\x7fELF", "run_kernel")
    assert cuda.modes == [2, 0]
    assert driver.blocks_per_multiprocessor(function, 128) == 2
    argument = bytes(range(24))
    for overlap in (True, False):
        launch = _driver.Launch(function, 32, 128, argument, overlap)
        launch.enqueue(0x55)
        assert cuda.launches.pop() == (32, 128, 0x55, int(overlap), 6, 1, 0x99, argument)


def test_structures_have_the_layout_of_cuda():
    assert ctypes.sizeof(_driver._Attribute) == 72 and _driver._Attribute.value.offset == 8
    assert ctypes.sizeof(_driver._Config) == 56 and _driver._Config.stream.offset == 32


def test_driver_errors_have_the_call_and_its_text():
    with pytest.raises(RuntimeError, match="cuModuleLoadData failed: invalid image"):
        _driver.Driver(FakeCuda("cuModuleLoadData")).load(b"\x7fELF", "run_kernel")


def test_strategies_follow_the_plan():
    plan = fabricast.plan("hgx-h100", gpus=2, collective="all_reduce", profile="kernels-h100", sizes="1KiB..64MiB:4")
    strategies = _strategies.Strategies.load(plan, 2, "any GPU")
    rows = plan.document["rows"]
    for row in rows:
        found = strategies.strategy("all_reduce", row["bytes"] + 8)
        assert (found.algorithm, found.protocol, found.channels) == (row["algorithm"], row["protocol"], row["channels"])
    assert strategies.strategy("all_reduce", 4) == strategies.strategy("all_reduce", 1024)
    assert strategies.strategy("all_gather", 1024) is None
    with pytest.raises(ValueError, match="2 ranks"):
        _strategies.Strategies.load(plan, 4, "any GPU")
    with pytest.raises(ValueError, match="no measurements"):
        _strategies.Strategies.load(None, 2, "Tesla V100")


def test_files_of_a_plan_are_found_next_to_it(tmp_path, monkeypatch):
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(folder)
    shutil.copy(os.path.join(ROOT, "validate", "runs", "2026-11-28-2xh200", "here.toml"), folder)
    plan = fabricast.plan("here.toml", collective="all_reduce", profile="kernels-h100", sizes="1MiB,2MiB")
    (folder / "plan.json").write_text(json.dumps(plan.document))
    monkeypatch.chdir(elsewhere)
    strategies = _strategies.Strategies.load(folder / "plan.json", 2, "any GPU")
    strategy = strategies.strategy("all_reduce", 1 << 20)._replace(algorithm="ring", protocol="symmetric", channels=8)
    call = _strategies.Call("all_reduce", 1 << 20, "f32", "sum", 0, True)
    assert strategies.kernel(call, strategy, 132, 90).blocks > 0
    for text in ("[]", "{}", '{"format": "fabricast-plan/1"}'):
        (folder / "other.json").write_text(text)
        with pytest.raises(ValueError, match="no document"):
            _strategies.Strategies.load(str(folder / "other.json"), 2, "any GPU")


@pytest.mark.parametrize("collective", _strategies.COLLECTIVES)
def test_kernels_exist_for_odd_sizes_of_every_collective(collective, monkeypatch):
    properties = SimpleNamespace(multi_processor_count=132, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    plan = fabricast.plan("hgx-h100", gpus=2, collective=collective, profile="kernels-h100", sizes="1KiB..64MiB:8")
    strategies = _strategies.Strategies.load(plan, 2, "any GPU")
    arena = fabricast._fabricast.KernelArena(2, 64 << 20)
    for size in (2, 24, 1000, 1026, 100_002, 2_000_006, 30_000_002):
        strategy = strategies.strategy(collective, size)
        if strategy.is_library:
            continue
        for in_place in (False, True):
            call = _strategies.Call(collective, size, "u8", "sum", 0, in_place)
            kernels = _kernels.Kernels(strategies, None, None, 1, 2, arena, True)
            assert kernels.prepare(call).kernel.blocks <= 256


def test_reductions_have_one_name():
    assert _types.operation_name("sum") == "sum"
    assert _types.operation_name(torch.distributed.ReduceOp.MAX) == "max"
    assert _types.operation_name(torch.distributed.ReduceOp.AVG) is None
    assert _types.torch_operation("avg") == torch.distributed.ReduceOp.AVG
    with pytest.raises(ValueError, match="no reduction"):
        _types.torch_operation("median")


class RecordedLaunch(_driver.Launch):
    """Launch that records its whole argument as 64-bit numbers."""

    def __init__(self, function, blocks, threads, argument, overlap):
        super().__init__(function, blocks, threads, argument, overlap)
        self._numbers = struct.unpack(f"{len(argument) // 8}Q", argument)
        self._cuda = function._driver._library

    def enqueue(self, stream):
        super().enqueue(stream)
        self._cuda.numbers = self._numbers


class FakeStream:
    def __init__(self, handle):
        self.cuda_stream, self.waits = handle, []

    def wait_stream(self, other):
        self.waits.append(other.cuda_stream)


@pytest.fixture
def communicator(monkeypatch):
    """Rank 1 of two on a fake GPU: tensors are on the CPU, and launches are recorded but not run."""
    from fabricast.torch import _agreement, _communicator, _memory

    cuda = FakeCuda()
    properties = SimpleNamespace(multi_processor_count=132, major=9, minor=0, uuid="GPU-1")
    streams = [FakeStream(0x55)]
    for name, value in {
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "get_device_name": lambda device: "NVIDIA H100 80GB HBM3",
        "get_device_properties": lambda device: properties,
        "get_device_capability": lambda device: (9, 0),
        "synchronize": lambda device=None: None,
        "device": lambda device: contextlib.nullcontext(),
        "stream": lambda stream: contextlib.nullcontext(),
        "current_stream": lambda device=None: streams[-1],
        "is_current_stream_capturing": lambda: False,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    group = SimpleNamespace(group_name="fake")
    monkeypatch.setattr(torch.distributed, "get_rank", lambda group=None: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group=None: 2)

    def gather(states, mine, group=None):
        other = (*mine[:2], "GPU-0", *mine[3:]) if isinstance(mine, tuple) else mine
        states[:] = [other, mine]

    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    monkeypatch.setattr(_agreement, "preload_compiler", lambda: None)
    monkeypatch.setattr(_communicator, "Driver", lambda: _driver.Driver(cuda))
    monkeypatch.setattr(_kernels.Kernels, "compile", lambda self, prepared, aligned: self._driver.load(b"\x7fELF", "run_kernel"))
    monkeypatch.setattr(_kernels, "Launch", RecordedLaunch)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)

    def allocate(group, size, dtype, device):
        memory = torch.zeros(math.prod(size) * dtype.itemsize + 512, dtype=torch.uint8)
        start = -memory.data_ptr() % 512
        tensor = memory[start : start + math.prod(size) * dtype.itemsize].view(dtype).view(size)
        return _memory.SymmetricTensor(tensor, tensor.data_ptr(), (0x7000_0000_0000, tensor.data_ptr()))

    monkeypatch.setattr(_communicator, "allocate", allocate)
    one = _communicator.Communicator(group, max_bytes=32 << 20, timeout=2)
    assert one.fallback_reason is None
    one.device = torch.device("cpu")
    one.cuda, one.streams = cuda, streams
    return one


def test_small_calls_use_the_memory_of_the_tensor(communicator, recwarn):
    tensor = torch.ones(1000)
    for call in (lambda: communicator.all_reduce(tensor), lambda: communicator.broadcast(tensor, 1)):
        call()
        blocks, threads, stream, count, *_ = communicator.cuda.launches.pop()
        assert stream == 0x55 and count == 1
        numbers = communicator.cuda.numbers
        assert numbers[0] == 0x7000_0000_0000 and numbers[1] == communicator._arena.start
        assert any(tensor.data_ptr() <= number < tensor.data_ptr() + 4000 for number in numbers)
    output = torch.ones(2000)
    for call in (
        lambda: communicator.all_gather(output, tensor),
        lambda: communicator.reduce_scatter(tensor, output, "max"),
        lambda: communicator.all_to_all(output, output.clone()),
        lambda: communicator.all_gather(output, output[1000:]),
        lambda: communicator.reduce_scatter(output[1000:], output),
    ):
        call()
        assert len(communicator.cuda.launches) == 1
        communicator.cuda.launches.clear()
    assert not recwarn.list


def test_large_calls_are_staged_unless_their_output_is_symmetric(communicator):
    tensor = torch.ones(8 << 20 >> 2)
    communicator._stage.tensor.fill_(3)
    gathered = torch.zeros(2 * tensor.numel())
    communicator.all_gather(gathered, tensor)
    assert len(communicator.cuda.launches) == 1
    assert (gathered.view(torch.uint8) == 3).all()
    symmetric = communicator.empty(2 * tensor.numel())
    communicator.all_gather(symmetric, tensor)
    assert (symmetric == 0).all()
    numbers = communicator.cuda.numbers[16:]
    assert any(0x7000_0000_0000 <= number < 0x7000_0000_0000 + (16 << 20) for number in numbers)
    assert not any(communicator._stage.start <= number < communicator._stage.start + (16 << 20) for number in numbers)


def test_receivers_of_staged_broadcasts_copy_the_data(communicator):
    tensor = torch.ones(8 << 20 >> 2)
    communicator._stage.tensor.fill_(3)
    communicator.broadcast(tensor, root=communicator.rank)
    assert (tensor == 1).all()
    communicator.broadcast(tensor, root=1 - communicator.rank)
    assert (tensor.view(torch.uint8) == 3).all()


def test_other_streams_wait_for_the_previous_call(communicator):
    tensor = torch.ones(1000)
    communicator.all_reduce(tensor)
    communicator.streams.append(FakeStream(0x66))
    communicator.all_reduce(tensor)
    communicator.all_reduce(tensor)
    assert communicator.streams[-1].waits == [0x55]
    assert [launch[2] for launch in communicator.cuda.launches] == [0x55, 0x66, 0x66]


def test_calls_that_kernels_do_not_run_are_passed_on_with_one_warning(communicator, monkeypatch):
    calls = []
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor, op, group: calls.append(op))
    for work, message in [
        (lambda: communicator.all_reduce(torch.ones(100), "avg"), "reduction avg"),
        (lambda: communicator.all_reduce(torch.ones(100, dtype=torch.int16)), "torch.int16"),
        (lambda: communicator.all_reduce(torch.ones(10 << 20)), "max_bytes"),
    ]:
        with pytest.warns(fabricast.FabricastWarning, match=message) as caught:
            work()
            work()
        assert len(caught) == 1
    assert len(calls) == 6 and not communicator.cuda.launches


def test_wrong_tensors_are_refused(communicator):
    matrix, line = torch.ones(8, 8), torch.ones(16)
    for work, message in [
        (lambda: communicator.all_reduce(matrix.t()[:, 1:]), "contiguous"),
        (lambda: communicator.all_reduce(torch.ones(3, device="meta")), "meta"),
        (lambda: communicator.all_gather(matrix, line[:3]), "do not fit"),
        (lambda: communicator.reduce_scatter(line[:9], line), "do not fit"),
        (lambda: communicator.all_to_all(line, line.double()), "float64"),
        (lambda: communicator.all_to_all(torch.ones(3), torch.ones(3)), "divided"),
        (lambda: communicator.all_gather(line[:8], line[2:6]), "overlap"),
        (lambda: communicator.broadcast(line, 2), "no rank 2"),
    ]:
        with pytest.raises(ValueError, match=message):
            work()
    assert not communicator.cuda.launches
    communicator.all_reduce(torch.ones(0))
    assert not communicator.cuda.launches


def test_expired_waits_raise(communicator):
    communicator.check()
    communicator._records.view(torch.int32)[4 * 3 : 4 * 3 + 4] = torch.tensor([1, 5, 6, 7], dtype=torch.int32)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="block 3, operand 6, tile 7"):
            communicator.all_reduce(torch.ones(4))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two GPUs")
def test_results_equal_those_of_nccl(tmp_path):
    script = os.path.join(ROOT, "validate", "torch", "collectives.py")
    phases = "compile,exact,special,series,streams,death"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script, str(tmp_path)]
    run = subprocess.run([*command, "--phases", phases], capture_output=True, text=True, timeout=400)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
