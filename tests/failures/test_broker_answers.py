"""Deposed leaders that still answer fetches, and damaged answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest

from kiel_groups.clients import BEGINNING, GroupedConsumer, Producer, SingleConsumer
from kiel_groups.clients.fetch.fetch_buffer import TRIES_UNREADABLE
from kiel_groups.embedded import Cluster
from kiel_groups.embedded.kafka import KafkaBroker
from kiel_groups.errors import ProtocolError
from kiel_groups.group.znodes.layout import BROKER_IDS
from kiel_groups.wire.fetch import FetchRequest
from tests.helpers.checked_group import RECOVERY_S, checked_group
from tests.helpers.closed_sessions import close_sessions_below
from tests.helpers.cluster_data import produce, zookeeper
from tests.helpers.servers import LASTING_MS, PATIENT
from tests.helpers.waiting import eventually
from tests.proxies import FaultProxy, KafkaProxy
from tests.proxies.kafka_proxy import Exchange, Reply

pytestmark = pytest.mark.failures

Unique = Callable[[str], str]

NEVER_MS = 3_600_000
RECONCILE_INTERVAL_MS = 3_000
METADATA_MAX_AGE_MS = 2_000
#: Far longer than the longest interval and its jitter of a third, since a server may stand still for some seconds.
BOUND_S = 18.0


@dataclass
class Pair:
    """
    Two brokers, and a topic of one partition with a replica on each broker. Each broker's connection to ZooKeeper can
    be cut.
    """

    cluster: Cluster
    proxies: list[FaultProxy]

    def leader(self) -> int:
        with zookeeper(self.cluster) as client:
            return int(json.loads(client.get("/brokers/topics/t/partitions/0/state")[0])["leader"])

    async def depose(self) -> tuple[str, str]:
        """
        Cut the leader off from ZooKeeper only, and end its session. Return the addresses of the deposed leader and of
        the newly elected leader.
        """
        deposed = self.leader()
        self.proxies[deposed].stall()
        with zookeeper(self.cluster) as client:
            close_sessions_below(client, f"{BROKER_IDS}/{deposed}")
        await eventually(lambda: self.leader() == 1 - deposed, "the other one is elected", RECOVERY_S)
        return self.cluster.brokers[deposed], self.cluster.brokers[1 - deposed]


@asynccontextmanager
async def broker_pair() -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(Cluster(brokers=0, max_session_timeout_ms=LASTING_MS))
        proxies = [await stack.enter_async_context(FaultProxy(cluster.zk_hosts)) for _ in range(2)]
        brokers = [KafkaBroker(proxy.address, number, overrides=PATIENT) for number, proxy in enumerate(proxies)]
        cluster.kafka += await asyncio.gather(*map(stack.enter_async_context, brokers))
        await cluster.create_topic("t", 1, replication=2)
        yield Pair(cluster, proxies)
        for proxy in proxies:
            proxy.heal()


async def produce_at(address: str, *values: bytes) -> None:
    # A replica on a busy machine may confirm late. If its leader stops waiting, the producer stores the record again.
    async with Producer([address], serializer=bytes, ack_timeout=30_000) as producer:
        await asyncio.gather(*(producer.produce("t", value) for value in values))


async def test_a_deposed_leader_still_answers_members() -> None:
    """
    A broker loses its connection to ZooKeeper, and another broker is elected. The deposed leader still answers fetches,
    but members leave it within ``reconcile_interval_ms``. No record is lost or repeated.
    """
    async with broker_pair() as brokers:
        deposed = brokers.cluster.brokers[brokers.leader()]
        async with GroupedConsumer(
            [deposed],
            "g",
            brokers.cluster.zk_hosts,
            reconcile_interval_ms=RECONCILE_INTERVAL_MS,
            metadata_max_age_ms=NEVER_MS,
        ) as consumer:
            seen: list[bytes] = []

            async def consume() -> None:
                async for record in consumer:
                    seen.append(record.value)

            await consumer.subscribe("t")
            task = asyncio.ensure_future(consume())
            await produce_at(deposed, b"before")
            await eventually(lambda: seen == [b"before"], "the record is delivered")
            _, elected = await brokers.depose()
            values = [b"%d" % number for number in range(94)]
            await produce_at(elected, *values)
            written_s = time.monotonic()
            await eventually(lambda: len(seen) == 95, "the new records are delivered", RECOVERY_S)
            assert time.monotonic() - written_s < BOUND_S
            assert Counter(seen) == Counter([b"before", *values])
            assert consumer.metrics.counter("leaders_corrected") == 1
            for proxy in brokers.proxies:
                proxy.heal()
            await produce_at(elected, b"after")
            await eventually(
                lambda: seen[95:] == [b"after"], "delivery continues when the other broker is back", RECOVERY_S
            )
            await consumer.close()
            await task


async def test_a_deposed_leader_still_answers_a_consumer_without_a_group() -> None:
    """
    A consumer without a group gets the partition leaders from brokers only. Every ``metadata_max_age_ms`` it asks
    another broker for metadata, finds the new leader, and then reads from this leader.
    """
    async with broker_pair() as brokers:
        deposed = brokers.cluster.brokers[brokers.leader()]
        await produce_at(deposed, b"before")
        async with SingleConsumer([deposed], metadata_max_age_ms=METADATA_MAX_AGE_MS) as consumer:
            await consumer.subscribe("t", start=BEGINNING)
            assert (await anext(consumer)).value == b"before"
            _, elected = await brokers.depose()
            await produce_at(elected, b"after")
            async with asyncio.timeout(BOUND_S):
                assert (await anext(consumer)).value == b"after"


def damaging(times: int) -> Callable[[Exchange], Reply]:
    """Flip the last bit of each of the first ``times`` fetch answers that contain messages."""
    left = [None] * times

    def answer(exchange: Exchange) -> Reply:
        # An answer without messages ends with the size of an empty set.
        if exchange.api_key != FetchRequest.API_KEY or exchange.response.endswith(bytes(4)) or not left:
            return exchange.response
        left.pop()
        return exchange.response[:-1] + bytes([exchange.response[-1] ^ 1])

    return answer


async def test_a_few_damaged_answers(cluster_39: Cluster, unique: Unique) -> None:
    """
    After a damaged answer, the member fetches again over another connection. The application gets every record once,
    and no error.
    """
    async with checked_group(cluster_39, unique, partitions=1) as checked:
        values = await checked.produce(1)
        with KafkaProxy(cluster_39.brokers[0], damaging(TRIES_UNREADABLE - 1)) as proxy:
            member = await checked.join(brokers=[proxy.address])
            assert await checked.group.delivered(values) == Counter(values)
            assert member.consumer.metrics.counter("fetches_unreadable") == TRIES_UNREADABLE - 1
            await checked.check_nothing_is_lost()
            await checked.group.leave(member)


async def test_damaged_answers_for_longer(cluster_39: Cluster, unique: Unique) -> None:
    """
    After five damaged answers ``consume()`` raises ProtocolError with partition and offset, and again after each
    further damaged answer, at growing intervals. Delivery of the partition resumes with the first undamaged answer.
    """
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    values = await produce(cluster_39, topic, 1)
    with KafkaProxy(cluster_39.brokers[0], damaging(TRIES_UNREADABLE + 2)) as proxy:
        consumer = GroupedConsumer([proxy.address], unique("group"), cluster_39.zk_hosts, bytes, max_wait_time=200)
        found: list[bytes] = []
        raised: list[str] = []
        async with asyncio.timeout(RECOVERY_S):
            while not found:
                try:
                    found += await consumer.consume(topic) or []
                except ProtocolError as error:
                    raised.append(str(error))
        assert found == values
        assert len(raised) == 3, "after five attempts, and after each further one"
        assert all(f"{topic}:0 at offset" in error for error in raised)
        await consumer.close()
