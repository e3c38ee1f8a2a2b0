"""The offsets of a consumer's partitions, and the decisions to commit, adopt, reset and release."""

from __future__ import annotations

import pytest

from kiel_groups.group import offset_tracker, partition_offsets
from kiel_groups.group.offset_tracker import CommitRules, OffsetTracker
from kiel_groups.group.partition_offsets import (
    Commit,
    Finding,
    PartitionOffsets,
    PendingReset,
    Phase,
    Release,
    StartOrigin,
    StartPosition,
    StoredOffset,
)
from kiel_groups.model import TopicPartition
from tests.helpers.recorded_moves import moves_in, record_moves

pytestmark = pytest.mark.unit

T0, T1, T10, U0 = (TopicPartition(*each) for each in (("t", 0), ("t", 1), ("t", 10), ("u", 0)))


AUTOMATIC = CommitRules()


def claimed(rules: CommitRules = AUTOMATIC) -> OffsetTracker:
    """Return the tracker of a consumer that owns partitions 0 and 10 of t, at 5 and 7, and partition 0 of u, at 9."""
    tracker = OffsetTracker(rules)
    tracker.open({T10: StartPosition(7, 3, 31), U0: StartPosition(9, 0, 32), T0: StartPosition(5, 1, 30)})
    return tracker


def of(tracker: OffsetTracker, partition: TopicPartition = T0) -> PartitionOffsets:
    found = tracker.of(partition)
    assert found is not None
    return found


# Claims


def test_a_claim_starts_with_nothing_to_commit() -> None:
    """Position, finished and committed offset equal the start. Token and version are those of the claim."""
    tracker = claimed()
    assert tracker.open_partitions() == {T0, T10, U0}
    assert tracker.commits() == {}
    assert [tracker.position(partition) for partition in (T0, T10, U0)] == [5, 7, 9]
    found = of(tracker, T10)
    assert (found.token, found.version, found.finished, found.committed) == (31, 3, 7, 7)
    assert (found.start, found.origin, found.phase) == (7, StartOrigin.STORED, Phase.OPEN)


def test_an_unopened_claim_is_tracked_and_not_open() -> None:
    """Its offset may be stored until its topic is created again."""
    tracker = OffsetTracker()
    tracker.claim([T0], 3)
    assert not tracker.is_open(T0)
    assert tracker.open_partitions() == frozenset()
    assert tracker.may_store(T0)
    tracker.recreated("t", 4)
    assert tracker.to_restart("t", 4) == frozenset(), "no open partition must be restarted"
    assert not tracker.may_store(T0)
    tracker.claim([T0], 4)
    assert not tracker.may_store(T0), "the claim began in the old log"
    tracker.open({T0: StartPosition(5, 1, 30, created=4)})
    assert tracker.may_store(T0)


@pytest.mark.parametrize(("partitions", "ended"), [(None, {T0, T1}), ([T0, T10], {T0})])
def test_claims_that_were_never_opened_end_alone(
    partitions: list[TopicPartition] | None, ended: set[TopicPartition]
) -> None:
    """Open partitions stay. Without an argument, all unopened claims end."""
    tracker = claimed()
    tracker.end([T0])
    tracker.claim([T0, T1], 3)
    tracker.recreated("t", 4)
    tracker.end_unopened(partitions)
    assert tracker.open_partitions() == {T10, U0}
    assert {partition for partition in (T0, T1) if tracker.may_store(partition)} == ended
    assert not tracker.may_store(T10)


def test_the_end_of_a_claim_drops_its_offsets() -> None:
    """A late answer is ignored. A new claim starts with new offsets."""
    tracker = claimed()
    tracker.seek(T0, 6)
    sent = tracker.sent(tracker.commits())
    tracker.end([T0, TopicPartition("t", 99)])
    tracker.answered(sent, {})
    tracker.requested({T0: 6})
    tracker.stored(T0, 6, 2)
    assert tracker.read(T0, StoredOffset(6, 2)) is Finding.NOT_OPEN
    assert tracker.of(T0) is None
    assert tracker.position(T0) is None
    assert tracker.reset_of(T0) is None
    assert tracker.commits() == {}
    tracker.open({T0: StartPosition(6, 4, 40)})
    assert tracker.is_open(T0)
    assert tracker.commits() == {}


def test_the_allocation_lists_partitions_in_numerical_order() -> None:
    """Partition 2 comes before partition 10."""
    tracker = claimed()
    tracker.open({TopicPartition("t", 2): StartPosition(0, 0, 1)})
    assert tracker.allocation() == {"t": [0, 2, 10], "u": [0]}


# Commits


def test_only_finished_offsets_are_due_for_commit() -> None:
    """
    Delivered records are not committed before they are finished. Offsets finished after a commit are due for the next
    one.
    """
    tracker = claimed()
    found = of(tracker)
    found.position = 8
    assert not tracker.has_uncommitted()
    found.finished = 7
    assert tracker.has_uncommitted()
    assert tracker.commits() == {T0: Commit(7, 1)}
    assert tracker.commits([T10]) == {}
    tracker.stored(T0, 6, 2)
    assert tracker.commits() == {T0: Commit(7, 2)}
    tracker.stored(T0, 7, 3)
    assert tracker.commits() == {}
    assert (found.committed, found.version, found.position) == (7, 3, 8)


def test_a_seek_backwards_is_due_for_commit() -> None:
    """Records after the new position count as neither delivered nor finished."""
    tracker = claimed()
    tracker.seek(T0, 2)
    assert tracker.position(T0) == 2
    assert of(tracker).origin is StartOrigin.SEEK
    assert tracker.commits() == {T0: Commit(2, 1)}
    with pytest.raises(KeyError):
        tracker.seek(TopicPartition("t", 99), 0)


@pytest.mark.parametrize(
    ("stored", "finding"),
    [
        (StoredOffset(5, 1), Finding.UNCHANGED),
        (StoredOffset(7, 2), Finding.OWN),
        (StoredOffset(7, 3), Finding.ADOPTED),
        (StoredOffset(6, 2), Finding.ADOPTED),
        (StoredOffset(None, 2), Finding.UNREADABLE),
    ],
)
def test_an_interrupted_commit_is_known_by_offset_and_version(stored: StoredOffset, finding: Finding) -> None:
    """The commit's caller was interrupted, so its outcome is unknown until the offset is read."""
    tracker = claimed()
    of(tracker).finished = of(tracker).position = 7
    tracker.sent(tracker.commits())
    assert tracker.judge(T0, stored) is finding
    assert tracker.read(T0, stored) is finding
    found = of(tracker)
    assert found.version == stored.version
    assert found.position == (7 if finding is not Finding.ADOPTED else stored.offset)
    assert tracker.has_uncommitted() == (finding in (Finding.UNCHANGED, Finding.UNREADABLE))


def test_an_answered_commit_is_not_awaited() -> None:
    """ZooKeeper refused the commit, so an equal offset is that of another writer."""
    tracker = claimed()
    of(tracker).finished = 7
    tracker.answered(tracker.sent(tracker.commits()), {})
    assert tracker.read(T0, StoredOffset(7, 2)) is Finding.ADOPTED


def test_the_answer_to_a_repeated_commit_does_not_resolve_the_first_one() -> None:
    """Both stored the same offset, and only the second commit was answered."""
    tracker = claimed()
    of(tracker).finished = 7
    tracker.sent(tracker.commits())
    tracker.answered(tracker.sent(tracker.commits()), {})
    assert tracker.read(T0, StoredOffset(7, 2)) is Finding.OWN


def test_a_brokers_late_write_is_own_until_another_offset_is_adopted() -> None:
    """A broker may write at any version. After another writer's offset, the late write is another writer's, too."""
    tracker = claimed(CommitRules(through_brokers=True))
    tracker.requested({T0: 7})
    assert tracker.read(T0, StoredOffset(7, 9)) is Finding.OWN
    assert tracker.read(T0, StoredOffset(6, 10)) is Finding.ADOPTED
    assert of(tracker).origin is StartOrigin.ADOPTED
    assert tracker.read(T0, StoredOffset(7, 11)) is Finding.ADOPTED


def test_a_stored_commit_ends_the_earlier_ones() -> None:
    """After a commit was stored, an equal offset at the next version is that of another writer."""
    tracker = claimed()
    of(tracker).finished = 7
    tracker.sent(tracker.commits())
    assert tracker.read(T0, StoredOffset(7, 2)) is Finding.OWN
    assert tracker.read(T0, StoredOffset(7, 3)) is Finding.ADOPTED


def test_a_brokers_late_write_over_unreadable_data_is_another_writers() -> None:
    """The next commit replaces the unreadable data, so an offset that appears before it was not requested again."""
    tracker = claimed(CommitRules(through_brokers=True))
    tracker.requested({T0: 7})
    assert tracker.read(T0, StoredOffset(None, 2)) is Finding.UNREADABLE
    assert tracker.read(T0, StoredOffset(7, 3)) is Finding.ADOPTED


def test_unreadable_data_is_replaced_by_the_next_commit() -> None:
    """The commit is due although no record was finished since the last one."""
    tracker = claimed()
    assert tracker.read(T0, StoredOffset(None, 2)) is Finding.UNREADABLE
    assert tracker.commits() == {T0: Commit(5, 2)}
    tracker.stored(T0, 5, 3)
    assert tracker.commits() == {}


@pytest.mark.parametrize(
    ("written", "finished", "is_left"),
    [
        pytest.param(8, 9, False, id="another commit has stored it"),
        pytest.param(9, 12, False, id="another commit has stored more"),
        pytest.param(7, 8, True, id="another commit has stored less"),
        pytest.param(None, 9, True, id="no commit has stored it"),
        pytest.param(8, 8, False, id="nothing is due"),
    ],
)
def test_a_commit_beside_another_one_knows_what_is_not_stored(
    written: int | None, finished: int, is_left: bool
) -> None:
    """Offset 8 was due when it began. That a later offset is due by now does not mean that it was refused."""
    tracker = claimed()
    of(tracker).position = of(tracker).finished = 8
    due = tracker.due()
    if written is not None:
        tracker.stored(T0, written, 2)
    of(tracker).finished = finished
    assert tracker.not_stored(due, set()) == [T0] * is_left
    assert tracker.not_stored(due, {T0}) == []


def test_a_seek_back_that_is_not_stored_is_known() -> None:
    tracker = claimed()
    tracker.seek(T0, 2)
    due = tracker.due()
    assert due == {T0: (5, 2)}
    assert tracker.not_stored(due, set()) == [T0]


# Topic incarnations


def test_an_outdated_partition_stores_nothing_until_it_is_restarted() -> None:
    """The version of its offset is not verified either."""
    tracker = claimed()
    of(tracker).finished = 6
    tracker.recreated("t", 50)
    assert tracker.to_restart("t", 50) == {T0, T10}
    assert of(tracker).phase is Phase.OUTDATED
    assert not tracker.may_store(T0)
    assert tracker.may_store(U0)
    assert tracker.commits() == {}
    assert tracker.verifiable([T0, T10, U0]) == [U0]
    tracker.restart(T0, 0, 2, 50)
    assert (of(tracker).phase, of(tracker).origin) == (Phase.OPEN, StartOrigin.NEW_LOG)
    assert not tracker.has_uncommitted(), "the start of the new log is stored"
    tracker.recreated("t", 50)
    assert tracker.to_restart("t", 50) == {T10}
    assert tracker.position(T0) == 0


def test_only_the_newest_incarnation_is_restarted() -> None:
    """Partitions are restarted once, in the newest log."""
    tracker = claimed()
    tracker.recreated("t", 60)
    tracker.recreated("t", 50)
    assert tracker.to_restart("t", 50) == frozenset()
    tracker.recreated("t", 60)
    assert tracker.to_restart("t", 60) == {T0, T10}


def test_a_chosen_reset_does_not_apply_to_the_new_log() -> None:
    """It replaces a position of the old log, so it is not stored after the restart either."""
    tracker = claimed()
    reset = PendingReset(150, 0, 100, 100)
    tracker.choose_reset(T0, reset)
    assert of(tracker).phase is Phase.RESETTING
    tracker.recreated("t", 50)
    assert not tracker.reset_applies(T0, reset)
    tracker.restart(T0, 0, 2, 50)
    assert tracker.reset_of(T0) is None
    assert of(tracker).phase is Phase.OPEN


def test_a_reset_that_another_one_has_replaced_does_not_apply() -> None:
    """The log's range may have changed between the two look-ups."""
    tracker = claimed()
    first, second = PendingReset(150, 0, 100, 100), PendingReset(150, 0, 120, 120)
    tracker.choose_reset(T0, first)
    tracker.choose_reset(T0, second)
    assert not tracker.reset_applies(T0, first)
    assert tracker.reset_applies(T0, second)


def test_a_completed_reset_continues_at_the_stored_offset() -> None:
    """The reset is stored once, and nothing is left to commit."""
    tracker = claimed()
    of(tracker).finished = 90
    tracker.choose_reset(T0, PendingReset(150, 0, 100, 100))
    assert tracker.reset_to_store(T0) == Commit(90, 1)
    tracker.stored(T0, 90, 2)
    assert tracker.reset_to_store(T0) is None
    assert tracker.complete_reset(T0) == 90
    assert (tracker.position(T0), of(tracker).origin) == (90, StartOrigin.RESET)
    assert not tracker.has_uncommitted()


def test_a_withdrawn_reset_does_not_count_records_beyond_the_log_as_finished() -> None:
    """The position is in the log again, and records are delivered from there."""
    tracker = claimed()
    of(tracker).finished = 150
    tracker.choose_reset(T0, PendingReset(150, 0, 100, 100))
    assert tracker.resetting() == {T0}
    tracker.withdraw_reset(T0)
    assert tracker.resetting() == frozenset()
    assert tracker.commits() == {T0: Commit(100, 1)}


# Releases


@pytest.mark.parametrize(
    ("rules", "finished", "decision"),
    [
        (CommitRules(), 5, Release(None, 1)),
        (CommitRules(), 7, Release(7, 1)),
        (CommitRules(autocommit=False), 7, Release(None, 1)),
        (CommitRules(through_brokers=True), 7, Release(None, 1)),
    ],
)
def test_a_release_stores_what_is_finished(rules: CommitRules, finished: int, decision: Release) -> None:
    """Without automatic commits, or if brokers store the commits, the release only verifies the version."""
    tracker = claimed(rules)
    of(tracker).finished = finished
    assert tracker.release(T0, None) == decision


@pytest.mark.parametrize(("autocommit", "offset"), [(True, 100), (False, None)])
def test_a_release_stores_a_chosen_reset(autocommit: bool, offset: int | None) -> None:
    """An application that commits by itself may not have stored the results of finished records yet."""
    tracker = claimed(CommitRules(autocommit=autocommit))
    of(tracker).finished = 100
    tracker.choose_reset(T0, PendingReset(150, 0, 100, 100))
    assert tracker.release(T0, None) == Release(offset, 1)


def test_a_release_after_another_writers_change_stores_nothing() -> None:
    """It verifies the version that was read, so the offset stays."""
    tracker = claimed()
    of(tracker).finished = 7
    assert tracker.release_changed(T0, StoredOffset(3, 2)) == Release(None, 2, is_superseded=True)
    assert tracker.release_changed(T0, None) == Release(None, None, is_superseded=True)


def test_a_release_recognizes_an_interrupted_commit() -> None:
    """It stores what was finished since."""
    tracker = claimed()
    of(tracker).finished = 7
    tracker.sent(tracker.commits())
    of(tracker).finished = 8
    assert tracker.release_changed(T0, StoredOffset(7, 2)) == Release(8, 2)
    tracker.sent({T0: Commit(8, 2)})
    assert tracker.release_changed(T0, StoredOffset(8, 3)) == Release(None, 3), "all is stored"


def test_a_release_replaces_unreadable_data() -> None:
    """The next owner finds an offset."""
    tracker = claimed()
    assert tracker.release_changed(T0, StoredOffset(None, 2)) == Release(5, 2)


@pytest.mark.parametrize(("mzxid", "decision"), [(40, Release(None, 1)), (60, Release(0, 1))])
def test_a_release_replaces_a_position_of_the_old_log(mzxid: int, decision: Release) -> None:
    """The topic was created at zxid 50. A next owner recognizes an offset that is older than that."""
    tracker = claimed()
    of(tracker).finished = 7
    tracker.recreated("t", 50)
    assert tracker.release(T0, StoredOffset(5, 1, mzxid)) == decision


def test_a_release_replaces_a_position_of_the_old_log_only_at_the_version_that_it_knows() -> None:
    """If another offset was stored meanwhile, the release is refused, and decided again."""
    tracker = claimed()
    tracker.claim([T1], 1)
    tracker.recreated("t", 50)
    assert tracker.release(T0, StoredOffset(6, 2, 60)) == Release(0, 1)
    assert tracker.release(T1, StoredOffset(6, 2, 60)) == Release(0, 2), "an unopened claim knows only what was read"


def test_a_release_keeps_offsets_in_the_present_log() -> None:
    """A write since the claim is no position of an old log, nor is the offset of a partition that is not claimed."""
    tracker = claimed()
    assert tracker.release(T0, StoredOffset(5, 1, 60)) == Release(None, 1)
    assert tracker.release(T1, StoredOffset(5, 4, 60)) == Release(None, 4)


@pytest.mark.parametrize(("through_brokers", "decision"), [(False, Release(None, 2)), (True, Release(0, 2))])
def test_a_release_keeps_an_adopted_offset_of_the_new_log(through_brokers: bool, decision: Release) -> None:
    """An operator has set it. If brokers store the commits, it may be a late write of the old log instead."""
    tracker = claimed(CommitRules(through_brokers=through_brokers))
    stored = StoredOffset(3, 2, 60)
    assert tracker.read(T0, stored) is Finding.ADOPTED
    tracker.recreated("t", 50)
    assert tracker.release(T0, stored) == decision


def test_the_release_of_an_unopened_claim_verifies_the_offset_it_found() -> None:
    """Without an offset znode there is nothing to verify."""
    tracker = OffsetTracker()
    tracker.claim([T0], 1)
    assert tracker.release(T0, StoredOffset(5, 4)) == Release(None, 4)
    assert tracker.release(T0, None) == Release(None, None)
    assert tracker.release_changed(T0, StoredOffset(6, 5)) == Release(None, 5)


def test_a_release_creates_a_deleted_offset_again() -> None:
    """Not so for an unopened claim, nor after the topic was created again: the offset would be of the old log."""
    tracker = claimed()
    of(tracker).finished = 7
    tracker.claim([T1], 1)
    assert tracker.offset_to_restore(T0) == 7
    assert tracker.offset_to_restore(T1) is None
    tracker.recreated("t", 50)
    assert tracker.offset_to_restore(T0) is None


def test_the_offsets_of_a_partition_make_every_legal_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The moves of a partition to a phase are those of the table: none is missing there, and none is superfluous. The end
    of a claim is legal in every phase.
    """
    legal = {(source, target) for source, target in moves_in(partition_offsets) if target is not None}
    recorded = record_moves(monkeypatch, offset_tracker)
    start = {T0: StartPosition(5, 1, 30, created=3)}
    is_claimed, is_opened, is_outdated = ("claim", [T0], 3), ("open", start), ("recreated", "t", 4)
    is_reset, is_restarted = ("choose_reset", T0, PendingReset(5, 0, 3, 0)), ("restart", T0, 0, 2, 4)
    for calls in (
        (is_claimed, is_outdated, ("open", {T0: StartPosition(5, 1, 30, created=4)})),
        (is_claimed, is_opened, is_outdated, is_restarted),
        (is_opened, is_reset, ("withdraw_reset", T0)),
        (is_opened, is_reset, is_outdated, is_restarted),
    ):
        tracker = OffsetTracker()
        for name, *arguments in calls:
            getattr(tracker, name)(*arguments)
    assert recorded.seen == legal
    assert {source for source, target in moves_in(partition_offsets) if target is None} == {*Phase}


def test_the_offsets_of_a_partition_make_no_illegal_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """A move that the table lacks raises an error."""
    tracker = claimed()
    record_moves(monkeypatch, offset_tracker).forbidden = (Phase.OPEN, Phase.RESETTING)
    with pytest.raises(AssertionError, match="Phase"):
        tracker.choose_reset(T0, PendingReset(5, 0, 3, 0))


# Seeks of the application
