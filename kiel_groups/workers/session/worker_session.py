"""The ZooKeeper sessions of one worker, one after the other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kiel_groups.coordination.member.group_session import GroupSession
from kiel_groups.coordination.member.session_supervisor import SessionSupervisor
from kiel_groups.coordination.session.close_limit import CloseLimit
from kiel_groups.coordination.session.session_context import ProcessContext
from kiel_groups.coordination.session.session_tasks import TaskSet
from kiel_groups.errors import KielGroupsError, SessionLostError
from kiel_groups.workers.session.worker_role import WorkerKind, WorkerRole

__all__ = ["WorkerSession"]

log = logging.getLogger(__name__)


class WorkerSession:
    """
    A worker's sessions, from ``start`` to ``close``.

    Args:
        process: The process. Of its settings, the group's name and the watchdog's limit for the event loop apply.
        url: The address of the worker's REST interface, for operators.
        opened: Called with the worker's role on each new session. The session is open and registered.
        lost: Called when that session is over: all claims are gone, and other workers may have them. Nothing may be
            written for the former work any more.
        on_failure: Called with an error that a new session cannot fix, such as missing rights.
        token_digest: Identifies the token of the REST interface; see ``WorkerInfo``.
        coordination: What coordinates the worker; see ``WorkerInfo``.
    """

    def __init__(
        self,
        process: ProcessContext,
        url: str,
        opened: Callable[[WorkerRole], None],
        lost: Callable[[WorkerRole], None],
        on_failure: Callable[[KielGroupsError], None],
        token_digest: str | None = None,
        coordination: str | None = None,
    ) -> None:
        self._process = process
        self._group = process.config.group
        self._kind = WorkerKind(url, token_digest, coordination)
        self._opened = opened
        self._lost = lost
        self._tasks = TaskSet(self._failed)
        self._on_failure = on_failure
        self._supervisor = SessionSupervisor(process, self._join, on_failure)
        self._is_closing = False

    async def start(self) -> None:
        """
        Open the first session; lost ones are replaced in the background.

        Raises:
            NoZooKeeperError: No server answered in time.
            ChrootMissingError: The chroot does not exist.
            GroupConfigError: The group's members are no workers.
            CoordinationError: ZooKeeper refused to register the worker.
        """
        await self._supervisor.start()

    @property
    def role(self) -> WorkerRole:
        """
        The worker on its present session.

        Raises:
            SessionLostError: There is no session at the moment.
        """
        current = self._supervisor.current
        if current is None or current.ended:
            raise SessionLostError(f"group {self._group}: this worker has no ZooKeeper session at the moment")
        return current.role

    async def _join(self, by_s: float) -> GroupSession[WorkerRole]:
        session = GroupSession(self._process, self._kind, first=self._supervisor.current is None)
        await session.join(by_s)
        self._tasks.start(self._watch(session))
        self._opened(session.role)
        return session

    async def _watch(self, session: GroupSession[WorkerRole]) -> None:
        await asyncio.shield(session.over)
        if not self._is_closing:
            self._lost(session.role)

    def _failed(self, error: BaseException) -> None:
        known = isinstance(error, KielGroupsError)
        log.error("group %s: this worker failed: %s", self._group, error, exc_info=None if known else error)
        self._on_failure(error if isinstance(error, KielGroupsError) else KielGroupsError(str(error)))

    async def close(self, limit: CloseLimit | None = None) -> None:
        """Close the session, which deletes the worker's znode; the worker has released its work before."""
        self._is_closing = True
        await self._supervisor.close(limit)
        await self._tasks.cancel()
