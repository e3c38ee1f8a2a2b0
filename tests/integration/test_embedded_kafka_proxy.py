"""A real broker behind a proxy: the clients survive errors, silence and partial answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from kiel_groups.clients import BEGINNING, Producer, SingleConsumer
from kiel_groups.config import HostPort
from kiel_groups.embedded import Cluster, Exchange, KafkaProxy, Partial, failing
from kiel_groups.embedded.faults.kafka_proxy import Answer, Reply

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]
PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
LEADER_NOT_AVAILABLE, NOT_LEADER = 5, 6
SENT = [b"%d" % number for number in range(20)]


async def produce(proxy: KafkaProxy, topic: str) -> None:
    async with Producer([proxy.address], ack_timeout=30_000, request_timeout_ms=1_000) as producer:
        await asyncio.gather(*(producer.produce(topic, value, partition=0) for value in SENT))


async def read(proxy: KafkaProxy, topic: str, count: int = len(SENT)) -> list[bytes]:
    """Read ``count`` values of a topic from its beginning."""
    async with SingleConsumer([proxy.address], request_timeout_ms=2_000) as consumer, asyncio.timeout(60):
        await consumer.subscribe(topic, start=BEGINNING)
        return [(await anext(consumer)).value for _ in range(count)]


async def test_clients_connect_only_to_the_proxy(release_cluster: Cluster, unique: Unique) -> None:
    """
    On every release, Metadata answers contain the proxy's address, so all requests pass through the proxy, unaltered.
    """
    topic = unique("topic")
    await release_cluster.create_topic(topic, 1)
    seen: Counter[int] = Counter()

    def answer(exchange: Exchange) -> Reply:
        seen[exchange.api_key] += 1
        assert exchange.number == seen[exchange.api_key]
        return exchange.response

    async with KafkaProxy(release_cluster.brokers[0], answer) as proxy:
        await produce(proxy, topic)
        assert await read(proxy, topic) == SENT
    assert {PRODUCE, FETCH, LIST_OFFSETS, METADATA} <= set(seen)


@pytest.mark.parametrize(
    ("api_key", "code"),
    [(FETCH, NOT_LEADER), (LIST_OFFSETS, NOT_LEADER), (METADATA, LEADER_NOT_AVAILABLE)],
    ids=["fetch", "list offsets", "metadata"],
)
async def test_a_consumer_survives_errors(cluster_39: Cluster, unique: Unique, api_key: int, code: int) -> None:
    """After two answers with a transient error code, the consumer gets every record once."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    async with KafkaProxy(cluster_39.brokers[0]) as proxy:
        await produce(proxy, topic)
    async with KafkaProxy(cluster_39.brokers[0], failing(api_key, code, times=2)) as proxy:
        assert await read(proxy, topic) == SENT


async def test_a_retried_produce_request_is_stored_twice(cluster_39: Cluster, unique: Unique) -> None:
    """If the proxy replaces a success by an error, the producer sends the records again, so they are stored twice."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    async with KafkaProxy(cluster_39.brokers[0], failing(PRODUCE, NOT_LEADER, times=1)) as proxy:
        await produce(proxy, topic)
        assert Counter(await read(proxy, topic, 2 * len(SENT))) == Counter(SENT + SENT)


def half(exchange: Exchange) -> Reply:
    return Partial(exchange.response, len(exchange.response) // 2)


def half_and_silence(exchange: Exchange) -> Reply:
    return Partial(exchange.response, len(exchange.response) // 2, then_reset=False)


def silence(exchange: Exchange) -> Reply:
    return None


@pytest.mark.parametrize("fault", [half, half_and_silence, silence], ids=lambda fault: fault.__name__)
async def test_a_fetch_with_a_partial_answer_is_repeated(cluster_39: Cluster, unique: Unique, fault: Answer) -> None:
    """
    After half an answer and a reset, half an answer and silence, or no answer, the consumer gets every record once.
    """
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    async with KafkaProxy(cluster_39.brokers[0]) as proxy:
        await produce(proxy, topic)
        faults = 0

        def answer(exchange: Exchange) -> Reply:
            nonlocal faults
            if exchange.api_key != FETCH or faults == 2:
                return exchange.response
            faults += 1
            return fault(exchange)

        proxy.answer = answer
        assert await read(proxy, topic) == SENT
        assert faults == 2


async def test_proxies_of_one_cluster_share_addresses(start_cluster: Callable[..., Cluster]) -> None:
    """A client that connects to one proxy finds the proxies of all brokers."""
    cluster = start_cluster(brokers=2)
    await cluster.create_topic("t", 2)
    addresses: dict[HostPort, HostPort] = {}
    first, second = (KafkaProxy(broker, addresses=addresses) for broker in cluster.brokers)
    async with first, second, Producer([first.address]) as producer:
        await asyncio.gather(*(producer.produce("t", b"value", partition=partition) for partition in (0, 1)))
        assert second.accepted > 0


async def test_a_broker_may_advertise_its_proxy(start_cluster: Callable[..., Cluster]) -> None:
    """
    The proxy starts before its broker. A client that reads the broker's address in ZooKeeper gets the proxy's address.
    """
    running: list[Cluster] = []
    async with KafkaProxy(lambda: running[0].brokers[0]) as proxy:
        running.append(start_cluster(broker_overrides={"advertised.port": proxy.port}))
        await running[0].create_topic("t", 1)
        await produce(proxy, "t")
        assert await read(proxy, "t") == SENT
