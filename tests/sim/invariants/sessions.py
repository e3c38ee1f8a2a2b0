"""Sessions: a member neither delivers nor writes after the end of its session."""

from __future__ import annotations

from tests.fakes.fake_ensemble import Entry
from tests.sim.invariants.invariant import Invariant

__all__ = ["GateShutBeforeSessionEnds", "NoWriteAfterSessionEnd", "NoWriteOnReopenedSession"]


class GateShutBeforeSessionEnds(Invariant):
    """A member's session ends only after the member's gate is shut."""

    def on_entry(self, entry: Entry) -> None:
        consumer = self.history.sessions.user(entry.session_id) if entry.closes else None
        if consumer is not None and consumer.gate_is_open:
            raise self.violation(f"the session of {consumer.name} ends, and its gate is open")


class NoWriteAfterSessionEnd(Invariant):
    """A session that has ended writes nothing."""

    def on_entry(self, entry: Entry) -> None:
        if not entry.closes and entry.changes and entry.session_id in self.history.sessions.ended:
            raise self.violation(f"a session that has ended writes {entry.changes[0].path}")


class NoWriteOnReopenedSession(Invariant):
    """A member writes nothing on a session that kazoo opened by itself after the member's own session had ended."""

    def on_entry(self, entry: Entry) -> None:
        if not entry.closes and entry.changes and entry.session_id in self.history.sessions.reopened:
            raise self.violation(f"a member writes {entry.changes[0].path} on a session that kazoo opened by itself")
