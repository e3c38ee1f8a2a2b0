"""Any sequence of calls of a subscription, while a member claims, opens and releases the partitions that it owns."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kiel_groups.errors import ConfigError, IllegalStateError
from kiel_groups.group.partition_offsets import StartOrigin, StartPosition
from kiel_groups.group.subscription import SubscriptionState
from kiel_groups.model import TopicPartition
from tests.helpers.examples import examples
from tests.helpers.subscriptions import CLEAN, snapshot

pytestmark = pytest.mark.property

TOPICS = ("t", "u", "v")
PARTITIONS = [TopicPartition(topic, number) for topic in TOPICS for number in (0, 1)]
PATTERNS = ("t|u", "u|v", "x")
WAYS = ("topics", "pattern", "manual")
#: Topics, or partitions, of one call: often many of those that there are, sometimes none.
some_topics = st.sampled_from([list(TOPICS), ["t", "u"], ["u", "t", "u"], ["u"], ["v", "u"], []])
some_partitions = st.sets(st.sampled_from(PARTITIONS)) | st.just(set(PARTITIONS))
#: The partition of one call, by its place among the assigned ones; one in ten calls takes any partition.
any_partition = st.integers(0, 10 * len(PARTITIONS) - 1)
any_offset = st.integers(0, 99)


class SubscribedConsumer(RuleBasedStateMachine):
    """
    One consumer, whose application makes any calls, and its member.

    ``way`` is the way in which the consumer gets partitions now. ``claims`` are those of the member; after a
    subscription has ended, it still has to release them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.state = SubscriptionState()
        self.way: str | None = None
        self.claims: set[TopicPartition] = set()

    @initialize(way=st.sampled_from(WAYS), topics=some_topics, offset=any_offset, is_opened=st.booleans())
    def start(self, way: str, topics: list[str], offset: int, is_opened: bool) -> None:
        """Choose a way, and have all partitions of some topics, with positions if they are opened."""
        partitions = {partition for partition in PARTITIONS if partition.topic in topics}
        if way == "manual":
            self.assign(partitions)
            for partition in self.state.assigned_partitions() if is_opened else ():
                self.state.seek(partition, offset)
            return
        if way == "pattern":
            self.subscribe_to_pattern(PATTERNS[0])
        self.change_subscription(topics)
        self.claim(partitions, offset, is_opened)

    def chosen(self, number: int) -> TopicPartition:
        """Return the partition that a rule has drawn as ``any_partition``."""
        assigned = sorted(self.state.assigned_partitions())
        return assigned[number % len(assigned)] if assigned and number % 10 else PARTITIONS[number // 10]

    def attempt(self, call: Callable[[], object], *, is_legal: bool) -> bool:
        """
        Make a call, and return whether it was legal.

        A refused call changes nothing. After any other, the partitions that stay have the same state, and new ones are
        clean: they have no position, or that of their claim.
        """
        before = snapshot(self.state)
        if not is_legal:
            with pytest.raises(ConfigError):
                call()
            assert snapshot(self.state) == before
            return False
        call()
        for partition, after in snapshot(self.state)["assigned"].items():
            claimed_at = self.state.offsets.position(partition) if partition in self.claims else None
            assert after == before["assigned"].get(partition, CLEAN._replace(position=claimed_at))
        return True

    def choose(self, way: str, call: Callable[[], object], *, is_legal: bool = True) -> bool:
        """Make a call that chooses a way to get partitions, or that belongs to one."""
        is_open = self.way in (None, way)
        if self.attempt(call, is_legal=is_open and is_legal):
            self.way = way
        return is_open and is_legal

    # The application's subscription

    @rule(topics=some_topics)
    def subscribe(self, topics: list[str]) -> None:
        before, found = self.state.topics, [True]

        def call() -> None:
            found[0] = self.state.subscribe(topics)

        if self.choose("topics", call, is_legal=bool(topics)):
            assert found[0] == (self.state.topics != before)
            assert self.state.topics == set(topics)

    @rule(pattern=st.sampled_from(PATTERNS))
    def subscribe_to_pattern(self, pattern: str) -> None:
        """The same pattern keeps its matches. Another one has none yet."""
        before, topics = self.state.subscribed_pattern, self.state.topics
        if self.choose("pattern", lambda: self.state.subscribe(pattern=pattern)):
            assert self.state.topics == (topics if before == re.compile(pattern) else frozenset())

    @rule(topics=some_topics, pattern=st.sampled_from(("(", "", "t")))
    def subscribe_wrongly(self, topics: list[str], pattern: str) -> None:
        """Subscribe to topics and a pattern, to a pattern that is none, or to a name that is not legal."""
        names = [*topics, "t"] if pattern == "t" else topics
        self.attempt(lambda: self.state.subscribe(names, pattern), is_legal=False)
        self.attempt(lambda: self.state.change_subscription([*topics, "a/b"]), is_legal=False)

    @rule(topics=some_topics)
    def change_subscription(self, topics: list[str]) -> None:
        """Change the subscribed topics, or set the matches of the pattern."""
        pattern = self.state.wanted.pattern
        if pattern is not None:
            self.attempt(lambda: self.state.set_matches(pattern, topics), is_legal=True)
        if pattern is not None or self.choose("topics", lambda: self.state.change_subscription(topics)):
            assert self.state.topics == set(topics)

    @rule(way=st.sampled_from(WAYS), topics=some_topics, offset=any_offset, is_released=st.booleans())
    def unsubscribe(self, way: str, topics: list[str], offset: int, is_released: bool) -> None:
        """End the subscription or the manual assignment, and begin anew; the member may have released its claims."""
        claimed = self.state.offsets.open_partitions() & self.claims
        self.state.unsubscribe()
        self.way = None
        self.nothing_is_assigned()
        assert self.state.offsets.open_partitions() == claimed
        if is_released:
            self.release(PARTITIONS)
        self.start(way, topics, offset, is_opened=True)

    def nothing_is_assigned(self) -> None:
        assert self.state.assigned_partitions() == self.state.topics == frozenset()
        assert not self.state.partitions_auto_assigned()

    @rule(partitions=some_partitions)
    def assign(self, partitions: set[TopicPartition]) -> None:
        unreleased = partitions & self.claims & self.state.offsets.open_partitions()
        if self.choose(
            "manual", lambda: self.state.assign_from_user(partitions), is_legal=bool(partitions) and not unreleased
        ):
            assert self.state.assigned_partitions() == partitions
            # Claims that were not opened end with the member's session. They do not prevent a manual assignment.
            self.claims -= partitions

    # The application's partitions

    @rule(number=any_partition, offset=any_offset)
    def seek(self, number: int, offset: int) -> None:
        """Seek in a partition."""
        partition = self.chosen(number)
        is_assigned = self.state.is_assigned(partition)
        is_known = self.way == "manual" or self.state.offsets.is_open(partition)
        if is_assigned and is_known:
            self.state.seek(partition, offset)
            assert self.state.position(partition) == offset
        else:
            self.attempt(lambda: self.state.seek(partition, offset), is_legal=False)

    @precondition(lambda self: self.way == "manual")
    @rule(partitions=some_partitions, offset=any_offset, number=any_partition, is_later=st.booleans())
    def find_starts(self, partitions: set[TopicPartition], offset: int, number: int, is_later: bool) -> None:
        """
        Look-ups of start positions end, while a seek waits for a look-up of its own.

        They open the assigned partitions that are not open, and no others. Only a later seek voids the one that waits.
        """
        state, waiting = self.state, self.chosen(number)
        mark = state.renew_seek_mark(waiting) if state.is_assigned(waiting) else None
        if is_later and mark is not None:
            state.seek(waiting, offset + 1)
        before = {partition: state.offsets.position(partition) for partition in PARTITIONS}
        opened = state.open_unclaimed(dict.fromkeys(sorted(partitions), offset), StartOrigin.FIRST)
        missing = {each for each in partitions if before[each] is None and state.is_assigned(each)}
        assert set(opened) == missing
        after = {partition: state.offsets.position(partition) for partition in PARTITIONS}
        assert after == before | dict.fromkeys(missing, offset)
        if mark is not None:
            assert (state.seek_mark(waiting) is mark) is not is_later

    @rule(number=any_partition, is_pause=st.booleans(), highwater=any_offset)
    def use(self, number: int, is_pause: bool, highwater: int) -> None:
        """Pause or resume a partition, and report its high watermark."""
        partition = self.chosen(number)
        if not self.state.is_assigned(partition):
            for call in (self.state.pause, self.state.resume, self.state.position, self.state.highwater):
                with pytest.raises(IllegalStateError):
                    call(partition)
            self.attempt(lambda: self.state.set_highwater(partition, highwater), is_legal=True)
            return
        (self.state.pause if is_pause else self.state.resume)(partition)
        assert self.state.is_paused(partition) is is_pause
        self.state.set_highwater(partition, highwater)

    # The member

    def rebalance(self) -> None:
        """Tell the state which partitions of subscribed topics the member owns."""
        owned = {partition for partition in self.claims if partition.topic in self.state.topics}
        self.attempt(lambda: self.state.assign_from_subscribed(owned), is_legal=self.state.partitions_auto_assigned())

    @precondition(lambda self: self.state.partitions_auto_assigned())
    @rule(wanted=some_partitions, offset=any_offset, is_opened=st.booleans())
    def claim(self, wanted: Collection[TopicPartition], offset: int, is_opened: bool) -> None:
        """Claim partitions, and open those claims, unless their start is not known yet."""
        fresh = {partition for partition in wanted if partition.topic in self.state.topics} - self.claims
        self.state.offsets.claim(fresh, created=1)
        self.claims |= fresh
        if is_opened:
            self.state.offsets.open({partition: StartPosition(offset, 1, 1, created=1) for partition in fresh})
        self.rebalance()

    @precondition(lambda self: self.state.partitions_auto_assigned())
    @rule(offset=any_offset)
    def open(self, offset: int) -> None:
        """Open the claims whose start was not known."""
        unopened = self.claims - self.state.offsets.open_partitions()
        self.state.offsets.open({partition: StartPosition(offset, 1, 1, created=1) for partition in unopened})

    @rule(partitions=some_partitions)
    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Release claims, also of topics, or of a subscription, that the application has dropped."""
        gone = self.claims & set(partitions)
        self.state.offsets.end(gone)
        self.claims -= gone
        self.rebalance()

    @precondition(lambda self: self.state.partitions_auto_assigned())
    @rule(partition=st.sampled_from(PARTITIONS))
    def assign_another_topic(self, partition: TopicPartition) -> None:
        """A partition of a topic without subscription is refused, whatever else is assigned."""
        if partition.topic not in self.state.topics:
            owned = {*self.state.assigned_partitions(), partition}
            self.attempt(lambda: self.state.assign_from_subscribed(owned), is_legal=False)

    @rule(delivered=st.integers(1, 3))
    def deliver(self, delivered: int) -> None:
        """Deliver records of the partitions that have a position and are not paused."""
        state = self.state
        for partition in state.assigned_partitions() - state.missing_fetch_positions() - state.paused_partitions():
            offsets = self.state.offsets.of(partition)
            assert offsets is not None
            offsets.position += delivered

    # The laws

    @invariant()
    def the_three_ways_exclude_each_other(self) -> None:
        assert self.state.partitions_auto_assigned() is (self.way in ("topics", "pattern"))
        assert (self.state.subscribed_pattern is not None) is (self.way == "pattern")
        if self.way in (None, "manual"):
            assert self.state.topics == frozenset()
        if self.way is None:
            self.nothing_is_assigned()

    @invariant()
    def nothing_of_another_topic_is_assigned(self) -> None:
        if self.way != "manual":
            assert {partition.topic for partition in self.state.assigned_partitions()} <= self.state.topics

    @invariant()
    def the_assigned_have_the_position_of_the_tracker_or_none(self) -> None:
        state = self.state
        assigned, missing = state.assigned_partitions(), state.missing_fetch_positions()
        assert missing == {partition for partition in assigned if state.position(partition) is None}
        assert state.paused_partitions() <= assigned
        for partition in assigned - missing:
            assert state.position(partition) == state.offsets.position(partition)

    @invariant()
    def the_tracker_has_the_claims_and_the_manual_partitions_only(self) -> None:
        manual = self.state.assigned_partitions() if self.way == "manual" else frozenset()
        assert self.state.offsets.open_partitions() <= self.claims | manual


TestSubscription = SubscribedConsumer.TestCase
TestSubscription.settings = settings(max_examples=examples(200), stateful_step_count=40)
