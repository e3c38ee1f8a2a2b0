"""Make the plans of a group of consumers: read the inputs, allocate partitions, compare with the published plan."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial

from kiel_groups.allocators import Allocator, allocator_name, named_allocator, run_allocator, sticky
from kiel_groups.coordination.leader.foreign_members import ForeignMemberMonitor
from kiel_groups.coordination.leader.leader_driver import MakePlan, PlanRequests
from kiel_groups.coordination.leader.ownership_monitor import OwnershipMonitor
from kiel_groups.coordination.leader.plan_reader import PlanReader
from kiel_groups.coordination.session.session_context import SessionContext
from kiel_groups.errors import AllocatorError
from kiel_groups.group.leader.claim_limit import limit_claims
from kiel_groups.group.leader.planner import (
    Inputs,
    Publication,
    Target,
    describe_allocator,
    describe_change,
    fallback_target,
    plan,
    still_fits,
)
from kiel_groups.group.leader.static_members import next_end_ms
from kiel_groups.model import Allocation, MemberId, Slot, TopicPartition
from kiel_groups.wording import counted

__all__ = ["PartitionPlanner"]

log = logging.getLogger(__name__)

#: Why a partition has no owner although members subscribe to its topic.
DRAINED = "all its subscribers are drained"


class PartitionPlanner:
    """
    Makes the plans of a group of consumers; see ``PlanMaker``.

    Args:
        context: The process on its session.
        allocator: Computes the assignments.
        requests: Asks the leader to plan.
    """

    def __init__(self, context: SessionContext, allocator: Allocator, requests: PlanRequests) -> None:
        self._session = context.session
        self._layout = context.layout
        self._member_id = context.member_id
        self._config = context.config
        self._tasks = context.tasks
        self._metrics = context.metrics
        self._runtime = context.runtime
        self._allocator = allocator
        self._requests = requests
        # The inputs of the last published plan, and the inputs of the newest plan.
        self._before: Inputs | None = None
        self._planned_from: Inputs | None = None
        self._reader = PlanReader(context, self._on_change)
        self._ownership_monitor = OwnershipMonitor(context)
        self._foreign_members = ForeignMemberMonitor(context)
        #: The owner of each partition in the newest plan.
        self._wanted: dict[TopicPartition, MemberId] = {}
        #: The allocation of the newest plan.
        self._allocation: Allocation = {}
        self._grace_timer: asyncio.TimerHandle | None = None
        #: Whether the last plan was withheld because no broker or no topic was found.
        self._withheld = False
        #: The cause of the newest plan, for the log.
        self._cause = ""

    @property
    def alone(self) -> bool:
        """Whether the newest plan knows of no other member."""
        known = self._planned_from
        return known is not None and {m.member_id for m in known.members.values()} <= {self._member_id}

    def begin(self) -> None:
        """Forget the plans of an earlier term."""
        self._before = None

    def forget(self) -> None:
        """Read everything again for the next plan, and the foreign members now."""
        self._reader.forget()
        self._foreign_members.start()

    def stop(self) -> None:
        """Stop the timer and the monitors."""
        if self._grace_timer is not None:
            self._grace_timer.cancel()
            self._grace_timer = None
        self._ownership_monitor.stop()
        self._foreign_members.stop()

    def _on_change(self, cause: str) -> None:
        self._requests.changed(cause)
        if self._requests.is_leader and self._planned_from is not None and self._planned_from.away:
            self._tasks.start(self._check_returned(tuple(self._planned_from.away)))

    async def _check_returned(self, away: tuple[Slot, ...]) -> None:
        """Plan at once if a static member is back: its partitions were kept, so no debounce is necessary."""
        if await self._reader.returned(away):
            self._requests.changed("return", urgent=True)

    async def read(self) -> MakePlan:
        """Read the inputs of the next plan, and return the function that makes it."""
        return partial(self._plan, await self._reader.read())

    async def _plan(self, inputs: Inputs, candidate: str, cause: str, since_s: float) -> Publication | None:
        """Run the allocator on the inputs, and compare its result with the published plan."""
        self._apply_dynamic_config(inputs)
        if not self._may_plan(inputs):
            return None
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
        return publication

    def published(self, generation: int, moved: int) -> None:
        """Log the plan, and monitor its owners."""
        self._monitor_owners()
        group, cause = self._layout.group, self._cause
        moves = counted(moved, "partition moves", "partitions move")
        log.info("group %s: generation %d is published, %s: %s", group, generation, moves, cause)

    def _monitor_owners(self) -> None:
        """Record that the newest plan is the published one, and monitor its owners."""
        assert self._planned_from is not None
        self._before = self._planned_from
        self._ownership_monitor.expect(self._wanted, {member.member_id for member in self._before.members.values()})

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
        self._requests.set_debounce(inputs.dynamic_config.debounced(self._config.debounce))
        if self._grace_timer is not None:
            self._grace_timer.cancel()
            self._grace_timer = None
        end_ms = next_end_ms(inputs.away, self._reader.grace_ms)
        if end_ms is not None:
            delay_s = max(0.0, (end_ms - self._runtime.wall_ms()) / 1000)
            self._grace_timer = asyncio.get_running_loop().call_later(delay_s, self._requests.changed, "end of grace")

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
