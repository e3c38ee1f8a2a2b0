"""How the leader describes the cause of a generation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kiel_groups.group.planner import (
    Inputs,
    describe_allocator,
    describe_change,
)
from kiel_groups.group.znodes.contents import MemberAssignment
from kiel_groups.group.znodes.group_settings import DynamicConfig, PlanRequest
from kiel_groups.model import TopicPartition
from tests.helpers.plans import (
    KEPT,
    STATIC,
    group_state,
    inputs,
    members,
    some,
    target,
)

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("before", "after", "described"),
    [
        (None, "", ""),
        (None, "failed", "allocator failed"),
        ("", "failed", "allocator failed"),
        ("failed", "", "allocator recovered"),
        ("failed", "failed otherwise", ""),
    ],
)
def test_an_allocator_is_described_when_it_fails_or_recovers(before: str | None, after: str, described: str) -> None:
    """A generation's cause says that the allocator has failed or recovered. A failure that lasts is described once."""
    found = None if before is None else replace(group_state(), fallback=before)
    assert describe_allocator(found, replace(target(), fallback=after)) == described


BEFORE = Inputs(members=members("a", "b"), topics={"t": (0, 1)}, brokers=1)


CHANGES = {
    "join of c, expiry of a": Inputs(members=members("b", "c"), topics=BEFORE.topics, brokers=1),
    "leave of a": Inputs(members=members("a", topics=()) | members("b"), topics=BEFORE.topics, brokers=1),
    "config": replace(BEFORE, dynamic_config=DynamicConfig(allocator="sticky")),
    "operator: drain of a": replace(
        BEFORE, dynamic_config=DynamicConfig(drained=frozenset("a"), request=PlanRequest(7, "drain of a"))
    ),
    "weights": replace(BEFORE, weights={TopicPartition("t", 0): 2}),
    "subscription of b": Inputs(
        members=members("a") | members("b", topics=("t", "u")), topics=BEFORE.topics, brokers=1
    ),
    "new partitions of t": Inputs(members=BEFORE.members, topics={"t": (0, 1, 2)}, brokers=1),
    "deleted topic t": Inputs(members=BEFORE.members, topics={}, brokers=1),
    "": Inputs(members=BEFORE.members, topics=BEFORE.topics, brokers=2),
}


@pytest.mark.parametrize("described", CHANGES)
def test_a_change_is_described(described: str) -> None:
    """
    A generation's cause describes joins, leaves, expiries, subscriptions, topics, settings and weights. A change of
    brokers is no cause.
    """
    assert describe_change(BEFORE, CHANGES[described]) == described


def test_a_new_topic_is_described_only_if_it_was_subscribed_before() -> None:
    """
    A new topic is described if it was subscribed to before. A topic of a new subscription is described as part of that
    subscription.
    """
    without = Inputs(members=BEFORE.members, topics={}, brokers=1)
    assert describe_change(without, BEFORE) == "new topic t"
    widened = Inputs(members=members("a", "b", topics=("t", "u")), topics={"t": (0, 1), "u": (0,)}, brokers=1)
    assert describe_change(BEFORE, widened) == "subscription of a, subscription of b"


def test_topics_without_a_subscription_hide_no_change_of_others() -> None:
    """Topics appear and disappear to which no member subscribes. Their changes are no cause."""
    before = replace(BEFORE, topics={"b": (0,), "t": (0, 1)})
    after = replace(BEFORE, topics={"a": (0,), "t": (0, 1, 2)})
    assert describe_change(before, after) == "new partitions of t"


def test_a_member_that_ended_its_subscription_has_left() -> None:
    """A member ends its subscription before it leaves. Without a plan in between, the leader sees both at once."""
    leaving = replace(BEFORE, members=members("a", topics=()) | members("b"))
    assert describe_change(leaving, replace(BEFORE, members=members("b"))) == "leave of a"


def test_a_leader_change_is_described_if_there_was_a_leader_before() -> None:
    """A new leader describes its election as a leader change, unless it is the group's first leader."""
    assert describe_change(None, BEFORE) == ""
    assert describe_change(None, inputs("a", "b", group_state=group_state())).startswith("leader change, 2 members")
    assert describe_change(None, inputs("a", group_state=group_state())) == "leader change, 1 member, join of a"


def test_a_new_leader_describes_members_that_joined_or_left_during_the_change() -> None:
    """
    A new leader describes members that joined or left during the change. It knows former members from the stored
    assignments, which do not say whether a member left or expired.
    """
    stored = {"a": MemberAssignment(1, "a", some(0)), "gone": MemberAssignment(1, "gone", some(1)), "one": KEPT}
    after = replace(inputs("a", "b", group_state=group_state()), assignments=stored, away={"one": KEPT})
    assert describe_change(None, after) == "leader change, 2 members, join of b, leave or expiry of gone"
    asked = replace(after, dynamic_config=DynamicConfig(request=PlanRequest(7, "disks")))
    assert describe_change(None, asked).startswith("operator: disks, leader change")
    answered = replace(asked, group_state=replace(group_state(), request_ms=7))
    assert describe_change(None, answered).startswith("leader change")


def test_many_causes_are_shortened() -> None:
    """If a generation has many causes, ten of them are named, and the rest are counted."""
    described = describe_change(BEFORE, inputs("a", "b", *(f"m{number:02d}" for number in range(25)), partitions=2))
    assert described.startswith("join of m00, join of m01, ")
    assert described.endswith("join of m09, and 15 more")


def test_a_static_member_is_described_by_its_slot() -> None:
    """A static member is described by its slot: that it is absent, that it returns, or that its grace ends."""
    here = Inputs(members=members("a") | STATIC, topics=BEFORE.topics, brokers=1)
    gone = Inputs(members=members("a"), topics=BEFORE.topics, brokers=1, away={"one": KEPT})
    over = Inputs(members=members("a"), topics=BEFORE.topics, brokers=1)
    again = replace(here, members=members("a") | {"one": replace(STATIC["one"], member_id="m2")})
    assert describe_change(here, gone) == "absence of one"
    assert describe_change(gone, here) == "return of one"
    assert describe_change(here, again) == "return of one"
    assert describe_change(gone, over) == "end of grace of one"
