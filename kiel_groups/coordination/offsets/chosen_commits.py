"""
Commit the offsets that an application chose itself, and explain why offsets are refused.

``OffsetTracker.choose`` decides what may be stored. The offsets are then stored as finished ones are: under the same
lock, against the same versions, with the same fence.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NoReturn

from kiel_groups.coordination.offsets.owned_offsets import Attempt, OwnedOffsets
from kiel_groups.errors import CommitFailedError, ConfigError
from kiel_groups.group.member.offset_tracker import OffsetTracker
from kiel_groups.group.member.partition_offsets import Commit, Refusal, StoredOffset
from kiel_groups.model import TopicPartition
from kiel_groups.wording import some

__all__ = ["ChosenCommits"]

_OUTDATED = "its topic was created again, so the offset may be of the old log; commit records of the new one"


class ChosenCommits:
    """
    Stores offsets that the application chose, of partitions that the member owns.

    ``owner_of`` returns the words that name the owner of a partition that this member does not own.
    """

    def __init__(
        self,
        group: str,
        tracker: OffsetTracker,
        owned: OwnedOffsets,
        owner_of: Callable[[TopicPartition], Awaitable[str]],
    ) -> None:
        self._group = group
        self._tracker = tracker
        self._owned = owned
        self._owner_of = owner_of

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> frozenset[TopicPartition]:
        """
        Store next offsets that the application chose. If the tracker refuses one of them, nothing is stored.

        Returns:
            The partitions: all offsets are stored.

        Raises:
            ConfigError: An offset is before the floor of the claim, beyond its position, or beyond a truncated log.
            CommitFailedError: A partition is not owned or has a new log, another writer has changed an offset, an
                offset was delivered before delivery started again elsewhere, as after a lost session, or brokers have
                not stored one. Other offsets of the call may be stored: the message names them.
            SessionLostError: The session is over; it is unknown which offsets were stored.
        """
        stored: frozenset[TopicPartition] = frozenset()
        refusals: Mapping[TopicPartition, Refusal] = {}
        waiting = offsets
        async with self._owned.writing:
            while waiting and not refusals:
                commits, refusals = self._tracker.choose(waiting)
                attempt = await self._owned.attempt(commits)
                stored |= attempt.stored
                self._check(attempt, commits, stored)
                waiting = {partition: offsets[partition] for partition in attempt.repeat}
        for partition, refusal in refusals.items():
            # Without the lock: releases do not wait until the owner znode is read.
            await self._refuse(partition, offsets[partition], refusal, stored)
        return stored

    async def _refuse(
        self, partition: TopicPartition, offset: int, refusal: Refusal, stored: frozenset[TopicPartition]
    ) -> NoReturn:
        call = f"group {self._group}: commit(): {partition}"
        match refusal:
            case Refusal.NOT_OPEN:
                # The claim may end while the owner is read; the error then says that there is no owner.
                owner = await self._owner_of(partition)
                raise CommitFailedError(f"{call} is not owned by {owner}{_also(stored)}")
            case Refusal.OUTDATED:
                raise CommitFailedError(f"{call}: {offset} is not committed: {_OUTDATED}{_also(stored)}")
        state = self._tracker.of(partition)
        assert state is not None
        if refusal is Refusal.DELIVERED_EARLIER:
            raise CommitFailedError(
                f"{call}: {offset} is not committed: it was delivered before delivery started again at {state.start}"
                f" ({state.origin.value}); commit what has been delivered since{_also(stored)}"
            )
        if refusal is Refusal.BEFORE_FLOOR:
            why = (
                f"is before {state.floor}, where this claim began or was set; seek() there first to have the records"
                " delivered again"
            )
        elif refusal is Refusal.BEYOND_POSITION:
            why = (
                f"is beyond {state.position}, the next offset to deliver; commit what was delivered, or seek() there"
                " first to skip records"
            )
        else:
            assert state.reset is not None
            why = f"is beyond {state.reset.end}, where the log ends since it was truncated"
        raise ConfigError(f"{call}: {offset} given, which {why}{_also(stored)}")

    def _check(
        self, attempt: Attempt, commits: Mapping[TopicPartition, Commit], stored: frozenset[TopicPartition]
    ) -> None:
        """Raise the error of the first offset that an attempt has not stored, and that is not sent again."""
        for partition in sorted(commits.keys() - attempt.stored - attempt.repeat):
            call = f"group {self._group}: commit(): {commits[partition].offset} of {partition} was not stored"
            found = attempt.superseded.get(partition)
            if found is not None:
                raise CommitFailedError(f"{call}: {self._found(partition, found)}{_also(stored)}")
            if not self._tracker.may_store(partition):
                raise CommitFailedError(f"{call}: {_OUTDATED}{_also(stored)}")
            raise CommitFailedError(
                f"{call}: brokers did not confirm it in time, or refused it as the log says; they may still store it."
                f" Commit again{_also(stored)}"
            )

    def _found(self, partition: TopicPartition, found: StoredOffset) -> str:
        if found.offset is None:
            return "another writer has stored data there that is no offset; commit again to replace it"
        if self._tracker.is_open(partition):
            return f"another writer has stored {found.offset}, where delivery continues now; commit from there"
        return f"the claim was lost meanwhile, and {found.offset} is stored; its owner commits it"


def _also(stored: frozenset[TopicPartition]) -> str:
    return f" (stored: {some(sorted(stored))})" if stored else ""
