"""
Decide which offsets of a consumer's partitions are committed, refused, reset, adopted or released.

A claim is a member's ownership of a partition. The claim is open once the start position is known. To adopt an offset
is to continue delivery at an offset that another writer has stored. An incarnation of a topic is the topic from one
creation to the next deletion.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from kiel_groups.config import BROKER_V0, BROKER_V1, GroupConfig
from kiel_groups.group.partition_offsets import (
    MOVES,
    ChosenCommits,
    ClaimedPartition,
    Commit,
    CommitRange,
    Finding,
    PartitionOffsets,
    PendingReset,
    Phase,
    Refusal,
    Release,
    StartOrigin,
    StartPosition,
    StoredOffset,
)
from kiel_groups.group.znodes.contents import OrderedOffset
from kiel_groups.model import TopicPartition


@dataclass(frozen=True, slots=True)
class CommitRules:
    """
    The settings that decide which offsets a member stores, and when.

    With ``autocommit``, the member stores the offsets of finished records without a request of the application. With
    ``through_brokers``, brokers write the offset znodes on request. The brokers check no version, and do not record
    which member asked. So the transaction of a release stores no finished offset, but may store the offset that a reset
    chose. With ``in_kafka``, the group's coordinator stores the offsets. Such offsets have no versions, and a release
    stores the offset before the transaction that deletes the owner znode.
    """

    autocommit: bool = True
    through_brokers: bool = False
    in_kafka: bool = False

    @property
    def asks_brokers(self) -> bool:
        """Whether a commit needs the answer of a broker. The answer may be lost."""
        return self.through_brokers or self.in_kafka

    @classmethod
    def of(cls, config: GroupConfig) -> CommitRules:
        """Return the rules that a group's settings imply."""
        return cls(config.autocommit, config.store == BROKER_V0, config.store == BROKER_V1)


# Track the offsets of one consumer's partitions, from the claim to its end, and decide what is written.
#
# Delivery moves ``position`` and ``finished`` of ``PartitionOffsets`` by itself, because they change with every record.
# All other changes are calls of ``OffsetTracker``.
#
# Rules
#   1. A commit stores ``finished`` if it differs from ``committed``. The write expects the version that was last seen
#      of the offset znode, so it cannot replace an offset of another writer.
#   2. A commit that was sent and not answered has an unknown outcome. A stored offset that such a commit may have
#      written is this consumer's own. So is, at any version, the offset that brokers were last asked to store: they
#      write late.
#   3. Any other stored offset with a new version is another writer's. The consumer adopts it: delivery continues there.
#   4. Stored data that is not an offset is recorded as unreadable. The next commit or release replaces it.
#   5. A topic that was created again has a new log. Until the partition is restarted there, it is outdated: neither a
#      commit nor a release stores its offsets. The writer asks for this right before it sends (decision 0014).
#   6. If the log lacks the position, a reset is chosen. It applies until its offset is stored, or another writer sets
#      one. Offsets beyond the end of a truncated log are not stored (decision 0016).
#   7. A release leaves the offset of a chosen reset in the store. Without a reset, it leaves ``finished``, or
#      ``committed`` if the release does not commit. The transaction that ends the claim writes that offset, or verifies
#      the stored version.
#   8. The state of a partition ends with the claim: nothing of an earlier claim is written.
#   9. The application may commit offsets of its choice, from the floor up to the position. The floor is the offset
#      where delivery started: at the claim, at another writer's offset, after a reset, or in a new log. A seek of the
#      application to an earlier offset lowers the floor. If one of the offsets is refused, none is stored. Neither the
#      position nor ``finished`` changes, so a later automatic commit stores ``finished`` again. The tracker remembers
#      the range in which commits were allowed before such a start: a refused offset in this range is no mistake.
#  10. An operator's order replaces the stored offset, whatever it is, unless it is about another incarnation of the
#      topic. Once it is stored, delivery continues there, as at another writer's offset (decision 0042).


class DueOffset(NamedTuple):
    """The offset that is committed, and the one that the next commit stores."""

    committed: int
    offset: int


class OffsetTracker:
    """
    Tracks the offsets of one consumer's partitions, and decides which of these offsets are stored.

    Only the consumer's event loop uses this object. The comment above this class has the rules that docstrings name.
    """

    def __init__(self, rules: CommitRules | None = None) -> None:
        self.rules = rules or CommitRules()
        self._claims: dict[TopicPartition, ClaimedPartition] = {}
        #: The opened claims, which the delivery of each record looks up.
        self._open: dict[TopicPartition, PartitionOffsets] = {}
        #: The offsets that the application could commit before delivery was restarted, by partition. They stay after
        #: the end of the claim.
        self._earlier: dict[TopicPartition, CommitRange] = {}

    # The claim

    def claim(self, partitions: Iterable[TopicPartition], created: int) -> None:
        """
        Begin to track claims that are about to be opened. A claim that is tracked already does not change.

        ``created`` is the creation zxid of the partitions' topic, as known at this moment.
        """
        for partition in partitions:
            if partition not in self._claims:
                self._claims[partition] = claim = ClaimedPartition(created, created)
                _check_move(partition, None, claim)

    def claimed(self, partition: TopicPartition) -> ClaimedPartition | None:
        """
        Return the tracked claim of a partition, opened or not, or None if the partition is not claimed.

        ``open`` replaces the returned object. A later claim of the partition has another object.
        """
        return self._claims.get(partition)

    def open(self, starts: Mapping[TopicPartition, StartPosition]) -> None:
        """Open claims: delivery of each partition may begin at its start position. There is nothing to commit yet."""
        for partition, start in starts.items():
            before = self._phase(partition)
            offset, created = start.offset, start.created
            self._claims[partition] = self._open[partition] = claim = PartitionOffsets(
                created, created, start.token, offset, start.origin, offset, offset, offset, start.version, floor=offset
            )
            _check_move(partition, before, claim)

    def end(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget claims that were released or lost. The ranges of their offsets are remembered for later refusals."""
        for partition in partitions:
            self._remember_allowed(partition)
            self._claims.pop(partition, None)
            self._open.pop(partition, None)

    def end_unopened(self, partitions: Collection[TopicPartition] | None = None) -> None:
        """Forget the claims of ``partitions`` that were never opened. None means all claims: the session is over."""
        unopened = self._claims.keys() - self._open.keys()
        self.end(unopened if partitions is None else unopened & frozenset(partitions))

    def _phase(self, partition: TopicPartition) -> Phase | None:
        claim = self._claims.get(partition)
        return None if claim is None else claim.phase

    # Open partitions

    def open_partitions(self) -> frozenset[TopicPartition]:
        """Return the partitions whose records may be delivered."""
        return frozenset(self._open)

    def is_open(self, partition: TopicPartition) -> bool:
        return partition in self._open

    def of(self, partition: TopicPartition) -> PartitionOffsets | None:
        """Return the offsets of a partition, or None if the partition is not open."""
        return self._open.get(partition)

    def position(self, partition: TopicPartition) -> int | None:
        """Return the next offset to deliver, or None if the partition is not open."""
        offsets = self._open.get(partition)
        return None if offsets is None else offsets.position

    def allocation(self) -> defaultdict[str, list[int]]:
        """Return the open partitions of each topic in ascending order. The result maps any other topic to ``[]``."""
        topics: defaultdict[str, list[int]] = defaultdict(list)
        for topic, partition in sorted(self._open):
            topics[topic].append(partition)
        return topics

    def seek(self, partition: TopicPartition, offset: int, origin: StartOrigin = StartOrigin.SEEK) -> None:
        """Set the position and the finished offset of an open partition. A chosen reset no longer applies."""
        offsets = self._open[partition]
        before = offsets.phase
        if origin is not StartOrigin.SEEK:
            self._remember_allowed(partition)
        offsets.start = offsets.position = offsets.finished = offset
        offsets.origin, offsets.reset = origin, None
        if origin is StartOrigin.SEEK:
            offsets.floor, offsets.seek_mark = min(offsets.floor, offset), object()
        else:
            offsets.floor = offset
        _check_move(partition, before, offsets)

    def set_seek_mark(self, partition: TopicPartition, mark: object) -> None:
        """
        Set the mark of a seek that waits for a look-up of its offset.

        Earlier seeks that still wait compare their marks with this mark, and end without an effect.
        """
        self._open[partition].seek_mark = mark

    def seek_mark(self, partition: TopicPartition) -> object:
        """Return the mark of the newest seek under this claim, or None if the partition is not open."""
        offsets = self._open.get(partition)
        return None if offsets is None else offsets.seek_mark

    # Resets

    def choose_reset(self, partition: TopicPartition, reset: PendingReset) -> None:
        """Record the reset that replaces a position that the log lacks (rule 6)."""
        offsets = self._open[partition]
        before, offsets.reset = offsets.phase, reset
        _check_move(partition, before, offsets)

    def withdraw_reset(self, partition: TopicPartition) -> None:
        """
        Drop the chosen reset, if there is one, because the log has the position again.

        A finished offset beyond the end of the log is reduced to that end. Another reset may be chosen later.
        """
        offsets = self._open[partition]
        before, reset = offsets.phase, offsets.reset
        if reset is not None:
            if offsets.finished > reset.end:
                # Offsets beyond the end of the log do not count as finished.
                offsets.finished = reset.end
            offsets.reset = None
        _check_move(partition, before, offsets)

    def reset_of(self, partition: TopicPartition) -> PendingReset | None:
        """Return the chosen reset of a partition, or None without a chosen reset."""
        offsets = self._open.get(partition)
        return None if offsets is None else offsets.reset

    def resetting(self) -> frozenset[TopicPartition]:
        """Return the partitions whose position was reset, and whose new position is not stored yet."""
        return frozenset(partition for partition, offsets in self._open.items() if offsets.reset is not None)

    def reset_applies(self, partition: TopicPartition, reset: PendingReset) -> bool:
        """Return whether ``reset`` is still the chosen reset of the partition, and its offset may be stored."""
        offsets = self._open.get(partition)
        return offsets is not None and offsets.reset is reset and not offsets.outdated

    def reset_to_store(self, partition: TopicPartition) -> Commit | None:
        """Return a commit that stores the offset chosen by the reset, or None if that offset is stored already."""
        offsets = self._open[partition]
        offset = offsets.reset_offset(autocommit=self.rules.autocommit)
        assert offset is not None
        is_stored = offset == offsets.committed and not offsets.unreadable
        return None if is_stored else Commit(offset, offsets.version)

    def complete_reset(self, partition: TopicPartition) -> int:
        """Continue delivery after the offset of the chosen reset was stored. Return the position."""
        offsets = self._open[partition]
        assert offsets.reset is not None
        self.seek(partition, offsets.reset.offset_after(offsets.finished), StartOrigin.RESET)
        # Without automatic commits, records between the stored offset and the position are still to be committed.
        offsets.floor = min(offsets.committed, offsets.position)
        return offsets.position

    # Commits

    def has_uncommitted(self) -> bool:
        """Return whether a commit would store an offset now."""
        return any(offsets.uncommitted for offsets in self._open.values())

    def commits(self, partitions: Collection[TopicPartition] | None = None) -> dict[TopicPartition, Commit]:
        """
        Return the commits that are due now (rule 1), in ascending order of partitions.

        ``partitions`` limits the result. None means all open partitions.
        """
        listed = self._open if partitions is None else self._open.keys() & partitions
        found = ((partition, self._open[partition]) for partition in sorted(listed))
        return {
            partition: Commit(offsets.finished, offsets.version) for partition, offsets in found if offsets.uncommitted
        }

    def due(self) -> dict[TopicPartition, DueOffset]:
        """Return what a commit that begins now must store."""
        return {
            partition: DueOffset(self._open[partition].committed, each.offset)
            for partition, each in self.commits().items()
        }

    def not_stored(
        self, due: Mapping[TopicPartition, DueOffset], stored: Collection[TopicPartition]
    ) -> list[TopicPartition]:
        """
        Return the partitions of an earlier ``due()`` that are neither in ``stored`` nor stored by a commit that ran at
        the same time, in ascending order. After such a commit, the offsets of later records may be due.
        """
        left = self.commits(due.keys() - stored)
        return [p for p in left if not due[p].committed <= due[p].offset <= self._open[p].committed]

    def choose(self, offsets: Mapping[TopicPartition, int]) -> ChosenCommits:
        """
        Decide whether to commit the next offsets that the application chose.

        If the application may not commit one of the offsets, return the refusals, and commit no offset (rule 9).
        """
        commits: dict[TopicPartition, Commit] = {}
        refusals: dict[TopicPartition, Refusal] = {}
        for partition, offset in sorted(offsets.items()):
            state = self._open.get(partition)
            refusal = Refusal.NOT_OPEN if state is None else state.refusal_of(offset)
            earlier = self._earlier.get(partition)
            if refusal in (Refusal.BEFORE_FLOOR, Refusal.BEYOND_POSITION) and earlier and earlier.has(offset):
                refusal = Refusal.DELIVERED_EARLIER
            if refusal is not None:
                refusals[partition] = refusal
            elif state is not None:
                commits[partition] = Commit(offset, state.version)
        return ChosenCommits({} if refusals else commits, refusals)

    def _remember_allowed(self, partition: TopicPartition) -> None:
        """Remember which offsets the application may commit now, because the partition's delivery ends or moves."""
        if (state := self._open.get(partition)) is not None:
            allowed = CommitRange(state.floor, state.position)
            self._earlier[partition] = allowed.union(self._earlier.get(partition))

    def may_store(self, partition: TopicPartition) -> bool:
        """
        Return False if the topic of a claimed partition was created again (rule 5), else True.

        Writers ask right before they send an offset. If the result is False, they must not store the offset.
        """
        claim = self._claims.get(partition)
        return claim is None or not claim.outdated

    def sent(self, commits: Mapping[TopicPartition, Commit]) -> dict[TopicPartition, int]:
        """
        Record that these commits are in flight on the consumer's own session.

        Returns:
            The offsets to pass to ``answered``. The tracker leaves out an offset that an earlier commit with unknown
            outcome has sent: the answer to this commit does not show the outcome of the earlier commit.
        """
        fresh = {
            partition: commit.offset
            for partition, commit in commits.items()
            if commit.offset not in self._open[partition].sent
        }
        for partition, offset in fresh.items():
            self._open[partition].sent.add(offset)
        return fresh

    def answered(self, offsets: Mapping[TopicPartition, int], stored: Mapping[TopicPartition, StoredOffset]) -> None:
        """Record that the outcome of a commit of these offsets is known. ``stored`` has what the commit has stored."""
        for partition, offset in offsets.items():
            if (state := self._open.get(partition)) is not None:
                state.sent.discard(offset)
        for partition, now in stored.items():
            if now.offset is not None:
                self.stored(partition, now.offset, now.version)

    def requested(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        """
        Record, for each partition, the offset that brokers were last asked to store, or None. Brokers may store it
        late.
        """
        for partition, offset in offsets.items():
            if (state := self._open.get(partition)) is not None:
                state.requested = offset

    def stored(self, partition: TopicPartition, offset: int, version: int) -> None:
        """Record that the store has this consumer's ``offset`` at ``version``, and no earlier commit is in doubt."""
        state = self._open.get(partition)
        if state is not None:
            state.committed, state.version = offset, version
            state.sent.clear()
            state.unreadable = False

    # Stored offsets that were read

    def verifiable(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """
        Return the given partitions whose stored offsets the member reads between commits: open partitions that are not
        outdated.
        """
        return [p for p in sorted(self._open.keys() & frozenset(partitions)) if not self._open[p].outdated]

    def judge(self, partition: TopicPartition, stored: StoredOffset) -> Finding:
        """Return what a stored offset means for the partition, without recording it."""
        state = self._open.get(partition)
        return Finding.NOT_OPEN if state is None else state.judge(stored)

    def read(self, partition: TopicPartition, stored: StoredOffset) -> Finding:
        """
        Record a stored offset that was read, and return what it means.

        Another writer's offset is adopted (rule 3), and the records in flight are no longer tracked. The next commit
        replaces unreadable data, even if no record has finished since (rule 4).
        """
        match finding := self.judge(partition, stored):
            case Finding.OWN:
                assert stored.offset is not None
                self.stored(partition, stored.offset, stored.version)
            case Finding.UNREADABLE:
                self._mark_unreadable(partition, stored.version)
            case Finding.ADOPTED:
                self._follow(partition, stored, StartOrigin.ADOPTED)
                self._open[partition].adopted = stored.version
        return finding

    def _follow(self, partition: TopicPartition, stored: StoredOffset, origin: StartOrigin) -> None:
        """Continue delivery at a stored offset that this consumer has not chosen."""
        assert stored.offset is not None
        self.seek(partition, stored.offset, origin)
        self.stored(partition, stored.offset, stored.version)
        self._open[partition].requested = None

    def _mark_unreadable(self, partition: TopicPartition, version: int) -> None:
        state = self._open[partition]
        state.version, state.unreadable, state.requested = version, True, None

    # Operators' orders

    def orders(self, ordered: Mapping[TopicPartition, OrderedOffset]) -> dict[TopicPartition, Commit]:
        """
        Return, by partition, the commits of the offsets at which operators have ordered delivery to continue (rule 10).

        An order gets no commit while its partition is not open, or if the order is for another incarnation of the
        topic.
        """
        found = ((partition, each, self._open.get(partition)) for partition, each in sorted(ordered.items()))
        return {
            partition: Commit(each.offset, state.version)
            for partition, each, state in found
            if state is not None and not state.outdated and state.created == each.created
        }

    def ordered(self, partition: TopicPartition, stored: StoredOffset) -> None:
        """
        Continue delivery at the offset of an operator's order (rule 10). This consumer has stored that offset already.

        An order applies to one incarnation of the topic. So its offset is not marked as ``adopted``, and is not kept if
        the topic is created again.
        """
        self._follow(partition, stored, StartOrigin.ORDERED)

    # Topic incarnations

    def recreated(self, topic: str, created: int) -> None:
        """Record that a topic has a new incarnation, identified by ``created``, its creation zxid (rule 5)."""
        for partition, claim in self._claims.items():
            if partition.topic == topic and claim.created < created:
                before, claim.newest = claim.phase, max(claim.newest, created)
                _check_move(partition, before, claim)

    def to_restart(self, topic: str, created: int) -> frozenset[TopicPartition]:
        """
        Return the open partitions that must be restarted in the incarnation that ``created`` identifies.

        Their offsets belong to an earlier incarnation, and no later incarnation is known.
        """
        return frozenset(
            partition
            for partition, claim in self._open.items()
            if partition.topic == topic and claim.created < created == claim.newest
        )

    def restart(self, partition: TopicPartition, offset: int, version: int, created: int) -> None:
        """Restart a partition at ``offset`` of the topic incarnation that ``created`` identifies."""
        state = self._open[partition]
        before = state.phase
        self._remember_allowed(partition)
        state.created = created
        state.start = state.position = state.finished = state.floor = offset
        state.origin, state.reset, state.seek_mark = StartOrigin.NEW_LOG, None, object()
        self.stored(partition, offset, version)
        _check_move(partition, before, state)

    # Releases

    def stop_autocommit(self) -> None:
        """Store finished offsets only on the application's request from now on, also in releases."""
        self.rules = replace(self.rules, autocommit=False)

    def release(self, partition: TopicPartition, found: StoredOffset | None) -> Release:
        """
        Decide what the release of a claim does with the offset (rule 7).

        A new owner writes the offset at once, and so changes its version. So the verification fails if an operator has
        deleted the owner znode and another member has claimed the partition since.

        If the topic was created again, the release stores no position in the old log. If such a position was stored
        before this consumer noticed (``found``), the position would look like an offset in the new log. The start of
        the new log is unknown, so 0 replaces that position.

        Args:
            partition: The partition.
            found: The stored offset if it was read for the release, else None.
        """
        state = self._open.get(partition)
        if found is not None and self._is_of_old_log(partition, found):
            return Release(0, state.version if state else found.version)
        if state is None:
            # Without an offset znode there is no version to verify; the owner znode has just been read.
            return Release(None, None if found is None else found.version)
        offset = self._offset_to_leave(state)
        is_due = (state.unreadable or offset != state.committed) and not state.outdated
        return Release(offset if is_due else None, state.version)

    def release_changed(self, partition: TopicPartition, found: StoredOffset | None) -> Release:
        """
        Decide again what a release does, after ZooKeeper has refused it.

        ``found`` is the offset that was read after the refusal, or None if there is no offset znode.
        """
        state = self._open.get(partition)
        if found is None or state is None or (finding := state.judge(found)) is Finding.ADOPTED:
            return Release(None, None if found is None else found.version, is_superseded=state is not None)
        if finding is Finding.UNREADABLE:
            self._mark_unreadable(partition, found.version)
        elif found.offset is not None:
            # This consumer's commit, whose answer was lost, has stored the offset.
            self.stored(partition, found.offset, found.version)
        return self.release(partition, found)

    def offset_to_restore(self, partition: TopicPartition) -> int | None:
        """
        Return the offset for an offset znode that a release must create again, or None if the release must not create
        it.
        """
        state = self._open.get(partition)
        return None if state is None or state.outdated else self._offset_to_leave(state)

    def _offset_to_leave(self, state: PartitionOffsets) -> int:
        chosen = state.reset_offset(autocommit=self.rules.autocommit)
        if chosen is not None:
            return chosen
        commits = self.rules.autocommit and not self.rules.through_brokers
        return state.finished if commits else state.committed

    def _is_of_old_log(self, partition: TopicPartition, found: StoredOffset) -> bool:
        """
        Return whether a stored offset is a position in the old log, although it is newer than the recreated topic.

        An operator's offset is not such a position. If the claim was opened, this consumer has adopted the operator's
        offset, and knows its version.
        """
        claim, state = self._claims.get(partition), self._open.get(partition)
        if claim is None or not claim.outdated or found.offset is None:
            return False
        is_set = state is not None and found.version == state.adopted and not self.rules.through_brokers
        return not is_set and found.mzxid > claim.newest


def _check_move(partition: TopicPartition, before: Phase | None, claim: ClaimedPartition) -> None:
    after = claim.phase
    assert after is before or after in MOVES[before], (partition, before, after)
