"""Tests of schedules: they are built, read, verified, exported and simulated."""

from pathlib import Path

import pytest

import fabricast
from fabricast import FabricastError, Schedule

FILE = "tests/data/schedules/msccl-allreduce-allpairs-8n-ll-32tb.xml"


@pytest.fixture(scope="module")
def ring() -> Schedule:
    return Schedule.build("dgx-a100", collective="all_gather", bytes="1MiB", algorithm="ring", protocol="simple", channels=2)


def test_files_are_read_and_verified() -> None:
    schedule = Schedule.read(FILE)
    assert (schedule.collective, schedule.ranks) == ("all_reduce", 8)
    assert schedule.verify().operations == fabricast.verify(FILE).operations


@pytest.mark.parametrize("to", ["json", "msccl-xml"])
def test_exported_schedules_are_read_back(ring: Schedule, to: str, tmp_path: Path) -> None:
    file = tmp_path / "ring"
    file.write_text(ring.export(to))
    copy = Schedule.read(file)
    assert (copy.collective, copy.ranks) == ("all_gather", 8)
    assert copy.verify().ok
    assert copy.export(to) == ring.export(to)


def test_a_schedule_is_simulated_as_its_strategy(ring: Schedule) -> None:
    ours = fabricast.simulate("dgx-a100", schedule=ring)
    strategy = fabricast.simulate(
        "dgx-a100", collective="all_gather", bytes="1MiB", algorithm="ring", protocol="simple", channels=2
    )
    assert ours.time_us == strategy.time_us
    assert fabricast.verify(ring).operations == ring.operations


def test_a_wrong_schedule_names_its_fault(ring: Schedule) -> None:
    # This change sends the first message to a wrong rank.
    text = ring.export().replace('"peer":1', '"peer":2', 1)
    with pytest.raises(FabricastError, match="the schedule is wrong") as caught:
        Schedule.parse(text).verify()
    assert caught.value.exit_code == 1 and caught.value.result is not None
    assert {"rank", "chunk", "found", "expected"} <= set(caught.value.result.fault)


def test_texts_that_are_no_schedule_have_a_place() -> None:
    with pytest.raises(FabricastError) as caught:
        Schedule.parse('{"fabricast_schedule": 1,\n "name": }', "mine.json")
    assert (caught.value.file, caught.value.line) == ("mine.json", 2)


def test_unknown_formats_name_the_known_ones(ring: Schedule) -> None:
    with pytest.raises(FabricastError, match="expected one of json, msccl-xml, mscclpp"):
        ring.export("msccl")
