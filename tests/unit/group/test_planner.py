"""The writes of a plan, and the plan that is used if the allocator fails."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kiel_groups.group.planner import (
    NAMED_UNASSIGNED,
    Inputs,
    Target,
    fallback_target,
    plan,
)
from kiel_groups.group.znodes.contents import DONE, PUBLISHING, GroupState, MemberAssignment
from kiel_groups.group.znodes.group_settings import DynamicConfig, HistoryEntry, PlanRequest, generation_of
from kiel_groups.group.znodes.transactions import (
    MOST_BYTES,
    MOST_OPERATIONS,
    Check,
    Create,
    Delete,
    Put,
    size_of,
)
from kiel_groups.model import TopicPartition
from tests.helpers.plans import (
    CANDIDATE,
    GROUP_STATE,
    KEPT,
    LAYOUT,
    STATIC,
    assignment_writes,
    group_state,
    group_state_write,
    inputs,
    members,
    parsed,
    publish,
    published,
    some,
    stored,
    target,
)

pytestmark = pytest.mark.unit


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the size of a transaction so that two member assignments do not fit into one."""
    monkeypatch.setattr("kiel_groups.group.znodes.transactions.MOST_OPERATIONS", 1)


def test_a_publication_that_lacks_only_its_end_is_completed() -> None:
    """
    If the former leader wrote every assignment, and died before it wrote the state "done", the next leader writes only
    this state.
    """
    settled = inputs("a", assignments=stored(a=some(0, 1, 2, 3)), group_state_version=3)
    whole = published(settled, target(a=some(0, 1, 2, 3)))
    written = parsed(group_state_write(whole))
    read = replace(settled, group_state=written)
    assert publish(read, target(a=some(0, 1, 2, 3))) is None
    unfinished = replace(settled, group_state=replace(written, state=PUBLISHING))
    ended = published(unfinished, target(a=some(0, 1, 2, 3)))
    assert parsed(group_state_write(ended)).state == DONE
    assert assignment_writes(ended) == []


def test_a_first_plan_creates_group_state_and_assignments() -> None:
    """
    In a new group, one transaction creates the group state, all assignments and the history entry of generation 1.
    """
    publication = published(inputs("a", "b"), target(a=some(0, 1), b=some(2, 3)))
    ((proof, state, *assignments, entry),) = publication.writes
    assert proof == Check(CANDIDATE)
    assert isinstance(state, Create)
    assert (state.path, parsed(state).state, parsed(state).generation) == (GROUP_STATE, DONE, 1)
    assert assignments == [
        Create(f"{GROUP_STATE}/a", MemberAssignment(1, "a", some(0, 1)).encode()),
        Create(f"{GROUP_STATE}/b", MemberAssignment(1, "b", some(2, 3)).encode()),
    ]
    assert isinstance(entry, Create)
    assert entry.path == "/kiel-groups/g/history/0000000001"
    assert (publication.generation, publication.moved) == (1, 0)


@pytest.mark.usefixtures("large")
def test_a_plan_of_several_transactions_is_done_with_the_last_one() -> None:
    """
    A plan of several transactions first writes the group state "publishing", then the assignments, and finally the
    group state "done".
    """
    publication = published(inputs("a", "b"), target(a=some(0, 1), b=some(2, 3)))
    opening, first, second, closing = publication.writes
    assert opening[0] == closing[0] == Check(CANDIDATE)
    assert isinstance(opening[1], Create)
    assert parsed(opening[1]).state == PUBLISHING
    guard = (Check(CANDIDATE), Check(GROUP_STATE, 0))
    assert first == (*guard, Create(f"{GROUP_STATE}/a", MemberAssignment(1, "a", some(0, 1)).encode()))
    assert second == (*guard, Create(f"{GROUP_STATE}/b", MemberAssignment(1, "b", some(2, 3)).encode()))
    assert isinstance(closing[1], Put)
    assert isinstance(closing[2], Create)
    assert (closing[1].path, closing[1].version, parsed(closing[1]).state) == (GROUP_STATE, 0, DONE)


def test_a_plan_forgets_drained_members_that_have_left() -> None:
    """The last transaction writes the config, on its version; one plan is enough, even if it changes nothing else."""
    settled = inputs("a", assignments=stored(a=some(0, 1, 2, 3)), group_state_version=3)
    written = parsed(group_state_write(published(settled, target(a=some(0, 1, 2, 3)))))
    read = replace(settled, group_state=written, forgetting=Put("/kiel-groups/g/config", b"{}", 7))
    plan_of_it, forgetting = published(read, target(a=some(0, 1, 2, 3))).writes
    assert isinstance(plan_of_it[1], Put)
    assert forgetting == (Check(CANDIDATE), read.forgetting)


@pytest.mark.usefixtures("large")
def test_a_plan_is_fenced_by_the_version_of_the_group_state() -> None:
    """
    A plan is fenced by the version of the group state: the first write expects the version that was read, all other
    writes the version after it.
    """
    read = inputs(
        "a", "b", group_state=group_state(4), group_state_version=9, assignments=stored(4, a=some(0), b=some(1))
    )
    opening, *batches, closing = published(read, target(a=some(1), b=some(0))).writes
    assert isinstance(opening[1], Put)
    assert opening[1].version == 9
    assert parsed(opening[1]).state == PUBLISHING
    assert [batch[1] for batch in batches] == [Check(GROUP_STATE, 10)] * 2
    assert isinstance(closing[1], Put)
    assert closing[1].version == 10


def test_a_generation_is_above_group_state_and_assignments() -> None:
    """
    A new generation is above that of the group state and of all assignments, because an earlier leader may have written
    either last.
    """
    high = {**stored(12, a=some(0)), "b": None}
    assert (
        published(
            inputs("a", group_state=group_state(4), group_state_version=1, assignments=high), target(a=some(1))
        ).generation
        == 13
    )
    low = stored(2, a=some(0))
    assert (
        published(
            inputs("a", group_state=group_state(4), group_state_version=1, assignments=low), target(a=some(1))
        ).generation
        == 5
    )


def test_a_plan_that_is_stored_already_is_not_published() -> None:
    """A plan is not published if its assignments are stored already, and their publication is complete."""
    complete = replace(group_state(), members=1, partitions=1)
    read = inputs("a", group_state=complete, group_state_version=1, assignments=stored(a=some(0)))
    assert publish(read, target(a=some(0))) is None


def test_a_group_state_with_other_counts_is_published_again() -> None:
    """
    A group state with other counts is written again even if no assignment changes, because operators read the counts.
    """
    read = inputs("a", group_state=group_state(), group_state_version=1, assignments=stored(a=some(0)))
    state = group_state_write(published(read, target(a=some(0))))
    assert (parsed(state).members, parsed(state).partitions, parsed(state).generation) == (1, 1, 2)


@pytest.mark.parametrize(
    ("found", "version"),
    [(group_state(state=PUBLISHING), 1), (None, 1), (None, None)],
    ids=["left at publishing", "garbage", "deleted by hand"],
)
def test_an_incomplete_group_state_is_completed(found: GroupState | None, version: int | None) -> None:
    """
    If the assignments equal the plan, but the group state is incomplete, unreadable or missing, a group state "done" is
    written.
    """
    read = inputs("a", group_state=found, group_state_version=version, assignments=stored(a=some(0)))
    state = group_state_write(published(read, target(a=some(0))))
    assert isinstance(state, Create if version is None else Put)
    assert (parsed(state).state, parsed(state).generation) == (DONE, 2)


def test_only_changed_assignments_are_written() -> None:
    """Only changed assignments are written, so a member that keeps its partitions is not notified."""
    read = inputs(
        "a", "b", "c", group_state=group_state(), group_state_version=1, assignments=stored(a=some(0), b=some(1, 2))
    )
    publication = published(read, target(a=some(0), b=some(1), c=some(2)))
    assert assignment_writes(publication) == [
        Create(f"{GROUP_STATE}/c", MemberAssignment(2, "c", some(2)).encode()),
        Put(f"{GROUP_STATE}/b", MemberAssignment(2, "b", some(1)).encode()),
    ]
    assert publication.moved == 1


def test_gains_are_written_first_and_deletions_last() -> None:
    """
    Assignments that gain partitions are written first, so that a member can watch the owner znode before the release.
    Assignments of departed members are deleted last.
    """
    read = inputs(
        "a",
        "z",
        group_state=group_state(),
        group_state_version=1,
        assignments=stored(a=some(0, 1), z=some(2), m=some(3)),
    )
    assert assignment_writes(published(read, target(a=some(0), z=some(1, 2, 3)))) == [
        Put(f"{GROUP_STATE}/z", MemberAssignment(2, "z", some(1, 2, 3)).encode()),
        Put(f"{GROUP_STATE}/a", MemberAssignment(2, "a", some(0)).encode()),
        Delete(f"{GROUP_STATE}/m"),
    ]


@pytest.mark.parametrize(
    "found", [None, MemberAssignment(1, "another", some(0))], ids=["garbage", "for another member"]
)
def test_an_assignment_that_is_unreadable_or_for_another_member_is_rewritten(found: MemberAssignment | None) -> None:
    """An assignment that is unreadable or names another member is rewritten, even if its partitions are right."""
    read = inputs("a", group_state=group_state(), group_state_version=1, assignments={"a": found})
    assert assignment_writes(published(read, target(a=some(0)))) == [
        Put(f"{GROUP_STATE}/a", MemberAssignment(2, "a", some(0)).encode())
    ]


def test_a_member_without_partitions_has_an_assignment() -> None:
    """
    A member without partitions has an empty assignment, which revokes all partitions. A missing assignment would mean
    "unknown".
    """
    publication = published(inputs("a"), target(a=some()))
    assert assignment_writes(publication) == [Create(f"{GROUP_STATE}/a", MemberAssignment(1, "a", some()).encode())]


@pytest.mark.parametrize(
    "wanted",
    [
        Target(allocation={"a": some(0)}, allocator="other"),
        Target(allocation={"a": some(0)}, allocator="round_robin", fallback="failed"),
        Target(allocation={"a": some(0)}, allocator="round_robin", unassigned={TopicPartition("t", 1): "why"}),
    ],
    ids=["allocator", "fallback", "unassigned"],
)
def test_a_group_state_that_changes_alone_is_published(wanted: Target) -> None:
    """
    If only the allocator, the fallback or the unassigned partitions change, the group state is written without any
    assignment, because operators read it.
    """
    read = inputs("a", group_state=group_state(), group_state_version=1, assignments=stored(a=some(0)))
    assert assignment_writes(published(read, wanted)) == []


def test_a_changed_error_text_alone_is_not_published() -> None:
    """
    Another text of the allocator's error is not published, because it may differ in every plan. The allocator's
    recovery is published.
    """
    complete = replace(group_state(), members=1, partitions=1, fallback="sticky used: failure 1")
    read = inputs("a", group_state=complete, group_state_version=1, assignments=stored(a=some(0)))
    assert publish(read, replace(target(a=some(0)), fallback="last plan kept: failure 2")) is None
    assert parsed(group_state_write(published(read, target(a=some(0))))).fallback == ""


def test_the_group_state_counts_and_names_unassigned_partitions() -> None:
    """The group state counts unassigned partitions by reason, and names the first hundred."""
    reasons = dict.fromkeys(some(*range(150)), "no owner") | {TopicPartition("u", 0): "no subscriber"}
    wanted = Target(allocation={"a": some(200), "b": some(201, 202)}, unassigned=reasons, allocator="x", fallback="y")
    state = parsed(group_state_write(published(inputs("a", "b"), wanted)))
    assert state.unassigned == {"no owner": 150, "no subscriber": 1}
    assert state.unassigned_names == tuple(f"t:{number}" for number in range(NAMED_UNASSIGNED))
    assert (state.members, state.partitions, state.allocator, state.fallback) == (2, 3, "x", "y")
    assert (state.leader, state.cause, state.created_at_ms) == ("a", "join of b", 5)


def test_parents_of_owners_and_offsets_are_created_for_subscribed_topics() -> None:
    """
    A plan creates the folder of the history, and the folders of owners and offsets for each subscribed topic that
    exists.
    """
    read = Inputs(
        members=members("a", topics=("u", "t", "missing")), topics={"t": (0,), "u": (0,), "x": (0,)}, brokers=1
    )
    assert published(read, target(a=some(0))).folders == (
        "/kiel-groups/g/history",
        "/consumers/g/owners/t",
        "/consumers/g/offsets/t",
        "/consumers/g/owners/u",
        "/consumers/g/offsets/u",
    )


def test_transactions_are_bounded_in_operations_and_bytes() -> None:
    """
    The writes of a thousand assignments are split into transactions of legal size. Each of them checks the candidate
    and the group state.
    """
    names = [f"m{number:04d}" for number in range(1_000)]
    big = {name: some(*range(index * 2_000, index * 2_000 + 2_000)) for index, name in enumerate(names[:100])}
    small = {name: some() for name in names[100:]}
    publication = published(inputs(*names), target(**big, **small))
    for batch in publication.writes[1:-1]:
        assert batch[:2] == (Check(CANDIDATE), Check(GROUP_STATE, 0))
        assert len(batch) <= MOST_OPERATIONS + 2
        assert sum(map(size_of, batch[2:])) <= MOST_BYTES
    assert len(assignment_writes(publication)) == 1_000
    assert len(publication.writes) > 5 + 2


def test_the_history_has_a_hundred_generations() -> None:
    """
    A history entry has the cause, the number of moved partitions and the duration. The transaction that adds entry 101
    deletes the oldest one.
    """
    kept = tuple(range(1, 101))
    before = {"a": MemberAssignment(90, "a", some(0, 1))}
    read = inputs("a", "b", history=kept, assignments=before, group_state=group_state(90), group_state_version=1)
    publication = plan(
        LAYOUT,
        read,
        target(a=some(0), b=some(1)),
        leader="a",
        candidate=CANDIDATE,
        cause="join of b",
        now_ms=5,
        took_ms=7,
    )
    assert publication is not None
    assert publication.generation == 101, "also if everything but the history was deleted by hand"
    *_, entry, deletion = publication.writes[0]
    assert deletion == Delete("/kiel-groups/g/history/0000000001")
    assert isinstance(entry, Create)
    assert HistoryEntry.parse(entry.data, entry.path) == HistoryEntry(
        generation=101, cause="join of b", leader="a", moved=1, members=2, partitions=2, took_ms=7, created_at_ms=5
    )
    assert [generation_of(name) for name in ("0000000101", "101", "٣" * 10)] == [101, None, None]


def test_empty_assignments_of_departed_members_cause_no_generation() -> None:
    """Empty assignments of departed members cause no generation of their own. The next generation deletes them."""
    complete = replace(group_state(), members=1, partitions=1)
    gone = stored(a=some(0), gone=some())
    assert (
        publish(inputs("a", group_state=complete, group_state_version=1, assignments=gone), target(a=some(0))) is None
    )
    after = published(inputs("a", group_state=complete, group_state_version=1, assignments=gone), target(a=some(1)))
    assert Delete(f"{GROUP_STATE}/gone") in assignment_writes(after)


FITTING = inputs("a", "b", assignments=stored(a=some(0, 1), b=some(2, 3)))
FRESH = Target(allocation={"a": some(0, 2), "b": some(1, 3)}, allocator="round_robin")


def test_a_plan_that_fits_is_kept_if_the_allocator_fails() -> None:
    """
    If the allocator fails, the stored plan is kept if it names exactly the present members, and each partition once.
    """
    kept = fallback_target(FITTING, FRESH, "it raised")
    assert kept.allocation == {"a": some(0, 1), "b": some(2, 3)}
    assert kept.fallback == "last plan kept: it raised"


@pytest.mark.parametrize(
    "read",
    [
        inputs("a", "b", "c", assignments=FITTING.assignments),
        inputs("a", assignments=FITTING.assignments),
        inputs("a", "b", partitions=5, assignments=FITTING.assignments),
        inputs("a", "b", partitions=3, assignments=FITTING.assignments),
        inputs("a", "b", assignments=stored(a=some(0, 1), b=some(1, 2, 3))),
        inputs("a", "b", assignments={"a": FITTING.assignments["a"], "b": None}),
        Inputs(
            members=members("a") | members("b", topics=("u",)),
            topics=FITTING.topics,
            brokers=1,
            assignments=FITTING.assignments,
        ),
    ],
    ids=["a join", "a leave", "a new partition", "one less", "one twice", "one unreadable", "not subscribed"],
)
def test_a_plan_that_no_longer_fits_is_replaced(read: Inputs) -> None:
    """
    If the allocator fails and the stored plan no longer fits, the plan of the sticky allocator is used, and the group
    state says so.
    """
    used = fallback_target(read, FRESH, "it raised")
    assert used.allocation == FRESH.allocation
    assert used.fallback == "sticky used: it raised"


def test_the_assignment_of_a_static_slot_names_its_member() -> None:
    """
    The assignment of a static member is stored under its instance id. The field "for" has the id of the current member.
    """
    read = Inputs(members=STATIC, topics={"t": (0, 1)}, brokers=1)
    fresh = MemberAssignment(1, "m1", some(0, 1))
    assert assignment_writes(published(read, target(one=some(0, 1)))) == [Create(f"{GROUP_STATE}/one", fresh.encode())]


def test_the_assignment_of_an_absent_static_member_says_since_when_it_is_away() -> None:
    """
    The assignment of an absent static member says since when it is away, and keeps its partitions. When the instance
    returns, the assignment names the new member.
    """
    before = {"one": replace(KEPT, away_since_ms=None)}
    read = Inputs(members={}, topics={"t": (0, 1)}, brokers=1, assignments=before, away={"one": KEPT})
    assert assignment_writes(published(read, target(one=some(0, 1)))) == [
        Put(f"{GROUP_STATE}/one", replace(KEPT, generation=2).encode())
    ]
    grown = MemberAssignment(2, KEPT.member_id, some(0, 1, 2), KEPT.away_since_ms)
    (write,) = assignment_writes(published(read, target(one=some(0, 1, 2))))
    assert write == Put(f"{GROUP_STATE}/one", grown.encode()), "its slot gets new partitions, too"
    back = Inputs(members=STATIC, topics={"t": (0, 1)}, brokers=1, assignments={"one": replace(KEPT, member_id="m0")})
    fresh = MemberAssignment(2, "m1", some(0, 1))
    assert assignment_writes(published(back, target(one=some(0, 1)))) == [Put(f"{GROUP_STATE}/one", fresh.encode())]


def test_an_absent_static_member_subscribes_to_the_topics_of_its_partitions() -> None:
    """
    An absent static member counts as subscribed to the topics of its partitions. A drained member counts as subscribed
    to no topic.
    """
    read = Inputs(
        members=members("a", "b"),
        topics={},
        brokers=1,
        away={"one": KEPT},
        dynamic_config=DynamicConfig(drained=frozenset({"b"})),
    )
    assert read.subscriptions == {"a": ("t",), "b": (), "one": ("t",)}


def test_a_group_without_members_gets_no_first_plan() -> None:
    """A group without members gets no first plan. After its last member has left, an empty plan is published."""
    untouched = Inputs(members={}, topics={}, brokers=1)
    assert publish(untouched, target()) is None
    assert publish(replace(untouched, assignments=stored(a=some(0))), target()) is not None
    assert (
        publish(replace(untouched, group_state=replace(group_state(), members=2), group_state_version=0), target())
        is not None
    )


def test_an_operators_request_is_answered_once_although_nothing_moves() -> None:
    """
    A request for a plan gets a generation that names it. Once it is answered, a plan that changes nothing is not
    published, not even while the settings cannot be read.
    """
    settled = inputs("a", group_state=replace(group_state(), members=1, partitions=4), group_state_version=3)
    settled = replace(settled, assignments=stored(a=some(0, 1, 2, 3)))
    wanted = target(a=some(0, 1, 2, 3))
    assert publish(settled, wanted) is None
    asked = replace(settled, dynamic_config=DynamicConfig(request=PlanRequest(7, "why")))
    answer = parsed(group_state_write(published(asked, wanted)))
    assert (answer.generation, answer.request_ms, answer.state) == (2, 7, DONE)
    assert publish(replace(asked, group_state=answer), wanted) is None
    assert publish(replace(settled, group_state=answer), wanted) is None
    later = replace(asked, group_state=answer, dynamic_config=DynamicConfig(request=PlanRequest(8, "again")))
    assert parsed(group_state_write(published(later, wanted))).request_ms == 8
