"""A candidate of the election: the recipe, step by step."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from kiel_groups.group.leader.candidate import (
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

pytestmark = pytest.mark.unit

A, B, C, OWN = "aa-n_0000000003", "bb-n_0000000010", "cc-n_0000000020", "me-n_0000000011"
OUT, CREATING, READING, FOLLOWING, LEADING = ElectionPhase


def me(standing: ElectionPhase, name: str | None = None) -> Candidate:
    return Candidate("me", standing, name)


def after(candidate: Candidate) -> Candidate:
    """One that somebody else stood before at least once."""
    return replace(candidate, followed=True)


CASES: dict[str, tuple[Candidate, Event, Candidate, tuple[Effect, ...]]] = {
    "who runs makes a znode": (me(OUT), EnterElection(), me(CREATING), (CreateCandidate(),)),
    "who runs already goes on": (me(FOLLOWING, OWN), EnterElection(), me(FOLLOWING, OWN), ()),
    "who has a znode reads": (me(CREATING), Created(OWN), me(READING, OWN), (ReadCandidates(),)),
    "an unknown outcome is looked up": (me(CREATING), Created(None), me(READING), (ReadCandidates(),)),
    "a create whose answer was lost is found": (
        me(READING),
        Candidates((OWN,)),
        me(LEADING, OWN),
        (BecomeLeader(OWN),),
    ),
    "one that did not happen is made again": (me(READING), Candidates((A,)), me(CREATING), (CreateCandidate(),)),
    "the lowest leads": (
        me(READING, OWN),
        Candidates((C, OWN)),
        me(LEADING, OWN),
        (BecomeLeader(OWN),),
    ),
    "the others watch the next lower one only": (
        me(READING, OWN),
        Candidates((C, B, OWN, A)),
        after(me(FOLLOWING, OWN)),
        (WatchPredecessor(B),),
    ),
    "the order is that of the numbers, not of the text": (
        me(READING, OWN),
        Candidates(("zz-n_0000000009", OWN, "aa-n_0000000100")),
        after(me(FOLLOWING, OWN)),
        (WatchPredecessor("zz-n_0000000009"),),
    ),
    "what is no candidate is passed over": (
        me(READING, OWN),
        Candidates(("garbage", "n_", "x-n_000000000٣", OWN)),
        me(LEADING, OWN),
        (BecomeLeader(OWN),),
    ),
    "of two own znodes the lower one counts": (
        me(READING, OWN),
        Candidates((OWN, "me-n_0000000005", B)),
        me(LEADING, "me-n_0000000005"),
        (BecomeLeader("me-n_0000000005"),),
    ),
    "when the watched one is gone the candidates are read": (
        me(FOLLOWING, OWN),
        PredecessorGone(),
        me(READING, OWN),
        (ReadCandidates(),),
    ),
    "a watch that fires late does not disturb a leader": (me(LEADING, OWN), PredecessorGone(), me(LEADING, OWN), ()),
    "after a pause a leader looks, and leads meanwhile": (
        me(LEADING, OWN),
        Resumed(),
        me(LEADING, OWN),
        (ReadCandidates(),),
    ),
    "after a pause a follower looks": (me(FOLLOWING, OWN), Resumed(), me(FOLLOWING, OWN), (ReadCandidates(),)),
    "a pause during the create waits for its outcome": (me(CREATING), Resumed(), me(CREATING), ()),
    "still the lowest, it leads on with a fresh plan": (
        me(LEADING, OWN),
        Candidates((OWN, C)),
        me(LEADING, OWN),
        (BecomeLeader(OWN),),
    ),
    "a leader without its znode resigns and makes a new one": (
        me(LEADING, OWN),
        Candidates((C,)),
        me(CREATING),
        (ResignLeader(), CreateCandidate()),
    ),
    "a follower without its znode makes a new one": (
        me(FOLLOWING, OWN),
        Candidates((A,)),
        me(CREATING),
        (CreateCandidate(),),
    ),
    "a leader that finds a lower one resigns and follows": (
        me(LEADING, OWN),
        Candidates((A, OWN)),
        after(me(FOLLOWING, OWN)),
        (ResignLeader(), WatchPredecessor(A)),
    ),
    "who leads after somebody else says so": (
        after(me(READING, OWN)),
        Candidates((C, OWN)),
        after(me(LEADING, OWN)),
        (BecomeLeader(OWN, succeeds=True),),
    ),
    "the session's end is the end": (me(FOLLOWING, OWN), SessionEnded(), me(OUT), ()),
    "a leader's end is a resignation": (me(LEADING, OWN), SessionEnded(), me(OUT), (ResignLeader(),)),
    "who is out reads nothing": (me(OUT), Candidates((OWN,)), me(OUT), ()),
    "a late list is ignored while a znode is being made": (me(CREATING), Candidates((OWN,)), me(CREATING), ()),
}


@pytest.mark.parametrize("case", CASES)
def test_recipe(case: str) -> None:
    """Each step of the recipe: where the candidate stands after one event, and what it asks for."""
    before, event, stands, effects = CASES[case]
    assert step(before, event) == (stands, effects)


def test_every_event_is_taken_in_every_standing() -> None:
    """Who begins to lead is told so, and who ceases to lead is told so, whatever happens."""
    events = (
        *(EnterElection(), PredecessorGone(), Resumed(), SessionEnded(), Created(None), Created(OWN)),
        *map(Candidates, ((), (OWN,), (A,), (A, OWN), (OWN, C), ("me-n_0000000001", OWN))),
    )
    for standing, name, event in product(ElectionPhase, (None, OWN), events):
        before = me(standing, name)
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
    """The number behind the last underscore, if it is one as ZooKeeper may append it: ten plain digits at most."""
    assert sequence(name) == number
