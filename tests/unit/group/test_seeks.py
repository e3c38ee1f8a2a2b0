"""What a seek of the application does to the offsets of a partition."""

from __future__ import annotations

import pytest

from kiel_groups.errors import ConfigError
from kiel_groups.group.offset_tracker import CommitRules, OffsetTracker
from kiel_groups.group.partition_offsets import Commit, Finding, StartOrigin, StartPosition, StoredOffset
from kiel_groups.group.subscription import check_offset
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit

T0 = TopicPartition("t", 0)


def claimed() -> OffsetTracker:
    """Return the tracker of a consumer that owns partition 0 of t, at offset 5."""
    tracker = OffsetTracker()
    tracker.open({T0: StartPosition(5, 1, 30)})
    return tracker


def test_a_seek_back_to_the_committed_offset_replaces_an_unknown_commit() -> None:
    """If the outcome of a commit is unknown, the sought offset is stored, although it was committed before."""
    tracker = claimed()
    state = tracker.of(T0)
    assert state is not None
    state.position = state.finished = 8
    tracker.sent(tracker.commits())
    assert tracker.commits() == {T0: Commit(8, 1)}
    tracker.seek(T0, 5)
    assert tracker.commits() == {T0: Commit(5, 1)}
    assert tracker.read(T0, StoredOffset(8, 2)) is Finding.OWN
    assert tracker.commits() == {T0: Commit(5, 2)}


def test_only_seeks_of_the_application_and_new_logs_have_a_new_mark() -> None:
    """A look-up for a seek remains valid after a reset and after another writer's offset."""
    tracker = claimed()
    mark = tracker.seek_mark(T0)
    tracker.seek(T0, 7, StartOrigin.RESET)
    tracker.read(T0, StoredOffset(9, 4))
    assert tracker.seek_mark(T0) is mark
    tracker.seek(T0, 9)
    after = tracker.seek_mark(T0)
    assert after is not mark
    tracker.recreated("t", 2)
    tracker.restart(T0, 0, 5, 2)
    assert tracker.seek_mark(T0) is not after
    tracker.end([T0])
    assert tracker.seek_mark(T0) is None


def test_a_late_write_of_a_broker_undoes_a_seek_back() -> None:
    """Brokers check no version and leave no trace of the writer: the member takes the offset for another writer's."""
    tracker = OffsetTracker(CommitRules(autocommit=True, through_brokers=True))
    tracker.claim([T0], 1)
    tracker.open({T0: StartPosition(5, 1, 30)})
    state = tracker.of(T0)
    assert state is not None
    state.position = state.finished = 9
    tracker.seek(T0, 5)
    assert tracker.read(T0, StoredOffset(9, 2)) is Finding.ADOPTED
    assert tracker.position(T0) == 9


@pytest.mark.parametrize("offset", [0, 2**63 - 1])
def test_any_int64_from_0_on_can_be_sought(offset: int) -> None:
    """An empty log has the next offset 0. The largest offset is the largest int64."""
    assert check_offset(offset, "seek()") == offset


@pytest.mark.parametrize("offset", [-1, 2**63, 1.0, True, None])
def test_other_values_cannot_be_sought(offset: object) -> None:
    """The error names the call, the value, and what was expected."""
    with pytest.raises(ConfigError, match=rf"^seek\(\): {offset} given; expected the next offset"):
        check_offset(offset, "seek()")
