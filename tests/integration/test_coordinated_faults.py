"""Faults of the coordinator of a group, and of its members, on real brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager

import pytest

from kiel_groups import GroupedConsumer, TopicPartition
from kiel_groups.embedded import Cluster
from kiel_groups.errors import ClosedError, KielGroupsError
from kiel_groups.wire.group_requests import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from kiel_groups.wire.offsets import OffsetCommitRequestV2, OffsetFetchRequestV1
from kiel_groups.wire.primitives import Reader
from tests.helpers.cluster_data import produce
from tests.helpers.group_backends import GroupBackend
from tests.helpers.waiting import eventually, within
from tests.proxies.fault_proxy import Link
from tests.proxies.kafka_proxy import KafkaProxy, NextFailures, NextRefusals

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

RECORDS = 3

FIND, JOIN, SYNC = FindCoordinatorRequest.API_KEY, JoinGroupRequest.API_KEY, SyncGroupRequest.API_KEY
BEAT, COMMIT, READ = HeartbeatRequest.API_KEY, OffsetCommitRequestV2.API_KEY, OffsetFetchRequestV1.API_KEY
LEAVE = LeaveGroupRequest.API_KEY

#: The requests whose order a test compares. Heartbeats are sent all the time.
WORDS = {FIND: "find", SYNC: "sync", COMMIT: "commit", READ: "read", LEAVE: "leave"}


class WatchedProxy(KafkaProxy):
    """A proxy that notes the requests about a group, and whether a join has a member id, in their order."""

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.seen: list[str] = []

    def _remember(self, link: Link, frame: bytes) -> None:
        super()._remember(link, frame)
        reader = Reader(frame, "a request")
        api_key, version, _, _ = reader.int16(), reader.int16(), reader.int32(), reader.optional_string()
        if api_key == JOIN:
            reader.string()
            for _ in range(min(version, 1) + 1):
                reader.int32()
            self.seen.append("join again" if reader.string() else "join anew")
        elif api_key in WORDS:
            self.seen.append(WORDS[api_key])


class FaultyGroup:
    """A group with one member, whose only broker is behind a proxy, and what the member has done since ``arm``."""

    def __init__(self, backend: GroupBackend, topic: str, group: str, proxy: WatchedProxy) -> None:
        self.topic = topic
        self.proxy = proxy
        self.events: list[str] = []
        #: How many records the application has.
        self.read = 0
        # A broker of 0.9 drops requests of other clients that it receives together with a question for versions.
        api_version = tuple(int(number) for number in backend.cluster._release.version.split(".")[:2])
        self.consumer: GroupedConsumer = backend.consumer(
            group, brokers=[proxy.address], listener=self, auto_commit_interval_ms=600_000, api_version=api_version
        )

    def on_partitions_revoked(self, _: Collection[TopicPartition]) -> None:
        self.events.append("revoked")

    def on_partitions_lost(self, _: Collection[TopicPartition]) -> None:
        self.events.append("lost")

    def arm(self, *refusals: NextRefusals, failures: NextFailures | None = None) -> None:
        """Inject these faults from now on."""
        self.proxy.seen.clear()
        self.proxy.answer = failures
        self.proxy.refusal = lambda api_key, version: next(
            filter(None, (refusal(api_key, version) for refusal in refusals)), None
        )

    async def start(self) -> None:
        """Join, and read all records until the close; note an error."""
        try:
            await self.consumer.connect()
            await self.consumer.subscribe(self.topic)
            while True:
                await self.consumer.getone()
                self.read += 1
        except ClosedError:
            pass
        except KielGroupsError as error:
            self.events.append(type(error).__name__)

    async def has_read(self) -> None:
        """Wait until the application has all records, and waits for more: all of them are finished."""
        await eventually(lambda: self.read == RECORDS, "the records are read")

    async def commit(self) -> None:
        """Commit as the application; note an error."""
        try:
            await self.consumer.commit()
        except KielGroupsError as error:
            self.events.append(f"commit() raises {type(error).__name__}")

    async def did(self, expected: str) -> str:
        """Return what the member has done, as soon as it is what is expected and nothing follows."""
        await within(lambda: self._did == expected, 20)
        await within(lambda: self._did != expected, 0.3)
        return self._did

    @property
    def _did(self) -> str:
        did = ", ".join([*self.proxy.seen, *self.events])
        # From 2.2 on, the coordinator names a new member, which joins again with its id at once.
        did = did.replace("join anew, join again", "join anew")
        # The member looks for its coordinator. A read that is repeated before the answer looks for it, too.
        return did.replace("read, find, find, read", "read, find, read")


@asynccontextmanager
async def faulty_group(backend: GroupBackend, topic: str, group: str) -> AsyncIterator[FaultyGroup]:
    """Provide a group that has committed the offset 0, and whose member has not started."""
    await asyncio.to_thread(backend.store_offsets, group, topic, {0: 0})
    async with WatchedProxy(backend.cluster.brokers[0]) as proxy:
        faulty = FaultyGroup(backend, topic, group, proxy)
        try:
            yield faulty
        finally:
            await faulty.consumer.close(timeout_s=5)


AGAIN = "sync, read"
JOINED = "find, join anew, sync"
REFUSED = "commit() raises"
REJOINED = "commit, join again"

#: What a member does that joins for the first time, from its first request, by the injected code. A member that the
#: coordinator does not know any more joins without its id. (The proxy has refused it in the coordinator's place, which
#: then waits for the former member.) Code 42 is one of the codes that a member does not expect.
STARTS: Mapping[tuple[int, int], str] = {
    **{(FIND, code): f"find, find, join anew, {AGAIN}" for code in (-1, 7, 14, 15, 16)},
    (FIND, 24): "find, ConfigError",
    (FIND, 30): "find, BrokerError",
    **{(JOIN, code): f"find, join anew, join anew, {AGAIN}" for code in (-1, 7, 14, 22, 25, 27, 79)},
    **{(JOIN, code): f"find, join anew, find, join anew, {AGAIN}" for code in (15, 16)},
    (JOIN, 23): "find, join anew, GroupConfigError",
    (JOIN, 24): "find, join anew, ConfigError",
    (JOIN, 26): "find, join anew, ConfigError",
    (JOIN, 30): "find, join anew, BrokerError",
    (JOIN, 42): "find, join anew, BrokerError",
    **{(SYNC, code): f"{JOINED}, join again, {AGAIN}" for code in (-1, 7, 14, 27, 42)},
    **{(SYNC, code): f"{JOINED}, find, join again, {AGAIN}" for code in (15, 16)},
    **{(SYNC, code): f"{JOINED}, join anew" for code in (22, 25)},
    (SYNC, 24): f"{JOINED}, ConfigError",
    (SYNC, 30): f"{JOINED}, BrokerError",
    **{(READ, code): f"{JOINED}, read, read" for code in (-1, 7, 14)},
    **{(READ, code): f"{JOINED}, read, find, read" for code in (15, 16)},
    **{(READ, code): f"{JOINED}, read, join anew" for code in (22, 25)},
    **{(READ, code): f"{JOINED}, read, read, NoOffsetsError" for code in (3, 29, 42)},
    (READ, 24): f"{JOINED}, read, ConfigError",
    (READ, 30): f"{JOINED}, read, BrokerError",
}

#: What a member that has partitions does after a failed commit, or after the refusal of a heartbeat, of the join or the
#: sync of a rebalance, or of its leave request. It gives its partitions back once, however many joins follow.
LATER: Mapping[tuple[int, int], str] = {
    (BEAT, 14): "",
    **{(BEAT, code): "find" for code in (-1, 7, 15, 16, 42)},
    **{(BEAT, code): "join anew, lost" for code in (22, 25)},
    (BEAT, 27): f"commit, join again, {AGAIN}, revoked",
    (BEAT, 24): "lost, ConfigError",
    (BEAT, 30): "lost, BrokerError",
    **{(COMMIT, code): "commit, commit" for code in (-1, 14)},
    **{(COMMIT, code): "commit, find, commit" for code in (7, 15, 16)},
    **{(COMMIT, code): f"commit, {REFUSED} CommitFailedError" for code in (3, 12, 28, 42)},
    **{(COMMIT, code): f"commit, join anew, lost, {REFUSED} SessionLostError" for code in (22, 25)},
    (COMMIT, 27): f"commit, commit, join again, {AGAIN}, revoked, {REFUSED} SessionLostError",
    (COMMIT, 24): f"commit, lost, ConfigError, {REFUSED} CommitFailedError",
    (COMMIT, 30): f"commit, lost, BrokerError, {REFUSED} CommitFailedError",
    **{(JOIN, code): f"{REJOINED}, join again, {AGAIN}, revoked" for code in (-1, 7, 14, 27)},
    **{(JOIN, code): f"{REJOINED}, find, join again, {AGAIN}, revoked" for code in (15, 16)},
    **{(JOIN, code): f"{REJOINED}, join anew, revoked" for code in (22, 25, 79)},
    (JOIN, 23): f"{REJOINED}, revoked, GroupConfigError",
    **{(JOIN, code): f"{REJOINED}, revoked, ConfigError" for code in (24, 26)},
    **{(JOIN, code): f"{REJOINED}, revoked, BrokerError" for code in (30, 42)},
    **{(SYNC, code): f"{REJOINED}, sync, join again, {AGAIN}, revoked" for code in (-1, 7, 14, 27, 42)},
    **{(SYNC, code): f"{REJOINED}, sync, find, join again, {AGAIN}, revoked" for code in (15, 16)},
    **{(SYNC, code): f"{REJOINED}, sync, join anew, revoked" for code in (22, 25)},
    (SYNC, 24): f"{REJOINED}, sync, revoked, ConfigError",
    (SYNC, 30): f"{REJOINED}, sync, revoked, BrokerError",
    **{(LEAVE, code): "commit, leave, revoked" for code in (-1, 7, 14, 15, 16, 22, 24, 25, 27, 30, 42)},
}


async def _starts(backend: GroupBackend, topic: str, group: str, request: int, code: int, expected: str) -> str:
    async with faulty_group(backend, topic, group) as faulty:
        if request == READ:
            faulty.arm(failures=NextFailures(request, code))
        else:
            faulty.arm(NextRefusals(request, code))
        starting = asyncio.ensure_future(faulty.start())
        try:
            return await faulty.did(expected)
        finally:
            starting.cancel()
            await asyncio.wait({starting})


async def _continues(backend: GroupBackend, topic: str, group: str, request: int, code: int, expected: str) -> str:
    async with faulty_group(backend, topic, group) as faulty:
        reading = asyncio.ensure_future(faulty.start())
        try:
            await faulty.has_read()
            if request == COMMIT:
                faulty.arm(failures=NextFailures(request, code))
                await faulty.commit()
            elif request in (JOIN, SYNC):
                faulty.arm(NextRefusals(BEAT, 27), NextRefusals(request, code))
            elif request == LEAVE:
                faulty.arm(NextRefusals(LEAVE, code))
                await faulty.consumer.close()
            else:
                faulty.arm(NextRefusals(request, code))
            return await faulty.did(expected)
        finally:
            reading.cancel()
            await asyncio.wait({reading})


async def _play(
    cluster: Cluster,
    unique: Unique,
    play: Callable[[GroupBackend, str, str, int, int, str], Awaitable[str]],
    table: Mapping[tuple[int, int], str],
    request: int,
) -> None:
    """Play the codes of one request, each with a group of its own, all at once, and compare the table."""
    backend, topic, group = GroupBackend(cluster, "brokers"), unique("topic"), unique("group")
    await cluster.create_topic(topic, 1)
    await produce(cluster, topic, RECORDS)
    expected = {code: did for (api_key, code), did in table.items() if api_key == request}
    found = await asyncio.gather(
        *(play(backend, topic, f"{group}-{code}", request, code, did) for code, did in expected.items())
    )
    assert dict(zip(expected, found, strict=True)) == expected


@pytest.mark.parametrize("request_of", [FIND, JOIN, SYNC, READ])
async def test_what_a_member_that_starts_makes_of_each_code(
    coordinating_cluster: Cluster, unique: Unique, request_of: int
) -> None:
    """It repeats the request, finds its coordinator first, joins again, or says why it does not."""
    await _play(coordinating_cluster, unique, _starts, STARTS, request_of)


@pytest.mark.parametrize("request_of", [BEAT, COMMIT, JOIN, SYNC, LEAVE])
async def test_what_a_member_with_partitions_makes_of_each_code(
    coordinating_cluster: Cluster, unique: Unique, request_of: int
) -> None:
    """
    It gives its partitions back in order and joins with its id, or it loses them, and commits nothing. It leaves in one
    attempt.
    """
    await _play(coordinating_cluster, unique, _continues, LATER, request_of)
