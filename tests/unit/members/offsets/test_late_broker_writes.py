"""A broker stores an offset after the commit has failed for the client. Then the member releases its partitions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

import pytest

from kiel_groups.group.offset_tracker import CommitRules, OffsetTracker
from kiel_groups.group.partition_offsets import Commit, StartPosition, StoredOffset
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.group.znodes.transactions import Answer, Check, Done, Failure, Operation, Refused
from kiel_groups.members.offsets.owned_offsets import OwnedOffsets, Written
from kiel_groups.members.offsets.topic_incarnations import TopicIncarnations
from kiel_groups.members.offsets.zookeeper_store import BrokerCommits, OffsetZnodes
from kiel_groups.members.zookeeper.owner_znodes import OwnerZnodes
from kiel_groups.model import TopicPartition
from kiel_groups.zookeeper.delivery_gate import DeliveryGate
from kiel_groups.zookeeper.fenced_writes import FencedWriter
from kiel_groups.zookeeper.session import Node
from kiel_groups.zookeeper.tasks import CloseLimit
from tests.helpers.contexts import member_context

pytestmark = pytest.mark.unit

LAYOUT = GroupLayout("g")
PARTITIONS = [TopicPartition("t", number) for number in range(3)]


class Session:
    """
    A session on which the stored offsets have another version than their owner knows: 12 for partitions 0 and 1, 99 for
    partition 2.
    """

    id = 1
    trusted = True

    def __init__(self) -> None:
        self.released: list[str] = []

    async def wait_trusted(self) -> None:
        """Return at once: the session is always trusted."""

    async def transact(self, operations: Sequence[Operation]) -> Answer:
        listed = list(operations)
        for index, each in enumerate(listed):
            if isinstance(each, Check) and "/offsets/" in each.path and each.version != 2:
                return Refused(index, Failure.BAD_VERSION)
        self.released += [each.path for each in listed if "/owners/" in each.path]
        return Done((None,) * len(listed), (None,) * len(listed))

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        return [Node(b"99" if path.endswith("/2") else b"12", 2, 1, 9, 0) for path in paths]

    async def exists_many(self, paths: Sequence[str]) -> list[Node | None]:
        return [Node(b"", 0, 5, 5, self.id) for _ in paths]

    def ensure(self, folders: Sequence[str]) -> Awaitable[None]:
        raise AssertionError(f"{folders} exist")


async def test_a_late_write_of_the_members_own_commit_is_recognized(caplog: pytest.LogCaptureFixture) -> None:
    """
    A stored offset that the member's own failed commit has sent is not another writer's. Partitions with a foreign
    offset are released without a commit, and one warning names them.
    """
    session, tracker = Session(), OffsetTracker(CommitRules(autocommit=False, through_brokers=True))
    tracker.open(dict.fromkeys(PARTITIONS, StartPosition(10, 1, 5)))
    context = member_context(session, tracker)
    topics = TopicIncarnations(context.session, context.tasks, tracker)
    writer = FencedWriter(context.session, "/m", topics.catch_up)
    tracker.requested(dict.fromkeys(PARTITIONS, 12))
    owner_znodes = OwnerZnodes(context, writer, OffsetZnodes(context, writer, topics))
    with caplog.at_level(logging.WARNING):
        outcome = await owner_znodes.release(PARTITIONS)
    assert outcome.released == frozenset(PARTITIONS)
    assert sorted(session.released) == [LAYOUT.owner(partition) for partition in PARTITIONS]
    assert context.metrics.total("commits_superseded") == 1
    assert [record.getMessage() for record in caplog.records] == [
        "group g: offsets of 1 partition, first t:2, were changed by another writer; they are released without a commit"
    ]


class SilentBrokers:
    """The offset znodes and the brokers: a broker answers no commit, and stores the first one late."""

    def __init__(self) -> None:
        self.stored = StoredOffset(0, 1)
        self.requests: list[int] = []

    async def send_commit(self, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        self.requests += offsets.values()

    async def read(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, StoredOffset]:
        return dict.fromkeys(partitions, self.stored)

    async def commit(self, commits: Mapping[TopicPartition, Commit], metadata: str) -> Written:
        raise AssertionError("brokers store the commits")

    async def prove(self) -> None:
        """The session is alive."""

    wait_ready = prove


class StuckBrokers(SilentBrokers):
    """Brokers that answer no commit. ``cancelled`` is called when the member gives a request up."""

    def __init__(self, cancelled: Callable[[], None]) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self._cancelled = cancelled

    async def send_commit(self, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self._cancelled()
            raise


class BrokerSession:
    """A session whose lease lasts for long."""

    gate = DeliveryGate()


async def test_a_commit_recognizes_the_late_write_of_an_earlier_one() -> None:
    """
    A broker stores 5 after the commit of 5 has failed for the member. Then the commit of 8 fails as well. The member
    does not take the 5 for another writer's, so it continues at 8.
    """
    partition, brokers = PARTITIONS[0], SilentBrokers()
    tracker = OffsetTracker(CommitRules(autocommit=True, through_brokers=True))
    tracker.open({partition: StartPosition(0, 1, 5)})
    context = member_context(BrokerSession(), tracker, brokers)
    BrokerSession.gate.grant(3_600_000, context.runtime.boot_time_s())
    BrokerSession.gate.renew(context.runtime.boot_time_s())
    commits = BrokerCommits(context, cast(Any, brokers), cast(Any, brokers), CloseLimit())
    offsets = OwnedOffsets(context.group, context.handler, tracker, context.metrics, commits, cast(Any, None))
    state = tracker.of(partition)
    assert state is not None
    for finished in (5, 8):
        state.position = state.finished = finished
        assert await offsets.commit() == frozenset()
        brokers.stored = StoredOffset(5, 2)
    assert (brokers.requests, state.position, state.committed, state.version) == ([5, 8], 8, 5, 2)
    assert context.metrics.total("commits_superseded") == 0


async def test_a_member_may_hurry_while_its_wait_for_a_broker_ends(caplog: pytest.LogCaptureFixture) -> None:
    """
    A wait that has just expired is being cancelled when the leaving member limits its waits. The commit ends as any
    other that no broker has answered.
    """
    hurries: list[int] = []

    def hurry_again() -> None:
        hurries.append(1)
        limit.shorten(0.0)

    partition, brokers = PARTITIONS[0], StuckBrokers(hurry_again)
    tracker = OffsetTracker(CommitRules(autocommit=True, through_brokers=True))
    tracker.open({partition: StartPosition(0, 1, 5)})
    context = member_context(BrokerSession(), tracker, brokers)
    BrokerSession.gate.grant(3_600_000, context.runtime.boot_time_s())
    BrokerSession.gate.renew(context.runtime.boot_time_s())
    limit = CloseLimit()
    commits = BrokerCommits(context, cast(Any, brokers), cast(Any, brokers), limit)
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        commit = tasks.create_task(commits.commit({partition: Commit(5, 1)}, ""))
        await brokers.asked.wait()
        limit.shorten(0.0)
    assert commit.result() == Written({}, {partition: brokers.stored})
    assert hurries == [1]
    assert context.metrics.total("commits_timed_out") == 1
    assert "brokers did not store offsets in time" in caplog.text
