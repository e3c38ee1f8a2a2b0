"""Commit and fetch of offsets with scripted brokers: which brokers are asked, in which order, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from kiel_groups.clients.net import offset_requests
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.connection import BLAMED_S
from kiel_groups.clients.net.offset_requests import commit_offsets, fetch_offsets
from kiel_groups.errors import NoOffsetsError
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wire.error_codes import error_code
from kiel_groups.wire.offsets import FetchedOffset, OffsetCommitRequest, OffsetFetchRequest
from kiel_groups.wire.primitives import Reader
from tests.helpers.fake_broker import METADATA, FakeBroker, Fault, Request

pytestmark = pytest.mark.unit

COMMIT, FETCH_OFFSETS = 8, 9
T0 = TopicPartition("t", 0)

Reply = Callable[[Request], "bytes | Fault | None"]


def commit_answer(code: int) -> bytes:
    """Return an encoded answer to a commit of T0's offset."""
    return OffsetCommitRequest.ANSWER.encode({T0: error_code(code)})


def fetch_answer(offset: int, code: int) -> bytes:
    """Return an encoded answer to a fetch of T0's offset."""
    return OffsetFetchRequest.ANSWER.encode({T0: FetchedOffset(offset, "", error_code(code))})


def answering(api_key: int, *answers: bytes | Fault) -> Reply:
    """Return a script that answers requests of one kind in this order, and repeats the last answer."""
    remaining = list(answers)

    def reply(request: Request) -> bytes | Fault | None:
        if request.api_key != api_key:
            return None
        return remaining.pop(0) if len(remaining) > 1 else remaining[0]

    return reply


@asynccontextmanager
async def two_brokers(first: Reply, second: Reply) -> AsyncIterator[tuple[FakeBroker, FakeBroker, ClusterMetadata]]:
    """Run brokers 0 and 1 of a cluster, and yield them with a client's metadata."""
    async with (
        FakeBroker({"t": 1}, node_id=0, script=first) as zero,
        FakeBroker({"t": 1}, node_id=1, script=second) as one,
    ):
        zero.peers = one.peers = [zero, one]
        cluster = ClusterMetadata(zero.config(), Metrics())
        await cluster.await_topics(["t"])
        yield zero, one, cluster
        cluster.close()


async def commit(cluster: ClusterMetadata, offset: int, metadata: str = "by me") -> int:
    """Commit an offset of T0, and return the number of the error code."""
    return (await commit_offsets(cluster, Metrics(), "g", {T0: offset}, metadata))[T0].number


def received_commits(broker: FakeBroker) -> list[tuple[int, str]]:
    """Return offset and metadata of each commit that a broker has received."""
    found = []
    for request in broker.received(COMMIT):
        body = Reader(request.body, "a commit")
        body.string()
        for _ in body.array(2):
            body.string()
            for _ in body.array(4):
                body.int32()
                found.append((body.int64(), body.string()))
    return found


@pytest.mark.parametrize("fault", [Fault.SILENT, Fault.CLOSE, Fault.HALF, commit_answer(14), commit_answer(-1)])
async def test_a_broker_that_failed_a_commit_is_asked_last(
    monkeypatch: pytest.MonkeyPatch, fault: bytes | Fault
) -> None:
    """
    After a broker has failed a commit, the next commits use another broker. After a while, the failed broker is tried
    again.
    """
    monkeypatch.setattr(offset_requests, "ANSWER_MS", 50)
    async with two_brokers(answering(COMMIT, fault), answering(COMMIT, commit_answer(0))) as (bad, good, cluster):
        for offset in range(1, 5):
            assert await commit(cluster, offset) == 0
        assert [offset for offset, _ in received_commits(bad)] == [1]
        assert [offset for offset, _ in received_commits(good)] == [1, 2, 3, 4]
        cluster._pool._blamed_at_s = {address: at_s - BLAMED_S for address, at_s in cluster._pool._blamed_at_s.items()}
        assert await commit(cluster, 5) == 0
        assert [offset for offset, _ in received_commits(bad)] == [1, 5]


async def test_commit_metadata_that_is_too_long_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """
    If a commit's metadata is too long (code 12), a warning is logged, and the commit is repeated at the same broker
    without metadata.
    """
    too_long = answering(COMMIT, commit_answer(12), commit_answer(0))
    async with two_brokers(too_long, answering(COMMIT, commit_answer(0))) as (first, second, cluster):
        assert await commit(cluster, 7, "long") == 0
        assert received_commits(first) == [(7, "long"), (7, "")]
        assert received_commits(second) == []
    assert "the metadata of a commit is too long (4 characters): left out" in caplog.text


@pytest.mark.parametrize("code", [3, 14, 15, 16, -1])
async def test_a_retriable_commit_refreshes_the_metadata_and_backs_off(code: int) -> None:
    """
    After a retriable code, the client's metadata may be outdated, so it is requested again before each retry of the
    commit.
    """
    answer = answering(COMMIT, commit_answer(code), commit_answer(code), commit_answer(0))
    async with two_brokers(answer, answer) as (first, second, cluster):
        before = first.count(METADATA) + second.count(METADATA)
        assert await commit(cluster, 7) == 0
        assert first.count(METADATA) + second.count(METADATA) == before + 2
        assert len(received_commits(first) + received_commits(second)) == 3


async def test_a_commit_that_is_refused_for_good_is_tried_once() -> None:
    """A commit that is refused for good is tried once, and counted with the name of its code."""
    metrics = Metrics()
    async with two_brokers(answering(COMMIT, commit_answer(17)), answering(COMMIT, commit_answer(0))) as (
        first,
        second,
        cluster,
    ):
        answers = await commit_offsets(cluster, metrics, "g", {T0: 7}, "")
        assert answers == {T0: error_code(17)}
        assert (len(received_commits(first)), len(received_commits(second))) == (1, 0)
    assert metrics.counter("commits_refused", error="INVALID_TOPIC") == 1


async def test_an_offset_that_a_broker_does_not_find_is_left_out() -> None:
    """An offset that a broker does not find (code 3, with the offset −1) is left out of the result."""
    reply = answering(FETCH_OFFSETS, fetch_answer(-1, 3))
    async with two_brokers(reply, reply) as (_, _, cluster):
        assert await fetch_offsets(cluster, "g", [T0]) == {}


async def test_a_fetch_of_offsets_is_retried_at_another_broker() -> None:
    """
    A fetch of offsets is retried at another broker after a retriable code. Any other code raises a NoOffsetsError with
    the code.
    """
    async with two_brokers(
        answering(FETCH_OFFSETS, fetch_answer(-1, 14)),
        answering(FETCH_OFFSETS, fetch_answer(7, 0), fetch_answer(-1, 17)),
    ) as (_, _, cluster):
        assert await asyncio.wait_for(fetch_offsets(cluster, "g", [T0]), 5) == {T0: 7}
        with pytest.raises(NoOffsetsError, match="group g: the offset of t:0 cannot be fetched") as caught:
            await fetch_offsets(cluster, "g", [T0])
        assert caught.value.code == 17
