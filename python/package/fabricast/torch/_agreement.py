"""Conditions under which all ranks of a group can run kernels on each other's memory."""

from __future__ import annotations

import os
import socket

import torch
import torch.distributed as dist

from .._fabricast import __version__


def _host() -> str:
    """Name that differs between hosts, and between containers on a host that cannot share memory."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot}"


def reason_for_fallback(group: dist.ProcessGroup, device: torch.device, own: str | None, settings: object) -> str | None:
    """Exchanges the state of all ranks, and returns why none of them can run kernels; ``None`` if all can. All ranks
    receive the same answer. ``own``: the reason of this rank. ``settings``: values that must be equal on all ranks."""
    gpu = str(torch.cuda.get_device_properties(device).uuid)
    mine = (own, _host(), gpu, torch.cuda.get_device_capability(device), (__version__, settings))
    states: list[tuple[str | None, str, str, tuple[int, int], object]] = [mine] * dist.get_world_size(group)
    dist.all_gather_object(states, mine, group=group)
    reasons, hosts, gpus, capabilities, all_settings = zip(*states)
    for rank, reason in enumerate(reasons):
        if reason is not None:
            return f"rank {rank}: {reason}"
    if len(set(hosts)) > 1:
        return "the ranks are on several hosts"
    if len(set(gpus)) < len(gpus):
        return "several ranks share a GPU"
    if len(set(capabilities)) > 1:
        return "the GPUs differ"
    if any(other != all_settings[0] for other in all_settings):
        return "the ranks have different plans, settings or versions of fabricast"
    visible = {str(torch.cuda.get_device_properties(i).uuid): i for i in range(torch.cuda.device_count())}
    peers = [visible[gpu] for gpu in gpus if gpu in visible]
    own_index = torch.cuda.current_device() if device.index is None else device.index
    blind = [peer for peer in peers if peer != own_index and not torch.cuda.can_device_access_peer(own_index, peer)]
    answers: list[str | None] = [None] * len(gpus)
    answer = f"GPU {own_index} has no peer access to GPU {blind[0]}" if blind else None
    dist.all_gather_object(answers, answer, group=group)
    return next((answer for answer in answers if answer is not None), None)


def all_succeeded(group: dist.ProcessGroup, error: str | None) -> str | None:
    """Exchanges the outcome of a step of all ranks, and returns the first error."""
    errors: list[str | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(errors, error, group=group)
    return next((f"rank {rank}: {error}" for rank, error in enumerate(errors) if error is not None), None)


def preload_compiler() -> None:
    """Loads the NVRTC of PyTorch's packages, which the compilation of kernels then finds by its name."""
    import ctypes
    import glob

    site = os.path.dirname(os.path.dirname(torch.__file__))
    for pattern in ("nvidia/cu*/lib/libnvrtc.so.*", "nvidia/cuda_nvrtc/lib/libnvrtc.so.*", "torch/lib/libnvrtc*.so*"):
        for path in sorted(glob.glob(os.path.join(site, pattern))):
            if "builtins" not in path and ".alt." not in path:
                try:
                    ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
                except OSError:
                    continue
                return
