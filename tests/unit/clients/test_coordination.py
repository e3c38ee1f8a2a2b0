"""The arguments of a consumer that depend on what coordinates its group."""

from __future__ import annotations

from typing import Any

import pytest

from kiel_groups import GroupedConsumer, allocators
from kiel_groups.clients.coordination import (
    BrokerCoordination,
    Coordination,
    Timeouts,
    ZooKeeperCoordination,
    coordination_of,
)
from kiel_groups.config import BrokerConfig, GroupConfig, HostPort
from kiel_groups.errors import ConfigError

pytestmark = pytest.mark.unit

BROKERS = BrokerConfig(hosts=(HostPort("127.0.0.1", 9092),), request_timeout_ms=7_000, metadata_max_age_ms=8_000)


def coordination(
    name: str,
    session_ms: int | None = None,
    heartbeat_ms: int | None = None,
    zk_hosts: str | None = None,
    api_version: tuple[int, ...] | None = None,
    allocator: Any = None,
    **group: Any,
) -> Coordination:
    """Return the coordination of group g by the arguments of its consumer."""
    timeouts = Timeouts(session_ms, heartbeat_ms, 60_000)
    config = GroupConfig(group="g", **group)
    return coordination_of(name, config, BROKERS, zk_hosts, api_version, allocator, timeouts)


def by_brokers(**arguments: Any) -> BrokerCoordination:
    found = coordination("brokers", **arguments)
    assert isinstance(found, BrokerCoordination)
    return found


def by_zookeeper(**arguments: Any) -> ZooKeeperCoordination:
    found = coordination("zookeeper", **{"zk_hosts": "127.0.0.1:2181", **arguments})
    assert isinstance(found, ZooKeeperCoordination)
    return found


def test_brokers_get_the_timeouts_of_kafka_python() -> None:
    """The client's own time-outs limit the look-up of the coordinator and the age of metadata."""
    timing = by_brokers().timing
    assert (timing.session_timeout_ms, timing.heartbeat_interval_ms) == (30_000, 3_000)
    assert (timing.find_timeout_ms, timing.metadata_max_age_ms) == (7_000, 8_000)


@pytest.mark.parametrize(("session_ms", "heartbeat_ms"), [(60_000, 3_000), (9_000, 3_000), (6_000, 2_000), (3, 1)])
def test_heartbeats_fit_the_session(session_ms: int, heartbeat_ms: int) -> None:
    """Unless their interval is given, it is at most a third of the session timeout."""
    assert by_brokers(session_ms=session_ms).timing.heartbeat_interval_ms == heartbeat_ms


def test_an_interval_that_is_too_long_is_refused() -> None:
    """One lost heartbeat must not end the session."""
    with pytest.raises(ConfigError, match="heartbeat_interval_ms: 2001 given; expected at most 2000"):
        by_brokers(session_ms=6_000, heartbeat_ms=2_001)


@pytest.mark.parametrize(("poll_ms", "rebalance_ms"), [(300_000, 300_000), (0, 2**31 - 1)])
def test_a_rebalance_waits_as_long_as_the_application_may_take(poll_ms: int, rebalance_ms: int) -> None:
    """Without a limit for the application, brokers get the longest time that the protocol has."""
    assert by_brokers(max_poll_interval_ms=poll_ms).timing.rebalance_timeout_ms == rebalance_ms


def test_brokers_get_kafka_pythons_assignors() -> None:
    """A member shares a group with those of Java and kafka-python."""
    assert [assignor.name for assignor in by_brokers().assignors] == ["range", "roundrobin"]
    assert [assignor.name for assignor in by_brokers(allocator=["range", "sticky"]).assignors] == [
        "range",
        "kiel-sticky",
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"zk_hosts": "127.0.0.1:2181"}, "zk_hosts: '127.0.0.1:2181' given, and coordination='brokers' needs no"),
        (
            {"store": "broker-v1"},
            "store: 'broker-v1' given; with coordination='brokers', brokers store the offsets; leave",
        ),
        ({"instance_id": "a"}, "instance_id: 'a' given; groups with coordination='brokers' have no static"),
        ({"api_version": (0, 8, 2)}, "api_version: .* brokers coordinate groups from Kafka 0.9 on"),
        ({"allocator": []}, "partition_allocator: none given"),
        ({"session_ms": 0}, "session_timeout_ms: 0 given"),
        ({"capacity": 2.5}, "capacity: 2.5 given; .* this member offers range, roundrobin"),
        ({"allocator": "sticky", "rack": "east"}, "rack: 'east' given; .* no leader knows the racks of partitions"),
    ],
)
def test_what_does_not_fit_brokers_is_refused(arguments: dict[str, Any], words: str) -> None:
    """The error names the argument."""
    with pytest.raises(ConfigError, match=words):
        by_brokers(**arguments)


def test_members_of_a_group_of_brokers_have_a_capacity_where_it_counts() -> None:
    """Members tell it to allocators that see the whole group, and not to Java's assignors."""
    offered = by_brokers(allocator=["sticky", "range"], capacity=2.5).assignors
    assert [each.metadata(["t"]) for each in offered] == [b'{"capacity":2.5,"owned":{},"version":1}', None]


def test_a_group_of_brokers_may_have_any_name() -> None:
    """Members of other clients have named it; in ZooKeeper, the name is that of a znode."""
    GroupedConsumer("127.0.0.1:9092", "readers: all / 1", coordination="brokers")
    with pytest.raises(ConfigError, match="group: 'readers: all / 1' is not a legal name"):
        GroupedConsumer("127.0.0.1:9092", "readers: all / 1", "127.0.0.1:2181")


@pytest.mark.parametrize("group", ["", None])
def test_a_group_of_brokers_has_a_name(group: Any) -> None:
    """The error says what was given in its place."""
    with pytest.raises(ConfigError, match=f"group: {group!r} given; expected the name of a group"):
        GroupedConsumer("127.0.0.1:9092", group, coordination="brokers")


def test_zookeeper_is_the_default_with_its_own_timeouts() -> None:
    """A session in ZooKeeper is shorter than one at a coordinator."""
    found = by_zookeeper()
    assert (found.zookeeper.session_timeout_ms, found.zookeeper.heartbeat_interval_ms) == (10_000, None)
    assert (found.zookeeper.connect_timeout_ms, found.store) == (60_000, "zookeeper")
    assert by_zookeeper(session_ms=20_000, store="broker-v1").zookeeper.session_timeout_ms == 20_000


def test_zookeeper_takes_allocators() -> None:
    """A name, or a function."""
    assert by_zookeeper(allocator="sticky").allocator is allocators.sticky
    assert by_zookeeper(allocator=allocators.round_robin).allocator is allocators.round_robin


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"zk_hosts": None}, r"zk_hosts: none given; .*coordination='brokers' \(Kafka 0\.9 or later\)"),
        ({"api_version": (0, 9)}, "api_version: given without coordination='brokers'"),
        ({"allocator": ["range", "sticky"]}, "partition_allocator"),
    ],
)
def test_what_does_not_fit_zookeeper_is_refused(arguments: dict[str, Any], words: str) -> None:
    """The error names the argument."""
    with pytest.raises(ConfigError, match=words):
        by_zookeeper(**arguments)


def test_another_coordination_is_refused() -> None:
    """The error lists the two."""
    with pytest.raises(ConfigError, match="coordination: 'broker' given; expected 'zookeeper' or 'brokers'"):
        coordination("broker")
    with pytest.raises(ConfigError, match="coordination: 'broker' given"):
        GroupedConsumer("127.0.0.1:9092", "g", coordination="broker")  # type: ignore[arg-type]
