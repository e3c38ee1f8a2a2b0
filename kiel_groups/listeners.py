"""The protocols of listeners: hooks by which a consumer notifies the application."""

from __future__ import annotations

from collections.abc import Awaitable, Collection
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from kiel_groups.model import TopicPartition


@runtime_checkable
class RebalanceListener(Protocol):
    """
    Hooks that a member calls when it gains, gives up or loses partitions.

    Hooks run on the member's event loop, one at a time. A hook may be a plain function or a coroutine function. If the
    consumer is one of ``kiel_groups.sync``, plain functions run on a thread beside the loop, and may call the consumer.
    An exception in a hook is logged and counted, and the rebalance continues. A running coroutine is cancelled if all
    of its partitions are lost.

    A rebalance may call a hook several times. ``on_partitions_revoked`` is called first for the partitions without
    records in flight, and later for partitions whose records are finished meanwhile. ``on_partitions_assigned`` is
    called once for each topic, or for partitions that have become free together. In a group that ZooKeeper coordinates,
    the hooks get only partitions that move. In a group that brokers coordinate, the hooks get all partitions in each
    rebalance.
    """

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> Awaitable[None] | None:
        """
        Finish the work on partitions that the member gives up.

        The member calls this hook before it commits the partitions' offsets and releases the partitions. The hook may
        commit, too.

        Partitions whose hook has completed are not passed to ``on_partitions_lost``, even if the group then refuses
        their last commit. Partitions whose hook was cancelled are passed to ``on_partitions_lost``.
        """

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> Awaitable[None] | None:
        """
        Prepare for newly assigned partitions.

        The member owns the partitions and knows their start positions. The member delivers no record of these
        partitions before this hook ends. ``consumer.position(partition)`` returns the start position of a partition. A
        log line (INFO) says whether the start position is the stored offset or was chosen by ``auto_offset_reset``. The
        hook may seek to another position. If the hook raises an exception, records are delivered all the same, from the
        position at that moment.
        """

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> Awaitable[None] | None:
        """
        Drop partitions that the member has lost, for example because its session expired.

        The member calls this hook in place of ``on_partitions_revoked``, or after it has cancelled that hook. Other
        members may own the partitions already: the hook must discard unfinished work on them, and must not commit.
        """


#: The part that makes no progress: in-flight records, a hook of the listener, or the event loop itself.
StallKind: TypeAlias = Literal["processing", "listener", "loop"]


@dataclass(frozen=True, slots=True)
class Stall:
    """
    A report that the application has made no progress for ``elapsed_s`` seconds.

    ``partitions`` names the partitions that wait for the application; it is empty if the event loop is blocked. At
    ``limit_s`` seconds the watchdog closes the member's session.
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
    An optional hook of a listener: a warning before the watchdog closes the member's session.

    The hook runs on a daemon thread of its own, because the event loop itself may be blocked; calls never overlap. The
    hook can set a flag that the application checks, or dump the stacks of all threads. The session is closed at the
    limit whether or not the hook has returned. Any exception in the hook, even ``SystemExit``, is only logged and
    counted.
    """

    def on_stalled(self, stall: Stall) -> None:
        """React to a stall: half of a time limit has passed without progress."""
