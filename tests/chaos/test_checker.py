"""The checker finds each broken guarantee in a made-up history, and nothing in a correct one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chaos.checker import Finding, check, gaps
from tests.chaos.history import Acknowledged, Commit, Delivery, History, Inflicted, Ownership, Process
from tests.helpers.chaos_history import END_S, FIRST_PID, LIMITS, SECOND_PID, sound_history

pytestmark = pytest.mark.unit


def kinds(history: History) -> list[str]:
    return [finding.kind for finding in check(history, LIMITS)]


def only(history: History) -> Finding:
    """Return the only finding."""
    (finding,) = check(history, LIMITS)
    return finding


def test_a_sound_run_has_no_finding() -> None:
    """A kill, an expired session, a repeated record, and an offset that a claim writes again are no findings."""
    assert check(sound_history(), LIMITS) == []


def test_a_record_that_is_never_delivered_is_lost() -> None:
    """An acknowledged record that no member received is lost."""
    history = sound_history()
    history.acknowledged.append(Acknowledged(10, 0, 10, 20.0))
    assert kinds(history) == ["lost", "late"]
    assert "record 10, acknowledged at offset 10" in check(history, LIMITS)[0].text


def test_a_record_that_is_never_finished_is_lost() -> None:
    """A record that was delivered and that no member finished is lost."""
    history = sound_history()
    history.acknowledged.append(Acknowledged(10, 0, 10, 20.0))
    history.deliveries.append(Delivery(SECOND_PID, 0, 10, 9, 10, 20.0, None))
    assert only(history).kind == "lost"


def test_a_delivery_under_an_older_claim_is_an_overlap() -> None:
    """A delivery under an older claim, after the first delivery under a newer claim, is an overlap."""
    history = sound_history()
    history.deliveries.append(Delivery(FIRST_PID, 0, 6, 7, 6, 16.1, 16.2))
    finding = only(history)
    assert (finding.kind, finding.partition, finding.at_s) == ("overlap", 0, 16.1)


def test_a_record_may_be_finished_after_a_newer_claim() -> None:
    """
    A record may be finished after a newer claim. Only the start of a delivery counts, because the fencing token lets a
    store refuse late writes.
    """
    history = sound_history()
    history.deliveries[5] = history.deliveries[5]._replace(end_s=30.0)
    assert check(history, LIMITS) == []


@pytest.mark.parametrize(("late", "found"), [([16.01], []), ([16.01, 16.02], ["overlap"]), ([16.3], ["overlap"])])
def test_a_resumed_process_may_make_the_delivery_that_was_interrupted(late: list[float], found: list[str]) -> None:
    """
    One delivery right after the resumption of a process is allowed. A second delivery, or a later delivery, is not.
    """
    history = sound_history()
    history.processes[0] = Process(FIRST_PID, 0.0, 20.0, resumed_s=(16.0,))
    history.deliveries.extend(Delivery(FIRST_PID, 0, 5, 7, 5, at_s, at_s + 0.003) for at_s in late)
    assert kinds(history) == found


def test_a_smaller_committed_offset_is_found() -> None:
    """Offsets never decrease, because only members write offsets in a run."""
    history = sound_history()
    history.commits.append(Commit(0, 7, 30.0, True))
    finding = only(history)
    assert (finding.kind, finding.text) == ("back", "the committed offset went back from 10 to 7")


def test_a_deleted_offset_is_found() -> None:
    """A deleted offset is a finding, because the next owner would start from the beginning."""
    assert only(replace(sound_history(), deleted_offsets=[(0, 30.0)])).kind == "back"


def test_a_commit_beyond_the_finished_records_is_found() -> None:
    """A commit of offset 6 is a finding if the record at offset 5 was not finished."""
    history = sound_history()
    history.commits[1] = Commit(0, 6, 8.0, True)
    history.commits[2] = Commit(0, 6, 15.3, True)
    finding = only(history)
    assert finding.kind == "skipped"
    assert finding.text == "offset 6 was committed before the record at 5 had been processed"


def test_a_commit_before_the_record_is_finished_is_found() -> None:
    """The commit is a finding although another member finished the record later."""
    history = sound_history()
    history.commits[1] = Commit(0, 6, 6.0, True)
    history.commits[2] = Commit(0, 6, 15.3, True)
    assert kinds(history) == ["skipped"]


def test_a_commit_of_the_record_in_flight_is_found() -> None:
    """
    A commit 20 ms before the end of its record is a finding. It is excused if the wall clock was set during the run.
    """
    history = sound_history()
    history.commits[1] = Commit(0, 5, 5.48, True)
    assert kinds(history) == ["skipped"]
    assert kinds(replace(history, clock_step_s=1.0)) == []


def test_a_commit_by_another_session_than_the_owner_is_found() -> None:
    """
    A commit by a session that is not the owner is a finding even if its offset is right: that session's gate should
    have been shut.
    """
    history = sound_history()
    history.commits.append(Commit(0, 10, 30.0, False))
    assert only(history).kind == "foreign"


def test_a_partition_is_unowned_from_the_death_of_its_process() -> None:
    """
    The time without an owner counts from the death of the process, not from the end of its session. Here 10 s exceed
    the allowed 9 s.
    """
    history = sound_history()
    history.ownerships[1] = history.ownerships[1]._replace(since_s=20.0)
    history.deliveries[6] = history.deliveries[6]._replace(start_s=20.1, end_s=20.2)
    assert [finding.kind for finding in check(history, LIMITS)] == ["unowned"]
    assert [round(gap.lasted_s, 3) for gap in gaps(history)] == [10.0]


def test_unowned_time_during_a_fault_is_excused() -> None:
    """While ZooKeeper has no leader, no member can claim. The time after the fault counts from 0."""
    history = sound_history()
    history.ownerships[1] = history.ownerships[1]._replace(since_s=26.0)
    history.faults.append(Inflicted(2, "zookeeper-leader-cut", "server 0", 14.0, 20.0))
    assert check(history, LIMITS) == []
    (gap,) = gaps(history)
    assert (gap.lasted_s, gap.quiet_s) == (16.0, 6.0)


def test_a_kill_excuses_nothing() -> None:
    """The other members must take over, even if the killed process is not replaced for long."""
    history = sound_history()
    history.ownerships[1] = history.ownerships[1]._replace(since_s=30.0)
    history.faults[0] = history.faults[0]._replace(ended_s=30.0)
    assert kinds(history) == ["unowned"]


def test_unowned_time_counts_from_the_last_kill() -> None:
    """
    Another kill starts the time again: the second member may have been assigned the partition, and its session must
    expire as well.
    """
    history = sound_history()
    history.ownerships[1] = history.ownerships[1]._replace(since_s=20.0)
    history.faults.append(Inflicted(2, "member-kill", "member-1", 14.0, 16.0))
    assert check(history, LIMITS) == []
    (gap,) = gaps(history)
    assert (gap.lasted_s, gap.quiet_s) == (10.0, 6.0)


def test_a_partition_that_is_never_claimed_again_is_found() -> None:
    """A partition that was released 20 s before the end of the run and not claimed again is a finding."""
    history = sound_history()
    history.ownerships[1] = history.ownerships[1]._replace(until_s=40.0)
    finding = only(history)
    assert finding.kind == "unowned"
    assert finding.text.startswith("no living owner for 20.0 s")


def test_a_partition_that_is_never_claimed_is_found() -> None:
    """A partition without any claim has no gap between two owners, and is still found."""
    finding = only(replace(sound_history(), partitions=2))
    assert (finding.kind, finding.partition) == ("unowned", 1)


def test_an_owner_znode_of_a_dead_process_is_no_owner() -> None:
    """An owner znode that remains after the end of its process does not count as an owner."""
    history = sound_history()
    history.ownerships[:] = [Ownership(0, 7, 1, FIRST_PID, 0.5, None)]
    assert "unowned" in kinds(history)


def test_a_late_delivery_is_found() -> None:
    """A record that waits for 20 s although its partition has an owner and there is no fault is a finding."""
    history = sound_history()
    history.acknowledged.append(Acknowledged(10, 0, 10, 25.0))
    history.deliveries.append(Delivery(SECOND_PID, 0, 10, 9, 10, 45.0, 45.1))
    assert only(history).kind == "late"


def test_a_late_delivery_during_a_fault_is_excused() -> None:
    """A late delivery is excused if a broker was down for most of the time that the record waited."""
    history = sound_history()
    history.acknowledged.append(Acknowledged(10, 0, 10, 25.0))
    history.deliveries.append(Delivery(SECOND_PID, 0, 10, 9, 10, 45.0, 45.1))
    history.faults.append(Inflicted(2, "broker-kill", "broker-0", 26.0, 40.0))
    assert check(history, LIMITS) == []


def test_a_member_that_stops_by_itself_is_found() -> None:
    """A member that the run did not end is a finding, whatever its reason."""
    history = sound_history()
    history.processes[1] = Process(SECOND_PID, 0.0, 58.0, "stopped by itself with status 1")
    assert only(history).text == "member process 102 stopped by itself with status 1"


@settings(deadline=None)
@given(st.data())
def test_damage_to_any_record_is_found(data: st.DataObject) -> None:
    """
    For any record, missing deliveries, a delivery under the older claim, and a smaller committed offset are found.
    """
    history = sound_history()
    number = data.draw(st.integers(0, 9))
    without = [delivery for delivery in history.deliveries if delivery.number != number]
    assert {"lost", "skipped"} <= set(kinds(replace(history, deliveries=without)))
    at_s = data.draw(st.floats(16.1, END_S))
    stale = Delivery(FIRST_PID, 0, number, 7, number, at_s, None)
    assert "overlap" in kinds(replace(history, deliveries=[*history.deliveries, stale]))
    lower = Commit(0, data.draw(st.integers(0, 9)), 30.0, True)
    assert "back" in kinds(replace(history, commits=[*history.commits, lower]))
