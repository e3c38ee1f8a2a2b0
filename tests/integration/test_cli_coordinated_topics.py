"""``kiel-groups topics --coordination brokers`` on real brokers, and the completion of names from brokers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kiel_groups.embedded import Cluster
from tests.helpers.cluster_data import produce
from tests.helpers.commands import kiel_groups
from tests.helpers.completion import completed
from tests.helpers.coordinated_members import member_of

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


def topics(cluster: Cluster, *words: str) -> tuple[int, str, str]:
    """Run ``kiel-groups topics`` on the brokers of a cluster, and return its status, output and errors."""
    done = kiel_groups("topics", *words, "--coordination=brokers", f"--brokers={cluster.brokers[0]}")
    return done.returncode, done.stdout, done.stderr


async def test_topics_are_listed_and_described_from_metadata(coordinating_cluster: Cluster, unique: Unique) -> None:
    """The brokers know leaders, replicas and logs; settings of topics are unknown, which JSON says."""
    topic = unique("topic")
    await coordinating_cluster.create_topic(topic, 2)
    await produce(coordinating_cluster, topic, 10)
    listed = json.loads(topics(coordinating_cluster, "list", "--json")[1])
    assert {"topic": topic, "partitions": 2, "replication": 1} in listed
    status, out, err = topics(coordinating_cluster, "describe", topic, "--json")
    assert (status, err) == (0, "")
    (found,) = json.loads(out)
    assert (found["topic"], found["config"], found["being_deleted"]) == (topic, None, None)
    assert [(each["partition"], each["leader_is_dead"], each["start"]) for each in found["partitions"]] == [
        (0, False, 0),
        (1, False, 0),
    ]
    assert sum(each["end"] for each in found["partitions"]) == 10
    status, out, err = topics(coordinating_cluster, "describe", f"{topic}s")
    assert (status, out) == (2, "")
    assert err.startswith(f"error: topic '{topic}s' does not exist at brokers {coordinating_cluster.brokers[0]} (did")


async def test_topics_are_changed_by_requests_to_brokers(coordinating_cluster: Cluster, unique: Unique) -> None:
    """Brokers create, grow and delete topics on request; those of 0.9 do not, and the error says what to do."""
    topic = unique("topic")
    created = topics(coordinating_cluster, "create", topic, "--partitions=2")
    if coordinating_cluster.kafka[0].version == "0.9.0.1":
        assert created[:2] == (2, "")
        assert "brokers create topics on request from Kafka 0.10.1 on" in created[2]
        assert "give '--coordination zookeeper' with '--zookeeper' instead" in created[2]
        return
    assert created == (0, "", f"info: topic {topic} created with 2 partitions\n")
    again = topics(coordinating_cluster, "create", topic)
    assert (again[0], again[2].partition(" in ")[0]) == (
        2,
        f"error: topic {topic!r} exists already; delete it first, or choose another name\n",
    )
    assert topics(coordinating_cluster, "create", topic, "--if-missing", "--wait=5") == (
        0,
        "",
        f"info: topic {topic} exists already\n",
    )
    too_many = topics(coordinating_cluster, "create", f"{topic}s", "--replication=2")
    assert "replication: 2 given; expected 1 to 1, the number of live brokers" in too_many[2]
    assert topics(coordinating_cluster, "grow", topic, "--partitions=3") == (
        0,
        "",
        f"info: topic {topic} has 3 partitions now\n",
    )
    less = topics(coordinating_cluster, "grow", topic, "--partitions=3")
    assert "has 3 partitions already; --partitions 3 given, expected more" in less[2]
    assert topics(coordinating_cluster, "delete", topic, "--yes") == (0, "", f"info: topic {topic} deleted\n")
    assert topic not in {each["topic"] for each in json.loads(topics(coordinating_cluster, "list", "--json")[1])}


async def test_names_are_completed_from_brokers(
    coordinating_cluster: Cluster, unique: Unique, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If brokers coordinate the groups, they are asked for topics and groups; Java's assignors are offered, too."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    topic, group = unique("completed"), unique("group")
    await coordinating_cluster.create_topic(topic, 1)
    brokers = coordinating_cluster.brokers[0]
    where = {"KIEL_GROUPS_COORDINATION": "brokers", "KIEL_GROUPS_BROKERS": brokers}
    async with member_of(coordinating_cluster, group, [topic]):
        line = f"kiel-groups topics describe --coordination brokers --brokers {brokers} {topic[:-3]}"
        assert completed(line) == [topic]
        assert completed(f"kiel-groups describe {group[:-3]}", **where) == [group]
        assert completed(f"kiel-groups consume --group {group[:-3]}", **where) == [group]
    (tmp_path / "kiel-groups").mkdir()
    (tmp_path / "kiel-groups" / "config.toml").write_text(f"brokers = '{brokers}'\ncoordination = 'brokers'\n")
    assert completed(f"kiel-groups produce {topic[:-3]}") == [topic]
    assert completed("kiel-groups consume --allocator r") == ["round_robin", "range", "roundrobin"]
