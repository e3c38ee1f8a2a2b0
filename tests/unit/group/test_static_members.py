"""The places of absent static members."""

from __future__ import annotations

import pytest

from kiel_groups.group.planner import absences, members_by_slot, next_end_ms
from kiel_groups.group.znodes.contents import MemberAssignment, MemberInfo
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit


OWNED = frozenset({TopicPartition("t", 0)})


PRESENT = MemberAssignment(3, "g_host-1-a", OWNED)


AWAY = MemberAssignment(3, "g_host-1-b", OWNED, away_since_ms=1_000)


def member(member_id: str, slot: str, *topics: str) -> MemberInfo:
    return MemberInfo(member_id=member_id, session_timeout_ms=10_000, subscription=topics, instance_id=slot)


ONE, TWO = {"one": member("g_host-1-a", "one", "t")}, {"two": member("g_host-1-c", "two", "t")}


def test_the_place_of_an_absent_static_member_is_kept_for_its_grace() -> None:
    """
    The place of an absent static member is kept for its grace. The grace counts from the time in the assignment, so a
    new leader does not restart it.
    """
    away = absences({"one": PRESENT, "two": AWAY}, TWO, 1_000, 500)
    assert away == {"one": MemberAssignment(3, "g_host-1-a", OWNED, away_since_ms=1_000)}
    assert absences({"two": AWAY}, {}, 1_499, 500) == {"two": AWAY}
    assert absences({"two": AWAY}, {}, 1_500, 500) == {}
    assert next_end_ms({"two": AWAY}, 500) == 1_500
    assert next_end_ms({}, 500) is None


def test_no_place_is_kept_for_present_or_dynamic_members() -> None:
    """
    No place is kept for present members, for dynamic members, whose ids are never used again, and for unreadable
    assignments.
    """
    assignments = {"one": PRESENT, "g_host-1-a": PRESENT, "garbage": None}
    assert absences(assignments, ONE, 0, 500) == {}
    assert absences({**assignments, "two": AWAY}, ONE, 1_000, 500) == {"two": AWAY}, "others keep theirs"


def test_a_member_that_has_not_subscribed_yet_is_still_away() -> None:
    """
    The place of a member that is back is kept until it subscribes. A member that has its place and drops its
    subscription loses the place.
    """
    back = {"two": member("g_host-1-c", "two")}
    assert absences({"two": AWAY}, back, 1_499, 500) == {"two": AWAY}
    assert absences({"two": AWAY}, back, 1_500, 500) == {}, "the grace ends"
    assert absences({"two": AWAY}, TWO, 1_000, 500) == {}
    assert absences({"one": PRESENT}, {"one": member("g_host-1-a", "one")}, 1_000, 500) == {}


def test_a_member_has_its_place_until_a_later_one_has_subscribed() -> None:
    """Until then, the leader plans for the earlier member, whichever of the two it reads first."""
    earlier, later = member("g_host-1-a", "one", "t"), member("g_host-1-c", "one")
    subscribed = member("g_host-1-c", "one", "t")
    for first, second in ((0, 1), (1, 0)):
        waiting, both = [(1, earlier), (2, later)], [(1, earlier), (2, subscribed)]
        assert members_by_slot([waiting[first], waiting[second]]) == {"one": earlier}
        assert members_by_slot([both[first], both[second]]) == {"one": subscribed}
    assert members_by_slot([(2, later)]) == {"one": later}


def test_a_time_in_the_future_does_not_lengthen_the_grace() -> None:
    """
    A time in the future, written by a leader whose clock was ahead, counts as the present time, and so does not
    lengthen the grace.
    """
    assert absences({"two": AWAY}, {}, 10, 500)["two"].away_since_ms == 10
