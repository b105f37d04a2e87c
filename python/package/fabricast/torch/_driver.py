"""CUDA driver: modules, functions and launches."""

from __future__ import annotations

import ctypes
from typing import Any

_PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION (cuda.h)
_CAPTURE_MODE_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


class _Attribute(ctypes.Structure):
    """``CUlaunchAttribute``."""

    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_int), ("unused", ctypes.c_char * 60)]


class _Config(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = [
        ("grid_x", ctypes.c_uint),
        ("grid_y", ctypes.c_uint),
        ("grid_z", ctypes.c_uint),
        ("block_x", ctypes.c_uint),
        ("block_y", ctypes.c_uint),
        ("block_z", ctypes.c_uint),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    ]


class Driver:
    """Functions of ``libcuda``. The context of the calling thread must be current, as it is after PyTorch has used the GPU."""

    def __init__(self, library: Any = None) -> None:
        """Loads the driver, or takes a ``library`` with its functions.

        Raises:
            OSError: There is no driver.
        """
        self._library = ctypes.CDLL("libcuda.so.1") if library is None else library

    def check(self, code: int, call: str) -> None:
        """Raises:
        RuntimeError: The call failed.
        """
        if code == 0:
            return
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"{call} failed: {(text.value or b'unknown error').decode()} ({code})")

    def load(self, code: bytes, name: str) -> Function:
        """Loads machine code and returns its kernel ``name``. Streams may be captured at the same time.

        Raises:
            RuntimeError: The code is for another GPU.
        """
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        mode = ctypes.c_int(_CAPTURE_MODE_RELAXED)
        self.check(self._library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)), "cuThreadExchangeStreamCaptureMode")
        try:
            self.check(self._library.cuModuleLoadData(ctypes.byref(module), ctypes.c_char_p(code)), "cuModuleLoadData")
            found = self._library.cuModuleGetFunction(ctypes.byref(function), module, name.encode())
            self.check(found, "cuModuleGetFunction")
        finally:
            self._library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        return Function(self, function)

    def blocks_per_multiprocessor(self, function: Function, threads: int) -> int:
        """Number of blocks of a kernel that run on a multiprocessor at the same time."""
        blocks = ctypes.c_int()
        code = self._library.cuOccupancyMaxActiveBlocksPerMultiprocessor(
            ctypes.byref(blocks), function.handle, ctypes.c_int(threads), ctypes.c_size_t(0)
        )
        self.check(code, "cuOccupancyMaxActiveBlocksPerMultiprocessor")
        return blocks.value


class Function:
    """Kernel on the current GPU. It stays loaded until the process ends."""

    def __init__(self, driver: Driver, handle: ctypes.c_void_p) -> None:
        self._driver = driver
        self.handle = handle


class Launch:
    """Launch of a kernel with an argument by value, which is repeated for many calls.

    With programmatic dependent launch, the kernel may be launched while the previous kernel of the stream ends. It waits
    for the end of that kernel itself.
    """

    def __init__(self, function: Function, blocks: int, threads: int, argument: bytes, overlap: bool) -> None:
        self._driver = function._driver
        self._function = function.handle
        self._launch = self._driver._library.cuLaunchKernelEx
        self._argument = ctypes.create_string_buffer(argument, len(argument))
        self._parameters = (ctypes.c_void_p * 1)(ctypes.addressof(self._argument))
        self._attribute = _Attribute(id=_PROGRAMMATIC_STREAM_SERIALIZATION, value=1)
        count = 1 if overlap else 0
        attributes = ctypes.pointer(self._attribute)
        self._config = _Config(blocks, 1, 1, threads, 1, 1, 0, None, attributes, count)
        self._config_pointer = ctypes.byref(self._config)

    def enqueue(self, stream: int) -> None:
        """Enqueues the kernel on a stream, by its handle.

        Raises:
            RuntimeError: The driver refuses the launch.
        """
        self._config.stream = stream
        code = self._launch(self._config_pointer, self._function, self._parameters, None)
        if code != 0:
            self._driver.check(code, "cuLaunchKernelEx")
