"""The leader of rounds: when it begins one, whom it waits for, and what it publishes or gives up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import pytest

from kiel_groups.config import DebounceConfig, GroupConfig
from kiel_groups.group.rounds import Choice
from kiel_groups.group.znodes.contents import DONE
from kiel_groups.group.znodes.round_contents import JOINING, Offer, OfferedProtocol, RoundAssignment, RoundState
from kiel_groups.group.znodes.transactions import Unknown
from kiel_groups.members.programs.rounds import RoundExchange, RoundPlanner
from kiel_groups.members.zookeeper.leader import LeaderDriver
from kiel_groups.metrics import Metrics
from kiel_groups.zookeeper import tasks as slow_step
from kiel_groups.zookeeper.tasks import TaskSet
from tests.helpers.contexts import session_context
from tests.helpers.round_znodes import CANDIDATE, LAYOUT, RoundZnodes, member_of
from tests.helpers.waiting import eventually, throughout

pytestmark = pytest.mark.unit

soon = partial(eventually, timeout_s=5.0)


class Bench:
    """A leader, the member "m", that plans without a delay; its program assigns when the test calls ``assign``."""

    def __init__(self, rebalance_timeout_s: float = 60.0) -> None:
        self.znodes, self.metrics = RoundZnodes(), Metrics()
        self.doubts = 0
        self.exchange = RoundExchange(lambda: None)
        self._timeout_s = rebalance_timeout_s
        self._failures: list[BaseException] = []

    @asynccontextmanager
    async def leading(self) -> AsyncIterator[LeaderDriver]:
        """Lead during the block."""
        tasks = TaskSet(self._failures.append)
        config = GroupConfig(group="g", debounce=DebounceConfig(quiet_ms=0, bound_ms=0, initial_delay_ms=0))
        shared = session_context(self.znodes, config=config, tasks=tasks, metrics=self.metrics)
        context = replace(shared, layout=LAYOUT)

        def planner(requests: LeaderDriver) -> RoundPlanner:
            return RoundPlanner(context, self.exchange, self._timeout_s, requests)

        driver = LeaderDriver(context, planner, self._doubt)
        driver.lead(CANDIDATE, succeeds=True)
        try:
            yield driver
        finally:
            driver.close()
            await tasks.cancel()
        assert not self._failures

    def _doubt(self) -> None:
        self.doubts += 1

    def join(self, name: str, joined: int, *protocols: str) -> None:
        offer = Offer("type", tuple(OfferedProtocol(each, name.encode()) for each in protocols or ("p",)))
        self.znodes.put(LAYOUT.member(name), member_of(name, joined, offer))

    def leave(self, name: str) -> None:
        self.znodes.delete(LAYOUT.member(name))

    @property
    def state(self) -> RoundState | None:
        data = self.znodes.nodes.get(LAYOUT.group_state)
        return None if data is None else RoundState.parse(data, "path")

    @property
    def phase(self) -> tuple[int, str]:
        return (0, "") if self.state is None else (self.state.generation, self.state.state)

    async def gathered(self, generation: int) -> Choice:
        """Wait until the leader has gathered the members of a generation, and return them."""
        return await soon(lambda: self.exchange.choice_of(generation), f"round {generation} is gathered")

    async def assign(self, generation: int, **assignments: bytes) -> Choice:
        """As the member, bring the assignments when the round is gathered; wait until they are published."""
        choice = await self.gathered(generation)
        self.exchange.assign(generation, assignments)
        await soon(lambda: self.phase == (generation, DONE), f"round {generation} is published")
        return choice

    @property
    def assignments(self) -> Mapping[str, bytes]:
        prefix = f"{LAYOUT.group_state}/"
        found = [
            RoundAssignment.parse(data, path) for path, data in self.znodes.nodes.items() if path.startswith(prefix)
        ]
        return {each.member_id: each.assignment for each in found}


async def test_a_round_gathers_all_members_and_publishes_their_assignments() -> None:
    """The round begins, waits for its members in the order of registration, and ends with all assignments."""
    bench = Bench()
    bench.join("m", 0)
    bench.join("a", 0)
    async with bench.leading() as driver:
        await soon(lambda: bench.phase == (1, JOINING), "the round begins")
        assert not driver.alone
        bench.join("m", 1)
        await throughout(lambda: bench.exchange.choice_of(1) is None, "the round waits for a", 0.05)
        bench.join("a", 1)
        choice = await bench.assign(1, m=b"1", a=b"2")
    assert choice == Choice("p", {"m": b"m", "a": b"a"}, {})
    assert bench.assignments == {"m": b"1", "a": b"2"}
    assert bench.state is not None
    assert (bench.state.leader, bench.state.protocol, bench.state.members) == ("m", "p", ("m", "a"))
    assert bench.metrics.total("rounds_gathered") == 1
    assert all(CANDIDATE in {operation.path for operation in written} for written in bench.znodes.written)


async def test_a_stable_group_is_left_alone() -> None:
    """A leader that reads a complete round of all live members begins none, also when it reads everything again."""
    bench = Bench()
    bench.join("m", 3)
    bench.znodes.put(LAYOUT.group_state, RoundState(generation=3, state=DONE, leader="m", members=("m",)).encode())
    async with bench.leading() as driver:
        await throughout(lambda: bench.phase == (3, DONE), "no round begins", 0.05)
        assert driver.alone
        driver.lead(CANDIDATE, succeeds=False)
        await throughout(lambda: bench.phase == (3, DONE), "no round begins", 0.05)


async def test_a_member_that_leaves_is_not_waited_for() -> None:
    """A member whose znode is gone does not delay the round, and its assignment is deleted."""
    bench = Bench()
    bench.znodes.put(LAYOUT.group_state, RoundState(generation=3, state=DONE, leader="m", members=("m", "a")).encode())
    bench.znodes.put(LAYOUT.assignment("a"), RoundAssignment(3, "a", b"old").encode())
    bench.join("m", 4)
    bench.join("a", 3)
    async with bench.leading():
        await soon(lambda: bench.phase == (4, JOINING), "the round begins")
        bench.leave("a")
        assert (await bench.assign(4, m=b"all")).members == {"m": b"m"}
    assert bench.assignments == {"m": b"all"}


async def test_a_member_that_registers_during_a_round_is_waited_for() -> None:
    """Its registration has joined the round, so it gets an assignment without another one."""
    bench = Bench()
    bench.join("m", 0)
    async with bench.leading():
        await soon(lambda: bench.phase == (1, JOINING), "the round begins")
        bench.join("late", 1)
        bench.join("m", 1)
        assert (await bench.assign(1)).members.keys() == {"m", "late"}
        await throughout(lambda: bench.phase == (1, DONE), "no other round begins", 0.05)


async def test_a_round_continues_without_latecomers(caplog: pytest.LogCaptureFixture) -> None:
    """After the rebalance timeout, members that have not joined get no assignment, which is logged and counted."""
    bench = Bench(rebalance_timeout_s=1.0)
    bench.join("m", 1)
    bench.join("late", 0)
    async with bench.leading():
        await soon(lambda: bench.phase == (2, JOINING), "the round begins")
        bench.join("m", 2)
        assert (await bench.assign(2)).members.keys() == {"m"}
        assert "continuing round 2 without 1 member that have not given the last assignment back" in caplog.text
        assert bench.metrics.total("rounds_incomplete") == 1
        bench.join("late", 3)
        bench.join("m", 3)
        assert (await bench.assign(3)).members.keys() == {"m", "late"}


async def test_a_round_that_waits_names_its_latecomers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Long before the rebalance timeout, the leader's log says who has not joined; then it says nothing more."""
    monkeypatch.setattr(slow_step, "FIRST_S", 0.02)
    bench = Bench()
    for name in ("m", "late", "later"):
        bench.join(name, 1)
    async with bench.leading():
        await soon(lambda: bench.phase == (2, JOINING), "the round begins")
        bench.join("m", 2)
        expected = "waited 0 s for 2 members to give the last assignment back and join: late, later; it continues"
        await soon(lambda: f"group g: round 2 has {expected} without them after 60 s" in caplog.text, "a warning")
        bench.join("late", 2)
        await soon(lambda: "for 1 member to give the last assignment back and join: later;" in caplog.text, "a warning")
        bench.join("later", 2)
        await bench.assign(2)
        caplog.clear()
        await throughout(lambda: "give the last assignment back" not in caplog.text, "no warning comes", 0.1)


async def test_a_leader_that_offers_nothing_ends_its_session_for_that_reason() -> None:
    """The reason is not that its program has been late."""
    bench = Bench()
    bench.znodes.put(LAYOUT.member("m"), member_of("m", 1, Offer("type", ())))
    async with bench.leading():
        await soon(lambda: bench.phase == (2, JOINING), "the round begins")
        bench.znodes.put(LAYOUT.member("m"), member_of("m", 2, Offer("type", ())))
        await soon(lambda: bench.znodes.end_reasons, "the session is ended")
    assert bench.znodes.end_reasons[0] == "it offers no protocol, so it cannot lead"


async def test_a_leader_whose_program_has_not_given_back_ends_its_session() -> None:
    """The group needs a leader that can assign: nothing is published."""
    bench = Bench(rebalance_timeout_s=0.05)
    bench.join("m", 1)
    bench.join("a", 2)
    async with bench.leading():
        await soon(lambda: bench.znodes.end_reasons, "the session is ended")
    assert bench.phase[1] == JOINING
    assert bench.znodes.end_reasons[0].startswith("its program has not given its assignment back in time")


async def test_a_leader_whose_program_does_not_assign_ends_its_session() -> None:
    """After the rebalance timeout, another member has to lead: the others have no assignment meanwhile."""
    bench = Bench(rebalance_timeout_s=1.0)
    bench.join("m", 0)
    async with bench.leading():
        await soon(lambda: bench.phase == (1, JOINING), "the round begins")
        bench.join("m", 1)
        await bench.gathered(1)
        await soon(lambda: bench.znodes.end_reasons, "the session is ended")
    assert bench.phase == (1, JOINING)
    assert bench.znodes.end_reasons[0].startswith("its program has not made the assignments in time")


async def test_the_leader_waits_for_its_own_unreadable_znode() -> None:
    """An operator has garbled the leader's own member znode; its member writes it again, when it joins the round."""
    bench = Bench()
    bench.znodes.put(LAYOUT.member("m"), b"garbage")
    bench.join("a", 0)
    async with bench.leading():
        await soon(lambda: bench.phase == (1, JOINING), "the round begins")
        bench.join("a", 1)
        await throughout(lambda: bench.exchange.choice_of(1) is None, "the round waits for m", 0.05)
        bench.join("m", 1)
        await bench.assign(1)
    assert bench.znodes.end_reasons == []


async def test_a_member_without_a_common_protocol_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """The state says why, and the log tells operators."""
    bench = Bench()
    bench.join("m", 1, "x")
    bench.join("odd", 1, "y")
    async with bench.leading():
        await soon(lambda: bench.phase == (2, JOINING), "the round begins")
        bench.join("odd", 2, "y")
        bench.join("m", 2, "x")
        await bench.assign(2)
    assert bench.state is not None
    assert bench.state.refused == {"odd": "it offers y; the others have x in common"}
    assert "member odd is refused: it offers y" in caplog.text


@pytest.mark.parametrize("moment", ["gathering", "assigning"])
@pytest.mark.parametrize("what", ["deleted", "garbled"])
async def test_a_round_whose_state_is_damaged_is_begun_again(moment: str, what: str) -> None:
    """The members wait for a round that they can read, and the leader must not wait for them."""
    bench = Bench()
    bench.join("m", 0)
    async with bench.leading():
        await soon(lambda: bench.phase == (1, JOINING), "the round begins")
        if moment == "assigning":
            bench.join("m", 1)
            await bench.gathered(1)
        if what == "deleted":
            bench.znodes.delete(LAYOUT.group_state)
        else:
            bench.znodes.put(LAYOUT.group_state, b"garbage")
        generation = 2 if moment == "assigning" else 1
        await soon(
            lambda: LAYOUT.group_state in bench.znodes.nodes and bench.znodes.nodes[LAYOUT.group_state] != b"garbage",
            "another round begins",
        )
        assert bench.phase == (generation, JOINING)
        bench.join("m", generation)
        await bench.assign(generation)


async def test_an_interrupted_publication_is_followed_by_another_round() -> None:
    """If the outcome of a write is unknown, and the round is not done, the leader begins the next one."""
    bench = Bench()
    bench.join("m", 0)
    async with bench.leading():
        await soon(lambda: bench.phase == (1, JOINING), "the round begins")
        bench.join("m", 1)
        await bench.gathered(1)
        bench.znodes.answers = [Unknown()]
        bench.exchange.assign(1, {})
        await soon(lambda: bench.phase == (2, JOINING), "another round begins")
        assert bench.state is not None
        assert bench.state.cause == "round interrupted"


@pytest.mark.parametrize("moment", ["gathering", "assigning"])
async def test_a_leader_that_resigns_gives_its_round_up(moment: str) -> None:
    """Nothing is published after another candidate leads."""
    bench = Bench()
    bench.join("m", 0)
    async with bench.leading() as driver:
        await soon(lambda: bench.phase == (1, JOINING), "the round begins")
        if moment == "assigning":
            bench.join("m", 1)
            await bench.gathered(1)
        driver.resign()
        bench.join("m", 1)
        await soon(lambda: bench.exchange.choice_of(1) is None, "the round is given up")
        bench.exchange.assign(1, {"m": b"1"})
        await asyncio.sleep(0)
        assert bench.phase == (1, JOINING)


async def test_a_lost_watch_is_made_up_for() -> None:
    """A leader that is confirmed by the regular check reads the members again, also during a round."""
    bench = Bench()
    bench.join("m", 0)
    bench.join("a", 0)
    async with bench.leading() as driver:
        await soon(lambda: bench.phase == (1, JOINING), "the round begins")
        bench.join("m", 1)
        await throughout(lambda: bench.exchange.choice_of(1) is None, "the round waits for a", 0.02)
        bench.znodes.nodes[LAYOUT.member("a")] = member_of("a", 1)
        driver.lead(CANDIDATE, succeeds=False)
        await bench.assign(1)


async def test_no_generation_is_reused_that_the_member_has_read() -> None:
    """The state, and what the members know of it, may be lost; the leader's own member has read a generation."""
    bench = Bench()
    bench.exchange.newest = 7
    bench.join("a", 0)
    async with bench.leading():
        await soon(lambda: bench.phase == (8, JOINING), "the round begins")
