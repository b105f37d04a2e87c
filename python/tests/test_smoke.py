"""Runs one call through the wheel; ``.ci/run`` runs this test alone."""

import fabricast


def test_simulation_has_a_row_and_attributes() -> None:
    run = fabricast.simulate("hgx-h200", collective="all_reduce", bytes="1MiB", algorithm="ring", protocol="simple")
    assert run.ranks == 8 and run.bytes == 1 << 20
    assert 0 < run.bound_us < run.low_us < run.time_us < run.high_us
    assert len(run) == 1 and run.rows[0]["time_us"] == run.time_us and "time_us" in run.columns
