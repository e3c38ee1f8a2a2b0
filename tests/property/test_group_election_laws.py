"""Several candidates over one folder: lost replies, expiries, pauses, znodes deleted by hand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiel_groups.group.leader import candidate as e

pytestmark = pytest.mark.property


@dataclass
class Contender:
    """A candidate on its own session; ZooKeeper answers a session's requests in their order."""

    candidate: e.Candidate
    alive: bool = True
    requests: deque[e.Effect] = field(default_factory=deque)
    answers: deque[e.Event] = field(default_factory=deque)
    watched: str | None = None
    told_to_lead: bool = False

    def feed(self, event: e.Event) -> None:
        self.candidate, effects = e.step(self.candidate, event)
        for effect in effects:
            if isinstance(effect, e.BecomeLeader):
                self.told_to_lead = True
            elif isinstance(effect, e.ResignLeader):
                self.told_to_lead = False
            else:
                self.requests.append(effect)
        assert self.told_to_lead == self.candidate.leads


class Folder:
    """The election folder; every choice is made from outside."""

    def __init__(self, contenders: int) -> None:
        self.names: dict[str, Contender] = {}
        self.numbers = 0
        self.born = 0
        self.contenders: list[Contender] = []
        for _ in range(contenders):
            self.join()

    def join(self) -> None:
        self.born += 1
        contender = Contender(e.Candidate(f"{self.born:032x}"))
        self.contenders.append(contender)
        contender.feed(e.EnterElection())

    @property
    def living(self) -> list[Contender]:
        return [contender for contender in self.contenders if contender.alive]

    @property
    def ranked(self) -> list[str]:
        return sorted(self.names, key=lambda name: e.sequence(name) or 0)

    def remove(self, name: str) -> None:
        """A znode goes; those that watch it hear of it."""
        del self.names[name]
        for contender in self.living:
            if contender.watched == name:
                contender.watched = None
                contender.answers.append(e.PredecessorGone())

    def create(self, contender: Contender, fate: str) -> None:
        """``fate``: answered, or the connection broke before ("unsent") or after ("lost") it happened."""
        name = None
        if fate != "unsent":
            self.numbers += 1
            name = f"{contender.candidate.uuid}-n_{self.numbers:010d}"
            self.names[name] = contender
        contender.answers.append(e.Created(name if fate == "answered" else None))
        contender.requests.popleft()

    def perform(self, contender: Contender) -> None:
        """The next request of a session is served."""
        match contender.requests.popleft():
            case e.ReadCandidates():
                contender.answers.append(e.Candidates(tuple(self.names)))
            case e.WatchPredecessor(name):
                contender.watched = name
                if name not in self.names:
                    contender.watched = None
                    contender.answers.append(e.PredecessorGone())

    def expire(self, contender: Contender) -> None:
        """ZooKeeper removes the znodes at once; the candidate hears of it when it does."""
        contender.alive = False
        contender.requests.clear()
        contender.answers.clear()
        for name in [name for name, owner in self.names.items() if owner is contender]:
            self.remove(name)

    def work(self, fates: tuple[str, ...] = ("answered",)) -> list[Callable[[], None]]:
        todo: list[Callable[[], None]] = []
        for contender in self.living:
            if contender.requests and isinstance(contender.requests[0], e.CreateCandidate):
                todo += [partial(self.create, contender, fate) for fate in fates]
            elif contender.requests:
                todo.append(partial(self.perform, contender))
            if contender.answers:
                todo.append(lambda contender=contender: contender.feed(contender.answers.popleft()))
        return todo

    def settle(self) -> None:
        for _ in range(2_000):
            if not (todo := self.work()):
                return
            todo[0]()
        raise AssertionError("the candidates never come to rest")

    def assert_settled(self) -> None:
        """The holder of the lowest znode leads, alone; each other one watches the next lower one."""
        ranked = self.ranked
        assert {id(owner) for owner in self.names.values()} == {id(contender) for contender in self.living}
        for contender in self.living:
            own = [name for name in ranked if self.names[name] is contender]
            place = ranked.index(own[0])
            assert contender.candidate.name == own[0]
            assert contender.candidate.leads == (place == 0)
            if place:
                assert contender.candidate.standing is e.ElectionPhase.FOLLOWING
                assert contender.watched == ranked[place - 1]


happenings = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 99)), max_size=80)


def happen(folder: Folder, kind: int, choice: int) -> None:
    """Mostly the ordinary course of things, now and then a join, an expiry or a pause."""
    living = folder.living
    if kind == 0 and len(living) < 6:
        folder.join()
    elif kind == 1 and living:
        folder.expire(living[choice % len(living)])
    elif kind == 2 and living:
        living[choice % len(living)].feed(e.Resumed())
    elif todo := folder.work(("answered", "lost", "unsent")):
        todo[choice % len(todo)]()


@settings(max_examples=150)
@given(st.integers(1, 5), happenings)
def test_the_lowest_leads_and_nobody_else(contenders: int, happened: list[tuple[int, int]]) -> None:
    """Without a hand in the folder no two living candidates ever lead, and the lowest one does in the end."""
    folder = Folder(contenders)
    for kind, choice in happened:
        happen(folder, kind, choice)
        assert sum(contender.candidate.leads for contender in folder.living) <= 1
    folder.settle()
    folder.assert_settled()


@settings(max_examples=150)
@given(st.integers(1, 5), happenings)
def test_znodes_deleted_by_hand_are_made_again(contenders: int, happened: list[tuple[int, int]]) -> None:
    """Once everybody has looked again, everybody has a znode, and the lowest alone leads."""
    folder = Folder(contenders)
    for kind, choice in happened:
        if kind == 3 and folder.names:
            folder.remove(folder.ranked[choice % len(folder.names)])
        else:
            happen(folder, kind, choice)
    # Who makes a znode after everybody has looked is the highest, and changes no other's place.
    for _ in range(2):
        folder.settle()
        for contender in folder.living:
            contender.feed(e.Resumed())
    folder.settle()
    folder.assert_settled()


def test_a_death_wakes_the_next_one_only() -> None:
    """Of many candidates, one reads the folder when the leader dies."""
    folder = Folder(20)
    folder.settle()
    leader = next(contender for contender in folder.living if contender.candidate.leads)
    folder.expire(leader)
    assert sum(len(contender.answers) for contender in folder.living) == 1
    folder.settle()
    folder.assert_settled()
