"""What a consumer tells the application: typed protocols, one hook each."""

from __future__ import annotations

from collections.abc import Awaitable, Collection
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from kiel_groups.model import TopicPartition

__all__ = ["RebalanceListener", "StallListener", "Stall", "StallKind"]


@runtime_checkable
class RebalanceListener(Protocol):
    """
    Called on the member's event loop, never two at once; a hook may be a plain function or a coroutine function.

    What raises in a hook is logged and counted, and the hand-over goes on.
    """

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> Awaitable[None] | None:
        """Before the partitions' offsets are committed and their claims released; may commit."""

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> Awaitable[None] | None:
        """After the partitions were claimed and their positions read, before the first record is handed out."""

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> Awaitable[None] | None:
        """The claims are gone, others may own the partitions already: forget their work, do not commit."""


#: What does not get on: a record or values in hand, a hook of the listener, or the event loop itself.
StallKind: TypeAlias = Literal["processing", "listener", "loop"]


@dataclass(frozen=True, slots=True)
class Stall:
    """
    The application has been busy with the same for too long.

    ``partitions`` are those that wait for it, none where the event loop is blocked. After ``limit_s`` seconds the
    member's session is closed.
    """

    kind: StallKind
    partitions: frozenset[TopicPartition]
    elapsed_s: float
    limit_s: float

    def __str__(self) -> str:
        subject = {
            "processing": "the application has been busy with the same record or values",
            "listener": "a hook of the listener has been running",
            "loop": "the event loop has been blocked",
        }[self.kind]
        setting = "loop_stall_ms" if self.kind == "loop" else "max_poll_interval_ms"
        waiting = "".join(f"; {first} waits for it" for first in sorted(self.partitions)[:1])
        if len(self.partitions) > 1:
            waiting += f", and {len(self.partitions) - 1} more"
        return f"{subject} for {self.elapsed_s:.1f} s of the {self.limit_s:g} s that {setting} allows{waiting}"


@runtime_checkable
class StallListener(Protocol):
    """
    What a listener may have besides: a hook that is told to hurry, before the watchdog ends the member's session.

    It is called on a daemon thread of its own, for the event loop may be what is blocked: it may set a flag that the
    work looks at, or dump the stacks. Never two calls at once; the session is closed in time whether or not it has
    returned. What raises in it, ``SystemExit`` included, is logged and counted, and ends nothing.
    """

    def on_stalled(self, stall: Stall) -> None:
        """Half of the time is over."""
