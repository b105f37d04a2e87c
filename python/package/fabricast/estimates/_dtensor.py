"""Costs of DTensor's redistribution."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ._groups import mesh_groups
from ._times import CollectiveTimes

GIB = 1 << 30

Cost = Callable[[Any, Any, int], Any]
"""Function of DTensor: bytes in GiB, ``MeshTopoInfo`` and mesh dimension to microseconds."""

FUNCTIONS = {"allgather_cost": "all_gather", "allreduce_cost": "all_reduce", "reduce_scatter_cost": "reduce_scatter"}
"""Cost functions of ``torch/distributed/tensor/_collective_utils.py`` and their collectives."""


class DTensorCosts:
    """Costs of collectives along a dimension of a device mesh, all groups of the dimension concurrent.

    Example::

        >>> costs = DTensorCosts(CollectiveTimes("hgx-h200"))
        >>> costs.time_us("all_gather", 1 << 20, [[0, 1, 2, 3], [4, 5, 6, 7]], 1) > 0
        True

    Args:
        times: Times of the fabric.
    """

    def __init__(self, times: CollectiveTimes) -> None:
        self._times = times

    def time_us(self, collective: str, bytes: int, mesh: Any, dimension: int) -> float:
        """Returns the completion time in microseconds.

        Args:
            collective: Collective, for example ``"all_gather"``.
            bytes: Larger buffer of a rank.
            mesh: Global ranks as nested lists, ``DeviceMesh.mesh.tolist()``.
            dimension: Dimension of the mesh, from 0; negative from its end.

        Raises:
            IndexError: The mesh has no such dimension.
            FabricastError: A rank of the mesh is not in the fabric.
        """
        dimensions = depth(mesh)
        if not -dimensions <= dimension < dimensions:
            raise IndexError(f"dimension {dimension} of a mesh of {dimensions} dimensions")
        return self._times.time_us(collective, bytes, mesh_groups(mesh, dimension % dimensions))

    def function(self, collective: str, original: Cost) -> Cost:
        """Returns a function that replaces one of DTensor's. Symbolic sizes, which occur while a graph is traced, have the cost
        of the original."""

        def cost(bytes_gb: Any, mesh_topo: Any, mesh_dim: int) -> Any:
            if not isinstance(bytes_gb, (int, float)):
                return original(bytes_gb, mesh_topo, mesh_dim)
            return self.time_us(collective, round(bytes_gb * GIB), mesh_topo.mesh.mesh.tolist(), mesh_dim)

        return cost


@contextmanager
def dtensor_costs(times: CollectiveTimes) -> Iterator[DTensorCosts]:
    """Replaces DTensor's cost functions while the context is active.

    DTensor has no setting for its costs, so three functions of ``torch.distributed.tensor._collective_utils`` are replaced:
    ``allgather_cost``, ``allreduce_cost`` and ``reduce_scatter_cost``. DTensor caches strategies: enter the context before the
    first operation. A change from one sharded dimension to another keeps DTensor's rule: the cost of an all_gather of the shard,
    plus 1 µs. Example::

        with dtensor_costs(CollectiveTimes("hgx-h200", nodes=2)):
            train(model)

    Args:
        times: Times of the fabric.

    Raises:
        ImportError: PyTorch is not installed.
        AttributeError: This version of PyTorch has no such functions.
    """
    from torch.distributed.tensor import _collective_utils as utilities

    costs = DTensorCosts(times)
    originals: dict[str, Cost] = {name: getattr(utilities, name) for name in FUNCTIONS}
    try:
        for name, collective in FUNCTIONS.items():
            setattr(utilities, name, costs.function(collective, originals[name]))
        yield costs
    finally:
        for name, original in originals.items():
            setattr(utilities, name, original)


def depth(mesh: Any) -> int:
    """Returns the number of dimensions of nested lists."""
    return 1 + depth(mesh[0]) if isinstance(mesh, (list, tuple)) else 0
