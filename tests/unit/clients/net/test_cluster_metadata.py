"""Cluster metadata: how it is requested and refreshed, and the errors if no broker answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest

from kiel_groups.clients.net import cluster_metadata
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.offset_lookup import find_offsets, list_offsets
from kiel_groups.config import BrokerConfig, HostPort
from kiel_groups.errors import (
    BrokerConnectionError,
    BrokerError,
    ClosedError,
    ConfigError,
    KielGroupsError,
    NoBrokersError,
    ProtocolError,
    RequestTimeoutError,
    SessionLostError,
    UnknownTopicError,
)
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wire.error_codes import error_code
from kiel_groups.wire.primitives import Reader
from tests.helpers.coordinator_answers import API_VERSIONS, versions
from tests.helpers.fake_broker import FETCH, LIST_OFFSETS, METADATA, FakeBroker, Fault, Request

pytestmark = pytest.mark.unit

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@asynccontextmanager
async def two_brokers() -> AsyncIterator[tuple[FakeBroker, FakeBroker]]:
    """Run two brokers of one cluster. The first one leads t:0, the second one t:1."""
    async with FakeBroker({"t": 2}, node_id=1) as one, FakeBroker({"t": 2}, node_id=2) as two:
        for broker in (one, two):
            broker.peers = [one, two]
            broker.leaders = {T0: 1, T1: 2}
        yield one, two


async def test_partitions_and_leaders_are_learned_from_one_broker() -> None:
    """One bootstrap address is enough to find all brokers, and the partitions and leaders of a topic."""
    async with two_brokers() as (one, two):
        cluster = ClusterMetadata(one.config(), Metrics())
        assert await cluster.partitions_of("t") == (0, 1)
        assert (cluster.leader_of(T0), cluster.leader_of(T1)) == (1, 2)
        assert cluster.brokers == {1: one.address, 2: two.address}
        assert two.count(METADATA) == 0
        cluster.close()


def named_topics(broker: FakeBroker) -> list[list[str]]:
    """Return the topics that each metadata request has named."""
    readers = (Reader(request.body, "a request") for request in broker.received(METADATA))
    return [[reader.string() for _ in reader.array(2)] for reader in readers]


async def test_topics_that_may_not_exist_are_not_named() -> None:
    """
    A consumer's metadata request names only topics that are known to exist, because a request that names a misspelt
    topic could create it.
    """
    async with FakeBroker({"t": 1, "u": 1}) as broker:
        cluster = ClusterMetadata(broker.config(), Metrics())
        assert await cluster.partitions_of("t") == (0,)
        with pytest.raises(UnknownTopicError):
            await cluster.partitions_of("typo")
        assert not any(named_topics(broker))
        await cluster.refresh(["t"], "test")
        assert named_topics(broker)[-1] == ["t"]
        del broker.logs[T0]
        await cluster.refresh(["t"], "test")
        await cluster.refresh(["t"], "test")
        assert named_topics(broker)[-1] == [], "it was deleted, and must not be created again"
        assert cluster.known_partitions("t") is None
        cluster.close()


async def test_a_producers_metadata_names_topics() -> None:
    """A producer's metadata request names the topic, so that brokers which create topics on demand create it."""
    async with FakeBroker({"t": 1}) as broker:
        cluster = ClusterMetadata(broker.config(), Metrics(), names_unknown=True)
        assert await cluster.partitions_of("t") == (0,)
        assert named_topics(broker) == [["t"]]
        cluster.close()


async def test_dead_and_stuck_bootstrap_hosts_are_skipped() -> None:
    """
    A bootstrap broker that refuses the connection or never answers causes a delay, but no error. It is asked last the
    next time.
    """
    async with FakeBroker(script=lambda _: Fault.SILENT) as stuck, FakeBroker({"t": 1}) as alive:
        async with FakeBroker() as dead:
            pass
        hosts = (dead.address, stuck.address, alive.address)
        cluster = ClusterMetadata(BrokerConfig(hosts=hosts, connect_timeout_ms=500, backoff_ms=1), Metrics())
        assert await cluster.partitions_of("t") == (0,)
        await cluster.refresh(["t"], "again")
        assert stuck.count(METADATA) == 1, "a broker that failed is asked last"
        cluster.close()


async def test_no_broker_answers() -> None:
    """If no broker answers, the error has each address that was tried, and the reason why it failed."""
    async with FakeBroker() as dead:
        pass
    async with FakeBroker(script=lambda _: Fault.CLOSE) as closing:
        cluster = ClusterMetadata(BrokerConfig(hosts=(dead.address, closing.address)), Metrics())
        with pytest.raises(NoBrokersError) as caught:
            await cluster.partitions_of("t")
    assert f"{dead.address}: cannot connect: Connection refused" in str(caught.value)
    assert f"{closing.address}: the connection broke: closed by the other side" in str(caught.value)


async def test_brokers_are_found_by_the_source_when_no_address_answers() -> None:
    """The broker source, such as ZooKeeper's list of brokers, is read only if all bootstrap addresses fail."""
    calls = 0
    async with FakeBroker({"t": 1}) as alive:
        async with FakeBroker() as dead:
            pass

        async def source() -> list[HostPort]:
            nonlocal calls
            calls += 1
            return [alive.address]

        cluster = ClusterMetadata(dead.config(), Metrics(), broker_source=source)
        assert await cluster.partitions_of("t") == (0,)
        await cluster.refresh(["t"], "again")
        assert calls == 1
        cluster.close()


async def test_a_topic_is_unknown_after_several_tries_agree() -> None:
    """
    A topic counts as unknown only after several requests without it, because a single broker may not yet know a new
    topic.
    """
    async with FakeBroker({"t": 1}) as broker:
        cluster = ClusterMetadata(broker.config(), Metrics())
        with pytest.raises(UnknownTopicError, match="no broker knows the topic nope"):
            await cluster.partitions_of("nope")
        assert broker.count(METADATA) == 6
        await cluster.refresh(["t"], "again")
        assert b"nope" not in broker.requests[-1].body, "it is not requested any longer"
        cluster.close()


async def test_a_topic_that_was_known_is_requested_for_longer() -> None:
    """
    A topic that was known before is requested for longer. A broker that has just restarted does not know its topics for
    a while, and records for them must not fail meanwhile.
    """
    async with FakeBroker({"t": 1}) as broker:
        cluster = ClusterMetadata(broker.config(), Metrics())
        await cluster.await_topics(["t"])
        known = broker.logs.pop(T0)

        async def remember() -> None:
            await broker.wait_for_requests(METADATA, 8)
            broker.logs[T0] = known

        remembering = asyncio.ensure_future(remember())
        await cluster.await_topics(["t"])
        await remembering
        assert cluster.known_partitions("t") == (0,)
        cluster.close()


async def test_another_broker_is_asked_for_a_topic_that_a_fresh_one_does_not_know() -> None:
    """
    If a broker does not know a topic, another broker is asked. A broker that has just started knows no topics, so its
    answer does not prove that a topic is missing.
    """
    async with FakeBroker() as fresh, FakeBroker({"t": 1}, node_id=7) as old:
        fresh.peers = []
        cluster = ClusterMetadata(BrokerConfig(hosts=(fresh.address, old.address), backoff_ms=1), Metrics())
        assert await cluster.partitions_of("t") == (0,)
        cluster.close()


async def test_refreshes_run_one_at_a_time() -> None:
    """
    Concurrent refreshes of the same topics share one request. A topic that the running request leaves out needs another
    one.
    """
    async with FakeBroker({"t": 1}) as broker:
        cluster = ClusterMetadata(broker.config(), Metrics())
        await asyncio.gather(*(cluster.refresh(["t"], "storm") for _ in range(100)))
        assert broker.count(METADATA) == 1
        await asyncio.gather(cluster.refresh(["t"], "one"), cluster.refresh(["u"], "other"))
        assert broker.count(METADATA) == 3, "a topic that the running request leaves out needs another"
        cluster.close()


async def test_failed_refreshes_back_off() -> None:
    """While no broker answers, each refresh starts after a longer pause than the one before."""
    metrics = Metrics()
    async with FakeBroker() as dead:
        pass
    cluster = ClusterMetadata(dead.config(backoff_ms=16, max_backoff_ms=1_000), metrics)
    clock = asyncio.get_running_loop().time
    started = clock()
    for _ in range(4):
        with pytest.raises(NoBrokersError):
            await cluster.refresh(["t"], "down")
    assert clock() - started >= 0.7 * (0.016 + 0.032 + 0.064), "jitter shortens a delay by 30 % at most"
    assert metrics.counter("metadata_failures") == 4


async def test_a_broker_that_moves_is_found_at_its_new_address() -> None:
    """
    When a broker moves to another address, connections to the old address are closed, and later ones use the new
    address.
    """
    boot, before, after = (FakeBroker({"t": 1}, node_id=node_id) for node_id in (1, 2, 2))
    async with boot, before, after:
        boot.leaders = {T0: 2}
        boot.peers = [boot, before]
        cluster = ClusterMetadata(boot.config(), Metrics())
        await cluster.refresh(["t"], "first")
        old = cluster.connection(2)
        assert old.address == before.address
        boot.peers = [boot, after]
        await cluster.refresh(["t"], "moved")
        assert old.closed
        assert cluster.connection(2).address == after.address
        cluster.close()


async def test_each_purpose_has_its_own_connection() -> None:
    """
    Callers with the same purpose share a connection to a broker, which is replaced if it breaks. Another purpose has
    another connection.
    """
    async with FakeBroker({"t": 1}) as broker:
        cluster = ClusterMetadata(broker.config(), Metrics())
        await cluster.refresh(["t"], "first")
        assert cluster.connection(0) is cluster.connection(0)
        fetching = cluster.connection(0, "fetch-0")
        assert fetching is not cluster.connection(0)
        fetching.close()
        assert cluster.connection(0, "fetch-0") is not fetching
        with pytest.raises(BrokerConnectionError, match="broker 9 is not among"):
            cluster.connection(9)
        cluster.close()
        with pytest.raises(ClosedError):
            cluster.connection(0)


async def test_offsets_are_listed_by_each_leader() -> None:
    """The earliest and the latest offset of a partition are requested from its leader."""
    async with two_brokers() as (one, two):
        one.logs[T0].start, one.logs[T0].end = 5, 9
        two.logs[T1].start, two.logs[T1].end = 6, 8
        cluster = ClusterMetadata(one.config(), Metrics())
        assert await list_offsets(cluster, [T0, T1], -2) == {T0: 5, T1: 6}
        assert await list_offsets(cluster, [T0, T1], -1) == {T0: 9, T1: 8}
        assert await list_offsets(cluster, [T0], 1_400_000_000_000) == {T0: 5}, "nothing is older: the earliest"
        assert not one.count(18), "ApiVersions: a broker of 0.9 would never answer, and drop other clients' requests"
        cluster.close()


async def test_brokers_of_another_cluster_than_zookeepers_are_named() -> None:
    """
    If no broker knows a topic that ZooKeeper has, and ZooKeeper registers others, the error says so. If ZooKeeper
    registers one of the brokers, a leader is being elected. A partition that a known topic lacks is named as such.
    """
    missing, absent = TopicPartition("missing", 0), TopicPartition("t", 7)
    registered: Sequence[HostPort] = ()

    async def source() -> Sequence[HostPort]:
        if not registered:
            raise SessionLostError("there is no session")
        return registered

    async with FakeBroker({"t": 1}) as broker:
        cluster = ClusterMetadata(broker.config(), Metrics(), broker_source=source)
        strangers = [HostPort("10.0.0.9", 9092)]
        cases = {(): "elected", (broker.address, *strangers): "elected", tuple(strangers): "one cluster"}
        for registered in cases:
            failures = (await find_offsets(cluster, [missing, absent], -2)).failures
            assert cases[registered] in str(failures[missing])
            assert "brokers know partitions 0 to 0 of t only" in str(failures[absent])
            assert reasons(failures) == dict.fromkeys(failures, "LEADER_NOT_AVAILABLE")
        assert f"brokers {broker.address} do not know the topic, and ZooKeeper registers 10.0.0.9:9092" in str(
            failures[missing]
        )
        cluster.close()


async def test_listing_offsets_follows_a_leader_that_moves() -> None:
    """
    When the answer to a request for offsets is "not leader", the metadata is refreshed and the new leader is asked.
    """
    async with two_brokers() as (one, two):
        cluster = ClusterMetadata(one.config(), Metrics())
        await cluster.refresh(["t"], "first")
        for broker in (one, two):
            broker.leaders = {T0: 2, T1: 2}
        two.logs[T0].end = 3
        assert await list_offsets(cluster, [T0], -1) == {T0: 3}
        cluster.close()


async def test_a_broker_of_kafka_4_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    It answers metadata requests, and closes the connection on requests of Kafka 0.8 and on the probe. It is asked for
    its versions once.
    """
    monkeypatch.setattr(cluster_metadata, "_FIRST_PAUSE_S", 0.001)

    def script(request: Request) -> bytes | Fault | None:
        if request.api_key == API_VERSIONS:
            return versions({FETCH: (4, 17)})
        return None if request.api_key == METADATA else Fault.CLOSE

    async with FakeBroker({"t": 1}, script=script) as broker:
        cluster = ClusterMetadata(broker.config(), Metrics())
        with pytest.raises(ConfigError, match=rf"^brokers: {broker.address} and .* no longer support the requests of"):
            await list_offsets(cluster, [T0], -1)
        assert [broker.count(API_VERSIONS), broker.count(FETCH)] == [1, 2]
        assert broker.count(LIST_OFFSETS) < 5
        with pytest.raises(ConfigError):
            cluster.connection(0, "fetch-0")
        cluster.close()


async def test_finding_offsets_reports_why_some_are_unknown() -> None:
    """
    ``find_offsets()`` asks each leader once, and returns the reasons for partitions without an offset. A partition that
    fails or has no leader does not delay other partitions.
    """
    absent, unknown = TopicPartition("t", 7), TopicPartition("unknown", 0)
    async with two_brokers() as (one, two):
        one.logs[T0].start, two.logs[T1].start = 5, 6
        cluster = ClusterMetadata(one.config(), Metrics())
        found, failures = await find_offsets(cluster, [T0, T1, absent], -2)
        assert found == {T0: 5, T1: 6}
        assert reasons(failures) == {absent: "LEADER_NOT_AVAILABLE"}
        two.fail_next(LIST_OFFSETS, T1, 6)
        found, failures = await find_offsets(cluster, [T0, T1], -2)
        assert found == {T0: 5}
        assert reasons(failures) == {T1: "NOT_LEADER_FOR_PARTITION"}
        assert two.count(LIST_OFFSETS) == 2
        assert (await find_offsets(cluster, [unknown], -2)).failures.keys() == {unknown}
        cluster.close()


async def test_a_leader_that_is_not_among_the_live_brokers_is_none() -> None:
    """
    A leader that is not among the live brokers counts as none, because metadata of Kafka 0.8 may still name a dead
    broker.
    """
    async with FakeBroker({"t": 2}) as broker:
        broker.leaders = {T1: 7}
        cluster = ClusterMetadata(broker.config(), Metrics())
        await cluster.refresh(["t"], "test")
        assert (cluster.leader_of(T0), cluster.leader_of(T1)) == (0, None)
        cluster.close()


async def test_finding_offsets_retries_while_its_patience_lasts() -> None:
    """
    ``find_offsets()`` retries while its patience lasts, so an election that ends in time causes no failure. Offsets
    that were found before are kept.
    """
    async with two_brokers() as (one, two):
        cluster = ClusterMetadata(one.config(), Metrics())
        one.logs[T0].end, two.logs[T1].end = 4, 7
        two.fail_next(LIST_OFFSETS, T1, 6, 5)
        assert await find_offsets(cluster, [T0, T1], -1, patience_s=10.0) == ({T0: 4, T1: 7}, {})
        assert (one.count(LIST_OFFSETS), two.count(LIST_OFFSETS)) == (1, 3)
        cluster.close()


async def test_a_frozen_leader_delays_offsets_of_other_leaders_for_a_bounded_time() -> None:
    """
    ``find_offsets()`` waits only ``connect_timeout_ms`` for a frozen leader, not the longer timeout of other requests,
    and returns the offsets of the other leaders.
    """
    async with two_brokers() as (one, two):
        one.logs[T0].start = 5
        two.script = lambda request: Fault.SILENT if request.api_key == LIST_OFFSETS else None
        cluster = ClusterMetadata(one.config(connect_timeout_ms=800, request_timeout_ms=60_000), Metrics())
        async with asyncio.timeout(5):
            found, failures = await find_offsets(cluster, [T0, T1], -2)
        assert found == {T0: 5}
        assert isinstance(failures[T1], RequestTimeoutError)
        cluster.close()


async def test_an_undecodable_answer_fails_the_partitions_of_its_leader_only() -> None:
    """
    An answer that cannot be decoded fails only the partitions of its leader. The offsets from the other leader are
    returned.
    """
    async with two_brokers() as (one, two):
        one.logs[T0].start = 5
        two.script = lambda request: b"\x00" if request.api_key == LIST_OFFSETS else None
        cluster = ClusterMetadata(one.config(), Metrics())
        found, failures = await find_offsets(cluster, [T0, T1], -2)
        assert found == {T0: 5}
        assert failures.keys() == {T1}
        assert isinstance(failures[T1], ProtocolError)
        cluster.close()


async def test_finding_offsets_without_any_broker_fails_for_each_partition() -> None:
    """
    If no broker answers, ``find_offsets()`` returns the error of the metadata request as the reason for each partition.
    """
    async with two_brokers() as (one, two):
        cluster = ClusterMetadata(one.config(), Metrics())
        await one.stop()
        await two.stop()
        found, failures = await find_offsets(cluster, [T0, T1], -2)
        assert found == {}
        assert {type(error) for error in failures.values()} == {NoBrokersError}
        assert failures.keys() == {T0, T1}
        cluster.close()


def reasons(failures: Mapping[TopicPartition, KielGroupsError]) -> dict[TopicPartition, str]:
    """Return the names of the error codes by partition. Leave out errors without a broker's code."""
    return {tp: error_code(error.code or 0).name for tp, error in failures.items() if isinstance(error, BrokerError)}


async def test_listing_offsets_raises_the_last_error() -> None:
    """
    ``list_offsets()`` retries retriable errors a bounded number of times, and other errors never. The error that it
    raises has the partition and the code.
    """
    async with FakeBroker({"t": 2}) as broker:
        cluster = ClusterMetadata(broker.config(), Metrics())
        broker.fail_next(LIST_OFFSETS, T0, *[6] * 100)
        with pytest.raises(BrokerError, match=r"offsets of t:0 .*NOT_LEADER_FOR_PARTITION") as caught:
            await list_offsets(cluster, [T0, T1], -1)
        assert caught.value.code == 6
        assert broker.count(LIST_OFFSETS) == 8
        broker.fail_next(LIST_OFFSETS, T1, 17)
        with pytest.raises(BrokerError, match=r"offsets of t:1 .*INVALID_TOPIC"):
            await list_offsets(cluster, [T1], -1)
        assert broker.count(LIST_OFFSETS) == 9
        cluster.close()


async def test_finding_a_leader_waits_for_an_election() -> None:
    """
    ``find_leader()`` waits for an election. If the election takes longer than the bound, an error with code 5 is
    raised.
    """
    async with FakeBroker({"t": 1}) as broker:
        broker.leaders = {T0: -1}

        def elect(request: Request) -> None:
            if broker.count(METADATA) == 3:
                broker.leaders = {}

        broker.script = elect
        cluster = ClusterMetadata(broker.config(), Metrics())
        assert await cluster.find_leader(T0) == 0
        broker.leaders = {T0: -1}
        await cluster.refresh(["t"], "lost")
        with pytest.raises(BrokerError, match="t:0 has no leader") as caught:
            await cluster.find_leader(T0)
        assert caught.value.code == 5
        broker.leaders = {T0: 7}
        await cluster.refresh(["t"], "lost")
        with pytest.raises(BrokerError, match="the leader of t:0 is broker 7, for which the brokers give no address"):
            await cluster.find_leader(T0)
        cluster.close()


async def test_a_topic_that_brokers_lack_for_a_while_is_doubted() -> None:
    """It may be another one, or one that the client had no right to see."""
    async with FakeBroker({"t": 1, "u": 1}) as broker:
        cluster = ClusterMetadata(broker.config(), Metrics())
        doubted: list[str] = []
        cluster.seen.doubted = doubted.append
        await cluster.refresh(["t", "u"], "test")
        held = broker.logs.pop(T0)
        await cluster.refresh(["t", "u"], "test")
        assert cluster.seen.was_missing("t")
        broker.logs[T0] = held
        await cluster.refresh(["t", "u"], "test")
        assert doubted == ["t"]
        cluster.close()


async def test_metadata_are_known_although_a_broker_does_not_tell_the_ids_of_topics() -> None:
    """The cluster is being upgraded, and the upgrade has not reached the broker that is asked."""
    async with FakeBroker({"t": 1}) as broker:
        cluster = ClusterMetadata(broker.config(), Metrics())
        cluster.asks_ids = True
        await cluster.refresh(["t"], "test")
        assert cluster.known_partitions("t") == (0,)
        assert not cluster.seen.has_id("t")
        cluster.close()
