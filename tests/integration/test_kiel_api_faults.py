"""kiel's API with brokers that answer with errors or not at all: some calls raise, and no value is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from tornado import gen, ioloop

from kiel_groups.clients import GroupedConsumer, SingleConsumer
from kiel_groups.embedded import Cluster
from kiel_groups.errors import ClosedError, NoOffsetsError
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.model import TopicPartition
from kiel_groups.wire.primitives import Reader
from tests.helpers.cluster_data import await_committed, stored_offsets, zookeeper
from tests.helpers.kiel_api import consumer_of, offsets, produce, values
from tests.helpers.running_time import running_s
from tests.helpers.waiting import eventually
from tests.proxies import KafkaProxy
from tests.proxies.faulty_answers import with_error
from tests.proxies.kafka_proxy import Answer, Exchange, Reply, failing

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

FETCH, METADATA, OFFSET_COMMIT, OFFSET_FETCH = 1, 3, 8, 9


class Proxy(KafkaProxy):
    """
    A proxy to the cluster's first broker. It records every exchange.

    It answers with the result of ``reply``, or with the broker's response if ``reply`` is None.
    """

    def __init__(self, cluster: Cluster, answer: Answer | None = None) -> None:
        super().__init__(cluster.brokers[0], self._reply_to)
        self.seen: list[Exchange] = []
        self.reply = answer

    def _reply_to(self, exchange: Exchange) -> Reply:
        self.seen.append(exchange)
        return exchange.response if self.reply is None else self.reply(exchange)

    def asked(self, api_key: int) -> list[Exchange]:
        return [exchange for exchange in self.seen if exchange.api_key == api_key]

    def consumer(self, cluster: Cluster, group: str, **settings: Any) -> GroupedConsumer:
        """Return a consumer that knows only the address of this proxy, and has the store ``broker-v0``."""
        quick = {"store": "broker-v0", "max_wait_time": 200}
        return GroupedConsumer([self.address], group, [cluster.zk_hosts], **(quick | settings))


def commits(proxy: Proxy) -> list[tuple[str, int, int, str]]:
    """Return topic, partition, offset and metadata of each requested commit, in order."""
    found = []
    for exchange in proxy.asked(OFFSET_COMMIT):
        body = Reader(exchange.request, "a commit")
        body.string()
        body.string()
        for _ in body.array(2):
            topic = body.string()
            found += [(topic, body.int32(), body.int64(), body.string()) for _ in body.array(4)]
    return found


def silence(exchange: Exchange) -> Reply:
    return None


async def test_refused_offsets_affect_one_topic(cluster_39: Cluster, unique: Unique) -> None:
    """
    Each call for the refused topic raises, while other topics are delivered. When the broker no longer refuses, the
    topic is delivered.
    """
    refused, fine, group = unique("refused"), unique("fine"), unique("group")
    for topic in (refused, fine):
        await cluster_39.create_topic(topic, 1)
        await produce(cluster_39, topic, topic)

    def refuse(exchange: Exchange) -> Reply:
        if exchange.api_key == OFFSET_FETCH and refused.encode() in exchange.request:
            return with_error(OFFSET_FETCH, exchange.response, 17)
        return exchange.response

    with Proxy(cluster_39, refuse) as proxy:
        consumer = proxy.consumer(cluster_39, group)
        for _ in range(2):
            with pytest.raises(NoOffsetsError, match=rf"{refused}:0 .*INVALID_TOPIC \(17\)") as caught:
                await values(consumer, refused, 1)
            assert caught.value.code == 17
        assert await values(consumer, fine, 1) == [fine]
        proxy.reply = None
        found = []
        async with asyncio.timeout(30):
            while not found:
                try:
                    found = await consumer.consume(refused)
                except NoOffsetsError:
                    continue
        assert found == [refused]
        assert consumer.allocation == {refused: [0], fine: [0]}
        assert consumer.metrics.counter("sessions_opened") == 1, "it did not cost the session"
        await consumer.close()


async def test_consume_continues_after_a_fatal_error_of_a_commit(
    cluster_39: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """Each refusal of a commit is logged and counted. Further calls still return values."""
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    with Proxy(cluster_39, failing(OFFSET_COMMIT, 17)) as proxy:
        consumer = proxy.consumer(cluster_39, group)
        for n in range(1, 4):
            await produce(cluster_39, topic, n)
            assert await values(consumer, topic, 1) == [n]
            await consumer.commit_offsets()
            await eventually(lambda n=n: consumer.metrics.total("commits_refused") >= n, "it is refused")
        assert "INVALID_TOPIC (17)" in caplog.text
        await consumer.close()


@pytest.mark.parametrize("code", [14, 15, 16])
@pytest.mark.parametrize("way", ["commit_offsets", "consume"])
async def test_a_commit_with_a_transient_error_is_retried(
    cluster_39: Cluster, unique: Unique, code: int, way: str
) -> None:
    """
    A commit with a transient error is retried, whether it is automatic or explicit. The metadata is refreshed before
    each retry.
    """
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, 1, 2)
    with Proxy(cluster_39, failing(OFFSET_COMMIT, code, times=2)) as proxy:
        consumer = proxy.consumer(
            cluster_39, group, autocommit=way == "consume", auto_commit_interval_ms=60_000, backoff_ms=5
        )
        assert await values(consumer, topic, 2) == [1, 2]
        before = len(proxy.asked(METADATA))
        if way == "consume":
            await consumer.consume(topic)
        else:
            await consumer.commit_offsets()
        await eventually(lambda: len(proxy.asked(OFFSET_COMMIT)) == 3, "the third try commits")
        assert len(proxy.asked(METADATA)) >= before + 2
        await await_committed(cluster_39, group, topic, 2)
        assert consumer.metrics.total("commits_refused") == 0
        await consumer.close()


async def test_the_request_of_a_commit(cluster_39: Cluster, unique: Unique) -> None:
    """
    By default, the metadata of a commit contains the member's name. The request has only topics consumed since the last
    commit.
    """
    first, second, group = unique("first"), unique("second"), unique("group")
    for topic in (first, second):
        await cluster_39.create_topic(topic, 1)
        await produce(cluster_39, topic, 1)
    with Proxy(cluster_39) as proxy:
        consumer = proxy.consumer(cluster_39, group, autocommit=False)
        await values(consumer, first, 1)
        await consumer.commit_offsets()
        await values(consumer, second, 1)
        await consumer.commit_offsets(metadata="a text")
        assert consumer.name == consumer.member_id
        assert commits(proxy) == [(first, 0, 1, f"committed by {consumer.name}"), (second, 0, 1, "a text")]
        await consumer.close()


async def test_the_requests_of_a_fetch_by_default(cluster_39: Cluster, unique: Unique) -> None:
    """
    By default, a fetch request waits a second for at least one byte, and asks for a mebibyte. The first one does not
    wait.
    """
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, 1)
    with Proxy(cluster_39) as proxy:
        consumer = GroupedConsumer([proxy.address], unique("group"), [cluster_39.zk_hosts])
        assert (consumer.max_wait_time, consumer.min_bytes, consumer.max_bytes) == (1_000, 1, 1 << 20)
        assert await values(consumer, topic, 1) == [1]

        def fetches() -> list[Exchange]:
            # A request of a later version asks for the broker's release, so that clusters can be told apart.
            return [asked for asked in proxy.asked(FETCH) if asked.api_version == 0]

        await eventually(lambda: len(fetches()) > 1, "the partition is polled")
        await consumer.close()
        first, poll = (Reader(asked.request, "a fetch") for asked in fetches()[:2])
    for body, offset, wait_ms in ((first, 0, 0), (poll, 1, 1_000)):
        assert body.string() == "kiel-groups"
        assert (body.int32(), body.int32(), body.int32()) == (-1, wait_ms, 1)
        for _ in body.array(2):
            assert body.string() == topic
            for _ in body.array(4):
                assert (body.int32(), body.int64(), body.int32()) == (0, offset, 1 << 20)


@pytest.mark.parametrize(("start", "found"), [(SingleConsumer.BEGINNING, [1, 2]), (SingleConsumer.END, [2])])
async def test_a_start_applies_again_after_offset_out_of_range(
    cluster_39: Cluster, unique: Unique, start: int, found: list[int]
) -> None:
    """If the log no longer has the position, as after retention, the start of the last call applies."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, 1)
    async with SingleConsumer(cluster_39.brokers, max_wait_time=200) as consumer, asyncio.timeout(30):
        while not await consumer.consume(topic, SingleConsumer.BEGINNING):
            pass
        assert await consumer.consume(topic, start) == []
        consumer.seek(TopicPartition(topic, 0), 1_000)
        await eventually(lambda: consumer.metrics.total("offset_resets"), "the position is reset")
        await produce(cluster_39, topic, 2)
        again: list[int] = []
        while len(again) < len(found):
            again += await consumer.consume(topic, start) or []
        assert again == found


async def test_one_answer_of_offset_out_of_range_does_not_reset(cluster_39: Cluster, unique: Unique) -> None:
    """
    After one answer of OffsetOutOfRange, the consumer asks the leader for the range of the log. If the position is in
    the range, the consumer keeps it.
    """
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, 1)
    lost: list[Exchange] = []

    def lose_once(exchange: Exchange) -> Reply:
        if exchange.api_key != FETCH or lost:
            return exchange.response
        lost.append(exchange)
        return with_error(FETCH, exchange.response, 1)

    with Proxy(cluster_39) as proxy:
        async with SingleConsumer([proxy.address], max_wait_time=200) as consumer, asyncio.timeout(30):
            while not await consumer.consume(topic, SingleConsumer.BEGINNING):
                pass
            proxy.reply = lose_once
            await eventually(lambda: lost, "the broker has answered that the offset is out of range")
            await produce(cluster_39, topic, 2)
            while not (values := await consumer.consume(topic, SingleConsumer.BEGINNING)):
                pass
            assert values == [2]
            assert consumer.metrics.total("offset_resets") == 0


@pytest.mark.parametrize("moment", ["owned", "opening"])
async def test_a_silent_broker_does_not_block_a_close(cluster_39: Cluster, unique: Unique, moment: str) -> None:
    """
    If the broker is silent, the member leaves about two seconds after the close, whether offsets are being stored or
    fetched.
    """
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, 1)
    with Proxy(cluster_39) as proxy, zookeeper(cluster_39) as client:
        consumer = proxy.consumer(cluster_39, group, auto_commit_interval_ms=60_000)
        await consumer.connect()
        if moment == "owned":
            assert await values(consumer, topic, 1) == [1]
            proxy.reply = silence
        else:
            proxy.reply = silence
            await consumer.consume(topic)
            owner = f"{GroupLayout(group).topic_owners(topic)}/0"
            await eventually(lambda: client.exists(owner), "it is claimed")
        started_s = running_s()
        await consumer.close()
        assert running_s() - started_s < 6.0
        assert client.get_children(GroupLayout(group).members) == []


def test_a_silent_broker_does_not_block_a_ctrl_c(cluster_39: Cluster, unique: Unique) -> None:
    """If a commit in flight is not answered, the member leaves about two seconds after the close."""
    topic, group = unique("topic"), unique("group")
    asyncio.run(cluster_39.create_topic(topic, 1))
    asyncio.run(produce(cluster_39, topic, 1, 2))
    loop = ioloop.IOLoop(make_current=False)
    with Proxy(cluster_39) as proxy, zookeeper(cluster_39) as client:
        consumer = proxy.consumer(cluster_39, group)

        @gen.coroutine
        def run() -> Any:
            yield consumer.connect()
            while not (yield consumer.consume(topic)):
                pass
            proxy.reply = silence
            consumer.commit_offsets()
            yield gen.sleep(0.2)
            loop.add_callback(_interrupt)

        def _interrupt() -> None:
            raise KeyboardInterrupt

        loop.add_callback(run)
        with pytest.raises(KeyboardInterrupt):
            loop.start()
        started_s = running_s()
        assert consumer.close().done()
        assert running_s() - started_s < 6.0
        assert client.get_children(GroupLayout(group).members) == []
    loop.close(all_fds=True)


async def test_a_connect_that_is_closed_raises(cluster_39: Cluster, unique: Unique) -> None:
    """An unfinished ``connect()`` raises ClosedError, not CancelledError, whenever the close comes."""
    group = unique("group")
    was_done = False
    delays_s = count(step=0.005)
    while not was_done:
        consumer = consumer_of(cluster_39, group)
        connecting = consumer.connect()
        await asyncio.wait({connecting}, timeout=next(delays_s))
        was_done = connecting.done()
        await asyncio.wait_for(consumer.close(), 10)
        if was_done:
            connecting.result()
        else:
            with pytest.raises(ClosedError, match="was closed"):
                await connecting
    with zookeeper(cluster_39) as client:
        assert client.get_children(GroupLayout(group).members) == []


async def test_a_close_that_is_not_awaited_leaves_the_group(cluster_39: Cluster, unique: Unique) -> None:
    """On a running loop, a member leaves the group even if the program does not await ``close()``."""
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, 1)
    consumer = consumer_of(cluster_39, group)
    assert await values(consumer, topic, 1) == [1]
    consumer.close()
    assert consumer.closing
    with zookeeper(cluster_39) as client:
        await eventually(lambda: not client.get_children(GroupLayout(group).members), "the member has left", 10)
        assert stored_offsets(client, group, topic) == {0: 1}


async def test_commits_that_are_not_awaited_lose_nothing_in_rebalances(cluster_39: Cluster, unique: Unique) -> None:
    """No value is lost when members join and leave while none of the members awaits its commits."""
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 4)
    found: list[int] = []

    async def work(consumer: GroupedConsumer) -> None:
        while (batch := await consumer.consume(topic)) is not None:
            for value in batch:
                await asyncio.sleep(0.001)
                found.append(value)
            if batch:
                consumer.commit_offsets()

    def member() -> tuple[GroupedConsumer, asyncio.Task[None]]:
        consumer = consumer_of(cluster_39, group, autocommit=False, max_bytes=400)
        return consumer, asyncio.create_task(work(consumer))

    first, first_task = member()
    await produce(cluster_39, topic, *range(300))
    await eventually(lambda: len(found) > 50, "the first member works")
    second, second_task = member()
    await eventually(lambda: second.allocation, "partitions move to the second")
    await produce(cluster_39, topic, *range(300, 600))
    await first.close()
    await eventually(lambda: set(found) == set(range(600)), "nothing is lost")
    await await_committed(cluster_39, group, topic, 600)
    await second.close()
    await asyncio.gather(first_task, second_task)


async def test_a_chroot_in_a_list_of_servers(start_cluster: Callable[..., Cluster]) -> None:
    """
    In a list of servers, the chroot follows the last server, as in kazoo. A dead server before it does not matter.
    """
    cluster = start_cluster(chroot="/kafka/one")
    await cluster.create_topic("t", 1)
    await produce(cluster, "t", 1)
    server = cluster.zk_hosts.removesuffix("/kafka/one")
    consumer = GroupedConsumer(cluster.brokers, "g", ["127.0.0.1:1", f"{server}/kafka/one"], max_wait_time=200)
    assert await values(consumer, "t", 1) == [1]
    await consumer.close()
    assert await offsets(cluster, "g", "t") == {0: 1}
