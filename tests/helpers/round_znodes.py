"""A session with the znodes of one group of programs, which a test reads, writes and watches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from kiel_groups.errors import SessionLostError
from kiel_groups.group.znodes.round_contents import Offer, OfferedProtocol, RoundLayout, RoundMember
from kiel_groups.group.znodes.transactions import Answer, Check, Create, Delete, Done, Failure, Operation, Put, Refused
from kiel_groups.zookeeper.session import Node

__all__ = ["CANDIDATE", "LAYOUT", "OFFER", "RoundZnodes", "member_of"]

LAYOUT = RoundLayout("g")
CANDIDATE = f"{LAYOUT.election}/c"
OFFER = Offer("type", (OfferedProtocol("p", b"data"),))

Watcher = Callable[[], None]


def member_of(name: str, joined: int, offer: Offer = OFFER) -> bytes:
    """Return the data of a member's znode."""
    return RoundMember(member_id=name, joined=joined, offer=offer).encode()


class RoundZnodes:
    """
    A session. ``answers`` replaces those to its next transactions; None executes the transaction.

    ``written`` lists the executed transactions. Watchers fire at the next change by ``put`` and ``delete``, or by a
    transaction.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, bytes] = {CANDIDATE: b""}
        self.versions: dict[str, int] = {}
        self.created: dict[str, int] = {}
        self.written: list[tuple[Operation, ...]] = []
        self.answers: list[Answer | None] = []
        self.ensured: list[Collection[str]] = []
        self.end_reasons: list[str] = []
        self.timeout_ms = 10_000
        self.id = 1
        self._watchers: dict[str, list[Watcher]] = {}

    # A test's changes

    def put(self, path: str, data: bytes) -> None:
        """Create or replace a znode."""
        is_new = path not in self.nodes
        self.versions[path] = 0 if is_new else self.versions.get(path, 0) + 1
        if is_new:
            self.created[path] = len(self.created) + 1
        self.nodes[path] = data
        self._fire(path, with_parent=is_new)

    def delete(self, path: str) -> None:
        """Delete a znode."""
        del self.nodes[path]
        self._fire(path, with_parent=True)

    def _fire(self, path: str, *, with_parent: bool) -> None:
        paths = [path, f"{path.rpartition('/')[0]}//"] if with_parent else [path]
        for each in paths:
            for watcher in self._watchers.pop(each, []):
                watcher()

    def _watch(self, path: str, watcher: Watcher | None) -> None:
        if watcher is not None and watcher not in self._watchers.setdefault(path, []):
            self._watchers[path].append(watcher)

    # The session

    async def submit(self, operations: Iterable[Operation]) -> Answer:
        return await self.transact(operations)

    async def transact(self, operations: Iterable[Operation]) -> Answer:
        listed = tuple(operations)
        if self.answers and (answer := self.answers.pop(0)) is not None:
            return answer
        for number, operation in enumerate(listed):
            is_there = operation.path in self.nodes
            version = getattr(operation, "version", -1)
            if isinstance(operation, Create) and is_there:
                return Refused(number, Failure.NODE_EXISTS)
            if not isinstance(operation, Create) and not is_there:
                return Refused(number, Failure.NO_NODE)
            if version not in (-1, self.versions.get(operation.path, 0)):
                return Refused(number, Failure.BAD_VERSION)
        self.written.append(listed)
        for operation in listed:
            match operation:
                case Create(path, data) | Put(path, data):
                    self.put(path, data)
                case Delete(path):
                    self.delete(path)
                case Check():
                    pass
        return Done((None,) * len(listed), (None,) * len(listed))

    async def ensure(self, folders: Collection[str]) -> None:
        self.ensured.append(folders)

    async def get(self, path: str, watcher: Watcher | None = None) -> Node | None:
        if path not in self.nodes:
            return None
        self._watch(path, watcher)
        return Node(self.nodes[path], self.versions.get(path, 0), self.created.get(path, 0), 0, 0)

    async def exists(self, path: str, watcher: Watcher | None = None) -> Node | None:
        self._watch(path, watcher)
        return await self.get(path)

    async def children(self, path: str, watcher: Watcher | None = None) -> list[str] | None:
        self._watch(f"{path}//", watcher)
        return [name for folder, _, name in (each.rpartition("/") for each in self.nodes) if folder == path]

    async def get_many(self, paths: Sequence[str], watchers: Iterable[Watcher] | None = None) -> list[Node | None]:
        listed = list(watchers or [None] * len(paths))
        return [await self.get(path, watcher) for path, watcher in zip(paths, listed, strict=True)]

    async def exists_many(self, paths: Sequence[str], watchers: Iterable[Watcher]) -> list[Node | None]:
        return [await self.exists(path, watcher) for path, watcher in zip(paths, watchers, strict=True)]

    def forget(self, watcher: Watcher) -> None:
        for each in self._watchers.values():
            while watcher in each:
                each.remove(watcher)

    def end(self, reason: str) -> None:
        self.end_reasons.append(reason)

    @property
    def ended(self) -> str:
        return self.end_reasons[0] if self.end_reasons else ""

    def lost(self) -> SessionLostError:
        return SessionLostError("over")
