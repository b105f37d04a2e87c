"""Runtime estimation of PyTorch's overlap scheduling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ._groups import Groups, groups_of_dimension
from ._times import CollectiveTimes

NAMESPACE = "_c10d_functional"
"""Namespace of functional collectives in FX graphs (``torch/distributed/_functional_collectives.py``)."""

OPERATORS = {
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_reduce_coalesced_": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_out": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
    "broadcast_": "broadcast",
}
"""Collectives of functional operators. Calls of a coalesced operator count as one call of all their bytes."""


@dataclass(frozen=True)
class Call:
    """Collective of a node in an FX graph."""

    collective: str
    output_bytes: int
    group: Any

    def buffer_bytes(self, ranks: int) -> int:
        """Larger buffer of a rank, which is the input of a reduce_scatter and the output of other collectives."""
        return self.output_bytes * ranks if self.collective == "reduce_scatter" else self.output_bytes


class RuntimeEstimation:
    """Function for ``torch._inductor.config.aten_distributed_optimizations.custom_runtime_estimation``.

    Called with a node of an FX graph, it returns the predicted time of a collective in milliseconds, and None for other nodes, so
    that PyTorch estimates or benchmarks those itself. Predictions are the same on all ranks. Example::

        config.aten_distributed_optimizations.custom_runtime_estimation = RuntimeEstimation(CollectiveTimes("hgx-h200"))

    Args:
        times: Times of the fabric.
        concurrent: The other groups of the mesh dimension run the same call at the same time and share the fabric
            (:func:`groups_of_dimension`). False: each group has the fabric for itself.
        ranks_of: Global ranks of a process group or of its name; default: those of ``torch.distributed``, which then must be
            initialized.
    """

    def __init__(
        self,
        times: CollectiveTimes,
        *,
        concurrent: bool = True,
        ranks_of: Callable[[Any], Sequence[int]] | None = None,
    ) -> None:
        self._times = times
        self._concurrent = concurrent
        self._ranks_of = ranks_of if ranks_of is not None else ranks_of_group

    def __call__(self, node: Any, override_size: int | None = None) -> float | None:
        """Returns the time of a node in milliseconds.

        Args:
            node: ``torch.fx.Node``; its ``meta["val"]`` is the output, with shape and type.
            override_size: Output in bytes in place of that of the node. 0 asks for the latency, which never exceeds the time of
                the node: PyTorch asserts this.

        Returns:
            None if the node is no collective, or if a size is symbolic and has no hint.

        Raises:
            FabricastError: The group has a rank that is not in the fabric.
        """
        call = collective_call(node)
        if call is None:
            return None
        ranks = tuple(self._ranks_of(call.group))
        groups: Groups = groups_of_dimension(ranks, self._times.ranks) if self._concurrent else (ranks,)
        if override_size:
            call = Call(call.collective, override_size, call.group)
        time = self._times.time_us(call.collective, call.buffer_bytes(len(ranks)), groups)
        if override_size == 0:
            time = min(time, self._times.time_us(call.collective, len(ranks), groups))
        return time / 1e3


def collective_call(node: Any) -> Call | None:
    """Returns the collective of a node, or None if it is none or its size is unknown."""
    if node.op != "call_function" or getattr(node.target, "namespace", None) != NAMESPACE:
        return None
    name = str(node.target.name()).split("::")[-1].split(".")[0]
    collective = OPERATORS.get(name)
    output_bytes = tensor_bytes(node.meta.get("val"))
    if collective is None or output_bytes is None:
        return None
    # The group is the last positional argument of each of these operators.
    group = node.kwargs["group_name"] if "group_name" in node.kwargs else node.args[-1]
    return Call(collective, output_bytes, group)


def tensor_bytes(value: Any) -> int | None:
    """Returns the bytes of a tensor or of a list of tensors, by the hints of symbolic sizes; None without a hint."""
    if isinstance(value, (list, tuple)):
        sizes = [tensor_bytes(one) for one in value]
        known = [size for size in sizes if size is not None]
        return sum(known) if known and len(known) == len(sizes) else None
    if not hasattr(value, "shape") or not hasattr(value, "element_size"):
        return None
    bytes = int(value.element_size())
    for extent in value.shape:
        hint = size_hint(extent)
        if hint is None:
            return None
        bytes *= hint
    return bytes


def size_hint(extent: Any) -> int | None:
    """Returns an extent, or the hint of a symbolic one. ``int(extent)`` would specialize the graph to it."""
    if isinstance(extent, int):
        return extent
    symbolic = getattr(extent, "node", None)
    return int(symbolic.hint) if symbolic is not None and symbolic.has_hint() else None


def ranks_of_group(group: Any) -> Sequence[int]:
    """Returns the global ranks of a process group or of its name.

    Raises:
        ImportError: PyTorch is not installed.
        RuntimeError: The group does not exist.
    """
    from torch.distributed import distributed_c10d

    resolved = distributed_c10d._resolve_process_group(group) if isinstance(group, str) else group
    ranks: Sequence[int] = distributed_c10d.get_process_group_ranks(resolved)
    return ranks
