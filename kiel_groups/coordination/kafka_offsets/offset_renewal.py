"""Commit the offsets of idle partitions again: brokers before Kafka 2.1 let them expire a day after the commit."""

from __future__ import annotations

import asyncio

from kiel_groups.coordination.offsets.owned_offsets import OwnedOffsets
from kiel_groups.coordination.session.session_context import MemberContext
from kiel_groups.group.member.partition_offsets import Commit

__all__ = ["OffsetRenewal"]

#: How often the offsets of idle partitions are committed again, in seconds; brokers keep them for a day by default.
RENEWAL_S = 3_600.0


class OffsetRenewal:
    """Renews the offsets of one member's idle partitions during one session."""

    def __init__(self, context: MemberContext, owned: OwnedOffsets) -> None:
        self._tracker = context.tracker
        self._runtime = context.runtime
        self._owned = owned

    async def run(self) -> None:
        """Renew the offsets again and again, until this task is cancelled or the session is over."""
        while True:
            # With jitter, so that a thousand members do not commit together.
            await asyncio.sleep(RENEWAL_S * self._runtime.uniform(0.67, 1.0))
            async with self._owned.writing:
                idle = self._tracker.open_partitions() - self._tracker.commits().keys()
                states = {partition: self._tracker.of(partition) for partition in sorted(idle)}
                again = {p: Commit(state.committed, state.version) for p, state in states.items() if state is not None}
                if again:
                    await self._owned.attempt(again)
