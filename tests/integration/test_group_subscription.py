"""A member's subscription changes, or a plan contains topics to which the member has not subscribed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.errors import ConfigError, IllegalStateError
from kiel_groups.group.znodes.contents import MemberAssignment
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.metrics import Metrics
from kiel_groups.model import Record, TopicPartition
from tests.helpers.cluster_data import owners, produce, zookeeper
from tests.helpers.group_backends import GroupBackend
from tests.helpers.members import end_session, group_of
from tests.helpers.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.failures]

Unique = Callable[[str], str]


class TwoTopics:
    """The values delivered to a consumer of the topics ``dropped`` and ``kept``."""

    def __init__(self, dropped: str, kept: str) -> None:
        self.dropped, self.kept = dropped, kept
        self.values: dict[str, list[bytes]] = {dropped: [], kept: []}
        #: How many values of ``dropped`` were delivered before its subscription ended.
        self.until_dropped: int | None = None
        self.metrics = Metrics()

    def add(self, record: Record) -> None:
        self.values[record.topic].append(record.value)

    @property
    def is_to_be_dropped(self) -> bool:
        return self.until_dropped is None and len(self.values[self.dropped]) == 50

    def has(self, dropped: int = 0, kept: int = 0) -> bool:
        return len(self.values[self.dropped]) >= dropped and len(self.values[self.kept]) >= kept

    def drop(self) -> None:
        self.until_dropped = len(self.values[self.dropped])


async def with_asyncio(backend: GroupBackend, group: str, seen: TwoTopics, dropped: threading.Event) -> None:
    """In a loop over records, drop a topic. When ``dropped`` is set, subscribe to the topic again."""
    async with backend.consumer(group, metrics=seen.metrics) as consumer:
        await consumer.subscribe([seen.dropped, seen.kept])
        async for record in consumer:
            seen.add(record)
            if seen.is_to_be_dropped:
                await consumer.subscribe(seen.kept)
                seen.drop()
            elif seen.has(kept=40):
                break
        await asyncio.to_thread(dropped.wait)
        await consumer.subscribe([seen.dropped, seen.kept])
        async for record in consumer:
            seen.add(record)
            if seen.has(dropped=201):
                break


async def with_sync(backend: GroupBackend, group: str, seen: TwoTopics, dropped: threading.Event) -> None:
    """Drop a topic and subscribe to it again, as ``with_asyncio`` does, with the blocking client."""

    def program() -> None:
        with backend.blocking(group, metrics=seen.metrics) as consumer:
            consumer.subscribe([seen.dropped, seen.kept])
            for record in consumer:
                seen.add(record)
                if seen.is_to_be_dropped:
                    consumer.subscribe(seen.kept)
                    seen.drop()
                elif seen.has(kept=40):
                    break
            dropped.wait()
            consumer.subscribe([seen.dropped, seen.kept])
            for record in consumer:
                seen.add(record)
                if seen.has(dropped=201):
                    break

    await asyncio.to_thread(program)


@pytest.mark.parametrize("program", [with_asyncio, with_sync], ids=["asyncio", "sync"])
async def test_a_topic_is_dropped_from_the_subscription(
    backend: GroupBackend, unique: Unique, program: Callable[..., Iterable[None]]
) -> None:
    """The topic is no longer delivered, and its position is committed. A later subscription resumes there."""
    seen, group, dropped = TwoTopics(unique("dropped"), unique("kept")), unique("group"), threading.Event()
    await backend.cluster.create_topic(seen.dropped, 1)
    await backend.cluster.create_topic(seen.kept, 1)
    values = await produce(backend.cluster, seen.dropped, 200)
    await produce(backend.cluster, seen.kept, 20)
    running = asyncio.ensure_future(program(backend, group, seen, dropped))
    try:
        await eventually(lambda: seen.until_dropped is not None, "the topic is dropped")
        await produce(backend.cluster, seen.kept, 20)
        await eventually(lambda: seen.has(kept=40), "the other topic flows")
        assert seen.values[seen.dropped] == values[:50]
        await eventually(lambda: backend.stored(group, seen.dropped) == {0: 50}, "it is committed")
    finally:
        values += await produce(backend.cluster, seen.dropped, 1, first=200)
        dropped.set()
    await asyncio.wait_for(running, 60)
    assert seen.values[seen.dropped] == values
    assert seen.metrics.total("assignments_of_unsubscribed_topics") == 0, (
        "an assignment of the earlier subscription does not count"
    )


async def test_an_assignment_names_a_topic_without_subscription(
    cluster: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """
    A member does not claim partitions of a topic without a subscription, and continues to deliver others. It logs a
    warning, and an error if the assignment persists.
    """
    topic, other, name = unique("topic"), unique("other"), unique("group")
    await cluster.create_topic(topic, 2)
    await cluster.create_topic(other, 1)
    await produce(cluster, other, 5)
    async with group_of(cluster, name, [topic]) as group:
        first, second = await group.join(), await group.join()
        await group.balanced(topic, 2)
        member = second if first.consumer.is_leader else first
        layout, reports = GroupLayout(name), member.consumer.metrics
        with zookeeper(cluster) as client:
            path = layout.assignment(str(member.consumer.member_id))
            planned = MemberAssignment.parse(client.get(path)[0], path)
            garbled = MemberAssignment(
                planned.generation, planned.member_id, planned.partitions | {TopicPartition(other, 0)}
            )
            client.set(path, garbled.encode())
            await eventually(
                lambda: reports.total("assignments_of_unsubscribed_topics") or owners(client, name, other),
                "the assignment is read",
            )
            # Make the member read the unchanged assignment again.
            member.consumer._lifecycle.connected.member._member_session.role.owned_partitions.recheck()  # type: ignore[union-attr]
            values = await produce(cluster, topic, 20)
            await group.delivered(values)
            assert owners(client, name, other) == {}
            assert reports.total("assignments_of_unsubscribed_topics") == 1
            levels = [entry.levelname for entry in caplog.records if "has not subscribed to" in entry.getMessage()]
            assert levels[0] == "WARNING"
            assert len(levels) == len(set(levels)), "one line at each level, however often the assignment is read"
            await member.consumer.subscribe([topic, other])
            await eventually(lambda: set(owners(client, name, other)) == {0}, "it is claimed once it is subscribed to")
        await eventually(lambda: len(member.values) >= 5, "it is delivered")


async def test_topics_come_and_go_under_a_pattern(backend: GroupBackend, unique: Unique) -> None:
    """New topics that match are consumed, deleted ones leave, and others are not consumed. The blocking client, too."""
    first, group = unique("pattern"), unique("group")
    second, other = f"{first}-2", f"other-{first}"
    for topic in (first, other):
        await backend.cluster.create_topic(topic, 1)
        await produce(backend.cluster, topic, 5)
    async with backend.consumer(group, metadata_max_age_ms=500) as consumer:
        await consumer.subscribe(pattern=first)
        assert (await consumer.getone()).topic == first
        await backend.cluster.create_topic(second, 1)
        await produce(backend.cluster, second, 5)
        while (await consumer.getone()).topic != second:
            pass
        assert consumer.subscription() == {first, second}
        await backend.cluster.delete_topic(second)
        await eventually(lambda: consumer.subscription() == {first}, "the deleted topic leaves")
        await eventually(lambda: {each.topic for each in consumer.assignment()} == {first}, "so do its partitions")

    def program() -> None:
        with backend.blocking(group) as blocking:
            with pytest.raises(IllegalStateError, match="topics and a pattern given"):
                blocking.subscribe(first, pattern=first)
            blocking.subscribe(pattern=first)
            assert blocking.getone().topic == first
            assert blocking.subscription() == {first}
            with pytest.raises(IllegalStateError, match=r"the consumer has a pattern .* unsubscribe\(\) first"):
                blocking.subscribe(first)
            blocking.unsubscribe()
            assert blocking.subscription() == blocking.assignment() == set()

    await produce(backend.cluster, first, 5, first=5)
    await asyncio.to_thread(program)


async def test_a_refused_subscription_changes_nothing(cluster_39: Cluster, unique: Callable[[str], str]) -> None:
    """
    After a refused subscription, the previous subscription remains. The next session uses it, too, and can register.
    """
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    values = await produce(cluster_39, topic, 5)
    async with group_of(cluster_39, name, [topic]) as group:
        member = await group.join()
        await group.delivered(values)
        before = member.consumer.member_id
        with pytest.raises(ConfigError, match=r"takes \d+ KiB in ZooKeeper, expected at most"):
            await member.consumer.subscribe([topic, *(f"{number:0>240}" for number in range(4_000))])
        assert member.consumer.subscription() == {topic}
        await member.consumer.commit()
        end_session(cluster_39, member)
        await eventually(lambda: member.consumer.member_id not in (None, before), "it has joined again")
        await eventually(lambda: member.consumer.settled, "it owns its partition again")
        values += await produce(cluster_39, topic, 5, first=5)
        await group.delivered(values)
