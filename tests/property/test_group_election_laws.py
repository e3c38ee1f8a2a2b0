"""Several candidates in an election, with lost answers, expiries, pauses, and znodes that an operator deletes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiel_groups.group import candidate as e
from tests.helpers.examples import examples

pytestmark = pytest.mark.property


@dataclass
class CandidateSession:
    """A candidate and its session. ZooKeeper answers the requests of a session in order."""

    candidate: e.Candidate
    active: bool = True
    requests: deque[e.Effect] = field(default_factory=deque)
    answers: deque[e.Event] = field(default_factory=deque)
    watched: str | None = None
    leads: bool = False

    def feed(self, event: e.Event) -> None:
        self.candidate, effects = e.step(self.candidate, event)
        for effect in effects:
            if isinstance(effect, e.BecomeLeader):
                self.leads = True
            elif isinstance(effect, e.ResignLeader):
                self.leads = False
            else:
                self.requests.append(effect)
        assert self.leads == self.candidate.leads


class ElectionFolder:
    """The election znodes of all candidates. The test chooses every step."""

    def __init__(self, sessions: int) -> None:
        self.names: dict[str, CandidateSession] = {}
        self.numbers = 0
        self.joined = 0
        self.sessions: list[CandidateSession] = []
        for _ in range(sessions):
            self.join()

    def join(self) -> None:
        self.joined += 1
        session = CandidateSession(e.Candidate(f"{self.joined:032x}"))
        self.sessions.append(session)
        session.feed(e.EnterElection())

    @property
    def active_sessions(self) -> list[CandidateSession]:
        return [session for session in self.sessions if session.active]

    @property
    def ranked(self) -> list[str]:
        return sorted(self.names, key=lambda name: e.sequence(name) or 0)

    def remove(self, name: str) -> None:
        """Delete an election znode, and notify the candidates that watch it."""
        del self.names[name]
        for session in self.active_sessions:
            if session.watched == name:
                session.watched = None
                session.answers.append(e.PredecessorGone())

    def create(self, session: CandidateSession, fate: str) -> None:
        """
        Process the creation of an election znode.

        ``fate``: "answered", or that the connection broke before ("unsent") or after ("lost") the creation.
        """
        name = None
        if fate != "unsent":
            self.numbers += 1
            name = f"{session.candidate.uuid}-n_{self.numbers:010d}"
            self.names[name] = session
        session.answers.append(e.Created(name if fate == "answered" else None))
        session.requests.popleft()

    def perform(self, session: CandidateSession) -> None:
        """Process the next request of a session."""
        match session.requests.popleft():
            case e.ReadCandidates():
                session.answers.append(e.Candidates(tuple(self.names)))
            case e.WatchPredecessor(name):
                session.watched = name
                if name not in self.names:
                    session.watched = None
                    session.answers.append(e.PredecessorGone())

    def expire(self, session: CandidateSession) -> None:
        """End a session. ZooKeeper deletes its znodes at once, and notifies the candidate later."""
        session.active = False
        session.requests.clear()
        session.answers.clear()
        for name in [name for name, owner in self.names.items() if owner is session]:
            self.remove(name)

    def next_steps(self, fates: tuple[str, ...] = ("answered",)) -> list[Callable[[], None]]:
        possible: list[Callable[[], None]] = []
        for session in self.active_sessions:
            if session.requests and isinstance(session.requests[0], e.CreateCandidate):
                possible += [partial(self.create, session, fate) for fate in fates]
            elif session.requests:
                possible.append(partial(self.perform, session))
            if session.answers:
                possible.append(lambda session=session: session.feed(session.answers.popleft()))
        return possible

    def settle(self) -> None:
        for _ in range(2_000):
            if not (possible := self.next_steps()):
                return
            possible[0]()
        raise AssertionError("the candidates never come to rest")

    def assert_settled(self) -> None:
        """
        Assert that only the candidate with the lowest znode leads, and that each other candidate watches the next lower
        znode.
        """
        ranked = self.ranked
        assert {id(owner) for owner in self.names.values()} == {id(session) for session in self.active_sessions}
        for session in self.active_sessions:
            own = [name for name in ranked if self.names[name] is session]
            rank = ranked.index(own[0])
            assert session.candidate.name == own[0]
            assert session.candidate.leads == (rank == 0)
            if rank:
                assert session.candidate.phase is e.ElectionPhase.FOLLOWING
                assert session.watched == ranked[rank - 1]


drawn_steps = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 99)), max_size=80)


def take_step(folder: ElectionFolder, kind: int, choice: int) -> None:
    """Take an ordinary step in most cases. In all other cases, let a candidate join, expire or pause."""
    active_sessions = folder.active_sessions
    if kind == 0 and len(active_sessions) < 6:
        folder.join()
    elif kind == 1 and active_sessions:
        folder.expire(active_sessions[choice % len(active_sessions)])
    elif kind == 2 and active_sessions:
        active_sessions[choice % len(active_sessions)].feed(e.Resumed())
    elif possible := folder.next_steps(("answered", "lost", "unsent")):
        possible[choice % len(possible)]()


@settings(max_examples=examples(150))
@given(st.integers(1, 5), drawn_steps)
def test_only_the_lowest_candidate_leads(sessions: int, steps: list[tuple[int, int]]) -> None:
    """
    No two active candidates lead at the same time, unless an operator deletes znodes. In the end, the candidate with
    the lowest znode leads.
    """
    folder = ElectionFolder(sessions)
    for kind, choice in steps:
        take_step(folder, kind, choice)
        assert sum(session.candidate.leads for session in folder.active_sessions) <= 1
    folder.settle()
    folder.assert_settled()


@settings(max_examples=examples(150))
@given(st.integers(1, 5), drawn_steps)
def test_deleted_election_znodes_are_created_again(sessions: int, steps: list[tuple[int, int]]) -> None:
    """
    Election znodes that an operator deletes are created again: after every candidate has checked twice, each one has a
    znode, and only the lowest one leads.
    """
    folder = ElectionFolder(sessions)
    for kind, choice in steps:
        if kind == 3 and folder.names:
            folder.remove(folder.ranked[choice % len(folder.names)])
        else:
            take_step(folder, kind, choice)
    # A candidate that creates its znode after all others have checked is the last, and changes no other rank.
    for _ in range(2):
        folder.settle()
        for session in folder.active_sessions:
            session.feed(e.Resumed())
    folder.settle()
    folder.assert_settled()


def test_the_end_of_a_session_notifies_one_candidate() -> None:
    """When the leader's session ends, only one of many candidates is notified and reads the election znodes."""
    folder = ElectionFolder(20)
    folder.settle()
    leader = next(session for session in folder.active_sessions if session.candidate.leads)
    folder.expire(leader)
    assert sum(len(session.answers) for session in folder.active_sessions) == 1
    folder.settle()
    folder.assert_settled()
