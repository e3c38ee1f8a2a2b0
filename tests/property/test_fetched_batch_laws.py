"""
The parts of buffered batches, compared with a list of records.

A partition's batches are taken whole or in parts, as records, values or columns, put back, and cut off. Whatever the
order, each record comes once, in order, and with the same key and value.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiel_groups.clients.fetch.partition_fetch import FetchedBatch, PartitionFetch
from kiel_groups.model import Record, TopicPartition
from kiel_groups.wire.message_sets.decoder import message_steps
from tests.helpers.message_sets import WAYS, decode_message_set, message_sets, reading

pytestmark = pytest.mark.property

SOURCE = TopicPartition("t", 0)
LIMIT = 1 << 20
#: How many records to take, how many of them to put back, and the form in which to take them.
FORMS = ["records", "values", "columns"]
steps = st.lists(st.tuples(st.none() | st.integers(1, 5), st.integers(0, 5), st.sampled_from(FORMS)), max_size=12)


def records_of(batch: FetchedBatch, form: str) -> list[Record]:
    """Return the records of a batch, made of its columns or of its values if asked."""
    if form == "records":
        return batch.records
    if form == "values":
        values, records = batch.values()
        assert values == [record.value for record in records]
        return list(records)
    columns = batch.columns(7)
    made = [
        Record(*SOURCE, offset, key, value)
        for offset, key, value in zip(
            columns.offsets,
            (None if key is None else bytes(key) for key in columns.keys),
            (None if value is None else bytes(value) for value in columns.values),
            strict=True,
        )
    ]
    arrow = columns.to_pyarrow().to_pydict()
    assert arrow == {
        "offset": [record.offset for record in made],
        "key": [record.key for record in made],
        "value": [record.value for record in made],
    }
    assert (columns.first_offset, columns.next_offset) == (made[0].offset, made[-1].offset + 1)
    return made


@given(message_sets(), st.integers(0, 60), st.integers(1, 200), steps, st.integers(0, 80))
def test_parts_in_each_form_are_the_records(
    data: bytes, position: int, run_bytes: int, steps: list[tuple[int | None, int, str]], end: int
) -> None:
    for way in WAYS:
        with reading(way):
            wanted = decode_message_set(data, SOURCE, position, max_decompressed_bytes=LIMIT)
        with reading(way, run_bytes):
            runs = list(message_steps(data, SOURCE, position, max_decompressed_bytes=LIMIT))
        state = PartitionFetch(SOURCE, 1, position)
        state.buffered.extend(FetchedBatch(SOURCE, run, 1, run.size_bytes) for run in runs)
        for most, back, form in steps:
            if not state.buffered:
                break
            batch = state.take(most)
            assert isinstance(batch, FetchedBatch)
            found = records_of(batch, form)
            assert found == wanted[: len(found)]
            assert (len(batch), batch.first_offset, batch.last_offset) == (
                len(found),
                found[0].offset,
                found[-1].offset,
            )
            taken = len(found)
            if back:
                taken -= min(back, taken)
                state.put_back(batch, taken)
            wanted = wanted[taken:]
            if wanted:
                assert state.next_offset == wanted[0].offset
        kept = [record for record in wanted if record.offset < end]
        assert state.truncate(end)[0] == len(wanted) - len(kept)
        assert [record for batch in state.buffered if isinstance(batch, FetchedBatch) for record in batch.records] == (
            kept
        )
