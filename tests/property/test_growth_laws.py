"""
The time that texts from outside take grows with their length, and not with its square.

CPU time of this thread is compared, for texts of which one is sixteen times as long. A busy computer may make one
measurement too long, but none too short, so only the shortest of several counts.
"""

from __future__ import annotations

import asyncio
import json
import re
import struct
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kiel_groups.cli.commands.consume import parse_position
from kiel_groups.cli.terminal.record_printer import parse_format
from kiel_groups.config import parse_hosts
from kiel_groups.embedded import jars
from kiel_groups.errors import KielGroupsError
from kiel_groups.group.commit_note import NotedText
from kiel_groups.group.znodes.contents import (
    GroupState,
    MemberAssignment,
    MemberInfo,
    Znode,
    parse_object,
    parse_offset,
    parse_owner,
)
from kiel_groups.group.znodes.group_settings import DynamicConfig
from kiel_groups.group.znodes.layout import WorkerLayout, connector_of
from kiel_groups.group.znodes.worker_contents import StoredConnector, WorkStatus
from kiel_groups.model import TopicPartition
from kiel_groups.ops.views.checks import check_group
from kiel_groups.ops.views.documents import group_document
from kiel_groups.ops.views.group_view import GroupView
from kiel_groups.ops.views.znodes import view_group
from kiel_groups.secret_texts import error_texts, may_be_secret, without_secrets
from kiel_groups.spark import options as option_validation
from kiel_groups.spark.spark_session import plain_error
from kiel_groups.wire.consumer_protocol import ConsumerAssignment
from kiel_groups.wire.group_requests import DescribeGroupsRequest
from kiel_groups.wire.metadata import MetadataRequest
from kiel_groups.workers.execution.herder import Herder
from kiel_groups.workers.execution.worker_plugins import WorkerPlugins
from kiel_groups.workers.execution.worker_requests import WorkerRequests
from kiel_groups.workers.plugins.config_definition import TYPES, ConfigDefinition, ConfigKey, parsed
from kiel_groups.workers.plugins.connector_checks import masked, secret_values
from kiel_groups.workers.plugins.secret_references import SecretReferences, parse_java_properties
from kiel_groups.workers.rest import operations as request_bodies
from kiel_groups.workers.stores.worker_group_view import worker_group_of
from kiel_groups.workers.values import TaskId
from kiel_groups.zookeeper.runtime import Runtime
from tests.helpers.counting_connectors import COUNTING_SINK, FakeClients, plugins
from tests.helpers.examples import examples

pytestmark = pytest.mark.property

#: The lengths that are compared. A square makes the longer one take 256 times as long.
SHORT, LONG = 500, 8_000

#: The most that the longer text may take, as a multiple of the shorter one's time, and for what takes no time at all.
MOST_TIMES, LEAST_S = 48.0, 0.001

SECRETS = secret_values({"login": "zz"}, ConfigDefinition(ConfigKey("login", "password")))


class TextReader(NamedTuple):
    """What reads a text from outside, and the parts of texts at which it looks twice."""

    read: Callable[[str], object]
    parts: Sequence[str]


READERS = {
    "the secrets of a text": TextReader(
        lambda text: (without_secrets(text, SECRETS), may_be_secret("options", text)),
        (
            *"'\"\\{}=:; \n\tx1,@/?&#%-.",
            "password",
            "pwd",
            "token=",
            "://",
            "(?",
            "[^",
            "[hidden]",
            "pwd='x;",
            "pwd={x;",
        ),
    ),
    "an error of a plugin": TextReader(
        lambda text: error_texts(OSError(text), SECRETS), ("password='x;", "pwd", "\n", "a", "://", "@", ": ")
    ),
    "the name and the text of a setting": TextReader(
        lambda text: masked({text: "x", "url": text}, ConfigDefinition(ConfigKey("login", "password"))),
        ("login", "log", ".", "key", "-", "x", "password='x;", "://"),
    ),
    "the value of a setting": TextReader(
        lambda text: [refused(lambda kind=kind: parsed(kind, text)) for kind in TYPES if kind != "class"],  # type: ignore[misc]
        ("1", "0", "-", "+", ".", "e", "_", ",", " ", "true", "pwd='x;"),
    ),
    "a setting with references to secrets": TextReader(
        lambda text: SecretReferences(variables=["PATH"]).resolve({"s": text}),
        ("${env:PATH}", "${", "file:", "env:", "$", "{", "}", '{"a":"', '"', "x", ":"),
    ),
    "a file of Java's properties": TextReader(
        lambda text: _or_value_error(lambda: parse_java_properties(text)),
        ("\\", "\n", "\r", "=", ":", " ", "#", "a", "\\u00e9", "\\\n"),
    ),
    "the note of an offset": TextReader(
        NotedText.parse, ('{"kiel-groups":{', '"created":', "[", "1", "}", "}}", " ", "x", "\n", ",", "{")
    ),
    "the drained members of a group": TextReader(
        lambda text: DynamicConfig(drained=frozenset({text})).unknown_drained({text}),
        ("_", "-", "1234567890123", "a", "0", "-1234567890123-", "x"),
    ),
    "the fields of a group's config": TextReader(
        lambda text: list(DynamicConfig(unknown=(text,)).unknown_field_hints()), ("allocator", "drained", "_", "x")
    ),
    "a znode": TextReader(
        lambda text: [
            refused(lambda parse=parse: parse(text.encode(), "/p"))  # type: ignore[misc]
            for parse in (parse_object, parse_offset, parse_owner, DynamicConfig.parse, WorkStatus.parse)
        ],
        ("{", "}", "[", "]", '"', "\\", "1", ",", ":", " ", '"version":1', "-", "e", "."),
    ),
    "the name of a znode": TextReader(connector_of, ("%", "2F", "a", ".", "%C3", " ")),
    "the body of a request": TextReader(
        lambda text: refused(lambda: request_bodies.parse_new_connector(text.encode())),
        ('{"name":', '"a"', "{", "}", "[", "]", "1", ",", ":", "\\u00fc", "-", '"config":'),
    ),
    "addresses": TextReader(
        lambda text: refused(lambda: parse_hosts(text, 1, "hosts")), ("a", ":", "[", "]", "1", ",", ".", " ", "f::")
    ),
    "--from": TextReader(lambda text: refused(lambda: parse_position(text)), ("-", "1", "0", "s", ":", "x")),
    "--format": TextReader(lambda text: refused(lambda: parse_format(text)), ("%", "k", "\\", "x", "x41", "n", "é")),
    "an option of Spark": TextReader(
        lambda text: [
            refused(lambda: option_validation.duration_ms("o", text)),
            refused(lambda: option_validation.whole_number("o", text, 1)),
            refused(lambda: option_validation.partition_list("o", text)),
        ],
        ("1", "0", " ", "s", "m", "{", "}", "[", '"a":', ",", "x"),
    ),
    "an error of Spark": TextReader(
        plain_error,
        (*".a\n :", "kiel_groups.errors.", "ConfigError: ", "Error", "Error from python worker:\n", "PYTHONPATH was:"),
    ),
    "a line of Maven": TextReader(
        lambda text: jars._DOWNLOADED.search(text) or jars._COPIED.search(text),
        ("Downloaded from ", "Copying ", "a", ": ", "/", ".jar", " to", " "),
    ),
}


def _or_value_error(read: Callable[[], object]) -> object:
    try:
        return read()
    except ValueError as error:
        return error


def refused(read: Callable[[], object]) -> object:
    """Return what ``read`` returns, or the error with which it refuses a text; any other error is a fault."""
    try:
        return read()
    except KielGroupsError as error:
        return error


def _seconds(work: Callable[[], object]) -> float:
    start_s = time.thread_time()
    work()
    return time.thread_time() - start_s


def grows_linearly(short: Callable[[], object], long: Callable[[], object]) -> bool:
    """Return whether the longer work takes no more than a multiple of the shorter one, in the best of several tries."""
    short_s, long_s = _seconds(short), _seconds(long)
    for _ in range(6):
        if long_s <= LEAST_S + MOST_TIMES * short_s:
            return True
        short_s, long_s = min(short_s, _seconds(short)), min(long_s, _seconds(long))
    return False


def check(reader: TextReader, unit: str, start: str = "", end: str = "") -> None:
    short, long = (start + unit * (size // len(unit) + 1) + end for size in (SHORT, LONG))
    assert grows_linearly(lambda: reader.read(short), lambda: reader.read(long)), (start, unit, end)


def test_the_check_finds_a_square() -> None:
    """The check itself notices a search that begins again at each character."""
    pattern = re.compile("a+b")
    assert not grows_linearly(lambda: pattern.search("a" * SHORT), lambda: pattern.search("a" * LONG))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (len(reader.parts) > 20)) for name, reader in READERS.items()],
)
def test_texts_of_one_or_two_parts_take_linear_time(name: str) -> None:
    """A text repeats one part, or two: most expressions that take a square of time do so for such a text."""
    reader = READERS[name]
    for unit in (*reader.parts, *map("".join, product(reader.parts, repeat=2))):
        check(reader, unit)
    if len(reader.parts) < 7:
        for start, unit, end in product(("", *reader.parts), reader.parts, ("", *reader.parts)):
            check(reader, unit, start, end)


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=examples(25))
@given(st.data())
def test_texts_of_any_parts_take_linear_time(name: str, data: st.DataObject) -> None:
    """A text repeats up to six parts between two others."""
    reader = READERS[name]
    parts = st.sampled_from(reader.parts)
    unit = "".join(data.draw(st.lists(parts, min_size=3, max_size=6)))
    check(reader, unit, data.draw(st.just("") | parts), data.draw(st.just("") | parts))


@example(unit="password='x;")
@example(unit="name='x;password={y;")
@given(unit=st.text("pwd='\"{};=x\\ ", min_size=1, max_size=12))
@settings(max_examples=examples(50))
def test_open_quotes_take_linear_time(unit: str) -> None:
    """A quote or a brace that stays open is not searched again for each secret behind it."""
    check(READERS["the secrets of a text"], f"pwd={unit}")


def _blob(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _connectors(count: int) -> dict[str, Znode]:
    layout = WorkerLayout("g")
    found = {}
    for name in map(str, range(count)):
        found[layout.connector(name)] = Znode(StoredConnector(name=name, config={}, tasks=({},)).encode())
        found[layout.connector_owners(name)] = Znode()
        found[layout.owner(name, 0)] = Znode(b"w")
    return found


def _group(count: int) -> GroupView:
    """Return the view of a group in which each member owns a partition that another one should own."""
    data = {"/kiel-groups/g/allocation": GroupState(generation=1, state="done", leader="m0").encode()}
    for number in range(count):
        member, topic = f"m{number}", f"t{number}"
        info = MemberInfo(member_id=member, session_timeout_ms=6_000, subscription=(topic,))
        target = MemberAssignment(1, member, frozenset({TopicPartition(topic, 1)}))
        data[f"/kiel-groups/g/members/{member}"] = info.encode()
        data[f"/kiel-groups/g/allocation/{member}"] = target.encode()
        data[f"/consumers/g/owners/{topic}/0"] = f"{member}-0".encode()
        data[f"/consumers/g/owners/{topic}/2"] = b"gone-0"
        data[f"/consumers/g/offsets/{topic}/0"] = b"1"
    znodes = {path: Znode(each) for path, each in data.items()}
    folders = {path.rpartition("/")[0]: Znode() for path in data}
    return view_group("g", folders | znodes)


def _metadata(count: int) -> bytes:
    topics = b"".join(struct.pack(">h", 0) + _string(f"t{n}") + struct.pack(">i", 0) for n in range(count))
    return struct.pack(">ii", 0, count) + topics


def _described(count: int) -> bytes:
    members = b"".join(_string(f"m{n}") + _string("c") + _string("/h") + _blob(b"") * 2 for n in range(count))
    group = struct.pack(">h", 0) + b"".join(map(_string, ("g", "Stable", "consumer", "range")))
    return struct.pack(">i", 1) + group + struct.pack(">i", count) + members


def _assigned(count: int) -> bytes:
    topics = b"".join(_string(f"t{n}") + struct.pack(">ii", 1, 0) for n in range(count))
    return struct.pack(">hi", 0, count) + topics + _blob(b"")


#: What many things from outside are made of, and what reads them.
MANY: dict[str, tuple[Callable[[int], Any], Callable[[Any], object]]] = {
    "settings of a request": (
        lambda count: json.dumps({"name": "c", "config": {f"s{n}": n for n in range(count)}}).encode(),
        request_bodies.parse_new_connector,
    ),
    "settings that no connector declares": (
        lambda count: {f"{count}-{n}": "x" for n in range(count)},
        lambda config: masked(config, ConfigDefinition(ConfigKey("login", "password"))),
    ),
    "settings of a task": (
        lambda count: {f"log.in.{count}-{n}": "x" for n in range(count)},
        ConfigDefinition(ConfigKey("login", "password", None)).parse,
    ),
    "secrets": (
        lambda count: {f"password.{n}": f"secret{n}" for n in range(count)},
        lambda config: error_texts(OSError("secret1 " * 100), secret_values(config, ConfigDefinition())),
    ),
    "connectors of a group": (_connectors, lambda found: worker_group_of("g", found)),
    "members of a group in ZooKeeper": (
        _group,
        lambda view: (check_group(view, 1), group_document(view, [], lag_problem="")),
    ),
    "topics of a broker": (_metadata, MetadataRequest().decode_response),
    "members of a group that brokers coordinate": (_described, DescribeGroupsRequest(("g",)).decode_response),
    "topics of an assignment": (_assigned, lambda data: ConsumerAssignment.parse(data, "data")),
}


@pytest.mark.parametrize("name", MANY)
def test_many_things_take_linear_time(name: str) -> None:
    """Answers, znodes and requests of many parts are read once, not once for each part."""
    make, read = MANY[name]
    few, many = make(40), make(640)
    assert grows_linearly(lambda: read(few), lambda: read(many))


def test_topics_that_no_broker_knows_take_linear_time() -> None:
    """The settings of one sink may name a hundred thousand, and a worker looks for them on its event loop."""
    clients = FakeClients()
    clients.missing = {f"t{n}" for n in range(LONG)}
    requests = WorkerRequests(cast("Herder", None), WorkerPlugins(plugins(), Runtime()), clients)

    def validate(count: int) -> object:
        topics = ",".join(f"t{n}" for n in range(count))
        return asyncio.run(requests.validate(COUNTING_SINK, {"name": "c", "topics": topics}))

    assert grows_linearly(partial(validate, SHORT), partial(validate, LONG))


def test_many_connectors_are_described() -> None:
    """The znodes of this file's workers are such that the owner of each task is found."""
    assert len([work for work in worker_group_of("g", _connectors(9)).owners if isinstance(work, TaskId)]) == 9
