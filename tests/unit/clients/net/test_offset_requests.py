"""Offsets by way of the brokers: who is asked, in which order, and for how long, against scripted brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from kiel_groups.clients.net import offset_requests
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.connection_pool import BLAMED_S
from kiel_groups.clients.net.offset_requests import commit_offsets, fetch_offsets
from kiel_groups.errors import NoOffsetsError
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wire.error_codes import error_code
from kiel_groups.wire.primitives import Reader, Writer
from kiel_groups.wire.topic_arrays import write_partitions
from tests.helpers.fake_broker import METADATA, FakeBroker, Fault, Request

pytestmark = pytest.mark.unit

COMMIT, FETCH_OFFSETS = 8, 9
T0 = TopicPartition("t", 0)

Reply = Callable[[Request], "bytes | Fault | None"]


def committed(code: int) -> bytes:
    """The answer to a commit of T0."""
    writer = Writer()
    write_partitions(writer, [(T0, code)], lambda w, value: w.int16(value))
    return writer.getvalue()


def fetched(offset: int, code: int) -> bytes:
    """The answer to a fetch of the offset of T0."""

    def one(writer: Writer, value: tuple[int, int]) -> None:
        writer.int64(value[0])
        writer.string("")
        writer.int16(value[1])

    writer = Writer()
    write_partitions(writer, [(T0, (offset, code))], one)
    return writer.getvalue()


def answering(api_key: int, *answers: bytes | Fault) -> Reply:
    """Answer requests of one kind in this order, the last one for ever."""
    left = list(answers)

    def reply(request: Request) -> bytes | Fault | None:
        if request.api_key != api_key:
            return None
        return left.pop(0) if len(left) > 1 else left[0]

    return reply


@asynccontextmanager
async def two_brokers(first: Reply, second: Reply) -> AsyncIterator[tuple[FakeBroker, FakeBroker, ClusterMetadata]]:
    """Brokers 0 and 1 of a cluster, and what a client knows of it."""
    async with (
        FakeBroker({"t": 1}, node_id=0, script=first) as zero,
        FakeBroker({"t": 1}, node_id=1, script=second) as one,
    ):
        zero.peers = one.peers = [zero, one]
        view = ClusterMetadata(zero.config(), Metrics())
        await view.learn(["t"])
        yield zero, one, view
        view.close()


async def commit(view: ClusterMetadata, offset: int, metadata: str = "by me") -> int:
    """Commit the offset of T0; the code that came of it."""
    return (await commit_offsets(view, Metrics(), "g", {T0: offset}, metadata))[T0].number


def sent(broker: FakeBroker) -> list[tuple[int, str]]:
    """Offset and metadata of every commit that a broker got."""
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


@pytest.mark.parametrize("fault", [Fault.SILENT, Fault.CLOSE, Fault.HALF, committed(14), committed(-1)])
async def test_a_broker_that_failed_a_commit_is_asked_last(
    monkeypatch: pytest.MonkeyPatch, fault: bytes | Fault
) -> None:
    """For a while: the next commits go to another one at once, and later it is given another try."""
    monkeypatch.setattr(offset_requests, "ANSWER_MS", 50)
    async with two_brokers(answering(COMMIT, fault), answering(COMMIT, committed(0))) as (bad, good, view):
        for offset in range(1, 5):
            assert await commit(view, offset) == 0
        assert [offset for offset, _ in sent(bad)] == [1]
        assert [offset for offset, _ in sent(good)] == [1, 2, 3, 4]
        view._pool._blamed_at_s = {address: at_s - BLAMED_S for address, at_s in view._pool._blamed_at_s.items()}
        assert await commit(view, 5) == 0
        assert [offset for offset, _ in sent(bad)] == [1, 5]


async def test_metadata_that_is_too_long_goes_blank(caplog: pytest.LogCaptureFixture) -> None:
    """Code 12: a warning, and a second try with a blank text, at the same broker, which did nothing wrong."""
    async with two_brokers(answering(COMMIT, committed(12), committed(0)), answering(COMMIT, committed(0))) as (
        first,
        second,
        view,
    ):
        assert await commit(view, 7, "long") == 0
        assert sent(first) == [(7, "long"), (7, "")]
        assert sent(second) == []
    assert "the metadata of a commit is too long (4 characters): left out" in caplog.text


@pytest.mark.parametrize("code", [3, 14, 15, 16, -1])
async def test_a_commit_that_may_pass_heals_the_metadata_and_backs_off(code: int) -> None:
    """What is known of the cluster may be out of date: it is asked for anew before each further try."""
    answer = answering(COMMIT, committed(code), committed(code), committed(0))
    async with two_brokers(answer, answer) as (first, second, view):
        before = first.count(METADATA) + second.count(METADATA)
        assert await commit(view, 7) == 0
        assert first.count(METADATA) + second.count(METADATA) == before + 2
        assert len(sent(first) + sent(second)) == 3


async def test_a_commit_that_is_refused_for_good_is_tried_once() -> None:
    """And counted under its name."""
    metrics = Metrics()
    async with two_brokers(answering(COMMIT, committed(17)), answering(COMMIT, committed(0))) as (first, second, view):
        answers = await commit_offsets(view, metrics, "g", {T0: 7}, "")
        assert answers == {T0: error_code(17)}
        assert (len(sent(first)), len(sent(second))) == (1, 0)
    assert metrics.counter("commits_refused", error="INVALID_TOPIC") == 1


async def test_an_offset_that_a_broker_does_not_find_is_left_out() -> None:
    """Error 3 comes with the offset -1, which is none."""
    reply = answering(FETCH_OFFSETS, fetched(-1, 3))
    async with two_brokers(reply, reply) as (_, _, view):
        assert await fetch_offsets(view, "g", [T0]) == {}


async def test_a_fetch_of_offsets_goes_on_elsewhere() -> None:
    """Codes that may pass are tried again at another broker; a fatal one is a NoOffsetsError with its code."""
    async with two_brokers(
        answering(FETCH_OFFSETS, fetched(-1, 14)), answering(FETCH_OFFSETS, fetched(7, 0), fetched(-1, 17))
    ) as (_, _, view):
        assert await asyncio.wait_for(fetch_offsets(view, "g", [T0]), 5) == {T0: 7}
        with pytest.raises(NoOffsetsError, match="group g: the offset of t:0 cannot be fetched") as caught:
            await fetch_offsets(view, "g", [T0])
        assert caught.value.code == 17
