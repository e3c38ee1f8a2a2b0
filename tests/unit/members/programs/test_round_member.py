"""The registration of a member, its joins, and how it gets its assignment or the reason for which there is none."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from kiel_groups.errors import ConfigError, CoordinationError, SessionLostError
from kiel_groups.group.rounds import Choice
from kiel_groups.group.znodes.contents import DONE
from kiel_groups.group.znodes.round_contents import (
    JOINING,
    Offer,
    OfferedProtocol,
    RoundAssignment,
    RoundMember,
    RoundState,
)
from kiel_groups.group.znodes.transactions import Failure, Refused, Unknown
from kiel_groups.members.programs.rounds import JoinedRound, RoundMembership
from kiel_groups.metrics import Metrics
from kiel_groups.zookeeper.tasks import TaskSet
from tests.helpers.contexts import session_context
from tests.helpers.round_znodes import LAYOUT, OFFER, RoundZnodes
from tests.helpers.waiting import run_ready_tasks

pytestmark = pytest.mark.unit


class Bench:
    """The member "m" on a fake session; ``offer`` is what it joins with next."""

    def __init__(self) -> None:
        self.znodes, self.metrics = RoundZnodes(), Metrics()
        self.failures: list[BaseException] = []
        self.tasks = TaskSet(self.failures.append)
        self.offer = OFFER
        context = replace(session_context(self.znodes, tasks=self.tasks, metrics=self.metrics), layout=LAYOUT)
        self.membership = RoundMembership(context, self._offer)

    async def _offer(self) -> Offer:
        return self.offer

    def write(self, generation: int, state: str, *members: str, leader: str = "l", **more: object) -> None:
        """Write the newest round, as its leader does."""
        found = RoundState(generation=generation, state=state, leader=leader, members=members, **more)  # type: ignore[arg-type]
        self.znodes.put(LAYOUT.group_state, found.encode())

    def assign(self, generation: int, data: bytes, member: str = "m") -> None:
        self.znodes.put(LAYOUT.assignment("m"), RoundAssignment(generation, member, data).encode())

    @property
    def written(self) -> RoundMember:
        """The member znode."""
        return RoundMember.parse("m", self.znodes.nodes[LAYOUT.member("m")], "path")

    async def joining(self) -> asyncio.Task[JoinedRound]:
        """Register unless that is done, begin to join, and follow the rounds."""
        if LAYOUT.member("m") not in self.znodes.nodes:
            await self.membership.register()
        self.membership.recheck()
        task = asyncio.ensure_future(self.membership.join())
        await run_ready_tasks()
        return task


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    assert not made.failures


# Registration


@pytest.mark.parametrize(
    ("generation", "state", "joined"), [(None, "", 0), (4, DONE, 5), (4, JOINING, 4)], ids=["first", "done", "joining"]
)
async def test_a_registration_joins_the_next_round(
    bench: Bench, generation: int | None, state: str, joined: int
) -> None:
    """A new member waits for the next round, or takes part in the one that waits for members."""
    if generation is not None:
        bench.write(generation, state)
    await bench.membership.register()
    assert (bench.written.joined, bench.written.offer) == (joined, OFFER)


async def test_a_registration_whose_answer_was_lost_is_found(bench: Bench) -> None:
    """If the first answer was lost, an existing znode is this member's own. Missing folders are created."""
    bench.znodes.answers = [
        Refused(0, Failure.NO_NODE),
        Unknown(),
        Refused(0, Failure.NODE_EXISTS),
    ]
    await bench.membership.register()
    assert bench.znodes.ensured == [LAYOUT.parents]


@pytest.mark.parametrize("failure", [Failure.NODE_EXISTS, Failure.NO_AUTH])
async def test_a_refused_registration_is_an_error(bench: Bench, failure: Failure) -> None:
    """A znode that exists without an unanswered attempt is not this member's."""
    bench.znodes.answers = [Refused(0, failure)]
    with pytest.raises(CoordinationError, match=f"refused to register .*: {failure.name}"):
        await bench.membership.register()


async def test_an_offer_that_is_too_large_is_refused(bench: Bench) -> None:
    """What a member offers must fit into its znode, at the registration and at each join."""
    await bench.membership.register()
    bench.offer = Offer("type", (OfferedProtocol("large", bytes(800_000)),))
    with pytest.raises(ConfigError, match=r"what this member offers \(large\) takes 1041 KiB in ZooKeeper"):
        await bench.membership.register()
    bench.write(1, DONE)
    task = await bench.joining()
    bench.write(2, DONE)
    await run_ready_tasks()
    with pytest.raises(ConfigError, match="takes 1041 KiB"):
        await task


# Joins


async def test_a_member_joins_when_the_round_begins(bench: Bench) -> None:
    """The join is answered when the leader begins the round that the member waits for."""
    bench.write(4, DONE)
    task = await bench.joining()
    assert not task.done()
    bench.write(5, JOINING)
    assert await task == JoinedRound(5, "l")


async def test_the_first_members_learn_the_generation_from_the_leader(bench: Bench) -> None:
    """A member that knows no round joins the first one under its number."""
    task = await bench.joining()
    bench.write(1, JOINING)
    assert await task == JoinedRound(1, "l")
    assert bench.written.joined == 1


async def test_a_round_that_was_complete_before_the_join_is_joined(bench: Bench) -> None:
    """The registration is a join. The round may be complete before the member asks for it."""
    bench.write(4, JOINING)
    await bench.membership.register()
    bench.write(4, DONE, "m")
    task = await bench.joining()
    assert await task == JoinedRound(4, "l")
    assert bench.written.joined == 4


async def test_a_member_that_was_not_waited_for_joins_the_next_round(bench: Bench) -> None:
    """If the round is complete without the member, it asks for another one, with fresh metadata."""
    bench.write(4, JOINING)
    await bench.membership.register()
    bench.write(4, DONE, "others")
    bench.offer = Offer("type", (OfferedProtocol("fresh", b""),))
    task = await bench.joining()
    assert not task.done()
    assert (bench.written.joined, bench.written.offer) == (5, bench.offer)
    bench.write(7, JOINING)
    assert await task == JoinedRound(7, "l")


async def test_a_deleted_state_is_waited_out(bench: Bench) -> None:
    """A member that waits while the state is deleted joins the round that comes after that."""
    bench.write(4, DONE)
    task = await bench.joining()
    bench.znodes.delete(LAYOUT.group_state)
    await run_ready_tasks()
    assert not task.done()
    bench.write(6, JOINING)
    assert await task == JoinedRound(6, "l")


async def test_a_rejoin_without_a_state_keeps_the_last_generation(bench: Bench) -> None:
    """The leader then begins a later generation than that of any member."""
    bench.write(4, DONE)
    task = await bench.joining()
    bench.write(5, JOINING)
    await task
    bench.znodes.delete(LAYOUT.group_state)
    again = await bench.joining()
    assert bench.written.joined == 5
    assert not again.done()
    again.cancel()


async def test_a_leader_joins_when_its_round_is_gathered(bench: Bench) -> None:
    """Only the leader of this process knows the members; the state alone does not answer the leader's join."""
    bench.write(4, DONE)
    task = await bench.joining()
    bench.write(5, JOINING, leader="m")
    await run_ready_tasks()
    assert not task.done()
    waiting = asyncio.ensure_future(bench.membership.exchange.assignments_of(5, Choice("p", {"m": b"data"}, {})))
    assert await task == JoinedRound(5, "m", "p", {"m": b"data"})
    waiting.cancel()


async def test_a_refused_member_is_told_the_reason(bench: Bench) -> None:
    """The reason comes with the join, or after it, if the round had only begun then."""
    bench.write(4, DONE)
    task = await bench.joining()
    bench.write(5, DONE, "l", refused={"m": "why"})
    assert await task == JoinedRound(5, "l", refused="why")
    assert bench.membership.refusal(5) == "why"
    assert bench.membership.refusal(4) == ""


async def test_a_member_whose_znode_is_gone_ends_its_session(bench: Bench) -> None:
    """A join that ZooKeeper refuses because the member znode was deleted ends the membership."""
    bench.write(4, DONE)
    task = await bench.joining()
    bench.znodes.delete(LAYOUT.member("m"))
    bench.write(5, DONE, "others")
    await run_ready_tasks()
    with pytest.raises(SessionLostError, match="is gone"):
        await task
    assert bench.znodes.end_reasons == ["the member znode is gone"]


async def test_a_join_whose_answer_is_lost_is_repeated(bench: Bench) -> None:
    """Writing the same generation twice changes nothing."""
    bench.write(4, DONE)
    await bench.membership.register()
    bench.write(4, DONE, "others")
    task = await bench.joining()
    bench.znodes.answers = [Unknown(), Unknown()]
    bench.write(5, DONE, "others")
    await run_ready_tasks()
    assert bench.written.joined == 6
    task.cancel()


async def test_an_overwritten_member_znode_is_restored(bench: Bench) -> None:
    """The regular check writes the member's data again, and nothing if it is as it was."""
    await bench.membership.register()
    await bench.membership.restore()
    count = len(bench.znodes.written)
    bench.znodes.put(LAYOUT.member("m"), b"garbage")
    await bench.membership.restore()
    assert bench.written.offer == OFFER
    assert len(bench.znodes.written) == count + 1


# Assignments


async def synced(bench: Bench) -> asyncio.Task[bytes | None]:
    """Join round 5, and wait for its assignment."""
    bench.write(4, DONE)
    task = await bench.joining()
    bench.write(5, JOINING)
    await task
    sync = asyncio.ensure_future(bench.membership.sync(5, {}))
    await run_ready_tasks()
    assert not sync.done()
    return sync


async def test_an_assignment_is_read_when_the_round_is_done(bench: Bench) -> None:
    """An assignment that is stored already is not read before all assignments are."""
    sync = await synced(bench)
    bench.assign(5, b"mine")
    await run_ready_tasks()
    assert not sync.done()
    bench.write(5, DONE, "m")
    assert await sync == b"mine"


@pytest.mark.parametrize("what", ["another round", "not a member", "gone", "garbage", "older", "of another member"])
async def test_without_its_assignment_a_member_joins_again(bench: Bench, what: str) -> None:
    """There is no assignment if the round was replaced, or if the znode is not this round's for this member."""
    sync = await synced(bench)
    match what:
        case "garbage":
            bench.znodes.put(LAYOUT.assignment("m"), b"garbage")
        case "older":
            bench.assign(4, b"old")
        case "of another member":
            bench.assign(5, b"other", "n")
        case "another round" | "not a member":
            bench.assign(5, b"mine")
    if what == "another round":
        bench.write(6, JOINING)
    else:
        bench.write(5, DONE, *(["n"] if what == "not a member" else ["m"]))
    assert await sync is None
    assert bench.metrics.total("znodes_unreadable") == (what == "garbage")


async def test_the_leader_brings_the_assignments(bench: Bench) -> None:
    """The sync of the leader hands the assignments of its round to the leader of the process."""
    bench.write(4, DONE)
    task = await bench.joining()
    bench.write(5, JOINING, leader="m")
    waiting = asyncio.ensure_future(bench.membership.exchange.assignments_of(5, Choice("p", {"m": b""}, {})))
    await task
    sync = asyncio.ensure_future(bench.membership.sync(5, {"m": b"mine"}))
    assert await waiting == {"m": b"mine"}
    bench.assign(5, b"mine")
    bench.write(5, DONE, "m", leader="m")
    assert await sync == b"mine"


# Following


async def test_each_round_is_reported_once(bench: Bench) -> None:
    """A round that is read again is not reported again; garbage counts as no round."""
    reported: list[RoundState | None] = []
    bench.membership.on_round = lambda: reported.append(bench.membership.state)
    bench.membership.recheck()
    bench.membership.recheck()
    await run_ready_tasks()
    bench.write(1, JOINING)
    await run_ready_tasks()
    bench.membership.recheck()
    await run_ready_tasks()
    bench.znodes.put(LAYOUT.group_state, b"garbage")
    await run_ready_tasks()
    assert [state and state.generation for state in reported] == [1, None]
    assert bench.membership.exchange.newest == 1
    assert bench.metrics.total("znodes_unreadable") == 1
