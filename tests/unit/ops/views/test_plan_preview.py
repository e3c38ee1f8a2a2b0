"""Previews of plans: what changes of a group do to its allocation, and how that is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from kiel_groups.allocators import Allocator, lag_aware, rack_aware, round_robin, sticky, weighted
from kiel_groups.allocators.assignors import ASSIGNORS, encode_member
from kiel_groups.errors import AllocatorError, ConfigError, ProtocolError
from kiel_groups.group.planner import DRAINED
from kiel_groups.group.topic_patterns import PatternMatch
from kiel_groups.group.znodes.contents import DONE, GroupState, MemberAssignment, MemberInfo, Snapshot, Znode
from kiel_groups.group.znodes.group_settings import encode_weights
from kiel_groups.model import TopicPartition
from kiel_groups.ops.views.plan_preview import (
    GroupChange,
    PlanPreview,
    changed_inputs,
    inputs_of,
    preview_assignment,
    preview_document,
    preview_plan,
    preview_report,
    racks_of,
)
from kiel_groups.ops.views.znodes import view_group
from kiel_groups.wire.consumer_protocol import ConsumerAssignment, ConsumerSubscription
from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wire.group_requests import DescribedGroup, DescribedMember
from tests.helpers import group_snapshots as groups

pytestmark = pytest.mark.unit

ROOT = "/kiel-groups/g"
NOW_MS, GRACE_MS = 1_500_000_000_000, 60_000
A, B, C = (f"g_{host}-1400000000000-{name * 4}" for host, name in (("h1", "a"), ("h1", "b"), ("h2", "c")))


def some(*numbers: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition("t", number) for number in numbers)


def member(member_id: str, **fields: Any) -> Znode:
    host = member_id.partition("_")[2].partition("-")[0]
    given = {"session_timeout_ms": 1, "subscription": ("t",), "host": host, "started_at_ms": 1_400_000_000_000}
    return Znode(MemberInfo(member_id=member_id, **(given | fields)).encode(), czxid=1)


def stored(member_id: str, *numbers: int, away_since_ms: int | None = None) -> Znode:
    return Znode(MemberAssignment(1, member_id, some(*numbers), away_since_ms).encode())


#: Two members on one host with three partitions each.
ZNODES: Snapshot = {
    "/brokers/ids/1": Znode(b'{"host":"b","port":1,"version":1,"rack":"east"}'),
    "/brokers/ids/2": Znode(b'{"host":"b","port":2,"version":1,"rack":"west"}'),
    "/brokers/topics/t": Znode(b'{"partitions":{"0":[1],"1":[1],"2":[1],"3":[2],"4":[2],"5":[2]}}'),
    "/brokers/topics/u": Znode(b'{"partitions":{"0":[1]}}'),
    f"{ROOT}/members/{A}": member(A),
    f"{ROOT}/members/{B}": member(B),
    f"{ROOT}/allocation": Znode(GroupState(generation=1, state=DONE, leader=A, allocator="sticky").encode()),
    f"{ROOT}/allocation/{A}": stored(A, 0, 1, 2),
    f"{ROOT}/allocation/{B}": stored(B, 3, 4, 5),
}


def preview(
    change: GroupChange, allocator: Allocator = sticky, lags: dict[TopicPartition, int] | None = None, **znodes: Znode
) -> PlanPreview:
    """Return the preview of a change to the group of ``ZNODES``; the names of further znodes have ``__`` for ``/``."""
    read = {**ZNODES, **{f"{ROOT}/{name.replace('__', '/')}": znode for name, znode in znodes.items()}}
    before = inputs_of("g", read, NOW_MS, GRACE_MS)
    after = changed_inputs("g", before, change, read, NOW_MS)
    return preview_plan("g", before, after, allocator, racks=racks_of("g", after, read), lags=lags or {})


def moves(found: PlanPreview) -> list[str]:
    return [f"{each.partition}: {found.name(each.before)} > {found.name(each.after)}" for each in found.moves]


def text(found: PlanPreview, *, only_moves: bool = False) -> str:
    output = StringIO()
    console = Console(file=output, width=80)
    for part in preview_report(found, only_moves=only_moves):
        console.print(part)
    return output.getvalue()


def test_without_a_change_nothing_moves() -> None:
    """The plan of a settled group moves nothing, and is shown all the same."""
    found = preview(GroupChange())
    assert found.moves == ()
    assert found.after == {A: some(0, 1, 2), B: some(3, 4, 5)}
    assert text(found).startswith("group g, allocated by sticky: 0 partitions move\n")


def test_members_join_and_leave() -> None:
    """A new member takes its share, under an id that sorts last; the partitions of one that leaves go to the others."""
    joined = preview(GroupChange(added=1))
    assert moves(joined) == ["t:2: aaaa > new-1", "t:5: bbbb > new-1"]
    (new,) = joined.after.keys() - {A, B}
    assert new == f"g_h1-{NOW_MS}-new-1"
    assert moves(preview(GroupChange(removed=("bbbb",)))) == [f"t:{n}: bbbb > aaaa" for n in (3, 4, 5)]
    assert moves(preview(GroupChange(added=2, host="h1"))) == [
        *(f"t:{n}: aaaa > new-{1 + n % 2}" for n in (0, 1, 2)),
        *(f"t:{n}: bbbb > new-{1 + n % 2}" for n in (3, 4, 5)),
    ]
    assert preview(GroupChange(removed=(A, B))).after == {}


def test_topics_are_added_and_grow() -> None:
    """New partitions have no owner before; partitions of a topic that is no longer subscribed to have none after."""
    assert moves(preview(GroupChange(partitions={"t": 8}))) == ["t:6:  > aaaa", "t:7:  > bbbb"]
    found = preview(GroupChange(topics=("u", "new"), partitions={"new": 1}))
    assert [each for each in moves(found) if not each.startswith("t:")] == ["new:0:  > aaaa", "u:0:  > bbbb"]
    assert "0 partitions move, 2 had no owner, 6 have none afterwards" in " ".join(text(found).split())


def test_what_the_leader_knows_counts() -> None:
    """Weights, capacities, racks, lags, drained members and absent static ones count as they do at the leader."""
    heavy = preview(GroupChange(weights={TopicPartition("t", n): 100.0 if n == 0 else 1.0 for n in range(6)}), weighted)
    assert heavy.after[A] == some(0)
    assert "load before" in text(heavy)
    stored_weights = Znode(encode_weights(dict.fromkeys(some(0), 100.0) | dict.fromkeys(some(1, 2, 3, 4, 5), 1.0)))
    assert preview(GroupChange(), weighted, weights=stored_weights).after == heavy.after
    assert "may ignore the weights" in text(preview(GroupChange(), weights=stored_weights))
    drained = preview(GroupChange(), config=Znode(f'{{"drained":["{A}"]}}'.encode()))
    assert drained.after == {A: frozenset(), B: some(*range(6))}
    both = preview(GroupChange(), config=Znode(f'{{"drained":["{A}","{B}"]}}'.encode()))
    assert set(both.unassigned.values()) == {DRAINED}
    assert f"6 partitions get no owner, first t:0: {DRAINED}" in text(both)
    at_c = {f"members__{C}": member(C, capacity=4.0), f"allocation__{C}": stored(C)}
    assert {slot: len(owned) for slot, owned in preview(GroupChange(), **at_c).after.items()} == {A: 1, B: 1, C: 4}
    racks = {f"members__{A}": member(A, rack="west"), f"members__{B}": member(B, rack="east")}
    assert preview(GroupChange(), rack_aware, **racks).after == {A: some(3, 4, 5), B: some(0, 1, 2)}
    lags = {each: 1_000_000 if each.partition < 3 else 0 for each in some(*range(6))}
    spread = preview(GroupChange(), lag_aware, lags).after
    assert {len(spread[slot] & some(0, 1, 2)) for slot in (A, B)} == {1, 2}


def test_an_absent_static_member_keeps_its_partitions() -> None:
    """They are kept for its return; one that is removed is gone for good, which takes until its grace period ends."""
    away = {"allocation__shelf": stored(C, 5, away_since_ms=NOW_MS - 1), f"allocation__{B}": stored(B, 3, 4)}
    kept = preview(GroupChange(), round_robin, **away)
    assert kept.moves == ()
    assert "the partitions of shelf are kept for its return" in text(kept)
    assert moves(preview(GroupChange(removed=("shelf",)), **away)) == ["t:5: shelf > bbbb"]
    late = {**away, "allocation__shelf": stored(C, 5, away_since_ms=NOW_MS - GRACE_MS)}
    assert moves(preview(GroupChange(), **late)) == ["t:5: shelf > bbbb"]
    present = {**late, f"members__{C}": member(C, instance_id="shelf")}
    gone = preview(GroupChange(removed=("cccc",)), **present)
    assert moves(gone) == ["t:5: shelf > bbbb"]
    assert "shelf: a static member; its partitions move only when its grace period ends" in text(gone)


def test_unreadable_znodes_count_as_for_a_leader() -> None:
    """Unreadable members do not count, and unreadable assignments own nothing; unreadable settings are an error."""
    found = preview(GroupChange(), **{f"members__{B}": Znode(b"{"), f"allocation__{A}": Znode(b"[]")})
    assert found.after == {A: some(*range(6))}
    with pytest.raises(ProtocolError, match="/kiel-groups/g/config: not JSON"):
        preview(GroupChange(), config=Znode(b"{"))


def test_of_two_members_with_one_instance_id_the_newer_one_counts() -> None:
    """The one that registered later has the slot."""
    older, newer = member(B, instance_id="shelf"), replace(member(C, instance_id="shelf"), czxid=2)
    read = {**ZNODES, f"{ROOT}/members/{B}": older, f"{ROOT}/members/{C}": newer}
    assert inputs_of("g", read, NOW_MS, GRACE_MS).members["shelf"].member_id == C


@pytest.mark.parametrize("error", [RuntimeError("no idea"), SystemExit(3)])
def test_a_failing_allocator_is_replaced_as_by_a_leader(error: BaseException) -> None:
    """The preview says what replaces the plan. An allocator that exits has failed, too."""

    def failing(members: list[str], partitions: list[str]) -> dict[str, dict[str, list[int]]]:
        raise error

    kept = preview(GroupChange(), failing)
    assert kept.fallback.startswith(f"last plan kept: allocator failing: it raised {type(error).__name__}: {error}")
    assert text(kept).startswith(
        "group g, whose allocator fails: 0 partitions move\n  last plan kept: allocator failing"
    )
    found = preview(GroupChange(removed=(B,)), failing)
    assert found.after == {A: some(*range(6))}
    assert "sticky used: allocator failing" in text(found)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (GroupChange(removed=("zzzz",)), f"group g has no member 'zzzz'; its members are {A}, {B}"),
        (GroupChange(host="h9"), "group g has no member at host 'h9'; there are members at h1"),
        (GroupChange(partitions={"t": 5}), "t=5 given; topic 't' has 6 partitions, and a topic never loses any"),
        (GroupChange(partitions={"u": 5}), "partitions: no member subscribes to topic 'u'; name it among the topics"),
        (GroupChange(topics=("new",)), "topics: new does not exist; a plan with it also needs its number"),
    ],
)
def test_a_change_that_does_not_fit_is_refused(change: GroupChange, words: str) -> None:
    """The error says what the group has."""
    with pytest.raises(ConfigError) as caught:
        preview(change)
    assert words in str(caught.value)


def test_no_plan_without_brokers() -> None:
    """A leader that finds no broker keeps the present plan, and the preview says so."""
    read = {path: znode for path, znode in ZNODES.items() if not path.startswith("/brokers/ids")}
    before = inputs_of("g", read, NOW_MS, GRACE_MS)
    with pytest.raises(ConfigError, match="no broker found; its leader would keep the present plan"):
        preview_plan("g", before, before, sticky, racks={}, lags={})


def test_the_document_and_the_difference() -> None:
    """The document has moves and balance; with only the moves, neither it nor the report has other partitions."""
    found = preview(GroupChange(added=1))
    document = preview_document(found, only_moves=False)
    assert document["moves"][0] == {
        "topic": "t",
        "partition": 2,
        "before": A,
        "after": f"g_h1-{NOW_MS}-new-1",
    }
    assert document["members"][0] == {
        "id": A,
        "name": "aaaa",
        "gone": False,
        "partitions_before": 3,
        "partitions_after": 2,
        "load_before": 3,
        "load_after": 2,
        "after": ["t:0", "t:1"],
    }
    assert "after" not in preview_document(found, only_moves=True)["members"][0]
    rows = [line.split() for line in text(found, only_moves=True).splitlines()]
    assert [row for row in rows if row[:1] and row[0].isdecimal()] == [
        ["2", "aaaa", "→", "new-1"],
        ["5", "bbbb", "→", "new-1"],
    ]
    assert max(map(len, text(found).splitlines())) <= 80


def described(protocol: str, *members: tuple[str, Sequence[int], bytes | None]) -> DescribedGroup:
    return DescribedGroup(
        NO_ERROR,
        "g",
        "Stable",
        "consumer",
        protocol,
        tuple(
            DescribedMember(
                name,
                "c",
                "/h",
                ConsumerSubscription(("t",), data).encode(),
                ConsumerAssignment({"t": tuple(numbers)}).encode(),
            )
            for name, numbers, data in members
        ),
    )


def test_a_group_of_brokers_is_assigned_by_its_assignor() -> None:
    """Java's range gives ranges; ours see what members own now, not what they owned before the last rebalance."""
    topics = {"t": (0, 1, 2, 3)}
    group = described("range", ("c-1", (0, 1), None), ("c-2", (2, 3), None))
    found = preview_assignment(group, topics, GroupChange(added=1), ASSIGNORS["range"])
    assert {found.name(slot): owned for slot, owned in found.after.items()} == {
        "1": some(0, 1),
        "2": some(2),
        "new-1": some(3),
    }
    assert "ids of new members are random" in text(found)
    stale = encode_member(some(0, 1, 2, 3))
    group = described("kiel-sticky", ("c-1", (1, 3), stale), ("c-2", (0, 2), None))
    assert preview_assignment(group, topics, GroupChange(), ASSIGNORS["sticky"]).moves == ()
    large = described("kiel-sticky", ("c-1", (1, 3), encode_member((), 3.0)), ("c-2", (0, 2), None))
    by_capacity = preview_assignment(large, topics, GroupChange(), ASSIGNORS["sticky"])
    assert {slot: len(owned) for slot, owned in by_capacity.after.items()} == {"c-1": 3, "c-2": 1}
    gone = preview_assignment(group, topics, GroupChange(removed=("c-2",)), ASSIGNORS["sticky"])
    assert gone.after == {"c-1": some(0, 1, 2, 3)}


def test_a_member_of_brokers_that_cannot_be_read_gets_nothing() -> None:
    """As for a leader; the note says so."""
    group = described("range", ("c-1", (0,), None))
    broken = group._replace(members=(*group.members, DescribedMember("c-2", "c", "/h", b"", b"")))
    found = preview_assignment(broken, {"t": (0, 1)}, GroupChange(), ASSIGNORS["range"])
    assert found.after == {"c-1": some(0, 1)}
    assert any("this member gets no partitions" in note for note in found.notes)


def test_an_allocator_that_fails_in_a_group_of_brokers_raises() -> None:
    """Nothing replaces it there."""

    class Failing:
        name = "failing"
        metadata = staticmethod(lambda topics, owned=(): None)

        def assign(self, subscriptions: object, partitions: object) -> dict[str, list[TopicPartition]]:
            raise RuntimeError("no idea")

    with pytest.raises(AllocatorError, match="it raised RuntimeError: no idea"):
        preview_assignment(described("failing", ("c-1", (0,), None)), {"t": (0,)}, GroupChange(), Failing())


def test_a_member_with_a_pattern_has_the_topics_of_the_newest_plan() -> None:
    """No tool compares topics with patterns. ``describe``, its document and the preview have what the leader found."""
    znodes = {
        **groups.HEALTHY,
        f"/kiel-groups/g/members/{groups.A}": groups.member(groups.A, groups.PLANNED_MS, pattern="t.*"),
        "/kiel-groups/g/allocation": groups.plan(patterns={"t.*": PatternMatch(("t",))}),
    }
    view = view_group("g", znodes, groups.LOG_ENDS)
    first = next(each for each in view.members if each.member_id == groups.A)
    assert (first.subscription, first.pattern) == (("t",), "t.*")
    assert "t.*" in groups.report_text(view)
    inputs = inputs_of("g", znodes, groups.LATER_MS, 60_000)
    assert inputs.subscriptions == {groups.A: ("t",), groups.B: ("t",)}
    assert inputs.topics == {"t": (0, 1, 2)}
