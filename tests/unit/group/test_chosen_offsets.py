"""Commits of offsets that the application chose: which are allowed, and what they change."""

from __future__ import annotations

import pytest

from kiel_groups.group.offset_tracker import CommitRules, OffsetTracker
from kiel_groups.group.partition_offsets import (
    ChosenCommits,
    Commit,
    Finding,
    PartitionOffsets,
    PendingReset,
    Refusal,
    Release,
    StartPosition,
    StoredOffset,
)
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def claimed(*, autocommit: bool = True) -> OffsetTracker:
    """Return the tracker of a consumer that owns t:0 from 5 on, at 9, of which 7 is finished; and t:1, at 3."""
    tracker = OffsetTracker(CommitRules(autocommit))
    tracker.open({T0: StartPosition(5, 1, 30, created=2), T1: StartPosition(3, 0, 31, created=2)})
    of(tracker).position, of(tracker).finished = 9, 7
    return tracker


def of(tracker: OffsetTracker) -> PartitionOffsets:
    found = tracker.of(T0)
    assert found is not None
    return found


@pytest.mark.parametrize("offset", [5, 6, 7, 8, 9])
def test_an_offset_between_the_start_and_the_position_is_committed(offset: int) -> None:
    """Finished or not, the application decides. The commit replaces the version that was last seen."""
    assert claimed().choose({T0: offset}) == ChosenCommits({T0: Commit(offset, 1)}, {})


@pytest.mark.parametrize(
    ("offset", "refusal"), [(4, Refusal.BEFORE_FLOOR), (0, Refusal.BEFORE_FLOOR), (10, Refusal.BEYOND_POSITION)]
)
def test_an_offset_outside_of_the_claim_is_refused(offset: int, refusal: Refusal) -> None:
    """Records before the claim were another member's, and records beyond the position were never delivered."""
    assert claimed().choose({T0: offset}) == ChosenCommits({}, {T0: refusal})


def test_one_refusal_refuses_all() -> None:
    """Nothing of a call is stored if one of its offsets is refused, and every refusal is in the result."""
    assert claimed().choose({T0: 6, T1: 3, U0: 1}) == ChosenCommits({}, {U0: Refusal.NOT_OPEN})
    both = claimed().choose({T0: 4, T1: 4})
    assert both == ChosenCommits({}, {T0: Refusal.BEFORE_FLOOR, T1: Refusal.BEYOND_POSITION})
    assert claimed().choose({T1: 3, T0: 6}).commits == {T0: Commit(6, 1), T1: Commit(3, 0)}


def test_a_seek_of_the_application_extends_the_bounds() -> None:
    """A seek back lowers the floor for the rest of the claim; a seek forward raises the position only."""
    tracker = claimed()
    tracker.seek(T0, 2)
    assert tracker.choose({T0: 2}).refusals == {}
    assert tracker.choose({T0: 1}).refusals == {T0: Refusal.BEFORE_FLOOR}
    assert tracker.choose({T0: 3}).refusals == {T0: Refusal.BEYOND_POSITION}
    tracker.seek(T0, 20)
    assert [offset for offset in (1, 2, 5, 20, 21) if not tracker.choose({T0: offset}).refusals] == [2, 5, 20]


def test_an_adopted_offset_is_the_new_floor() -> None:
    """An operator has moved the group there: an application that does not know of it commits nothing before it."""
    tracker = claimed()
    assert tracker.read(T0, StoredOffset(8, 2)) is Finding.ADOPTED
    assert tracker.choose({T0: 7}).refusals == {T0: Refusal.DELIVERED_EARLIER}
    assert tracker.choose({T0: 4}).refusals == {T0: Refusal.BEFORE_FLOOR}
    assert tracker.choose({T0: 8}).commits == {T0: Commit(8, 2)}
    assert tracker.read(T0, StoredOffset(1, 3)) is Finding.ADOPTED
    assert tracker.choose({T0: 1}).commits == {T0: Commit(1, 3)}
    assert tracker.choose({T0: 7}).refusals == {T0: Refusal.DELIVERED_EARLIER}
    assert tracker.choose({T0: 10}).refusals == {T0: Refusal.BEYOND_POSITION}


def test_a_new_log_has_bounds_of_its_own() -> None:
    """Until the restart in the new log, every offset is refused; after it, the offsets of the old log are."""
    tracker = claimed()
    tracker.recreated("t", 3)
    assert tracker.choose({T0: 6, T1: 3}).refusals == {T0: Refusal.OUTDATED, T1: Refusal.OUTDATED}
    tracker.restart(T0, 0, 2, 3)
    assert tracker.choose({T0: 6}).refusals == {T0: Refusal.DELIVERED_EARLIER}
    assert tracker.choose({T0: 4}).refusals == {T0: Refusal.BEYOND_POSITION}
    assert tracker.choose({T0: 0}).commits == {T0: Commit(0, 2)}


@pytest.mark.parametrize(
    ("offset", "refusal"),
    [
        (4, Refusal.BEFORE_FLOOR),
        (5, Refusal.DELIVERED_EARLIER),
        (6, Refusal.DELIVERED_EARLIER),
        (7, None),
        (9, Refusal.DELIVERED_EARLIER),
        (10, Refusal.BEYOND_POSITION),
    ],
)
def test_an_offset_of_an_earlier_claim_is_no_mistake_of_the_application(offset: int, refusal: Refusal | None) -> None:
    """A claim that is lost takes what was delivered with it, and the application cannot know that yet."""
    tracker = claimed()
    tracker.end([T0])
    assert tracker.choose({T0: offset}).refusals == {T0: Refusal.NOT_OPEN}
    tracker.open({T0: StartPosition(7, 4, 50, created=2)})
    assert tracker.choose({T0: offset}).refusals == ({} if refusal is None else {T0: refusal})


def test_offsets_of_several_earlier_claims_are_remembered() -> None:
    """An application may commit late what two claims ago delivered. Its own seek within the claim is its own act."""
    tracker = claimed()
    tracker.seek(T0, 2)
    assert tracker.choose({T0: 9}).refusals == {T0: Refusal.BEYOND_POSITION}
    of(tracker).position = 4
    for version, start in ((4, 20), (5, 30)):
        tracker.end([T0])
        tracker.open({T0: StartPosition(start, version, 50 + version, created=2)})
    refusals = {offset: tracker.choose({T0: offset}).refusals.get(T0) for offset in (1, 2, 4, 20, 21, 30, 31)}
    earlier, late = Refusal.DELIVERED_EARLIER, Refusal.BEYOND_POSITION
    assert refusals == {
        1: Refusal.BEFORE_FLOOR,
        2: earlier,
        4: earlier,
        20: earlier,
        21: Refusal.BEFORE_FLOOR,
        30: None,
        31: late,
    }


def test_an_offset_beyond_the_end_of_a_truncated_log_is_refused() -> None:
    """The log ends at 6, although records up to 9 were delivered. Until the reset is stored, 6 is the limit."""
    tracker = claimed()
    tracker.choose_reset(T0, PendingReset(9, 0, 6, 6))
    assert tracker.choose({T0: 6}).refusals == {}
    assert tracker.choose({T0: 7}).refusals == {T0: Refusal.BEYOND_LOG}


@pytest.mark.parametrize(("autocommit", "stored", "least"), [(True, 4, 4), (False, 2, 2)])
def test_the_floor_after_a_reset(autocommit: bool, stored: int, least: int) -> None:
    """
    A reset starts the claim anew. Without automatic commits, an application can still commit the records between the
    stored offset and the position, which it has processed.
    """
    tracker = OffsetTracker(CommitRules(autocommit))
    tracker.open({T0: StartPosition(2, 1, 30)})
    of(tracker).position = of(tracker).finished = 4
    of(tracker).position = 9
    tracker.choose_reset(T0, PendingReset(9, 0, 6, 6))
    commit = tracker.reset_to_store(T0)
    if commit is not None:
        tracker.stored(T0, commit.offset, 2)
    assert of(tracker).committed == stored
    assert tracker.complete_reset(T0) == 4
    assert [offset for offset in range(6) if not tracker.choose({T0: offset}).refusals] == list(range(least, 5))


def test_a_chosen_commit_changes_neither_the_position_nor_what_is_finished() -> None:
    """The next commit without offsets stores what is finished again, whether that is more or less."""
    for chosen in (5, 6, 9):
        tracker = claimed()
        sent = tracker.sent(tracker.choose({T0: chosen}).commits)
        tracker.answered(sent, {T0: StoredOffset(chosen, 2)})
        assert (of(tracker).position, of(tracker).finished, of(tracker).committed) == (9, 7, chosen)
        assert tracker.commits() == {T0: Commit(7, 2)}


def test_an_interrupted_chosen_commit_is_recognized() -> None:
    """If its caller was interrupted, the stored offset is this consumer's own, at exactly the next version."""
    tracker = claimed()
    tracker.sent(tracker.choose({T0: 6}).commits)
    assert tracker.judge(T0, StoredOffset(6, 3)) is Finding.ADOPTED
    assert tracker.read(T0, StoredOffset(6, 2)) is Finding.OWN
    assert tracker.choose({T0: 8}).commits == {T0: Commit(8, 2)}


def test_a_release_keeps_a_chosen_offset_unless_the_consumer_commits_by_itself() -> None:
    for autocommit, kept in ((True, Release(7, 2)), (False, Release(None, 2))):
        tracker = claimed(autocommit=autocommit)
        tracker.stored(T0, 6, 2)
        assert tracker.release(T0, None) == kept


def test_a_release_commits_nothing_more_once_automatic_commits_were_stopped() -> None:
    """The position of a chosen reset is stored all the same: the one of a consumer that commits by itself no more."""
    tracker = claimed()
    tracker.stop_autocommit()
    assert tracker.release(T0, None) == Release(None, 1)
    assert tracker.offset_to_restore(T0) == 5
    tracker.choose_reset(T0, PendingReset(9, 8, 20, 8))
    assert tracker.release(T0, None) == Release(8, 1)


def test_an_offset_may_be_chosen_from_the_start_of_a_new_log_on() -> None:
    """The offsets of the old log, and its floor, mean nothing in the new one."""
    tracker = claimed()
    tracker.recreated("t", 50)
    tracker.restart(T0, 0, 2, 50)
    assert tracker.choose({T0: 0}) == ChosenCommits({T0: Commit(0, 2)}, {})
