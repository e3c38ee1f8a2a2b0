"""Brokers that mislead those who read from them, damage what they send, or are all gone."""

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
from kiel_groups.clients.fetch.fetcher import TRIES_UNREADABLE
from kiel_groups.clients.net.metadata_sources import UNREACHABLE_AFTER
from kiel_groups.embedded import Cluster, FaultProxy, KafkaProxy
from kiel_groups.embedded.faults.kafka_proxy import Exchange, Reply
from kiel_groups.embedded.servers.kafka_broker import KafkaBroker
from kiel_groups.errors import NoBrokersError, ProtocolError
from kiel_groups.wire.api.fetch_v0 import FetchRequest
from tests.helpers.cluster_data import produce, zookeeper
from tests.helpers.trial import RECOVERY_S, trial
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.failures

Unique = Callable[[str], str]

NEVER_MS = 3_600_000
RECONCILE_INTERVAL_MS = 3_000
METADATA_MAX_AGE_MS = 2_000
#: Longer than the longest interval with its jitter of a third, a second of a poll in flight, and a busy machine.
BOUND_S = 8.0


@dataclass
class Pair:
    """Two brokers with connections to ZooKeeper that can be cut, and a topic of one partition on both of them."""

    cluster: Cluster
    proxies: list[FaultProxy]

    def leader(self) -> int:
        with zookeeper(self.cluster) as client:
            return int(json.loads(client.get("/brokers/topics/t/partitions/0/state")[0])["leader"])

    async def depose(self) -> tuple[str, str]:
        """Cut the leader off from ZooKeeper alone; the addresses of the deposed and of the elected one."""
        deposed = self.leader()
        self.proxies[deposed].stall()
        await eventually(lambda: self.leader() == 1 - deposed, "the other one is elected", RECOVERY_S)
        return self.cluster.brokers[deposed], self.cluster.brokers[1 - deposed]


@asynccontextmanager
async def pair() -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(Cluster(brokers=0))
        proxies = [await stack.enter_async_context(FaultProxy(cluster.zk_hosts)) for _ in range(2)]
        quick = {"zookeeper.session.timeout.ms": 4_000}
        brokers = [KafkaBroker(proxy.address, number, overrides=quick) for number, proxy in enumerate(proxies)]
        cluster.kafka += await asyncio.gather(*map(stack.enter_async_context, brokers))
        await cluster.create_topic("t", 1, replication=2)
        yield Pair(cluster, proxies)
        for proxy in proxies:
            proxy.heal()


async def produce_at(address: str, *values: bytes) -> None:
    async with Producer([address], serializer=bytes) as producer:
        await asyncio.gather(*(producer.produce("t", value) for value in values))


async def test_a_leader_cut_off_from_zookeeper_alone_keeps_no_reader() -> None:
    """It answers fetches as before, though another one leads: its readers leave it within ``reconcile_interval_ms``."""
    async with pair() as brokers:
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
            await eventually(lambda: seen == [b"before"], "the leader is read from")
            _, elected = await brokers.depose()
            values = [b"%d" % number for number in range(94)]
            await produce_at(elected, *values)
            written_s = time.monotonic()
            await eventually(lambda: len(seen) == 95, "what is new is read", RECOVERY_S)
            assert time.monotonic() - written_s < BOUND_S
            assert Counter(seen) == Counter([b"before", *values])
            assert consumer.metrics.counter("leaders_corrected") == 1
            for proxy in brokers.proxies:
                proxy.heal()
            await produce_at(elected, b"after")
            await eventually(lambda: seen[95:] == [b"after"], "it goes on when the other is back", RECOVERY_S)
            await consumer.close()
            await task


async def test_a_leader_cut_off_from_zookeeper_and_readers_without_a_group() -> None:
    """They know nothing but what brokers say: another one is asked every ``metadata_max_age_ms``."""
    async with pair() as brokers:
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
    """Flip a bit at the end of the first answers to fetches that bring messages."""
    left = [None] * times

    def answer(exchange: Exchange) -> Reply:
        # An answer that brings nothing ends with the size of an empty set.
        if exchange.api_key != FetchRequest.API_KEY or exchange.response.endswith(bytes(4)) or not left:
            return exchange.response
        left.pop()
        return exchange.response[:-1] + bytes([exchange.response[-1] ^ 1])

    return answer


async def test_damaged_answers(cluster_39: Cluster, unique: Unique) -> None:
    """They are fetched again, over other connections; the application gets every record once, and no error."""
    async with trial(cluster_39, unique, partitions=1) as tried:
        values = await tried.produce(1)
        with KafkaProxy(cluster_39.brokers[0], damaging(TRIES_UNREADABLE - 1)) as proxy:
            member = await tried.join(brokers=[proxy.address])
            assert await tried.group.delivered(values) == Counter(values)
            assert member.consumer.metrics.counter("fetches_unreadable") == TRIES_UNREADABLE - 1
            await tried.nothing_is_lost()
            await tried.group.leave(member)


async def test_damaged_answers_for_longer(cluster_39: Cluster, unique: Unique) -> None:
    """``consume()`` raises where the damage is, again after growing pauses; its partition flows on when that ends."""
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
        assert len(raised) == 3, "after five tries, and after each further one"
        assert all(f"{topic}:0 at offset" in error for error in raised)
        await consumer.close()


async def test_all_brokers_are_gone(start_cluster: Callable[..., Cluster]) -> None:
    """``consume()`` raises NoBrokersError after 8 metadata requests without an answer, iteration waits; both heal."""
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
        await eventually(lambda: iterating.metrics.counter("metadata_failures") >= unanswered, "it looks for brokers")
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
    """What comes when it raises no more."""
    async with asyncio.timeout(RECOVERY_S):
        while True:
            try:
                return await found_by(consumer, 1)
            except NoBrokersError:
                continue
