"""Reports of assignments with topics that their member was not subscribed to when the leader wrote them."""

from __future__ import annotations

import asyncio

import pytest

from kiel_groups.group.znodes.contents import MemberAssignment, MemberInfo
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.members.zookeeper.owned_partitions import REPLANNED_S, UnsubscribedTopics
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.zookeeper.session import Node
from tests.helpers.contexts import session_context

pytestmark = pytest.mark.unit

LAYOUT = GroupLayout("g")
BOTH = MemberAssignment(
    7, "m", frozenset({TopicPartition("kept", 0), TopicPartition("other", 0), TopicPartition("other", 1)})
)


class FakeSession:
    """A session that returns the znode of one member, or None."""

    def __init__(self, *topics: str, zxid: int) -> None:
        self.member: bytes | None = MemberInfo(member_id="m", session_timeout_ms=1, subscription=topics).encode()
        self._zxid = zxid

    async def get(self, path: str) -> Node | None:
        assert path == LAYOUT.member("m")
        return None if self.member is None else Node(self.member, 0, self._zxid, self._zxid, 1)


def written(zxid: int) -> Node:
    return Node(BOTH.encode(), 0, 1, zxid, 0)


async def reports(session: FakeSession, *assignments: Node, subscribed: str = "kept") -> int:
    """Check assignments of a member in turn, and return how many are reported."""
    topics = UnsubscribedTopics(session_context(session, metrics=(metrics := Metrics())))
    for node in assignments:
        await topics.check(node, BOTH, frozenset({subscribed}))
    return metrics.counter("assignments_of_unsubscribed_topics")


async def test_each_written_assignment_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """
    An assignment of unsubscribed topics is reported once, however often it is read. The report is a warning, because
    the leader may not have read the registration yet.
    """
    session = FakeSession("kept", zxid=10)
    assert await reports(session, written(11), written(11), written(12), written(12)) == 2
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "generation 7, names 2 partitions" in caplog.text
    assert "subscribed to: other; they are not claimed" in caplog.text


async def test_lasting_assignments_of_unsubscribed_topics_are_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """
    If the same assignment of unsubscribed topics lasts, or further ones follow, an error is logged. An assignment of
    subscribed topics ends the case.
    """
    topics = UnsubscribedTopics(session_context(FakeSession("kept", zxid=10), metrics=(metrics := Metrics())))
    now_s = asyncio.get_running_loop().time()
    subscribed_only = MemberAssignment(8, "m", frozenset({TopicPartition("kept", 0)}))

    async def levels(zxid: int, found: MemberAssignment, after_s: float) -> list[str]:
        caplog.clear()
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s + after_s)
        await topics.check(written(zxid), found, frozenset({"kept"}))
        return [record.levelname for record in caplog.records]

    assert await levels(11, BOTH, 0.0) == ["WARNING"]
    assert await levels(11, BOTH, REPLANNED_S - 0.1) == []
    assert await levels(11, BOTH, REPLANNED_S) == ["ERROR"]
    assert await levels(11, BOTH, REPLANNED_S + 1) == []
    assert await levels(12, BOTH, REPLANNED_S + 2) == ["ERROR"]
    assert metrics.counter("assignments_of_unsubscribed_topics") == 2
    assert await levels(13, subscribed_only, REPLANNED_S + 3) == []
    assert await levels(14, BOTH, REPLANNED_S + 4) == ["WARNING"]
    assert metrics.counter("assignments_of_unsubscribed_topics") == 3


async def test_an_assignment_from_before_the_registration_is_not_reported() -> None:
    """
    An assignment that was written before the member's registration is not reported, because the leader wrote it for the
    former subscription.
    """
    assert await reports(FakeSession("kept", zxid=10), written(9)) == 0


async def test_an_assignment_of_registered_topics_is_not_reported() -> None:
    """
    An assignment of a topic that the member znode still names is not reported, even if the member has unsubscribed from
    the topic.
    """
    assert await reports(FakeSession("kept", "other", zxid=10), written(11)) == 0


@pytest.mark.parametrize("data", [None, b"garbage"])
async def test_without_a_readable_registration_nothing_is_reported(data: bytes | None) -> None:
    """
    Without a readable member znode, no assignment is reported. A member without its znode is about to give up its
    session, and the leader reports an unreadable one.
    """
    session = FakeSession("kept", zxid=10)
    session.member = data
    assert await reports(session, written(11)) == 0
