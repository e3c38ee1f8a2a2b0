"""The znodes of workers: written values are read back, and other data raises one kind of error."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiel_groups.errors import ProtocolError
from kiel_groups.group.znodes.layout import LONGEST_NAME, connector_of, znode_name
from kiel_groups.group.znodes.worker_contents import (
    LARGEST_TRACE_BYTES,
    ConfigChange,
    SourceOffset,
    StoredConnector,
    WorkStatus,
    canonical_json,
    encode_config_offset,
    parse_config_offset,
    partition_digest,
)
from tests.helpers.examples import examples

pytestmark = pytest.mark.property

DIGEST = "0" * 40

texts = st.text(st.characters(codec="utf-8"), max_size=20)
numbers = st.integers(0, 2**63 - 1)
texts_by_name = st.dictionaries(texts, texts, max_size=4)

connectors = st.builds(
    StoredConnector,
    name=texts,
    config=texts_by_name,
    target=st.sampled_from(["STARTED", "PAUSED"]),
    tasks=st.none() | st.lists(texts_by_name, max_size=4).map(tuple),
    offset=numbers,
)
statuses = st.builds(
    WorkStatus,
    state=st.sampled_from(["UNASSIGNED", "RUNNING", "PAUSED", "FAILED"]),
    worker=texts,
    trace=texts,
    generation=numbers,
)
changes = st.builds(
    ConfigChange,
    offset=numbers,
    what=texts,
    connector=texts,
    worker=texts,
    at_ms=numbers,
    keys=st.lists(texts, max_size=4).map(tuple),
    uid=texts,
)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(texts, values, max_size=4)

PARSERS: dict[str, Callable[[bytes, str], object]] = {
    "config offset": parse_config_offset,
    "connector": partial(StoredConnector.parse, "c"),
    "status": WorkStatus.parse,
    "change": ConfigChange.parse,
    "source offset": SourceOffset.parse,
}
FIELDS = [
    *("version", "name", "config", "target", "tasks", "offset", "state", "worker_id", "trace", "generation"),
    *("what", "connector", "worker", "when", "keys", "uid", "partition"),
]
scalars = st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats() | st.sampled_from(["\ud800", "", "c"])
garbage: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=6),
    max_leaves=12,
)
SOUND = [
    {"version": 1, "name": "c", "config": {}, "target": "STARTED", "tasks": None, "offset": 1},
    {"version": 1, "state": "RUNNING", "worker_id": "h:1", "trace": "", "generation": 1},
    {"version": 1, "offset": 1, "what": "", "connector": "c", "worker": "w", "when": 1, "keys": [], "uid": ""},
    {"partition": {}, "offset": {}},
]
nearly = st.builds(
    lambda base, other: {**base, **other},
    st.sampled_from(SOUND),
    st.dictionaries(st.sampled_from(FIELDS), garbage, max_size=3),
)
damaged = st.binary(max_size=60) | (garbage | nearly).map(lambda value: json.dumps(value).encode())


@given(connectors)
def test_a_connector_is_read_as_it_was_written(stored: StoredConnector) -> None:
    """A connector with any settings is read as it was written."""
    assert StoredConnector.parse(stored.name, stored.encode(), "p") == stored


@given(statuses)
def test_a_status_is_read_as_it_was_written(stored: WorkStatus) -> None:
    """A status with a short trace is read as it was written."""
    assert WorkStatus.parse(stored.encode(), "p") == stored


@given(st.text(max_size=50), st.integers(0, 400))
def test_any_trace_can_be_stored(text: str, times: int) -> None:
    """Any text, also one that UTF-8 cannot encode, is stored in at most 8 KiB, and a short one whole."""
    trace = text * times
    stored = WorkStatus.parse(WorkStatus(state="FAILED", worker="", trace=trace).encode(), "p").trace
    assert len(stored.encode()) <= LARGEST_TRACE_BYTES
    whole = trace.encode(errors="backslashreplace")
    assert whole.decode() == stored or len(whole) > LARGEST_TRACE_BYTES


@given(changes)
def test_a_change_is_read_as_it_was_written(change: ConfigChange) -> None:
    """An entry of the history is read as it was written."""
    assert ConfigChange.parse(change.encode(), "p") == change


@given(numbers)
def test_a_configuration_offset_is_read_as_it_was_written(offset: int) -> None:
    """A configuration offset is read as it was written."""
    assert parse_config_offset(encode_config_offset(offset), "p") == offset


@given(objects, objects)
def test_a_source_offset_is_read_as_it_was_written(partition: dict[str, Any], offset: dict[str, Any]) -> None:
    """A source offset is read as it was written, and has one znode whatever the order of the keys."""
    stored = SourceOffset(partition, offset)
    path = f"/offsets/{partition_digest(partition)}"
    assert SourceOffset.parse(stored.encode(), path) == stored
    turned = SourceOffset(dict(reversed(partition.items())), dict(reversed(offset.items())))
    assert turned.encode() == stored.encode()


@given(objects, objects)
def test_canonical_json_tells_objects_apart(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Two objects have the same bytes only if they are read back as the same object."""
    assert json.loads(canonical_json(one, "x")) == one
    if canonical_json(one, "x") == canonical_json(other, "x"):
        assert one == other


@settings(max_examples=examples(400))
@given(damaged)
def test_garbage_is_a_protocol_error_or_a_value_that_can_be_written(data: bytes) -> None:
    """Any bytes are parsed into a value that can be written again, or raise a ProtocolError whose text has the path."""
    path = f"/path/{DIGEST}"
    for parse in PARSERS.values():
        try:
            found: Any = parse(data, path)
        except ProtocolError as error:
            if not str(error).startswith(f"{path}: "):
                raise AssertionError(f"{error!r} does not name its path") from error
        else:
            assert isinstance(found, int) or found.encode()


@given(st.text(min_size=1, max_size=LONGEST_NAME))
def test_a_connector_is_found_by_the_name_of_its_znode(name: str) -> None:
    """Any name has a znode's name of its own, which ZooKeeper permits as a part of a path."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return
    znode = znode_name(name)
    assert connector_of(znode) == name
    assert znode.isascii()
    assert znode.isprintable()
    assert "/" not in znode
    assert znode not in {".", ".."}


@given(st.text(max_size=10) | st.from_regex(r"(%[0-9A-Fa-f]{2}|[a-z.]){0,4}", fullmatch=True))
def test_a_name_of_a_znode_has_one_connector_or_none(znode: str) -> None:
    """If a znode's name has a connector, the connector's znode has that name."""
    connector = connector_of(znode)
    assert connector is None or znode_name(connector) == znode
