"""The supervisor of one process's sessions in a group: it replaces each lost session with a new one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from kiel_groups.backoff import Backoff
from kiel_groups.coordination.member.group_session import GroupSession, is_fatal
from kiel_groups.coordination.member.session_role import SessionRole
from kiel_groups.coordination.session.close_limit import CloseLimit
from kiel_groups.coordination.session.session_context import ProcessContext
from kiel_groups.coordination.session.session_tasks import cancelled_by
from kiel_groups.errors import ClosedError, KielGroupsError, SessionLostError

__all__ = ["SessionSupervisor"]

log = logging.getLogger(__name__)

#: The longest pause before a join is tried again, in seconds, longer or shorter by up to half. The first one is
#: ``retry_backoff_ms``.
LONGEST_JOIN_PAUSE_S = 5.0

_RoleT = TypeVar("_RoleT", bound=SessionRole)


class SessionSupervisor(Generic[_RoleT]):
    """
    Keeps one process in one group, from ``start`` to ``close``, on one session after another.

    Args:
        process: The process; its ``connect_timeout_ms`` is how long a session may take to join.
        begin: Creates a session that joins the group by the given time on the event loop's clock.
        on_failure: Called with an error that a new session cannot fix: settings that differ from the group's, foreign
            members, missing rights.
    """

    def __init__(
        self,
        process: ProcessContext,
        begin: Callable[[float], Awaitable[GroupSession[_RoleT]]],
        on_failure: Callable[[KielGroupsError], None],
    ) -> None:
        self._group = process.config.group
        self._first_pause_s = process.config.retry_backoff_ms / 1000
        self._limit_s = process.zookeeper.connect_timeout_ms / 1000
        self._metrics = process.metrics
        self._runtime = process.runtime
        self._open_and_join = begin
        self._on_failure = on_failure
        #: The current session, or the last one: while the next one is joining, after a fatal error ended it, and after
        #: ``close``. None before the start, and after a replacement failed with a fatal error.
        self.current: GroupSession[_RoleT] | None = None
        #: Why the last join failed, or None after a success.
        self._cause: str | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._closing: set[asyncio.Future[Any]] = set()

    async def start(self) -> None:
        """
        Join with a first session, and replace lost sessions in the background.

        If the first session ends before it has joined, the next one gets the rest of the time.

        Raises:
            KielGroupsError: The error that prevents the first session from joining; ClosedError if ``close`` does.
        """
        by_s, backoff = self._due_s(), self._new_backoff()
        while self.current is None:
            try:
                self.current = await self._start_session(by_s)
            except SessionLostError as error:
                self._join_failed(error)
                # Not beyond the time limit, or the error would come late.
                await asyncio.sleep(min(backoff.next_s(), max(0.0, by_s - asyncio.get_running_loop().time())))
        self._task = asyncio.get_running_loop().create_task(self._supervise())

    async def close(self, limit: CloseLimit | None = None) -> None:
        """
        End the current session without starting another one.

        Args:
            limit: When the close must end. The last part of the time is for the close of the session, if leaving in
                order takes longer. A session that ZooKeeper does not close in time is closed in the background. None:
                no limit.
        """
        self._is_closed = True
        try:
            await self._close(limit or CloseLimit())
        except BaseException:
            # The caller waits no longer: begin the close, and do not wait for it.
            if self.current is not None:
                self.current.close()
            raise

    async def _close(self, limit: CloseLimit) -> None:
        if self._task is not None:
            await cancelled_by({self._task}, limit)
        if self.current is not None:
            await self._leave(self.current, limit)
        if self._closing:
            with suppress(TimeoutError):
                async with limit.timeout():
                    await asyncio.wait(self._closing)
        await cancelled_by(set(self._closing), limit)

    async def _leave(self, session: GroupSession[_RoleT], limit: CloseLimit) -> None:
        try:
            async with limit.timeout(reserves=True):
                await session.leave()
        except TimeoutError:
            log.warning(
                "group %s: leaving although the application or a server is not done: the time limit is over",
                self._group,
            )
            await session.close_within(limit)

    def _due_s(self) -> float:
        """Return when a session that starts now must have joined, on the event loop's clock."""
        return asyncio.get_running_loop().time() + self._limit_s

    async def _start_session(self, by_s: float) -> GroupSession[_RoleT]:
        session = await self._open_and_join(by_s)
        if self._is_closed:
            await session.close()
            raise ClosedError(f"group {self._group}: closed while it was joining")
        self._metrics.count("sessions_opened")
        self._cause = None
        return session

    async def _supervise(self) -> None:
        """Wait for the end of each session, and start the next one."""
        while self.current is not None:
            # Shielded, because cancelling this task must not cancel a future that other tasks await, too.
            error = await asyncio.shield(self.current.over)
            self._metrics.count("sessions_lost")
            self._close_in_background(self.current)
            if is_fatal(error):
                self._fail(error)
                return
            log.warning(
                "group %s: the session of %s is over (%s); joining again",
                self._group,
                self.current.member_id,
                error or self.current.session.ended,
            )
            await self._rejoin()

    def _close_in_background(self, session: GroupSession[_RoleT]) -> None:
        """Close a session without waiting: an unreachable server may delay the close, but not the next session."""
        closing = session.close()
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _new_backoff(self) -> Backoff:
        return Backoff(self._first_pause_s, LONGEST_JOIN_PAUSE_S, lambda: self._runtime.uniform(0.5, 1.5))

    async def _rejoin(self) -> None:
        backoff = self._new_backoff()
        while True:
            await asyncio.sleep(backoff.next_s())
            try:
                self.current = await self._start_session(self._due_s())
                # Logged at the level of the loss, so that an operator who sees one sees the other.
                log.warning("group %s: joined again, as %s", self._group, self.current.member_id)
                return
            except Exception as error:
                if is_fatal(error):
                    log.error("group %s: this member stops: %s", self._group, error)
                    self.current = None
                    self._fail(error)
                    return
                self._join_failed(error)

    def _join_failed(self, error: Exception) -> None:
        """Count a failed join that is retried, and log its cause unless the last join failed for the same one."""
        self._metrics.count("joins_failed")
        cause, self._cause = self._cause, f"{type(error).__name__}: {error}"
        if cause == self._cause:
            return
        # Any error but this library's own is a bug or a lack of resources, and needs its traceback.
        trace = None if isinstance(error, KielGroupsError) else error
        log.warning(
            "group %s: could not join: %s; retrying, with pauses of up to %g s",
            self._group,
            error,
            LONGEST_JOIN_PAUSE_S,
            exc_info=trace,
        )

    def _fail(self, error: BaseException | None) -> None:
        assert isinstance(error, KielGroupsError)
        self._on_failure(error)
