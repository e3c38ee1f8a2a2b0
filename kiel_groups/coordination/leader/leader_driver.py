"""The driver of a leader: it performs what ``group.leader.leader_state`` decides, on one session."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from kiel_groups.allocators import Allocator, allocator_name, named_allocator, run_allocator, sticky
from kiel_groups.coordination.leader.ownership_monitor import OwnershipMonitor
from kiel_groups.coordination.leader.plan_reader import PlanReader
from kiel_groups.coordination.session.session_context import SessionContext
from kiel_groups.errors import AllocatorError, CoordinationError, SessionLostError
from kiel_groups.group.leader import leader_state
from kiel_groups.group.leader.claim_limit import limit_claims
from kiel_groups.group.leader.planner import (
    Inputs,
    Target,
    describe_allocator,
    describe_change,
    fallback_target,
    plan,
    still_fits,
)
from kiel_groups.group.leader.static_members import next_end_ms
from kiel_groups.group.znodes.transactions import Answer, Check, Done, Operation, Refused
from kiel_groups.model import Allocation, MemberId, Slot, TopicPartition
from kiel_groups.wording import counted

__all__ = ["LeaderDriver"]

log = logging.getLogger(__name__)

#: Why a partition has no owner although members subscribe to its topic.
DRAINED = "all its subscribers are drained"


class LeaderDriver:
    """
    Plans and publishes assignments while this process leads its group. The driver is idle while another process leads.

    ``on_doubt`` is called when ZooKeeper does not confirm that this process's election znode exists.
    """

    def __init__(
        self,
        context: SessionContext,
        allocator: Allocator,
        on_doubt: Callable[[], None],
    ) -> None:
        self._session = context.session
        self._layout = context.layout
        self._member_id = context.member_id
        self._config = context.config
        self._tasks = context.tasks
        self._metrics = context.metrics
        self._runtime = context.runtime
        self._allocator = allocator
        self._on_doubt = on_doubt
        self._state = leader_state.LeaderState(context.config.debounce)
        self._timer: asyncio.TimerHandle | None = None
        # The inputs of the last published plan, and the inputs of the newest plan.
        self._before: Inputs | None = None
        self._planned_from: Inputs | None = None
        self._reader = PlanReader(context, self._on_change)
        self._ownership_monitor = OwnershipMonitor(context)
        #: The owner of each partition in the newest plan.
        self._wanted: dict[TopicPartition, MemberId] = {}
        #: The allocation of the newest plan.
        self._allocation: Allocation = {}
        #: The cause of the newest plan, for the log.
        self._cause = ""
        self._grace_timer: asyncio.TimerHandle | None = None
        #: Whether the last plan was withheld because no broker or no topic was found.
        self._withheld = False
        #: The folders of plans that exist.
        self._folders: set[str] = set()

    @property
    def is_leader(self) -> bool:
        return self._state.phase is not leader_state.LeaderPhase.NONE

    @property
    def alone(self) -> bool:
        """Whether this process leads and knows of no other member."""
        known = self._planned_from
        return (
            self.is_leader and known is not None and {m.member_id for m in known.members.values()} <= {self._member_id}
        )

    def lead(self, candidate: str, *, succeeds: bool) -> None:
        """
        Start to lead, or continue to lead with a fresh plan.

        ``succeeds`` is true if another candidate was ahead before.
        """
        if not self.is_leader:
            log.info("group %s: %s leads", self._layout.group, self._member_id)
            self._metrics.count("elections_won")
            self._before = None
        self._reader.forget()
        self._folders.clear()
        self._feed(leader_state.Elected(candidate, _now_s(), succeeds))

    def resign(self) -> None:
        """Stop leading."""
        log.info("group %s: %s is no longer the leader", self._layout.group, self._member_id)
        self._ownership_monitor.stop()
        self._feed(leader_state.Deposed())

    def changed(self, cause: str) -> None:
        """Plan again after the debounce, because inputs of the plan may have changed."""
        self._feed(leader_state.Changed(cause, _now_s()))

    def _on_change(self, cause: str) -> None:
        self.changed(cause)
        if self.is_leader and self._planned_from is not None and self._planned_from.away:
            self._tasks.start(self._check_returned(tuple(self._planned_from.away)))

    async def _check_returned(self, away: tuple[Slot, ...]) -> None:
        """Plan at once if a static member is back: its partitions were kept, so no debounce is necessary."""
        if await self._reader.returned(away):
            self._feed(leader_state.Changed("return", _now_s(), urgent=True))

    def close(self) -> None:
        """Cancel all timers."""
        for timer in (self._timer, self._grace_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._grace_timer = None
        self._ownership_monitor.stop()

    def _feed(self, event: leader_state.Event) -> None:
        self._state, effects = leader_state.step(self._state, event)
        for effect in effects:
            match effect:
                case leader_state.MakePlan(term, candidate, cause, since_s):
                    self._tasks.start(self._make_plan(term, candidate, cause, since_s))
                case leader_state.Prepare(term, folders):
                    self._tasks.start(self._prepare(term, folders))
                case leader_state.Write(term, operations):
                    self._tasks.start(self._write(term, operations))
                case leader_state.Published(generation, moved):
                    self._published(generation, moved)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_s = self._state.due_s
        if due_s is not None:
            delay_s = max(0.0, due_s - _now_s())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._feed(leader_state.Tick(_now_s()))

    async def _prepare(self, term: int, folders: tuple[str, ...]) -> None:
        failed = False
        missing = [folder for folder in folders if folder not in self._folders]
        try:
            if missing:
                await self._session.ensure(missing)
            self._folders.update(missing)
        except SessionLostError:
            raise
        except CoordinationError as error:
            log.error("group %s: %s; retrying soon", self._layout.group, error)
            failed = True
        self._feed(leader_state.Prepared(term, _now_s(), failed))

    async def _write(self, term: int, operations: tuple[Operation, ...]) -> None:
        answer = await self._session.transact(operations)
        self._check(answer, "a publication was interrupted")
        self._feed(leader_state.Written(term, answer, _now_s()))

    def _check(self, answer: Answer, what: str) -> bool:
        """
        Return whether a transaction that first checks the election znode was executed.

        If it was not, log a warning. If the check of the election znode failed, call ``on_doubt``.
        """
        if isinstance(answer, Done):
            return True
        log.warning("group %s: %s (%s); planning again", self._layout.group, what, answer)
        self._metrics.count("publications_interrupted")
        # An operator may have deleted some of these folders. Without them, every publication would be refused.
        self._folders.clear()
        if isinstance(answer, Refused) and answer.index == 0:
            self._on_doubt()
        return False

    def _published(self, generation: int, moved: int) -> None:
        self._monitor_owners()
        self._metrics.count("generations_published")
        self._metrics.gauge("generation", generation)
        group, cause = self._layout.group, self._cause
        moves = counted(moved, "partition moves", "partitions move")
        log.info("group %s: generation %d is published, %s: %s", group, generation, moves, cause)

    def _monitor_owners(self) -> None:
        """Record that the newest plan is the published one, and monitor its owners."""
        assert self._planned_from is not None
        self._before = self._planned_from
        self._ownership_monitor.expect(self._wanted, {member.member_id for member in self._before.members.values()})

    async def _make_plan(self, term: int, candidate: str, cause: str, since_s: float) -> None:
        """Prove leadership, read the inputs, run the allocator, and compare its result with the published plan."""
        try:
            # The server handles requests in order, so the reads follow the proof without waiting for its answer.
            proving = self._session.submit([Check(candidate)])
            proof, inputs = await asyncio.gather(proving, self._reader.read())
            if not self._check(proof, "leadership could not be proved"):
                self._feed(leader_state.Planned(term, None, _now_s(), failed=True))
                return
            self._apply_dynamic_config(inputs)
            publication = None
            if self._may_plan(inputs):
                target = limit_claims(await self._allocate(inputs), self._layout, self._session.client.chroot)
                cause = self._describe_cause(cause, inputs, target)
                publication = plan(
                    self._layout,
                    inputs,
                    target,
                    leader=self._member_id,
                    candidate=candidate,
                    cause=cause,
                    now_ms=self._runtime.wall_ms(),
                    took_ms=round(1000 * (_now_s() - since_s)),
                )
                self._planned_from, self._allocation, self._cause = inputs, target.allocation, cause
                self._wanted = {
                    partition: inputs.members[slot].member_id
                    for slot, owned in target.allocation.items()
                    if slot in inputs.members
                    for partition in owned
                }
                if publication is None:
                    self._monitor_owners()
        except SessionLostError:
            raise
        except Exception:
            # A leader that stops planning leaves partitions without an owner, so it retries after any error.
            log.exception("group %s: no plan could be made; retrying soon", self._layout.group)
            self._metrics.count("plans_failed")
            self._feed(leader_state.Planned(term, None, _now_s(), failed=True))
            return
        self._feed(leader_state.Planned(term, publication, _now_s()))

    def _describe_cause(self, cause: str, inputs: Inputs, target: Target) -> str:
        """Describe, for the log and the group state, why this plan differs from the last published one."""
        changed = describe_change(self._before, inputs) or (cause if self._before is None else "")
        described = ", ".join(filter(None, (changed, describe_allocator(inputs.group_state, target))))
        if described:
            return described
        if self._planned_from is not self._before:
            # The stored plan may come from an interrupted publication, for changes that have been undone since.
            return "publication interrupted"
        # An allocator may depend on data that no leader reads. Otherwise, an operator has changed the stored plan.
        stored, published, wanted = map(_owned, (inputs.stored, self._allocation, target.allocation))
        return "allocator" if stored == published != wanted else "manual"

    def _apply_dynamic_config(self, inputs: Inputs) -> None:
        """Apply the group's dynamic settings, and plan again when the next grace of a static member ends."""
        self._feed(leader_state.DebounceChanged(inputs.dynamic_config.debounced(self._config.debounce)))
        if self._grace_timer is not None:
            self._grace_timer.cancel()
            self._grace_timer = None
        end_ms = next_end_ms(inputs.away, self._reader.grace_ms)
        if end_ms is not None:
            delay_s = max(0.0, (end_ms - self._runtime.wall_ms()) / 1000)
            self._grace_timer = asyncio.get_running_loop().call_later(delay_s, self.changed, "end of grace")

    def _may_plan(self, inputs: Inputs) -> bool:
        """
        Return whether to plan.

        The leader does not plan if members subscribe to topics, but no broker or none of these topics was found.
        """
        if inputs.subscribed and (not inputs.brokers or not inputs.topics):
            missing = "broker" if not inputs.brokers else "topic of its subscription"
            log.warning("group %s: no %s found; keeping the current allocation", self._layout.group, missing)
            self._metrics.count("plans_withheld")
            self._withheld = True
            return False
        if self._withheld:
            self._withheld = False
            log.warning("group %s: brokers and topics found again; planning", self._layout.group)
        return True

    async def _allocate(self, inputs: Inputs) -> Target:
        allocator = self._allocator
        if inputs.dynamic_config.allocator is not None:
            allocator = named_allocator(inputs.dynamic_config.allocator, "allocator")
        try:
            target = await self._run(allocator, inputs)
        except AllocatorError as error:
            self._metrics.count("allocator_failures")
            fresh = await self._run(sticky, inputs)
            target = fallback_target(inputs, fresh, str(error))
            log.error("group %s: %s", self._layout.group, target.fallback)
            return target
        if inputs.away and still_fits(inputs):
            # While a static member is away, no partition moves unnecessarily; an allocator does not know of absences.
            target = replace(target, allocation=inputs.stored)
        return target

    async def _run(self, allocator: Allocator, inputs: Inputs) -> Target:
        """Run an allocator on a thread, because it is the user's code and may be slow."""
        name = allocator_name(allocator)
        run = partial(run_allocator, allocator, inputs.subscriptions, inputs.partitions, inputs.stored, inputs.weights)
        started_s = _now_s()
        try:
            async with asyncio.timeout(self._config.allocator_timeout_ms / 1000):
                outcome = await self._runtime.in_thread(run, "allocator")
        except TimeoutError:
            limit_s = self._config.allocator_timeout_ms / 1000
            raise AllocatorError(f"allocator {name} did not return within {limit_s:g} s") from None
        self._metrics.observe("allocator", _now_s() - started_s)
        unassigned = {
            partition: DRAINED if partition.topic in inputs.subscribed else reason
            for partition, reason in outcome.unassigned.items()
        }
        return Target(allocation=outcome.allocation, unassigned=unassigned, allocator=name)


def _owned(allocation: Allocation) -> Allocation:
    """Return the allocation without empty assignments. Departed members' empty assignments may remain for a while."""
    return {slot: partitions for slot, partitions in allocation.items() if partitions}


def _now_s() -> float:
    return asyncio.get_running_loop().time()
