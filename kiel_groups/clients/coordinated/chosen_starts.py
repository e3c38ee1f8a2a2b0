"""
Let the application choose where assigned partitions start, if the group has no offsets and may reset none.

With ``auto_offset_reset="none"``, a partition without an offset of the group is not opened. The application commits an
offset for it, as with other clients, and it is opened there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress

from kiel_groups.clients.coordinated.coordinator_commits import CoordinatorOffsets
from kiel_groups.errors import CommitFailedError
from kiel_groups.model import TopicPartition
from kiel_groups.wording import some

__all__ = ["ChosenStarts"]


class ChosenStarts:
    """
    The partitions of the present assignment that start where the application commits.

    A look-up of start positions reports them by ``lack``. Their commit stores the offset, in the generation of the
    assignment only, and has ``pause`` of the look-up end, so that it finds the offset at once.

    Args:
        group: The group's name.
        offsets: Stores the offsets.
        timeout_s: How long a commit waits until its partitions are open, in seconds.
    """

    def __init__(self, group: str, offsets: CoordinatorOffsets, timeout_s: float) -> None:
        self._group = group
        self._offsets = offsets
        self._timeout_s = timeout_s
        #: For each partition without a start, an event that is set once it is open, or assigned no more.
        self._lacking: dict[TopicPartition, asyncio.Event] = {}
        #: Set, and replaced, when the application has chosen starts.
        self._chosen = asyncio.Event()

    def lack(self, partitions: Collection[TopicPartition]) -> None:
        """Accept commits for these partitions, which have no start."""
        for partition in partitions:
            self._lacking.setdefault(partition, asyncio.Event())

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Accept no further commits: these partitions are open, or assigned no more."""
        for partition in partitions:
            if (event := self._lacking.pop(partition, None)) is not None:
                event.set()

    def next_choice(self) -> asyncio.Event:
        """Return an event that is set by the next choice; a look-up takes it before it asks the coordinator."""
        return self._chosen

    async def pause(self, choice: asyncio.Event, seconds: float) -> None:
        """Wait before the next look-up; a choice ends the pause."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await choice.wait()

    def among(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the offsets of partitions without a start."""
        return {partition: offset for partition, offset in offsets.items() if partition in self._lacking}

    async def commit(self, starts: Mapping[TopicPartition, int]) -> frozenset[TopicPartition]:
        """
        Store starts of partitions that ``among`` has returned, and wait until they are open, or assigned no more.

        Raises:
            SessionLostError: The membership, or its generation, is over.
            CommitFailedError: The coordinator has refused a start, or has not confirmed it in time.
        """
        opened = [self._lacking[partition] for partition in starts if partition in self._lacking]
        stored = await self._offsets.store(starts)
        self._chosen.set()
        self._chosen = asyncio.Event()
        if refused := sorted(starts.keys() - stored):
            raise CommitFailedError(
                f"group {self._group}: commit(): {some(refused)} not stored: the coordinator has refused it, as the log"
                " says" + (f" (stored: {some(sorted(stored))})" if stored else "")
            )
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                for event in opened:
                    await event.wait()
        return stored
