"""
The ZooKeeper sessions of a worker. On a session, the worker claims connectors and tasks, and writes to the stores.

A worker has sessions even if brokers coordinate its group. Each session has a ``WorkerRole``: the worker's znode, its
stores and its claims. The znode and the claims end with the session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from kiel_groups.config import GroupConfig
from kiel_groups.errors import AuthorizationError, ClaimLostError, KielGroupsError, ProtocolError
from kiel_groups.group.znodes.layout import ROOT, GroupLayout, WorkerLayout
from kiel_groups.group.znodes.transactions import MOST_OPERATIONS, Create, chunks
from kiel_groups.group.znodes.worker_contents import JsonObject, WorkerInfo
from kiel_groups.members.zookeeper.group_session import GroupSession, RoleKind, SessionRole, SessionSupervisor
from kiel_groups.members.zookeeper.registration import admit_program, create_registration
from kiel_groups.model import CONNECT_TYPE
from kiel_groups.wording import some
from kiel_groups.workers.stores.config_store import ConfigStore
from kiel_groups.workers.stores.source_offset_store import SourceOffsets, SourceOffsetStore
from kiel_groups.workers.stores.status_store import StatusStore
from kiel_groups.workers.stores.work_claims import WorkClaims
from kiel_groups.workers.values import ConnectorId, TaskId, Work
from kiel_groups.zookeeper.fenced_writes import FencedWriter
from kiel_groups.zookeeper.session import Session
from kiel_groups.zookeeper.tasks import ProcessContext, SessionContext, TaskSet

log = logging.getLogger(__name__)

#: The most source offsets that the release of a claim stores in its own transaction.
_MOST_WITH_RELEASE = MOST_OPERATIONS // 4


class _SessionLayout(GroupLayout):
    """The paths that must exist before a worker's session can register."""

    @property
    def parents(self) -> tuple[str, ...]:
        """The path of the parent of all workers' znodes, and the paths above this parent."""
        return (ROOT, self.root, WorkerLayout(self.group).workers)


class WorkerSession:
    """
    Keeps a ZooKeeper session open for a worker, from ``start`` to ``close``. A lost session is replaced.

    Args:
        process: The process. The session uses only the group's name and the watchdog's limit for the event loop.
        info: The content of the worker's znode, without the fields that ``WorkerRole.register`` sets.
        opened: Called with the role of each new session, as soon as the worker is registered.
        lost: Called with the role of a session that has ended, unless ``close`` ended the session. The claims have
            ended with the session. Other workers may have claimed the work, so the worker must no longer write for this
            work.
        on_failure: Called with an error that a new session cannot fix, such as a group of another type.
    """

    def __init__(
        self,
        process: ProcessContext,
        info: WorkerInfo,
        opened: Callable[[WorkerRole], None],
        lost: Callable[[WorkerRole], None],
        on_failure: Callable[[KielGroupsError], None],
    ) -> None:
        self._process = process
        self._info = info
        kind = RoleKind("this worker's writes are paused", _SessionLayout, self._admit, self._new_role)
        self._opened = opened
        self._lost = lost
        self._tasks = TaskSet(self._failed)
        self._on_failure = on_failure
        self._supervisor = SessionSupervisor(process, kind, on_failure, self._joined)
        self._is_closing = False

    async def start(self) -> None:
        """
        Open the first session. Lost sessions are replaced in the background.

        Raises:
            NoZooKeeperError: No server answered in time.
            ChrootMissingError: The chroot does not exist.
            GroupConfigError: The group is a group of another type.
            AuthorizationError: ZooKeeper refused a request because of an ACL.
            CoordinationError: ZooKeeper refused to register the worker for another reason.
        """
        await self._supervisor.start()

    def _joined(self, session: GroupSession[WorkerRole]) -> None:
        self._tasks.start(self._watch(session))
        self._opened(session.role)

    async def _watch(self, session: GroupSession[WorkerRole]) -> None:
        await asyncio.shield(session.over)
        if not self._is_closing:
            self._lost(session.role)

    def _failed(self, error: BaseException) -> None:
        session = self._supervisor.current
        if isinstance(error, AuthorizationError) and session is not None:
            # Other workers may have the right that is missing. Without this session, they claim the work.
            session.fail(error)
            return
        known = isinstance(error, KielGroupsError)
        group = self._process.config.group
        log.error("group %s: this worker failed: %s", group, error, exc_info=None if known else error)
        self._on_failure(error if isinstance(error, KielGroupsError) else KielGroupsError(repr(error)))

    async def close(self) -> None:
        """Close the session, which removes the worker's znode. The caller releases the worker's claims first."""
        self._is_closing = True
        await self._supervisor.close()
        await self._tasks.cancel()

    # ------------------------------------------------------------------ the kind of the roles

    async def _admit(self, session: Session, layout: GroupLayout, _config: GroupConfig) -> None:
        """
        Check that the group is a group of workers, and raise the errors of ``admit_program`` if not.

        The check is the same if brokers coordinate the group: its settings in ZooKeeper exclude members of other types.
        """
        await admit_program(session, layout, CONNECT_TYPE)

    def _new_role(self, context: SessionContext) -> WorkerRole:
        return WorkerRole(context, self._info, self._failed)


class WorkerRole(SessionRole):
    """A worker on one session: its znode, its stores and its claims."""

    def __init__(self, context: SessionContext, info: WorkerInfo, on_error: Callable[[BaseException], None]) -> None:
        self._context = context
        self._info = info
        self._on_error = on_error
        #: The workers about which this worker has logged a warning.
        self._other_tokens: set[str] = set()
        self._other_coordinations: set[str] = set()
        #: The background tasks that run until the session ends.
        self.tasks = TaskSet(on_error)
        self._is_over = False
        self.worker_id = context.member_id
        self.session = session = context.session
        self.layout = layout = WorkerLayout(context.group)
        self.proof = layout.worker(self.worker_id)
        self.writer = writer = FencedWriter(session, self.proof, self._caught_up)
        self.config = ConfigStore(session, writer, layout, self.worker_id, context.runtime)
        self.statuses = StatusStore(session, writer, layout)
        self.offsets = SourceOffsetStore(session, writer, layout)
        self.claims = WorkClaims(session, writer, layout, self.worker_id)

    async def _caught_up(self) -> None:
        """Return at once. Writers need not wait for watches, because no watch changes what a worker's stores write."""

    async def register(self) -> None:
        """
        Create the worker's znode. Every claim and every write checks that this znode exists.

        Raises:
            CoordinationError: ZooKeeper refuses the znode.
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
        """
        Log a warning, once, for workers with another token or coordination than this worker.

        These workers stay in the group: while operators change one worker after another, both settings are in use.
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
        """
        Return the contents of the workers' znodes, except unreadable contents.

        Only ZooKeeper clients can write these znodes. Clients that only reach brokers cannot forge a worker.
        """
        names = await self.session.children(self.layout.workers) or ()
        found: list[WorkerInfo] = []
        for node in await self.session.get_many([self.layout.worker(name) for name in names]):
            if node is not None:
                with suppress(ProtocolError):
                    found.append(WorkerInfo.parse(node.data, self.layout.workers))
        return found

    async def restore(self) -> None:
        """
        Repeat the check of ``joined``, for workers that have registered since.

        A deleted znode is not created again: the heartbeat notices the deletion, and ends the session.
        """
        await self.joined()

    # ------------------------------------------------------------------ claims and stores

    def begin(self, on_gone: Callable[[Work], None]) -> None:
        """
        Start the background tasks that claim work and write statuses.

        Args:
            on_gone: Called with work whose claim has disappeared without a release.
        """
        self.tasks.start(self.claims.run(on_gone))
        # A status is also refused if the connector has been deleted.
        self.tasks.start(self.statuses.run(self.claims.check))

    @property
    def is_over(self) -> bool:
        """Whether the session has ended. All claims end with the session."""
        return self._is_over or self.session.ended is not None

    def end(self) -> None:
        """End all claims and stop writing statuses at once, because the session is over or the worker ends."""
        self._is_over = True
        self.claims.end()
        self.tasks.cancel()

    @contextmanager
    def _reporting(self, work: Work) -> Iterator[None]:
        """Read the claim of the work again if a call finds it gone. End the session if a right is missing."""
        try:
            yield
        except ClaimLostError:
            self.claims.check(work)
            raise
        except AuthorizationError as error:
            self._on_error(error)
            raise

    async def read_offset(self, connector: str, partition: JsonObject) -> JsonObject | None:
        """Return the stored offset of a source partition; raises as ``SourceOffsetStore.read``."""
        with self._reporting(ConnectorId(connector)):
            return await self.offsets.read(connector, partition)

    async def write_offsets(self, task: TaskId, offsets: SourceOffsets) -> None:
        """
        Store source offsets of a task; raises as ``SourceOffsetStore.write``.

        If the write finds the claim gone, the claim is read again, and ``on_gone`` of ``begin`` is called.
        """
        with self._reporting(task):
            await self.offsets.write(task, offsets)

    async def write_tasks(self, connector: str, tasks: Sequence[Mapping[str, str]]) -> None:
        """
        Store the settings of a connector's tasks under its claim; raises as ``ConfigStore.put_task_configs``.

        If the write finds the claim gone, the claim is read again, and ``on_gone`` of ``begin`` is called.
        """
        with self._reporting(ConnectorId(connector)):
            await self.config.put_task_configs(connector, tasks, claim=self.layout.owner(connector))

    async def release_claim(self, work: Work, offsets: SourceOffsets = ()) -> None:
        """
        Release a claim, drop the unwritten statuses of its work, and store the last source offsets of a task.

        The offsets are stored in the transaction of the release if they fit, else before the release.

        Raises:
            ClaimLostError: There are offsets, which are not stored because the claim is gone.
            AuthorizationError: ZooKeeper refuses a write because of an ACL. The session ends, and its claims with it.
            SessionLostError: The session is over.
        """
        self.statuses.drop(work)
        if isinstance(work, TaskId) and offsets:
            with self._reporting(work):
                writes = await self.offsets.operations(work, offsets) if len(offsets) <= _MOST_WITH_RELEASE else ()
            if len(list(chunks(writes))) == 1 and await self.claims.release(work, writes):
                return
            # The offsets do not fit into one transaction, or the release was refused because an operator has created or
            # deleted znodes of offsets meanwhile.
            await self.write_offsets(work, offsets)
        await self.claims.release(work)
