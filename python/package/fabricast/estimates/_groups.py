"""Groups of ranks that run the same call at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Groups = tuple[tuple[int, ...], ...]
"""Disjoint groups of global ranks."""


def groups_of_dimension(ranks: Sequence[int], world_size: int) -> Groups:
    """Returns the groups of the mesh dimension that a group belongs to, in ascending order.

    All ranks of a job run the same program, so the other groups of the dimension run the same call and share the fabric.
    In a mesh of consecutive ranks, a dimension of ``n`` ranks with stride ``s`` has a group in each block of ``n * s`` ranks at
    each of ``s`` offsets. Example::

        >>> groups_of_dimension([0, 2], 8)
        ((0, 2), (1, 3), (4, 6), (5, 7))

    Args:
        ranks: Global ranks of the group.
        world_size: Number of ranks of the job.

    Returns:
        The groups, or the given group alone if its ranks are no such dimension.
    """
    group = tuple(sorted(ranks))
    if not group:
        return ()
    if len(set(group)) != len(group):
        return (group,)
    stride = group[1] - group[0] if len(group) > 1 else 1
    block = stride * len(group)
    is_dimension = group == tuple(range(group[0], group[0] + block, stride)) and group[0] % block < stride
    if not is_dimension or world_size % block != 0 or group[-1] >= world_size:
        return (group,)
    starts = [first + offset for first in range(0, world_size, block) for offset in range(stride)]
    return tuple(tuple(range(start, start + block, stride)) for start in starts)


def mesh_groups(mesh: Sequence[Any], dimension: int) -> Groups:
    """Returns the groups of a dimension of a device mesh. Example::

        >>> mesh_groups([[0, 1, 2, 3], [4, 5, 6, 7]], 0)
        ((0, 4), (1, 5), (2, 6), (3, 7))

    Args:
        mesh: Global ranks as nested lists, ``DeviceMesh.mesh.tolist()``.
        dimension: Dimension of the mesh, from 0.

    Raises:
        IndexError: The mesh has no such dimension.
    """
    if not isinstance(mesh[0], (list, tuple)):
        if dimension != 0:
            raise IndexError(f"dimension {dimension} of a mesh of one dimension")
        return (tuple(mesh),)
    if dimension > 0:
        return tuple(group for part in mesh for group in mesh_groups(part, dimension - 1))
    rows = [list(flat(part)) for part in mesh]
    return tuple(zip(*rows, strict=True))


def flat(mesh: Any) -> Sequence[int]:
    """Returns the ranks of nested lists in row-major order."""
    return [rank for part in mesh for rank in flat(part)] if isinstance(mesh, (list, tuple)) else [mesh]
