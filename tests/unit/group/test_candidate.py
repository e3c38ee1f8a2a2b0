"""The steps of a candidate in the election."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from kiel_groups.group import candidate as candidate_module
from kiel_groups.group.candidate import (
    BecomeLeader,
    Candidate,
    Candidates,
    CreateCandidate,
    Created,
    Effect,
    ElectionPhase,
    EnterElection,
    Event,
    PredecessorGone,
    ReadCandidates,
    ResignLeader,
    Resumed,
    SessionEnded,
    WatchPredecessor,
    sequence,
    step,
)
from tests.helpers.recorded_moves import assert_moves_of_table, record_moves

pytestmark = pytest.mark.unit

A, B, C, OWN = "aa-n_0000000003", "bb-n_0000000010", "cc-n_0000000020", "me-n_0000000011"
OUT, CREATING, READING, FOLLOWING, LEADING = ElectionPhase


def me(phase: ElectionPhase, name: str | None = None) -> Candidate:
    return Candidate("me", phase, name)


def that_followed(candidate: Candidate) -> Candidate:
    """Return the candidate with ``followed`` set: it has been behind another candidate before."""
    return replace(candidate, followed=True)


CASES: dict[str, tuple[Candidate, Event, Candidate, tuple[Effect, ...]]] = {
    "a candidate creates a znode": (me(OUT), EnterElection(), me(CREATING), (CreateCandidate(),)),
    "a candidate enters once": (me(FOLLOWING, OWN), EnterElection(), me(FOLLOWING, OWN), ()),
    "a candidate with a znode reads the others": (me(CREATING), Created(OWN), me(READING, OWN), (ReadCandidates(),)),
    "after an unknown outcome the candidates are read": (me(CREATING), Created(None), me(READING), (ReadCandidates(),)),
    "a create whose answer was lost is found": (
        me(READING),
        Candidates((OWN,)),
        me(LEADING, OWN),
        (BecomeLeader(OWN),),
    ),
    "a create whose answer was lost is found behind another candidate, too": (
        me(READING),
        Candidates((A, OWN)),
        that_followed(me(FOLLOWING, OWN)),
        (WatchPredecessor(A),),
    ),
    "a create that did not happen is repeated": (me(READING), Candidates((A,)), me(CREATING), (CreateCandidate(),)),
    "the lowest candidate leads": (
        me(READING, OWN),
        Candidates((C, OWN)),
        me(LEADING, OWN),
        (BecomeLeader(OWN),),
    ),
    "another candidate watches the next lower one only": (
        me(READING, OWN),
        Candidates((C, B, OWN, A)),
        that_followed(me(FOLLOWING, OWN)),
        (WatchPredecessor(B),),
    ),
    "candidates are ordered by their numbers, not by their names": (
        me(READING, OWN),
        Candidates(("zz-n_0000000009", OWN, "aa-n_0000000100")),
        that_followed(me(FOLLOWING, OWN)),
        (WatchPredecessor("zz-n_0000000009"),),
    ),
    "other znodes are ignored": (
        me(READING, OWN),
        Candidates(("garbage", "n_", "x-n_000000000٣", OWN)),
        me(LEADING, OWN),
        (BecomeLeader(OWN),),
    ),
    "of two znodes of its own the lower one counts": (
        me(READING, OWN),
        Candidates((OWN, "me-n_0000000005", B)),
        me(LEADING, "me-n_0000000005"),
        (BecomeLeader("me-n_0000000005"),),
    ),
    "after the end of its predecessor the candidates are read": (
        me(FOLLOWING, OWN),
        PredecessorGone(),
        me(READING, OWN),
        (ReadCandidates(),),
    ),
    "a late watch does not disturb a leader": (me(LEADING, OWN), PredecessorGone(), me(LEADING, OWN), ()),
    "after a pause a leader reads the candidates, and leads meanwhile": (
        me(LEADING, OWN),
        Resumed(),
        me(LEADING, OWN),
        (ReadCandidates(),),
    ),
    "after a pause a follower reads, too": (me(FOLLOWING, OWN), Resumed(), me(FOLLOWING, OWN), (ReadCandidates(),)),
    "a pause during the create waits for its outcome": (me(CREATING), Resumed(), me(CREATING), ()),
    "a leader that is still the lowest makes a new plan": (
        me(LEADING, OWN),
        Candidates((OWN, C)),
        me(LEADING, OWN),
        (BecomeLeader(OWN),),
    ),
    "a leader without its znode resigns and creates a new one": (
        me(LEADING, OWN),
        Candidates((C,)),
        me(CREATING),
        (ResignLeader(), CreateCandidate()),
    ),
    "a follower without its znode creates a new one": (
        me(FOLLOWING, OWN),
        Candidates((A,)),
        me(CREATING),
        (CreateCandidate(),),
    ),
    "a leader that finds a lower one resigns and follows": (
        me(LEADING, OWN),
        Candidates((A, OWN)),
        that_followed(me(FOLLOWING, OWN)),
        (ResignLeader(), WatchPredecessor(A)),
    ),
    "a leader after another one reports that": (
        that_followed(me(READING, OWN)),
        Candidates((C, OWN)),
        that_followed(me(LEADING, OWN)),
        (BecomeLeader(OWN, succeeds=True),),
    ),
    "a candidate ends with its session": (me(FOLLOWING, OWN), SessionEnded(), me(OUT), ()),
    "a leader resigns at the end of its session": (me(LEADING, OWN), SessionEnded(), me(OUT), (ResignLeader(),)),
    "a candidate outside the election ignores candidates": (me(OUT), Candidates((OWN,)), me(OUT), ()),
    "a late list is ignored during a create": (me(CREATING), Candidates((OWN,)), me(CREATING), ()),
}


@pytest.mark.parametrize("case", CASES)
def test_step(case: str) -> None:
    """Each case is one step of a candidate: an event, the candidate after it, and the effects."""
    before, event, expected, effects = CASES[case]
    assert step(before, event) == (expected, effects)


def every_step() -> Iterator[tuple[Candidate, Event]]:
    """Yield every event in every phase."""
    events = (
        *(EnterElection(), PredecessorGone(), Resumed(), SessionEnded(), Created(None), Created(OWN)),
        *map(Candidates, ((), (OWN,), (A,), (A, OWN), (OWN, C), ("me-n_0000000001", OWN))),
    )
    for phase, name, event in product(ElectionPhase, (None, OWN), events):
        yield me(phase, name), event


def test_a_candidate_makes_every_legal_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """The moves of all events in all phases are those of the table: none is missing there, and none is superfluous."""

    def play() -> None:
        for before, event in every_step():
            step(before, event)

    assert_moves_of_table(monkeypatch, candidate_module, play)


def test_a_candidate_makes_no_illegal_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """A move that the table lacks raises an error, whatever the move."""
    recorded = record_moves(monkeypatch, candidate_module)
    for before, event in every_step():
        recorded.forbidden = None
        after, _ = step(before, event)
        if after.phase is not before.phase:
            recorded.forbidden = (before.phase, after.phase)
            with pytest.raises(AssertionError, match="ElectionPhase"):
                step(before, event)


def test_every_change_of_leadership_has_an_effect() -> None:
    """
    In each phase and for each event, BecomeLeader is an effect if leadership starts, and ResignLeader if and only if
    leadership ends.
    """
    for before, event in every_step():
        after, effects = step(before, event)
        assert (ResignLeader() in effects) == (before.leads and not after.leads)
        assert any(isinstance(effect, BecomeLeader) for effect in effects) or not (after.leads and not before.leads)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("u-n_0000000007", 7),
        ("u-n_", None),
        ("n7", None),
        ("u-n_000000000٣", None),
        ("u-n_000000000²", None),
        ("u_x_0000000012", 12),
        ("u-n_12", 12),
        ("u-n_" + "1" * 5_000, None),
        ("", None),
    ],
)
def test_sequence(name: str, number: int | None) -> None:
    """
    The sequence number is the text after the last underscore, if that has the form of ZooKeeper's numbers: at most ten
    digits.
    """
    assert sequence(name) == number
