"""The judge finds what must never be, and only that: made-up histories."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chaos.history import Acknowledged, Commit, Delivery, History, Inflicted, Ownership, Process
from tests.chaos.judge import Finding, Limits, gaps, judge

pytestmark = pytest.mark.unit

LIMITS = Limits(unowned_s=9.0, late_s=19.0)
FIRST, SECOND = 101, 102
END_S = 60.0


def sound() -> History:
    """One partition, ten records: process 101 is killed at 10 s in the middle of record 5, and 102 goes on at 15 s."""
    early = [Delivery(FIRST, 0, number, 7, number, 1.0 + number, 1.5 + number) for number in range(5)]
    cut_off = Delivery(FIRST, 0, 5, 7, 5, 9.9, None)
    late = [Delivery(SECOND, 0, number, 9, number, 11.0 + number, 11.5 + number) for number in range(5, 10)]
    return History(
        partitions=1,
        acknowledged=[Acknowledged(number, 0, number, 0.5 + number) for number in range(10)],
        deliveries=[*early, cut_off, *late],
        ownerships=[Ownership(0, 7, 1, FIRST, 0.5, 15.0), Ownership(0, 9, 2, SECOND, 15.2, None)],
        commits=[Commit(0, 0, 0.6, True), Commit(0, 5, 6.0, True), Commit(0, 5, 15.3, True), Commit(0, 10, 25.0, True)],
        faults=[Inflicted(1, "member-kill", "member-0", 10.0, 12.0)],
        processes=[Process(FIRST, 0.0, 10.0), Process(SECOND, 0.0, None)],
        end_s=END_S,
    )


def kinds(history: History) -> list[str]:
    return [finding.kind for finding in judge(history, LIMITS)]


def only(history: History) -> Finding:
    """The one finding there is."""
    (finding,) = judge(history, LIMITS)
    return finding


def test_a_sound_run_has_no_finding() -> None:
    """A kill, an expired session, a repeated record and an offset written again at a claim are no findings."""
    assert judge(sound(), LIMITS) == []


def test_lost() -> None:
    """An acknowledged record that nobody was given."""
    history = sound()
    history.acknowledged.append(Acknowledged(10, 0, 10, 20.0))
    assert kinds(history) == ["lost", "late"]
    assert "record 10, acknowledged at offset 10" in judge(history, LIMITS)[0].text


def test_lost_when_it_was_begun_only() -> None:
    """A record whose processing nobody finished counts as lost, too."""
    history = sound()
    history.acknowledged.append(Acknowledged(10, 0, 10, 20.0))
    history.deliveries.append(Delivery(SECOND, 0, 10, 9, 10, 20.0, None))
    assert only(history).kind == "lost"


def test_overlap() -> None:
    """A delivery under the older claim, after the newer claim's first one."""
    history = sound()
    history.deliveries.append(Delivery(FIRST, 0, 6, 7, 6, 16.1, 16.2))
    finding = only(history)
    assert (finding.kind, finding.partition, finding.at_s) == ("overlap", 0, 16.1)


def test_work_that_began_before_the_newer_claim_may_end_after_it() -> None:
    """Only the beginnings count: the token refuses what a late work writes."""
    history = sound()
    history.deliveries[5] = history.deliveries[5]._replace(end_s=30.0)
    assert judge(history, LIMITS) == []


@pytest.mark.parametrize(("late", "found"), [([16.01], []), ([16.01, 16.02], ["overlap"]), ([16.3], ["overlap"])])
def test_a_resumed_process_may_end_the_step_that_was_interrupted(late: list[float], found: list[str]) -> None:
    """One delivery at the very moment of the resumption, and no second one, nor one later."""
    history = sound()
    history.processes[0] = Process(FIRST, 0.0, 20.0, resumed_s=(16.0,))
    history.deliveries.extend(Delivery(FIRST, 0, 5, 7, 5, at_s, at_s + 0.003) for at_s in late)
    assert kinds(history) == found


def test_an_offset_that_goes_back() -> None:
    """The znode's value became smaller, and nobody but members writes it."""
    history = sound()
    history.commits.append(Commit(0, 7, 30.0, True))
    finding = only(history)
    assert (finding.kind, finding.text) == ("back", "the committed offset went back from 10 to 7")


def test_an_offset_that_is_deleted() -> None:
    """Whoever comes next would begin anew."""
    assert only(replace(sound(), deleted_offsets=[(0, 30.0)])).kind == "back"


def test_skipped() -> None:
    """A commit one beyond what was processed."""
    history = sound()
    history.commits[1] = Commit(0, 6, 8.0, True)
    history.commits[2] = Commit(0, 6, 15.3, True)
    finding = only(history)
    assert finding.kind == "skipped"
    assert finding.text == "offset 6 was committed before the record at 5 had been processed"


def test_skipped_when_it_was_processed_later() -> None:
    """That another member happened to process the record afterwards does not make the commit right."""
    history = sound()
    history.commits[1] = Commit(0, 6, 6.0, True)
    history.commits[2] = Commit(0, 6, 15.3, True)
    assert kinds(history) == ["skipped"]


def test_skipped_by_the_record_in_flight() -> None:
    """A commit that counts the record which the application is still busy with, by 20 ms; a set clock excuses it."""
    history = sound()
    history.commits[1] = Commit(0, 5, 5.48, True)
    assert kinds(history) == ["skipped"]
    assert kinds(replace(history, clock_step_s=1.0)) == []


def test_a_commit_of_who_does_not_own_the_partition() -> None:
    """The right value from the wrong session is a gate that was open too long."""
    history = sound()
    history.commits.append(Commit(0, 10, 30.0, False))
    assert only(history).kind == "foreign"


def test_unowned_after_a_kill() -> None:
    """From the process's death on, not from the end of its session: 10 s is longer than 9."""
    history = sound()
    history.ownerships[1] = history.ownerships[1]._replace(since_s=20.0)
    history.deliveries[6] = history.deliveries[6]._replace(start_s=20.1, end_s=20.2)
    assert [finding.kind for finding in judge(history, LIMITS)] == ["unowned"]
    assert [round(gap.lasted_s, 3) for gap in gaps(history)] == [10.0]


def test_unowned_under_a_fault_is_excused() -> None:
    """While ZooKeeper has no leader nobody can claim; the time after it counts anew."""
    history = sound()
    history.ownerships[1] = history.ownerships[1]._replace(since_s=26.0)
    history.faults.append(Inflicted(2, "zookeeper-leader-cut", "server 0", 14.0, 20.0))
    assert judge(history, LIMITS) == []
    (gap,) = gaps(history)
    assert (gap.lasted_s, gap.quiet_s) == (16.0, 6.0)


def test_a_kill_excuses_nothing() -> None:
    """The others must take over, however long the killed member's place stays empty."""
    history = sound()
    history.ownerships[1] = history.ownerships[1]._replace(since_s=30.0)
    history.faults[0] = history.faults[0]._replace(ended_s=30.0)
    assert kinds(history) == ["unowned"]


def test_a_second_kill_counts_anew() -> None:
    """The partition was planned for a member that was killed as well: that one's session has to expire, too."""
    history = sound()
    history.ownerships[1] = history.ownerships[1]._replace(since_s=20.0)
    history.faults.append(Inflicted(2, "member-kill", "member-1", 14.0, 16.0))
    assert judge(history, LIMITS) == []
    (gap,) = gaps(history)
    assert (gap.lasted_s, gap.quiet_s) == (10.0, 6.0)


def test_unowned_until_the_end() -> None:
    """A partition that is released and never claimed again."""
    history = sound()
    history.ownerships[1] = history.ownerships[1]._replace(until_s=40.0)
    finding = only(history)
    assert finding.kind == "unowned"
    assert finding.text.startswith("no living owner for 20.0 s")


def test_never_owned() -> None:
    """A partition that nobody ever claimed."""
    finding = only(replace(sound(), partitions=2))
    assert (finding.kind, finding.partition) == ("unowned", 1)


def test_an_owner_that_is_never_released_by_a_dead_process() -> None:
    """A znode without a process behind it is no owner."""
    history = sound()
    history.ownerships[:] = [Ownership(0, 7, 1, FIRST, 0.5, None)]
    assert "unowned" in kinds(history)


def test_late() -> None:
    """Owned, and yet nothing flows: 20 s although nothing was wrong."""
    history = sound()
    history.acknowledged.append(Acknowledged(10, 0, 10, 25.0))
    history.deliveries.append(Delivery(SECOND, 0, 10, 9, 10, 45.0, 45.1))
    assert only(history).kind == "late"


def test_late_under_a_fault_is_excused() -> None:
    """A broker that was away for most of it."""
    history = sound()
    history.acknowledged.append(Acknowledged(10, 0, 10, 25.0))
    history.deliveries.append(Delivery(SECOND, 0, 10, 9, 10, 45.0, 45.1))
    history.faults.append(Inflicted(2, "broker-kill", "broker-0", 26.0, 40.0))
    assert judge(history, LIMITS) == []


def test_a_member_that_stops_by_itself() -> None:
    """Whatever its reason: the run did not end it."""
    history = sound()
    history.processes[1] = Process(SECOND, 0.0, 58.0, "stopped by itself with status 1")
    assert only(history).text == "member process 102 stopped by itself with status 1"


@settings(deadline=None)
@given(st.data())
def test_damage_is_always_found(data: st.DataObject) -> None:
    """Whatever record vanishes from a sound run, whichever delivery comes again under the older claim: it is found."""
    history = sound()
    number = data.draw(st.integers(0, 9))
    without = [delivery for delivery in history.deliveries if delivery.number != number]
    assert {"lost", "skipped"} <= set(kinds(replace(history, deliveries=without)))
    at_s = data.draw(st.floats(16.1, END_S))
    stale = Delivery(FIRST, 0, number, 7, number, at_s, None)
    assert "overlap" in kinds(replace(history, deliveries=[*history.deliveries, stale]))
    lower = Commit(0, data.draw(st.integers(0, 9)), 30.0, True)
    assert "back" in kinds(replace(history, commits=[*history.commits, lower]))
