"""The znodes of one server, and what each request does to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
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
    """``creates`` counts the children that were ever created, ``owner`` is the session of an ephemeral one, else 0."""

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
    One znode's change; ``znode`` is what stands there afterwards, or what stood there, where it was deleted.

    ``above`` is its parent as it is afterwards, where that changes, too: what a leader decides, followers only copy.
    """

    kind: Kind
    path: str
    znode: Znode
    parent: str = ""
    above: Znode | None = None


@dataclass(slots=True)
class _Attempt:
    """One write on its way: whose it is, what it changed, and what stood there before."""

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

    ``perform`` is what a leader does: it decides, and says what changes. ``apply`` repeats those changes on a follower.
    Both are whole or not at all.
    """

    def __init__(self) -> None:
        root = Znode(b"", 0, 0, 0, 0, 0)
        self.znodes: dict[str, Znode] = {"/": root}
        #: Names of children, in the order of their creation (a real server has no order).
        self._children: dict[str, dict[str, None]] = {"/": {}}
        self._ephemerals: dict[int, dict[str, None]] = {}

    def get(self, path: str) -> Znode:
        """
        Raises:
            NoNodeError: There is none.
        """
        znode = self.znodes.get(path)
        if znode is None:
            raise NoNodeError()
        return znode

    def children(self, path: str) -> list[str]:
        """
        Raises:
            NoNodeError: There is no such znode.
        """
        self.get(path)
        return list(self._children[path])

    def ephemerals(self, session_id: int) -> list[str]:
        """The paths of a session's ephemeral znodes."""
        return list(self._ephemerals.get(session_id, ()))

    def stat(self, path: str) -> ZnodeStat:
        """
        Raises:
            NoNodeError: There is no such znode.
        """
        data, czxid, mzxid, pzxid, ctime, mtime, version, creates, owner = self.get(path)
        children = len(self._children[path])
        # Creations and deletions of children, of which only the first are counted.
        cversion = 2 * creates - children
        return ZnodeStat(czxid, mzxid, ctime, mtime, version, cversion, 0, owner, len(data), children, pzxid)

    # Deciding

    def perform(self, request: Any, session_id: int, zxid: int, now_ms: int) -> tuple[Any, list[Change]]:
        """
        Do what one write asks for.

        Returns:
            What kazoo is to make of the answer, and what changed. A refused transaction changes nothing, and says so in
            its results.

        Raises:
            KazooException: It is refused, and nothing changed.
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
        """Delete what a session leaves behind."""
        attempt = _Attempt(session_id, zxid, 0)
        for path in self.ephemerals(session_id):
            self._do(self._deletion(path, self.znodes[path], zxid), attempt)
        return attempt.changes

    def _create(self, request: Any, attempt: _Attempt) -> Any:
        parent = parent_of(request.path)
        above = self.get(parent)
        path = f"{request.path}{above.creates:010d}" if request.flags & SEQUENCE else request.path
        if path in self.znodes:
            raise NodeExistsError()
        if above.owner:
            raise NoChildrenForEphemeralsError()
        owner = attempt.session_id if request.flags & EPHEMERAL else 0
        zxid, now_ms = attempt.zxid, attempt.now_ms
        znode = Znode(request.data, zxid, zxid, zxid, now_ms, now_ms, owner=owner)
        above = above._replace(creates=above.creates + 1, pzxid=zxid)
        self._do(Change(Kind.CREATED, path, znode, parent, above), attempt)
        return (path, self.stat(path)) if isinstance(request, Create2) else path

    def _set(self, request: Any, attempt: _Attempt) -> Any:
        before = self._at_version(request)
        after = before._replace(data=request.data, mzxid=attempt.zxid, mtime=attempt.now_ms, version=before.version + 1)
        self._do(Change(Kind.CHANGED, request.path, after), attempt)
        return self.stat(request.path)

    def _delete(self, request: Any, attempt: _Attempt) -> Any:
        before = self._at_version(request)
        if self._children[request.path]:
            raise NotEmptyError()
        self._do(self._deletion(request.path, before, attempt.zxid), attempt)
        return True

    def _deletion(self, path: str, before: Znode, zxid: int) -> Change:
        parent = parent_of(path)
        return Change(Kind.DELETED, path, before._replace(pzxid=zxid), parent, self.znodes[parent]._replace(pzxid=zxid))

    def _check(self, request: Any, attempt: _Attempt) -> Any:
        self._at_version(request)
        return True

    def _at_version(self, request: Any) -> Znode:
        znode = self.get(request.path)
        if request.version not in (-1, znode.version):
            raise BadVersionError()
        return znode

    # Doing

    def _do(self, change: Change, attempt: _Attempt) -> None:
        attempt.before.append((self.znodes.get(change.path), self.znodes.get(change.parent)))
        attempt.changes.append(change)
        self.apply(change)

    def apply(self, change: Change) -> None:
        """Make a change that a leader decided on."""
        kind, path, znode, parent, above = change
        if kind is Kind.CHANGED:
            self.znodes[path] = znode
        elif above is not None:
            self.znodes[parent] = above
            if kind is Kind.CREATED:
                self._put(path, parent, znode)
            else:
                self._drop(path, parent, znode)

    def _undo(self, attempt: _Attempt) -> None:
        for (kind, path, znode, parent, _), (before, above) in zip(
            reversed(attempt.changes), reversed(attempt.before), strict=True
        ):
            if kind is Kind.CREATED:
                self._drop(path, parent, znode)
            elif kind is Kind.DELETED:
                self._put(path, parent, znode)
            if before is not None:
                self.znodes[path] = before
            if above is not None:
                self.znodes[parent] = above

    def _put(self, path: str, parent: str, znode: Znode) -> None:
        self.znodes[path] = znode
        self._children[path] = {}
        self._children[parent][path.rpartition("/")[2]] = None
        if znode.owner:
            self._ephemerals.setdefault(znode.owner, {})[path] = None

    def _drop(self, path: str, parent: str, znode: Znode) -> None:
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
