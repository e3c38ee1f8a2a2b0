"""Laws of worker groups, for any changes of the configuration, joins, leaves, losses, and workers that are behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiel_groups.workers.values import ConfigSnapshot, ConnectorId, TaskId, Work
from tests.helpers.examples import examples
from tests.helpers.fake_worker_group import Assigned, FakeWorkerGroup, config_of

pytestmark = pytest.mark.property

NAMES = ("v", "w", "x", "y", "z")

#: What happens to the group, and the number that chooses the worker or the configuration.
Step: TypeAlias = tuple[str, int]

steps = st.lists(
    st.tuples(
        st.sampled_from(["change", "add", "leave", "lose", "lag", "catch up", "rebalance", "rebalance", "wait"]),
        st.integers(0, 30),
    ),
    max_size=25,
)


class Scenario:
    """A group, what happens to it, and what must hold after each step."""

    def __init__(self, allocator: str, seed: int) -> None:
        self.allocator = allocator
        self.group = FakeWorkerGroup("v", "w", allocator=allocator, seed=seed)
        self.seen = 0
        #: The workers that may have work, by the calls of their listeners.
        self.busy: set[str] = set()

    def play(self, step: Step) -> None:
        group, (what, number) = self.group, step
        workers = sorted(group.workers)
        name = workers[number % len(workers)] if workers else ""
        match what:
            case "change":
                group.config = changed(group.config, number)
            case "add":
                if NAMES[number % 5] not in workers:
                    group.add(NAMES[number % 5], self.allocator)
            case "leave" if len(workers) > 1:
                group.leave(name)
            case "lose":
                group.lose(name)
            case "lag":
                group[name].stuck_at = group[name].hooks.config.newest or config_of(0)
            case "catch up":
                group[name].stuck_at = None
            case "rebalance":
                group.rebalance(leader=name)
            case _:
                group.pass_s(number / 10)
        self.check()

    def check(self) -> None:
        """Check each new call of a listener: its order, its assignment, and the configuration that the worker has."""
        for call in self.group.calls[self.seen :]:
            if not isinstance(call, Assigned):
                assert call.worker in self.busy
                self.busy.remove(call.worker)
                continue
            assert call.worker not in self.busy
            assert not (call.assignment.is_failed and call.assignment.works)
            if not call.assignment.is_failed:
                self.busy.add(call.worker)
                assert self.group[call.worker].hooks.config.has(call.assignment.offset)
        self.seen = len(self.group.calls)

    def settle(self) -> None:
        """Rebalance while workers may be behind, let all catch up, and rebalance as long as one asks for it."""
        self.group.rebalance()
        for worker in self.group.workers.values():
            worker.stuck_at = None
        self.group.pass_s(15.0)
        for _ in range(3):
            if any(worker.need_rejoin for worker in self.group.workers.values()):
                self.group.rebalance()
                self.group.pass_s(15.0)
        self.check()


def changed(config: ConfigSnapshot, number: int) -> ConfigSnapshot:
    """Return the next configuration: one with up to four connectors and up to three tasks of each."""
    counts = {name: (number + place) % 5 - 1 for place, name in enumerate("abcd"[: number % 5])}
    return config_of(config.offset + 1, **{name: None if count < 0 else count for name, count in counts.items()})


@settings(max_examples=examples(200))
@given(st.sampled_from(["round_robin", "sticky"]), st.integers(0, 1000), steps)
def test_each_piece_of_work_has_one_worker_when_the_group_has_settled(
    allocator: str, seed: int, drawn: list[Step]
) -> None:
    """
    Listeners get assignments and their ends in turn, and no work before the worker has read its configuration. When all
    workers can read the configuration, each piece of work of one configuration is assigned once, evenly.
    """
    scenario = Scenario(allocator, seed)
    for step in drawn:
        scenario.play(step)
    scenario.settle()
    assert_settled(scenario.group, scenario.busy, allocator)
    # All workers may have been behind the last change, which a worker would have noticed.
    scenario.play(("rebalance", 0))
    assert_settled(scenario.group, scenario.busy, allocator)
    assert scenario.group.owners().keys() == set(scenario.group.config.works())


def assert_settled(group: FakeWorkerGroup, busy: set[str], allocator: str) -> None:
    assignments = {name: worker.hooks.assignment for name, worker in group.workers.items()}
    assert not [name for name, each in assignments.items() if each is None or each.is_failed]
    assert busy == group.workers.keys()
    assert len({each.offset for each in assignments.values() if each is not None}) == 1
    shares = [each.works for each in assignments.values() if each is not None]
    # Round robin divides all work evenly, sticky connectors and tasks each.
    for kind in (ConnectorId, TaskId) if allocator == "sticky" else (object,):
        loads = [sum(isinstance(work, kind) for work in works) for works in shares]
        assert max(loads) - min(loads) <= 1


def owner_urls(group: FakeWorkerGroup, knows: Callable[[str], bool]) -> dict[str, dict[Work, str | None]]:
    works = group.config.works()
    return {name: {work: group[name].hooks.owner_url(work) for work in works} for name in group.workers if knows(name)}


@given(st.integers(0, 30), st.sets(st.sampled_from(NAMES), min_size=1), st.data())
def test_the_leader_alone_knows_the_owner_of_each_work(number: int, names: set[str], data: st.DataObject) -> None:
    """In a stable group, the leader names the URL of the worker that has the work; the others name none."""
    group = FakeWorkerGroup(*names)
    group.config = changed(group.config, number)
    leader = data.draw(st.sampled_from(sorted(names)))
    group.rebalance(leader)
    expected = {work: f"http://{owner}:8083/" for work, owner in group.owners().items()}
    assert owner_urls(group, lambda name: name == leader) == {leader: expected}
    others = owner_urls(group, lambda name: name != leader)
    assert all(set(urls.values()) <= {None} for urls in others.values())
