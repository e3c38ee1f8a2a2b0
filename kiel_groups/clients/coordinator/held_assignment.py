"""The assignment that a member's program has, and the hook that runs for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from kiel_groups.backoff import Backoff
from kiel_groups.clients.coordinator.generation_gate import GenerationGate
from kiel_groups.clients.coordinator.member_hooks import JoinedGroup, MemberHooks, MemberSettings
from kiel_groups.errors import ProtocolError
from kiel_groups.wire.groups.consumer_protocol import PROTOCOL_TYPE

__all__ = ["HeldAssignment"]

log = logging.getLogger(__name__)

#: After how long a member whose assignment cannot be read joins again, in seconds; then after twice as long each time.
#: Each join is a rebalance of the whole group, and its leader may make the same mistake again.
FIRST_REJOIN_S, LONGEST_REJOIN_S = 1.0, 300.0


class _LeaseWords(NamedTuple):
    """What ends with a lease, and what continues with the next one, in the words of the log."""

    stopped: str
    continues: str


_DELIVERY = _LeaseWords("delivery has stopped", "delivery continues")
_USE = _LeaseWords("the assignment may not be used", "the assignment may be used again")


class HeldAssignment:
    """
    Runs the hooks of a member for one assignment after the other.

    Args:
        settings: The member's group, metrics and clock.
        hooks: The program that the member belongs to.
        confirmer: What confirms the membership, for the log.
        drained: Called when the program has given an assignment back.
        rejoin: Has the member join again.
        crashed: Called with the error of a hook.
    """

    def __init__(
        self,
        settings: MemberSettings,
        hooks: MemberHooks,
        confirmer: str,
        drained: Callable[[], None],
        rejoin: Callable[[], None],
        crashed: Callable[[BaseException], None],
    ) -> None:
        self._name = settings.group.group
        self._metrics = settings.metrics
        self._runtime = settings.runtime
        self._hooks = hooks
        self._confirmer = confirmer
        self._lease_words = _DELIVERY if hooks.protocol_type == PROTOCOL_TYPE else _USE
        self._drained = drained
        self._rejoin = rejoin
        self._unreadable_pauses = Backoff(FIRST_REJOIN_S, LONGEST_REJOIN_S)
        self._crashed = crashed
        #: The gate of the newest assignment; None before the first one, and after a loss.
        self.gate: GenerationGate | None = None
        #: Whether the log says that the lease is over, and not yet that it runs again.
        self._is_over = False
        self._lease_timer: asyncio.TimerHandle | None = None
        #: The hook that runs for the present assignment: ``complete`` or ``prepare``.
        self._hook: asyncio.Task[None] | None = None
        #: The ``complete`` that the present ``prepare`` cancels, unless it is cancelled itself before it begins.
        self._completing: asyncio.Task[None] | None = None

    def open(self, gate: GenerationGate, joined: JoinedGroup, assignment: bytes) -> None:
        """Have the program take an assignment over."""
        self.gate = gate
        log.info("group %s: joined generation %d as %s", self._name, *gate.token)
        self.report_lease()
        self._run(self._complete(gate, joined, assignment))

    def report_lease(self) -> None:
        """
        Log once that the assignment may not be used because the lease is over, and once that it may be again.

        A timer calls this at the end of the lease; the answers to heartbeats, and the lack of them, do so after it.
        """
        if self._lease_timer is not None:
            self._lease_timer.cancel()
            self._lease_timer = None
        if self.gate is None or self.gate.is_shut:
            return
        now_s = self._runtime.boot_time_s()
        if (left_s := self.gate.deadline_s - now_s) > 0:
            self._lease_timer = asyncio.get_running_loop().call_later(left_s, self.report_lease)
        is_over = left_s <= 0
        if is_over == self._is_over:
            return
        self._is_over, member_id, words = is_over, self.gate.token.member_id, self._lease_words
        if is_over:
            log.warning(
                "group %s: %s: the lease of %s is over, because %s has not confirmed its membership; %s when it does",
                self._name,
                words.stopped,
                member_id,
                self._confirmer,
                words.continues,
            )
        else:
            log.warning(
                "group %s: %s: %s has confirmed the membership of %s",
                self._name,
                words.continues,
                self._confirmer,
                member_id,
            )

    def drain(self) -> None:
        """Have the program give the assignment back."""
        assert self.gate is not None
        log.info("group %s: revoking the assignment of generation %d", self._name, self.gate.token.generation)
        self._completing = self._hook
        self._run(self._drain(self.gate, self._completing))

    def drop(self) -> None:
        """End the assignment at once; a hook that runs for it is cancelled before."""
        gate, hook = self.gate, self._hook
        if gate is None:
            return
        gate.shut()
        self.gate = self._hook = None
        if hook is not None:
            hook.cancel()
        if self._completing is not None:
            self._completing.cancel()
        self.report_lease()
        self._metrics.count("memberships_lost")
        log.warning("group %s: the membership of %s is over; its assignment is lost", self._name, gate.token.member_id)
        try:
            self._hooks.lost(gate)
        except Exception as error:
            # The member is in the middle of a step, whose other effects come first.
            asyncio.get_running_loop().call_soon(self._crashed, error)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._hook = asyncio.get_running_loop().create_task(work)
        self._hook.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._crashed(error)

    async def _complete(self, gate: GenerationGate, joined: JoinedGroup, assignment: bytes) -> None:
        since_s = self._runtime.boot_time_s()
        try:
            await self._hooks.complete(gate, joined, assignment)
        except ProtocolError as error:
            await self._rejoin_later(gate, joined, error)
            return
        self._unreadable_pauses.reset()
        self._metrics.observe("sync", self._runtime.boot_time_s() - since_s)

    async def _rejoin_later(self, gate: GenerationGate, joined: JoinedGroup, error: ProtocolError) -> None:
        """Leave an assignment that cannot be read unassigned; another join of this member or another one ends it."""
        pause_s = self._unreadable_pauses.next_s()
        self._metrics.count("assignments_unreadable")
        log.error(
            "group %s: leader %s has sent an assignment that cannot be read: %s; what is assigned to this member stays"
            " without an owner; joining again in %g s, unless the group rebalances before",
            self._name,
            joined.leader_id,
            error,
            pause_s,
        )
        await asyncio.sleep(pause_s)
        self._rejoin()

    async def _drain(self, gate: GenerationGate, completing: asyncio.Task[None] | None) -> None:
        if completing is not None and not completing.done():
            completing.cancel()
            await asyncio.wait({completing})
        await self._hooks.prepare(gate)
        gate.shut()
        self.report_lease()
        self._drained()
