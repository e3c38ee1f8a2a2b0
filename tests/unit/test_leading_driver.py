"""What a leader asks ZooKeeper for before it plans, in which order, and what it then writes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kiel_groups.allocators import round_robin
from kiel_groups.config import DebounceConfig, GroupConfig
from kiel_groups.coordination.leading import Leading
from kiel_groups.coordination.session import Node
from kiel_groups.coordination.tasks import TaskSet
from kiel_groups.group.layout import BROKER_IDS, GroupLayout, topic_path
from kiel_groups.group.transactions import Answer, Check, Create, Done, Failure, Operation, Put, Refused, Unknown
from kiel_groups.group.znodes import MemberInfo, Pointer
from kiel_groups.metrics import Metrics

pytestmark = pytest.mark.unit

LAYOUT = GroupLayout("g")
CANDIDATE = f"{LAYOUT.election}/c"
MEMBER = MemberInfo(member_id="m", session_timeout_ms=1, subscription=("t",)).encode()
TOPIC = b'{"version":1,"partitions":{"0":[0],"1":[0]}}'

Watcher = Callable[[], None]


class Znodes:
    """Stands for a session: one member, one topic; takes note of what it is asked for, in order."""

    def __init__(self, proof: Answer) -> None:
        self.client = SimpleNamespace(chroot="")
        self.asked: list[str] = []
        self.written: list[Operation] = []
        self.brokers = ["0"]
        self.nodes = {LAYOUT.member("m"): MEMBER, topic_path("t"): TOPIC}
        self._proof = proof

    async def submit(self, operations: Sequence[Operation]) -> Answer:
        """A coroutine: what it is asked for first is what is sent first, as with the real one."""
        self.asked.append("proof")
        assert list(operations) == [Check(CANDIDATE)]
        return self._proof

    async def transact(self, operations: Iterable[Operation]) -> Answer:
        listed = list(operations)
        self.written += listed
        return Done((None,) * len(listed), (None,) * len(listed))

    async def ensure(self, folders: Collection[str]) -> None:
        """All are there."""

    async def children(self, path: str, watcher: Watcher | None = None) -> list[str] | None:
        self.asked.append(path)
        return {LAYOUT.members: ["m"], BROKER_IDS: self.brokers}.get(path)

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

    def __init__(self, proof: Answer, allocator: Any = round_robin) -> None:
        self.znodes, self.metrics = Znodes(proof), Metrics()
        self.doubts = 0
        self._failures: list[BaseException] = []
        self._config = GroupConfig(
            group="g", debounce=DebounceConfig(quiet_ms=0, bound_ms=0, initial_delay_ms=0), allocator_timeout_ms=10
        )
        self._allocator = allocator

    async def plan(self, until: str) -> None:
        """Lead until something was counted."""
        tasks = TaskSet(self._failures.append)
        leading = Leading(
            cast(Any, self.znodes), LAYOUT, "m", self._config, self._allocator, tasks, self.metrics, self._doubt
        )
        leading.lead(CANDIDATE, succeeds=False)
        try:
            async with asyncio.timeout(5.0):
                while not self.metrics.total(until):  # noqa: ASYNC110 -- metrics have no listeners
                    await asyncio.sleep(0.001)
        finally:
            leading.close()
            await tasks.cancel()
        assert not self._failures

    def _doubt(self) -> None:
        self.doubts += 1

    @property
    def pointer(self) -> Pointer | None:
        """The last that was written."""
        written = [
            each for each in self.znodes.written if isinstance(each, Create | Put) and each.path == LAYOUT.pointer
        ]
        return Pointer.parse(written[-1].data, LAYOUT.pointer) if written else None


DONE = Done((None,), (None,))


async def test_a_leader_proves_itself_before_it_reads() -> None:
    """Sent first, answered first: what is read is no older than the proof."""
    bench = Bench(DONE)
    await bench.plan("generations_published")
    assert bench.znodes.asked[0] == "proof"
    assert len(bench.znodes.asked) > 5
    assert bench.pointer is not None
    assert bench.pointer.partitions == 2


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


async def test_an_allocator_that_does_not_return_is_replaced() -> None:
    """It is the user's code, on a thread of its own: a plan is made without it."""
    over = threading.Event()

    def hanging(members: list[str], partitions: list[str]) -> Mapping[str, Mapping[str, Collection[int]]]:
        over.wait()
        return {}

    bench = Bench(DONE, hanging)
    try:
        await bench.plan("generations_published")
    finally:
        over.set()
    assert bench.pointer is not None
    assert bench.pointer.fallback.startswith("sticky used: allocator hanging did not return within")


async def test_what_cannot_be_read_is_left_out() -> None:
    """One bad znode does not keep the group from its plan."""
    bench = Bench(DONE)
    bench.znodes.nodes[LAYOUT.pointer] = b"\xff"
    await bench.plan("generations_published")
    assert bench.metrics.total("znodes_unreadable") == 1
