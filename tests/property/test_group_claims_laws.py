"""The claims of several members on the same partitions, with any order of events, any outcomes and any assignments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiel_groups.group import claims as c
from kiel_groups.model import TopicPartition
from tests.helpers.examples import examples

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
    """Return the part of a state that concerns one partition."""
    want = None if state.want is None else state.want & {partition}
    phases = {partition: state.phases[partition]} if partition in state.phases else {}
    return c.Claims(want, phases, state.leaving, state.ended, topics=state.topics)


@given(states, events)
def test_partitions_are_independent(state: c.Claims, event: c.Event) -> None:
    """One step for several partitions equals the steps for each of these partitions alone."""
    after, effects = c.step(state, event)
    for partition in ALL:
        mine = event
        if isinstance(event, c.AssignmentRead) and event.partitions is not None:
            mine = c.AssignmentRead(event.partitions & {partition})
        alone, expected = c.step(only(state, partition), mine)
        assert only(after, partition) == alone
        assert [type(effect) for effect in effects if partition in effect.partitions] == [type(e) for e in expected]


@given(states, st.lists(events | st.just(c.Replaced()), max_size=30))
def test_any_sequence_of_events_is_accepted(state: c.Claims, drawn: list[c.Event]) -> None:
    """No sequence of events fails an assertion of the claims, not even an impossible one."""
    for event in drawn:
        state, _ = c.step(state, event)


@dataclass
class Member:
    """A member with one session: its requests, their answers, and the partitions that it delivers."""

    session: int
    claims: c.Claims = field(default_factory=c.Claims)
    #: Requests that are not processed yet, and answers that the member has not received yet.
    requests: list[c.Effect] = field(default_factory=list)
    answers: list[c.Event] = field(default_factory=list)
    #: Opened partitions, and the opened partitions that are delivered: from ``Deliver`` to the end of the drain.
    opened: set[TopicPartition] = field(default_factory=set)
    active: set[TopicPartition] = field(default_factory=set)

    def feed(self, event: c.Event) -> None:
        self.claims, effects = c.step(self.claims, event)
        for effect in effects:
            self.take(effect)

    def take(self, effect: c.Effect) -> None:
        """Check the order that the rules promise, and queue the effect as a request."""
        partitions = effect.partitions
        if isinstance(effect, c.Deliver):
            assert partitions <= self.opened, "started without being opened"
            assert not partitions & self.active
            self.active |= partitions
            return
        if isinstance(effect, c.Drain):
            assert partitions <= self.active, "drained though nothing was delivered"
        if isinstance(effect, c.Release):
            assert not partitions & self.active, "released under running work"
            assert partitions <= self.opened
        if isinstance(effect, c.Claim):
            assert not partitions & (self.opened | self.active), "claimed although it has a claim"
            assert {partition.topic for partition in partitions} <= self.claims.topics, "of a topic not subscribed to"
        if isinstance(effect, c.Lose):
            self.forget(partitions)
            return
        self.requests += [type(effect)(frozenset({partition})) for partition in sorted(partitions)]

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Lose partitions: stop their delivery, and drop their requests and answers."""
        for partition in partitions:
            self.active.discard(partition)
            self.opened.discard(partition)
        self.requests = [request for request in self.requests if not request.partitions & frozenset(partitions)]
        self.answers = [
            answer
            for answer in self.answers
            if not getattr(answer, "partitions", None) or not answer.partitions & frozenset(partitions)  # type: ignore[union-attr]
        ]


class Members:
    """Members that claim the same partitions. The test chooses every step."""

    def __init__(self) -> None:
        self.owners: dict[TopicPartition, int] = {}
        self.sessions = 0
        self.members = [self._new_member() for _ in range(MEMBERS)]

    def _new_member(self) -> Member:
        self.sessions += 1
        member = Member(self.sessions)
        member.feed(c.Subscribed(TOPICS))
        return member

    def perform(self, member: Member, request: c.Effect) -> None:
        """Process one request as ZooKeeper or the application, and queue the answer."""
        member.requests.remove(request)
        (partition,) = request.partitions
        mine = self.owners.get(partition) == member.session
        if isinstance(request, c.Claim):
            if self.owners.setdefault(partition, member.session) == member.session:
                member.answers.append(c.Claimed(request.partitions))
            else:
                member.answers.append(c.Contended(request.partitions))
        elif isinstance(request, c.WatchOwner):
            member.answers.append(c.Claimed(request.partitions) if mine else c.OwnerGone(request.partitions))
        elif isinstance(request, c.Open):
            if mine:
                member.opened.add(partition)
            member.answers.append(c.Opened(request.partitions) if mine else c.ClaimGone(request.partitions))
        elif isinstance(request, c.Drain):
            member.active.discard(partition)
            member.answers.append(c.Drained(request.partitions))
        elif isinstance(request, c.Release):
            member.opened.discard(partition)
            if mine:
                del self.owners[partition]
            member.answers.append(c.Released(request.partitions) if mine else c.ClaimGone(request.partitions))

    def is_answerable(self, member: Member, request: c.Effect) -> bool:
        """Return whether a request can be answered: a watch only if the owner znode is gone or is this member's."""
        (partition,) = request.partitions
        return not isinstance(request, c.WatchOwner) or self.owners.get(partition) in (None, member.session)

    def next_steps(self) -> list[Callable[[], None]]:
        """Return every step that may happen next without an outside event."""
        possible: list[Callable[[], None]] = []
        for member in self.members:
            possible += [
                partial(self.perform, member, request)
                for request in member.requests
                if self.is_answerable(member, request)
            ]
            possible += [partial(self.answer, member, event) for event in member.answers]
        return possible

    def answer(self, member: Member, event: c.Event) -> None:
        """Pass a queued answer to the member."""
        member.answers.remove(event)
        member.feed(event)

    def expire(self, index: int) -> None:
        """End a session whose gate was shut, and replace its member by a new one."""
        member = self.members[index]
        member.feed(c.SessionEnded())
        assert not member.active, "something is delivered after the end of the session"
        self.owners = {partition: owner for partition, owner in self.owners.items() if owner != member.session}
        self.members[index] = self._new_member()

    def delete_owner(self, partition: TopicPartition) -> None:
        """Delete an owner znode, as an operator does with zkCli."""
        self.owners.pop(partition, None)

    def audit(self) -> None:
        """Have each member verify the owner znodes of its claims."""
        for member in self.members:
            owned = member.claims.in_phase(c.Phase.OWNED)
            gone = frozenset(partition for partition in owned if self.owners.get(partition) != member.session)
            if gone:
                member.feed(c.ClaimGone(gone))

    def assert_exclusive(self) -> None:
        """Assert that each member that delivers a partition is its owner, so that no two members deliver it."""
        for member in self.members:
            for partition in member.active:
                assert self.owners.get(partition) == member.session

    def settle(self, shares: list[frozenset[TopicPartition]]) -> None:
        """Assign disjoint partitions, answer all requests, and assert that each member owns exactly its assignment."""
        for member, share in zip(self.members, shares, strict=True):
            member.feed(c.Subscribed(TOPICS))
            member.feed(c.AssignmentRead(share))
        for _ in range(1_000):
            possible = self.next_steps()
            if not possible:
                self.audit()
                possible = self.next_steps()
            if not possible:
                break
            possible[0]()
        for member, share in zip(self.members, shares, strict=True):
            assert member.claims.settled
            assert member.active == (frozenset() if member.claims.leaving else share)
            assert {p for p, owner in self.owners.items() if owner == member.session} == member.active


choices = st.lists(st.integers(0, 999), max_size=120)
shares = st.lists(st.integers(0, MEMBERS), min_size=len(ALL), max_size=len(ALL)).map(
    lambda drawn: [frozenset(p for p, to in zip(ALL, drawn, strict=True) if to == index) for index in range(MEMBERS)]
)
orders = st.lists(
    st.tuples(
        st.integers(0, MEMBERS - 1),
        assignments | st.builds(c.Subscribed, subscriptions) | st.sampled_from(["leave", "expire", "replaced"]),
    ),
    max_size=14,
)


def disturb(group: Members, index: int, order: object) -> None:
    """Change the assignment or the subscription of a member, replace it in its slot, or have it leave or expire."""
    if order == "expire":
        group.expire(index)
    elif order == "leave":
        group.members[index].feed(c.Leave())
    elif order == "replaced":
        group.members[index].feed(c.Replaced())
    elif isinstance(order, c.Subscribed):
        group.members[index].feed(order)
    else:
        group.members[index].feed(c.AssignmentRead(order))  # type: ignore[arg-type]


@given(states)
def test_an_empty_subscription_revokes_no_claim(state: c.Claims) -> None:
    """
    With an empty subscription, a member keeps its claims: they equal those of a member that subscribes to all topics,
    except that no partition is waited for or claimed.
    """
    without, effects = c.step(state, c.Subscribed(frozenset()))
    with_all, _ = c.step(state, c.Subscribed(TOPICS))
    free = (None, c.Phase.WAITING)
    for partition in ALL:
        expected = None if state.phases.get(partition) in free else with_all.phases.get(partition)
        assert without.phases.get(partition) is expected
    assert not any(isinstance(effect, (c.Claim, c.WatchOwner)) for effect in effects)


@settings(max_examples=examples(150))
@given(orders, choices, shares)
def test_each_partition_has_one_owner_at_most_and_members_settle(
    disturbances: list[tuple[int, object]], order: list[int], final: list[frozenset[TopicPartition]]
) -> None:
    """
    At most one member delivers a partition, and in the end each member owns its assignment. Before that, assignments
    overlap or are unknown, members leave and expire, and answers arrive in any order.
    """
    group = Members()
    for choice in order:
        possible = group.next_steps()
        if disturbances and (not possible or choice % 5 == 0):
            disturb(group, *disturbances.pop(0))
        elif possible:
            possible[choice % len(possible)]()
        group.assert_exclusive()
    group.settle(final)
    group.assert_exclusive()


@settings(max_examples=examples(100))
@given(orders, choices, shares, st.lists(st.sampled_from(ALL), max_size=4))
def test_claims_with_deleted_owner_znodes_are_claimed_again(
    disturbances: list[tuple[int, object]],
    order: list[int],
    final: list[frozenset[TopicPartition]],
    deleted: list[TopicPartition],
) -> None:
    """
    Claims whose owner znodes an operator deletes are claimed again. A partition may then have two owners for a while,
    but the phases keep their order, and the group settles again.
    """
    group = Members()
    for choice in order:
        possible = group.next_steps()
        if disturbances and (not possible or choice % 5 == 0):
            disturb(group, *disturbances.pop(0))
        elif deleted and choice % 7 == 0:
            group.delete_owner(deleted.pop())
        elif choice % 11 == 0:
            group.audit()
        elif possible:
            possible[choice % len(possible)]()
    group.settle(final)
