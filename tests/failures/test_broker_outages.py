"""Brokers that are down, that are frozen, or that store a commit late."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection

import pytest

from kiel_groups.clients import BEGINNING, GroupedConsumer, Producer, SingleConsumer
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.metadata_sources import UNREACHABLE_AFTER
from kiel_groups.config import BrokerConfig, parse_hosts
from kiel_groups.embedded import Cluster
from kiel_groups.errors import NoBrokersError
from kiel_groups.metrics import Metrics
from kiel_groups.ops.views.checks import UNOPENED_MS, check_group
from kiel_groups.ops.views.znodes import view_group
from kiel_groups.ops.zookeeper_reader import read_group
from tests.helpers.checked_group import RECOVERY_S, checked_group
from tests.helpers.cluster_data import produce, stored_offsets, zookeeper
from tests.helpers.members import Group, group_of
from tests.helpers.waiting import eventually
from tests.proxies import KafkaProxy
from tests.proxies.fault_proxy import Direction

pytestmark = pytest.mark.failures

Unique = Callable[[str], str]

NEVER_MS = 3_600_000


async def test_a_broker_stores_a_v0_commit_after_the_release(cluster: Cluster, unique: Unique) -> None:
    """
    A broker stores a commit after the next owner has committed a later offset, and so decreases the stored offset. The
    next owner adopts the decreased offset like an operator's reset. Records are repeated, and none is lost.
    """
    settings = {"store": "broker-v0", "reconcile_interval_ms": NEVER_MS}
    async with (
        KafkaProxy(cluster.brokers[0]) as proxy,
        checked_group(cluster, unique, partitions=1, **settings) as checked,
    ):
        values = await checked.produce(20)
        first = await checked.join(brokers=[proxy.address], auto_commit_interval_ms=NEVER_MS)
        await checked.group.delivered(values)
        proxy.stall(Direction.REQUESTS)
        second = await checked.join()
        await checked.group.leave(first)
        await eventually(lambda: second.values == values, "what was not committed is delivered again", RECOVERY_S)
        values += await checked.produce(20)
        await eventually(lambda: checked.committed_offsets() == {0: 40}, "the next owner commits")
        proxy.heal()
        await eventually(lambda: checked.committed_offsets() == {0: 20}, "the late commit is stored")
        await checked.check_nothing_is_lost()
        await eventually(lambda: checked.committed_offsets() == {0: 60}, "everything is committed", RECOVERY_S)
        again = Counter(second.values)
        assert all(again[value] >= 2 for value in values[20:]), (
            "it follows the stored offset, as it follows an operator"
        )


#: How long a claim may be unopened before the member raises an alarm, in milliseconds.
ALARM_MS = 2_000


async def fill(cluster: Cluster, partitions: Collection[int], each: int = 10, first: int = 0) -> set[bytes]:
    """Produce ``each`` values into each of the given partitions, and return all values."""
    values = {number: [b"%d/%d" % (number, count) for count in range(first, first + each)] for number in partitions}
    async with Producer(cluster.brokers) as producer:
        await asyncio.gather(
            *(producer.produce("t", value, partition=number) for number in partitions for value in values[number])
        )
    return {value for listed in values.values() for value in listed}


async def wait_for_metadata(cluster: Cluster, partitions: int) -> None:
    """
    Wait until every broker reports this number of partitions. ZooKeeper has the leaders of new partitions slightly
    earlier.
    """
    for address in cluster.brokers:
        view = ClusterMetadata(BrokerConfig(hosts=parse_hosts(address, 9092, "brokers")), Metrics())
        try:
            async with asyncio.timeout(RECOVERY_S):
                while len(view.known_partitions("t") or ()) < partitions:
                    await view.refresh(["t"], "growth")
        finally:
            view.close()


def led_by(cluster: Cluster, broker: int) -> list[int]:
    """Return the partitions of the topic whose only replica is on the given broker."""
    with zookeeper(cluster) as client:
        replicas = json.loads(client.get("/brokers/topics/t")[0])["partitions"]
    return sorted(int(number) for number, brokers in replicas.items() if brokers == [broker])


def stored(cluster: Cluster) -> dict[int, int]:
    with zookeeper(cluster) as client:
        return stored_offsets(client, "g", "t")


def unopened(cluster: Cluster) -> set[int]:
    """Return the partitions that ``describe`` will report as unopened half a minute from now."""
    with zookeeper(cluster) as client:
        view = view_group("g", read_group(client, "g"))
    findings = check_group(view, int(time.time() * 1000) + UNOPENED_MS)
    return {each.partition for found in findings if found.kind == "unopened" for each in found.partitions}


async def wait_for_alarm(group: Group, claims: int) -> None:
    """Wait until the only member has raised an alarm, and counts ``claims`` unopened claims."""
    metrics = group.members[0].consumer.metrics
    await eventually(lambda: metrics.total("open_alarms"), "an alarm is raised", RECOVERY_S)
    gauge = ("claims_unopened", (), float(claims))
    await eventually(lambda: gauge in set(metrics.samples()), f"{claims} claims count as unopened", RECOVERY_S)


async def restart_broker_and_read_all(cluster: Cluster, group: Group, values: set[bytes]) -> None:
    """Restart the broker, and wait until every value is delivered and every claim is open."""
    await cluster.kafka[1].restart()
    await group.delivered(values, 60)
    member = group.members[0]
    await eventually(lambda: member.knows("t") and len(member.held) == 4, "all claims are open")
    assert ("claims_unopened", (), 0.0) in set(member.consumer.metrics.samples())


@pytest.mark.parametrize("reset", ["earliest", pytest.param("latest", marks=pytest.mark.slow)])
async def test_a_partition_leader_is_down_when_a_group_starts(
    start_cluster: Callable[..., Cluster], caplog: pytest.LogCaptureFixture, reset: str
) -> None:
    """
    Partitions that have leaders are read at once. The other partitions are claimed but not read, and the member raises
    an alarm after ``drain_alarm_ms``. When their broker is back, they are read from the earliest offset, whatever
    ``auto_offset_reset`` is. No record is lost or repeated.
    """
    cluster = start_cluster(brokers=2)
    await cluster.create_topic("t", 4)
    led, leaderless = led_by(cluster, 0), led_by(cluster, 1)
    assert len(led) == len(leaderless) == 2
    before, missed = await fill(cluster, led), await fill(cluster, leaderless)
    await cluster.kafka[1].kill()
    settings = {"auto_offset_reset": reset, "drain_alarm_ms": ALARM_MS, "auto_commit_interval_ms": 100}
    async with group_of(cluster, "g", ["t"], **settings) as group:
        await group.join()
        await eventually(lambda: stored(cluster).keys() == {*led}, "first offsets are stored", RECOVERY_S)
        wanted = await fill(cluster, led, first=10)
        wanted |= before if reset == "earliest" else set()
        await group.delivered(wanted, RECOVERY_S)
        assert set(group.values) == wanted
        await wait_for_alarm(group, len(leaderless))
        assert stored(cluster).keys() == {*led}
        assert unopened(cluster) == {*leaderless}
        with caplog.at_level(logging.WARNING, "kiel_groups"):
            await restart_broker_and_read_all(cluster, group, wanted | missed)
        assert len(group.values) == len(wanted | missed), "nothing was delivered twice"
        late = [record.message for record in caplog.records if "starting at the earliest offset" in record.message]
        assert len(late) == (1 if reset == "latest" else 0)
        assert all(f"t:{number}" in message for number in leaderless for message in late)
    assert stored(cluster).keys() == {*led, *leaderless}


@pytest.mark.parametrize("store", [pytest.param("zookeeper", marks=pytest.mark.slow), "broker-v0"])
async def test_a_partition_leader_is_down_after_a_topic_has_grown(
    start_cluster: Callable[..., Cluster], store: str
) -> None:
    """
    The group continues to read the partitions that it had, and reads new partitions that have leaders. The member
    raises an alarm about a new partition without a leader, and reads it when its broker is back.
    """
    cluster = start_cluster(brokers=2)
    await cluster.create_topic("t", 2)
    async with group_of(cluster, "g", ["t"], store=store, auto_commit_interval_ms=100) as group:
        await group.join()
        await group.delivered(await fill(cluster, [0, 1]), RECOVERY_S)
    assert stored(cluster) == {0: 10, 1: 10}
    await cluster.grow_topic("t", 4)
    await wait_for_metadata(cluster, 4)
    led, leaderless = led_by(cluster, 0), led_by(cluster, 1)
    assert len(led) == len(leaderless) == 2
    grown = sorted({2, 3} & {*led})
    missed = await fill(cluster, leaderless, first=10)
    wanted = await fill(cluster, led, first=10)
    await cluster.kafka[1].kill()
    async with group_of(cluster, "g", ["t"], store=store, drain_alarm_ms=ALARM_MS) as group:
        member = await group.join()
        await group.delivered(wanted, RECOVERY_S)
        assert {record.value for record in member.records} == wanted
        assert stored(cluster).keys() == {0, 1, *grown}
        await wait_for_alarm(group, 1)
        await restart_broker_and_read_all(cluster, group, wanted | missed)


@pytest.mark.slow
async def test_a_partition_leader_is_down_after_a_topic_was_created_again(
    start_cluster: Callable[..., Cluster],
) -> None:
    """
    The offsets of the deleted topic are still in ZooKeeper. Partitions that have leaders are read from their beginning.
    For the other partitions the member raises an alarm, and ``describe`` reports them as unopened. They are read when
    their broker is back. Nothing is lost.
    """
    cluster = start_cluster(brokers=2)
    await cluster.create_topic("t", 4)
    old = await fill(cluster, [0, 1, 2, 3])
    async with group_of(cluster, "g", ["t"], auto_commit_interval_ms=100) as group:
        await group.join()
        await group.delivered(old, RECOVERY_S)
    await cluster.delete_topic("t")
    await cluster.create_topic("t", 4)
    await wait_for_metadata(cluster, 4)
    led, leaderless = led_by(cluster, 0), led_by(cluster, 1)
    wanted, missed = await fill(cluster, led, first=10), await fill(cluster, leaderless, first=10)
    await cluster.kafka[1].kill()
    async with group_of(cluster, "g", ["t"], drain_alarm_ms=ALARM_MS) as group:
        await group.join()
        await group.delivered(wanted, RECOVERY_S)
        await wait_for_alarm(group, len(leaderless))
        assert {number: offset for number, offset in stored(cluster).items() if number in leaderless} == dict.fromkeys(
            leaderless, 10
        )
        assert unopened(cluster) == {*leaderless}
        await restart_broker_and_read_all(cluster, group, wanted | missed)
        assert unopened(cluster) == set()
    assert set(group.values) == wanted | missed


async def test_a_partition_leader_is_down_when_a_consumer_without_a_group_starts(
    start_cluster: Callable[..., Cluster],
) -> None:
    """
    ``consume()`` reads partitions that have leaders at once, and the other partitions when their broker is back. No
    record is repeated. ``subscribe()`` raises an error.
    """
    cluster = start_cluster(brokers=2)
    await cluster.create_topic("t", 4)
    led, leaderless = led_by(cluster, 0), led_by(cluster, 1)
    wanted, missed = await fill(cluster, led), await fill(cluster, leaderless)
    await cluster.kafka[1].kill()
    found: list[bytes] = []
    async with SingleConsumer(cluster.brokers, deserializer=bytes) as consumer:

        async def has(values: set[bytes]) -> None:
            async with asyncio.timeout(RECOVERY_S):
                while set(found) < values:
                    found.extend(await consumer.consume("t", BEGINNING) or [])

        await has(wanted)
        assert set(found) == wanted
        unopened = ("partitions_unopened", (), float(len(leaderless)))
        await eventually(lambda: unopened in set(consumer.metrics.samples()), "the other partitions count as unopened")
        await cluster.kafka[1].restart()
        await has(wanted | missed)
        assert len(found) == len(wanted | missed), "nothing was delivered twice"


async def test_a_partition_leader_is_frozen_when_a_group_starts(start_cluster: Callable[..., Cluster]) -> None:
    """
    The frozen broker remains the leader of its partitions. It delays the start of other brokers' partitions by at most
    ``connect_timeout_ms``. Its own partitions are read when it is resumed.
    """
    cluster = start_cluster(brokers=2, broker_overrides={"zookeeper.session.timeout.ms": 10_000})
    await cluster.create_topic("t", 4)
    of_other, of_frozen = led_by(cluster, 0), led_by(cluster, 1)
    wanted, missed = await fill(cluster, of_other), await fill(cluster, of_frozen)
    frozen = cluster.kafka[1]
    frozen.pause()
    try:
        async with group_of(cluster, "g", ["t"], connect_timeout_ms=1_000) as group:
            await group.join(brokers=[cluster.kafka[0].address])
            await group.delivered(wanted, RECOVERY_S)
            assert set(group.values) == wanted
            frozen.resume()
            await group.delivered(wanted | missed, 60)
    finally:
        frozen.resume()


async def test_all_brokers_are_down(start_cluster: Callable[..., Cluster]) -> None:
    """
    ``consume()`` raises NoBrokersError after 8 metadata requests without an answer, while a loop over records waits.
    Both continue when a broker is back.
    """
    cluster = start_cluster()
    await cluster.create_topic("t", 2)
    quick = {"max_wait_time": 200, "max_backoff_ms": 500}
    consumer = GroupedConsumer(cluster.brokers, "consuming", cluster.zk_hosts, bytes, **quick)
    async with GroupedConsumer(cluster.brokers, "iterating", cluster.zk_hosts, **quick) as iterating:
        await iterating.subscribe("t")
        records = aiter(iterating)
        values = await produce(cluster, "t", 1)
        assert [(await anext(records)).value] == values
        assert await found_by(consumer, 1) == values
        waiting = asyncio.ensure_future(anext(records))
        await cluster.stop_brokers()
        with pytest.raises(NoBrokersError, match=f"{cluster.brokers[0]}: cannot connect"):
            await found_by(consumer, 1)
        unanswered = iterating.metrics.counter("metadata_failures") + UNREACHABLE_AFTER
        await eventually(
            lambda: iterating.metrics.counter("metadata_failures") >= unanswered, "it asks for metadata in vain"
        )
        assert not waiting.done()
        await cluster.kafka[0].start()
        more = await produce(cluster, "t", 1, first=1)
        assert [(await asyncio.wait_for(waiting, RECOVERY_S)).value] == more
        assert await recovered(consumer) == more
    await consumer.close()


async def found_by(consumer: GroupedConsumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(RECOVERY_S):
        while len(found) < count:
            found += await consumer.consume("t") or []
    return found


async def recovered(consumer: GroupedConsumer) -> list[bytes]:
    """Consume until no error is raised, and return the first value."""
    async with asyncio.timeout(RECOVERY_S):
        while True:
            try:
                return await found_by(consumer, 1)
            except NoBrokersError:
                continue
