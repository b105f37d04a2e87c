"""Communicator: collectives of the processes of a group."""

from __future__ import annotations

import ctypes
import torch
import torch.distributed as dist

from .. import _fabricast
from .._result import FabricastError, warn
from ._agreement import all_succeeded, preload_compiler, reason_for_fallback
from ._driver import Driver
from ._kernels import Kernels, Unsupported
from ._memory import SymmetricTensor, allocate
from ._strategies import Call, PlanType, Strategies
from ._types import REDUCIBLE, operation_name, torch_operation

_RECORD_BYTES = 16


class Communicator:
    """Collectives of a process group by generated kernels, one process per GPU of a host.

    Calls are enqueued on the current stream and may be captured in CUDA graphs. As with NCCL, all ranks must make the same
    calls in the same order. Calls run one after another, also those on several streams. The ranks must replay graphs in the
    same order as well, and replays and other calls of a communicator must not overlap: put them on one stream, or order
    them by events. Graphs use the communicator's memory, so it must outlive them.

    A call is passed to ``torch.distributed`` if the plan selects the library, if kernels do not know the type or the
    reduction, if it exceeds ``max_bytes``, or if the group cannot run kernels at all. Each reason is a
    :class:`~fabricast.FabricastWarning`, once.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        plan: PlanType | None = None,
        *,
        max_bytes: int = 64 << 20,
        timeout: float = 600.0,
        overlap: bool = True,
    ) -> None:
        """Sets up the group, collectively with all of its ranks, which pass the same values.

        Args:
            group: Process group of the backend NCCL; default: all processes.
            plan: Strategies by collective and size: a result of :func:`fabricast.plan`, or the path of its JSON document.
                Without a plan, one is made for the GPU model where its kernels were measured (H100, H200).
            max_bytes: Largest call that kernels run. Each rank allocates about three times this size in symmetric memory.
            timeout: Time limit in seconds of each wait for other ranks. After a wait that exceeds the limit, results are
                undefined, and the next call raises.
            overlap: Permits the launch of a call while the previous kernel of the stream ends.

        Raises:
            ValueError: ``plan`` is no plan for this number of ranks.
            OSError: ``plan`` cannot be read.
        """
        self.group: dist.ProcessGroup = dist.group.WORLD if group is None else group
        self.rank: int = dist.get_rank(self.group)
        """Rank of this process in the group."""
        self.size: int = dist.get_world_size(self.group)
        """Number of ranks."""
        self.device = torch.device("cuda", torch.cuda.current_device())
        """GPU of this process: the current one when the communicator is made."""
        self.fallback_reason: str | None = None
        """Reason why no call runs by kernels; ``None`` if they do."""
        self._max_bytes = max_bytes
        self._warned: set[str] = set()
        self._symmetric: list[SymmetricTensor] = []
        self._stream: torch.cuda.Stream | None = None
        self._error: str | None = None
        strategies, reason = None, None
        name = torch.cuda.get_device_name(self.device)
        try:
            strategies = Strategies.load(plan, self.size, name)
        except (ValueError, FabricastError) as error:
            if plan is not None:
                raise
            reason = str(error)
        self._set_up(strategies, reason, timeout, overlap)
        if self.fallback_reason is not None:
            self._warn(f"no kernels: {self.fallback_reason}; all calls use torch.distributed")

    def _set_up(self, strategies: Strategies | None, reason: str | None, timeout: float, overlap: bool) -> None:
        arena = _fabricast.KernelArena(self.size, self._max_bytes)
        kernels = None
        if self.size == 1:
            reason = "the group has one rank"
        if strategies is not None and reason is None:
            try:
                preload_compiler()
                kernels = Kernels(strategies, Driver(), self.device, self.rank, self.size, arena, overlap)
                # Finds a missing compiler now, when the ranks can still agree.
                kernels.compile(kernels.prepare(Call("all_reduce", 1024 * self.size, "f32", "sum", 0, True)), True)
            except Unsupported:
                pass
            except (OSError, RuntimeError, FabricastError) as error:
                reason = str(error)
        settings = (strategies.key() if strategies is not None else None, self._max_bytes, timeout)
        self.fallback_reason = reason_for_fallback(self.group, self.device, reason, settings)
        if self.fallback_reason is not None or kernels is None:
            return
        error_text = None
        try:
            self._arena = allocate(self.group, (arena.bytes,), torch.uint8, self.device)
            self._stage = allocate(self.group, (max(self._max_bytes, 1),), torch.uint8, self.device)
            if any(address % 512 for address in self._arena.peers):
                error_text = "symmetric memory is not aligned to 512 bytes"
            self._records = torch.zeros(arena.blocks * _RECORD_BYTES, dtype=torch.uint8).pin_memory()
        except RuntimeError as error:
            error_text = f"symmetric memory: {str(error).splitlines()[0]}"
        self.fallback_reason = all_succeeded(self.group, error_text)
        if self.fallback_reason is None:
            kernels.arenas = self._arena.peers
            kernels.records = self._records.data_ptr()
            kernels.time_limit_ns = int(timeout * 1e9)
            self._records_address = kernels.records
            self._no_records = bytes(self._records.numel())
            self._kernels = kernels

    # ---- collectives

    def all_reduce(self, tensor: torch.Tensor, op: object = "sum") -> torch.Tensor:
        """Reduces the tensors of all ranks, in place, and returns the tensor.

        Args:
            tensor: Contiguous tensor on this rank's GPU, of the same shape and type on all ranks.
            op: ``"sum"``, ``"prod"``, ``"max"``, ``"min"`` or a ``torch.distributed.ReduceOp``.

        Raises:
            ValueError: The tensor is not contiguous, or on another device.
            RuntimeError: A wait of a previous call exceeded the time limit.
        """
        self._check_tensor(tensor)
        if not self._run("all_reduce", tensor, tensor, op, 0, _bytes(tensor), True):
            dist.all_reduce(tensor, torch_operation(op), group=self.group)
        return tensor

    def all_gather(self, output: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
        """Gathers the inputs of all ranks, in rank order, and returns the output.

        Args:
            output: Contiguous tensor with as many elements as all inputs.
            input: Contiguous tensor. It may be this rank's part of the output.

        Raises:
            ValueError: A tensor is not contiguous, on another device, or of the wrong type or size.
            RuntimeError: A wait of a previous call exceeded the time limit.
        """
        self._check_pair(output, input, output.numel(), self.size * input.numel())
        in_place = self._is_own_part(input, output)
        if not self._run("all_gather", input, output, None, 0, _bytes(output), in_place):
            dist.all_gather_into_tensor(output, input, group=self.group)
        return output

    def reduce_scatter(self, output: torch.Tensor, input: torch.Tensor, op: object = "sum") -> torch.Tensor:
        """Reduces the inputs of all ranks, of which each rank receives its part, and returns the output.

        Args:
            output: Contiguous tensor. It may be this rank's part of the input.
            input: Contiguous tensor with a part for each rank, in rank order, of as many elements as the output.
            op: As for :meth:`all_reduce`.

        Raises:
            ValueError: A tensor is not contiguous, on another device, or of the wrong type or size.
            RuntimeError: A wait of a previous call exceeded the time limit.
        """
        self._check_pair(output, input, input.numel(), self.size * output.numel())
        in_place = self._is_own_part(output, input)
        if not self._run("reduce_scatter", input, output, op, 0, _bytes(input), in_place):
            dist.reduce_scatter_tensor(output, input, torch_operation(op), group=self.group)
        return output

    def all_to_all(self, output: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
        """Sends part r of the input to rank r, and returns the output with the received parts in rank order.

        Args:
            output: Contiguous tensor of the same number of elements as the input.
            input: Contiguous tensor with a part of equal size for each rank.

        Raises:
            ValueError: A tensor is not contiguous, on another device, or of the wrong type or size.
            RuntimeError: A wait of a previous call exceeded the time limit.
        """
        self._check_pair(output, input, output.numel(), input.numel())
        if input.numel() % self.size != 0:
            raise ValueError(f"{input.numel()} elements cannot be divided among {self.size} ranks")
        if not self._run("all_to_all", input, output, None, 0, _bytes(input), False):
            dist.all_to_all_single(output, input, group=self.group)
        return output

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
        """Copies the tensor of a rank to all ranks, in place, and returns the tensor.

        Args:
            tensor: Contiguous tensor of the same shape and type on all ranks.
            root: Rank in the group whose tensor is copied.

        Raises:
            ValueError: The tensor is not contiguous or on another device, or there is no such rank.
            RuntimeError: A wait of a previous call exceeded the time limit.
        """
        self._check_tensor(tensor)
        if not 0 <= root < self.size:
            raise ValueError(f"there is no rank {root} in a group of {self.size}")
        if not self._run("broadcast", tensor, tensor, None, root, _bytes(tensor), True):
            dist.broadcast(tensor, dist.get_global_rank(self.group, root), group=self.group)
        return tensor

    # ---- memory and state

    def empty(self, *size: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Allocates a tensor in symmetric memory, collectively with all ranks. Large calls whose output is such a tensor, or
        a part of one at the same offset on all ranks, need no copy. The memory lives as long as the communicator.

        Raises:
            RuntimeError: Memory is exhausted.
        """
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if self.fallback_reason is not None:
            return torch.empty(*size, dtype=dtype, device=self.device)
        symmetric = allocate(self.group, size, dtype, self.device)
        self._symmetric.append(symmetric)
        return symmetric.tensor

    def check(self) -> None:
        """Checks the calls so far; call it after the stream was synchronized, in particular after replays of graphs.

        Raises:
            RuntimeError: A wait exceeded the time limit, so that results are undefined.
        """
        if self.fallback_reason is not None:
            return
        if self._error is None and ctypes.string_at(self._records_address, len(self._no_records)) != self._no_records:
            self._error = self._describe_records()
        if self._error is not None:
            raise RuntimeError(self._error)

    def uses_kernel(self, collective: str, bytes: int, dtype: torch.dtype = torch.float32, op: object = "sum") -> bool:
        """Returns true if a kernel runs a call, and not ``torch.distributed``."""
        if self.fallback_reason is not None or bytes > self._max_bytes:
            return False
        call = self._call(collective, dtype, op, 0, bytes, collective in ("all_reduce", "broadcast"))
        try:
            self._kernels.prepare(call)
        except Unsupported:
            return False
        return True

    # ---- implementation

    def _describe_records(self) -> str:
        words = memoryview(ctypes.string_at(self._records_address, len(self._no_records))).cast("I")
        block = next(block for block in range(len(words) // 4) if words[4 * block] != 0)
        return (
            f"rank {self.rank} waited for another rank longer than the time limit (block {block}, operand "
            f"{words[4 * block + 2]}, tile {words[4 * block + 3]}): a process ended, or the ranks made different calls"
        )

    def _warn(self, reason: str) -> None:
        if reason not in self._warned:
            self._warned.add(reason)
            warn(f"fabricast.torch: {reason}")

    def _check_tensor(self, tensor: torch.Tensor) -> None:
        if tensor.device != self.device:
            raise ValueError(f"expected a tensor on {self.device}, not on {tensor.device}")
        if not tensor.is_contiguous():
            raise ValueError("expected a contiguous tensor: tensor.contiguous() makes one")

    def _check_pair(self, output: torch.Tensor, input: torch.Tensor, elements: int, expected: int) -> None:
        self._check_tensor(output)
        self._check_tensor(input)
        if output.dtype != input.dtype:
            raise ValueError(f"the output is of {output.dtype}, the input of {input.dtype}")
        if elements != expected:
            raise ValueError(
                f"an output of {output.numel()} and an input of {input.numel()} elements do not fit {self.size} ranks"
            )

    def _is_own_part(self, part: torch.Tensor, whole: torch.Tensor) -> bool:
        """Returns true if ``part`` is this rank's part of ``whole``.

        Raises:
            ValueError: The tensors overlap in another way.
        """
        begin, size = part.data_ptr(), _bytes(part)
        first, total = whole.data_ptr(), _bytes(whole)
        if begin == first + self.rank * size:
            return True
        if begin < first + total and first < begin + size:
            raise ValueError("input and output overlap")
        return False

    def _call(self, collective: str, dtype: torch.dtype, op: object, root: int, size: int, in_place: bool) -> Call:
        """Raises:
        Unsupported: No kernel knows the type or the reduction.
        """
        if collective not in ("all_reduce", "reduce_scatter"):
            return Call(collective, size, "u8", "sum", root, in_place)
        name, type_name = operation_name(op), REDUCIBLE.get(dtype)
        if name is None:
            raise Unsupported(f"kernels do not compute the reduction {op}")
        if type_name is None:
            raise Unsupported(f"kernels do not reduce {dtype}")
        return Call(collective, size, type_name, name, root, in_place)

    def _run(
        self,
        collective: str,
        input: torch.Tensor,
        output: torch.Tensor,
        op: object,
        root: int,
        size: int,
        in_place: bool,
    ) -> bool:
        """Enqueues a kernel. Returns false if ``torch.distributed`` must run the call."""
        if self.fallback_reason is not None:
            return False
        if size == 0:
            return True
        self.check()
        try:
            if size > self._max_bytes:
                raise Unsupported(f"{collective} of more than max_bytes ({self._max_bytes} bytes)")
            self._enqueue(self._call(collective, output.dtype, op, root, size, in_place), input, output)
        except Unsupported as error:
            self._warn(f"{error}; torch.distributed runs it")
            return False
        return True

    def _enqueue(self, call: Call, input: torch.Tensor, output: torch.Tensor) -> None:
        prepared = self._kernels.prepare(call)
        # In place, the larger buffer is input and output.
        whole = output if _bytes(output) >= _bytes(input) else input
        if call.in_place:
            source, target = whole.data_ptr(), whole.data_ptr()
        else:
            source, target = input.data_ptr(), output.data_ptr()
        outputs: list[int] | None = [target] * self.size
        staged = None
        if prepared.writes_peer_outputs:
            length = call.bytes if call.in_place else _bytes(output)
            outputs = self._symmetric_addresses(target, length)
            if outputs is None:
                # Other ranks write to the staging memory, from which the output is copied.
                prepared = self._kernels.prepare(call._replace(in_place=False))
                outputs, source, staged = list(self._stage.peers), input.data_ptr(), self._stage.tensor
        assert outputs is not None
        with torch.cuda.device(self.device):
            launch = self._kernels.launch(prepared, source, outputs)
            stream = torch.cuda.current_stream()
            self._follow(stream)
            launch.enqueue(stream.cuda_stream)
        if staged is not None and not (call.collective == "broadcast" and call.root == self.rank):
            output.reshape(-1).view(torch.uint8).copy_(staged[: _bytes(output)])

    def _symmetric_addresses(self, address: int, size: int) -> list[int] | None:
        for tensor in self._symmetric:
            addresses = tensor.addresses(address, size)
            if addresses is not None:
                return addresses
        return None

    def _follow(self, stream: torch.cuda.Stream) -> None:
        """Makes the stream wait for the previous call, if that was on another stream."""
        previous, self._stream = self._stream, stream
        if previous is None or previous == stream:
            return
        with torch.cuda.stream(previous):
            previous_captures = torch.cuda.is_current_stream_capturing()
        # A captured call cannot wait for one outside its graph.
        if previous_captures == torch.cuda.is_current_stream_capturing():
            stream.wait_stream(previous)


def _bytes(tensor: torch.Tensor) -> int:
    size: int = tensor.numel() * tensor.element_size()
    return size
