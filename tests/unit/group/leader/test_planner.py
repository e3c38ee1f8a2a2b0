"""What a plan writes, case by case."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kiel_groups.group.leader.claim_limit import MOST_PATH_BYTES, TOO_MANY, limit_claims
from kiel_groups.group.leader.planner import (
    NAMED_UNASSIGNED,
    Inputs,
    Publication,
    Target,
    describe_allocator,
    describe_change,
    fallback_target,
    plan,
)
from kiel_groups.group.znodes.contents import DONE, PUBLISHING, GroupState, MemberAssignment, MemberInfo
from kiel_groups.group.znodes.dynamic_config import DynamicConfig
from kiel_groups.group.znodes.history import HistoryEntry, generation_of
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.group.znodes.transactions import (
    MOST_BYTES,
    MOST_OPERATIONS,
    Check,
    Create,
    Delete,
    Operation,
    Put,
    size_of,
)
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit

LAYOUT = GroupLayout("g")
POINTER = "/kiel-groups/g/allocation"
CANDIDATE = "/kiel-groups/g/election/me-n_0000000001"


def some(*numbers: int, topic: str = "t") -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, number) for number in numbers)


def members(*names: str, topics: tuple[str, ...] = ("t",)) -> dict[str, MemberInfo]:
    return {name: MemberInfo(member_id=name, session_timeout_ms=10_000, subscription=topics) for name in names}


def stored(generation: int = 1, **shares: frozenset[TopicPartition]) -> dict[str, MemberAssignment | None]:
    return {name: MemberAssignment(generation, name, share) for name, share in shares.items()}


def group_state(generation: int = 1, state: str = DONE) -> GroupState:
    return GroupState(generation=generation, state=state, leader="a", allocator="round_robin")


def inputs(*names: str, partitions: int = 4, **given: object) -> Inputs:
    """A group of these members on topic t."""
    return Inputs(members=members(*names), topics={"t": tuple(range(partitions))}, brokers=1, **given)  # type: ignore[arg-type]


def target(**shares: frozenset[TopicPartition]) -> Target:
    return Target(allocation=shares, allocator="round_robin")


def publish(read: Inputs, wanted: Target) -> Publication | None:
    return plan(LAYOUT, read, wanted, leader="a", candidate=CANDIDATE, cause="join of b", now_ms=5)


def published(read: Inputs, wanted: Target) -> Publication:
    publication = publish(read, wanted)
    assert publication is not None
    return publication


def slices_of(publication: Publication) -> list[Operation]:
    """The writes of slices, without all others, in order."""
    operations = [operation for write in publication.writes for operation in write]
    return [operation for operation in operations if operation.path.startswith(f"{POINTER}/")]


def told_by(publication: Publication) -> Operation:
    """The write of the pointer, where all is written at once."""
    ((_, told, *_),) = publication.writes
    return told


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two slices are too many for one transaction."""
    monkeypatch.setattr("kiel_groups.group.znodes.transactions.MOST_OPERATIONS", 1)


def parsed(operation: Operation) -> GroupState:
    assert isinstance(operation, (Create, Put))
    return GroupState.parse(operation.data, operation.path)


def test_a_publication_that_lacks_its_end_only_is_ended() -> None:
    """The pointer tells all that a fresh one would, and every slice is there: its leader was lost a bit too early."""
    settled = inputs("a", assignments=stored(a=some(0, 1, 2, 3)), group_state_version=3)
    whole = published(settled, target(a=some(0, 1, 2, 3)))
    written = parsed(told_by(whole))
    read = replace(settled, group_state=written)
    assert publish(read, target(a=some(0, 1, 2, 3))) is None
    unfinished = replace(settled, group_state=replace(written, state=PUBLISHING))
    ended = published(unfinished, target(a=some(0, 1, 2, 3)))
    assert parsed(told_by(ended)).state == DONE
    assert slices_of(ended) == []


def test_a_first_plan_creates_pointer_and_slices() -> None:
    """In a fresh group everything is created, generation 1, in one transaction."""
    publication = published(inputs("a", "b"), target(a=some(0, 1), b=some(2, 3)))
    ((proof, told, *assignments, past),) = publication.writes
    assert proof == Check(CANDIDATE)
    assert isinstance(told, Create)
    assert (told.path, parsed(told).state, parsed(told).generation) == (POINTER, DONE, 1)
    assert assignments == [
        Create(f"{POINTER}/a", MemberAssignment(1, "a", some(0, 1)).encode()),
        Create(f"{POINTER}/b", MemberAssignment(1, "b", some(2, 3)).encode()),
    ]
    assert isinstance(past, Create)
    assert past.path == "/kiel-groups/g/history/0000000001"
    assert (publication.generation, publication.moved) == (1, 0)


@pytest.mark.usefixtures("large")
def test_a_plan_that_one_transaction_cannot_hold_says_when_it_is_complete() -> None:
    """The pointer says publishing, then come the slices, then it says done."""
    publication = published(inputs("a", "b"), target(a=some(0, 1), b=some(2, 3)))
    opening, first, second, closing = publication.writes
    assert opening[0] == closing[0] == Check(CANDIDATE)
    assert isinstance(opening[1], Create)
    assert parsed(opening[1]).state == PUBLISHING
    guard = (Check(CANDIDATE), Check(POINTER, 0))
    assert first == (*guard, Create(f"{POINTER}/a", MemberAssignment(1, "a", some(0, 1)).encode()))
    assert second == (*guard, Create(f"{POINTER}/b", MemberAssignment(1, "b", some(2, 3)).encode()))
    assert isinstance(closing[1], Put)
    assert isinstance(closing[2], Create)
    assert (closing[1].path, closing[1].version, parsed(closing[1]).state) == (POINTER, 0, DONE)


@pytest.mark.usefixtures("large")
def test_a_later_plan_is_fenced_by_the_version_it_has_read() -> None:
    """Opening at the version read, everything else at the one after it."""
    read = inputs(
        "a", "b", group_state=group_state(4), group_state_version=9, assignments=stored(4, a=some(0), b=some(1))
    )
    opening, *batches, closing = published(read, target(a=some(1), b=some(0))).writes
    assert isinstance(opening[1], Put)
    assert opening[1].version == 9
    assert [batch[1] for batch in batches] == [Check(POINTER, 10)] * 2
    assert isinstance(closing[1], Put)
    assert closing[1].version == 10


def test_the_generation_is_above_pointer_and_slices() -> None:
    """Whatever an earlier leader left, also where the pointer says less than a slice."""
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


def test_what_stands_there_already_is_not_published() -> None:
    """The same slices under a complete pointer: nothing to write."""
    complete = replace(group_state(), members=1, partitions=1)
    read = inputs("a", group_state=complete, group_state_version=1, assignments=stored(a=some(0)))
    assert publish(read, target(a=some(0))) is None


def test_a_pointer_that_tells_operators_something_else_is_published_anew() -> None:
    """Although no slice changes: its counts, what is unassigned, and what replaced the allocator."""
    read = inputs("a", group_state=group_state(), group_state_version=1, assignments=stored(a=some(0)))
    told = told_by(published(read, target(a=some(0))))
    assert (parsed(told).members, parsed(told).partitions, parsed(told).generation) == (1, 1, 2)


@pytest.mark.parametrize(
    ("found", "version"),
    [(group_state(state=PUBLISHING), 1), (None, 1), (None, None)],
    ids=["left at publishing", "garbage", "deleted by hand"],
)
def test_an_incomplete_pointer_is_brought_to_its_end(found: GroupState | None, version: int | None) -> None:
    """With equal slices the pointer alone is written, and ends at done."""
    read = inputs("a", group_state=found, group_state_version=version, assignments=stored(a=some(0)))
    told = told_by(published(read, target(a=some(0))))
    assert isinstance(told, Create if version is None else Put)
    assert (parsed(told).state, parsed(told).generation) == (DONE, 2)


def test_only_changed_slices_are_written() -> None:
    """Who keeps what it has is not told again."""
    read = inputs(
        "a", "b", "c", group_state=group_state(), group_state_version=1, assignments=stored(a=some(0), b=some(1, 2))
    )
    publication = published(read, target(a=some(0), b=some(1), c=some(2)))
    assert slices_of(publication) == [
        Create(f"{POINTER}/c", MemberAssignment(2, "c", some(2)).encode()),
        Put(f"{POINTER}/b", MemberAssignment(2, "b", some(1)).encode()),
    ]
    assert publication.moved == 1


def test_gaining_slices_come_first_and_gone_ones_last() -> None:
    """Who gains watches the owner before it lets go; who is gone needs nothing."""
    read = inputs(
        "a",
        "z",
        group_state=group_state(),
        group_state_version=1,
        assignments=stored(a=some(0, 1), z=some(2), m=some(3)),
    )
    assert slices_of(published(read, target(a=some(0), z=some(1, 2, 3)))) == [
        Put(f"{POINTER}/z", MemberAssignment(2, "z", some(1, 2, 3)).encode()),
        Put(f"{POINTER}/a", MemberAssignment(2, "a", some(0)).encode()),
        Delete(f"{POINTER}/m"),
    ]


@pytest.mark.parametrize(
    "found", [None, MemberAssignment(1, "somebody else", some(0))], ids=["garbage", "for another member"]
)
def test_a_slice_that_does_not_serve_its_member_is_rewritten(found: MemberAssignment | None) -> None:
    """Although its partitions may be the right ones."""
    read = inputs("a", group_state=group_state(), group_state_version=1, assignments={"a": found})
    assert slices_of(published(read, target(a=some(0)))) == [
        Put(f"{POINTER}/a", MemberAssignment(2, "a", some(0)).encode())
    ]


def test_a_member_without_partitions_has_a_slice() -> None:
    """An empty slice revokes, an absent one would mean unknown."""
    publication = published(inputs("a"), target(a=some()))
    assert slices_of(publication) == [Create(f"{POINTER}/a", MemberAssignment(1, "a", some()).encode())]


@pytest.mark.parametrize(
    "wanted",
    [
        Target(allocation={"a": some(0)}, allocator="other"),
        Target(allocation={"a": some(0)}, allocator="round_robin", fallback="failed"),
        Target(allocation={"a": some(0)}, allocator="round_robin", unassigned={TopicPartition("t", 1): "why"}),
    ],
    ids=["allocator", "fallback", "unassigned"],
)
def test_what_an_operator_reads_in_the_pointer_is_kept_right(wanted: Target) -> None:
    """Other news with the same slices are published."""
    read = inputs("a", group_state=group_state(), group_state_version=1, assignments=stored(a=some(0)))
    assert slices_of(published(read, wanted)) == []


def test_a_failure_in_other_words_is_no_news() -> None:
    """An error may have other words at every look; that the allocator works again is told."""
    complete = replace(group_state(), members=1, partitions=1, fallback="sticky used: failure 1")
    read = inputs("a", group_state=complete, group_state_version=1, assignments=stored(a=some(0)))
    assert publish(read, replace(target(a=some(0)), fallback="last plan kept: failure 2")) is None
    assert parsed(told_by(published(read, target(a=some(0))))).fallback == ""


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (None, "", ""),
        (None, "failed", "allocator failed"),
        ("", "failed", "allocator failed"),
        ("failed", "", "allocator recovered"),
        ("failed", "failed otherwise", ""),
    ],
)
def test_the_news_of_an_allocator(before: str | None, after: str, told: str) -> None:
    """It begins to fail, or works again."""
    found = None if before is None else replace(group_state(), fallback=before)
    assert describe_allocator(found, replace(target(), fallback=after)) == told


def test_the_pointer_counts_and_names_what_is_unassigned() -> None:
    """Counts per reason for all of it, names for the first hundred."""
    reasons = dict.fromkeys(some(*range(150)), "no owner") | {TopicPartition("u", 0): "no subscriber"}
    wanted = Target(allocation={"a": some(200), "b": some(201, 202)}, unassigned=reasons, allocator="x", fallback="y")
    told = parsed(told_by(published(inputs("a", "b"), wanted)))
    assert told.unassigned == {"no owner": 150, "no subscriber": 1}
    assert told.unassigned_names == tuple(f"t:{number}" for number in range(NAMED_UNASSIGNED))
    assert (told.members, told.partitions, told.allocator, told.fallback) == (2, 3, "x", "y")
    assert (told.leader, told.cause, told.created_at_ms) == ("a", "join of b", 5)


def test_folders_of_old_tools_are_made_for_existing_subscribed_topics() -> None:
    """Owners and offsets of each topic that some member wants and that exists, beside that of the past."""
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


def test_batches_are_bounded_in_number_and_bytes() -> None:
    """A thousand slices go out in transactions that every server takes, each one guarded."""
    names = [f"m{number:04d}" for number in range(1_000)]
    big = {name: some(*range(index * 2_000, index * 2_000 + 2_000)) for index, name in enumerate(names[:100])}
    small = {name: some() for name in names[100:]}
    publication = published(inputs(*names), target(**big, **small))
    for batch in publication.writes[1:-1]:
        assert batch[:2] == (Check(CANDIDATE), Check(POINTER, 0))
        assert len(batch) <= MOST_OPERATIONS + 2
        assert sum(map(size_of, batch[2:])) <= MOST_BYTES
    assert len(slices_of(publication)) == 1_000
    assert len(publication.writes) > 5 + 2


def test_the_past_is_kept_for_a_hundred_generations() -> None:
    """Why, what moved, how long it took; the oldest goes in the same transaction."""
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
    assert publication.generation == 101, "also where everything but the past was deleted by hand"
    *_, entry, deletion = publication.writes[0]
    assert deletion == Delete("/kiel-groups/g/history/0000000001")
    assert isinstance(entry, Create)
    assert HistoryEntry.parse(entry.data, entry.path) == HistoryEntry(
        generation=101, cause="join of b", leader="a", moved=1, members=2, partitions=2, took_ms=7, created_at_ms=5
    )
    assert [generation_of(name) for name in ("0000000101", "101", "٣" * 10)] == [101, None, None]


def test_empty_slices_of_who_is_gone_are_no_reason_for_a_generation() -> None:
    """They are cleared away with the next one."""
    complete = replace(group_state(), members=1, partitions=1)
    gone = stored(a=some(0), gone=some())
    assert (
        publish(inputs("a", group_state=complete, group_state_version=1, assignments=gone), target(a=some(0))) is None
    )
    after = published(inputs("a", group_state=complete, group_state_version=1, assignments=gone), target(a=some(1)))
    assert Delete(f"{POINTER}/gone") in slices_of(after)


def test_a_session_owns_no_more_than_it_can_close() -> None:
    """What is beyond the cap has no owner, with that reason, and the same partitions stay owned."""
    many, few = some(*range(20_000)), some(0, topic="u")
    cut = limit_claims(target(a=many, b=few), LAYOUT, "/chroot")
    bytes_owned = sum(len("/chroot" + LAYOUT.owner(partition)) for partition in cut.allocation["a"])
    assert 500 << 10 < bytes_owned <= MOST_PATH_BYTES
    assert cut.allocation["b"] == few
    assert many - cut.allocation["a"] == cut.unassigned.keys()
    assert set(cut.unassigned.values()) == {TOO_MANY}
    assert max(cut.allocation["a"]) < min(cut.unassigned)
    small = target(a=some(*range(1_000)), b=few)
    assert limit_claims(small, LAYOUT, "/chroot") is small


FITTING = inputs("a", "b", assignments=stored(a=some(0, 1), b=some(2, 3)))
FRESH = Target(allocation={"a": some(0, 2), "b": some(1, 3)}, allocator="round_robin")


def test_a_failing_allocator_leaves_a_plan_that_fits() -> None:
    """Exactly the living members, every partition once: nothing moves."""
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
def test_a_plan_that_does_not_fit_any_more_is_replaced(read: Inputs) -> None:
    """Then the sticky allocator's plan is published, and the pointer says so."""
    used = fallback_target(read, FRESH, "it raised")
    assert used.allocation == FRESH.allocation
    assert used.fallback == "sticky used: it raised"


BEFORE = Inputs(members=members("a", "b"), topics={"t": (0, 1)}, brokers=1)
CHANGES = {
    "join of c, expiry of a": Inputs(members=members("b", "c"), topics=BEFORE.topics, brokers=1),
    "leave of a": Inputs(members=members("a", topics=()) | members("b"), topics=BEFORE.topics, brokers=1),
    "config": replace(BEFORE, dynamic_config=DynamicConfig(allocator="sticky")),
    "weights": replace(BEFORE, weights={TopicPartition("t", 0): 2}),
    "subscription of b": Inputs(
        members=members("a") | members("b", topics=("t", "u")), topics=BEFORE.topics, brokers=1
    ),
    "new partitions of t": Inputs(members=BEFORE.members, topics={"t": (0, 1, 2)}, brokers=1),
    "deleted topic t": Inputs(members=BEFORE.members, topics={}, brokers=1),
    "": Inputs(members=BEFORE.members, topics=BEFORE.topics, brokers=2),
}


@pytest.mark.parametrize("told", CHANGES)
def test_a_change_is_described(told: str) -> None:
    """Joins, leaves, deaths, subscriptions, topics and settings, and nothing where nothing is to be seen."""
    assert describe_change(BEFORE, CHANGES[told]) == told


def test_a_new_topic_is_news_only_where_it_was_wanted_before() -> None:
    """One that comes with a new subscription is that subscription's news."""
    without = Inputs(members=BEFORE.members, topics={}, brokers=1)
    assert describe_change(without, BEFORE) == "new topic t"
    widened = Inputs(members=members("a", "b", topics=("t", "u")), topics={"t": (0, 1), "u": (0,)}, brokers=1)
    assert describe_change(BEFORE, widened) == "subscription of a, subscription of b"


def test_a_new_leader_tells_of_itself_where_there_was_one_before() -> None:
    """The first leader of a group is no change."""
    assert describe_change(None, BEFORE) == ""
    assert describe_change(None, inputs("a", "b", group_state=group_state())).startswith("leader change, 2 members")


def test_a_new_leader_tells_who_came_and_went_with_the_one_before() -> None:
    """It has seen neither: what is stored tells, and not whether the others left or died."""
    stored = {"a": MemberAssignment(1, "a", some(0)), "gone": MemberAssignment(1, "gone", some(1)), "one": KEPT}
    after = replace(inputs("a", "b", group_state=group_state()), assignments=stored, away={"one": KEPT})
    assert describe_change(None, after) == "leader change, 2 members, join of b, leave or expiry of gone"


def test_a_crowd_is_not_named_in_full() -> None:
    """Ten causes are told, the rest are counted."""
    told = describe_change(BEFORE, inputs("a", "b", *(f"m{number:02d}" for number in range(25)), partitions=2))
    assert told.startswith("join of m00, join of m01, ")
    assert told.endswith("join of m09, and 15 more")


STATIC = {"one": MemberInfo(member_id="m1", session_timeout_ms=1, subscription=("t",), instance_id="one")}
KEPT = MemberAssignment(1, "m1", some(0, 1), away_since_ms=5)


def test_the_slice_of_a_static_slot_is_for_its_member() -> None:
    """The slot is the instance, "for" is who fills it now."""
    read = Inputs(members=STATIC, topics={"t": (0, 1)}, brokers=1)
    fresh = MemberAssignment(1, "m1", some(0, 1))
    assert slices_of(published(read, target(one=some(0, 1)))) == [Create(f"{POINTER}/one", fresh.encode())]


def test_the_slice_of_one_that_is_away_says_since_when() -> None:
    """And nothing else of it changes; when the instance is back the slice is for the new member."""
    before = {"one": replace(KEPT, away_since_ms=None)}
    read = Inputs(members={}, topics={"t": (0, 1)}, brokers=1, assignments=before, away={"one": KEPT})
    assert slices_of(published(read, target(one=some(0, 1)))) == [
        Put(f"{POINTER}/one", replace(KEPT, generation=2).encode())
    ]
    back = Inputs(members=STATIC, topics={"t": (0, 1)}, brokers=1, assignments={"one": replace(KEPT, member_id="m0")})
    fresh = MemberAssignment(2, "m1", some(0, 1))
    assert slices_of(published(back, target(one=some(0, 1)))) == [Put(f"{POINTER}/one", fresh.encode())]


def test_who_is_away_counts_with_the_topics_of_what_it_had() -> None:
    """And who is drained with none."""
    read = Inputs(
        members=members("a", "b"),
        topics={},
        brokers=1,
        away={"one": KEPT},
        dynamic_config=DynamicConfig(drained=frozenset({"b"})),
    )
    assert read.subscriptions == {"a": ("t",), "b": (), "one": ("t",)}


def test_what_a_static_member_does_is_told_by_its_slot() -> None:
    """It is absent, back, or its grace is over."""
    here = Inputs(members=members("a") | STATIC, topics=BEFORE.topics, brokers=1)
    gone = Inputs(members=members("a"), topics=BEFORE.topics, brokers=1, away={"one": KEPT})
    over = Inputs(members=members("a"), topics=BEFORE.topics, brokers=1)
    again = replace(here, members=members("a") | {"one": replace(STATIC["one"], member_id="m2")})
    assert describe_change(here, gone) == "absence of one"
    assert describe_change(gone, here) == "return of one"
    assert describe_change(here, again) == "return of one"
    assert describe_change(gone, over) == "end of grace of one"


def test_nothing_is_published_to_nobody() -> None:
    """A leader that is no member waits for the first one; a group that had members is told that they are gone."""
    untouched = Inputs(members={}, topics={}, brokers=1)
    assert publish(untouched, target()) is None
    assert publish(replace(untouched, assignments=stored(a=some(0))), target()) is not None
    assert (
        publish(replace(untouched, group_state=replace(group_state(), members=2), group_state_version=0), target())
        is not None
    )
