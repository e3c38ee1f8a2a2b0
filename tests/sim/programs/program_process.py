"""One program of a simulated group: a real generic member on ZooKeeper, and hooks that share items."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kiel_groups.errors import ClosedError, CoordinationError, KielGroupsError
from kiel_groups.members.brokers.gate import GenerationGate
from kiel_groups.members.brokers.hooks import JoinedGroup
from kiel_groups.members.brokers.member import CoordinatedMember
from kiel_groups.members.programs.generic_member import member_on_zookeeper
from kiel_groups.metrics import Metrics
from kiel_groups.wire.group_requests import GroupProtocol
from kiel_groups.zookeeper.tasks import CloseLimit, ProcessContext
from tests.fakes.simulated_process import SimulatedProcess

if TYPE_CHECKING:
    from tests.sim.programs.program_world import ProgramWorld

__all__ = ["AssignmentError", "Program"]

#: The pause, in seconds, before a program whose member has stopped starts another one.
_AGAIN_S = 1.0
#: The protocols that programs know, and those of a stranger.
COMMON, STRANGE = ("eager", "plain"), ("odd",)


class AssignmentError(KielGroupsError):
    """Raised by ``perform_assignment`` if a scenario asks for it."""


class Program:
    """
    A process with one generic member, and the hooks of that member.

    ``held`` is the gate of the assignment that the program has: from the call of ``complete`` to the end of
    ``prepare``, or to ``lost``. ``items`` are those of that assignment.
    """

    protocol_type = "programs"

    def __init__(self, world: ProgramWorld, name: str, protocols: Sequence[str] = COMMON) -> None:
        self.world = world
        self.name = name
        self.offers = tuple(protocols)
        self.process = SimulatedProcess(world.ensemble, name)
        self.metrics = Metrics()
        self.offered: bytes = b""
        self.offered_count = 0
        self.held: GenerationGate | None = None
        self.items: frozenset[int] = frozenset()
        self.completed = 0
        #: Whether the next ``prepare`` does not end by itself, and whether the next assignment fails.
        self.hangs = self.fails = False
        #: Whether the next ``perform_assignment`` does not end by itself.
        self.hangs_assigning = False
        self.closing = self.closed = False
        self._running: list[str] = []
        self._hanging: asyncio.Event | None = None
        self._failed: asyncio.Event | None = None
        self.failure: KielGroupsError | None = None
        self.member: CoordinatedMember = self.process.call(self._new_member)
        self._runner = self.process.start(self._run())

    def _new_member(self) -> CoordinatedMember:
        self._failed = asyncio.Event()
        self.failure = None
        process = ProcessContext(
            self.world.group_config, self.world.zookeeper_config, self.metrics, self.process.runtime
        )
        return member_on_zookeeper(process, self, self.world.scenario.rebalance_timeout_ms, self._stopped)

    def _stopped(self, error: KielGroupsError) -> None:
        assert self._failed is not None
        self.failure = error
        self._failed.set()

    async def _run(self) -> None:
        while not self.closing:
            assert self._failed is not None
            try:
                await self.member.start()
                await self._failed.wait()
                assert self.failure is not None
                raise self.failure
            except ClosedError:
                raise
            except KielGroupsError as error:
                self.world.checker.stopped(self, error)
                await self.member.close()
                self.offers = COMMON
                await asyncio.sleep(_AGAIN_S)
                self.member = self._new_member()

    # Used by operations, and by the checker

    @property
    def is_running(self) -> bool:
        return not (self.process.killed or self.closing)

    @property
    def member_id(self) -> str:
        """The member id; "" if the program is no member."""
        token = self.member.token
        return "" if token is None else token.member_id

    @property
    def znode_id(self) -> str:
        """The id in the member znode, also before the first join is answered; "" if there is no session."""
        session = getattr(self.member._coordination, "_session", None)
        return "" if session is None or session.ended else str(session.member_id)

    @property
    def is_stable(self) -> bool:
        """Whether the member is stable, and the program has taken its assignment over."""
        return not self.member.need_rejoin and self.held is not None and not self._running

    def kill(self) -> None:
        """Kill the process, as SIGKILL does."""
        self.process.kill()
        self.held, self.items = None, frozenset()

    def request_rejoin(self) -> None:
        self.process.call(self.member.request_rejoin)

    def end_hang(self) -> None:
        """Have a hanging hook end."""
        self.hangs = self.hangs_assigning = False
        if self._hanging is not None and not self.process.killed:
            self.process.call(self._hanging.set)

    def leave(self, limit_s: float | None = None) -> None:
        """Leave the group, within a time limit if there is one."""
        if not self.closing:
            self.closing = True
            self.process.start(self._leave(limit_s))

    async def _leave(self, limit_s: float | None) -> None:
        self._runner.cancel()
        await asyncio.wait({self._runner})
        await self.member.close(CloseLimit(limit_s))
        self.closed = True
        self.world.checker.closed(self)

    # Hooks

    async def protocols(self) -> Sequence[GroupProtocol]:
        self._check(not self._running, "protocols during another hook")
        self._check(self.held is None, "protocols before the assignment is given back")
        self.offered_count += 1
        self.offered = json.dumps([self.name, self.offered_count]).encode()
        return [GroupProtocol(name, name.encode() + b":" + self.offered) for name in self.offers]

    async def perform_assignment(self, joined: JoinedGroup) -> Mapping[str, bytes]:
        self._enter("perform_assignment")
        try:
            self.world.checker.assigning(self, joined)
            if self.hangs_assigning:
                await self._hang()
            await self._pause(self.world.scenario.complete_s)
            if self.fails:
                self.fails = False
                raise AssignmentError("no assignment can be made")
            members = sorted(joined.members)
            items = {
                member: list(range(n, self.world.scenario.items, len(members))) for n, member in enumerate(members)
            }
            return {member: json.dumps([joined.protocol, numbers]).encode() for member, numbers in items.items()}
        finally:
            self._leave_hook("perform_assignment")

    async def complete(self, gate: GenerationGate, joined: JoinedGroup, assignment: bytes) -> None:
        self._check(self.held is None, "complete before the former assignment is given back")
        self.held = gate
        self.world.checker.completing(self, gate, joined, assignment)
        self._enter("complete")
        try:
            self.items = frozenset(json.loads(assignment)[1])
            await self._pause(self.world.scenario.complete_s)
            self.completed += 1
        finally:
            self._leave_hook("complete")

    async def prepare(self, gate: GenerationGate) -> None:
        # A member that rejoins right after its sync may cancel ``complete`` before it has begun.
        self._check(self.held in (gate, None), "prepare of another assignment")
        self._enter("prepare")
        try:
            if self.hangs:
                await self._hang()
            await self._pause(self.world.scenario.prepare_s)
            self.held, self.items = None, frozenset()
        finally:
            self._leave_hook("prepare")

    def lost(self, gate: GenerationGate) -> None:
        self._check(self.held in (gate, None), "lost of another assignment")
        self._check(gate.is_shut, "lost with an open gate")
        self.held, self.items = None, frozenset()

    async def _hang(self) -> None:
        self._hanging = asyncio.Event()
        try:
            await self._hanging.wait()
        finally:
            self._hanging = None

    async def _pause(self, most_s: float) -> None:
        await asyncio.sleep(self.world.timeline.random.uniform(0.0, most_s))

    def _enter(self, hook: str) -> None:
        self._check(not self._running, f"{hook} during {self._running}")
        self._running.append(hook)

    def _leave_hook(self, hook: str) -> None:
        self._running.remove(hook)

    def _check(self, holds: bool, what: str) -> None:
        if not holds:
            raise self.world.checker.violation(f"{self.name}: {what}")


def is_expected(error: KielGroupsError) -> bool:
    """Return whether a member may stop with this error because of the faults of a scenario."""
    return isinstance(error, AssignmentError) or (isinstance(error, CoordinationError) and error.retriable)
