"""The consumers' ZooKeeper sessions: which consumer opened each, and which have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fakes.fake_ensemble import Entry

if TYPE_CHECKING:
    from tests.sim.consumer import Consumer

__all__ = ["Sessions"]


class Sessions:
    """The consumers' sessions. Sessions of operators and brokers are not recorded."""

    def __init__(self) -> None:
        self.consumers: dict[int, Consumer] = {}
        #: Sessions that no member uses: kazoo opened them after an expiry, or for a client that was given up.
        self.reopened: set[int] = set()
        self.ended: set[int] = set()
        #: The newest session that each consumer's member opened.
        self._present: dict[Consumer, int] = {}

    def open(self, consumer: Consumer, session_id: int, *, is_first: bool) -> None:
        """Record a new session of a consumer. The consumer's member may use the session only if ``is_first``."""
        self.consumers[session_id] = consumer
        if is_first:
            self._present[consumer] = session_id
        else:
            self.reopened.add(session_id)

    def record(self, entry: Entry) -> None:
        """Record the session's end if the entry closes its session."""
        if entry.closes:
            self.ended.add(entry.session_id)

    def is_member(self, entry: Entry) -> bool:
        """Return whether a consumer wrote the entry, rather than an operator or a broker."""
        return entry.session_id in self.consumers

    def writer(self, entry: Entry) -> Consumer:
        """Return the consumer that wrote an entry."""
        return self.consumers[entry.session_id]

    def user(self, session_id: int) -> Consumer | None:
        """Return the consumer whose current session this is, or None."""
        consumer = self.consumers.get(session_id)
        return consumer if consumer is not None and self._present.get(consumer) == session_id else None
