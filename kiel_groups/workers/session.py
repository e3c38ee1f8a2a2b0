"""A worker's ZooKeeper sessions, by which it owns work and writes to the stores, whatever coordinates its group."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial

from kiel_groups.config import GroupConfig
from kiel_groups.errors import KielGroupsError, ProtocolError, SessionLostError
from kiel_groups.group.znodes.layout import ROOT, GroupLayout, WorkerLayout
from kiel_groups.group.znodes.transactions import Create
from kiel_groups.group.znodes.worker_contents import WorkerInfo
from kiel_groups.members.zookeeper.group_session import GroupSession, RoleKind, SessionRole, SessionSupervisor
from kiel_groups.members.zookeeper.registration import admit_program, create_registration
from kiel_groups.model import CONNECT_TYPE
from kiel_groups.wording import some
from kiel_groups.zookeeper.fenced_writes import FencedWriter
from kiel_groups.zookeeper.session import Session
from kiel_groups.zookeeper.tasks import CloseLimit, ProcessContext, SessionContext, TaskSet

__all__ = [
    "WorkerSession",
    "WorkerRole",
]

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
        info = WorkerInfo(url=url, token_digest=token_digest, coordination=coordination)
        self._kind = RoleKind("this worker's writes are paused", _SessionLayout, _admit, partial(WorkerRole, info))
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


class _SessionLayout(GroupLayout):
    """The paths that a worker's session needs."""

    @cached_property
    def parents(self) -> tuple[str, ...]:
        """The path above the workers' znodes, and its parents."""
        return (ROOT, self.root, WorkerLayout(self.group).workers)


async def _admit(session: Session, layout: GroupLayout, _config: GroupConfig) -> None:
    """
    Check that the group's members are workers, whatever coordinates them; raises as ``admit_program``.

    The settings on ZooKeeper keep members of other types out of a group that brokers coordinate.
    """
    await admit_program(session, layout, CONNECT_TYPE)


class WorkerRole(SessionRole):
    """A worker on one session; see ``SessionRole``."""

    def __init__(self, info: WorkerInfo, context: SessionContext) -> None:
        self._context = context
        self._info = info
        #: The workers that this one has warned of.
        self._other_tokens: set[str] = set()
        self._other_coordinations: set[str] = set()
        self.worker_id = context.member_id
        self.session = context.session
        self.layout = WorkerLayout(context.group)
        self.proof = self.layout.worker(self.worker_id)
        self.writer = FencedWriter(context.session, self.proof, self._caught_up)

    async def _caught_up(self) -> None:
        """Return at once: no watch of a worker decides what a store writes."""

    async def register(self) -> None:
        """
        Create the worker's znode, which every claim and every write checks.

        Raises:
            CoordinationError: ZooKeeper refuses it.
        """
        runtime = self._context.runtime
        info = replace(
            self._info,
            host=runtime.host(),
            pid=runtime.pid(),
            session_timeout_ms=self.session.timeout_ms,
            started_at_ms=self._context.started_ms,
        )
        await create_registration(
            self.session,
            self._context.group,
            [Create(self.proof, info.encode(), ephemeral=True)],
            lambda: self.session.ensure([self.layout.workers]),
        )

    async def joined(self) -> None:
        """Warn of workers that are set up in another way; see ``_warn_of_others``."""
        await self._warn_of_others()

    async def _warn_of_others(self) -> None:
        """
        Warn of workers with another token, or without one, and of workers with another coordination, once each.

        They stay in the group: while operators change all workers, one after the other, both kinds are there.
        """
        tokens, coordinations = set(), set()
        for info in await self.workers():
            if self._info.token_digest is not None and info.token_digest not in (None, self._info.token_digest):
                tokens.add(info.address)
            if info.coordination not in (None, self._info.coordination):
                coordinations.add(info.address)
        if tokens - self._other_tokens:
            log.warning(
                "group %s: requests between this worker and %s fail, because their tokens differ; give all workers of"
                " the group the same token",
                self._context.group,
                some(sorted(tokens)),
            )
        if coordinations - self._other_coordinations:
            log.warning(
                "group %s: this worker has the coordination %r, and %s another one: neither knows of the other's"
                " assignments, and a connector or task waits while a worker of the other kind has claimed it; give all"
                " workers of the group the same coordination",
                self._context.group,
                self._info.coordination,
                some(sorted(coordinations)),
            )
        self._other_tokens, self._other_coordinations = tokens, coordinations

    async def workers(self) -> list[WorkerInfo]:
        """Return what the znodes of the group's workers have. Clients of the brokers cannot write these."""
        names = await self.session.children(self.layout.workers) or ()
        found: list[WorkerInfo] = []
        for node in await self.session.get_many([self.layout.worker(name) for name in names]):
            if node is not None:
                with suppress(ProtocolError):
                    found.append(WorkerInfo.parse(node.data, self.layout.workers))
        return found

    async def restore(self) -> None:
        """
        Warn of workers that have come since.

        The heartbeat finds out if the worker's znode was deleted, and ends the session.
        """
        await self._warn_of_others()
