"""Adapters for PyTorch, without PyTorch: groups, graph nodes, the profile file and costs of meshes."""

from __future__ import annotations

import doctest
import json
import math
import pickle
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fabricast
from fabricast import FabricastError, estimates
from fabricast.estimates import (
    CollectiveTimes,
    DTensorCosts,
    RuntimeEstimation,
    groups_of_dimension,
    mesh_groups,
    profile_document,
    write_profile,
)


@pytest.fixture(scope="module")
def times() -> CollectiveTimes:
    return CollectiveTimes("hgx-h200")


class Tensor:
    """Shape and width of a tensor."""

    def __init__(self, shape: list[Any], width: int = 4) -> None:
        self.shape, self.width = shape, width

    def element_size(self) -> int:
        return self.width


def node(operator: str, value: Any, group: str = "0", namespace: str = "_c10d_functional") -> Any:
    target = SimpleNamespace(namespace=namespace, name=lambda: f"{namespace}::{operator}")
    return SimpleNamespace(op="call_function", target=target, args=("input", group), kwargs={}, meta={"val": value})


def estimation(times: CollectiveTimes, ranks: list[int] | None = None, **settings: Any) -> RuntimeEstimation:
    return RuntimeEstimation(times, ranks_of=lambda group: ranks if ranks is not None else range(8), **settings)


def test_examples_of_the_docstrings_run() -> None:
    for module in (estimates._groups, estimates._times, estimates._dtensor):
        names = {name: getattr(estimates, name) for name in estimates.__all__}
        result = doctest.testmod(module, extraglobs=names)
        assert result.failed == 0 and result.attempted > 0, module


def test_times_are_those_of_simulations(times: CollectiveTimes) -> None:
    alone = fabricast.simulate("hgx-h200", collective="all_reduce", bytes="4MiB", library="nccl", group="0-3")
    assert times.time_us("all_reduce", 4 << 20, [range(4)]) == alone.groups[0]["time_us"]
    whole = fabricast.simulate("hgx-h200", collective="all_gather", bytes="4MiB", library="nccl")
    assert times.time_us("all_gather", 4 << 20) == whole.time_us
    assert times.ranks == 8


def test_the_slowest_group_counts(times: CollectiveTimes) -> None:
    pair, rest = [(0, 1)], [(2, 3, 4, 5, 6, 7)]
    slow, fast = times.time_us("all_reduce", 1 << 26, rest), times.time_us("all_reduce", 1 << 26, pair)
    assert fast < slow and times.time_us("all_reduce", 1 << 26, pair + rest) == slow


def test_groups_of_a_dimension_share_the_network() -> None:
    cluster = CollectiveTimes("hgx-h200", nodes=2, network="rail,nics_per_node=1,nic=400Gb/s")
    alone = cluster.time_us("all_gather", 64 << 20, [(0, 8)])
    together = cluster.time_us("all_gather", 64 << 20, groups_of_dimension((0, 8), 16))
    assert together > 4 * alone


def test_ranks_outside_of_the_fabric_are_errors(times: CollectiveTimes) -> None:
    with pytest.raises(FabricastError):
        times.time_us("all_reduce", 1024, [(7, 8)])


def test_groups_of_dimensions_are_those_of_meshes() -> None:
    draw = random.Random()
    for _ in range(200):
        shape = [draw.choice([1, 2, 3, 4]) for _ in range(draw.randint(1, 4))]
        world = math.prod(shape)
        ranks: list[Any] = list(range(world))
        for extent in reversed(shape[1:]):
            ranks = [ranks[start : start + extent] for start in range(0, len(ranks), extent)]
        for dimension, extent in enumerate(shape):
            groups = mesh_groups(ranks, dimension)
            assert sorted(rank for group in groups for rank in group) == list(range(world))
            assert {len(group) for group in groups} == {extent}
            if extent > 1:
                assert {groups_of_dimension(group, world) for group in groups} == {tuple(sorted(groups))}, (shape, dimension)


def test_irregular_groups_stay_alone() -> None:
    assert groups_of_dimension((0, 1, 3), 8) == ((0, 1, 3),)
    assert groups_of_dimension((1, 2), 8) == ((1, 2),)
    assert groups_of_dimension((0, 1, 2), 8) == ((0, 1, 2),)
    assert groups_of_dimension((6, 7), 7) == ((6, 7),)


@pytest.mark.parametrize(
    ("operator", "collective", "factor"),
    [
        ("all_reduce", "all_reduce", 1),
        ("all_reduce_", "all_reduce", 1),
        ("all_gather_into_tensor_out", "all_gather", 1),
        ("reduce_scatter_tensor", "reduce_scatter", 8),
        ("all_to_all_single.default", "all_to_all", 1),
        ("broadcast_", "broadcast", 1),
    ],
)
def test_nodes_have_the_time_of_their_collective(times: CollectiveTimes, operator: str, collective: str, factor: int) -> None:
    estimate = estimation(times)(node(operator, Tensor([512, 1024])))
    assert estimate == times.time_us(collective, factor * 512 * 1024 * 4, [range(8)]) / 1e3


def test_coalesced_nodes_count_all_bytes(times: CollectiveTimes) -> None:
    parts = [Tensor([1024]), Tensor([3, 1024], width=2)]
    estimate = estimation(times)(node("all_gather_into_tensor_coalesced", parts))
    assert estimate == times.time_us("all_gather", 4096 + 6144, [range(8)]) / 1e3


def test_other_nodes_have_no_estimate(times: CollectiveTimes) -> None:
    estimate = estimation(times)
    assert estimate(node("wait_tensor", Tensor([8]))) is None
    assert estimate(node("all_reduce", Tensor([8]), namespace="aten")) is None
    assert estimate(node("all_reduce", None)) is None
    placeholder = SimpleNamespace(op="placeholder", target="x", args=(), kwargs={}, meta={})
    assert estimate(placeholder) is None


def test_symbolic_sizes_have_their_hint(times: CollectiveTimes) -> None:
    known = SimpleNamespace(node=SimpleNamespace(has_hint=lambda: True, hint=4096))
    unknown = SimpleNamespace(node=SimpleNamespace(has_hint=lambda: False))
    estimate = estimation(times)
    assert estimate(node("all_reduce", Tensor([known]))) == estimate(node("all_reduce", Tensor([4096])))
    assert estimate(node("all_reduce", Tensor([unknown, 2]))) is None


def test_override_replaces_the_size_and_zero_is_the_latency(times: CollectiveTimes) -> None:
    estimate = estimation(times)
    call = node("reduce_scatter_tensor", Tensor([1024]))
    assert estimate(call, 1 << 20) == times.time_us("reduce_scatter", 8 << 20, [range(8)]) / 1e3
    for elements in (1, 64, 1 << 10, 1 << 20, 1 << 26):
        for operator in ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single"):
            call = node(operator, Tensor([elements]))
            latency, time = estimate(call, 0), estimate(call)
            assert latency is not None and time is not None and 0 < latency <= time


def test_pickles_do_not_depend_on_earlier_calls() -> None:
    estimate = estimates.RuntimeEstimation(CollectiveTimes(fabricast.Fabric("hgx-h200", gpus=4)))
    before = pickle.dumps(estimate)
    assert estimate._times.time_us("all_reduce", 4096) > 0
    assert pickle.dumps(estimate) == before
    assert pickle.loads(before)._times.time_us("all_reduce", 4096) == estimate._times.time_us("all_reduce", 4096)


def test_concurrent_groups_can_be_left_out() -> None:
    cluster = CollectiveTimes("hgx-h200", nodes=2, network="rail,nics_per_node=1,nic=400Gb/s")
    call = node("all_reduce", Tensor([1 << 24]))
    shared = estimation(cluster, [0, 8])(call)
    alone = estimation(cluster, [0, 8], concurrent=False)(call)
    assert shared is not None and alone is not None and shared > 2 * alone


def read_as_pytorch(document: dict[str, Any], collective: str, ranks: tuple[int, ...], elements: int, dtype: str) -> float:
    """Looks up a time in milliseconds as ``ProfileData.lookup_collective`` of PyTorch 2.15 does inside the range of the file."""
    names = {"allreduce": "all_reduce", "_allgather_base": "all_gather", "_reduce_scatter_base": "reduce_scatter"}
    points = sorted(
        (event["args"]["Out msg nelems"], event["dur"])
        for event in document["traceEvents"]
        if event["cat"] == "kernel"
        and names.get(event["args"]["Collective name"], event["args"]["Collective name"]) == collective
        and tuple(json.loads(event["args"]["Process Group Ranks"])) == ranks
        and event["args"]["dtype"] == dtype
    )
    below = max(point for point in points if point[0] <= elements)
    above = min(point for point in points if point[0] >= elements)
    if below[0] == above[0]:
        return below[1] / 1e3
    share = math.log(elements / below[0]) / math.log(above[0] / below[0])
    return math.exp(math.log(below[1]) + share * math.log(above[1] / below[1])) / 1e3


def test_profile_gives_the_times_back(times: CollectiveTimes) -> None:
    document = profile_document(times, groups=[range(8), range(4)], sizes=[1 << power for power in range(10, 25)])
    groups = groups_of_dimension(range(4), 8)
    for collective, factor in (("all_reduce", 1), ("all_gather", 1), ("reduce_scatter", 4), ("all_to_all", 1)):
        for power in range(9, 20):
            read = read_as_pytorch(document, collective, (0, 1, 2, 3), 1 << power, "BFloat16")
            assert read == pytest.approx(times.time_us(collective, factor * 2 << power, groups) / 1e3, rel=1e-12)
        ends = [times.time_us(collective, size, groups) / 1e3 for size in (1 << 22, 1 << 23)]
        between = read_as_pytorch(document, collective, (0, 1, 2, 3), (3 << 20) // factor, "BFloat16")
        assert ends[0] < between < ends[1]


def test_profile_is_a_file_of_kernels(times: CollectiveTimes, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    write_profile(path, times, sizes=[1 << 20], dtypes=["Half"])
    document = json.loads(path.read_text())
    assert [event["args"]["Collective name"] for event in document["traceEvents"]] == [
        "allreduce",
        "_allgather_base",
        "_reduce_scatter_base",
        "all_to_all",
    ]
    gather = document["traceEvents"][1]["args"]
    assert (gather["In msg nelems"], gather["Out msg nelems"], gather["Group size"]) == (1 << 16, 1 << 19, 8)
    assert document["distributedInfo"]["pg_config"][0]["ranks"] == list(range(8))
    starts = [event["ts"] for event in document["traceEvents"]]
    assert starts == sorted(starts) and len(set(starts)) == 4


def test_wrong_profiles_are_refused(times: CollectiveTimes) -> None:
    with pytest.raises(ValueError, match="unknown type 'float32': expected one of Double"):
        profile_document(times, dtypes=["float32"])
    with pytest.raises(ValueError, match="no ranks"):
        profile_document(times, groups=[[]])


def test_costs_of_a_mesh_are_those_of_its_groups(times: CollectiveTimes) -> None:
    costs = DTensorCosts(times)
    mesh = [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert costs.time_us("all_gather", 1 << 20, mesh, 1) == times.time_us("all_gather", 1 << 20, [range(4), range(4, 8)])
    assert costs.time_us("all_gather", 1 << 20, mesh, -2) == times.time_us("all_gather", 1 << 20, mesh_groups(mesh, 0))
    with pytest.raises(IndexError, match="dimension 2 of a mesh of 2 dimensions"):
        costs.time_us("all_gather", 1, mesh, 2)


def test_symbolic_costs_are_those_of_the_original(times: CollectiveTimes) -> None:
    function = DTensorCosts(times).function("all_gather", lambda gib, mesh, dimension: ("original", gib))
    symbol = object()
    assert function(symbol, None, 0) == ("original", symbol)
    topology = SimpleNamespace(mesh=SimpleNamespace(mesh=SimpleNamespace(tolist=lambda: list(range(8)))))
    assert function(1 / 1024, topology, 0) == times.time_us("all_gather", 1 << 20)
