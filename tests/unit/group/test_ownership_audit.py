"""Owners that differ from the plan, and when the leader reports them."""

from __future__ import annotations

import pytest

from kiel_groups.errors import ProtocolError
from kiel_groups.group.ownership_audit import OwnerMismatch, alarms, find_mismatches
from kiel_groups.group.znodes.contents import encode_owner, parse_owner
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
WANTED = {P0: "a", P1: "a", P2: "b"}


def test_an_owner_as_planned_is_no_mismatch() -> None:
    """A partition has no mismatch if its owner is the member in the plan."""
    assert find_mismatches({}, WANTED, {P0: "a", P1: "a", P2: "b"}, 1.0) == {}


def test_a_mismatch_lasts_from_the_first_reading_that_found_it() -> None:
    """
    A mismatch lasts from the first reading that found it. A change of the owner or of the plan starts another mismatch.
    """
    first = find_mismatches({}, WANTED, {P0: None, P1: "b", P2: "b"}, 1.0)
    assert first == {P0: OwnerMismatch("a", None, 1.0), P1: OwnerMismatch("a", "b", 1.0)}
    second = find_mismatches(first, WANTED, {P0: None, P1: "c", P2: "b"}, 2.0)
    assert second == {P0: OwnerMismatch("a", None, 1.0), P1: OwnerMismatch("a", "c", 2.0)}
    assert find_mismatches(second, {**WANTED, P0: "b"}, {P0: None, P1: "a", P2: "b"}, 3.0) == {
        P0: OwnerMismatch("b", None, 3.0)
    }


def test_a_mismatch_stays_until_its_owner_is_read_again() -> None:
    """
    A mismatch stays until its owner is read again, because a reading may cover only some owners. If the partition is no
    longer assigned, the mismatch is dropped.
    """
    first = find_mismatches({}, WANTED, {P1: "b"}, 1.0)
    assert find_mismatches(first, WANTED, {}, 2.0) == first
    assert find_mismatches(first, {P2: "b"}, {}, 2.0) == {}


def test_one_alarm_names_all_partitions_of_the_same_owner_and_cause() -> None:
    """
    One alarm names all partitions with the same owner and cause. The three causes are: no owner, a live owner that does
    not release, and an owner that is no member.
    """
    found = {
        P0: OwnerMismatch("a", None, 0.0),
        P1: OwnerMismatch("a", "b", 2.0),
        P2: OwnerMismatch("a", "b", 1.0),
        TopicPartition("t", 3): OwnerMismatch("a", "dead", 0.0),
        TopicPartition("t", 4): OwnerMismatch("b", None, 29.0),
    }
    raised = list(alarms(found, {"a", "b"}, 32.0, 30.0))
    assert [(alarm.kind, len(alarm.partitions)) for alarm in raised] == [
        ("partitions_unowned", 1),
        ("partitions_wrongly_owned", 2),
        ("partitions_orphaned", 1),
    ]
    unowned, wrongly_owned, orphaned = (alarm.text for alarm in raised)
    assert unowned.startswith("t:0, allocated to a: no owner for 32 s")
    assert wrongly_owned.startswith("2 partitions, first t:1, allocated to a: owned by b for 31 s, and not released")
    assert orphaned.startswith("t:3, allocated to a: owned by dead for 32 s, which is no member")


def test_an_alarm_about_several_partitions_has_the_age_of_the_oldest_mismatch() -> None:
    """One alarm reports all partitions that one member holds and another one is assigned."""
    found = {P0: OwnerMismatch("a", "b", 5.0), P1: OwnerMismatch("a", "b", 9.0)}
    (alarm,) = alarms(found, {"a", "b"}, 50.0, 30.0)
    assert "2 partitions" in alarm.text
    assert "owned by b for 45 s" in alarm.text


def test_owners_are_read_as_they_are_written() -> None:
    """The owner data that this package writes can be read back. Other data raises an error."""
    assert parse_owner(encode_owner("g_host-1-ab"), "/x") == "g_host-1-ab"
    for garbage in (b"", b"name", b"-0", b"name-x", b"\xff"):
        with pytest.raises(ProtocolError, match=r"^/x: a consumer id and the index of a thread were expected"):
            parse_owner(garbage, "/x")
