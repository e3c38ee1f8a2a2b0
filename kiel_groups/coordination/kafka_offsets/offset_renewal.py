"""Commit stored offsets again: brokers before Kafka 2.1 let them expire a day after the commit."""

from __future__ import annotations

import asyncio

from kiel_groups.coordination.offsets.owned_offsets import OwnedOffsets
from kiel_groups.coordination.session.session_context import MemberContext
from kiel_groups.group.member.partition_offsets import Commit

__all__ = ["OffsetRenewal"]

#: How often stored offsets are committed again, in seconds; brokers keep them for a day by default.
RENEWAL_S = 3_600.0


class OffsetRenewal:
    """
    Renews the stored offsets of one member's partitions during one session.

    If the outcome of a commit is unknown, Kafka may have a newer offset, which the next commit settles.
    """

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
                states = {each: self._tracker.of(each) for each in sorted(self._tracker.open_partitions())}
                again = {
                    partition: Commit(state.committed, state.version)
                    for partition, state in states.items()
                    if state is not None and not state.sent
                }
                if again:
                    await self._owned.attempt(again)
