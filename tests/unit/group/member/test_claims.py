"""The claims of one member: each rule by its cases, and every event in every state of one partition."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from itertools import product

import pytest

from kiel_groups.group.member.claims import (
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
    """A state in which partition 1 is in the phase given as ``p1``, and so on."""
    standing = {TopicPartition("t", int(name[1:])): phase for name, phase in phases.items()}
    return Claims(want=want, phases=standing, leaving=leaving, topics=frozenset({"t"}))


OTHER = frozenset({TopicPartition("u", 1)})


def subscribed(topics: Iterable[str], state: Claims, **phases: Phase) -> Claims:
    """A state with another subscription, and with phases of the partition 1 of topic u."""
    others = {TopicPartition("u", int(name[1:])): phase for name, phase in phases.items()}
    return dataclasses.replace(state, topics=frozenset(topics), phases={**state.phases, **others})


def replaced(**phases: Phase) -> Claims:
    """A state whose slot is another member's now."""
    return dataclasses.replace(claims(some(1, 2), leaving=True, **phases), replaced=True)


CASES: dict[str, tuple[Claims, Event, Claims, tuple[Effect, ...]]] = {
    "what is wanted and free is claimed": (
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
    "a slot of another one is nothing to who holds nothing": (
        claims(some(1), p1=WAITING),
        Replaced(),
        claims(None, p1=WAITING),
        (),
    ),
    "who waited for the slot of another one claims nothing": (
        claims(None, p1=WAITING),
        OwnerGone(some(1)),
        claims(None),
        (),
    ),
    "who holds something and is replaced gives it back": (
        claims(some(1, 2), p1=OWNED, p2=WAITING),
        Replaced(),
        replaced(p1=DRAINING),
        (Drain(some(1)),),
    ),
    "who is about to hold something and is replaced keeps it from nobody": (
        claims(some(1, 2), p1=CLAIMING, p2=OPENING),
        Replaced(),
        replaced(p1=CLAIMING, p2=OPENING),
        (),
    ),
    "a claim of a member that was replaced goes straight to its release": (
        replaced(p1=OPENING),
        Opened(some(1)),
        replaced(p1=RELEASING),
        (Release(some(1)),),
    ),
    "who was replaced claims nothing more, whatever its slice says then": (
        replaced(),
        AssignmentRead(some(1, 2)),
        replaced(),
        (),
    ),
    "who leaves by itself was not replaced": (
        claims(some(1), leaving=True, p1=DRAINING),
        Replaced(),
        claims(None, leaving=True, p1=DRAINING),
        (),
    ),
    "what another one owns is awaited": (
        claims(some(1, 2), p1=CLAIMING, p2=CLAIMING),
        Contended(some(2)),
        claims(some(1, 2), p1=CLAIMING, p2=WAITING),
        (WatchOwner(some(2)),),
    ),
    "what became free is claimed again": (
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
    "what is opened is handed out": (
        claims(some(1), p1=OPENING),
        Opened(some(1)),
        claims(some(1), p1=OWNED),
        (Deliver(some(1)),),
    ),
    "what is not wanted any more is drained, the rest flows on": (
        claims(some(1, 2), p1=OWNED, p2=OWNED),
        AssignmentRead(some(2)),
        claims(some(2), p1=DRAINING, p2=OWNED),
        (Drain(some(1)),),
    ),
    "what is drained is released": (
        claims(some(), p1=DRAINING),
        Drained(some(1)),
        claims(some(), p1=RELEASING),
        (Release(some(1)),),
    ),
    "what is released is free": (claims(some(), p1=RELEASING), Released(some(1)), claims(some()), ()),
    "giving back comes before taking": (
        claims(some(1), p1=OWNED),
        AssignmentRead(some(2)),
        claims(some(2), p1=DRAINING, p2=CLAIMING),
        (Drain(some(1)), Claim(some(2))),
    ),
    "an unknown slice keeps what is held": (
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
    "what is held of a topic that was dropped stays until a slice revokes it": (
        claims(some(1), p1=OWNED),
        Subscribed(frozenset()),
        subscribed((), claims(some(1), p1=OWNED)),
        (),
    ),
    "a slice revokes what is held of a topic that was dropped": (
        subscribed((), claims(some(1), p1=OWNED)),
        AssignmentRead(some()),
        subscribed((), claims(some(), p1=DRAINING)),
        (Drain(some(1)),),
    ),
    "what is held of a topic that was dropped is not claimed again": (
        subscribed((), claims(some(1), p1=OWNED)),
        ClaimGone(some(1)),
        subscribed((), claims(some(1))),
        (Lose(some(1)),),
    ),
    "an owner of a topic that was dropped is not waited for": (
        claims(some(1, 2), p1=WAITING, p2=OWNED),
        Subscribed(frozenset()),
        subscribed((), claims(some(1, 2), p2=OWNED)),
        (),
    ),
    "an owner that is found after its topic was dropped is not waited for": (
        subscribed((), claims(some(1), p1=CLAIMING)),
        Contended(some(1)),
        subscribed((), claims(some(1))),
        (),
    ),
    "a claim that succeeds after its topic was dropped is kept": (
        subscribed((), claims(some(1), p1=CLAIMING)),
        Claimed(some(1)),
        subscribed((), claims(some(1), p1=OPENING)),
        (Open(some(1)),),
    ),
    "an unknown slice claims nothing new": (claims(None, p1=WAITING), OwnerGone(some(1)), claims(None), ()),
    "an unknown slice keeps a claim under way": (
        claims(None, p1=OPENING),
        Opened(some(1)),
        claims(None, p1=OWNED),
        (Deliver(some(1)),),
    ),
    "an empty slice revokes everything": (
        claims(some(1, 2, 3), p1=OWNED, p2=OWNED, p3=WAITING),
        AssignmentRead(some()),
        claims(some(), p1=DRAINING, p2=DRAINING),
        (Drain(some(1, 2)),),
    ),
    "a wait ends with the wish": (claims(some(1), p1=WAITING), AssignmentRead(some()), claims(some()), ()),
    "a contended claim that is not wanted any more is not awaited": (
        claims(some(), p1=CLAIMING),
        Contended(some(1)),
        claims(some()),
        (),
    ),
    "a claim not wanted any more is opened and goes straight to its release": (
        claims(some(), p1=OPENING),
        Opened(some(1)),
        claims(some(), p1=RELEASING),
        (Release(some(1)),),
    ),
    "a claim wanted again before it was opened is held": (
        claims(some(), p1=OPENING),
        AssignmentRead(some(1)),
        claims(some(1), p1=OPENING),
        (),
    ),
    "a release that is wanted again starts anew, at the claim": (
        claims(some(1), p1=RELEASING),
        Released(some(1)),
        claims(some(1), p1=CLAIMING),
        (Claim(some(1)),),
    ),
    "a drain that began runs to its end though wanted again": (
        claims(some(), p1=DRAINING),
        AssignmentRead(some(1)),
        claims(some(1), p1=DRAINING),
        (),
    ),
    "a claim deleted by hand is lost and claimed anew": (
        claims(some(1, 2), p1=OWNED, p2=OWNED),
        ClaimGone(some(1)),
        claims(some(1, 2), p1=CLAIMING, p2=OWNED),
        (Lose(some(1)), Claim(some(1))),
    ),
    "a claim that vanished before it was opened was never handed out": (
        claims(some(1), p1=OPENING),
        ClaimGone(some(1)),
        claims(some(1), p1=CLAIMING),
        (Claim(some(1)),),
    ),
    "a claim that vanished under a release is lost": (
        claims(some(), p1=RELEASING),
        ClaimGone(some(1)),
        claims(some()),
        (Lose(some(1)),),
    ),
    "who leaves drains what is held and waits no more": (
        claims(some(1, 2), p1=OWNED, p2=WAITING),
        Leave(),
        claims(some(1, 2), leaving=True, p1=DRAINING),
        (Drain(some(1)),),
    ),
    "who leaves releases what is being opened, though the slice still names it": (
        claims(some(1), leaving=True, p1=OPENING),
        Opened(some(1)),
        claims(some(1), leaving=True, p1=RELEASING),
        (Release(some(1)),),
    ),
    "who leaves claims nothing new": (
        claims(some(1), leaving=True),
        AssignmentRead(some(1, 2)),
        claims(some(1, 2), leaving=True),
        (),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_rule(case: str) -> None:
    """Each rule of the machine: the state after one event, and the effects in their order."""
    before, event, after, effects = CASES[case]
    assert step(before, event) == (after, effects)


def test_the_end_of_the_session_loses_whatever_was_handed_out() -> None:
    """What may have been handed out is lost, what was not opened is merely forgotten."""
    standing = dict(zip(some(1, 2, 3, 4, 5, 6), Phase, strict=True))
    after, effects = step(Claims(want=some(1), phases=standing), SessionEnded())
    lost = frozenset(partition for partition, phase in standing.items() if phase in AFTER_OPENING)
    assert effects == (Lose(lost),)
    assert after.ended
    assert not after.phases
    assert step(claims(some(1), p1=OPENING), SessionEnded())[1] == ()


def one_partition() -> Iterator[Claims]:
    wishes: tuple[frozenset[TopicPartition] | None, ...] = (None, some(), some(1))
    for phase, want, leaving, ended in product((None, *Phase), wishes, (False, True), (False, True)):
        yield Claims(want, {} if phase is None else {TopicPartition("t", 1): phase}, leaving, ended)


def every_event() -> Iterator[Event]:
    yield from (kind(partitions) for kind in ABOUT_PARTITIONS for partitions in (some(), some(1), some(7)))
    yield from (AssignmentRead(None), AssignmentRead(some()), AssignmentRead(some(1)), Leave(), SessionEnded())


@pytest.mark.parametrize("event", list(every_event()), ids=repr)
def test_every_event_is_taken_in_every_state(event: Event) -> None:
    """No state refuses an event; an effect goes out exactly where a phase is entered or lost."""
    partition = TopicPartition("t", 1)
    for before in one_partition():
        after, effects = step(before, event)
        if before.ended:
            assert (after, effects) == (before, ())
            continue
        was, now = before.phases.get(partition), after.phases.get(partition)
        told = [type(effect) for effect in effects if effect.partitions & {partition}]
        lost = was in AFTER_OPENING and (isinstance(event, SessionEnded) or event == ClaimGone(some(1)))
        entered = [ON_ENTRY[now]] if now is not None and now is not was else []
        assert told == [Lose] * lost + entered
        assert all(effect.partitions for effect in effects), "an effect about nothing"
        assert not (after.leaving and now in {WAITING, OWNED})
        assert not (after.want == some() and now in {WAITING, OWNED})


@pytest.mark.parametrize("answer", ABOUT_PARTITIONS)
def test_answers_about_partitions_that_moved_on_are_ignored(answer: type) -> None:
    """An answer counts only in the phase that asked for it."""
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
    "nothing known": (claims(None), False),
    "nothing wanted": (claims(some()), True),
    "all held": (claims(some(1), p1=OWNED), True),
    "one missing": (claims(some(1, 2), p1=OWNED), False),
    "one still opening": (claims(some(1, 2), p1=OWNED, p2=OPENING), False),
    "one still draining": (claims(some(1), p1=OWNED, p2=DRAINING), False),
    "leaving, one held": (claims(some(1), leaving=True, p1=OWNED), False),
    "left": (claims(some(1), leaving=True), True),
    "unknown, one held": (claims(None, p1=OWNED), False),
    "ended": (Claims(want=some(1), ended=True), True),
}


@pytest.mark.parametrize("case", SETTLED)
def test_settled(case: str) -> None:
    """Settled means: held is just what is wanted; of a member that leaves, nothing."""
    state, settled = SETTLED[case]
    assert state.settled is settled
