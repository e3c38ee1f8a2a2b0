"""Brokers that are late with what they were asked to store; that are away, or frozen, when a group needs offsets."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection

import pytest

from kiel_groups.admin.group_inspection import read_group
from kiel_groups.clients import BEGINNING, Producer, SingleConsumer
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.config import BrokerConfig, parse_hosts
from kiel_groups.embedded import Cluster, KafkaProxy
from kiel_groups.embedded.faults.fault_proxy import Direction
from kiel_groups.metrics import Metrics
from kiel_groups.ops.checks import UNOPENED_MS, check_group
from kiel_groups.ops.group_view import view_group
from tests.helpers.cluster_data import stored_offsets, zookeeper
from tests.helpers.members import Group, group_of
from tests.helpers.trial import RECOVERY_S, trial
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.failures

Unique = Callable[[str], str]

NEVER_MS = 3_600_000


async def test_broker_holding_a_v0_commit_past_the_release(cluster: Cluster, unique: Unique) -> None:
    """It steps back what the next owner has committed: records come again, and none is lost."""
    settings = {"store": "broker-v0", "reconcile_interval_ms": NEVER_MS}
    async with (
        KafkaProxy(cluster.brokers[0]) as held_back,
        trial(cluster, unique, partitions=1, **settings) as tried,
    ):
        values = await tried.produce(20)
        first = await tried.join(brokers=[held_back.address], auto_commit_interval_ms=NEVER_MS)
        await tried.group.delivered(values)
        held_back.stall(Direction.REQUESTS)
        second = await tried.join()
        await tried.group.leave(first)
        await eventually(lambda: second.values == values, "what was not committed comes again", RECOVERY_S)
        values += await tried.produce(20)
        await eventually(lambda: tried.stored() == {0: 40}, "the next owner commits")
        held_back.heal()
        await eventually(lambda: tried.stored() == {0: 20}, "the late commit lands")
        await tried.nothing_is_lost()
        await eventually(lambda: tried.stored() == {0: 60}, "everything is committed", RECOVERY_S)
        again = Counter(second.values)
        assert all(again[value] == 2 for value in values[20:]), "it follows what stands there, as it would an operator"


#: How long claims may be without a position before that is an alarm, in milliseconds.
ALARM_MS = 2_000


async def fill(cluster: Cluster, partitions: Collection[int], each: int = 10, first: int = 0) -> set[bytes]:
    """Produce values into some partitions of the topic; returns them."""
    values = {number: [b"%d/%d" % (number, count) for count in range(first, first + each)] for number in partitions}
    async with Producer(cluster.brokers) as producer:
        await asyncio.gather(
            *(producer.produce("t", value, partition=number) for number in partitions for value in values[number])
        )
    return {value for listed in values.values() for value in listed}


async def is_known(cluster: Cluster, partitions: int) -> None:
    """Wait until every broker tells of so many partitions: ZooKeeper has their leaders a moment earlier."""
    for address in cluster.brokers:
        view = ClusterMetadata(BrokerConfig(hosts=parse_hosts(address, 9092, "brokers")), Metrics())
        try:
            async with asyncio.timeout(RECOVERY_S):
                while len(view.known_partitions("t") or ()) < partitions:
                    await view.refresh(["t"], "growth")
        finally:
            view.close()


def led_by(cluster: Cluster, broker: int) -> list[int]:
    """The partitions of the topic whose only replica is on a broker."""
    with zookeeper(cluster) as client:
        replicas = json.loads(client.get("/brokers/topics/t")[0])["partitions"]
    return sorted(int(number) for number, brokers in replicas.items() if brokers == [broker])


def stored(cluster: Cluster) -> dict[int, int]:
    with zookeeper(cluster) as client:
        return stored_offsets(client, "g", "t")


def unopened(cluster: Cluster) -> set[int]:
    """The partitions of which ``describe`` says, half a minute from now, that their claims are not open."""
    with zookeeper(cluster) as client:
        view = view_group("g", read_group(client, "g"))
    findings = check_group(view, int(time.time() * 1000) + UNOPENED_MS)
    return {each.partition for found in findings if found.kind == "unopened" for each in found.partitions}


async def is_alarmed(group: Group, claims: int) -> None:
    """Wait until the only member has raised an alarm about so many claims."""
    metrics = group.members[0].consumer.metrics
    await eventually(lambda: metrics.total("open_alarms"), "an alarm is raised", RECOVERY_S)
    gauge = ("claims_unopened", (), float(claims))
    await eventually(lambda: gauge in set(metrics.samples()), f"{claims} claims count as unopened", RECOVERY_S)


async def all_is_read(cluster: Cluster, group: Group, values: set[bytes]) -> None:
    """With the broker back, every value is delivered, and every claim is open."""
    await cluster.kafka[1].restart()
    await group.delivered(values, 60)
    member = group.members[0]
    await eventually(lambda: member.knows("t") and len(member.held) == 4, "all claims are open")
    assert ("claims_unopened", (), 0.0) in set(member.consumer.metrics.samples())


@pytest.mark.parametrize("reset", ["earliest", "latest"])
async def test_a_leader_is_away_when_a_group_begins(
    start_cluster: Callable[..., Cluster], caplog: pytest.LogCaptureFixture, reset: str
) -> None:
    """
    What has leaders is read at once; the rest is an alarm, and is read from its beginning, whatever the policy, when
    its broker is back.
    """
    cluster = start_cluster(brokers=2)
    await cluster.create_topic("t", 4)
    sound, away = led_by(cluster, 0), led_by(cluster, 1)
    assert len(sound) == len(away) == 2
    before, missed = await fill(cluster, sound), await fill(cluster, away)
    await cluster.kafka[1].kill()
    settings = {"auto_offset_reset": reset, "drain_alarm_ms": ALARM_MS, "auto_commit_interval_ms": 100}
    async with group_of(cluster, "g", ["t"], **settings) as group:
        await group.join()
        await eventually(lambda: stored(cluster).keys() == {*sound}, "first offsets are stored", RECOVERY_S)
        wanted = await fill(cluster, sound, first=10)
        wanted |= before if reset == "earliest" else set()
        await group.delivered(wanted, RECOVERY_S)
        assert set(group.values) == wanted
        await is_alarmed(group, len(away))
        assert stored(cluster).keys() == {*sound}
        assert unopened(cluster) == {*away}
        with caplog.at_level(logging.WARNING, "kiel_groups"):
            await all_is_read(cluster, group, wanted | missed)
        assert len(group.values) == len(wanted | missed), "nothing was delivered twice"
        late = [record.message for record in caplog.records if "starting at the earliest offset" in record.message]
        assert len(late) == (1 if reset == "latest" else 0)
        assert all(f"t:{number}" in message for number in away for message in late)
    assert stored(cluster).keys() == {*sound, *away}


@pytest.mark.parametrize("store", ["zookeeper", "broker-v0"])
async def test_a_leader_is_away_when_a_topic_has_grown(start_cluster: Callable[..., Cluster], store: str) -> None:
    """A group that knew the topic goes on in what it knew, and reads the new partitions that have leaders."""
    cluster = start_cluster(brokers=2)
    await cluster.create_topic("t", 2)
    async with group_of(cluster, "g", ["t"], store=store, auto_commit_interval_ms=100) as group:
        await group.join()
        await group.delivered(await fill(cluster, [0, 1]), RECOVERY_S)
    assert stored(cluster) == {0: 10, 1: 10}
    await cluster.grow_topic("t", 4)
    await is_known(cluster, 4)
    sound, away = led_by(cluster, 0), led_by(cluster, 1)
    assert len(sound) == len(away) == 2
    grown = sorted({2, 3} & {*sound})
    missed = await fill(cluster, away, first=10)
    wanted = await fill(cluster, sound, first=10)
    await cluster.kafka[1].kill()
    async with group_of(cluster, "g", ["t"], store=store, drain_alarm_ms=ALARM_MS) as group:
        member = await group.join()
        await group.delivered(wanted, RECOVERY_S)
        assert {record.value for record in member.records} == wanted
        assert stored(cluster).keys() == {0, 1, *grown}
        await is_alarmed(group, 1)
        await all_is_read(cluster, group, wanted | missed)


async def test_a_leader_is_away_when_a_topic_is_made_anew(start_cluster: Callable[..., Cluster]) -> None:
    """
    Offsets of the deleted topic still stand in ZooKeeper; the claims that have no leader are an alarm all the same, and
    a finding of ``describe``.
    """
    cluster = start_cluster(brokers=2)
    await cluster.create_topic("t", 4)
    old = await fill(cluster, [0, 1, 2, 3])
    async with group_of(cluster, "g", ["t"], auto_commit_interval_ms=100) as group:
        await group.join()
        await group.delivered(old, RECOVERY_S)
    await cluster.delete_topic("t")
    await cluster.create_topic("t", 4)
    await is_known(cluster, 4)
    sound, away = led_by(cluster, 0), led_by(cluster, 1)
    wanted, missed = await fill(cluster, sound, first=10), await fill(cluster, away, first=10)
    await cluster.kafka[1].kill()
    async with group_of(cluster, "g", ["t"], drain_alarm_ms=ALARM_MS) as group:
        await group.join()
        await group.delivered(wanted, RECOVERY_S)
        await is_alarmed(group, len(away))
        assert {number: offset for number, offset in stored(cluster).items() if number in away} == dict.fromkeys(
            away, 10
        )
        assert unopened(cluster) == {*away}
        await all_is_read(cluster, group, wanted | missed)
        assert unopened(cluster) == set()
    assert set(group.values) == wanted | missed


async def test_a_leader_is_away_when_a_consumer_without_a_group_begins(start_cluster: Callable[..., Cluster]) -> None:
    """``consume()`` reads what has leaders at once, and the rest when its broker is back; ``subscribe()`` raises."""
    cluster = start_cluster(brokers=2)
    await cluster.create_topic("t", 4)
    sound, away = led_by(cluster, 0), led_by(cluster, 1)
    wanted, missed = await fill(cluster, sound), await fill(cluster, away)
    await cluster.kafka[1].kill()
    found: list[bytes] = []
    async with SingleConsumer(cluster.brokers, deserializer=bytes) as consumer:

        async def has(values: set[bytes]) -> None:
            async with asyncio.timeout(RECOVERY_S):
                while set(found) < values:
                    found.extend(await consumer.consume("t", BEGINNING) or [])

        await has(wanted)
        assert set(found) == wanted
        unopened = ("partitions_unopened", (), float(len(away)))
        await eventually(lambda: unopened in set(consumer.metrics.samples()), "the others count as unopened")
        await cluster.kafka[1].restart()
        await has(wanted | missed)
        assert len(found) == len(wanted | missed), "nothing was delivered twice"


async def test_a_leader_is_frozen_when_a_group_begins(start_cluster: Callable[..., Cluster]) -> None:
    """It is still the leader of its partitions: those of others wait for it no longer than ``connect_timeout_ms``."""
    cluster = start_cluster(brokers=2, broker_overrides={"zookeeper.session.timeout.ms": 10_000})
    await cluster.create_topic("t", 4)
    sound, away = led_by(cluster, 0), led_by(cluster, 1)
    wanted, missed = await fill(cluster, sound), await fill(cluster, away)
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
