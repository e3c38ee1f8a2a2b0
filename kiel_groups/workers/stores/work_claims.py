"""
Claim connectors and tasks for a worker on one ZooKeeper session: one ephemeral owner znode for each.

ZooKeeper lets only one session create the owner znode, so no two workers run the same work. While another worker owns
the work, this worker watches the znode, without a time limit. The zxid that created the znode is the fencing token.

Simultaneous claims and releases share transactions. Each transaction checks the worker's znode. If the answer to a
transaction is lost, the writer completes another transaction on the session. Then the owner znodes are read: this read
shows whether the first transaction took effect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial

from kiel_groups.errors import AuthorizationError, ClaimLostError, CoordinationError, SessionLostError
from kiel_groups.group.znodes.layout import WorkerLayout
from kiel_groups.group.znodes.transactions import Create, Delete, Failure, Operation
from kiel_groups.workers.values import Work
from kiel_groups.zookeeper.fenced_writes import FencedWriter, give_up
from kiel_groups.zookeeper.session import Node, Session

log = logging.getLogger(__name__)


class _Request:
    """A claim or a release in progress, and the future that its caller awaits."""

    def __init__(self, operations: tuple[Operation, ...] = ()) -> None:
        self.operations = operations
        self.outcome: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def finish(self, result: int) -> None:
        if not self.outcome.done():
            self.outcome.set_result(result)

    def fail(self, error: Exception) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(error)
            # Retrieved: a release that no caller waits for may fail, too.
            self.outcome.exception()


class WorkClaims:
    """
    The claims of one worker on one session.

    For each piece of work, a caller may have only one request in progress. The caller must release claimed work before
    it claims the work again.

    Args:
        session: The worker's session.
        writer: Writes on the session, on the condition that the worker's znode exists.
        layout: The paths of the group's workers.
        worker_id: The id of this worker. Owner znodes contain this id, so that operators see the owner of the work.
    """

    def __init__(self, session: Session, writer: FencedWriter, layout: WorkerLayout, worker_id: str) -> None:
        self._session = session
        self._writer = writer
        self._layout = layout
        self._group = layout.group
        self._owner = worker_id.encode()
        #: The work to claim now, and the work that another worker owns, whose znode is watched.
        self._wanted: dict[Work, _Request] = {}
        self._contended: dict[Work, _Request] = {}
        self._releases: dict[Work, _Request] = {}
        #: The fencing tokens of the claims.
        self._tokens: dict[Work, int] = {}
        #: The claims whose watch has fired.
        self._suspects: set[Work] = set()
        #: The work whose watch has fired since its owner znode was last read.
        self._fired: set[Work] = set()
        self._watchers: dict[Work, Callable[[], None]] = {}
        #: The connectors whose folder of owner znodes exists, or was created on this session.
        self._prepared: set[str] = set()
        self._wake = asyncio.Event()
        self._is_over = False

    # ------------------------------------------------------------------ the callers

    def owns(self, work: Work) -> bool:
        """Return whether this worker has claimed the work. A deleted owner znode may not be known yet."""
        return work in self._tokens

    def check(self, work: Work) -> None:
        """Request a read of the owner znode of claimed work, because a write that checks this znode was refused."""
        if work in self._tokens:
            self._suspects.add(work)
            self._wake.set()

    async def claim(self, work: Work) -> int:
        """
        Claim work, and return the fencing token. If another worker owns the work, wait until the work is released.

        A cancelled call claims nothing, or releases the claim.

        Raises:
            SessionLostError: The session is over.
            AuthorizationError: ZooKeeper refuses the claim because of an ACL.
        """
        request = self._request(self._wanted, work, _Request())
        try:
            return await request.outcome
        except asyncio.CancelledError:
            self._wanted.pop(work, None)
            self._contended.pop(work, None)
            if request.outcome.done() and work in self._tokens:
                # The claim was granted before its caller could use it.
                self._release_unused(work)
            raise

    async def release(self, work: Work, operations: Iterable[Operation] = ()) -> bool:
        """
        Release a claim.

        Args:
            work: Claimed work.
            operations: Further writes of the same transaction, such as source offsets.

        Returns:
            True if this worker no longer owns the work. False if ZooKeeper has refused a further write: then nothing
            was written, and the claim still exists.

        Raises:
            ClaimLostError: There are further writes, and the claim was gone before: then nothing was written.
            SessionLostError: The session is over.
            AuthorizationError: ZooKeeper refuses the release because of an ACL.
        """
        return bool(await self._request(self._releases, work, _Request(tuple(operations))).outcome)

    def _request(self, requests: dict[Work, _Request], work: Work, request: _Request) -> _Request:
        if self._is_over:
            raise SessionLostError(f"the claim of {work} ended with its session")
        requests[work] = request
        self._wake.set()
        return request

    # ------------------------------------------------------------------ the driver

    async def run(self, on_gone: Callable[[Work], None]) -> None:
        """
        Carry out the requested claims and releases, until the session is over or the task is cancelled.

        Args:
            on_gone: Called with work whose owner znode has disappeared although this worker has not released it.

        Raises:
            AuthorizationError: ZooKeeper refused a claim or a release because of an ACL. All claims have ended.
        """
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                try:
                    await self._step(on_gone)
                except SessionLostError:
                    return
                except AuthorizationError as error:
                    self._fail_all(error)
                    raise
                except CoordinationError as error:
                    log.error("group %s: %s", self._group, error)
                    self._fail_all(error)
        finally:
            self.end()

    def end(self) -> None:
        """Forget all claims and fail all requests at once, because the session is over."""
        self._is_over = True
        self._fail_all(SessionLostError("all claims of this worker ended with its session"))
        self._tokens.clear()
        for watcher in self._watchers.values():
            self._session.forget(watcher)

    def _fail_all(self, error: Exception) -> None:
        for requests in (self._wanted, self._contended, self._releases):
            for request in requests.values():
                request.fail(error)
            requests.clear()

    async def _step(self, on_gone: Callable[[Work], None]) -> None:
        # Releases precede claims: another worker may be waiting.
        releases = dict(self._releases)
        if releases:
            await self._release(releases)
        if suspects := self._suspects & self._tokens.keys():
            self._suspects.clear()
            for work in await self._missing(suspects):
                log.error("group %s: the owner znode of %s was deleted; stopping it", self._group, work)
                del self._tokens[work]
                on_gone(work)
        if self._wanted:
            await self._claim(set(self._wanted))

    async def _claim(self, wanted: Collection[Work]) -> None:
        await self._prepare({work.connector for work in wanted})
        # Most work is free. If the first try finds an owner, a read shows which other work is owned.
        free, on_refused = set(wanted), _stop_at_owner
        while free:
            creations = {
                work: (Create(self._layout.owner(*work), self._owner, ephemeral=True),) for work in sorted(free)
            }
            outcome = await self._writer.write(
                creations, on_refused, renew=lambda work, operations: operations if work in self._wanted else None
            )
            if folderless := {work for work, failure in outcome.dropped.items() if failure is Failure.NO_NODE}:
                connectors = {work.connector for work in folderless}
                log.warning("group %s: folders of owner znodes were deleted; creating them again", self._group)
                self._prepared -= connectors
                await self._prepare(connectors)
            # An owner znode that exists now may be this worker's own: the answer to its create may have been lost.
            free, on_refused = self._sorted_out(await self._read(free)), _drop

    def _release_unused(self, work: Work) -> None:
        self._releases.setdefault(work, _Request())
        self._wake.set()

    async def _prepare(self, connectors: Collection[str]) -> None:
        """Create the folders of owner znodes that this session has not found or created yet."""
        if fresh := set(connectors) - self._prepared:
            await self._session.ensure(map(self._layout.connector_owners, sorted(fresh)))
            self._prepared |= fresh

    def _sorted_out(self, found: Mapping[Work, Node | None]) -> set[Work]:
        """
        Complete the claims whose owner znodes this worker has, and return the wanted work that is free.

        Work of another worker waits for the watch of its owner znode.
        """
        free = set()
        for work, node in found.items():
            if node is None:
                # Work whose claim was cancelled meanwhile is left free.
                free |= {work} & self._wanted.keys()
                continue
            request = self._wanted.pop(work, None)
            if node.owner == self._session.id:
                self._tokens[work] = node.czxid
                if work in self._fired:
                    self._suspects.add(work)
                    self._wake.set()
                if request is not None:
                    request.finish(node.czxid)
                else:
                    # The caller was cancelled after the owner znode was created.
                    self._release_unused(work)
            elif request is not None and work in self._fired:
                # The owner has released the work since the read.
                self._wanted[work] = request
                self._wake.set()
            elif request is not None:
                log.debug("group %s: %s belongs to another worker; waiting for its release", self._group, work)
                self._contended[work] = request
        return free

    async def _read(self, works: Iterable[Work]) -> dict[Work, Node | None]:
        """Read owner znodes, and set a watch on each of these znodes."""
        listed = sorted(works)
        self._fired.difference_update(listed)
        paths = [self._layout.owner(*work) for work in listed]
        nodes = await self._session.exists_many(paths, [self._watcher(work) for work in listed])
        return dict(zip(listed, nodes, strict=True))

    def _watcher(self, work: Work) -> Callable[[], None]:
        return self._watchers.setdefault(work, partial(self._changed, work))

    def _changed(self, work: Work) -> None:
        """
        Request another read of an owner znode, because its watch has fired. A broken connection also fires the watch.
        """
        self._fired.add(work)
        if (request := self._contended.pop(work, None)) is not None:
            self._wanted[work] = request
            self._wake.set()
        elif work in self._tokens and work not in self._releases:
            self._suspects.add(work)
            self._wake.set()

    async def _missing(self, suspects: Collection[Work]) -> list[Work]:
        """Return the claims whose owner znodes are gone although this worker has not released them."""
        return [
            work
            for work, node in (await self._read(suspects)).items()
            if work in self._tokens
            and work not in self._releases
            and (node is None or node.owner != self._session.id or node.czxid != self._tokens[work])
        ]

    async def _release(self, releases: Mapping[Work, _Request]) -> None:
        # An operator may have deleted an owner znode, and another worker may have created its own. The watch of that
        # znode fires before the answer to this write, so a claim whose watch has not fired need not be read again.
        await self._writer.prove()
        doubtful = {work for work in releases if work in self._fired or work not in self._tokens}
        waiting = releases.keys() - doubtful | self._mine(await self._read(doubtful))
        gone, refused = releases.keys() - waiting, set[Work]()

        def on_refused(work: Work, operation: Operation, failure: Failure) -> None:
            if not isinstance(operation, Delete):
                refused.add(work)

        while waiting:
            items = {work: (*releases[work].operations, Delete(self._layout.owner(*work))) for work in sorted(waiting)}
            outcome = await self._writer.write(items, on_refused)
            gone |= outcome.dropped.keys() - refused
            # If the answer was lost and the znode is gone, the release was done: the session was proved since.
            waiting = self._mine(await self._read(outcome.unknown)) if outcome.unknown else set()
        for work, request in releases.items():
            if self._releases.get(work) is request:
                del self._releases[work]
            if work not in refused:
                self._tokens.pop(work, None)
                self._forget(work)
            if work in gone and request.operations:
                request.fail(ClaimLostError(f"{work}: its claim {self._layout.owner(*work)} is gone"))
            else:
                request.finish(work not in refused)

    def _mine(self, found: Mapping[Work, Node | None]) -> set[Work]:
        return {work for work, node in found.items() if node is not None and node.owner == self._session.id}

    def _forget(self, work: Work) -> None:
        """Drop the watch of released work, unless a caller already claims the work again."""
        if work not in self._wanted and work not in self._contended:
            self._fired.discard(work)
            with suppress(KeyError):
                self._session.forget(self._watchers.pop(work))


def _stop_at_owner(work: Work, operation: Operation, failure: Failure) -> None:
    """Leave the remaining claims unwritten if this work has an owner already. This function is an ``OnRefused``."""
    if failure is Failure.NODE_EXISTS:
        give_up(work, operation, failure)


def _drop(work: Work, operation: Operation, failure: Failure) -> None:
    """Continue without the work that was refused. This function is an ``OnRefused``."""
