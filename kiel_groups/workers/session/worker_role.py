"""The role of a worker on one ZooKeeper session: it has a znode that proves the session, and no part in an election."""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import suppress
from functools import cached_property

from kiel_groups.config import GroupConfig
from kiel_groups.coordination.leader.candidacy import Candidacy
from kiel_groups.coordination.partition_handler import Work
from kiel_groups.coordination.session.fenced_writes import FencedWriter
from kiel_groups.coordination.session.session_context import SessionContext
from kiel_groups.coordination.session.zk_session import Session
from kiel_groups.errors import CoordinationError, ProtocolError
from kiel_groups.group.znodes.layout import ROOT, GroupLayout
from kiel_groups.group.znodes.transactions import Create, Done, Failure, Unknown
from kiel_groups.group.znodes.worker_info import WorkerInfo
from kiel_groups.group.znodes.worker_layout import WorkerLayout
from kiel_groups.listeners import Stall
from kiel_groups.wording import some

__all__ = ["WorkerKind", "WorkerRole"]

log = logging.getLogger(__name__)


class _SessionLayout(GroupLayout):
    """The paths that a worker's session needs."""

    @cached_property
    def parents(self) -> tuple[str, ...]:
        """The path above the workers' znodes, and its parents."""
        return (ROOT, self.root, WorkerLayout(self.group).workers)


class WorkerKind:
    """
    The roles of one worker on its sessions; see ``RoleKind``.

    Args:
        url: The address of the worker's REST interface, for operators.
        token_digest: Identifies the token of that interface, to find workers with another one; see ``WorkerInfo``.
    """

    paused = "this worker's writes are paused"

    def __init__(self, url: str, token_digest: str | None = None) -> None:
        self._url = url
        self._token_digest = token_digest

    def layout(self, group: str) -> GroupLayout:
        """Return the paths that the session needs."""
        return _SessionLayout(group)

    async def admit(self, session: Session, layout: GroupLayout, config: GroupConfig) -> None:
        """Admit every worker: what coordinates the group admits its members."""

    def new_role(self, context: SessionContext) -> WorkerRole:
        return WorkerRole(context, self._url, self._token_digest)


class WorkerRole:
    """A worker on one session; see ``SessionRole``."""

    candidacy: Candidacy | None = None

    def __init__(self, context: SessionContext, url: str, token_digest: str | None = None) -> None:
        self._context = context
        self._url = url
        self._token_digest = token_digest
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
        info = WorkerInfo(
            url=self._url,
            host=runtime.host(),
            pid=runtime.pid(),
            session_timeout_ms=self.session.timeout_ms,
            started_at_ms=self._context.started_ms,
            token_digest=self._token_digest,
        )
        data = info.encode()
        unanswered = False
        while not isinstance(answer := await self.session.transact([Create(self.proof, data, ephemeral=True)]), Done):
            if isinstance(answer, Unknown):
                unanswered = True
            elif answer.failure is Failure.NO_NODE:
                await self.session.ensure([self.layout.workers])
            elif unanswered and answer.failure is Failure.NODE_EXISTS:
                # The name has the session's id, so the znode is this worker's own.
                break
            else:
                raise CoordinationError(
                    f"group {self._context.group}: ZooKeeper refused to register {self.proof}: {answer.failure.name}"
                )

    async def joined(self) -> None:
        """
        Warn of workers with another token, or without one.

        They stay in the group: while operators change the token of all workers, one after the other, both are there.
        """
        if self._token_digest is None:
            return
        known = (None, self._token_digest)
        others = [info.address for info in await self.workers() if info.token_digest not in known]
        if others:
            log.warning(
                "group %s: requests between this worker and %s fail, because their tokens differ; give all workers of"
                " the group the same token",
                self._context.group,
                some(sorted(others)),
            )

    async def workers(self) -> list[WorkerInfo]:
        """Return what the znodes of the group's workers have. Clients of the brokers cannot write these."""
        names = await self.session.children(self.layout.workers) or ()
        found: list[WorkerInfo] = []
        for node in await self.session.get_many([self.layout.worker(name) for name in names]):
            if node is not None:
                with suppress(ProtocolError):
                    found.append(WorkerInfo.parse(node.data, self.layout.workers))
        return found

    def recheck(self) -> None:
        """Do nothing: claims and stores read again what they watch."""

    async def restore(self) -> None:
        """Do nothing: the heartbeat finds out if the worker's znode was deleted, and ends the session."""

    def in_progress(self) -> Collection[Work]:
        """Return nothing: tasks have limits of their own."""
        return ()

    def stalled(self, stall: Stall) -> None:
        """Do nothing: the watchdog has logged the stall of the event loop."""

    async def release(self, *, alone: bool) -> None:
        """Do nothing: the worker has released its work before it closes the session."""

    def end(self) -> None:
        """Do nothing: the worker is notified of the session's end."""
