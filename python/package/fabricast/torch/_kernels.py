"""Kernels of calls: generated, compiled and prepared for launches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

import torch

from .. import _fabricast
from .._result import FabricastError
from ._driver import Driver, Function, Launch
from ._strategies import Call, Strategies

_CACHED_LAUNCHES = 256
_CACHED_CALLS = 4096


class Unsupported(Exception):
    """Reason why no kernel runs a call, the same on all ranks."""


def _halved(number: int) -> Iterator[int]:
    while number > 0:
        yield number
        number //= 2


class Prepared:
    """Kernel of a call with the parameters of this rank."""

    def __init__(self, kernel: _fabricast.Kernel, parameters: _fabricast.KernelParameters) -> None:
        self.kernel = kernel
        self.parameters = parameters
        self.writes_peer_outputs: bool = kernel.writes_peer_outputs
        """True if ranks must know the addresses of the outputs of others."""
        self.functions: dict[bool, Function] = {}
        """Compiled kernels by alignment of the buffers to 16 bytes."""
        self.launches: OrderedDict[tuple[int, ...], Launch] = OrderedDict()


class Kernels:
    """Kernels of one rank of a group."""

    def __init__(
        self,
        strategies: Strategies,
        driver: Driver,
        device: torch.device,
        rank: int,
        ranks: int,
        arena: _fabricast.KernelArena,
        overlap: bool,
    ) -> None:
        properties = torch.cuda.get_device_properties(device)
        self._strategies = strategies
        self._driver = driver
        self._rank, self._ranks = rank, ranks
        self._arena = arena
        self._multiprocessors: int = properties.multi_processor_count
        self._capability: int = 10 * properties.major + properties.minor
        # Programmatic dependent launch exists from compute capability 9.0.
        self._overlap = overlap and self._capability >= 90
        self._prepared: OrderedDict[Call, Prepared | Unsupported] = OrderedDict()
        self._functions: dict[str, Function] = {}
        self.arenas: Sequence[int] = (0,) * ranks
        """Addresses of the arenas of all ranks."""
        self.records = 0
        """Address of the records of waits that exceed the time limit."""
        self.time_limit_ns = 0
        """Time limit of a wait in nanoseconds."""

    def prepare(self, call: Call) -> Prepared:
        """Returns the kernel of a call, which is generated once.

        Raises:
            Unsupported: No kernel runs this call.
        """
        found = self._prepared.get(call)
        if found is None:
            try:
                found = self._generate(call)
            except Unsupported as error:
                found = error
            self._prepared[call] = found
            if len(self._prepared) > _CACHED_CALLS:
                self._prepared.popitem(last=False)
        if isinstance(found, Unsupported):
            raise found
        return found

    def _generate(self, call: Call) -> Prepared:
        strategy = self._strategies.strategy(call.collective, call.bytes)
        if strategy is None:
            raise Unsupported(f"the plan does not contain {call.collective}")
        if strategy.is_library:
            raise Unsupported(f"the plan selects the library for {call.collective} from {strategy.bytes} bytes")
        # Several blocks share a channel, so fewer channels run in as many blocks, with fewer operands.
        for channels in _halved(strategy.channels):
            try:
                kernel = self._strategies.kernel(
                    call, strategy._replace(channels=channels), self._multiprocessors, self._capability
                )
                parameters = kernel.parameters(self._rank, self._arena)
            except FabricastError as error:
                raise Unsupported(f"{call.collective} by {strategy.algorithm} of {call.dtype}: {error.message}") from error
            if parameters is not None:
                return Prepared(kernel, parameters)
        raise Unsupported(f"{call.collective} by {strategy.algorithm} has more operands than kernel parameters")

    def compile(self, prepared: Prepared, aligned: bool) -> Function:
        """Compiles a kernel, or loads it from the cache.

        Raises:
            FabricastError: NVRTC is missing.
            RuntimeError: The blocks of the kernel cannot all run at the same time.
        """
        source = prepared.kernel.source(aligned)
        function = self._functions.get(source)
        if function is None:
            function = self._functions[source] = self._driver.load(prepared.kernel.compile(aligned), "run_kernel")
        threads, blocks = prepared.kernel.threads, prepared.kernel.blocks
        limit = self._driver.blocks_per_multiprocessor(function, threads) * self._multiprocessors
        if blocks > limit:
            raise RuntimeError(f"{blocks} blocks of {threads} threads wait for each other, and the GPU runs {limit} at once")
        return function

    def launch(self, prepared: Prepared, input: int, outputs: Sequence[int]) -> Launch:
        """Returns the launch for buffers at these addresses: the input of this rank, and the outputs of all ranks."""
        key = (input, *outputs)
        launch = prepared.launches.get(key)
        if launch is None:
            aligned = prepared.parameters.is_aligned(input, list(outputs))
            function = prepared.functions.get(aligned)
            if function is None:
                function = prepared.functions[aligned] = self.compile(prepared, aligned)
            argument = prepared.parameters.resolve(input, list(outputs), list(self.arenas), self.records, self.time_limit_ns)
            launch = Launch(function, prepared.kernel.blocks, prepared.kernel.threads, argument, self._overlap)
            prepared.launches[key] = launch
            if len(prepared.launches) > _CACHED_LAUNCHES:
                prepared.launches.popitem(last=False)
        return launch
