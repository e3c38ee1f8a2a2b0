"""When a round begins, with which generation, whom it waits for, which protocol it has, and what is published."""

from __future__ import annotations

from typing import Any

import pytest

from kiel_groups.group.rounds import (
    Choice,
    Opening,
    RoundInputs,
    choose,
    latecomers,
    opening,
    publication,
    round_cause,
)
from kiel_groups.group.znodes.contents import DONE
from kiel_groups.group.znodes.round_contents import (
    JOINING,
    Offer,
    OfferedProtocol,
    RoundAssignment,
    RoundLayout,
    RoundMember,
    RoundState,
)
from kiel_groups.group.znodes.transactions import MOST_BYTES, Check, Create, Delete, Put, size_of

pytestmark = pytest.mark.unit

LAYOUT = RoundLayout("g")
CANDIDATE = f"{LAYOUT.election}/c"


def member(name: str, joined: int, *protocols: str) -> RoundMember:
    offered = tuple(OfferedProtocol(each, f"{name} {each}".encode()) for each in protocols or ("p",))
    return RoundMember(member_id=name, joined=joined, offer=Offer("type", offered))


def state(generation: int, *members: str, leader: str = "a", is_done: bool = True) -> RoundState:
    return RoundState(generation=generation, state=DONE if is_done else JOINING, leader=leader, members=members)


def begin(inputs: RoundInputs) -> Opening:
    return opening(LAYOUT, inputs, leader="a", candidate=CANDIDATE, cause="a cause", now_ms=7)


# Rule 1


@pytest.mark.parametrize(
    ("inputs", "cause"),
    [
        (RoundInputs(members=()), ""),
        (RoundInputs(members=(), state=state(3, "gone")), ""),
        (RoundInputs(members=(member("a", 0),)), "first round"),
        (RoundInputs(members=(member("a", 4),), state_version=2, assignments={"a": 4}), "manual"),
        (RoundInputs(members=(member("a", 4),), state=state(4, "a")), ""),
        (RoundInputs(members=(member("a", 4), member("b", 5)), state=state(4, "a")), "join of b"),
        (RoundInputs(members=(member("a", 5),), state=state(4, "a")), "rejoin of a"),
        (RoundInputs(members=(member("a", 4),), state=state(4, "a", "b")), "leave or expiry of b"),
        (RoundInputs(members=(member("a", 4),), state=state(4, is_done=False)), "round interrupted"),
        # A member that was refused, or that was not waited for, causes no round before it joins again.
        (RoundInputs(members=(member("a", 4), member("late", 3)), state=state(4, "a")), ""),
        (RoundInputs(members=(member("a", 4), member("refused", 4)), state=state(4, "a")), ""),
        (
            RoundInputs(members=(member("a", 5), member("b", 5)), state=state(4, "a", "c")),
            "join of b, rejoin of a, leave or expiry of c",
        ),
    ],
)
def test_a_round_has_a_cause(inputs: RoundInputs, cause: str) -> None:
    """Only a join, a rejoin, a leave, or a round that was not finished makes the leader begin a round."""
    assert round_cause(inputs) == cause


def test_a_cause_names_a_few_members() -> None:
    """A thousand members that join make a short cause."""
    joining = tuple(member(f"m{number:04}", 2) for number in range(1_000))
    cause = round_cause(RoundInputs(members=joining, state=state(1)))
    assert cause == "join of m0000, m0001, m0002 and 997 more"
    gone = round_cause(RoundInputs(members=joining[:1], state=state(2, "m0000", *(f"g{each}" for each in range(5)))))
    assert gone == "leave or expiry of g0, g1, g2 and 2 more"
    again = round_cause(RoundInputs(members=joining[:5], state=state(1, *(each.member_id for each in joining[:5]))))
    assert again == "rejoin of m0000, m0001, m0002 and 2 more"


# Rule 2


@pytest.mark.parametrize(
    ("inputs", "generation"),
    [
        (RoundInputs(members=(member("a", 0),)), 1),
        (RoundInputs(members=(member("a", 4), member("b", 5)), state=state(4, "a"), state_version=3), 5),
        (RoundInputs(members=(member("a", 4),), state=state(4, is_done=False), state_version=3), 5),
        # Some assignments of an interrupted publication are newer than the state.
        (
            RoundInputs(members=(member("a", 4),), state=state(4, "a"), state_version=3, assignments={"a": 6, "b": 5}),
            7,
        ),
        (RoundInputs(members=(member("a", 0),), known=6), 7),
        (RoundInputs(members=(member("a", 2),), state=state(2, "a"), state_version=9, known=6), 7),
        # The state was deleted, garbled, or replaced by an older one: no generation that a member may have is reused.
        (RoundInputs(members=(member("a", 6), member("b", 0))), 7),
        (RoundInputs(members=(member("a", 6),), state_version=9, assignments={"a": 6}), 7),
        (RoundInputs(members=(member("a", 6), member("b", 3)), state=state(2, "a"), state_version=9), 7),
    ],
)
def test_a_generation_is_new(inputs: RoundInputs, generation: int) -> None:
    """A round's generation is above every stored one, and above those that members may have completed."""
    begun = begin(inputs)
    assert begun.state == RoundState(generation=generation, state=JOINING, leader="a", cause="a cause", created_at_ms=7)


@pytest.mark.parametrize("version", [None, 0, 5])
def test_an_opening_proves_the_leader_and_the_state_that_it_read(version: int | None) -> None:
    """Each opening first checks the election znode. It creates the state, or replaces the version that was read."""
    begun = begin(RoundInputs(members=(member("a", 0),), state_version=version))
    data = begun.state.encode()
    if version is None:
        assert begun.write == (Check(CANDIDATE), Create(LAYOUT.group_state, data))
        assert begun.version == 0
    else:
        assert begun.write == (Check(CANDIDATE), Put(LAYOUT.group_state, data, version))
        assert begun.version == version + 1


# Rule 4


def test_a_round_waits_for_members_that_have_not_joined_it() -> None:
    """A member has joined a generation if its znode names exactly this one."""
    assert latecomers([member("a", 5), member("b", 4), member("c", 6)], 5) == ["b", "c"]


# Rules 5 and 6


@pytest.mark.parametrize(
    ("members", "protocol", "refused"),
    [
        ([member("a", 5, "x")], "x", {}),
        ([], "", {}),
        ([member("a", 4, "x")], "", {}),
        # A member that has not joined yet does not keep later ones out.
        ([member("a", 5, "x"), member("b", 4, "y"), member("c", 5, "x")], "x", {}),
        # All know y; it does not matter that most prefer x.
        ([member("a", 5, "x", "y"), member("b", 5, "x", "y"), member("c", 5, "y")], "y", {}),
        # Two votes for y, one for x.
        ([member("a", 5, "x", "y"), member("b", 5, "y", "x"), member("c", 5, "y", "x")], "y", {}),
        # One vote each: as the first member prefers. The leader is the first one, wherever it has registered.
        ([member("a", 5, "x", "y"), member("b", 5, "y", "x")], "x", {}),
        ([member("b", 5, "y", "x"), member("a", 5, "x", "y")], "x", {}),
        # Votes are for protocols that all know.
        ([member("a", 5, "x", "y", "z"), member("b", 5, "z", "y"), member("c", 5, "z", "y")], "z", {}),
        ([member("a", 5, "x", "z", "y"), member("b", 5, "y", "z")], "z", {}),
        ([member("a", 5, "x"), member("b", 5, "y")], "x", {"b": "it offers y; the others have x in common"}),
        # The leader is accepted, even if it registered last and the others agree.
        (
            [member("b", 5, "y"), member("c", 5, "y"), member("a", 5, "x")],
            "x",
            {"b": "it offers y; the others have x in common", "c": "it offers y; the others have x in common"},
        ),
        # The second member narrows what the third one must know.
        (
            [member("a", 5, "x", "y"), member("b", 5, "y"), member("c", 5, "x")],
            "y",
            {"c": "it offers x; the others have y in common"},
        ),
        ([RoundMember(member_id="a", joined=5, offer=Offer("t", ()))], "", {"a": "it offers no protocol"}),
    ],
)
def test_the_members_share_a_protocol(members: list[RoundMember], protocol: str, refused: dict[str, str]) -> None:
    """The protocol is one that all accepted members know, by their votes; the others are refused with the reason."""
    choice = choose(members, 5, "a")
    assert (choice.protocol, choice.refused) == (protocol, refused)
    joined = [each.member_id for each in members if each.joined == 5 and each.member_id not in refused]
    assert choice.members == {name: f"{name} {protocol}".encode() for name in joined}


# Rule 7


def published(assignments: dict[str, bytes], members: list[str], stored: list[str]) -> Any:
    begun = begin(RoundInputs(members=(member("a", 5),), state=state(4, "a"), state_version=8))
    choice = Choice("x", dict.fromkeys(members, b""), {"r": "why"})
    return publication(LAYOUT, begun, choice, assignments, stored=stored, candidate=CANDIDATE)


def assigned(name: str, data: bytes) -> bytes:
    return RoundAssignment(5, name, data).encode()


def test_a_small_group_is_published_in_one_transaction() -> None:
    """Assignments are created, replaced or deleted, and the state says done, all if the leader still leads."""
    found = published({"a": b"1", "stranger": b"2"}, ["a", "b"], ["a", "gone"])
    done = RoundState(
        generation=5,
        state=DONE,
        leader="a",
        protocol="x",
        members=("a", "b"),
        refused={"r": "why"},
        cause="a cause",
        created_at_ms=7,
    )
    assert (found.generation, found.moved, found.folders) == (5, 0, ())
    assert found.writes == (
        (
            Check(CANDIDATE),
            Put(LAYOUT.assignment("a"), assigned("a", b"1")),
            Create(LAYOUT.assignment("b"), assigned("b", b"")),
            Delete(LAYOUT.assignment("gone")),
            Put(LAYOUT.group_state, done.encode(), 9),
        ),
    )


def test_a_round_without_members_is_closed() -> None:
    """If nothing is to be assigned, the state alone is written."""
    (writes,) = published({}, [], []).writes
    assert [type(each) for each in writes] == [Check, Put]


@pytest.mark.parametrize("size", [0, 400_000])
def test_a_large_group_is_published_in_batches(size: int) -> None:
    """
    All assignments are written before the state is done. Every batch checks the leader and the round, and fits.

    A large assignment shares a transaction with nothing else of its size.
    """
    names = [f"m{number:03}" for number in range(250 if size == 0 else 3)]
    found = published(dict.fromkeys(names, bytes(size)), names, [])
    *batches, closing = found.writes
    assert len(batches) > 1
    assert [type(each) for each in closing] == [Check, Put]
    assert closing[1].version == 9
    created: list[str] = []
    for batch in batches:
        assert batch[:2] == (Check(CANDIDATE), Check(LAYOUT.group_state, 9))
        created += [each.path for each in batch[2:]]
        assert sum(map(size_of, batch)) < 2 * MOST_BYTES
    assert created == [LAYOUT.assignment(name) for name in names]


def test_a_batch_leaves_room_for_a_long_state() -> None:
    """The transaction that ends a round is below ZooKeeper's limit, also if its only batch is almost full."""
    names = [f"a-long-name-of-a-member-{number:03}{'x' * 100}" for number in range(200)]
    found = published(dict.fromkeys(names, bytes(1_700)), names, [])
    assert all(sum(map(size_of, batch)) < (1 << 20) for batch in found.writes)


def test_one_large_assignment_leaves_the_state_to_the_next_transaction() -> None:
    """An assignment of the largest size that is accepted is not written together with a state of the same size."""
    found = published({"a": bytes(700_000)}, ["a"], [])
    assert all(sum(map(size_of, batch)) < (1 << 20) for batch in found.writes)
