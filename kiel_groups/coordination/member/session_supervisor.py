"""One life after another: when a session is lost, the next one follows it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from kiel_groups.coordination.member.group_session import GroupSession, is_fatal
from kiel_groups.coordination.zookeeper import runtime
from kiel_groups.errors import KielGroupsError, SessionLostError
from kiel_groups.metrics import Metrics

__all__ = ["SessionSupervisor"]

log = logging.getLogger(__name__)

#: The pause before a lost session is followed by a new one, in seconds: first, and at most.
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0

_Life = TypeVar("_Life", bound=GroupSession)


class SessionSupervisor(Generic[_Life]):
    """
    The lives of one process in one group, from ``start`` to ``close``.

    Args:
        group: The group's name, for the log.
        begin: Makes a life and has it join, by a time on the event loop's clock.
        limit_ms: How long a life may take to join, in milliseconds.
        metrics: Where to count.
        on_failure: Hears of an error that no new session can mend: other settings than the group's, foreign members,
            missing rights.
    """

    def __init__(
        self,
        group: str,
        begin: Callable[[float], Awaitable[_Life]],
        limit_ms: int,
        metrics: Metrics,
        on_failure: Callable[[KielGroupsError], None],
    ) -> None:
        self._group = group
        self._begin_life = begin
        self._limit_s = limit_ms / 1000
        self._metrics = metrics
        self._on_failure = on_failure
        #: The present life, or the last one: while the next is on its way, after an error that ended it, and after
        #: ``close``. None before the start, and where the next one met an error that no new session can mend.
        self.current: _Life | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """
        Join with a first session, and keep replacing lost sessions in the background.

        Raises what prevents the first session from joining. A first session that ends before it has joined is replaced,
        and the next one gets the rest of the time.
        """
        by_s = self._due_s()
        while self.current is None:
            try:
                self.current = await self._begin(by_s)
            except SessionLostError as error:
                self._metrics.count("joins_failed")
                log.warning("group %s: could not join: %s; retrying", self._group, error)
                await asyncio.sleep(FIRST_PAUSE_S)
        self._supervisor = asyncio.get_running_loop().create_task(self._supervise())

    async def close(self, timeout_s: float | None = None) -> None:
        """
        End the present life, and begin no other.

        Args:
            timeout_s: How long it may take to leave in order; then the session is closed all the same. None: as long
                as it takes.
        """
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait({self._supervisor})
        if self.current is not None:
            try:
                async with asyncio.timeout(timeout_s):
                    await self.current.leave()
            except TimeoutError:
                log.warning("group %s: left before the application had finished", self._group)
                await self.current.close()
        if self._closing:
            await asyncio.wait(self._closing)

    def _due_s(self) -> float:
        """When a life that begins now must have joined, on the event loop's clock."""
        return asyncio.get_running_loop().time() + self._limit_s

    async def _begin(self, by_s: float) -> _Life:
        life = await self._begin_life(by_s)
        self._metrics.count("sessions_opened")
        return life

    async def _supervise(self) -> None:
        """Wait for the end of each session, and start the next one."""
        while self.current is not None:
            # Shielded: cancelling this task must not cancel what others wait for as well.
            error = await asyncio.shield(self.current.over)
            self._metrics.count("sessions_lost")
            self._close_in_background(self.current)
            if is_fatal(error):
                self._fail(error)
                return
            log.warning(
                "group %s: the session of %s is over (%s); joining anew",
                self._group,
                self.current.member_id,
                error or self.current.session.ended,
            )
            await self._rejoin()

    def _close_in_background(self, life: _Life) -> None:
        """A server that cannot be reached may hold up the closing; the next session does not wait for it."""
        closing = asyncio.get_running_loop().create_task(life.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _rejoin(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            await asyncio.sleep(pause_s * runtime.uniform(0.5, 1.5))
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
            try:
                self.current = await self._begin(self._due_s())
                # As loud as the loss: whoever heard of that waits for this.
                log.warning("group %s: joined again, as %s", self._group, self.current.member_id)
                return
            except Exception as error:
                if is_fatal(error):
                    log.error("group %s: this member stops: %s", self._group, error)
                    self.current = None
                    self._fail(error)
                    return
                self._metrics.count("joins_failed")
                # An error that is not ours is a bug, or a machine out of means: its place matters.
                trace = None if isinstance(error, KielGroupsError) else error
                log.warning("group %s: could not join: %s; again", self._group, error, exc_info=trace)

    def _fail(self, error: BaseException | None) -> None:
        assert isinstance(error, KielGroupsError)
        self._on_failure(error)
