"""``kiel-groups topics --coordination brokers`` on real brokers, and the completion of names from brokers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kiel_groups.allocators.assignors import ASSIGNORS
from kiel_groups.embedded import Cluster
from tests.helpers.cluster_data import produce
from tests.helpers.commands import kiel_groups_here
from tests.helpers.completion import completed
from tests.helpers.coordinated_members import member_of
from tests.helpers.servers import COORDINATING_KAFKAS, played_kafkas

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


#: The releases that do not know some requests, and the first ones that do.
_CHANGES_FROM = {"create": "0.10.1", "grow": "1.0", "delete": "0.10.1"}
TOO_OLD = {"0.9.0.1": _CHANGES_FROM, "0.10.2.2": {"grow": "1.0"}}
CHANGING_KAFKAS = played_kafkas(tuple(version for version in COORDINATING_KAFKAS if version != "0.9.0.1"))

changing_version = pytest.mark.parametrize("version", CHANGING_KAFKAS, ids=lambda version: f"kafka{version}")


def topics(cluster: Cluster, *words: str, broker: int = 0) -> tuple[int, str, str]:
    """Run ``kiel-groups topics`` with one broker of a cluster, and return its status, output and errors."""
    done = kiel_groups_here("topics", *words, "--coordination=brokers", f"--brokers={cluster.brokers[broker]}")
    return done.returncode, done.stdout, done.stderr


def sizes(cluster: Cluster, topic: str, broker: int = 0) -> list[tuple[int, bool]]:
    """Return the number of replicas of each of a topic's partitions, and whether its leader is alive."""
    (found,) = json.loads(topics(cluster, "describe", topic, "--json", broker=broker)[1])
    return [(len(each["replicas"]), not each["leader_is_dead"]) for each in found["partitions"]]


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
    assert [(each["partition"], each["leader_is_dead"], each["log_start"]) for each in found["partitions"]] == [
        (0, False, 0),
        (1, False, 0),
    ]
    assert sum(each["log_end"] for each in found["partitions"]) == 10
    status, out, err = topics(coordinating_cluster, "describe", f"{topic}s")
    assert (status, out) == (2, "")
    assert err.startswith(f"error: topic '{topic}s' does not exist at brokers {coordinating_cluster.brokers[0]} (did")


async def test_topics_are_created_and_deleted_by_requests_to_brokers(
    coordinating_cluster: Cluster, unique: Unique
) -> None:
    """Brokers create and delete topics on request; an existing topic, or too many replicas, are errors."""
    if "create" in TOO_OLD.get(coordinating_cluster.kafka[0].version, {}):
        return
    topic = unique("topic")
    created = topics(coordinating_cluster, "create", topic, "--partitions=2")
    assert created == (0, "", f"info: topic {topic} created with 2 partitions\n")
    again = topics(coordinating_cluster, "create", topic)
    assert (again[0], again[2].partition(" in ")[0]) == (
        2,
        f"error: topic {topic!r} exists already; delete it first, or choose another name;"
        " 'topics create --if-missing' accepts it\n",
    )
    assert topics(coordinating_cluster, "create", topic, "--if-missing", "--wait=5") == (
        0,
        "",
        f"info: topic {topic} exists already\n",
    )
    configured = ("create", f"{topic}c", "-q", "--config=retention.ms=7000", "--config")
    assert topics(coordinating_cluster, *configured, "flush.ms=x")[0] == 1
    assert topics(coordinating_cluster, *configured, "flush.ms=5") == (0, "", "")
    too_many = topics(coordinating_cluster, "create", f"{topic}s", "--replication=2")
    assert "replication: 2 given; expected at most 1, the number of live brokers" in too_many[2]
    assert topics(coordinating_cluster, "delete", topic, "--yes") == (0, "", f"info: topic {topic} deleted\n")
    assert topic not in {each["topic"] for each in json.loads(topics(coordinating_cluster, "list", "--json")[1])}
    missing = topics(coordinating_cluster, "delete", topic, "--yes")
    assert missing[0] == 2
    assert f"topic '{topic}' does not exist" in missing[2]


async def test_topics_are_grown_by_requests_to_brokers(coordinating_cluster: Cluster, unique: Unique) -> None:
    """A topic gets more partitions, never fewer."""
    if "grow" in TOO_OLD.get(coordinating_cluster.kafka[0].version, {}):
        return
    topic = unique("topic")
    await coordinating_cluster.create_topic(topic, 2)
    grown = topics(coordinating_cluster, "grow", topic, "--partitions=3", "--yes")
    assert grown[::2] == (0, f"info: topic {topic} has 3 partitions now\n")
    assert sizes(coordinating_cluster, topic) == [(1, True)] * 3
    less = topics(coordinating_cluster, "grow", topic, "--partitions=3")
    assert "has 3 partitions already; --partitions 3 given, expected more" in less[2]


async def test_settings_of_a_topic_are_shown_and_changed_by_requests_to_brokers(
    coordinating_cluster: Cluster, unique: Unique
) -> None:
    """Brokers from 1.1 on show all settings with their sources, and check a change, also if it is only planned."""
    topic = unique("topic")
    await coordinating_cluster.create_topic(topic, 1)
    limit = ("config", topic, "max.message.bytes=100")
    if coordinating_cluster.kafka[0].version in {"0.9.0.1", "0.10.2.2"}:
        status, out, err = topics(coordinating_cluster, *limit, "--yes")
        assert (status, out) == (2, "")
        assert "change settings of topics on request from Kafka 1.1 on, and these are older; give '--coord" in err
        return
    assert topics(coordinating_cluster, *limit, "--dry-run")[0] == 0
    shown = json.loads(topics(coordinating_cluster, "config", topic, "--json")[1])["settings"]
    assert shown["max.message.bytes"]["source"] == "default"
    assert topics(coordinating_cluster, *limit, "retention.ms=3600000", "--yes")[0] == 0
    changed = topics(coordinating_cluster, "config", topic, "--unset=max.message.bytes", "--yes", "--json")
    assert (changed[0], json.loads(changed[1])["after"]) == (0, {"retention.ms": "3600000"})
    shown = json.loads(topics(coordinating_cluster, "config", topic, "--json")[1])["settings"]
    assert shown["retention.ms"] == {"value": "3600000", "source": "topic"}
    status, out, err = topics(coordinating_cluster, "config", topic, "retention=1", "--dry-run")
    assert (status, out) == (2, "")
    assert err.startswith(f"error: topic {topic!r}: the brokers refuse its settings: ")


def test_brokers_are_listed(coordinating_cluster: Cluster) -> None:
    """Those of 0.9, and those in KRaft mode, do not name the controller."""
    (broker,) = json.loads(topics(coordinating_cluster, "brokers", "--json")[1])
    knows = coordinating_cluster.kafka[0].version not in {"0.9.0.1", "3.9.1"}
    assert broker == {"broker": 0, "address": coordinating_cluster.brokers[0], "controller": True if knows else None}


async def test_brokers_that_do_not_know_a_request_are_left_alone(coordinating_cluster: Cluster, unique: Unique) -> None:
    """The error says from which release on brokers take the request, and what to do. The topic stays as it was."""
    topic = unique("topic")
    await coordinating_cluster.create_topic(topic, 2)
    words = {"create": ("create", f"{topic}s"), "grow": ("grow", topic, "--partitions=3"), "delete": ("delete", topic)}
    for change, release in TOO_OLD.get(coordinating_cluster.kafka[0].version, {}).items():
        sure = [] if change == "create" else ["-q", "--yes"]
        status, out, err = topics(coordinating_cluster, *words[change], *sure)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert f"on request from Kafka {release} on, and these are older; give '--coordination zookeeper'" in err
    assert sizes(coordinating_cluster, topic) == [(1, True)] * 2


@changing_version
@pytest.mark.slow
async def test_topics_are_changed_whichever_broker_is_the_controller(
    version: str, start_cluster: Callable[..., Cluster]
) -> None:
    """
    In ZooKeeper mode, only the controller changes topics, and each broker may be asked first. If a broker stops,
    another one becomes the controller.
    """
    cluster = start_cluster(2, kafka=version)
    for broker, replication in ((0, 2), (1, 1)):
        topic = f"topic-{broker}"
        created = topics(cluster, "create", topic, "--partitions=2", f"--replication={replication}", broker=broker)
        assert created == (0, "", f"info: topic {topic} created with 2 partitions\n")
        count = 2
        if "grow" not in TOO_OLD.get(version, {}):
            count = 3
            grown = topics(cluster, "grow", topic, "--partitions=3", "-q", "--yes", broker=broker)
            assert grown == (0, "", "")
        for asked in range(broker, 2):
            assert sizes(cluster, topic, broker=asked) == [(replication, True)] * count
        deleted = topics(cluster, "delete", topic, "--yes", broker=broker)
        assert deleted == (0, "", f"info: topic {topic} deleted\n")
        if broker == 0:
            await cluster.kafka[0].stop()


@changing_version
async def test_a_deletion_that_the_brokers_do_not_allow(version: str, start_cluster: Callable[..., Cluster]) -> None:
    """The error names the setting that allows it. Brokers before 2.1 do not refuse: they do nothing."""
    cluster = start_cluster(kafka=version, broker_overrides={"delete.topic.enable": "false"})
    assert topics(cluster, "create", "topic")[0] == 0
    status, out, err = topics(cluster, "delete", "topic", "--yes")
    assert (status, out) == (1, "")
    assert "delete.topic.enable=true" in err
    assert sizes(cluster, "topic") == [(1, True)]


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
    assert completed("kiel-groups consume --allocator r") == [name for name in ASSIGNORS if name.startswith("r")]
