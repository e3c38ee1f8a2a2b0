"""Runs of a message set compared with its records."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiel_groups.errors import ProtocolError
from kiel_groups.model import Record, TopicPartition
from kiel_groups.wire.message_sets.decoder import MessageRun, message_steps
from kiel_groups.wire.message_sets.message_layout import PartialMessage
from tests.helpers.examples import examples
from tests.helpers.message_sets import (
    WAYS,
    decode_message_set,
    garbage_with_crc,
    hostile_lengths,
    message_sets,
    mutated,
    reading,
)

pytestmark = pytest.mark.property

SOURCE = TopicPartition("t", 0)
LIMIT = 1 << 20

any_set = message_sets() | mutated() | garbage_with_crc | hostile_lengths | st.binary(max_size=200)
positions = st.integers(0, 60) | st.integers(0, 1 << 44)


def decoded(data: bytes, position: int) -> list[Record] | type[Exception]:
    """Return the records of a set, or the class of the error."""
    try:
        return decode_message_set(data, SOURCE, position, max_decompressed_bytes=LIMIT)
    except (PartialMessage, ProtocolError) as error:
        return type(error)


def in_runs(data: bytes, position: int, announced_bytes: int | None) -> list[MessageRun] | type[Exception]:
    """Return the runs of a set, or the class of the error. The set is overwritten before the records are made."""
    received = bytearray(data)
    steps = message_steps(received, SOURCE, position, max_decompressed_bytes=LIMIT, announced_bytes=announced_bytes)
    try:
        return [run for run in steps if run is not None]
    except (PartialMessage, ProtocolError) as error:
        return type(error)
    finally:
        received[:] = bytes(len(received))


@settings(max_examples=examples(500))
@given(any_set, positions, st.integers(1, 400), st.none() | st.integers(0, 400))
def test_the_runs_of_a_set_have_its_records(
    data: bytes, position: int, run_bytes: int, announced_bytes: int | None
) -> None:
    """
    All runs together have the records of the set, whatever their size, whichever wrappers are announced, and whatever
    becomes of the received bytes. Each run knows its count, its offsets and its size, and exceeds the limit only with a
    single message.
    """
    for way in WAYS:
        with reading(way):
            wanted = decoded(data, position)
        with reading(way, run_bytes):
            found = in_runs(data, position, announced_bytes)
            if not isinstance(found, list):
                assert found is wanted, way
                continue
            records = [run.records() for run in found]
            assert [record for each in records for record in each] == wanted, way
            for run, made in zip(found, records, strict=True):
                values, from_values = run.values()
                assert values == [each.value for each in made]
                assert list(from_values) == made
                assert (run.count, run.first_offset, run.last_offset) == (len(made), made[0].offset, made[-1].offset)
                sizes = [26 + len(each.key or b"") + len(each.value or b"") for each in made]
                assert sum(sizes) <= run.size_bytes
                assert run.size_bytes <= run_bytes or run.count == 1
