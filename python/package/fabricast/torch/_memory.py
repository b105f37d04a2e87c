"""Symmetric memory: memory of which every rank has an address on the GPUs of all ranks of its group."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory


class SymmetricTensor(NamedTuple):
    """Tensor in symmetric memory."""

    tensor: torch.Tensor
    start: int
    """Address of the tensor on its own GPU."""
    peers: tuple[int, ...]
    """Addresses of the tensors of all ranks, valid on this rank's GPU."""

    def addresses(self, address: int, size: int) -> list[int] | None:
        """Returns the addresses of a part of this tensor on all ranks; ``None`` for memory outside the tensor."""
        offset = address - self.start
        if offset < 0 or offset + size > self.tensor.numel() * self.tensor.element_size():
            return None
        return [peer + offset for peer in self.peers]


def allocate(group: dist.ProcessGroup, size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> SymmetricTensor:
    """Allocates zeroed symmetric memory, collectively with all ranks of the group, which pass the same size.

    Raises:
        RuntimeError: A GPU cannot access the memory of another, or memory is exhausted.
    """
    tensor = symmetric_memory.empty(*size, dtype=dtype, device=device)
    tensor.view(torch.uint8).zero_() if tensor.numel() > 0 else None
    torch.cuda.synchronize(device)
    handle = symmetric_memory.rendezvous(tensor, group.group_name)
    start = tensor.data_ptr()
    own = handle.buffer_ptrs[handle.rank]
    return SymmetricTensor(tensor, start, tuple(peer + start - own for peer in handle.buffer_ptrs))
