"""Tests of synthesised schedules: they equal those of the command, and their certificates hold on their fabric only."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import fabricast
from fabricast import Fabric, FabricastError, Schedule

DAMAGED = Fabric("mi300x", fail="gpu0-gpu1")


@pytest.fixture(scope="module")
def packed() -> Schedule:
    return fabricast.synthesize(DAMAGED, collective="all_gather", bytes="64MiB", trees=4)


def test_schedule_and_certificate_equal_output_of_commands(command: Callable[..., str], packed: Schedule, tmp_path: Path) -> None:
    fabric = ["--fabric=mi300x", "--fail=gpu0-gpu1"]
    words = ["--collective=all_gather", "--bytes=64MiB", "--algorithm=tree_packing", "--trees=4"]
    printed = command("schedule", "generate", *fabric, *words)
    assert json.loads(packed.export()) == json.loads(printed)
    assert packed.certificate == json.loads(printed)["certificate"]
    by_flag = fabricast.synthesize("mi300x", fail="gpu0-gpu1", collective="all_gather", bytes="64MiB", trees=4)
    assert by_flag.export() == packed.export()
    file = tmp_path / "trees.json"
    file.write_text(printed)
    assert packed.certify(DAMAGED).json == command("schedule", "certify", str(file), *fabric)


@pytest.mark.parametrize(
    ("collective", "phases"),
    [
        ("all_gather", {"spread"}),
        ("reduce_scatter", {"collect"}),
        ("all_reduce", {"collect", "spread"}),
        ("broadcast", {"spread"}),
        ("reduce", {"collect"}),
    ],
)
def test_trees_span_all_ranks(collective: str, phases: set[str]) -> None:
    root = {"root": 3} if collective in ("broadcast", "reduce") else {}
    schedule = fabricast.synthesize("mi300x", collective=collective, bytes=1 << 20, **root)
    certificate = schedule.certificate
    assert certificate is not None and schedule.name == "tree_packing" and schedule.bytes == 1 << 20
    assert {tree["phase"] for tree in certificate["trees"]} == phases
    assert {tree["root"] for tree in certificate["trees"]} == ({3} if root else set(range(8)))
    for tree in certificate["trees"]:
        parents, root_of_tree = tree["parents"], tree["root"]
        assert len(parents) == schedule.ranks and tree["units"] > 0
        for rank in range(schedule.ranks):
            for _ in range(schedule.ranks):
                rank = parents[rank]
            assert rank == root_of_tree


def test_times_of_certificate_and_check_are_equal(packed: Schedule) -> None:
    certificate, checked = packed.certificate, packed.certify(DAMAGED)
    assert certificate is not None and checked.ok
    assert checked.bound_us == certificate["bound_ps"] / 1e6 and checked.packed_us == certificate["packed_ps"] / 1e6
    assert checked.gap == pytest.approx(certificate["packed_ps"] / certificate["bound_ps"] - 1)
    assert checked.cut == certificate["cut"] and checked.trees == len(certificate["trees"])
    assert checked.operations == packed.operations


def edges(schedule: Schedule) -> set[frozenset[int]]:
    """Returns the pairs of ranks between which trees move data."""
    assert schedule.certificate is not None
    return {
        frozenset((rank, parent))
        for tree in schedule.certificate["trees"]
        for rank, parent in enumerate(tree["parents"])
        if rank != parent
    }


def test_failed_links_have_no_trees() -> None:
    # This fabric has no other path between two GPUs than their link.
    file = "tests/data/synthesis/mi300x.toml"
    whole, damaged = (
        fabricast.synthesize(Fabric(file, gpu_model="MI300X", fail=fail), collective="all_gather", bytes="1MiB")
        for fail in (None, "g0-g1")
    )
    assert edges(whole) - edges(damaged) == {frozenset((0, 1))}
    assert whole.certificate is not None and damaged.certificate is not None
    assert whole.certificate["bound_ps"] < damaged.certificate["bound_ps"]


def test_number_of_trees_is_limited() -> None:
    trees = {
        limit: fabricast.synthesize(
            "tests/data/synthesis/mi250-1x16.toml", collective="all_gather", bytes="1MiB", gpu_model="MI250X", trees=limit
        ).certificate
        for limit in (1, 3)
    }
    assert trees[1] is not None and trees[3] is not None
    assert max(tree["units"] for tree in trees[1]["trees"]) == 1 and len(trees[1]["trees"]) == 16
    assert trees[3]["packed_ps"] < trees[1]["packed_ps"]


def test_certificate_of_a_whole_fabric_fails_on_a_slowed_one() -> None:
    whole = fabricast.synthesize("mi300x", collective="all_gather", bytes="64MiB")
    assert whole.certify("mi300x").ok
    with pytest.raises(FabricastError, match="^<schedule>: link gpu0->gpu1 needs") as caught:
        whole.certify(Fabric("mi300x", slow="gpu0-gpu1=0.5"))
    assert caught.value.exit_code == 1


def test_changed_certificate_fails(packed: Schedule) -> None:
    document = json.loads(packed.export())
    document["certificate"]["bound_ps"] += 1_000_000
    changed = Schedule.parse(json.dumps(document))
    assert changed.verify().ok
    with pytest.raises(FabricastError) as caught:
        changed.certify(DAMAGED)
    assert caught.value.exit_code == 1


def test_other_schedules_have_no_certificate() -> None:
    ring = Schedule.build("mi300x", collective="all_gather", bytes="1MiB", algorithm="ring")
    assert ring.certificate is None
    with pytest.raises(FabricastError, match="^<schedule>: the schedule has no certificate"):
        ring.certify("mi300x")


def test_certificate_is_in_the_file(packed: Schedule, tmp_path: Path) -> None:
    file = tmp_path / "trees.json"
    written = fabricast.synthesize(DAMAGED, collective="all_gather", bytes="64MiB", trees=4, output=file)
    assert Schedule.read(file).certificate == written.certificate == packed.certificate
    with pytest.raises(FabricastError, match="the schedule has 8 ranks, and the fabric 4"):
        Schedule.read(file).certify(Fabric("mi300x", gpus=4))


def test_wrong_calls_are_refused() -> None:
    with pytest.raises(FabricastError, match="does not exist for all_to_all") as caught:
        fabricast.synthesize("mi300x", collective="all_to_all")
    assert caught.value.exit_code == 2
    with pytest.raises(FabricastError, match="'0' for '--trees <K>'"):
        fabricast.synthesize("mi300x", collective="all_gather", trees=0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'algorithm'"):
        fabricast.synthesize("mi300x", collective="all_gather", algorithm="ring")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="required keyword-only argument: 'collective'"):
        fabricast.synthesize("mi300x")  # type: ignore[call-arg]


def test_generator_refuses_flags_that_do_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    import generate

    function = generate.Function("f", ["plan"], "", "", "", "", omitted=frozenset(["no-such-flag"]))
    with pytest.raises(SystemExit, match="plan has no flags no-such-flag"):
        generate.function(function, fabricast._fabricast.command_flags(["plan"]))
