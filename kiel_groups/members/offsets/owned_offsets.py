"""Commit the offsets of one member's partitions to its store, and adopt offsets that other writers store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import NamedTuple, NoReturn, Protocol

from kiel_groups.backoff import Backoff
from kiel_groups.errors import CommitFailedError, ConfigError, CoordinationError, KielGroupsError, ProtocolError
from kiel_groups.group.offset_tracker import OffsetTracker
from kiel_groups.group.partition_offsets import Commit, Finding, PendingReset, Refusal, StartPosition, StoredOffset
from kiel_groups.group.znodes.contents import parse_owner
from kiel_groups.members.partition_handler import PartitionHandler
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wording import counted, some
from kiel_groups.zookeeper.fenced_writes import Renew
from kiel_groups.zookeeper.tasks import MemberContext

log = logging.getLogger(__name__)


async def owner_words(context: MemberContext, partition: TopicPartition) -> str:
    """Return the end of an error text: which member owns the partition instead of this member, and what to do."""
    owner = await _owner(context, partition)
    if owner is not None:
        return f"this member, {context.member_id}, but {owner}; its owner commits it"
    words = f"this member, {context.member_id}, yet: it is claimed, and its start is not known; "
    if context.config.auto_offset_reset == "none":
        return words + f"write its first offset to {context.layout.offset(partition)}"
    return words + "wait for on_partitions_assigned"


async def _owner(context: MemberContext, partition: TopicPartition) -> str | None:
    """Return the owner of a partition as a phrase, such as "by no member", or None if this member is the owner."""
    path = context.layout.owner(partition)
    node = await context.session.get(path)
    if node is None:
        return "by no member"
    try:
        owner = parse_owner(node.data, path)
    except ProtocolError as error:
        return f"by an unknown one ({error})"
    if node.owner == context.session.id:
        return None
    return f"by {owner}"


class Written(NamedTuple):
    """
    The result of writing offsets.

    ``stored`` has the offsets that were written, with their new versions. ``found`` has offsets that were read from the
    store, because another writer may have stored them.
    """

    stored: dict[TopicPartition, StoredOffset]
    found: dict[TopicPartition, StoredOffset]


class Starts(NamedTuple):
    """
    The start positions of claims, and the reason for each claim whose position is not known yet.

    If a claim is in neither field, a later call opens the claim, or the owner znode does not exist any more.
    """

    found: dict[TopicPartition, StartPosition]
    failures: dict[TopicPartition, KielGroupsError]


class OffsetStore(Protocol):
    """
    Stores the next offsets of the partitions that one member owns.

    The store reports each write to the tracker, so that the tracker later recognises a write with an unknown outcome.
    """

    async def commit(self, commits: Mapping[TopicPartition, Commit], metadata: str) -> Written:
        """
        Store offsets, with ``metadata`` as their text if the store supports texts.

        The result lacks offsets that the tracker no longer permits when they are sent, and offsets that the store
        refuses.

        Raises:
            SessionLostError: The membership is over; no further offset was stored.
        """

    async def read(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, StoredOffset]:
        """Read the stored offsets of owned partitions, to find offsets of other writers."""


class OwnOffsetStore(OffsetStore, Protocol):
    """
    A store to which the member itself writes.

    The member stores there the positions that it chose after a reset, or in a new log. Otherwise the next owner might
    choose other positions.
    """

    async def store_starts(
        self,
        topic: str,
        earliest: Mapping[TopicPartition, int],
        is_known: Callable[[TopicPartition, StoredOffset], bool],
        renew: Renew[object],
    ) -> Mapping[TopicPartition, StoredOffset]:
        """
        Store the starts of new logs, after a topic was deleted and created again.

        If the store can recognise an offset that an operator has set in the new log, it keeps that offset.

        Args:
            topic: The topic.
            earliest: The first offset of each partition's new log.
            is_known: Returns whether this member has seen, or written, a stored offset in the old log.
            renew: Drops the writes once the topic was created again.

        Returns:
            The offsets that are stored now, without offsets that were dropped or not stored.
        """


#: Why offsets are refused whose topic was created again.
_OUTDATED = "its topic was created again, so the offset may be of the old log; commit records of the new one"


#: The first and the longest pause before brokers are asked again for log starts that they did not know, in seconds.
_FIRST_RESTART_PAUSE_S, _LONGEST_RESTART_PAUSE_S = 0.5, 5.0


class Attempt(NamedTuple):
    """
    The outcome of an attempt to store offsets.

    ``stored`` has the partitions whose offsets were stored. ``repeat`` has the partitions for which an earlier commit
    turned out to be stored, so the newer offset must be sent again. ``superseded`` has the offsets that other writers
    had stored. The offsets of all other partitions became outdated before the request, or brokers did not store these
    offsets.
    """

    stored: frozenset[TopicPartition]
    repeat: frozenset[TopicPartition]
    superseded: Mapping[TopicPartition, StoredOffset]


class OwnedOffsets:
    """
    Stores the offsets of a member's partitions in the store of its group, adopts offsets of other writers, and restarts
    partitions in new logs.

    Another writer is an operator, or the partition's next owner. ``OffsetTracker`` decides which offsets this object
    stores and adopts.

    Args:
        group: The group's name.
        handler: Resumes delivery at an adopted offset.
        tracker: The offsets of the member's partitions.
        metrics: Counts the stored and the adopted offsets.
        store: The store of the group, in which the member stores the positions that resets and new logs give.
        owner_of: Returns the phrase with the owner of a partition that this member does not own, for errors.
        commits: Stores commits in place of ``store``, if brokers do that.
    """

    def __init__(
        self,
        group: str,
        handler: PartitionHandler,
        tracker: OffsetTracker,
        metrics: Metrics,
        store: OwnOffsetStore,
        owner_of: Callable[[TopicPartition], Awaitable[str]],
        commits: OffsetStore | None = None,
    ) -> None:
        self._group = group
        self._handler = handler
        self._tracker = tracker
        self._metrics = metrics
        self._store = commits or store
        self._own_store = store
        self._owner_of = owner_of
        #: Held by commits and releases. Two concurrent writes of an offset expect the same version, so one would fail.
        self.writing = asyncio.Lock()

    async def commit(self, metadata: str = "") -> frozenset[TopicPartition]:
        """
        Store the next offset of every owned partition that has newly finished records.

        If another writer has changed an offset meanwhile, the member adopts the new offset and continues there.

        Args:
            metadata: The text of the offsets, for stores that support texts.

        Returns:
            The partitions whose offsets were stored. A partition whose topic was created again is included only after
            its restart in the new log.

        Raises:
            SessionLostError: The session is over; records whose offsets were not stored will be delivered again.
        """
        async with self.writing:
            return await self._commit_all(self._tracker.commits(), metadata)

    async def store_left(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """
        Store the offsets of these partitions before their release, if the release itself does not store them.

        The caller holds the lock ``writing``. Return the partitions whose offsets were stored.
        """
        if self._tracker.rules.through_brokers:
            # Partitions with a chosen reset are left out: the release writes their positions, and a late broker must
            # not overwrite them.
            return await self._commit_all(self._tracker.commits(frozenset(partitions) - self._tracker.resetting()))
        left = {partition: self._tracker.release(partition, None) for partition in partitions}
        return await self._commit_all(
            {p: Commit(each.offset, each.version or 0) for p, each in left.items() if each.offset is not None}
        )

    async def renew(self, owned: Callable[[], Collection[TopicPartition]]) -> None:
        """
        Store the stored offsets of the member's partitions again, before Kafka expires them.

        Skip a partition if the outcome of its last commit is unknown: Kafka may have a newer offset.

        Args:
            owned: Returns the partitions. This method calls ``owned`` when no other write is in progress.
        """
        async with self.writing:
            states = {partition: self._tracker.of(partition) for partition in sorted(owned())}
            again = {
                partition: Commit(state.committed, state.version)
                for partition, state in states.items()
                if state is not None and not state.sent
            }
            if again:
                self._settle(again, await self._store.commit(again, ""))

    async def _commit_all(
        self, commits: Mapping[TopicPartition, Commit], metadata: str = ""
    ) -> frozenset[TopicPartition]:
        """
        Store next offsets, and return the partitions whose offsets were stored. The caller holds the lock ``writing``.

        An earlier commit whose caller was interrupted may turn out to be stored. Then another attempt stores the
        offsets of records that were finished since.
        """
        stored = frozenset[TopicPartition]()
        while True:
            attempt = self._settle(commits, await self._store.commit(commits, metadata))
            stored |= attempt.stored
            if not attempt.repeat:
                return stored
            commits = self._tracker.commits(attempt.repeat)

    async def store_reset(self, partition: TopicPartition, reset: PendingReset) -> int | None:
        """
        Store the position that a reset chose, once no older record of the partition is buffered or in flight.

        Store the position even if only the application commits. Otherwise the next owner might choose another position.

        Returns:
            The offset to continue at, or None if the reset is void: the partition is released or lost, the topic was
            created again, or another writer has set the partition's offset.

        Raises:
            SessionLostError: The session is over; nothing was stored.
            CommitFailedError: The store refuses the position, or does not confirm it. The caller tries the reset again
                after a pause.
        """
        async with self.writing:
            while self._tracker.reset_applies(partition, reset):
                if (commit := self._tracker.reset_to_store(partition)) is None:
                    return self._tracker.complete_reset(partition)
                # A later write of a late broker is treated as another writer's.
                self._tracker.requested({partition: None})
                written = await self._own_store.commit({partition: commit}, "")
                self._settle({partition: commit}, written)
                if not (written.stored or written.found) and self._tracker.reset_applies(partition, reset):
                    raise CommitFailedError(
                        f"group {self._group}: the position {commit.offset} of {partition}, which a reset chose, was"
                        " not stored: brokers refuse it as the log says, or have not confirmed it"
                    )
            return None

    def _settle(self, commits: Mapping[TopicPartition, Commit], written: Written) -> Attempt:
        """
        Report the outcome of a write of next offsets to the tracker, and return the resulting ``Attempt``.

        The caller takes the lock ``writing`` before it asks the tracker for the commits, and holds the lock during this
        call. So the commits name the present versions. Otherwise an operator's offset could be adopted between two
        commits, and then be overwritten by an older offset.
        """
        findings = {partition: self._apply(partition, now) for partition, now in written.found.items()}
        own = {p: written.found[p] for p, found in findings.items() if found in (Finding.UNCHANGED, Finding.OWN)}
        stored_now = written.stored | own
        stored = frozenset(p for p, now in stored_now.items() if now.offset == commits[p].offset)
        self._metrics.count("offsets_committed", len(stored))
        late = frozenset(p for p, found in findings.items() if found is Finding.OWN)
        others = (Finding.ADOPTED, Finding.UNREADABLE, Finding.NOT_OPEN)
        superseded = {partition: written.found[partition] for partition, each in findings.items() if each in others}
        return Attempt(stored, late - stored, superseded)

    async def adopt_foreign_offsets(self, owned: Callable[[], Collection[TopicPartition]]) -> None:
        """
        Adopt the offsets that other writers stored between commits.

        The version of an offset znode reveals another writer, even if the stored offset is the same. Such a write is a
        reset, too: the records after the offset must be delivered again.

        Args:
            owned: Returns the owned partitions that are not being revoked. This method calls ``owned`` when no other
                write is in progress.
        """
        async with self.writing:
            for partition, found in (await self._store.read(self._tracker.verifiable(owned()))).items():
                self._apply(partition, found)

    def _apply(self, partition: TopicPartition, found: StoredOffset) -> Finding:
        """
        Pass a stored offset to the tracker. If the tracker finds that another writer has stored the offset, resume
        delivery at this offset.
        """
        finding = self._tracker.read(partition, found)
        if finding in (Finding.ADOPTED, Finding.UNREADABLE):
            self._metrics.count("commits_superseded")
        if finding is Finding.ADOPTED:
            assert found.offset is not None
            log.warning(
                "group %s: another writer changed the offset of %s to %d; continuing there",
                self._group,
                partition,
                found.offset,
            )
            self._handler.offset_changed(partition, found.offset)
        return finding

    # ------------------------------------------------------------------ new logs of topics that were created again

    async def restart(self, topic: str, created: int, unless_recreated: Callable[[str], Renew[object]]) -> None:
        """
        Restart the outdated partitions of a recreated topic at the beginning of its new log.

        Restart partitions that are being revoked, too. Until brokers return the start of a partition's new log, the
        member commits no offset of the partition.

        Args:
            topic: The topic's name.
            created: Identifies the new incarnation. Partitions whose claims were opened in the new incarnation's log
                are not restarted.
            unless_recreated: Returns a ``renew`` function that drops all writes once the topic was created again.
        """
        backoff = Backoff(_FIRST_RESTART_PAUSE_S, _LONGEST_RESTART_PAUSE_S)
        while outdated := self._tracker.to_restart(topic, created):
            reason = "brokers did not return the start of every log"
            try:
                if failures := await self._restart_known(topic, created, outdated, unless_recreated(topic)):
                    reason = str(failures[min(failures)])
            except CoordinationError:
                raise
            except KielGroupsError as error:
                reason = str(error)
            if left := self._tracker.to_restart(topic, created):
                pause_s = backoff.next_s()
                self._metrics.count("recreated_topic_resets_delayed", len(left))
                log.warning(
                    "group %s: topic %s was created again, and %s cannot be reset to its new log yet: %s; trying again"
                    " in %.1f s",
                    self._group,
                    topic,
                    counted(left, "partition"),
                    reason,
                    pause_s,
                )
                await asyncio.sleep(pause_s)

    async def _restart_known(
        self, topic: str, created: int, outdated: Collection[TopicPartition], renew: Renew[object]
    ) -> Mapping[TopicPartition, KielGroupsError]:
        """
        Restart the partitions for which brokers return the start of the new log.

        An offset that an operator has already set in the new log is adopted. Unreadable data is overwritten.

        Returns:
            The reason for each partition whose log start is not known.
        """
        # The look-up runs outside the lock: brokers may take long, and the member's other partitions must be committed
        # meanwhile.
        earliest, failures = await self._handler.log_offsets(outdated, "earliest")
        async with self.writing:
            # Some partitions may have been released meanwhile, or the topic created once more.
            still = sorted(self._tracker.to_restart(topic, created) & earliest.keys())
            states = {partition: state for partition in still if (state := self._tracker.of(partition))}

            def is_known(partition: TopicPartition, found: StoredOffset) -> bool:
                return states[partition].knows(found)

            current = await self._own_store.store_starts(topic, {p: earliest[p] for p in states}, is_known, renew)
            for partition, found in current.items():
                if found.offset is not None and self._tracker.of(partition) is states[partition]:
                    self._tracker.restart(partition, found.offset, found.version, created)
                    self._handler.offset_changed(partition, found.offset)
                    self._warn_if_set(partition, earliest[partition], found.offset)
        return failures

    def _warn_if_set(self, partition: TopicPartition, earliest: int, offset: int) -> None:
        if offset != earliest:
            log.warning(
                "group %s: another writer set the offset of %s to %d in the new log of its topic; continuing there",
                self._group,
                partition,
                offset,
            )

    # ------------------------------------------------------------------ offsets that the application chose

    async def commit_chosen(self, offsets: Mapping[TopicPartition, int]) -> frozenset[TopicPartition]:
        """
        Store next offsets that the application chose. If the tracker refuses an offset, store no offset.

        Returns:
            The partitions whose offsets were stored, that is, all given partitions.

        Raises:
            ConfigError: An offset is before the floor of the claim, beyond the position of the claim, or beyond a
                truncated log.
            CommitFailedError: A partition is not owned or has a new log, or another writer has changed an offset, or
                brokers have not stored an offset. Or delivery has restarted at another position, for example after a
                lost session, and an offset is from before the restart. Other offsets of the call may be stored: the
                message names these offsets.
            SessionLostError: The session is over; it is unknown which offsets were stored.
        """
        stored: frozenset[TopicPartition] = frozenset()
        refusals: Mapping[TopicPartition, Refusal] = {}
        waiting = offsets
        async with self.writing:
            while waiting and not refusals:
                commits, refusals = self._tracker.choose(waiting)
                attempt = self._settle(commits, await self._store.commit(commits, ""))
                stored |= attempt.stored
                self._check(attempt, commits, stored)
                waiting = {partition: offsets[partition] for partition in attempt.repeat}
        for partition, refusal in refusals.items():
            # The lock is not held here, so releases do not wait until the owner znode is read.
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
        """Raise the error of the first offset that an attempt has not stored, unless the offset is sent again."""
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
