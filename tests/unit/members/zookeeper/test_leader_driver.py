"""The reads of a leader before a plan, their order, and the writes of the plan."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from kiel_groups.allocators import round_robin
from kiel_groups.config import DebounceConfig, GroupConfig
from kiel_groups.group.znodes.contents import GroupState, MemberAssignment, MemberInfo
from kiel_groups.group.znodes.layout import BROKER_IDS, GroupLayout, topic_path
from kiel_groups.group.znodes.transactions import Answer, Check, Create, Done, Failure, Operation, Put, Refused, Unknown
from kiel_groups.members.zookeeper.leader import LeaderDriver
from kiel_groups.members.zookeeper.planner import PartitionPlanner
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.zookeeper.session import Node
from kiel_groups.zookeeper.tasks import TaskSet
from tests.helpers.contexts import session_context
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.unit

LAYOUT = GroupLayout("g")
CANDIDATE = f"{LAYOUT.election}/c"
INFO = MemberInfo(member_id="m", session_timeout_ms=1, subscription=("t",))
MEMBER = INFO.encode()
TOPIC = b'{"version":1,"partitions":{"0":[0],"1":[0]}}'

Watcher = Callable[[], None]

#: Wait at most 5 seconds. A leader in these tests needs a few milliseconds.
soon = partial(eventually, timeout_s=5.0)


class Znodes:
    """
    A session with one member and one topic. ``requests`` and ``written`` list its requests and writes in order.

    ``watchers`` maps each path to the watcher of its last read of children.
    """

    def __init__(self, proof: Answer) -> None:
        self.client = SimpleNamespace(chroot="")
        self.requests: list[str] = []
        self.written: list[Operation] = []
        self.brokers = ["0"]
        self.nodes = {LAYOUT.member("m"): MEMBER, topic_path("t"): TOPIC}
        self.watchers: dict[str, Watcher | None] = {}
        self._proof = proof

    async def transact(self, operations: Iterable[Operation]) -> Answer:
        """Answer requests in the order of the calls, as the real session does."""
        listed = list(operations)
        if listed == [Check(CANDIDATE)]:
            self.requests.append("proof")
            return self._proof
        self.written += listed
        self.nodes |= {each.path: each.data for each in listed if isinstance(each, Create | Put)}
        return Done((None,) * len(listed), (None,) * len(listed))

    async def ensure(self, folders: Collection[str]) -> None:
        """Create nothing: all folders exist."""

    async def children(self, path: str, watcher: Watcher | None = None) -> list[str] | None:
        self.requests.append(path)
        self.watchers[path] = watcher
        below = [name for folder, _, name in (each.rpartition("/") for each in self.nodes) if folder == path]
        return self.brokers if path == BROKER_IDS else below or None

    async def get(self, path: str, watcher: Watcher | None = None) -> Node | None:
        return (await self.get_many([path]))[0]

    async def get_many(self, paths: Sequence[str], watchers: object = None) -> list[Node | None]:
        self.requests += paths
        return [Node(self.nodes[path], 0, 1, 1, 0) if path in self.nodes else None for path in paths]

    async def exists(self, path: str, watcher: Watcher) -> Node | None:
        return None

    async def exists_many(self, paths: Sequence[str], watchers: object = None) -> list[Node | None]:
        return [None for _ in paths]

    async def children_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        return [None for _ in paths]


class Bench:
    """A leader that has just been elected, and plans without a delay."""

    def __init__(
        self,
        proof: Answer,
        allocator: Any = round_robin,
        *,
        quiet_ms: int = 0,
        grace_ms: int = 60_000,
        allocator_ms: int = 5_000,
    ) -> None:
        self.znodes, self.metrics = Znodes(proof), Metrics()
        self.doubts = 0
        self._failures: list[BaseException] = []
        self._config = GroupConfig(
            group="g",
            debounce=DebounceConfig(quiet_ms=quiet_ms, bound_ms=quiet_ms, initial_delay_ms=0),
            allocator_timeout_ms=allocator_ms,
            static_grace_ms=grace_ms,
        )
        self._allocator = allocator

    async def plan(self, until: str) -> None:
        """Lead until the counter ``until`` is above 0."""
        async with self.leading():
            await soon(lambda: self.metrics.total(until), until)

    @asynccontextmanager
    async def leading(self) -> AsyncIterator[LeaderDriver]:
        """Lead during the block, and yield the driver."""
        tasks = TaskSet(self._failures.append)
        context = session_context(self.znodes, config=self._config, tasks=tasks, metrics=self.metrics)
        driver = LeaderDriver(context, partial(PartitionPlanner, context, self._allocator, None), self._doubt)
        driver.lead(CANDIDATE, succeeds=False)
        try:
            yield driver
        finally:
            driver.close()
            await tasks.cancel()
        assert not self._failures

    def store_assignments(self, partition: int) -> None:
        """Assign ``partition`` to a static member that has just left, and the other partition to ``m``."""
        for slot, member, number in (("i", "gone", partition), ("m", "m", 1 - partition)):
            self.znodes.nodes[LAYOUT.assignment(slot)] = MemberAssignment(
                1, member, frozenset({TopicPartition("t", number)})
            ).encode()

    def assignment(self, slot: str) -> MemberAssignment:
        """Return the stored assignment of a slot."""
        return MemberAssignment.parse(self.znodes.nodes[LAYOUT.assignment(slot)], slot)

    def _doubt(self) -> None:
        self.doubts += 1

    @property
    def group_state(self) -> GroupState | None:
        """The group state that was written last, or None if none was written."""
        written = [
            each for each in self.znodes.written if isinstance(each, Create | Put) and each.path == LAYOUT.group_state
        ]
        return GroupState.parse(written[-1].data, LAYOUT.group_state) if written else None


DONE = Done((None,), (None,))


async def test_a_leader_proves_its_leadership_before_it_reads() -> None:
    """
    A leader first proves its leadership. Answers arrive in the order of the requests, so the state that it reads is no
    older than the proof.
    """
    bench = Bench(DONE)
    await bench.plan("generations_published")
    assert bench.znodes.requests.index("proof") < bench.znodes.requests.index(BROKER_IDS)
    assert len(bench.znodes.requests) > 5
    assert bench.group_state is not None
    assert bench.group_state.partitions == 2


@pytest.mark.parametrize("proof", [Refused(0, Failure.NO_NODE), Unknown()], ids=["refused", "unknown"])
async def test_without_a_proof_nothing_is_planned(proof: Answer) -> None:
    """
    Without a proof, a leader plans nothing, because another leader may have been elected. If the proof was refused, the
    leader also doubts its leadership.
    """
    bench = Bench(proof)
    await bench.plan("publications_interrupted")
    assert bench.znodes.written == []
    assert bench.doubts == isinstance(proof, Refused)


@pytest.mark.parametrize("missing", ["broker", "topic"])
async def test_without_brokers_or_topics_nothing_is_planned(missing: str) -> None:
    """Without any broker or topic, a leader plans nothing: a restart of Kafka must not revoke all partitions."""
    bench = Bench(DONE)
    if missing == "broker":
        bench.znodes.brokers = []
    else:
        del bench.znodes.nodes[topic_path("t")]
    await bench.plan("plans_withheld")
    assert bench.znodes.written == []


async def test_brokers_that_are_found_again_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    """One line reports that no broker is found, however often the leader looks, and one that it plans again."""
    bench = Bench(DONE)
    bench.znodes.brokers = []
    async with bench.leading():
        for looks in (1, 2):
            await soon(lambda looks=looks: bench.metrics.total("plans_withheld") == looks, "a plan was withheld")
            if looks == 2:
                bench.znodes.brokers = ["0"]
            watcher = bench.znodes.watchers[BROKER_IDS]
            assert watcher is not None
            watcher()
        await soon(lambda: bench.metrics.total("generations_published"), "a generation was published")
    assert caplog.text.count("no broker found; keeping the current plan") == 1
    assert caplog.text.count("brokers and topics found; planning") == 1


async def test_an_allocator_that_does_not_return_is_replaced() -> None:
    """An allocator that does not return within its time limit is replaced by the sticky allocator."""
    released = threading.Event()

    def hanging(members: list[str], partitions: list[str]) -> Mapping[str, Mapping[str, Collection[int]]]:
        released.wait()
        return {}

    bench = Bench(DONE, hanging, allocator_ms=10)
    try:
        await bench.plan("generations_published")
    finally:
        released.set()
    assert bench.group_state is not None
    assert bench.group_state.fallback.startswith("sticky used: allocator hanging did not return within")


async def test_an_unreadable_group_state_does_not_prevent_a_plan() -> None:
    """An unreadable group state is counted, and the next plan overwrites it."""
    bench = Bench(DONE)
    bench.znodes.nodes[LAYOUT.group_state] = b"\xff"
    await bench.plan("generations_published")
    assert bench.metrics.total("znodes_unreadable") == 1


@pytest.mark.parametrize("partition", [0, 1])
async def test_nothing_moves_while_a_static_member_is_away(partition: int) -> None:
    """
    While a static member is away, no partition moves, even if the allocator ignores the current owners, as round robin
    does.
    """
    bench = Bench(DONE)
    bench.store_assignments(partition)
    await bench.plan("generations_published")
    assert bench.assignment("i").away_since_ms is not None
    assert bench.assignment("i").partitions == {TopicPartition("t", partition)}
    assert bench.assignment("m").partitions == {TopicPartition("t", 1 - partition)}


async def test_the_partitions_of_an_absent_static_member_move_when_its_grace_ends() -> None:
    """
    When the grace of an absent static member ends, its partitions move. No watch fires at that time, so the leader has
    a timer.
    """
    bench = Bench(DONE, grace_ms=20)
    bench.store_assignments(0)
    async with bench.leading():
        await soon(lambda: len(bench.assignment("m").partitions) == 2, "m has both partitions")


async def test_a_returning_static_member_bypasses_the_debounce() -> None:
    """When a static member returns, a plan is made at once, even if other changes would wait for an hour."""
    bench = Bench(DONE, quiet_ms=3_600_000, grace_ms=3_600_000)
    bench.store_assignments(0)
    async with bench.leading():
        await soon(lambda: bench.metrics.total("generations_published"), "a generation was published")
        bench.znodes.nodes[LAYOUT.member("back")] = replace(INFO, member_id="back", instance_id="i").encode()
        watcher = bench.znodes.watchers[LAYOUT.members]
        assert watcher is not None
        watcher()
        await soon(lambda: bench.assignment("i").member_id == "back", "the slot has its new member")


async def test_a_confirmed_leader_reads_everything_again() -> None:
    """
    A leader that is confirmed by a regular election check reads all znodes again, and so finds a change whose watch was
    lost.
    """
    bench = Bench(DONE)
    async with bench.leading() as driver:
        await soon(lambda: bench.metrics.total("generations_published"), "a generation was published")
        bench.znodes.nodes[topic_path("t")] = b'{"version":1,"partitions":{"0":[0],"1":[0],"2":[0]}}'
        driver.lead(CANDIDATE, succeeds=False)
        await soon(lambda: len(bench.assignment("m").partitions) == 3, "m has the new partition")
