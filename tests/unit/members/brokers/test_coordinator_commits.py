"""Commits to a coordinator: what is repeated, what is refused, and what the membership has to do with it."""

from __future__ import annotations

import asyncio

import pytest

from kiel_groups.errors import BrokerConnectionError, CommitFailedError, SessionLostError
from kiel_groups.group.member_state import CoordinatorCode
from kiel_groups.group.partition_offsets import PendingReset
from kiel_groups.wire.group_requests import HeartbeatRequest
from kiel_groups.wire.offsets import OffsetCommitRequestV2, OffsetFetchRequestV1
from tests.helpers.coordinated_consumer import P0, P1, ConsumerBench
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.unit

C = CoordinatorCode
SILENCE = BrokerConnectionError("broker 1: the connection broke")
TOO_LONG = 12


async def finished(session_timeout_ms: int = 6_000) -> ConsumerBench:
    """Return a member whose application has finished records of both partitions and commits by itself."""
    timing = {"session_timeout_ms": session_timeout_ms, "heartbeat_interval_ms": session_timeout_ms // 3}
    bench = await ConsumerBench(
        group={"autocommit": False}, assignor="range", rebalance_timeout=True, **timing
    ).joined()
    bench.finish(P0, 150)
    bench.finish(P1, 160)
    return bench


def sent(bench: ConsumerBench) -> list[dict[int, tuple[int, str]]]:
    """Return the offsets and the texts of the commits so far, by the number of the partition."""
    requests = [request for request in bench.transport.sent if isinstance(request, OffsetCommitRequestV2)]
    return [{p.partition: (each.offset, each.metadata) for p, each in request.offsets.items()} for request in requests]


async def test_a_commit_has_the_membership_and_the_text() -> None:
    """The coordinator checks the generation and the member id of each commit."""
    bench = await finished()
    assert await bench.member.commit_on_session("a text") == {P0, P1}
    request = bench.transport.sent[-1]
    assert (request.generation, request.member_id) == (1, "m-1")
    assert sent(bench)[-1] == {0: (150, "a text"), 1: (160, "a text")}
    assert bench.tracker.commits() == {}
    await bench.member.close()


@pytest.mark.parametrize(
    "code", [C.UNKNOWN, C.REQUEST_TIMED_OUT, C.LOADING, C.NOT_AVAILABLE, C.NOT_COORDINATOR, SILENCE]
)
async def test_what_may_succeed_later_is_sent_again(code: object) -> None:
    """A coordinator that moves, or loads its log, costs a pause."""
    bench = await finished()
    bench.transport.script[OffsetCommitRequestV2].append(code)  # type: ignore[arg-type]
    assert await bench.member.commit_on_session() == {P0, P1}
    assert bench.stored() == {P0: 150, P1: 160}
    assert bench.metrics.counter("commits_repeated") == 2
    await bench.member.close()


@pytest.mark.parametrize("passing", [C.LOADING, C.NOT_AVAILABLE, C.NOT_COORDINATOR])
async def test_a_text_that_is_too_long_is_left_out_and_no_partition_is_dropped(passing: int) -> None:
    """Partitions that failed for another reason in the same answer are sent again, too."""
    bench = await finished()
    bench.transport.script[OffsetCommitRequestV2].append({P0: TOO_LONG, P1: passing})
    assert await bench.member.commit_on_session("a text") == {P0, P1}
    assert sent(bench)[-1] == {0: (150, ""), 1: (160, "")}
    assert bench.stored() == {P0: 150, P1: 160}
    await bench.member.close()


async def test_a_text_that_the_protocol_cannot_carry_is_left_out() -> None:
    """The limit is in bytes."""
    bench = await finished()
    assert await bench.member.commit_on_session("ä" * 16_384) == {P0, P1}
    assert sent(bench)[-1] == {0: (150, ""), 1: (160, "")}
    await bench.member.close()


async def test_a_partition_that_the_answer_lacks_is_sent_again() -> None:
    """It is not taken for stored."""
    bench = await finished()
    bench.transport.script[OffsetCommitRequestV2].append({P0: 0})
    assert await bench.member.commit_on_session() == {P0, P1}
    assert sent(bench)[-1] == {1: (160, "")}
    await bench.member.close()


@pytest.mark.parametrize("code", [TOO_LONG, 28])
async def test_a_refused_partition_is_raised_and_the_others_are_stored(
    code: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The error names what was stored, and the log says why the rest was not."""
    bench = await finished()
    bench.transport.script[OffsetCommitRequestV2].append({P0: code, P1: 0})
    with pytest.raises(CommitFailedError, match=r"commit\(\): t:0 not stored.*\(stored: t:1\)"):
        await bench.member.commit_on_session()
    assert bench.metrics.total("commits_refused") == 1
    assert f"({code})" in caplog.text
    assert await bench.member.commit_on_session() == {P0}
    await bench.member.close()


@pytest.mark.parametrize("code", [C.ILLEGAL_GENERATION, C.UNKNOWN_MEMBER, C.REBALANCE_IN_PROGRESS])
async def test_a_commit_of_a_former_generation_is_raised(code: int) -> None:
    """Records since the last commit are delivered again; the commit is not repeated in another generation."""
    bench = await finished()
    bench.transport.script[OffsetCommitRequestV2].append(code)
    with pytest.raises(SessionLostError, match=rf"offsets were not stored: .*\({code}\)"):
        await bench.member.commit_on_session()
    await bench.member.close()


async def test_nothing_is_sent_after_the_end_of_the_lease() -> None:
    """Another member may have the partitions then. A heartbeat that is answered opens the gate again."""
    bench = await finished()
    bench.transport.script[HeartbeatRequest].extend([SILENCE] * 3)
    bench.runtime.sleep_s(3)
    before = len(sent(bench))
    with pytest.raises(SessionLostError, match="no membership to commit with at the moment"):
        await bench.member.commit_on_session()
    assert len(sent(bench)) == before
    await bench.member.close()


async def test_an_answered_commit_extends_the_lease() -> None:
    """The coordinator has counted it as a sign of life."""
    bench = await finished()
    gate = bench.handler.gates[-1]
    bench.runtime.sleep_s(2)
    assert await bench.member.commit_on_session()
    bench.runtime.sleep_s(2)
    assert gate.is_open(bench.runtime.now_s)
    await bench.member.close()


async def test_a_reset_that_is_refused_is_an_error() -> None:
    """``PositionReset`` tries it again after a pause; without an error, it would do so at once, for ever."""
    bench = await finished()
    reset = PendingReset(lost=150, start=170, end=200, position=170)
    bench.tracker.choose_reset(P0, reset)
    bench.transport.script[OffsetCommitRequestV2].append(28)
    with pytest.raises(CommitFailedError, match=r"group g: the position 170 of t:0, .* was not stored"):
        await bench.member.store_reset(P0, reset)
    assert await bench.member.store_reset(P0, reset) is not None
    await bench.member.close()


# Reads


async def test_a_slow_read_of_offsets_does_not_hold_back_a_join() -> None:
    """A join waits for requests in flight, so a read that has no answer within a third of the session is repeated."""
    bench = await finished(session_timeout_ms=300)
    bench.transport.script[OffsetFetchRequestV1].append(asyncio.Event())
    reading = asyncio.ensure_future(bench.member.stored_offsets([P0, P1]))
    await bench.traced("read offsets")
    began_s = asyncio.get_running_loop().time()
    bench.member._member.request_rejoin()
    await bench.traced("join m-1")
    assert asyncio.get_running_loop().time() - began_s < 5
    assert await asyncio.wait_for(reading, 5) == {P0: 100, P1: 100}
    await bench.member.close()


async def test_offsets_of_others_are_read_without_an_assignment() -> None:
    """A member that has not joined finds the coordinator for that."""
    bench = ConsumerBench()
    bench.committed(p0=7)
    assert await bench.member.stored_offsets([P0, P1]) == {P0: 7}
    assert bench.trace == ["find", "read offsets"]
    await bench.member.close()


async def test_a_removal_that_a_read_reveals_is_followed() -> None:
    """Brokers do not check the membership of reads; if one does, the member joins anew."""
    bench = await finished()
    bench.transport.script[OffsetFetchRequestV1].append(C.UNKNOWN_MEMBER)
    with pytest.raises(Exception, match=r"\(25\)"):
        await bench.member.stored_offsets([P0])
    await eventually(lambda: "join anew" in bench.trace, "the member joins anew")
    await bench.member.close()
