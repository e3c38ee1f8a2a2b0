"""The znodes of one server, and the changes that each request makes to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.serialization import CheckVersion, Create, Create2, Delete, SetData, Transaction
from kazoo.protocol.states import ZnodeStat

__all__ = ["Tree", "Znode", "Change", "Kind"]

EPHEMERAL, SEQUENCE = 1, 2


class Znode(NamedTuple):
    """
    A znode. ``creates`` counts all children ever created. ``owner`` is an ephemeral znode's session, or 0 for other
    znodes.
    """

    data: bytes
    czxid: int
    mzxid: int
    pzxid: int
    ctime: int
    mtime: int
    version: int = 0
    creates: int = 0
    owner: int = 0


class Kind(Enum):
    CREATED = auto()
    CHANGED = auto()
    DELETED = auto()


class Change(NamedTuple):
    """
    A change of one znode. ``znode`` is its new state, or its last state if it is deleted.

    ``new_parent`` is the new state of its parent, if the parent changes, too. Followers copy both states from the
    leader.
    """

    kind: Kind
    path: str
    znode: Znode
    parent: str = ""
    new_parent: Znode | None = None


@dataclass(slots=True)
class _Attempt:
    """A write in progress: its session, its changes, and the earlier states to restore if it fails."""

    session_id: int
    zxid: int
    now_ms: int
    changes: list[Change] = field(default_factory=list)
    before: list[tuple[Znode | None, Znode | None]] = field(default_factory=list)


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


class Tree:
    """
    Znodes by path.

    The leader calls ``perform``, which validates a request, makes its changes and returns them. Followers ``apply``
    these changes. A refused request makes no changes.
    """

    def __init__(self) -> None:
        root = Znode(b"", 0, 0, 0, 0, 0)
        self.znodes: dict[str, Znode] = {"/": root}
        #: Names of children in the order of their creation. Real servers return them in no particular order.
        self._children: dict[str, dict[str, None]] = {"/": {}}
        self._ephemerals: dict[int, dict[str, None]] = {}
        #: The rights that all clients lack, each with the path of the znode whose ACL denies it.
        self.denied: set[tuple[str, str]] = set()

    def get(self, path: str) -> Znode:
        """
        Return a znode.

        Raises:
            NoNodeError: The znode does not exist.
        """
        znode = self.znodes.get(path)
        if znode is None:
            raise NoNodeError()
        return znode

    def require(self, right: str, path: str) -> None:
        """
        Check that an ACL does not deny a right.

        Raises:
            NoAuthError: Clients lack the right.
        """
        if (right, path) in self.denied:
            raise NoAuthError()

    def children(self, path: str) -> list[str]:
        """
        Return the names of a znode's children.

        Raises:
            NoNodeError: The znode does not exist.
        """
        self.get(path)
        return list(self._children[path])

    def ephemerals(self, session_id: int) -> list[str]:
        """Return the paths of a session's ephemeral znodes."""
        return list(self._ephemerals.get(session_id, ()))

    def stat(self, path: str) -> ZnodeStat:
        """
        Return a znode's stat.

        Raises:
            NoNodeError: The znode does not exist.
        """
        data, czxid, mzxid, pzxid, ctime, mtime, version, creates, owner = self.get(path)
        children = len(self._children[path])
        # cversion counts creations and deletions of children: deletions are creations minus present children.
        cversion = 2 * creates - children
        return ZnodeStat(czxid, mzxid, ctime, mtime, version, cversion, 0, owner, len(data), children, pzxid)

    # Requests, on the leader

    def perform(self, request: Any, session_id: int, zxid: int, now_ms: int) -> tuple[Any, list[Change]]:
        """
        Perform a write.

        Returns:
            The result, as kazoo decodes it, and the changes. A refused transaction makes no changes, and its results
            are exceptions.

        Raises:
            KazooException: The request is refused and makes no changes.
        """
        attempt = _Attempt(session_id, zxid, now_ms)
        if not isinstance(request, Transaction):
            return _PERFORM[type(request)](self, request, attempt), attempt.changes
        results: list[Any] = []
        for operation in request.operations:
            try:
                results.append(_PERFORM[type(operation)](self, operation, attempt))
            except KazooException as error:
                self._undo(attempt)
                after = len(request.operations) - len(results) - 1
                return [
                    *(RolledBackError() for _ in results),
                    error,
                    *(RuntimeInconsistency() for _ in range(after)),
                ], []
        return results, attempt.changes

    def end_session(self, session_id: int, zxid: int) -> list[Change]:
        """Delete a session's ephemeral znodes, and return the changes."""
        attempt = _Attempt(session_id, zxid, 0)
        for path in self.ephemerals(session_id):
            self._make_change(self._deletion(path, self.znodes[path], zxid), attempt)
        return attempt.changes

    def _create(self, request: Any, attempt: _Attempt) -> Any:
        parent = parent_of(request.path)
        old_parent = self.get(parent)
        self.require("create", parent)
        path = f"{request.path}{old_parent.creates:010d}" if request.flags & SEQUENCE else request.path
        if path in self.znodes:
            raise NodeExistsError()
        if old_parent.owner:
            raise NoChildrenForEphemeralsError()
        owner = attempt.session_id if request.flags & EPHEMERAL else 0
        zxid, now_ms = attempt.zxid, attempt.now_ms
        znode = Znode(request.data, zxid, zxid, zxid, now_ms, now_ms, owner=owner)
        new_parent = old_parent._replace(creates=old_parent.creates + 1, pzxid=zxid)
        self._make_change(Change(Kind.CREATED, path, znode, parent, new_parent), attempt)
        return (path, self.stat(path)) if isinstance(request, Create2) else path

    def _set(self, request: Any, attempt: _Attempt) -> Any:
        before = self._get_at_version(request, "write", request.path)
        after = before._replace(data=request.data, mzxid=attempt.zxid, mtime=attempt.now_ms, version=before.version + 1)
        self._make_change(Change(Kind.CHANGED, request.path, after), attempt)
        return self.stat(request.path)

    def _delete(self, request: Any, attempt: _Attempt) -> Any:
        before = self._get_at_version(request, "delete", parent_of(request.path))
        if self._children[request.path]:
            raise NotEmptyError()
        self._make_change(self._deletion(request.path, before, attempt.zxid), attempt)
        return True

    def _deletion(self, path: str, before: Znode, zxid: int) -> Change:
        parent = parent_of(path)
        return Change(Kind.DELETED, path, before._replace(pzxid=zxid), parent, self.znodes[parent]._replace(pzxid=zxid))

    def _check(self, request: Any, attempt: _Attempt) -> Any:
        self._get_at_version(request, "read", request.path)
        return True

    def _get_at_version(self, request: Any, right: str, of: str) -> Znode:
        """Return the znode of a request that needs this right of the ACL of the znode ``of``."""
        znode = self.get(request.path)
        self.require(right, of)
        if request.version not in (-1, znode.version):
            raise BadVersionError()
        return znode

    # Changes, on every server

    def _make_change(self, change: Change, attempt: _Attempt) -> None:
        attempt.before.append((self.znodes.get(change.path), self.znodes.get(change.parent)))
        attempt.changes.append(change)
        self.apply(change)

    def apply(self, change: Change) -> None:
        """Apply a change that the leader's ``perform`` has returned."""
        kind, path, znode, parent, new_parent = change
        if kind is Kind.CHANGED:
            self.znodes[path] = znode
        elif new_parent is not None:
            self.znodes[parent] = new_parent
            if kind is Kind.CREATED:
                self._add(path, parent, znode)
            else:
                self._remove(path, parent, znode)

    def _undo(self, attempt: _Attempt) -> None:
        for (kind, path, znode, parent, _), (before, parent_before) in zip(
            reversed(attempt.changes), reversed(attempt.before), strict=True
        ):
            if kind is Kind.CREATED:
                self._remove(path, parent, znode)
            elif kind is Kind.DELETED:
                self._add(path, parent, znode)
            if before is not None:
                self.znodes[path] = before
            if parent_before is not None:
                self.znodes[parent] = parent_before

    def _add(self, path: str, parent: str, znode: Znode) -> None:
        self.znodes[path] = znode
        self._children[path] = {}
        self._children[parent][path.rpartition("/")[2]] = None
        if znode.owner:
            self._ephemerals.setdefault(znode.owner, {})[path] = None

    def _remove(self, path: str, parent: str, znode: Znode) -> None:
        del self.znodes[path], self._children[path]
        del self._children[parent][path.rpartition("/")[2]]
        if znode.owner:
            del self._ephemerals[znode.owner][path]


_PERFORM: dict[type, Callable[[Tree, Any, _Attempt], Any]] = {
    Create: Tree._create,
    Create2: Tree._create,
    SetData: Tree._set,
    Delete: Tree._delete,
    CheckVersion: Tree._check,
}
