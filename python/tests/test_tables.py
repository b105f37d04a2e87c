"""Arrow tables: columns are the keys of the rows, values those of the JSON, types those of the schema."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

import fabricast
from fabricast import Fabric
from fabricast._fabricast import Table


@pytest.fixture(scope="module")
def plan() -> fabricast.Result:
    return fabricast.plan("hgx-h200", collective="all_reduce", sizes="1KiB..1MiB:32")


def without_nulls(value: Any) -> Any:
    """Returns a value without the keys whose value is null: a column has null where the JSON has no key."""
    if isinstance(value, dict):
        return {key: without_nulls(one) for key, one in value.items() if one is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value


def all_results() -> list[fabricast.Result]:
    return [
        fabricast.plan("hgx-h200", collective="all_reduce", sizes="1KiB..1MiB:32"),
        fabricast.simulate("dgx-a100", collective="all_gather", bytes="64KiB", utilization_over_time=3),
        fabricast.simulate("hgx-h200", call=["all_gather:ranks=0-3,bytes=1MiB", "all_reduce:ranks=4-7,bytes=1MiB"]),
        fabricast.compare(
            "validate/data/h200-node/logs-repeat/g_allreduce_x8_default.txt", fabric="hgx-h200", no_nvls=True, no_explain=True
        ),
        fabricast.study("examples/training-70b.toml"),
        Fabric("hgx-h200").show(),
        Fabric("hgx-h200").check(),
        Fabric.presets(),
    ]


def test_rows_survive_the_way_through_arrow() -> None:
    for result in all_results():
        table = pyarrow.table(result)
        table.validate(full=True)
        assert table.column_names == result.columns
        # Values of several types are text in Arrow: their JSON.
        mixed = [name for name in table.column_names if pyarrow.types.is_string(table.schema.field(name).type)]
        for got, expected in zip(table.to_pylist(), result.rows, strict=True):
            for name in mixed:
                if not isinstance(expected.get(name), (str, type(None))):
                    got[name] = json.loads(got[name])
            assert without_nulls(got) == without_nulls(expected)


def test_parquet_files_have_the_table(tmp_path: Path) -> None:
    from pyarrow import parquet

    for number, result in enumerate(all_results()):
        path = tmp_path / f"{number}.parquet"
        result.to_parquet(path)
        assert parquet.read_table(path).equals(pyarrow.table(result))


def test_parquet_files_are_not_overwritten(plan: fabricast.Result, tmp_path: Path) -> None:
    path = tmp_path / "plan.parquet"
    plan.to_parquet(path, "ranges")
    with pytest.raises(FileExistsError):
        plan.to_parquet(path)
    assert len(pyarrow.parquet.read_table(path)) == len(plan.ranges)
    plan.to_parquet(path, force=True)
    assert len(pyarrow.parquet.read_table(path)) == len(plan)


def test_columns_are_in_the_order_of_the_document(plan: fabricast.Result) -> None:
    assert plan.columns[:4] == ["collective", "bytes", "algorithm", "protocol"]
    assert plan.columns[: len(plan.rows[0])] == list(plan.rows[0])


def test_types_do_not_depend_on_the_rows(plan: fabricast.Result) -> None:
    schema = pyarrow.table(plan).schema
    assert schema.field("bytes").type == pyarrow.uint64()
    assert schema.field("time_us").type == pyarrow.float64()
    assert pyarrow.types.is_struct(schema.field("runner_up").type)
    # No row has a measured time or a preferred default; the columns are there, with their types.
    assert schema.field("measured_us").type == pyarrow.float64()
    assert pyarrow.types.is_struct(schema.field("best_of_library").type)
    empty = Fabric("hgx-h200").check()
    assert len(empty) == 0 and pyarrow.table(empty).num_rows == 0 and set(empty.columns) == {"severity", "message"}
    assert b"interval" in schema.field("low_us").metadata[b"description"]


def test_other_lists_are_tables(plan: fabricast.Result) -> None:
    ranges = pyarrow.table(plan.table("ranges"))
    assert ranges.num_rows == len(plan.ranges)
    with pytest.raises(ValueError, match="no list `nothing`"):
        plan.table("nothing")


def test_pandas_and_polars_take_results(plan: fabricast.Result) -> None:
    polars = pytest.importorskip("polars")
    frame = plan.to_pandas()
    assert list(frame["time_us"]) == [row["time_us"] for row in plan.rows]
    assert list(frame.columns) == plan.columns
    assert polars.DataFrame(plan)["bytes"].to_list() == [row["bytes"] for row in plan.rows]


def test_a_table_is_exported_more_than_once(plan: fabricast.Result) -> None:
    assert pyarrow.table(plan) == pyarrow.table(plan)
    # An unused stream frees its table.
    plan.__arrow_c_stream__()


def test_values_that_contradict_the_schema_are_errors() -> None:
    document = {"format": "fabricast-plan/2", "rows": [{"bytes": -1}]}
    with pytest.raises(ValueError, match="-1 does not fit a column of type UInt64"):
        Table(json.dumps(document), "rows")


def test_unknown_attributes_name_the_known_ones(plan: fabricast.Result) -> None:
    with pytest.raises(AttributeError, match="expected one of format, fabric"):
        plan.fabrik
    assert "ranges" in dir(plan)
