"""Adapters with PyTorch itself: nodes of traced graphs, overlap scheduling, DTensor and the profile reader. Skipped without PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from fabricast.estimates import CollectiveTimes, RuntimeEstimation, dtensor_costs, write_profile  # noqa: E402

WORLD = 8


@pytest.fixture(scope="module")
def times() -> CollectiveTimes:
    return CollectiveTimes("hgx-h200")


@pytest.fixture(scope="module", autouse=True)
def job() -> Iterator[None]:
    """A job of eight ranks without communication: the backend ``fake``."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=WORLD, store=FakeStore())
    yield
    torch.distributed.destroy_process_group()


def traced() -> Any:
    """Graph of an all_gather, a reduce_scatter, an all_reduce and an all_to_all of float32."""
    from torch.distributed import _functional_collectives as functional
    from torch.fx.experimental.proxy_tensor import make_fx

    group = torch.distributed.group.WORLD

    def step(shard: Any, gradient: Any) -> Any:
        weights = functional.all_gather_tensor(shard, 0, group)
        part = functional.reduce_scatter_tensor(gradient, "sum", 0, group)
        norm = functional.all_reduce(part, "sum", group)
        tokens = functional.all_to_all_single(gradient, None, None, group)
        return weights.sum() + norm.sum() + tokens.sum()

    return make_fx(step, tracing_mode="fake")(torch.empty(1024, 512), torch.empty(8192, 256))


def test_nodes_of_a_graph_have_times(times: CollectiveTimes) -> None:
    estimate = RuntimeEstimation(times)
    found = {
        node.target.name().split("::")[-1].split(".")[0]: (estimate(node), estimate(node, 0))
        for node in traced().graph.nodes
        if estimate(node) is not None
    }
    expected = {
        "all_gather_into_tensor": times.time_us("all_gather", 8192 * 512 * 4) / 1e3,
        "reduce_scatter_tensor": times.time_us("reduce_scatter", 8192 * 256 * 4) / 1e3,
        "all_reduce": times.time_us("all_reduce", 1024 * 256 * 4) / 1e3,
        "all_to_all_single": times.time_us("all_to_all", 8192 * 256 * 4) / 1e3,
    }
    assert {name: time for name, (time, _) in found.items()} == expected
    assert all(0 < latency <= time for time, latency in found.values())


def test_overlap_scheduling_uses_the_estimate(times: CollectiveTimes) -> None:
    scheduling = pytest.importorskip("torch._inductor.fx_passes.overlap_scheduling")
    estimate = RuntimeEstimation(times)
    gathers = [node for node in traced().graph.nodes if "all_gather_into_tensor" in str(node.target)]
    time = scheduling.estimate_collective_time(gathers[0], custom_runtime_estimation=estimate)
    assert time == times.time_us("all_gather", 8192 * 512 * 4) / 1e3


def test_overlap_scheduling_runs_with_the_estimate(times: CollectiveTimes) -> None:
    scheduling = pytest.importorskip("torch._inductor.fx_passes.overlap_scheduling")
    asked: list[int | None] = []
    estimate = RuntimeEstimation(times)

    def counted(node: Any, override_size: int | None = None) -> float | None:
        time = estimate(node, override_size)
        if time is not None:
            asked.append(override_size)
        return time

    graph = scheduling.schedule_overlap_bucketing(traced(), custom_runtime_estimation=counted, collective_bucketing=True)
    collectives = [node for node in graph.graph.nodes if estimate(node) is not None]
    assert len(collectives) == 4 and len(asked) >= 4


def test_dtensor_redistributes_at_the_predicted_cost(times: CollectiveTimes) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor import _collective_utils as utilities
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    mesh = init_device_mesh("cpu", (2, 4))
    meta = TensorMeta(torch.Size([4096, 1024]), (1024, 1), torch.float32)
    bytes = 4096 * 1024 * 4

    def cost(current: Any, target: Any) -> float:
        source = DTensorSpec(mesh, (Replicate(), current), tensor_meta=meta)
        return utilities.redistribute_cost(source, DTensorSpec(mesh, (Replicate(), target), tensor_meta=meta))

    rows = [range(4), range(4, 8)]
    before = [cost(Shard(0), Replicate()), cost(Partial(), Replicate()), cost(Partial(), Shard(0))]
    with dtensor_costs(times):
        assert cost(Shard(0), Replicate()) == times.time_us("all_gather", bytes, rows)
        assert cost(Partial(), Replicate()) == times.time_us("all_reduce", bytes, rows)
        assert cost(Partial(), Shard(0)) == times.time_us("reduce_scatter", bytes, rows)
        assert cost(Replicate(), Shard(0)) == 0
    assert before == [cost(Shard(0), Replicate()), cost(Partial(), Replicate()), cost(Partial(), Shard(0))]


def test_the_profile_reader_takes_the_file(times: CollectiveTimes, tmp_path: Path) -> None:
    reader = pytest.importorskip(
        "torch._inductor.fx_passes.profile_guided_estimation", reason="this PyTorch has no profile-guided estimation"
    )
    path = tmp_path / "profile.json"
    write_profile(path, times)
    estimator = reader.ProfileGuidedEstimator(str(path))
    direct = RuntimeEstimation(times)
    nodes = [node for node in traced().graph.nodes if direct(node) is not None]
    assert len(nodes) == 4
    for node in nodes:
        assert estimator(node) == pytest.approx(direct(node), rel=1e-9), (node, sys.version)
