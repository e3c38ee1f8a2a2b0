"""The offsets of one partition, with any order of commits, lost answers, operator's changes, resets and new topics."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kiel_groups.group.offset_tracker import CommitRules, OffsetTracker
from kiel_groups.group.partition_offsets import (
    MOVES,
    ChosenCommits,
    Commit,
    Finding,
    PartitionOffsets,
    PendingReset,
    Phase,
    Refusal,
    StartPosition,
    StoredOffset,
)
from kiel_groups.model import TopicPartition
from tests.helpers.examples import examples

pytestmark = pytest.mark.property

P0 = TopicPartition("t", 0)
OPERATOR = "operator"


@dataclass
class Znode:
    """The partition's offset znode; ``offset`` is None for garbage, ``writer`` a claim or the operator."""

    offset: int | None
    version: int
    mzxid: int
    writer: object


class OwnedPartition(RuleBasedStateMachine):
    """
    One member that claims, commits and releases one partition, on a model of ZooKeeper that executes every write.

    ``reached`` is the largest offset that the present claim may store: its start, or what was finished since.
    ``floor`` is the smallest one that the application may choose: where the claim started, or was set, or was sought.
    """

    def __init__(self) -> None:
        super().__init__()
        self.zxid = 100
        self.topic = 1
        self.known_topic = 1
        self.znode = Znode(0, 0, 100, OPERATOR)
        self.tokens = 0
        self.reached = 0
        self.may_go_back = False
        self.floor = 0

    @initialize(autocommit=st.booleans(), through_brokers=st.booleans())
    def first_claim(self, autocommit: bool, through_brokers: bool) -> None:
        self.tracker = OffsetTracker(CommitRules(autocommit, through_brokers))
        self.claim()

    # The member

    @property
    def state(self) -> PartitionOffsets:
        state = self.tracker.of(P0)
        assert state is not None
        return state

    @property
    def is_open(self) -> bool:
        return self.tracker.is_open(P0)

    @property
    def stored(self) -> StoredOffset:
        return StoredOffset(self.znode.offset, self.znode.version, self.znode.mzxid)

    @precondition(lambda self: not self.is_open)
    @rule()
    def claim(self) -> None:
        """Claim the partition, rewrite its offset, and open the claim."""
        self.known_topic, self.tokens = self.topic, self.tokens + 1
        self.tracker.claim([P0], self.topic)
        offset = self.znode.offset if self.znode.offset is not None and self.znode.mzxid > self.topic else 0
        self.write(offset)
        self.tracker.open({P0: StartPosition(offset, self.znode.version, self.tokens, self.topic)})
        self.reached, self.may_go_back, self.floor = offset, False, offset

    @precondition(lambda self: self.is_open)
    @rule(delivered=st.integers(0, 3), finished=st.integers(0, 3))
    def deliver(self, delivered: int, finished: int) -> None:
        """Deliver some records; the application finishes some of those that were delivered."""
        if self.state.reset is None:
            self.state.position += delivered
        self.state.finished = min(self.state.finished + finished, self.state.position)
        self.reached = max(self.reached, self.state.finished)

    @precondition(lambda self: self.is_open and not self.tracker.rules.through_brokers)
    @rule(is_executed=st.booleans(), is_answered=st.booleans())
    def commit(self, is_executed: bool, is_answered: bool) -> None:
        """Commit on the member's session; the commit or its answer may be lost."""
        commits = self.tracker.commits()
        if P0 not in commits or not self.tracker.may_store(P0):
            return
        sent = self.tracker.sent(commits)
        fits = commits[P0].version == self.znode.version
        if (is_executed or is_answered) and fits:
            self.write(commits[P0].offset)
        if is_answered:
            self.tracker.answered(sent, {P0: self.stored} if fits else {})
            if not fits:
                self.audit()

    @rule(offset=st.integers(-4, 4), is_executed=st.booleans(), is_answered=st.booleans())
    def commit_chosen(self, offset: int, is_executed: bool, is_answered: bool) -> None:
        """
        The application commits an offset near its position; the commit or its answer may be lost.

        The offset is refused outside of the claim's bounds, or without a claim. Otherwise a commit is sent against the
        version that was last seen, so it never replaces an operator's offset. It changes neither the position nor what
        is finished.
        """
        if not self.is_open:
            assert self.tracker.choose({P0: max(0, offset)}) == ChosenCommits({}, {P0: Refusal.NOT_OPEN})
            return
        chosen = max(0, self.state.position + offset)
        before = self.state.position, self.state.finished
        decision = self.tracker.choose({P0: chosen})
        reset = self.state.reset
        beyond_log = reset is not None and chosen > reset.end
        is_allowed = self.floor <= chosen <= self.state.position and not beyond_log and not self.state.outdated
        assert decision.commits == ({P0: Commit(chosen, self.state.version)} if is_allowed else {})
        assert bool(decision.refusals) is not is_allowed
        other = TopicPartition("t", 1)
        assert self.tracker.choose({P0: chosen, other: 0}).commits == {}, "a part of a refused commit is stored"
        if is_allowed and self.tracker.rules.through_brokers:
            if self.znode.version == self.state.version:
                self.tracker.requested({P0: chosen})
                self.write(chosen, is_chosen=True)
                assert self.tracker.read(P0, self.stored) is Finding.OWN
        elif is_allowed and self.tracker.may_store(P0):
            sent = self.tracker.sent(decision.commits)
            fits = decision.commits[P0].version == self.znode.version
            if (is_executed or is_answered) and fits:
                self.write(chosen, is_chosen=True)
            if is_answered:
                self.tracker.answered(sent, {P0: self.stored} if fits else {})
                if not fits:
                    self.audit()
                    return
        assert (self.state.position, self.state.finished) == before

    @precondition(lambda self: self.is_open and self.tracker.rules.through_brokers)
    @rule(is_late=st.booleans())
    def request(self, is_late: bool) -> None:
        """Have a broker store what is finished, now or later; it checks no version, so the member reads before."""
        if (commit := self.tracker.commits().get(P0)) is None:
            return
        position = self.state.position
        is_seen = self.znode.version == self.state.version
        if not is_seen and (found := self.tracker.read(P0, self.stored)) is not Finding.OWN:
            self.reached = max(self.reached, self.state.position)
            if found is Finding.ADOPTED:
                self.floor = self.state.position
            return
        assert self.state.position == position, "a late write of the member's own request moved the position"
        self.tracker.requested({P0: commit.offset})
        if not is_late:
            self.write(commit.offset)
            assert self.tracker.read(P0, self.stored) is Finding.OWN

    @precondition(lambda self: self.is_open and self.state.requested is not None)
    @rule()
    def late_write(self) -> None:
        """A broker executes the last request at last, or once more."""
        assert self.state.requested is not None
        self.put(self.state.requested, self.tokens)
        # The request may have been made in an earlier log, or before a seek.
        self.may_go_back = True

    @precondition(lambda self: self.is_open)
    @rule()
    def audit(self) -> None:
        """Read the stored offset, unless the partition is outdated."""
        if not self.tracker.verifiable([P0]):
            return
        before, seen = self.state.position, self.state.version
        found = self.tracker.read(P0, self.stored)
        if self.znode.writer is OPERATOR and self.znode.version > seen + 1 and not self.tracker.rules.through_brokers:
            # Commits expect the version that was last seen, so the version after that is the only one of their own.
            assert found in (Finding.ADOPTED, Finding.UNREADABLE), "an operator's change is not followed"
        if found is Finding.ADOPTED:
            assert self.state.position == self.state.finished == self.state.committed == self.znode.offset
            self.reached = self.floor = self.state.position
        else:
            assert self.state.position == before
        assert self.state.version == self.znode.version

    @precondition(lambda self: self.is_open)
    @rule(by=st.integers(-3, 3))
    def seek(self, by: int) -> None:
        """The application continues elsewhere."""
        self.tracker.seek(P0, max(0, self.state.position + by))
        self.reached, self.may_go_back = max(self.reached, self.state.position), True
        self.floor = min(self.floor, self.state.position)

    @precondition(lambda self: self.is_open and self.state.phase is Phase.OPEN)
    @rule(start=st.integers(0, 30), size=st.integers(0, 10), latest=st.booleans())
    def choose_reset(self, start: int, size: int, latest: bool) -> None:
        """The log lacks the position."""
        end = start + size
        if not start <= self.state.position <= end:
            self.tracker.choose_reset(P0, PendingReset(self.state.position, start, end, end if latest else start))

    @precondition(lambda self: self.is_open and self.tracker.reset_of(P0) is not None)
    @rule()
    def store_reset(self) -> None:
        """Store the chosen reset, and continue there."""
        reset = self.tracker.reset_of(P0)
        assert reset is not None
        while self.tracker.reset_applies(P0, reset):
            commit = self.tracker.reset_to_store(P0)
            if commit is None:
                self.tracker.complete_reset(P0)
                self.reached = self.state.position
                self.floor = min(self.state.committed, self.state.position)
                return
            self.tracker.requested({P0: None})
            if commit.version == self.znode.version:
                self.reached = max(self.reached, commit.offset)
                self.write(commit.offset)
                self.tracker.stored(P0, commit.offset, self.znode.version)
            else:
                self.audit()

    @precondition(lambda self: self.is_open and self.tracker.reset_of(P0) is not None)
    @rule()
    def withdraw_reset(self) -> None:
        """Records before the lost position are fetched again."""
        self.tracker.withdraw_reset(P0)
        self.may_go_back = True
        self.state.position = min(self.state.position, max(self.state.finished, 0))

    @rule()
    def notify(self) -> None:
        """The member reads the topic's znode."""
        if self.topic != self.known_topic:
            self.known_topic = self.topic
            self.tracker.recreated("t", self.topic)

    @precondition(lambda self: self.is_open and self.state.phase is Phase.OUTDATED)
    @rule()
    def restart(self) -> None:
        """The start of the new log is stored."""
        self.write(0, is_restart=True)
        self.tracker.restart(P0, 0, self.znode.version, self.known_topic)
        self.reached, self.may_go_back, self.floor = 0, False, 0

    @precondition(lambda self: self.is_open)
    @rule(is_read_first=st.booleans())
    def release(self, is_read_first: bool) -> None:
        """Release the claim; if the expected version is not there, decide again."""
        found = self.stored if is_read_first or self.state.outdated else None
        decision = self.tracker.release(P0, found)
        for _ in range(3):
            if decision.version in (None, self.znode.version):
                break
            decision = self.tracker.release_changed(P0, self.stored)
        assert decision.version in (None, self.znode.version), "the release does not end"
        if decision.offset is not None:
            self.write(decision.offset, is_release=True)
        self.tracker.end([P0])
        assert not self.is_open
        assert self.tracker.position(P0) is None

    # Others

    @rule(offset=st.none() | st.integers(0, 4))
    def operate(self, offset: int | None) -> None:
        """An operator sets an offset, or garbage."""
        self.put(offset, OPERATOR)

    @rule()
    def recreate(self) -> None:
        """The topic is deleted and created again; the member is notified later."""
        self.zxid += 1
        self.topic = self.zxid

    # The model of ZooKeeper

    def put(self, offset: int | None, writer: object) -> None:
        self.zxid += 1
        self.znode = Znode(offset, self.znode.version + 1, self.zxid, writer)

    def write(
        self, offset: int, *, is_restart: bool = False, is_release: bool = False, is_chosen: bool = False
    ) -> None:
        """Execute a write of the member's present claim, and check that the claim may write this offset."""
        if self.is_open and not is_restart:
            zeroes_old_log = is_release and offset == 0
            assert zeroes_old_log or not self.state.outdated, "an offset of an earlier incarnation is written"
            limit = self.reached if not is_chosen else self.state.position
            assert not is_chosen or offset >= self.floor, "an offset before the floor is written"
            assert not is_chosen or self.znode.version == self.state.version, "another writer's offset is replaced"
            self.may_go_back = self.may_go_back or (is_chosen and offset > self.state.finished)
            self.reached = max(self.reached, offset) if is_chosen else self.reached
            if (chosen := self.state.reset_offset(autocommit=self.tracker.rules.autocommit)) is not None:
                limit = max(limit, chosen)
            assert offset <= limit, "an offset is written that this claim has not reached"
            reset = self.state.reset
            assert reset is None or offset <= reset.end, "an offset is written that the log does not have"
        self.put(offset, self.tokens)

    @invariant()
    def offsets_are_ordered(self) -> None:
        """committed ≤ finished ≤ delivered, unless the application or a truncated log moved the position back."""
        if self.is_open:
            assert self.state.finished <= self.state.position
            assert self.may_go_back or self.state.reset is not None or self.state.committed <= self.state.finished

    @invariant()
    def other_claims_leave_nothing(self) -> None:
        """An unknown outcome, a request and a reset belong to the present claim."""
        if not self.is_open:
            assert self.tracker.commits() == {}
            assert self.tracker.judge(P0, self.stored) is Finding.NOT_OPEN


TestOwnedPartition = OwnedPartition.TestCase
TestOwnedPartition.settings = settings(max_examples=examples(500), stateful_step_count=40, deadline=None)


def test_every_phase_is_entered_and_left() -> None:
    """The table of legal moves has no phase without a way in and a way out."""
    assert set(MOVES) == {None, *Phase}
    for phase in Phase:
        assert any(phase in targets for source, targets in MOVES.items() if source is not phase)
        assert MOVES[phase] - {phase}
