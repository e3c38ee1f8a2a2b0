"""Values that a leader has read and watches: each is read again only after its watch has fired."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from kiel_groups.coordination.session.session_context import SessionContext
from kiel_groups.coordination.session.zk_session import Node
from kiel_groups.errors import ProtocolError

__all__ = ["WatchedValues"]

log = logging.getLogger(__name__)

_Parsed = TypeVar("_Parsed")


class WatchedValues:
    """
    The values of one leader, on its session.

    ``on_change`` is called with a text that names the change, such as "member m1 changed".
    """

    def __init__(self, context: SessionContext, on_change: Callable[[str], None]) -> None:
        self._session = context.session
        self._group = context.group
        self._metrics = context.metrics
        self._on_change = on_change
        self._watchers: dict[str, Callable[[], None]] = {}
        #: Values that were read and have not changed since, by the name of their watcher.
        self._known: dict[str, Any] = {}
        self._reading: dict[str, object] = {}

    def forget(self) -> None:
        """Drop all cached values, because their watches may be lost."""
        self._known.clear()
        self._reading.clear()

    def watcher(self, what: str) -> Callable[[], None]:
        """Return the one watcher for a kind of change, so that renewed watches do not accumulate."""
        return self._watchers.setdefault(what, partial(self._changed, what))

    def _changed(self, what: str) -> None:
        self._known.pop(what, None)
        self._reading.pop(what, None)
        self._on_change(f"{what} changed")

    async def cached(self, what: str, read: Callable[[], Awaitable[_Parsed]]) -> _Parsed:
        """Return a value, cached until its watch fires. A value whose watch fires during the read is not cached."""
        if what in self._known:
            known: _Parsed = self._known[what]
            return known
        reading = self._reading[what] = object()
        found = await read()
        if self._reading.pop(what, None) is reading:
            self._known[what] = found
        return found

    async def cached_many(
        self,
        kind: str,
        names: Iterable[str],
        path_of: Callable[[str], str],
        parse: Callable[[str, Node], _Parsed | None],
    ) -> dict[str, _Parsed | None]:
        """Return values of one kind by name, cached as by ``cached``, or None for a missing or unreadable znode."""
        whats = {name: f"{kind} {name}" for name in names}
        values = {name: self._known.get(what) for name, what in whats.items()}
        unread = {name: what for name, what in whats.items() if what not in self._known}
        reading = object()
        self._reading |= dict.fromkeys(unread.values(), reading)
        nodes = await self.watched_many([path_of(name) for name in unread], unread.values())
        for (name, what), node in zip(unread.items(), nodes, strict=True):
            values[name] = None if node is None else parse(name, node)
            if self._reading.pop(what, None) is reading:
                self._known[what] = values[name]
        return values

    def drop(self, what: str) -> None:
        """Forget a value that will not be read again, and its watcher."""
        self._known.pop(what, None)
        self._reading.pop(what, None)
        watcher = self._watchers.pop(what, None)
        if watcher is not None:
            self._session.forget(watcher)

    async def watched(self, path: str, what: str) -> Node | None:
        """Read a znode and watch it. If it does not exist, return None and watch for its creation."""
        return (await self.watched_many([path], [what]))[0]

    async def watched_many(self, paths: Sequence[str], whats: Iterable[str]) -> list[Node | None]:
        """
        Read znodes and watch them. For each znode that does not exist, return None and watch for its creation.

        One call reads all znodes, instead of one task for each znode. So the session limits how many reads are in
        flight ahead of a heartbeat, however many members and topics there are.
        """
        watchers = [self.watcher(what) for what in whats]
        nodes = await self._session.get_many(paths, watchers)
        absent = [number for number, node in enumerate(nodes) if node is None]
        answers = await self._session.exists_many([paths[n] for n in absent], [watchers[n] for n in absent])
        # Znodes that were created between the two reads.
        late = [number for number, node in zip(absent, answers, strict=True) if node is not None]
        found = await self._session.get_many([paths[n] for n in late], [watchers[n] for n in late])
        for number, node in zip(late, found, strict=True):
            nodes[number] = node
        return nodes

    def parsed(self, parse: Callable[[bytes, str], _Parsed], node: Node, path: str) -> _Parsed | None:
        """Parse a znode's value. If the value is invalid, log an error and return None."""
        try:
            return parse(node.data, path)
        except ProtocolError as error:
            log.error("group %s: %s; ignoring it", self._group, error)
            self._metrics.count("znodes_unreadable")
            return None
