"""Which session belongs to which consumer, and what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiel_groups.testing.fake_ensemble import Entry

if TYPE_CHECKING:
    from tests.sim.consumer import Consumer

__all__ = ["Sessions"]


class Sessions:
    """The consumers' sessions; those of operators and brokers are left out."""

    def __init__(self) -> None:
        self.consumers: dict[int, Consumer] = {}
        #: Sessions that no member asked for any more: kazoo opened them by itself, or too late.
        self.reopened: set[int] = set()
        self.ended: set[int] = set()
        #: Each consumer's newest session of those that its members opened.
        self._present: dict[Consumer, int] = {}

    def open(self, consumer: Consumer, session_id: int, *, is_first: bool) -> None:
        """Record that a client of a consumer has a session; only the first of its newest client is to be used."""
        self.consumers[session_id] = consumer
        if is_first:
            self._present[consumer] = session_id
        else:
            self.reopened.add(session_id)

    def record(self, entry: Entry) -> None:
        """Record the end of a session."""
        if entry.closes:
            self.ended.add(entry.session_id)

    def is_member(self, entry: Entry) -> bool:
        """Whether a consumer wrote an entry, and no operator or broker."""
        return entry.session_id in self.consumers

    def writer(self, entry: Entry) -> Consumer:
        """The consumer that wrote an entry."""
        return self.consumers[entry.session_id]

    def user(self, session_id: int) -> Consumer | None:
        """The consumer whose present session this is, if any."""
        consumer = self.consumers.get(session_id)
        return consumer if consumer is not None and self._present.get(consumer) == session_id else None
