"""``consume()`` makes values, and records only where the application asks for them."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Sequence
from typing import Any

import pytest

from kiel_groups.clients.delivery.deserializer import Deserializer, OnBadRecord
from kiel_groups.clients.fetch.partition_fetch import FetchedBatch
from kiel_groups.metrics import Metrics
from kiel_groups.model import FetchedRecords, PartitionBatch, Record
from kiel_groups.wire.message_sets import decoder
from kiel_groups.wire.message_sets.decoder import message_steps
from tests.helpers.delivery_bench import P0
from tests.helpers.fetch_bench import run_of
from tests.helpers.message_sets import WAYS, reading
from tests.helpers.reference_codec import encode

pytestmark = pytest.mark.unit

KEYED = [(7, None, b"7"), (8, b"key", b"8"), (12, b"", b"12")]
PLAIN = [(offset, None, b"%d" % offset) for offset in range(5, 9)]
NULL = [(5, None, b"5"), (6, None, None), (7, None, b"7")]

Messages = Sequence[tuple[int, bytes | None, bytes | None]]


def fetched(messages: Messages) -> FetchedBatch:
    """Return these messages as the fetcher does."""
    (run,) = message_steps(encode(list(messages)), P0, 0, max_decompressed_bytes=1 << 20)
    return FetchedBatch(P0, run, 1, run.size_bytes)


def records_of(messages: Messages) -> list[Record]:
    return [Record(*P0, *message) for message in messages]


def part_of(
    batch: FetchedBatch, function: Any = bytes, on_bad_record: OnBadRecord = "raise"
) -> tuple[PartitionBatch, Any]:
    """Return a batch as ``consume()`` returns it, and the error of the next record."""
    reader = Deserializer(function, Metrics(), lambda: 1_000.0, on_bad_record=on_bad_record)
    converted = reader.values(batch, 3)
    return converted.records, converted.error


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("messages", [KEYED, PLAIN], ids=["keys and gaps", "neither"])
def test_a_part_has_the_values_and_the_records_of_its_messages(way: str, messages: Messages) -> None:
    with reading(way):
        part, error = part_of(fetched(messages), int)
        assert (error, part.values) == (None, [int(value or b"") for _, _, value in messages])
        assert list(part.fetched) == records_of(messages)
        assert part.records == [record._replace(value=int(record.value)) for record in records_of(messages)]


@pytest.mark.skipif(not decoder.COMPILED, reason="the package was installed without a C compiler")
def test_no_record_is_made_for_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for the bytes nor for what a function returns, and a limit of the buffer makes none either."""

    def no_records(*_: object) -> None:
        raise AssertionError("records were made")

    batch = fetched(PLAIN)
    monkeypatch.setattr("kiel_groups.wire._messages.records", no_records)
    assert part_of(batch)[0].values == part_of(batch, lambda value: value)[0].values == [b"5", b"6", b"7", b"8"]
    assert run_of(batch) is not None


def test_bytes_as_the_deserializer_keep_the_values_as_they_are() -> None:
    """A null value is one on which ``bytes`` fails, as any function may. The values of a part are a list of its own."""
    part, _ = part_of(fetched(NULL))
    assert part.values == [b"5", b"7"]
    assert [record.offset for record in part.records] == [5, 7]
    batch = fetched(PLAIN)
    values, _ = part_of(batch)
    assert isinstance(values.values, list)
    values.values.clear()
    assert list(values.fetched) == records_of(PLAIN)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("error", [ValueError, StopIteration, KeyError])
def test_each_value_is_read_once_and_in_order(way: str, error: type[Exception]) -> None:
    """
    Also those around a failure, of whatever kind. ``map`` takes a StopIteration of its function for the end.
    """
    seen: list[bytes | None] = []

    def read(value: bytes | None) -> bytes | None:
        seen.append(value)
        if value in {b"6", b"8"}:
            raise error("no such value")
        return value

    with reading(way):
        part, failed = part_of(fetched(PLAIN), read)
        assert (part.values, failed, seen) == ([b"5", b"7"], None, [b"5", b"6", b"7", b"8"])
        assert part.records == [each for each in records_of(PLAIN) if each.offset in {5, 7}]
        seen.clear()
        part, failed = part_of(fetched(PLAIN), read, on_bad_record=lambda *_: None)
        assert (part.values, failed.offset, seen) == ([b"5"], 6, [b"5", b"6"])
        assert part.records == records_of(PLAIN)[:1]
        assert isinstance(failed.__cause__, error)


def test_an_exit_in_a_deserializer_is_raised_at_once() -> None:
    seen: list[bytes] = []

    def leave(value: bytes) -> None:
        seen.append(value)
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        part_of(fetched(PLAIN), leave)
    assert seen == [b"5"]


def test_fetched_records_are_a_sequence_of_records() -> None:
    """They compare, pickle and copy as a list does. Slices are such sequences, too."""
    wanted = records_of(KEYED)
    values, keys, offsets = ([record[field] for record in wanted] for field in (4, 3, 2))
    records = FetchedRecords(P0, values, keys, offsets)
    assert (records, repr(records), len(records)) == (wanted, repr(wanted), 3)
    assert records == FetchedRecords(P0, values, keys, offsets)
    assert records != wanted[:2]
    assert [records[0], records[-1]] == [wanted[0], wanted[-1]]
    assert (records[1:], records[:0], wanted[2] in records) == (wanted[1:], [], True)
    assert all(type(record) is Record for record in (*records, records[1]))
    with pytest.raises(IndexError):
        records[3]
    with pytest.raises(TypeError, match="unhashable"):
        hash(records)
    for copied in (pickle.loads(pickle.dumps(records)), copy.deepcopy(records), copy.copy(records)):
        assert (type(copied), copied) == (list, wanted)
    without_keys = FetchedRecords(P0, values, None, range(5, 8))
    assert without_keys[1:] == [Record(*P0, 6, None, b"8"), Record(*P0, 7, None, b"12")]
    assert without_keys[0] == Record(*P0, 5, None, b"7")


def test_a_part_compares_and_pickles_as_with_a_list() -> None:
    part, _ = part_of(fetched(KEYED), json.loads)
    same = PartitionBatch(P0, 3, [7, 8, 12], records_of(KEYED))
    assert part == same == pickle.loads(pickle.dumps(part)) == copy.deepcopy(part)
    assert part.records == same.records


@pytest.mark.parametrize("as_list", [False, True], ids=["as fetched", "as a list"])
@pytest.mark.parametrize("values", [[7, 8], [7, 8, 12, 13], []], ids=["too few", "too many", "none"])
def test_a_part_refuses_values_of_another_number(values: list[int], as_list: bool) -> None:
    """A part whose values were replaced by more or fewer makes no records: those that are left out would be lost."""
    records = records_of(KEYED) if as_list else FetchedRecords(P0, [b"7", b"8", b"12"], None, range(3))
    part = PartitionBatch(P0, 3, values, records)
    with pytest.raises(ValueError, match=r"values for 3 records|argument 2 is"):
        part.records  # noqa: B018 -- the property raises


def test_the_values_of_a_batch_are_made_once_for_all_of_its_parts() -> None:
    """A hook for bad records leaves a part after each of them, which took as long as the whole batch each time."""
    reads = 0

    class Counted(Record):
        @property
        def value(self) -> bytes:
            nonlocal reads
            reads += 1
            return b"%d" % self.offset

    rest = FetchedBatch(P0, [Counted(*P0, offset, None, b"") for offset in range(100)], 1, 1)
    while len(rest) > 1:
        rest = rest.part(1, len(rest))
        part, _ = part_of(rest, int)
        assert part.values == list(range(100 - len(rest), 100))
        assert [record.offset for record in part.fetched] == part.values
    assert reads == 100
