"""The member of a consumer between its rebalances: renewed offsets, stalls of the application, and its close."""

from __future__ import annotations

import asyncio

import pytest

from kiel_groups.errors import BrokerConnectionError, CommitFailedError
from kiel_groups.model import TopicPartition
from kiel_groups.wire.groups.coordinator_offsets import OffsetCommitRequestV2
from tests.helpers.coordinated_consumer import P0, P1, ConsumerBench
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.unit

SILENCE = BrokerConnectionError("broker 1: the connection broke")


def commits(bench: ConsumerBench) -> list[dict[TopicPartition, int]]:
    """Return the offsets of each commit so far."""
    sent = [request for request in bench.transport.sent if isinstance(request, OffsetCommitRequestV2)]
    return [{partition: each.offset for partition, each in request.offsets.items()} for request in sent]


# Offsets that are committed again


@pytest.mark.parametrize("autocommit", [True, False])
async def test_stored_offsets_are_renewed_also_of_partitions_with_uncommitted_records(autocommit: bool) -> None:
    """An application that processes for a day without a commit finds its offsets, which do not move meanwhile."""
    bench = ConsumerBench(group={"autocommit": autocommit}, offset_refresh_ms=20)
    bench.committed(p0=110, p1=120)
    await bench.joined()
    bench.finish(P0, 150)
    before = len(commits(bench))
    await eventually(lambda: len(commits(bench)) > before + 1, "offsets are renewed")
    assert all(commit == {P0: 110, P1: 120} for commit in commits(bench)[before:])
    assert bench.tracker.commits().keys() == {P0}
    await bench.member.close()


async def test_an_offset_that_may_be_stored_is_not_overwritten_by_a_renewal() -> None:
    """After a commit without an answer, the coordinator may have the new offset; only the next commit settles that."""
    bench = ConsumerBench(group={"autocommit": False}, offset_refresh_ms=20, find_timeout_ms=1)
    bench.committed(p0=110, p1=120)
    await bench.joined()
    bench.finish(P0, 150)
    bench.transport.script[OffsetCommitRequestV2].extend([SILENCE, SILENCE])
    committing = asyncio.ensure_future(bench.member.commit_on_session())
    await bench.traced("commit")
    bench.runtime.sleep_s(0.5)
    with pytest.raises(CommitFailedError, match=r"t:0 not stored within 0\.001 s"):
        await committing
    before = len(commits(bench))
    await eventually(lambda: len(commits(bench)) > before + 1, "other offsets are renewed")
    assert all(commit == {P1: 120} for commit in commits(bench)[before:])
    bench.finish(P0, 110)
    assert await bench.member.commit_on_session() == {P0}, "a seek back to the committed offset is stored, too"
    before = len(commits(bench))
    await eventually(lambda: {P0: 110, P1: 120} in commits(bench)[before:], "all offsets are renewed")
    await bench.member.close()


async def test_a_renewal_that_fails_is_tried_again() -> None:
    """The next one is an interval later, and nothing is raised: the application has not asked for a commit."""
    bench = ConsumerBench(offset_refresh_ms=20)
    bench.committed(p0=110, p1=120)
    await bench.joined()
    bench.transport.script[OffsetCommitRequestV2].append({P0: 28, P1: 28})
    before = len(commits(bench))
    await eventually(lambda: len(commits(bench)) > before + 1, "offsets are renewed")
    assert bench.failures == []
    await bench.member.close()


# Commits


@pytest.mark.parametrize("code", [24, 30])
async def test_a_commit_that_stops_the_member_is_raised(code: int) -> None:
    """Its partitions are lost at once, and so nothing uncommitted is found any more; the caller gets an error."""
    bench = await ConsumerBench(group={"autocommit": False}).joined()
    bench.finish(P0, 150)
    bench.transport.script[OffsetCommitRequestV2].append(code)
    with pytest.raises(CommitFailedError, match=rf"group g: offsets were not stored: .*\({code}\)"):
        await bench.member.commit_on_session()
    assert len(bench.failures) == 1
    assert "lost t:0, t:1" in bench.trace
    await bench.member.close()
