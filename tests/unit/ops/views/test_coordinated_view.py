"""The view of a group that brokers coordinate, and its problems."""

from __future__ import annotations

import pytest

from kiel_groups.model import TopicPartition
from kiel_groups.ops.views.checks import check_group
from kiel_groups.ops.views.group_view import GroupView
from tests.helpers.coordinated_groups import LOG_ENDS, MEMBERS, PARTITIONS, A, B, group_view, member

pytestmark = pytest.mark.unit

OTHER = [TopicPartition("u", number) for number in range(2)]

#: Kind of finding → a view with the problem, and a part of the finding's text.
PROBLEMS = {
    "unconsumed": (group_view((), state="Empty"), "the group has no members; its lag is 6, in 3 partitions"),
    "unreadable": (
        group_view((member(A, *PARTITIONS), member(B, metadata=b"\0"))),
        f"the subscription of {B}",
    ),
    "assigned-twice": (
        group_view((member(A, *PARTITIONS), member(B, PARTITIONS[2]))),
        "1 partition is assigned to several members: t:2, by the strategy 'range'",
    ),
    "unassigned": (
        group_view(topics={"t": (0, 1, 2, 3, 4)}),
        "2 partitions are assigned to no member: t:3, t:4",
    ),
    "idle": (
        group_view((member(A, *PARTITIONS), member(B))),
        "1 member has no partition, although others have several of the same topics: bbbb",
    ),
    "beyond-end": (
        group_view(log_ends=LOG_ENDS | {PARTITIONS[0]: 9}),
        "1 committed offset is beyond the end of the log",
    ),
    "missing-topic": (
        group_view((member(A, *PARTITIONS[:2], topics=("t", "gone")), MEMBERS[1])),
        "1 subscribed topic does not exist: gone",
    ),
}


def test_members_own_what_is_assigned_to_them() -> None:
    """The view has each member's topics, partitions and lag, and the owner and lag of each partition."""
    view = group_view()
    assert (view.state, view.owned, view.known_lag, view.exists) == ("stable", 3, 6, True)
    assert [(each.member_id, each.host, each.subscription, each.lag) for each in view.members] == [
        (A, "10.0.0.7", ("t",), 4),
        (B, "10.0.0.7", ("t",), 2),
    ]
    assert [(each.topic_partition, each.owner, each.lag) for each in view.partitions] == [
        (PARTITIONS[0], A, 2),
        (PARTITIONS[1], A, 2),
        (PARTITIONS[2], B, 2),
    ]
    assert check_group(view, 1) == ()


@pytest.mark.parametrize("kind", PROBLEMS)
def test_each_problem_is_found(kind: str) -> None:
    """Each problem gives one finding of its kind, with a remedy."""
    view, text = PROBLEMS[kind]
    (finding,) = check_group(view, 1)
    assert (finding.kind, finding.passing) == (kind, False)
    assert text in finding.text
    assert finding.remedy


@pytest.mark.parametrize(
    ("view", "state"),
    [
        (group_view(state="PreparingRebalance"), "rebalancing"),
        (group_view(state="AwaitingSync"), "rebalancing"),
        (group_view(state="CompletingRebalance"), "rebalancing"),
        (group_view((), state="Dead", protocol_type=""), "empty"),
        (group_view((), state="Empty", protocol_type=""), "memberless"),
        (group_view(state="Reconciling"), "reconciling"),
    ],
)
def test_states_have_our_words(view: GroupView, state: str) -> None:
    """The names of states differ between releases; an unknown one is shown as it is."""
    assert view.state == state


def test_what_members_do_is_unknown_in_a_rebalance() -> None:
    """A coordinator does not show subscriptions and assignments of a group that rebalances: nothing is unassigned."""
    view = group_view(state="PreparingRebalance")
    assert [(each.subscription, each.owned) for each in view.members] == [(None, ()), (None, ())]
    assert check_group(view, 1) == ()


def test_a_group_of_another_type_has_no_partitions() -> None:
    """The metadata of other types is not read, so that it is not called unreadable."""
    view = group_view((member(A, metadata=b"\xff"),), protocol_type="connect", offsets={})
    assert (view.is_of_consumers, view.partitions, view.unreadable) == (False, (), ())
    assert check_group(view, 1) == ()


def test_a_dead_group_exists_if_it_has_offsets() -> None:
    """Brokers of 0.9 call a group dead that has no members, but offsets; one without both does not exist."""
    assert group_view((), state="Dead", protocol_type="").exists
    assert not group_view((), state="Dead", protocol_type="", offsets={}).exists


def test_a_spare_member_is_no_problem() -> None:
    """A member has no partition if there are more members than partitions, or if it subscribes to other topics."""
    spare = group_view((member(A, PARTITIONS[0]), member(B)), topics={"t": (0,)}, offsets={})
    assert check_group(spare, 1) == ()
    other = group_view((member(A, *PARTITIONS), member(B, topics=("u",))), topics={"t": (0, 1, 2), "u": ()})
    assert check_group(other, 1) == ()
