"""A real broker behind a proxy: the clients survive errors, silence and partial answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kiel_groups.clients import BEGINNING, Producer, SingleConsumer
from kiel_groups.config import HostPort
from kiel_groups.embedded import Cluster
from kiel_groups.model import OffsetAndMetadata, TopicPartition
from kiel_groups.wire.error_codes import NO_ERROR, NOT_COORDINATOR_FOR_CONSUMER, UNKNOWN_MEMBER_ID, ErrorCode
from kiel_groups.wire.framing import Request
from kiel_groups.wire.group_requests import (
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    SyncGroupRequest,
)
from kiel_groups.wire.metadata import BrokerAddress
from kiel_groups.wire.offsets import OffsetCommitRequestV2, OffsetFetchRequestV1
from kiel_groups.wire.primitives import Buffer, Writer
from tests.helpers.raw_requests import ask, ask_at, connection_to
from tests.helpers.reference_codec import array, int32, string
from tests.helpers.waiting import eventually
from tests.proxies import Exchange, KafkaProxy, NextFailures, NextRefusals, Partial, failing
from tests.proxies.kafka_proxy import Answer, Reply

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]
PRODUCE, FETCH, LIST_OFFSETS, METADATA, HEARTBEAT = 0, 1, 2, 3, 12
LEADER_NOT_AVAILABLE, NOT_LEADER = 5, 6
SENT = [b"%d" % number for number in range(20)]


async def produce(proxy: KafkaProxy, topic: str) -> None:
    async with Producer([proxy.address], ack_timeout=30_000) as producer:
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


async def test_the_coordinator_is_found_at_its_proxy(coordinating_cluster: Cluster, unique: Unique) -> None:
    """FindCoordinator answers have the proxy's address, so a group's requests pass through the proxy, too."""
    async with KafkaProxy(coordinating_cluster.brokers[0]) as proxy:
        found = await coordinator_at(proxy, unique("group"))
        assert (found.host, found.port) == ("127.0.0.1", proxy.port)


@pytest.mark.parametrize("api_key", [11, 12, 13, 14, 8, 9, 15, 16])
async def test_an_error_of_a_coordinator_is_injected_once(
    coordinating_cluster: Cluster, unique: Unique, api_key: int
) -> None:
    """Set on a proxy in use, ``NextFailures`` replaces the next answer to a request, and no later one."""
    topic, group = unique("topic"), unique("group")
    await coordinating_cluster.create_topic(topic, 1)
    partition = TopicPartition(topic, 0)
    async with KafkaProxy(coordinating_cluster.brokers[0]) as proxy:
        await coordinator_at(proxy, group)
        joined = await eventually(lambda: answered(proxy, join(group)), "the coordinator has started", 60)
        assert joined.error is NO_ERROR
        me, generation = joined.member_id, joined.generation
        requests: dict[int, Any] = {
            11: join(group, me),
            14: SyncGroupRequest(group, generation, me, {me: b""}),
            12: HeartbeatRequest(group, generation, me),
            8: OffsetCommitRequestV2(group, generation, me, {partition: OffsetAndMetadata(7)}),
            9: OffsetFetchRequestV1(group, (partition,)),
            15: DescribeGroupsRequest((group,)),
            16: ListGroupsRequest(),
            13: LeaveGroupRequest(group, me),
        }
        assert errors_of(await ask_at(proxy.address, requests[14])) == [NO_ERROR]

        async def is_stored() -> bool:
            return errors_of(await ask_at(proxy.address, requests[8])) == [NO_ERROR]

        # A broker of 0.9 refuses offsets of a topic of which the controller has not notified it yet.
        await eventually(is_stored, "the coordinator knows the new topic, and stores the offset")
        rule = NextFailures(api_key, NOT_COORDINATOR_FOR_CONSUMER.number)
        proxy.answer = rule
        assert errors_of(await ask_at(proxy.address, requests[api_key])) == [NOT_COORDINATOR_FOR_CONSUMER]
        assert rule.made == 1
        again = errors_of(await ask_at(proxy.address, requests[api_key]))
        # The broker has performed the first request, although its answer was replaced.
        assert again == [UNKNOWN_MEMBER_ID if api_key == 13 else NO_ERROR]


async def test_a_refused_join_leaves_no_member(coordinating_cluster: Cluster, unique: Unique) -> None:
    """
    The proxy refuses a request after the answers to earlier requests, and the broker does not get it: the next join
    does not wait for a member that was refused.
    """
    group = unique("group")
    async with KafkaProxy(coordinating_cluster.brokers[0]) as proxy:
        await coordinator_at(proxy, group)
        await eventually(lambda: answered(proxy, HeartbeatRequest(group, 1, "x")), "it has started", 60)
        refuse = proxy.refusal = NextRefusals(11, NOT_COORDINATOR_FOR_CONSUMER.number)
        async with connection_to(HostPort("127.0.0.1", proxy.port)) as connection:
            earlier, refused, later = await asyncio.gather(
                *(ask(connection, request) for request in (ListGroupsRequest(), join(group), ListGroupsRequest()))
            )
            assert [refused.error, earlier.error, later.error] == [NOT_COORDINATOR_FOR_CONSUMER, NO_ERROR, NO_ERROR]
            assert refuse.made == 1
            joined = await ask(connection, join(group))
            assert (joined.error, list(joined.members)) == (NO_ERROR, [joined.member_id])


async def test_answers_of_later_versions_pass_unaltered(coordinating_cluster: Cluster, unique: Unique) -> None:
    """
    A Metadata answer of version 0 has the proxy's address. One of version 1, which 0.9 does not know, has the broker's.
    """
    topic = unique("topic")
    await coordinating_cluster.create_topic(topic, 1)
    own = int32(coordinating_cluster.kafka[0].port)
    async with KafkaProxy(coordinating_cluster.brokers[0], failing(HEARTBEAT, NOT_LEADER)) as proxy:
        proxied = int32(proxy.port)
        answer = await ask_at(proxy.address, MetadataBytes(topic))
        assert (proxied in answer, own in answer) == (True, False)
        if coordinating_cluster.kafka[0].version != "0.9.0.1":
            answer = await ask_at(proxy.address, MetadataBytesV1(topic))
            assert (proxied in answer, own in answer) == (False, True)


class MetadataBytes(Request[bytes]):
    """A Metadata request of version 0, whose answer is returned as bytes."""

    API_KEY, API_VERSION = METADATA, 0

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def write_body(self, writer: Writer) -> None:
        writer.raw(array(string(self._topic)))

    @classmethod
    def decode_response(cls, payload: Buffer) -> bytes:
        return bytes(payload)


class MetadataBytesV1(MetadataBytes):
    """The same request of version 1."""

    API_VERSION = 1


def join(group: str, member_id: str = "") -> JoinGroupRequest:
    return JoinGroupRequest(group, 10_000, member_id, "consumer", (GroupProtocol("range", b""),))


async def coordinator_at(proxy: KafkaProxy, group: str) -> BrokerAddress:
    """Return the coordinator that is found through the proxy, once there is one."""
    found: Any = await eventually(lambda: answered(proxy, FindCoordinatorRequest(group)), "there is a coordinator", 60)
    broker: BrokerAddress = found.broker
    return broker


async def answered(proxy: KafkaProxy, request: Any) -> Any:
    """Return the answer to a request, or None while the coordinator starts."""
    answer = await ask_at(proxy.address, request)
    return None if errors_of(answer)[0].retriable else answer


def errors_of(answer: Any) -> list[ErrorCode]:
    """Return the error codes in an answer to a group's request."""
    if isinstance(answer, ErrorCode):
        return [answer]
    if isinstance(answer, Mapping):
        return [error for value in answer.values() for error in errors_of(value)]
    return [answer.error] if hasattr(answer, "error") else [each.error for each in answer]
