"""What a leader asks ZooKeeper for before it plans, in which order, and what it then writes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kiel_groups.allocators import round_robin
from kiel_groups.config import DebounceConfig, GroupConfig
from kiel_groups.coordination.leader.leader_driver import LeaderDriver
from kiel_groups.coordination.session.session_tasks import TaskSet
from kiel_groups.coordination.session.zk_session import Node
from kiel_groups.group.znodes.contents import GroupState, MemberAssignment, MemberInfo
from kiel_groups.group.znodes.layout import BROKER_IDS, GroupLayout, topic_path
from kiel_groups.group.znodes.transactions import Answer, Check, Create, Done, Failure, Operation, Put, Refused, Unknown
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit

LAYOUT = GroupLayout("g")
CANDIDATE = f"{LAYOUT.election}/c"
INFO = MemberInfo(member_id="m", session_timeout_ms=1, subscription=("t",))
MEMBER = INFO.encode()
TOPIC = b'{"version":1,"partitions":{"0":[0],"1":[0]}}'

Watcher = Callable[[], None]


class Znodes:
    """
    Stands for a session: one member, one topic; takes note of what it is asked for, in order, and of what is written.

    ``watchers`` are those of the last look at the children of a znode.
    """

    def __init__(self, proof: Answer) -> None:
        self.client = SimpleNamespace(chroot="")
        self.asked: list[str] = []
        self.written: list[Operation] = []
        self.brokers = ["0"]
        self.nodes = {LAYOUT.member("m"): MEMBER, topic_path("t"): TOPIC}
        self.watchers: dict[str, Watcher | None] = {}
        self._proof = proof

    async def submit(self, operations: Sequence[Operation]) -> Answer:
        """A coroutine: what it is asked for first is what is sent first, as with the real one."""
        self.asked.append("proof")
        assert list(operations) == [Check(CANDIDATE)]
        return self._proof

    async def transact(self, operations: Iterable[Operation]) -> Answer:
        listed = list(operations)
        self.written += listed
        self.nodes |= {each.path: each.data for each in listed if isinstance(each, Create | Put)}
        return Done((None,) * len(listed), (None,) * len(listed))

    async def ensure(self, folders: Collection[str]) -> None:
        """All are there."""

    async def children(self, path: str, watcher: Watcher | None = None) -> list[str] | None:
        self.asked.append(path)
        self.watchers[path] = watcher
        below = [name for folder, _, name in (each.rpartition("/") for each in self.nodes) if folder == path]
        return self.brokers if path == BROKER_IDS else below or None

    async def get(self, path: str, watcher: Watcher | None = None) -> Node | None:
        return (await self.get_many([path]))[0]

    async def get_many(self, paths: Sequence[str], watchers: object = None) -> list[Node | None]:
        self.asked += paths
        return [Node(self.nodes[path], 0, 1, 1, 0) if path in self.nodes else None for path in paths]

    async def exists(self, path: str, watcher: Watcher) -> Node | None:
        return None

    async def exists_many(self, paths: Sequence[str], watchers: object = None) -> list[Node | None]:
        return [None for _ in paths]

    async def children_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        return [None for _ in paths]


class Bench:
    """A leader that has just been elected; it plans at once."""

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
        """Lead until something was counted."""
        async with self.leading():
            await self.come_true(lambda: self.metrics.total(until))

    @asynccontextmanager
    async def leading(self) -> AsyncIterator[LeaderDriver]:
        """Lead for the block."""
        tasks = TaskSet(self._failures.append)
        leading = LeaderDriver(
            cast(Any, self.znodes), LAYOUT, "m", self._config, self._allocator, tasks, self.metrics, self._doubt
        )
        leading.lead(CANDIDATE, succeeds=False)
        try:
            yield leading
        finally:
            leading.close()
            await tasks.cancel()
        assert not self._failures

    async def come_true(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(5.0):
            while not condition():  # noqa: ASYNC110 -- metrics have no listeners
                await asyncio.sleep(0.001)

    def went(self, partition: int) -> None:
        """There is a place of a static member, which just went, with one partition; ``m`` has the other one."""
        for slot, member, number in (("i", "gone", partition), ("m", "m", 1 - partition)):
            self.znodes.nodes[LAYOUT.assignment(slot)] = MemberAssignment(
                1, member, frozenset({TopicPartition("t", number)})
            ).encode()

    def assignment(self, slot: str) -> MemberAssignment:
        """As it stands there."""
        return MemberAssignment.parse(self.znodes.nodes[LAYOUT.assignment(slot)], slot)

    def _doubt(self) -> None:
        self.doubts += 1

    @property
    def group_state(self) -> GroupState | None:
        """The last that was written."""
        written = [
            each for each in self.znodes.written if isinstance(each, Create | Put) and each.path == LAYOUT.group_state
        ]
        return GroupState.parse(written[-1].data, LAYOUT.group_state) if written else None


DONE = Done((None,), (None,))


async def test_a_leader_proves_itself_before_it_reads() -> None:
    """Sent first, answered first: what is read is no older than the proof."""
    bench = Bench(DONE)
    await bench.plan("generations_published")
    assert bench.znodes.asked[0] == "proof"
    assert len(bench.znodes.asked) > 5
    assert bench.group_state is not None
    assert bench.group_state.partitions == 2


@pytest.mark.parametrize("proof", [Refused(0, Failure.NO_NODE), Unknown()], ids=["refused", "unknown"])
async def test_without_a_proof_nothing_is_planned(proof: Answer) -> None:
    """What was read may be old, or somebody else's business by now; a refusal makes it look at the candidates."""
    bench = Bench(proof)
    await bench.plan("publications_interrupted")
    assert bench.znodes.written == []
    assert bench.doubts == isinstance(proof, Refused)


@pytest.mark.parametrize("missing", ["broker", "topic"])
async def test_with_nothing_in_sight_nothing_is_planned(missing: str) -> None:
    """A Kafka that is being restarted must not take everybody's partitions away."""
    bench = Bench(DONE)
    if missing == "broker":
        bench.znodes.brokers = []
    else:
        del bench.znodes.nodes[topic_path("t")]
    await bench.plan("plans_withheld")
    assert bench.znodes.written == []


async def test_brokers_that_are_in_sight_again_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    """As loudly as their absence was, and once."""
    bench = Bench(DONE)
    bench.znodes.brokers = []
    async with bench.leading():
        await bench.come_true(lambda: bench.metrics.total("plans_withheld"))
        assert "no broker found; keeping the current allocation" in caplog.text
        bench.znodes.brokers = ["0"]
        tell = bench.znodes.watchers[BROKER_IDS]
        assert tell is not None
        tell()
        await bench.come_true(lambda: bench.metrics.total("generations_published"))
    assert caplog.text.count("brokers and topics found again; planning") == 1


async def test_an_allocator_that_does_not_return_is_replaced() -> None:
    """It is the user's code, on a thread of its own: a plan is made without it."""
    over = threading.Event()

    def hanging(members: list[str], partitions: list[str]) -> Mapping[str, Mapping[str, Collection[int]]]:
        over.wait()
        return {}

    bench = Bench(DONE, hanging, allocator_ms=10)
    try:
        await bench.plan("generations_published")
    finally:
        over.set()
    assert bench.group_state is not None
    assert bench.group_state.fallback.startswith("sticky used: allocator hanging did not return within")


async def test_what_cannot_be_read_is_left_out() -> None:
    """One bad znode does not keep the group from its plan."""
    bench = Bench(DONE)
    bench.znodes.nodes[LAYOUT.group_state] = b"\xff"
    await bench.plan("generations_published")
    assert bench.metrics.total("znodes_unreadable") == 1


@pytest.mark.parametrize("partition", [0, 1])
async def test_while_somebody_is_away_nothing_moves(partition: int) -> None:
    """Not even for an allocator that always hands out in the same order, whoever has what."""
    bench = Bench(DONE)
    bench.went(partition)
    await bench.plan("generations_published")
    assert bench.assignment("i").away_since_ms is not None
    assert bench.assignment("i").partitions == {TopicPartition("t", partition)}
    assert bench.assignment("m").partitions == {TopicPartition("t", 1 - partition)}


async def test_a_place_that_was_kept_is_given_away_when_its_grace_ends() -> None:
    """Nobody tells of that: the leader looks at its clock."""
    bench = Bench(DONE, grace_ms=20)
    bench.went(0)
    async with bench.leading():
        await bench.come_true(lambda: len(bench.assignment("m").partitions) == 2)


async def test_who_returns_to_a_place_that_was_kept_does_not_wait_for_others() -> None:
    """Nothing is to be gathered for it: however long the quiet is that other changes wait for."""
    bench = Bench(DONE, quiet_ms=3_600_000, grace_ms=3_600_000)
    bench.went(0)
    async with bench.leading():
        await bench.come_true(lambda: bench.metrics.total("generations_published"))
        bench.znodes.nodes[LAYOUT.member("back")] = replace(INFO, member_id="back", instance_id="i").encode()
        watcher = bench.znodes.watchers[LAYOUT.members]
        assert watcher is not None
        watcher()
        await bench.come_true(lambda: bench.assignment("i").member_id == "back")


async def test_a_leader_that_leads_on_reads_again_what_it_watched() -> None:
    """A watch may be lost, and a regular look is what finds the change."""
    bench = Bench(DONE)
    async with bench.leading() as leading:
        await bench.come_true(lambda: bench.metrics.total("generations_published"))
        bench.znodes.nodes[topic_path("t")] = b'{"version":1,"partitions":{"0":[0],"1":[0],"2":[0]}}'
        leading.lead(CANDIDATE, succeeds=False)
        await bench.come_true(lambda: len(bench.assignment("m").partitions) == 3)
