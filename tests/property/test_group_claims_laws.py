"""Claims of several members over one table of owners: any order, any outcome, any slices."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiel_groups.group.member import claims as c
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.property

ALL = [TopicPartition(topic, number) for topic in ("t", "u") for number in range(2)]
TOPICS = frozenset({"t", "u"})
MEMBERS = 3

assignments = st.none() | st.frozensets(st.sampled_from(ALL))
subscriptions = st.frozensets(st.sampled_from(sorted(TOPICS)))
subsets = st.frozensets(st.sampled_from(ALL))
kinds = st.sampled_from([c.OwnerGone, c.Claimed, c.Contended, c.Opened, c.Drained, c.Released, c.ClaimGone])
events = (
    st.builds(c.AssignmentRead, assignments)
    | st.builds(c.Subscribed, subscriptions)
    | st.builds(lambda kind, partitions: kind(partitions), kinds, subsets)
    | st.sampled_from([c.Leave(), c.SessionEnded()])
)
states = st.builds(
    c.Claims,
    want=assignments,
    phases=st.dictionaries(st.sampled_from(ALL), st.sampled_from(list(c.Phase))),
    leaving=st.booleans(),
    topics=subscriptions,
)


def only(state: c.Claims, partition: TopicPartition) -> c.Claims:
    """What a state says of one partition."""
    want = None if state.want is None else state.want & {partition}
    phases = {partition: state.phases[partition]} if partition in state.phases else {}
    return c.Claims(want, phases, state.leaving, state.ended, topics=state.topics)


@given(states, events)
def test_no_partition_concerns_another(state: c.Claims, event: c.Event) -> None:
    """One step over many partitions is the same as a step over each of them alone."""
    after, effects = c.step(state, event)
    for partition in ALL:
        mine = event
        if isinstance(event, c.AssignmentRead) and event.partitions is not None:
            mine = c.AssignmentRead(event.partitions & {partition})
        alone, told = c.step(only(state, partition), mine)
        assert only(after, partition) == alone
        assert [type(effect) for effect in effects if partition in effect.partitions] == [type(e) for e in told]


@given(states, st.lists(events | st.just(c.Replaced()), max_size=30))
def test_any_sequence_of_events_is_taken(state: c.Claims, happened: list[c.Event]) -> None:
    """No sequence, however absurd, meets an assertion."""
    for event in happened:
        state, _ = c.step(state, event)


@dataclass
class Member:
    """One member on one session: what it was told to do, and what its application has in hands."""

    session: int
    claims: c.Claims = field(default_factory=c.Claims)
    #: Asked, not yet done; done, not yet told.
    asked: list[c.Effect] = field(default_factory=list)
    answers: list[c.Event] = field(default_factory=list)
    #: Opened, and handed out: from Start to the end of the drain.
    opened: set[TopicPartition] = field(default_factory=set)
    active: set[TopicPartition] = field(default_factory=set)
    drained: set[TopicPartition] = field(default_factory=set)

    def feed(self, event: c.Event) -> None:
        self.claims, effects = c.step(self.claims, event)
        for effect in effects:
            self.take(effect)

    def take(self, effect: c.Effect) -> None:
        """Check the order that the rules promise, and note what is to be done."""
        partitions = effect.partitions
        if isinstance(effect, c.Deliver):
            assert partitions <= self.opened, "started without being opened"
            assert not partitions & self.active
            self.active |= partitions
            return
        if isinstance(effect, c.Drain):
            assert partitions <= self.active, "drained though nothing was handed out"
        if isinstance(effect, c.Release):
            assert not partitions & self.active, "released under running work"
            assert partitions <= self.opened
        if isinstance(effect, c.Claim):
            assert not partitions & (self.opened | self.active), "claimed although it has a claim"
            assert {partition.topic for partition in partitions} <= self.claims.topics, "of a topic not subscribed to"
        if isinstance(effect, c.Lose):
            self.forget(partitions)
            return
        self.asked += [type(effect)(frozenset({partition})) for partition in sorted(partitions)]

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """A loss: nothing of these goes on, and what was asked about them before means nothing any more."""
        for partition in partitions:
            self.active.discard(partition)
            self.opened.discard(partition)
        self.asked = [ask for ask in self.asked if not ask.partitions & frozenset(partitions)]
        self.answers = [
            answer
            for answer in self.answers
            if not getattr(answer, "partitions", None) or not answer.partitions & frozenset(partitions)  # type: ignore[union-attr]
        ]


class World:
    """Members over one table of owners; every choice is made from outside."""

    def __init__(self) -> None:
        self.owners: dict[TopicPartition, int] = {}
        self.sessions = 0
        self.members = [self.fresh() for _ in range(MEMBERS)]

    def fresh(self) -> Member:
        self.sessions += 1
        member = Member(self.sessions)
        member.feed(c.Subscribed(TOPICS))
        return member

    def perform(self, member: Member, ask: c.Effect) -> None:
        """One request reaches ZooKeeper, or the application; the answer is on its way."""
        member.asked.remove(ask)
        (partition,) = ask.partitions
        mine = self.owners.get(partition) == member.session
        if isinstance(ask, c.Claim):
            if self.owners.setdefault(partition, member.session) == member.session:
                member.answers.append(c.Claimed(ask.partitions))
            else:
                member.answers.append(c.Contended(ask.partitions))
        elif isinstance(ask, c.WatchOwner):
            member.answers.append(c.Claimed(ask.partitions) if mine else c.OwnerGone(ask.partitions))
        elif isinstance(ask, c.Open):
            if mine:
                member.opened.add(partition)
            member.answers.append(c.Opened(ask.partitions) if mine else c.ClaimGone(ask.partitions))
        elif isinstance(ask, c.Drain):
            member.active.discard(partition)
            member.answers.append(c.Drained(ask.partitions))
        elif isinstance(ask, c.Release):
            member.opened.discard(partition)
            if mine:
                del self.owners[partition]
            member.answers.append(c.Released(ask.partitions) if mine else c.ClaimGone(ask.partitions))

    def able(self, member: Member, ask: c.Effect) -> bool:
        """A watch answers only when the owner is gone, or turns out to be this member."""
        (partition,) = ask.partitions
        return not isinstance(ask, c.WatchOwner) or self.owners.get(partition) in (None, member.session)

    def work(self) -> list[Callable[[], None]]:
        """Everything that may come next by itself."""
        todo: list[Callable[[], None]] = []
        for member in self.members:
            todo += [partial(self.perform, member, ask) for ask in member.asked if self.able(member, ask)]
            todo += [partial(self.deliver, member, answer) for answer in member.answers]
        return todo

    def deliver(self, member: Member, answer: c.Event) -> None:
        member.answers.remove(answer)
        member.feed(answer)

    def expire(self, index: int) -> None:
        """The gate is shut first, then the session ends; another member takes the place."""
        member = self.members[index]
        member.feed(c.SessionEnded())
        assert not member.active, "something is handed out after the end of the session"
        self.owners = {partition: owner for partition, owner in self.owners.items() if owner != member.session}
        self.members[index] = self.fresh()

    def delete_owner(self, partition: TopicPartition) -> None:
        """By hand, with zkCli."""
        self.owners.pop(partition, None)

    def audit(self) -> None:
        """The periodic look of each member at the owner znodes it relies on."""
        for member in self.members:
            held = member.claims.in_phase(c.Phase.OWNED)
            gone = frozenset(partition for partition in held if self.owners.get(partition) != member.session)
            if gone:
                member.feed(c.ClaimGone(gone))

    def assert_exclusive(self) -> None:
        """What somebody hands out has that one as its owner, and so nobody else hands it out."""
        for member in self.members:
            for partition in member.active:
                assert self.owners.get(partition) == member.session

    def settle(self, shares: list[frozenset[TopicPartition]]) -> None:
        """Disjoint slices, everything answered: what is wanted is held, and nothing else."""
        for member, share in zip(self.members, shares, strict=True):
            member.feed(c.Subscribed(TOPICS))
            member.feed(c.AssignmentRead(share))
        for _ in range(1_000):
            todo = self.work()
            if not todo:
                self.audit()
                todo = self.work()
            if not todo:
                break
            todo[0]()
        for member, share in zip(self.members, shares, strict=True):
            assert member.claims.settled
            assert member.active == (frozenset() if member.claims.leaving else share)
            assert {p for p, owner in self.owners.items() if owner == member.session} == member.active


choices = st.lists(st.integers(0, 999), max_size=120)
shares = st.lists(st.integers(0, MEMBERS), min_size=len(ALL), max_size=len(ALL)).map(
    lambda dealt: [frozenset(p for p, to in zip(ALL, dealt, strict=True) if to == index) for index in range(MEMBERS)]
)
orders = st.lists(
    st.tuples(
        st.integers(0, MEMBERS - 1),
        assignments | st.builds(c.Subscribed, subscriptions) | st.sampled_from(["leave", "expire", "replaced"]),
    ),
    max_size=14,
)


def disturb(world: World, index: int, order: object) -> None:
    """A new slice, one for another instance, another subscription, a leave, or the end of a session."""
    if order == "expire":
        world.expire(index)
    elif order == "leave":
        world.members[index].feed(c.Leave())
    elif order == "replaced":
        world.members[index].feed(c.Replaced())
    elif isinstance(order, c.Subscribed):
        world.members[index].feed(order)
    else:
        world.members[index].feed(c.AssignmentRead(order))  # type: ignore[arg-type]


@given(states)
def test_a_subscription_takes_no_claim_away(state: c.Claims) -> None:
    """Without any topic, all claims are as they would be with all of them; nothing is waited for or claimed."""
    without, effects = c.step(state, c.Subscribed(frozenset()))
    with_all, _ = c.step(state, c.Subscribed(TOPICS))
    free = (None, c.Phase.WAITING)
    for partition in ALL:
        expected = None if state.phases.get(partition) in free else with_all.phases.get(partition)
        assert without.phases.get(partition) is expected
    assert not any(isinstance(effect, (c.Claim, c.WatchOwner)) for effect in effects)


@settings(max_examples=150)
@given(orders, choices, shares)
def test_one_owner_at_most_and_settled_in_the_end(
    disturbances: list[tuple[int, object]], order: list[int], final: list[frozenset[TopicPartition]]
) -> None:
    """Overlapping and unknown slices, leaves, expiries, answers in any order: never two hands on one partition."""
    world = World()
    for choice in order:
        todo = world.work()
        if disturbances and (not todo or choice % 5 == 0):
            disturb(world, *disturbances.pop(0))
        elif todo:
            todo[choice % len(todo)]()
        world.assert_exclusive()
    world.settle(final)
    world.assert_exclusive()


@settings(max_examples=100)
@given(orders, choices, shares, st.lists(st.sampled_from(ALL), max_size=4))
def test_owners_deleted_by_hand_are_claimed_anew(
    disturbances: list[tuple[int, object]],
    order: list[int],
    final: list[frozenset[TopicPartition]],
    deleted: list[TopicPartition],
) -> None:
    """Outside the guarantee of one owner, but the order of the phases holds and the group settles again."""
    world = World()
    for choice in order:
        todo = world.work()
        if disturbances and (not todo or choice % 5 == 0):
            disturb(world, *disturbances.pop(0))
        elif deleted and choice % 7 == 0:
            world.delete_owner(deleted.pop())
        elif choice % 11 == 0:
            world.audit()
        elif todo:
            todo[choice % len(todo)]()
    world.settle(final)
