"""The data of znodes: written values are read back, and other data raises one kind of error."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiel_groups.errors import ProtocolError
from kiel_groups.group.znodes.contents import (
    GroupSettings,
    GroupState,
    MemberAssignment,
    MemberInfo,
    encode_consumer_id,
    encode_offset,
    make_member_id,
    parse_broker,
    parse_offset,
    parse_topic,
)
from kiel_groups.group.znodes.transactions import MOST_BYTES, MOST_OPERATIONS, Create, Operation, chunks, size_of
from kiel_groups.model import TopicPartition
from tests.helpers.examples import examples

pytestmark = pytest.mark.property

INT32 = range(-(2**31), 2**31)

legal_names = st.from_regex(r"[a-zA-Z0-9_-]{1,20}", fullmatch=True)
texts = st.text(st.characters(codec="utf-8"), max_size=20)
numbers = st.integers(0, 2**31 - 1)

group_states = st.builds(
    GroupState,
    generation=numbers,
    state=st.sampled_from(["publishing", "done"]),
    leader=texts,
    allocator=texts,
    cause=texts,
    members=numbers,
    partitions=numbers,
    unassigned=st.dictionaries(texts, numbers, max_size=4),
    unassigned_names=st.lists(texts, max_size=4).map(tuple),
    fallback=texts,
    created_at_ms=st.integers(0, 2**53),
)
assignments = st.builds(MemberAssignment, numbers, texts, st.frozensets(st.builds(TopicPartition, texts, numbers)))
member_infos = st.builds(
    MemberInfo,
    member_id=st.just("m"),
    session_timeout_ms=numbers,
    subscription=st.sets(legal_names, max_size=5).map(lambda names: tuple(sorted(names))),
    instance_id=st.none() | legal_names,
    host=texts,
    pid=numbers,
    client=texts,
    started_at_ms=st.integers(0, 2**53),
)

PARSERS: dict[str, Callable[[bytes, str], object]] = {
    "member": partial(MemberInfo.parse, "m"),
    "group_state": GroupState.parse,
    "assignment": MemberAssignment.parse,
    "settings": GroupSettings.parse,
    "topic": parse_topic,
    "broker": parse_broker,
    "offset": parse_offset,
}
FIELDS = [
    *("version", "generation", "state", "leader", "for", "partitions", "members", "unassigned", "unassigned_names"),
    *("subscription", "session_timeout_ms", "host", "port", "pid", "store", "mode", "auto_offset_reset", "t", "0"),
]

scalars = st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats() | st.sampled_from(["done", "\ud800", ""])
json_values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=6),
    max_leaves=12,
)
sound = st.fixed_dictionaries(
    {"generation": st.just(1), "for": st.just("m"), "partitions": st.just({"0": [0]}), "state": st.just("done")}
)
nearly = st.builds(lambda base, other: {**base, **other}, sound, st.dictionaries(st.sampled_from(FIELDS), json_values))


@given(group_states)
def test_a_group_state_is_read_as_it_was_written(group_state: GroupState) -> None:
    """A group state with any values in its fields is read as it was written."""
    assert GroupState.parse(group_state.encode(), "p") == group_state


@given(assignments)
def test_an_assignment_is_read_as_it_was_written(stored: MemberAssignment) -> None:
    """An assignment is read as it was written. Equal assignments have equal bytes, whatever the order of their sets."""
    assert MemberAssignment.parse(stored.encode(), "p") == stored
    assert (
        MemberAssignment(stored.generation, stored.member_id, frozenset(sorted(stored.partitions))).encode()
        == stored.encode()
    )


@given(member_infos)
def test_a_member_is_read_as_it_was_written(info: MemberInfo) -> None:
    """A member is read as it was written, whatever its host's name."""
    assert MemberInfo.parse("m", info.encode(), "p") == info


@given(st.integers(0, 2**63 - 1))
def test_an_offset_is_read_as_it_was_written(offset: int) -> None:
    """An offset is written with decimal digits only, and read as it was written."""
    assert re.fullmatch(rb"[0-9]+", encode_offset(offset))
    assert parse_offset(encode_offset(offset), "p") == offset


damaged = st.binary(max_size=60) | (json_values | nearly).map(lambda value: json.dumps(value).encode())


@settings(max_examples=examples(300))
@given(damaged)
def test_garbage_is_a_protocol_error_or_a_value(data: bytes) -> None:
    """Any bytes are parsed into a value or raise a ProtocolError whose text has the path."""
    for parse in PARSERS.values():
        try:
            parse(data, "path")
        except ProtocolError as error:
            if not str(error).startswith("path: "):
                raise AssertionError(f"{error!r} does not name its path") from error


@given(st.sets(legal_names, max_size=8), st.integers(0, 2**53))
def test_a_consumer_id_has_only_numbers_that_java_reads(topics: set[str], started_ms: int) -> None:
    """Every number in a consumer id's data fits into an int32, as Java requires. The time is text."""
    seen: list[int] = []

    def note(digits: str) -> int:
        seen.append(int(digits))
        return seen[-1]

    fields = json.loads(encode_consumer_id(topics, started_ms), parse_int=note, parse_float=pytest.fail)
    assert all(number in INT32 for number in seen)
    assert fields["timestamp"] == str(started_ms)
    assert fields["subscription"].keys() == topics


@given(legal_names, st.text(max_size=20), st.integers(0, 2**53), st.integers(-(2**63), 2**63 - 1))
def test_a_member_id_is_a_java_consumer_id(group: str, host: str, started_ms: int, session: int) -> None:
    """A member id has the form ``<group>_<host>-<ms>-<hex>`` and only legal characters, whatever the host's name."""
    made = make_member_id(group, host, started_ms, session)
    assert re.fullmatch(rf"{re.escape(group)}_[a-zA-Z0-9._-]*-{started_ms}-[0-9a-f]{{1,16}}", made)
    assert int(made.rpartition("-")[2], 16) == session % 2**64


@given(st.lists(st.integers(0, MOST_BYTES), max_size=30))
def test_chunks_keep_order_and_bounds(sizes: list[int]) -> None:
    """Chunks keep all operations in order. Only a chunk with a single operation may exceed the bound."""
    operations: list[Operation] = [Create("/x", bytes(size)) for size in sizes]
    cut = list(chunks(operations))
    assert [operation for chunk in cut for operation in chunk] == operations
    for chunk in cut:
        assert 0 < len(chunk) <= MOST_OPERATIONS
        assert len(chunk) == 1 or sum(map(size_of, chunk)) <= MOST_BYTES
