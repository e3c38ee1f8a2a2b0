"""Decide whether a member on ZooKeeper may use its assignment: while its session and its generation last."""

from __future__ import annotations

from kiel_groups.clients.coordinator.generation_gate import GenerationGate
from kiel_groups.coordination.session.delivery_gate import DeliveryGate
from kiel_groups.model import GenerationToken

__all__ = ["SessionGate"]


class SessionGate(GenerationGate):
    """
    The gate of one member in one generation, whose lease is that of its ZooKeeper session.

    Args:
        token: The generation and the member id.
        session: The gate of the session.
        sent_s: The boot time at which the member asked for its assignment.
    """

    def __init__(self, token: GenerationToken, session: DeliveryGate, sent_s: float) -> None:
        super().__init__(token, session.timeout_ms, sent_s)
        self._session = session

    @property
    def deadline_s(self) -> float:
        """The end of the session's lease, in seconds of boot time; the session's heartbeat renews it."""
        return self._session.deadline_s

    def is_open(self, now_s: float) -> bool:
        """Return whether the assignment may be used at the boot time ``now_s``."""
        return not self.is_shut and self._session.is_open(now_s)
