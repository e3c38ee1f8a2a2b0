"""The account of ``examples/spark_lake.py``: each difference between its ledger and the lake is found."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from tests.helpers.commands import REPOSITORY

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """Import the example, which is in no package."""
    spec = importlib.util.spec_from_file_location("spark_lake", REPOSITORY / "examples" / "spark_lake.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


#: Two partitions. Of the second one, offset 3 is damaged, and offsets from 5 on are deleted before they are archived.
KEPT, HURT = ("clicks", 0, 0), ("users", 0, 1)
RECORDS = {KEPT: 4, HURT: 8}
THERE = {KEPT: [0, 1, 2, 3], HURT: [0, 1, 2, 4]}
TOLD = {KEPT: [], HURT: [("quarantined", 3, 4), ("lost", 5, 5), ("out of order", 0, 2)]}


def differences(
    example: ModuleType, there: dict[tuple[str, int, int], list[int]] | None = None, told: object = None
) -> list[str]:
    """Return the differences between the ledger and a lake with these offsets, of which ``verify`` has told."""
    ledger = example.Ledger()
    for log, count in RECORDS.items():
        ledger.produced[example.Log(*log)] = count
    ledger.damaged[example.Log(*HURT)].add(3)
    ledger.deleted[example.Log(*HURT)].update((5, 6, 7))
    for log, offsets in (THERE if there is None else there).items():
        for offset in offsets:
            ledger.found(example.Log(*log), offset, example.value_of(example.Log(*log), offset, hour=0))
    return list(ledger.differences(TOLD if told is None else told))


def test_a_lake_without_the_destroyed_records_agrees(example: ModuleType) -> None:
    """A loss without an end reaches to the last produced record; the order of rows does not matter."""
    assert differences(example) == []


def test_rows_that_are_missing_or_there_twice_are_found(example: ModuleType) -> None:
    """The line names the partition, how many offsets there are and were expected, and the first one that differs."""
    assert differences(example, THERE | {KEPT: [0, 1, 1, 3]}) == [
        f"{example.Log(*KEPT)}: 1 offsets are twice in the lake, 0 expected; see offset 1",
        f"{example.Log(*KEPT)}: 1 offsets are not in the lake, 0 expected; see offset 2",
    ]
    (line,) = differences(example, THERE | {HURT: [0, 1, 2, 3, 4]})
    assert line.endswith("3 offsets are not in the lake, 4 expected; see offset 3")


def test_what_verify_says_is_compared_too(example: ModuleType) -> None:
    """A loss that was not caused, a damaged message without an account, and any other range are differences."""
    (line,) = differences(example, told=TOLD | {KEPT: [("lost", 2, 3)]})
    assert line.endswith("1 offsets are lost, says verify, 0 expected; see offset 2")
    (line,) = differences(example, told=TOLD | {HURT: [("lost", 5, 5)]})
    assert line.endswith("0 offsets are quarantined, says verify, 1 expected; see offset 3")
    (line,) = differences(example, told=TOLD | {KEPT: [("doubled", 2, 3)]})
    assert line.endswith("1 offsets are doubled, says verify, 0 expected; see offset 2")
    never = TOLD | {("users", 1, 0): [("unplanned", 0, 1)]}
    assert differences(example, told=never) == ["('users', 1, 0) was never produced"]
    assert differences(example, told=TOLD | {("users", 1, 1): []}) == [], "an empty partition"


def test_a_row_with_the_value_of_another_is_found(example: ModuleType) -> None:
    """Each value says where it was produced."""
    ledger = example.Ledger()
    log = example.Log(*KEPT)
    ledger.produced[log] = 2
    ledger.found(log, 0, example.value_of(log, 1, hour=0))
    ledger.found(log, 2, example.value_of(log, 2, hour=0))
    ledger.found(log, 1, None)
    assert len(list(ledger.differences({}))) == 4, "three wrong rows, and two offsets without a row"


def test_the_hours_have_all_records(example: ModuleType) -> None:
    """The shares of all hours are the records asked for, and the topic that is created again outgrows the earlier."""
    for records in (10_000, 123_457):
        shares = [dict(example.shares(records, hour, generation=0)) for hour in range(example.HOURS)]
        again = dict(example.shares(records, example.HOURS - 1, generation=1))
        assert sum(sum(each.values()) for each in [*shares, again]) == records
        for log, count in again.items():
            assert count > sum(each[log._replace(generation=0)] for each in shares)
