"""The claims of one member: cases of each rule, and every event in every phase of one partition."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from itertools import product

import pytest

from kiel_groups.group import claims as claims_module
from kiel_groups.group.claims import (
    AssignmentRead,
    Claim,
    Claimed,
    ClaimGone,
    Claims,
    Contended,
    Deliver,
    Drain,
    Drained,
    Effect,
    Event,
    Leave,
    Lose,
    Open,
    Opened,
    OwnerGone,
    Phase,
    Release,
    Released,
    Replaced,
    SessionEnded,
    Subscribed,
    WatchOwner,
    step,
)
from kiel_groups.model import TopicPartition
from tests.helpers.recorded_moves import assert_moves_of_table, record_moves

pytestmark = pytest.mark.unit

WAITING, CLAIMING, OPENING, OWNED, DRAINING, RELEASING = Phase
OWNING = {OPENING, OWNED, DRAINING, RELEASING}
AFTER_OPENING = {OWNED, DRAINING, RELEASING}

ABOUT_PARTITIONS = (OwnerGone, Claimed, Contended, Opened, Drained, Released, ClaimGone)
ON_ENTRY = {
    CLAIMING: Claim,
    WAITING: WatchOwner,
    OPENING: Open,
    OWNED: Deliver,
    DRAINING: Drain,
    RELEASING: Release,
}


def some(*numbers: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition("t", number) for number in numbers)


def claims(want: frozenset[TopicPartition] | None, *, leaving: bool = False, **phases: Phase) -> Claims:
    """Return a state with the given phase of each partition; ``p1`` is partition 1."""
    phases_by_partition = {TopicPartition("t", int(name[1:])): phase for name, phase in phases.items()}
    return Claims(want=want, phases=phases_by_partition, leaving=leaving, topics=frozenset({"t"}))


OTHER = frozenset({TopicPartition("u", 1)})


def subscribed(topics: Iterable[str], state: Claims, **phases: Phase) -> Claims:
    """Return a state with another subscription; ``u1`` is the phase of partition 1 of topic u."""
    others = {TopicPartition("u", int(name[1:])): phase for name, phase in phases.items()}
    return dataclasses.replace(state, topics=frozenset(topics), phases={**state.phases, **others})


def replaced(**phases: Phase) -> Claims:
    """Return a state of a member that another member has replaced in its slot."""
    return dataclasses.replace(claims(some(1, 2), leaving=True, **phases), replaced=True)


CASES: dict[str, tuple[Claims, Event, Claims, tuple[Effect, ...]]] = {
    "an assigned partition without an owner is claimed": (
        claims(None),
        AssignmentRead(some(1, 2)),
        claims(some(1, 2), p1=CLAIMING, p2=CLAIMING),
        (Claim(some(1, 2)),),
    ),
    "a claim that succeeded is opened": (
        claims(some(1), p1=CLAIMING),
        Claimed(some(1)),
        claims(some(1), p1=OPENING),
        (Open(some(1)),),
    ),
    "a replaced member without claims drops its assignment": (
        claims(some(1), p1=WAITING),
        Replaced(),
        claims(None, p1=WAITING),
        (),
    ),
    "a replaced member that waited for an owner claims nothing": (
        claims(None, p1=WAITING),
        OwnerGone(some(1)),
        claims(None),
        (),
    ),
    "a replaced member revokes its partitions": (
        claims(some(1, 2), p1=OWNED, p2=WAITING),
        Replaced(),
        replaced(p1=DRAINING),
        (Drain(some(1)),),
    ),
    "a replaced member finishes claims in progress": (
        claims(some(1, 2), p1=CLAIMING, p2=OPENING),
        Replaced(),
        replaced(p1=CLAIMING, p2=OPENING),
        (),
    ),
    "a claim of a replaced member is released without delivery": (
        replaced(p1=OPENING),
        Opened(some(1)),
        replaced(p1=RELEASING),
        (Release(some(1)),),
    ),
    "a replaced member ignores later assignments": (
        replaced(),
        AssignmentRead(some(1, 2)),
        replaced(),
        (),
    ),
    "a member that leaves is not replaced": (
        claims(some(1), leaving=True, p1=DRAINING),
        Replaced(),
        claims(None, leaving=True, p1=DRAINING),
        (),
    ),
    "a partition that another member owns is watched": (
        claims(some(1, 2), p1=CLAIMING, p2=CLAIMING),
        Contended(some(2)),
        claims(some(1, 2), p1=CLAIMING, p2=WAITING),
        (WatchOwner(some(2)),),
    ),
    "a released partition is claimed again": (
        claims(some(1), p1=WAITING),
        OwnerGone(some(1)),
        claims(some(1), p1=CLAIMING),
        (Claim(some(1)),),
    ),
    "an own owner znode found while waiting is a claim": (
        claims(some(1), p1=WAITING),
        Claimed(some(1)),
        claims(some(1), p1=OPENING),
        (Open(some(1)),),
    ),
    "an opened partition is delivered": (
        claims(some(1), p1=OPENING),
        Opened(some(1)),
        claims(some(1), p1=OWNED),
        (Deliver(some(1)),),
    ),
    "a revoked partition is drained, the others are delivered on": (
        claims(some(1, 2), p1=OWNED, p2=OWNED),
        AssignmentRead(some(2)),
        claims(some(2), p1=DRAINING, p2=OWNED),
        (Drain(some(1)),),
    ),
    "a drained partition is released": (
        claims(some(), p1=DRAINING),
        Drained(some(1)),
        claims(some(), p1=RELEASING),
        (Release(some(1)),),
    ),
    "a released partition has no phase": (claims(some(), p1=RELEASING), Released(some(1)), claims(some()), ()),
    "a drain comes before a claim": (
        claims(some(1), p1=OWNED),
        AssignmentRead(some(2)),
        claims(some(2), p1=DRAINING, p2=CLAIMING),
        (Drain(some(1)), Claim(some(2))),
    ),
    "an unknown assignment revokes nothing": (
        claims(some(1), p1=OWNED),
        AssignmentRead(None),
        claims(None, p1=OWNED),
        (),
    ),
    "a topic that is not subscribed to is not claimed": (
        claims(None),
        AssignmentRead(some(1) | OTHER),
        claims(some(1) | OTHER, p1=CLAIMING),
        (Claim(some(1)),),
    ),
    "a topic that is subscribed to later is claimed": (
        claims(OTHER),
        Subscribed(frozenset({"t", "u"})),
        subscribed({"t", "u"}, claims(OTHER), u1=CLAIMING),
        (Claim(OTHER),),
    ),
    "a claim of an unsubscribed topic stays until an assignment revokes it": (
        claims(some(1), p1=OWNED),
        Subscribed(frozenset()),
        subscribed((), claims(some(1), p1=OWNED)),
        (),
    ),
    "an assignment revokes a claim of an unsubscribed topic": (
        subscribed((), claims(some(1), p1=OWNED)),
        AssignmentRead(some()),
        subscribed((), claims(some(), p1=DRAINING)),
        (Drain(some(1)),),
    ),
    "a lost claim of an unsubscribed topic is not claimed again": (
        subscribed((), claims(some(1), p1=OWNED)),
        ClaimGone(some(1)),
        subscribed((), claims(some(1))),
        (Lose(some(1)),),
    ),
    "an owner in an unsubscribed topic is not watched": (
        claims(some(1, 2), p1=WAITING, p2=OWNED),
        Subscribed(frozenset()),
        subscribed((), claims(some(1, 2), p2=OWNED)),
        (),
    ),
    "an owner that is found after the unsubscription is not watched": (
        subscribed((), claims(some(1), p1=CLAIMING)),
        Contended(some(1)),
        subscribed((), claims(some(1))),
        (),
    ),
    "a claim that succeeds after the unsubscription is kept": (
        subscribed((), claims(some(1), p1=CLAIMING)),
        Claimed(some(1)),
        subscribed((), claims(some(1), p1=OPENING)),
        (Open(some(1)),),
    ),
    "an unknown assignment claims nothing": (claims(None, p1=WAITING), OwnerGone(some(1)), claims(None), ()),
    "an unknown assignment keeps a claim in progress": (
        claims(None, p1=OPENING),
        Opened(some(1)),
        claims(None, p1=OWNED),
        (Deliver(some(1)),),
    ),
    "an empty assignment revokes everything": (
        claims(some(1, 2, 3), p1=OWNED, p2=OWNED, p3=WAITING),
        AssignmentRead(some()),
        claims(some(), p1=DRAINING, p2=DRAINING),
        (Drain(some(1, 2)),),
    ),
    "a wait ends if the partition is assigned no more": (
        claims(some(1), p1=WAITING),
        AssignmentRead(some()),
        claims(some()),
        (),
    ),
    "a contended claim that is assigned no more is not watched": (
        claims(some(), p1=CLAIMING),
        Contended(some(1)),
        claims(some()),
        (),
    ),
    "a claim that is assigned no more is released after its opening": (
        claims(some(), p1=OPENING),
        Opened(some(1)),
        claims(some(), p1=RELEASING),
        (Release(some(1)),),
    ),
    "a claim that is assigned again before its opening is kept": (
        claims(some(), p1=OPENING),
        AssignmentRead(some(1)),
        claims(some(1), p1=OPENING),
        (),
    ),
    "a released partition that is assigned again is claimed again": (
        claims(some(1), p1=RELEASING),
        Released(some(1)),
        claims(some(1), p1=CLAIMING),
        (Claim(some(1)),),
    ),
    "a drain continues if the partition is assigned again": (
        claims(some(), p1=DRAINING),
        AssignmentRead(some(1)),
        claims(some(1), p1=DRAINING),
        (),
    ),
    "a claim that an operator deletes is lost and claimed again": (
        claims(some(1, 2), p1=OWNED, p2=OWNED),
        ClaimGone(some(1)),
        claims(some(1, 2), p1=CLAIMING, p2=OWNED),
        (Lose(some(1)), Claim(some(1))),
    ),
    "a claim that was deleted before its opening is not lost": (
        claims(some(1), p1=OPENING),
        ClaimGone(some(1)),
        claims(some(1), p1=CLAIMING),
        (Claim(some(1)),),
    ),
    "a claim that was deleted during its release is lost": (
        claims(some(), p1=RELEASING),
        ClaimGone(some(1)),
        claims(some()),
        (Lose(some(1)),),
    ),
    "a leaving member drains its partitions and ends its waits": (
        claims(some(1, 2), p1=OWNED, p2=WAITING),
        Leave(),
        claims(some(1, 2), leaving=True, p1=DRAINING),
        (Drain(some(1)),),
    ),
    "a leaving member releases a claim after its opening": (
        claims(some(1), leaving=True, p1=OPENING),
        Opened(some(1)),
        claims(some(1), leaving=True, p1=RELEASING),
        (Release(some(1)),),
    ),
    "a leaving member claims nothing": (
        claims(some(1), leaving=True),
        AssignmentRead(some(1, 2)),
        claims(some(1, 2), leaving=True),
        (),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_rule(case: str) -> None:
    """Each case is one step of a member's claims: an event, the state after it, and the effects in order."""
    before, event, after, effects = CASES[case]
    assert step(before, event) == (after, effects)


def test_the_end_of_the_session_loses_each_partition_that_was_opened() -> None:
    """
    The end of the session loses each partition that was opened, because its records may have been delivered. Claims
    that were not opened are dropped without an effect.
    """
    phases_by_partition = dict(zip(some(1, 2, 3, 4, 5, 6), Phase, strict=True))
    after, effects = step(Claims(want=some(1), phases=phases_by_partition), SessionEnded())
    lost = frozenset(partition for partition, phase in phases_by_partition.items() if phase in AFTER_OPENING)
    assert effects == (Lose(lost),)
    assert after.ended
    assert not after.phases
    assert step(claims(some(1), p1=OPENING), SessionEnded())[1] == ()


def one_partition() -> Iterator[Claims]:
    assignments: tuple[frozenset[TopicPartition] | None, ...] = (None, some(), some(1))
    for phase, want, leaving, ended in product((None, *Phase), assignments, (False, True), (False, True)):
        yield Claims(want, {} if phase is None else {TopicPartition("t", 1): phase}, leaving, ended)


def every_event() -> Iterator[Event]:
    yield from (kind(partitions) for kind in ABOUT_PARTITIONS for partitions in (some(), some(1), some(7)))
    yield from (AssignmentRead(None), AssignmentRead(some()), AssignmentRead(some(1)), Leave(), SessionEnded())


@pytest.mark.parametrize("event", list(every_event()), ids=repr)
def test_each_phase_has_its_effect_on_entry(event: Event) -> None:
    """
    In each state and for each event, a partition that enters a phase has exactly the effect of this phase, and a lost
    partition has ``Lose``.
    """
    partition = TopicPartition("t", 1)
    for before in one_partition():
        after, effects = step(before, event)
        if before.ended:
            assert (after, effects) == (before, ())
            continue
        was, now = before.phases.get(partition), after.phases.get(partition)
        found = [type(effect) for effect in effects if effect.partitions & {partition}]
        lost = was in AFTER_OPENING and (isinstance(event, SessionEnded) or event == ClaimGone(some(1)))
        entered = [ON_ENTRY[now]] if now is not None and now is not was else []
        assert found == [Lose] * lost + entered
        assert all(effect.partitions for effect in effects), "an effect without partitions"
        assert not (after.leaving and now in {WAITING, OWNED})
        assert not (after.want == some() and now in {WAITING, OWNED})


def every_step() -> Iterator[tuple[Claims, Event]]:
    """Yield every event in every state of one partition, with and without a subscription to its topic."""
    events = (*every_event(), Subscribed(frozenset()))
    for before, topics, event in product(one_partition(), (frozenset({"t"}), frozenset[str]()), events):
        yield dataclasses.replace(before, topics=topics), event


def test_a_partition_makes_every_legal_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """The moves of all events in all states are those of the table: none is missing there, and none is superfluous."""

    def play() -> None:
        for before, event in every_step():
            step(before, event)

    assert_moves_of_table(monkeypatch, claims_module, play)


def test_a_partition_makes_no_illegal_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """A move that the table lacks raises an error, whatever the move."""
    recorded = record_moves(monkeypatch, claims_module)
    for before, event in every_step():
        recorded.seen, recorded.forbidden = set(), None
        step(before, event)
        for move in list(recorded.seen):
            recorded.forbidden = move
            with pytest.raises(AssertionError, match="Phase"):
                step(before, event)


@pytest.mark.parametrize("answer", ABOUT_PARTITIONS)
def test_a_late_answer_is_ignored(answer: type) -> None:
    """An answer is ignored in every phase but the one that requested it."""
    asked = {
        OwnerGone: {WAITING},
        Claimed: {CLAIMING, WAITING},
        Contended: {CLAIMING},
        Opened: {OPENING},
        Drained: {DRAINING},
        Released: {RELEASING},
        ClaimGone: OWNING,
    }
    for phase in set(Phase) - asked[answer]:
        before = claims(some(1), p1=phase)
        assert step(before, answer(some(1))) == (before, ())


SETTLED = {
    "unknown assignment": (claims(None), False),
    "empty assignment": (claims(some()), True),
    "all owned": (claims(some(1), p1=OWNED), True),
    "one missing": (claims(some(1, 2), p1=OWNED), False),
    "one still opening": (claims(some(1, 2), p1=OWNED, p2=OPENING), False),
    "one still draining": (claims(some(1), p1=OWNED, p2=DRAINING), False),
    "leaving, one owned": (claims(some(1), leaving=True, p1=OWNED), False),
    "left": (claims(some(1), leaving=True), True),
    "unknown assignment, one owned": (claims(None, p1=OWNED), False),
    "ended": (Claims(want=some(1), ended=True), True),
}


@pytest.mark.parametrize("case", SETTLED)
def test_settled(case: str) -> None:
    """A member is settled when it owns exactly its assignment. A leaving member is settled when it owns nothing."""
    state, settled = SETTLED[case]
    assert state.settled is settled
