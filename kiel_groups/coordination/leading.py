"""The driver of a leader: performs what ``group.leader`` decides, on one member's session."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from kiel_groups.allocators import Allocator, allocator_name, run_allocator, sticky
from kiel_groups.config import GroupConfig
from kiel_groups.coordination.machine import in_thread, wall_ms
from kiel_groups.coordination.session import Node, Session, gather_some
from kiel_groups.coordination.tasks import TaskSet
from kiel_groups.errors import AllocatorError, CoordinationError, ProtocolError, SessionLostError
from kiel_groups.group import leader
from kiel_groups.group.layout import BROKER_IDS, GroupLayout, topic_path
from kiel_groups.group.planning import Inputs, Target, describe_change, fallback_target, plan
from kiel_groups.group.transactions import Answer, Check, Done, Operation, Refused
from kiel_groups.group.znodes import MemberInfo, Pointer, Slice, parse_topic
from kiel_groups.metrics import Metrics
from kiel_groups.model import MemberId

__all__ = ["Leading"]

log = logging.getLogger(__name__)

_Parsed = TypeVar("_Parsed")


class Leading:
    """
    What a member does for its group while it leads; it exists, idle, in every member.

    ``on_doubt`` is called when ZooKeeper does not confirm that this member's election znode is there.
    """

    def __init__(
        self,
        session: Session,
        layout: GroupLayout,
        member_id: MemberId,
        config: GroupConfig,
        allocator: Allocator,
        tasks: TaskSet,
        metrics: Metrics,
        on_doubt: Callable[[], None],
    ) -> None:
        self._session = session
        self._layout = layout
        self._member_id = member_id
        self._config = config
        self._allocator = allocator
        self._tasks = tasks
        self._metrics = metrics
        self._on_doubt = on_doubt
        self._state = leader.Leader(config.debounce)
        self._timer: asyncio.TimerHandle | None = None
        # What the last published plan was made from, and what the newest plan was made from.
        self._before: Inputs | None = None
        self._planned_from: Inputs | None = None
        self._watchers: dict[str, Callable[[], None]] = {}

    @property
    def is_leader(self) -> bool:
        return self._state.duty is not leader.Duty.NONE

    def lead(self, candidate: str) -> None:
        """This member was elected, or leads on."""
        if not self.is_leader:
            log.info("group %s: %s leads", self._layout.group, self._member_id)
            self._metrics.count("elections_won")
            self._before = None
        self._feed(leader.Elected(candidate, _now_s()))

    def resign(self) -> None:
        """This member leads no more."""
        log.info("group %s: %s leads no more", self._layout.group, self._member_id)
        self._feed(leader.Deposed())

    def changed(self, cause: str) -> None:
        """Something may have changed: look again."""
        self._feed(leader.Changed(cause, _now_s()))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _feed(self, event: leader.Event) -> None:
        self._state, effects = leader.step(self._state, event)
        for effect in effects:
            match effect:
                case leader.MakePlan(term, candidate, cause):
                    self._tasks.start(self._make_plan(term, candidate, cause))
                case leader.Prepare(term, folders):
                    self._tasks.start(self._prepare(term, folders))
                case leader.Write(term, operations):
                    self._tasks.start(self._write(term, operations))
                case leader.Published(generation, moved):
                    self._published(generation, moved)
        self._set_timer()

    def _set_timer(self) -> None:
        self.close()
        due_s = self._state.due_s
        if due_s is not None:
            delay_s = max(0.0, due_s - _now_s())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._feed(leader.Tick(_now_s()))

    async def _prepare(self, term: int, folders: tuple[str, ...]) -> None:
        failed = False
        try:
            await self._session.ensure(folders)
        except SessionLostError:
            raise
        except CoordinationError as error:
            log.error("group %s: %s; again soon", self._layout.group, error)
            failed = True
        self._feed(leader.Prepared(term, _now_s(), failed))

    async def _write(self, term: int, operations: tuple[Operation, ...]) -> None:
        answer = await self._session.transact(operations)
        self._check(answer, "a publication was interrupted")
        self._feed(leader.Written(term, answer, _now_s()))

    def _check(self, answer: Answer, what: str) -> bool:
        """Whether a write that begins with the proof of leadership was done; says so where it was not."""
        if isinstance(answer, Done):
            return True
        log.warning("group %s: %s (%s); planning anew", self._layout.group, what, answer)
        self._metrics.count("publications_interrupted")
        if isinstance(answer, Refused) and answer.index == 0:
            self._on_doubt()
        return False

    def _published(self, generation: int, moved: int) -> None:
        self._before = self._planned_from
        self._metrics.count("generations_published")
        self._metrics.gauge("generation", generation)
        log.info("group %s: generation %d is published, %d partitions move", self._layout.group, generation, moved)

    async def _make_plan(self, term: int, candidate: str, cause: str) -> None:
        """Prove leadership, read, allocate, compare."""
        try:
            proof = await self._session.transact([Check(candidate)])
            if not self._check(proof, "leadership could not be proved"):
                self._feed(leader.Planned(term, None, _now_s(), failed=True))
                return
            inputs = await self._gather()
            cause = describe_change(self._before, inputs) or cause
            publication = None
            if self._may_plan(inputs):
                target = await self._allocate(inputs)
                publication = plan(
                    self._layout,
                    inputs,
                    target,
                    leader=self._member_id,
                    candidate=candidate,
                    cause=cause,
                    now_ms=wall_ms(),
                )
                if publication is None:
                    self._before = inputs
                self._planned_from = inputs
        except SessionLostError:
            raise
        except Exception:
            # A leader that stops planning leaves partitions without an owner: say so, and go on trying.
            log.exception("group %s: no plan could be made; again soon", self._layout.group)
            self._metrics.count("plans_failed")
            self._feed(leader.Planned(term, None, _now_s(), failed=True))
            return
        self._feed(leader.Planned(term, publication, _now_s()))

    def _may_plan(self, inputs: Inputs) -> bool:
        """With no broker or no topic in sight, what is allocated stays allocated."""
        if inputs.subscribed and (not inputs.brokers or not inputs.topics):
            missing = "broker" if not inputs.brokers else "topic of its subscription"
            log.warning("group %s: no %s in sight, the allocation stays as it is", self._layout.group, missing)
            self._metrics.count("plans_withheld")
            return False
        return True

    async def _gather(self) -> Inputs:
        """Read everything that a plan is made from, and watch what may change."""
        brokers = await self._session.children(BROKER_IDS, self._watcher("brokers")) or []
        members = await self._members()
        topics = await self._topics(sorted({topic for member in members.values() for topic in member.subscription}))
        pointer = await self._session.get(self._layout.pointer)
        slots = await self._session.children(self._layout.pointer) or []
        slices = await self._session.get_many([self._layout.slice(slot) for slot in slots])
        return Inputs(
            members=members,
            topics=topics,
            brokers=len(brokers),
            pointer=None if pointer is None else self._parsed(Pointer.parse, pointer, self._layout.pointer),
            pointer_version=None if pointer is None else pointer.version,
            slices={
                slot: self._parsed(Slice.parse, node, self._layout.slice(slot))
                for slot, node in zip(slots, slices, strict=True)
                if node is not None
            },
        )

    def _watcher(self, what: str) -> Callable[[], None]:
        """One watcher a kind of change, so that watches that are set again do not pile up."""
        return self._watchers.setdefault(what, partial(self.changed, f"{what} changed"))

    async def _members(self) -> dict[MemberId, MemberInfo]:
        names = sorted(await self._session.children(self._layout.members, self._watcher("members")) or ())
        nodes = await self._session.get_many([self._layout.member(name) for name in names])
        members = {}
        for name, node in zip(names, nodes, strict=True):
            if node is None:
                continue
            info = self._parsed(partial(MemberInfo.parse, name), node, self._layout.member(name))
            if info is not None:
                members[name] = info
        return members

    async def _topics(self, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
        found = await gather_some(self._topic, names)
        return {name: partitions for name, partitions in zip(names, found, strict=True) if partitions is not None}

    async def _topic(self, name: str) -> tuple[int, ...] | None:
        """The partitions of a topic, None where there is none; a watch stands in either case."""
        path, watcher = topic_path(name), self._watcher(f"topic {name}")
        node = await self._session.get(path, watcher)
        if node is None and await self._session.exists(path, watcher) is not None:
            node = await self._session.get(path, watcher)
        return None if node is None else self._parsed(parse_topic, node, path)

    def _parsed(self, parse: Callable[[bytes, str], _Parsed], node: Node, path: str) -> _Parsed | None:
        """A znode's value; what cannot be read is left out, loudly."""
        try:
            return parse(node.data, path)
        except ProtocolError as error:
            log.error("group %s: %s; it is left out", self._layout.group, error)
            self._metrics.count("znodes_unreadable")
            return None

    async def _allocate(self, inputs: Inputs) -> Target:
        subscriptions = {member.member_id: member.subscription for member in inputs.members.values()}
        try:
            return await self._run(self._allocator, subscriptions, inputs)
        except AllocatorError as error:
            self._metrics.count("allocator_failures")
            fresh = await self._run(sticky, subscriptions, inputs)
            target = fallback_target(inputs, fresh, str(error))
            log.error("group %s: %s", self._layout.group, target.fallback)
            return target

    async def _run(
        self, allocator: Allocator, subscriptions: Mapping[MemberId, tuple[str, ...]], inputs: Inputs
    ) -> Target:
        """Run an allocator on a thread: it is the user's code and may take its time."""
        name = allocator_name(allocator)
        run = partial(run_allocator, allocator, subscriptions, inputs.partitions, inputs.stored)
        started_s = _now_s()
        try:
            outcome = await asyncio.wait_for(in_thread(run, "allocator"), self._config.allocator_timeout_ms / 1000)
        except TimeoutError:
            limit_s = self._config.allocator_timeout_ms / 1000
            raise AllocatorError(f"allocator {name} did not return within {limit_s:g} s") from None
        self._metrics.observe("allocator", _now_s() - started_s)
        return Target(allocation=outcome.allocation, unassigned=outcome.unassigned, allocator=name)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
