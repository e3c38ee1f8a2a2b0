"""Claims, commits to either store and releases check the gate before they send anything."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kiel_groups.allocators import round_robin
from kiel_groups.errors import SessionLostError
from kiel_groups.group.partition_offsets import Commit, StartPosition
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.group.znodes.transactions import MOST_OPERATIONS, Answer, Check, Done, Operation, Put
from kiel_groups.members.offsets.owned_offsets import OwnedOffsets, Written
from kiel_groups.members.offsets.topic_incarnations import TopicIncarnations
from kiel_groups.members.offsets.zookeeper_store import BrokerCommits, OffsetZnodes
from kiel_groups.members.zookeeper.group_member import GroupMember
from kiel_groups.members.zookeeper.owner_znodes import OwnerZnodes
from kiel_groups.model import TopicPartition
from kiel_groups.zookeeper import session as zk_session
from kiel_groups.zookeeper.delivery_gate import DeliveryGate
from kiel_groups.zookeeper.fenced_writes import FencedWriter
from kiel_groups.zookeeper.session import Node, Session
from kiel_groups.zookeeper.tasks import CloseLimit
from tests.helpers.contexts import member_context, process_context
from tests.helpers.manual_runtime import ManualRuntime
from tests.helpers.waiting import run_ready_tasks

pytestmark = pytest.mark.unit

LAYOUT = GroupLayout("g")
P0 = TopicPartition("t", 0)


@pytest.fixture(autouse=True)
def no_gate_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check a closed gate again at once."""
    monkeypatch.setattr(zk_session, "GATE_PAUSE_S", 0)


class FakeSession:
    """A session with a real gate. Every transaction succeeds and is recorded in ``sent``."""

    trusted, wait_trusted = Session.trusted, Session.wait_trusted

    def __init__(self, runtime: ManualRuntime) -> None:
        self._runtime = runtime
        self.id = 1
        self.gate = DeliveryGate()
        self.gate.grant(6_000, runtime.now_s)
        self.gate.renew(runtime.now_s)
        self.sent: list[list[Operation]] = []
        #: The duration of each transaction, in seconds of the runtime's clock.
        self.takes_s = 0.0

    async def transact(self, operations: Sequence[Operation]) -> Answer:
        listed = list(operations)
        self.sent.append(listed)
        self._runtime.now_s += self.takes_s
        return Done(tuple(7 if isinstance(op, Put) else None for op in listed), (None,) * len(listed))

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        return [Node(b"10", 1, 1, 1, 0) for _ in paths]

    async def exists_many(self, paths: Sequence[str]) -> list[Node | None]:
        return [Node(b"", 0, 5, 5, self.id) for _ in paths]

    async def exists(self, path: str, watcher: object) -> Node | None:
        return Node(b"", 0, 1, 1, 0)

    async def children(self, path: str) -> list[str]:
        return []

    async def children_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        return [[] for _ in paths]

    async def ensure(self, folders: Sequence[str]) -> None:
        """Create nothing: all folders exist."""


class Handler:
    """A handler that records the commits sent to a broker."""

    def __init__(self) -> None:
        self.commits: list[Mapping[TopicPartition, int]] = []

    async def send_commit(self, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        self.commits.append(offsets)


class Owner:
    """A member that owns partition 0, with committed offset 10 and finished offset 12."""

    def __init__(self, runtime: ManualRuntime) -> None:
        self.session, self.handler = FakeSession(runtime), Handler()
        self.subscription = SubscriptionState()
        tracker = self.subscription.offsets
        tracker.open({P0: StartPosition(10, 1, 5)})
        tracker.of(P0).finished = 12  # type: ignore[union-attr]
        context = member_context(self.session, tracker, self.handler, runtime)
        self.topics = topics = TopicIncarnations(context.session, context.tasks, tracker)
        self.writer = FencedWriter(context.session, "/m", topics.catch_up)
        self.znodes = znodes = OffsetZnodes(context, self.writer, topics)
        self.owner_znodes = OwnerZnodes(context, self.writer, znodes)
        self.offsets = OwnedOffsets(context.group, context.handler, tracker, context.metrics, znodes, cast(Any, None))
        self.broker_commits = BrokerCommits(context, znodes, self.writer, CloseLimit())


PATHS: dict[str, Callable[[Owner], Awaitable[Any]]] = {
    "a proof": lambda owner: owner.writer.prove(),
    "a claim": lambda owner: owner.owner_znodes.claim([P0]),
    "a commit": lambda owner: owner.offsets.commit(),
    "a commit by brokers": lambda owner: owner.broker_commits.commit({P0: Commit(12, 1)}, ""),
    "a release": lambda owner: owner.owner_znodes.release([P0]),
}


@pytest.mark.parametrize("path", PATHS)
async def test_an_open_gate_permits_each_operation(runtime: ManualRuntime, path: str) -> None:
    """An open gate permits each operation. Each transaction starts with the check of the member znode."""
    owner = Owner(runtime)
    await PATHS[path](owner)
    assert owner.session.sent
    assert all(operations[0] == Check("/m") for operations in owner.session.sent)
    assert owner.handler.commits == ([{P0: 12}] if path == "a commit by brokers" else [])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("end", ["over", "shut"])
async def test_behind_a_shut_gate_nothing_is_sent(runtime: ManualRuntime, path: str, end: str) -> None:
    """After the lease has ended or the gate was shut, no operation sends anything to ZooKeeper or to a broker."""
    owner = Owner(runtime)
    if end == "over":
        runtime.now_s += 3
    else:
        owner.session.gate.shut("by the test")
    with pytest.raises(SessionLostError, match="lease over" if end == "over" else "by the test"):
        await asyncio.wait_for(asyncio.ensure_future(PATHS[path](owner)), 5)
    assert owner.session.sent == []
    assert owner.handler.commits == []


@pytest.mark.parametrize("path", PATHS)
async def test_an_operation_waits_while_the_connection_is_suspended(runtime: ManualRuntime, path: str) -> None:
    """
    While the connection is suspended, an operation waits. It continues when the session is connected again within the
    lease.
    """
    owner = Owner(runtime)
    owner.session.gate.suspended = True
    operation = asyncio.ensure_future(PATHS[path](owner))
    await run_ready_tasks()
    assert owner.session.sent == []
    assert owner.handler.commits == []
    owner.session.gate.suspended = False
    await asyncio.wait_for(operation, 5)
    assert owner.session.sent


async def test_a_lease_that_ends_between_two_transactions_ends_the_commit(runtime: ManualRuntime) -> None:
    """If the lease ends between two transactions of a commit, the remaining transactions are not sent."""
    owner = Owner(runtime)
    owner.session.takes_s = 2.0
    many = {TopicPartition("t", number): Commit(1, 1) for number in range(3 * MOST_OPERATIONS)}
    with pytest.raises(SessionLostError):
        await owner.znodes.put(many, lambda _, write: write)
    assert len(owner.session.sent) == 2


async def test_a_commit_waits_for_a_broker_at_most_until_the_lease_ends(runtime: ManualRuntime) -> None:
    """
    A commit waits for a broker at most until the lease ends, so a broker that does not answer cannot delay the end of
    the session.
    """
    owner = Owner(runtime)
    runtime.now_s = owner.session.gate.deadline_s - 0.05

    async def silent(offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        await asyncio.Event().wait()

    owner.handler.send_commit = silent  # type: ignore[method-assign]
    # The store proves its session before it reads again; on this fake session, the proof succeeds at once.
    await asyncio.wait_for(owner.broker_commits.commit({P0: Commit(12, 1)}, ""), 5)
    assert owner.session.sent


async def test_an_offset_that_is_outdated_after_an_outage_is_not_sent_to_a_broker(runtime: ManualRuntime) -> None:
    """The connection breaks right before the commit, and the topic is created again during the outage."""
    owner = Owner(runtime)
    get_many = owner.session.get_many

    async def breaking(paths: Sequence[str]) -> list[Node | None]:
        owner.session.gate.suspended = True
        return await get_many(paths)

    owner.session.get_many = breaking  # type: ignore[method-assign]
    committing = asyncio.ensure_future(owner.broker_commits.commit({P0: Commit(12, 1)}, ""))
    await run_ready_tasks()
    owner.subscription.offsets.recreated("t", 9)
    owner.session.gate.suspended = False
    assert await asyncio.wait_for(committing, 5) == Written({}, {})
    assert owner.handler.commits == []


@pytest.mark.parametrize("end", ["suspended", "over", "shut"])
async def test_an_explicit_commit_fails_at_once_without_a_trusted_session(runtime: ManualRuntime, end: str) -> None:
    """Without a trusted session, a commit fails at once, and nothing is sent."""
    owner, commits = Owner(runtime), []

    class OwnedOffsets:
        async def commit(self, metadata: str) -> frozenset[TopicPartition]:
            commits.append(metadata)
            return frozenset({P0})

    member = GroupMember(
        process_context(runtime=runtime), cast(Any, owner.handler), owner.subscription, round_robin, lambda error: None
    )
    current = SimpleNamespace(
        session=owner.session, role=SimpleNamespace(offsets=SimpleNamespace(owned=OwnedOffsets()))
    )
    member._supervisor.current = cast(Any, current)
    assert await member.commit_on_session("first") == {P0}
    if end == "suspended":
        owner.session.gate.suspended = True
    elif end == "over":
        runtime.now_s += 3
    else:
        owner.session.gate.shut("by the test")
    with pytest.raises(SessionLostError, match="no session to commit with at the moment"):
        await member.commit_on_session("second")
    assert commits == ["first"]


async def test_a_watch_that_fires_right_before_a_write_is_handled_first(runtime: ManualRuntime) -> None:
    """
    A watch that fires right before a write is handled before the write, although its callback has only been scheduled
    by kazoo's thread.

    ``wait_ready`` yields to the event loop once, even if the gate is open and no check is pending.
    """
    owner, reads = Owner(runtime), list[str]()
    exists = owner.session.exists

    async def recorded(path: str, watcher: object) -> Node | None:
        reads.append(path)
        return await exists(path, watcher)

    owner.session.exists = recorded  # type: ignore[method-assign]
    await owner.topics.follow({"t"})
    reads.clear()
    asyncio.get_running_loop().call_soon(owner.topics.recheck)
    await owner.writer.wait_ready()
    assert reads == ["/brokers/topics/t"]
