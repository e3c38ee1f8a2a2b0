"""The parts of ``Mirror`` that need no server: its settings, its division into tasks, and timestamps."""

from __future__ import annotations

import sys
from itertools import chain

import pytest

from kiel_groups.errors import ConfigError
from kiel_groups.mirror.connector import MirrorConnector, partitions_of_tasks, set_of, timestamp_of
from kiel_groups.mirror.values import MirroredTopic
from kiel_groups.model import TopicPartition
from tests.helpers.connector_contexts import RecordingConnectorContext, typed

pytestmark = pytest.mark.unit

CONFIG = {"source.bootstrap.servers": "old:9092", "target.bootstrap.servers": "new:9092", "topics": "a,b*"}


@pytest.mark.parametrize("most", [1, 3, 8, 20])
def test_a_set_of_partitions_belongs_to_one_task(most: int) -> None:
    """Each partition has one task; the set of a partition does not depend on the number of tasks or other topics."""
    topics = [MirroredTopic("a", "a", 10, {}), MirroredTopic("b", "b", 3, {})]
    tasks = partitions_of_tasks(topics, 8, most)
    assert sorted(chain(*tasks)) == [
        *(TopicPartition("a", n) for n in range(10)),
        *(TopicPartition("b", n) for n in range(3)),
    ]
    sets = [{set_of(partition, 8) for partition in partitions} for partitions in tasks]
    assert sum(map(len, sets)) == 8
    assert len(tasks) == min(most, 8)
    assert set_of(TopicPartition("a", 3), 8) == 6


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b'{"at": 1600000000000}', 1_600_000_000_000),
        (b'{"at": "2020-09-13T12:26:40Z"}', 1_600_000_000_000),
        (b'{"at": "2020-09-13T12:26:40"}', 0),
        (b'{"at": -5}', 0),
        (b'{"at": 1e400}', 0),
        (b'{"at": null}', 0),
        (b'{"other": 1}', 0),
        (b"[1]", 0),
        (b"\xff", 0),
        (b"[" * 100_000, 0),
        (None, 0),
    ],
)
def test_timestamps_of_json_values(value: bytes | None, expected: int) -> None:
    """A value without a legal time has no timestamp, so the record gets the time of mirroring."""
    assert timestamp_of("at", None if value is None else memoryview(value)) == expected


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("target.topic.format", "copy", r"target.topic.format: 'copy' given; expected a text with \$\{topic\}"),
        ("target.properties", "[]", "target.properties: .* expected a JSON object"),
        ("target.replication.factor", "0", "target.replication.factor: '0' given; expected -1, or a number from 1"),
        ("dead.letter.topic", "a b", "dead.letter.topic: 'a b' given; expected the name of a topic"),
        ("target.compression.type", "lzma", "target.compression.type: 'lzma' given; expected one of none, gzip"),
        ("topics", "", "topics: '' given; expected a value that is not empty"),
    ],
)
def test_settings_are_checked(name: str, text: str, expected: str) -> None:
    """Wrong settings are refused before the connector starts."""
    with pytest.raises(ConfigError, match=expected):
        typed(MirrorConnector, CONFIG | {name: text})


def test_without_its_library_the_connector_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connector can be listed without confluent-kafka, and fails with one line when it is started."""
    for module in ("kiel_groups.mirror.target", "kiel_groups.mirror.writer"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    connector = MirrorConnector()
    with pytest.raises(ConfigError, match=r"confluent-kafka is missing in .*; install kiel-groups\[mirror\]"):
        connector.start(RecordingConnectorContext(CONFIG), typed(MirrorConnector, CONFIG))
