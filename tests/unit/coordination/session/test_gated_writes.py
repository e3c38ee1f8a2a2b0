"""Every path that only an owner may take asks the gate first: claims, commits of either store, releases."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kiel_groups.allocators import round_robin
from kiel_groups.config import GroupConfig, ZooKeeperConfig
from kiel_groups.coordination.member.group_member import GroupMember
from kiel_groups.coordination.member.owner_znodes import OwnerZnodes
from kiel_groups.coordination.offsets.broker_store import BrokerOffsetStore
from kiel_groups.coordination.offsets.owned_offsets import OwnedOffsets
from kiel_groups.coordination.offsets.topic_incarnations import TopicIncarnations
from kiel_groups.coordination.offsets.zookeeper_store import ZooKeeperOffsetStore
from kiel_groups.coordination.session import zk_session
from kiel_groups.coordination.session.delivery_gate import DeliveryGate
from kiel_groups.coordination.session.fenced_writes import FencedWriter
from kiel_groups.coordination.session.session_tasks import TaskSet
from kiel_groups.coordination.session.zk_session import Node, Session
from kiel_groups.coordination.zookeeper.runtime import replaced
from kiel_groups.errors import SessionLostError
from kiel_groups.group.member.subscription import StartPosition, SubscriptionState
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.group.znodes.transactions import MOST_OPERATIONS, Answer, Check, Done, Operation, Put
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from tests.helpers.manual_runtime import ManualRuntime

pytestmark = pytest.mark.unit

LAYOUT = GroupLayout("g")
P0 = TopicPartition("t", 0)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[ManualRuntime]:
    """Time passes when the test says so; a gate that is not open is looked at again at once."""
    monkeypatch.setattr(zk_session, "GATE_PAUSE_S", 0)
    manual = ManualRuntime()
    with replaced(manual):
        yield manual


class FakeSession:
    """A session with a real gate, on which every transaction succeeds; ``sent`` are those that went out."""

    trusted = Session.trusted

    def __init__(self, machine: ManualRuntime) -> None:
        self._machine = machine
        self.id = 1
        self.gate = DeliveryGate()
        self.gate.grant(6_000)
        self.gate.renew(machine.now_s)
        self.sent: list[list[Operation]] = []
        #: How long each transaction takes, in seconds of the machine's time.
        self.takes_s = 0.0

    async def transact(self, operations: Sequence[Operation]) -> Answer:
        listed = list(operations)
        self.sent.append(listed)
        self._machine.now_s += self.takes_s
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
        """All of them stand."""


class Handler:
    """Sends commits to a broker that takes note of them."""

    def __init__(self) -> None:
        self.commits: list[Mapping[TopicPartition, int]] = []

    async def send_commit(self, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        self.commits.append(offsets)


class Owner:
    """A member that holds partition 0 from offset 10 on, and has finished it up to 12."""

    def __init__(self, machine: ManualRuntime) -> None:
        self.session, self.handler = FakeSession(machine), Handler()
        session, metrics = cast(Any, self.session), Metrics()
        self.subscription = SubscriptionState()
        self.subscription.assign_from_subscribed({P0: StartPosition(10, 1, 5)})
        self.subscription.state(P0).finished = 12  # type: ignore[union-attr]
        self.topics = topics = TopicIncarnations(session, TaskSet(print))
        self.writer = FencedWriter(session, "/m", topics.catch_up)
        arguments = (session, LAYOUT, self.writer, topics, metrics, None, "earliest")
        self.store = ZooKeeperOffsetStore(*cast(Any, arguments))
        self.broker_store = BrokerOffsetStore(*cast(Any, arguments))
        self.broker_store.send_commit = self.handler.send_commit
        self.owner_znodes = OwnerZnodes(
            session, LAYOUT, "m", self.writer, self.store, self.subscription, metrics, commits=True
        )
        self.offsets = OwnedOffsets(
            GroupConfig(group="g"), self.store, cast(Any, self.handler), self.subscription, metrics, frozenset
        )


PATHS: dict[str, Callable[[Owner], Awaitable[Any]]] = {
    "a proof": lambda owner: owner.writer.prove(),
    "a claim": lambda owner: owner.owner_znodes.claim([P0]),
    "a commit": lambda owner: owner.offsets.commit_finished(),
    "a commit by brokers": lambda owner: owner.broker_store.write_commit({P0: (12, 1)}, lambda _: False),
    "a release": lambda owner: owner.owner_znodes.release([P0]),
}


@pytest.mark.parametrize("path", PATHS)
async def test_with_the_gate_open_it_is_done(machine: ManualRuntime, path: str) -> None:
    """Each transaction begins with the check of the member znode."""
    owner = Owner(machine)
    await PATHS[path](owner)
    assert owner.session.sent
    assert all(operations[0] == Check("/m") for operations in owner.session.sent)
    assert owner.handler.commits == ([{P0: 12}] if path == "a commit by brokers" else [])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("end", ["over", "shut"])
async def test_with_the_gate_shut_nothing_goes_out(machine: ManualRuntime, path: str, end: str) -> None:
    """Whether the lease ran out or somebody shut it: neither ZooKeeper nor a broker is asked for anything."""
    owner = Owner(machine)
    if end == "over":
        machine.now_s += 3
    else:
        owner.session.gate.shut("by the test")
    with pytest.raises(SessionLostError, match="lease over" if end == "over" else "by the test"):
        await PATHS[path](owner)
    assert owner.session.sent == []
    assert owner.handler.commits == []


@pytest.mark.parametrize("path", PATHS)
async def test_while_the_connection_is_broken_it_waits(machine: ManualRuntime, path: str) -> None:
    """And is done when the same session is back within the lease."""
    owner = Owner(machine)
    owner.session.gate.suspended = True
    doing = asyncio.ensure_future(PATHS[path](owner))
    for _ in range(20):
        await asyncio.sleep(0)
    assert owner.session.sent == []
    assert owner.handler.commits == []
    owner.session.gate.suspended = False
    await asyncio.wait_for(doing, 5)
    assert owner.session.sent


async def test_a_lease_that_ends_between_two_transactions_ends_the_commit(machine: ManualRuntime) -> None:
    """What was sent stands; the rest is not even tried."""
    owner = Owner(machine)
    owner.session.takes_s = 2.0
    many = {TopicPartition("t", number): (1, 1) for number in range(3 * MOST_OPERATIONS)}
    with pytest.raises(SessionLostError):
        await owner.store.write_commit(many, lambda _: False)
    assert len(owner.session.sent) == 2


async def test_brokers_are_waited_for_no_longer_than_the_lease(machine: ManualRuntime) -> None:
    """A broker that is silent does not keep a member from noticing that its time is over."""
    owner = Owner(machine)
    machine.now_s = owner.session.gate.deadline_s - 0.05

    async def silent(offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        await asyncio.Event().wait()

    owner.broker_store.send_commit = silent
    # The store proves its session before it reads again, which on this session succeeds at once.
    await asyncio.wait_for(owner.broker_store.write_commit({P0: (12, 1)}, lambda _: False), 5)
    assert owner.session.sent


async def test_brokers_are_not_asked_for_what_is_outdated_after_an_outage(machine: ManualRuntime) -> None:
    """The connection breaks when all is ready, and the topic is created again before it is back."""
    owner, outdated = Owner(machine), set[TopicPartition]()
    get_many = owner.session.get_many

    async def breaking(paths: Sequence[str]) -> list[Node | None]:
        owner.session.gate.suspended = True
        return await get_many(paths)

    owner.session.get_many = breaking  # type: ignore[method-assign]
    committing = asyncio.ensure_future(owner.broker_store.write_commit({P0: (12, 1)}, outdated.__contains__))
    for _ in range(20):
        await asyncio.sleep(0)
    outdated.add(P0)
    owner.session.gate.suspended = False
    assert await asyncio.wait_for(committing, 5) == ({}, {})
    assert owner.handler.commits == []


@pytest.mark.parametrize("end", ["suspended", "over", "shut"])
async def test_a_commit_that_is_asked_for_is_not_kept_waiting(machine: ManualRuntime, end: str) -> None:
    """By hand or by the clock, it is told at once that there is no trusted session at the moment."""
    owner, asked = Owner(machine), []

    class OwnedPartitions:
        async def commit_owned(self, metadata: str) -> frozenset[TopicPartition]:
            asked.append(metadata)
            return frozenset({P0})

    member = GroupMember(
        GroupConfig(group="g"),
        ZooKeeperConfig(hosts="h:1"),
        cast(Any, owner.handler),
        owner.subscription,
        round_robin,
        Metrics(),
        lambda error: None,
    )
    member._supervisor.current = cast(Any, SimpleNamespace(session=owner.session, owned_partitions=OwnedPartitions()))
    assert await member.commit_on_session("first") == {P0}
    if end == "suspended":
        owner.session.gate.suspended = True
    elif end == "over":
        machine.now_s += 3
    else:
        owner.session.gate.shut("by the test")
    with pytest.raises(SessionLostError, match="no session to commit with at the moment"):
        await member.commit_on_session("second")
    assert asked == ["first"]


async def test_a_watch_that_fires_right_before_a_write_is_heard_first(machine: ManualRuntime) -> None:
    """
    A hint of kazoo's thread reaches the event loop as a callback that has not run yet.

    ``ready`` lets it run: with the gate open and nothing to catch up it would otherwise return in the same turn.
    """
    owner, looks = Owner(machine), list[str]()
    exists = owner.session.exists

    async def looking(path: str, watcher: object) -> Node | None:
        looks.append(path)
        return await exists(path, watcher)

    owner.session.exists = looking  # type: ignore[method-assign]
    await owner.topics.follow({"t"})
    looks.clear()
    asyncio.get_running_loop().call_soon(owner.topics.look_again)
    await owner.writer.ready()
    assert looks == ["/brokers/topics/t"]
