"""What a member hears from its coordinator on ZooKeeper, by what happens to its session and to the rounds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from kiel_groups.errors import (
    AuthorizationError,
    BrokerError,
    ConfigError,
    GroupConfigError,
    KielGroupsError,
    NoZooKeeperError,
)
from kiel_groups.group.member_state import CoordinatorCode, GroupRequest
from kiel_groups.group.znodes.contents import DONE
from kiel_groups.group.znodes.round_contents import Offer, OfferedProtocol, RoundState
from kiel_groups.members.brokers.coordinator import BeatTarget
from kiel_groups.members.brokers.hooks import JoinedGroup
from kiel_groups.members.brokers.transport import BeatAnswer, FindError
from kiel_groups.members.programs import zookeeper_coordinator
from kiel_groups.members.programs.rounds import JoinedRound
from kiel_groups.members.programs.zookeeper_coordinator import ZooKeeperCoordinator
from kiel_groups.model import GenerationToken
from kiel_groups.wire.group_requests import GroupProtocol
from kiel_groups.zookeeper.delivery_gate import DeliveryGate
from kiel_groups.zookeeper.tasks import CloseLimit
from tests.helpers.contexts import process_context
from tests.helpers.waiting import run_ready_tasks

pytestmark = pytest.mark.unit

C = CoordinatorCode


class Hooks:
    """A program that offers one protocol."""

    protocol_type = "type"

    async def protocols(self) -> Sequence[GroupProtocol]:
        return [GroupProtocol("p", b"data")]


@dataclass
class Membership:
    """The rounds of a fake session: ``joined`` and ``assignment`` are the answers, or errors to raise."""

    joined: JoinedRound | Exception = field(default_factory=lambda: JoinedRound(5, "l"))
    assignment: bytes | Exception | None = b"mine"
    refused: str = ""
    state: RoundState | None = None
    on_round: Callable[[], None] = lambda: None
    waits: bool = False
    brought: Mapping[str, bytes] | None = None

    async def _answer(self, answer: Any) -> Any:
        if self.waits:
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def join(self) -> JoinedRound:
        return await self._answer(self.joined)

    async def sync(self, generation: int, assignments: Mapping[str, bytes]) -> bytes | None:
        self.brought = assignments
        return await self._answer(self.assignment)

    def refusal(self, generation: int) -> str:
        return self.refused


class FakeSession:
    """Stands for a session of the process in its group."""

    opening: Exception | None = None
    made: ClassVar[list[FakeSession]] = []

    def __init__(self, process: object, kind: object, *, first: bool, denied: Exception | None) -> None:
        self.first, self.denied = first, denied
        self.member_id = f"m{len(self.made) + 1}"
        self.membership = Membership()
        self.role = SimpleNamespace(membership=self.membership)
        self.over: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self.calls: list[str] = []
        gate = DeliveryGate()
        gate.grant(10_000, 0.0)
        gate.renew(100.0)
        self.session = SimpleNamespace(
            gate=gate,
            ended="it expired",
            abandon=lambda why: self.calls.append(f"abandon: {why}"),
            abandoned_within=lambda why, timeout_s: timeout_s > 1.0,
        )
        self.made.append(self)

    async def join(self, by_s: float) -> None:
        if self.opening is not None:
            raise self.opening

    @property
    def ended(self) -> bool:
        return self.over.done()

    async def leave(self) -> None:
        self.calls.append("leave")
        await self.close()

    def close(self) -> asyncio.Future[BaseException | None]:
        self.calls.append("close")
        self.end()
        return self.over

    async def close_within(self, limit: CloseLimit) -> None:
        await self.close()

    def end(self, error: BaseException | None = None) -> None:
        if not self.over.done():
            self.over.set_result(error)


class Bench:
    """A coordinator, and what it has reported: a code, or why there is none."""

    def __init__(self) -> None:
        self.reports: list[int | str] = []
        self.reasons: list[str] = []
        self.coordinator = ZooKeeperCoordinator(process_context(), Hooks(), 60.0, self._report)  # type: ignore[arg-type]

    def _report(self, target: BeatTarget, answer: BeatAnswer) -> None:
        self.reports.append(answer.failure if answer.code is None else answer.code)
        self.reasons.append(answer.failure)

    @property
    def session(self) -> FakeSession:
        return FakeSession.made[-1]

    @property
    def membership(self) -> Membership:
        return self.session.membership

    async def follow(self, generation: int = 5) -> None:
        """Find the coordinator, and follow a membership in a generation, which is the newest one."""
        number = await self.coordinator.find()
        self.membership.state = RoundState(generation=generation, state=DONE, leader="l")
        gate = self.coordinator.new_gate(GenerationToken(generation, self.session.member_id), 0.0)
        self.coordinator.follow(BeatTarget(number, gate))
        await run_ready_tasks()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(zookeeper_coordinator, "GroupSession", FakeSession)
    monkeypatch.setattr(FakeSession, "made", [])
    return Bench()


# Sessions


async def test_each_session_is_a_coordinator_of_its_own(bench: Bench) -> None:
    """The coordinator stays the same while its session lasts; only the first session is strict about settings."""
    assert await bench.coordinator.find() == 1
    assert await bench.coordinator.find() == 1
    bench.session.end()
    assert await bench.coordinator.find() == 2
    assert [each.first for each in FakeSession.made] == [True, False]
    await run_ready_tasks()
    assert FakeSession.made[0].calls == ["close"]


async def test_a_session_tries_the_right_that_the_last_one_lacked(bench: Bench) -> None:
    """If a session was lost since for another reason, the member has worked without that right, or has had it."""
    error = AuthorizationError("no right to read /a", path="/a", right="read")
    for end in (error, None, None):
        await bench.coordinator.find()
        bench.session.end(end)
        await run_ready_tasks()
    assert [each.denied for each in FakeSession.made] == [None, error, None]


@pytest.mark.parametrize(
    ("error", "code", "raised"),
    [
        (NoZooKeeperError("no answer"), None, NoZooKeeperError),
        (GroupConfigError("another type"), C.INVALID_GROUP, GroupConfigError),
        (ConfigError("too large"), C.INVALID_GROUP, ConfigError),
    ],
)
async def test_a_session_that_cannot_join_is_tried_again_unless_it_is_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: KielGroupsError, code: int | None, raised: type
) -> None:
    """An error that a later try would meet again fails the member with that error."""
    monkeypatch.setattr(FakeSession, "opening", error)
    with pytest.raises(FindError) as found:
        await bench.coordinator.find()
    assert found.value.code == code
    if code is None:
        assert type(bench.coordinator.unreachable(found.value)) is raised
    else:
        assert bench.coordinator.refusal(GroupRequest.FIND, code) is error
    monkeypatch.setattr(FakeSession, "opening", None)
    assert await bench.coordinator.find() == 1


async def test_an_unreachable_zookeeper_has_an_error_of_its_own(bench: Bench) -> None:
    """If the last failure has no cause, the error says at least what failed."""
    assert isinstance(bench.coordinator.unreachable(BrokerError("over")), NoZooKeeperError)


async def test_the_end_of_a_session_is_reported(bench: Bench) -> None:
    """The member finds the next coordinator, and hears that it is unknown to the former one. Both name the session."""
    await bench.follow()
    bench.session.end()
    await run_ready_tasks()
    assert bench.reports == ["its ZooKeeper session is over: it expired", C.UNKNOWN_MEMBER]
    assert bench.reasons == ["its ZooKeeper session is over: it expired"] * 2


async def test_the_end_of_a_session_that_is_not_followed_is_not_reported(bench: Bench) -> None:
    """A member that joins, or has left, hears of it from its request."""
    await bench.follow()
    bench.coordinator.follow(None)
    bench.session.end()
    await run_ready_tasks()
    assert bench.reports == []


async def test_the_end_of_a_former_session_is_not_the_end_of_the_present_one(bench: Bench) -> None:
    """A membership on the next session hears nothing of the former one."""
    await bench.coordinator.find()
    bench.session.end()
    await bench.follow()
    assert len(FakeSession.made) == 2
    assert bench.reports == []


# Joins


async def test_a_join_brings_the_generation_and_the_members(bench: Bench) -> None:
    """The leader gets the metadata of all members, and every member its id and the leader's."""
    number = await bench.coordinator.find()
    bench.membership.joined = JoinedRound(5, "m1", "p", {"m1": b"data"})
    answer = await bench.coordinator.join(number, "")
    assert answer.error.number == 0
    assert answer.token == (5, "m1")
    assert answer.joined == JoinedGroup("p", "m1", {"m1": b"data"})
    assert answer.is_leader


async def refused(answer: Awaitable[Any], bench: Bench, request: GroupRequest, code: int) -> KielGroupsError:
    """Check the code of an answer, and that the session is closed; return the error of the member."""
    found = await answer
    await run_ready_tasks()
    assert found.error.number == code
    assert bench.session.calls[0] == "close"
    return bench.coordinator.refusal(request, code)


async def test_a_join_that_the_leader_refuses_closes_the_session(bench: Bench) -> None:
    """The error has the leader's reason and what to do; later rounds do not wait for this member."""
    number = await bench.coordinator.find()
    bench.membership.joined = JoinedRound(5, "l", refused="it offers y")
    error = await refused(bench.coordinator.join(number, ""), bench, GroupRequest.JOIN, C.INCONSISTENT_PROTOCOL)
    assert isinstance(error, GroupConfigError)
    assert "its leader refuses this member: it offers y. Give all members" in str(error)


async def test_an_offer_that_is_too_large_closes_the_session(bench: Bench) -> None:
    """The member stops with the error that says how large."""
    number = await bench.coordinator.find()
    bench.membership.joined = ConfigError("too large")
    error = await refused(bench.coordinator.join(number, ""), bench, GroupRequest.JOIN, C.INVALID_GROUP)
    assert error is bench.membership.joined


async def test_a_refusal_after_the_join_closes_the_session(bench: Bench) -> None:
    """The join was answered when the round began; the leader's choice is known at the sync."""
    number = await bench.coordinator.find()
    bench.membership.refused, bench.membership.assignment = "it offers y", None
    answer = bench.coordinator.sync(number, GenerationToken(5, "m1"), {})
    error = await refused(answer, bench, GroupRequest.SYNC, C.INVALID_GROUP)
    assert "it offers y" in str(error)


@pytest.mark.parametrize("request_name", ["join", "sync"])
async def test_a_request_ends_with_its_session(bench: Bench, request_name: str) -> None:
    """A request that waits for other members fails when the session ends, and so does one on a former session."""
    number = await bench.coordinator.find()
    bench.membership.waits = True
    arguments: tuple[Any, ...] = ("",) if request_name == "join" else (GenerationToken(5, "m1"), {})
    asking = asyncio.ensure_future(getattr(bench.coordinator, request_name)(number, *arguments))
    await run_ready_tasks()
    assert not asking.done()
    bench.session.end()
    with pytest.raises(BrokerError, match="the ZooKeeper session is over: it expired"):
        await asking
    with pytest.raises(BrokerError, match="the ZooKeeper session is over"):
        await getattr(bench.coordinator, request_name)(number, *arguments)
    await bench.coordinator.find()
    with pytest.raises(BrokerError, match="the ZooKeeper session is over"):
        await getattr(bench.coordinator, request_name)(number, *arguments)


@pytest.mark.parametrize("request_name", ["join", "sync"])
async def test_zookeepers_errors_are_those_of_a_coordinator(bench: Bench, request_name: str) -> None:
    """The member tries again after an error that the next try may not meet."""
    number = await bench.coordinator.find()
    bench.membership.joined = bench.membership.assignment = NoZooKeeperError("no answer")
    arguments: tuple[Any, ...] = ("",) if request_name == "join" else (GenerationToken(5, "m1"), {})
    with pytest.raises(BrokerError, match="no answer"):
        await getattr(bench.coordinator, request_name)(number, *arguments)


async def test_an_abandoned_join_is_cancelled(bench: Bench) -> None:
    """The task that waits for the answer ends with it."""
    bench.coordinator.abandon()
    number = await bench.coordinator.find()
    bench.membership.waits = True
    asking = asyncio.ensure_future(bench.coordinator.join(number, ""))
    await run_ready_tasks()
    bench.coordinator.abandon()
    await asyncio.wait({asking})
    assert asking.cancelled()


async def test_the_offer_is_what_the_hooks_return(bench: Bench) -> None:
    """Metadata may be of any type of bytes."""
    assert await bench.coordinator._offer() == Offer("type", (OfferedProtocol("p", b"data"),))


# Assignments


@pytest.mark.parametrize(("found", "code", "data"), [(b"mine", 0, b"mine"), (None, C.REBALANCE_IN_PROGRESS, b"")])
async def test_a_sync_brings_the_assignment(bench: Bench, found: bytes | None, code: int, data: bytes) -> None:
    """Without an assignment of this generation, the member has to join again."""
    number = await bench.coordinator.find()
    bench.membership.assignment = found
    answer = await bench.coordinator.sync(number, GenerationToken(5, "m1"), {"m1": b"mine"})
    assert (answer.error.number, answer.assignment) == (code, data)
    assert bench.membership.brought == {"m1": b"mine"}


# The membership


async def test_another_round_is_reported(bench: Bench) -> None:
    """A round of another generation is a rebalance; the end of the present one is not."""
    await bench.follow(5)
    bench.membership.on_round()
    assert bench.reports == []
    bench.membership.state = None
    bench.membership.on_round()
    assert bench.reports == []
    bench.membership.state = RoundState(generation=6, state="joining", leader="l")
    bench.membership.on_round()
    assert bench.reports == [C.REBALANCE_IN_PROGRESS]


async def test_a_round_that_has_begun_meanwhile_is_reported(bench: Bench) -> None:
    """A round may begin between the answer to the sync and the step in which the member follows it."""
    number = await bench.coordinator.find()
    bench.membership.state = RoundState(generation=6, state="joining", leader="l")
    target = BeatTarget(number, bench.coordinator.new_gate(GenerationToken(5, "m1"), 0.0))
    bench.coordinator.follow(target)
    bench.coordinator.follow(target)
    assert bench.reports == []
    await run_ready_tasks()
    assert bench.reports == [C.REBALANCE_IN_PROGRESS]


async def test_the_gate_is_that_of_the_session(bench: Bench) -> None:
    """Its lease is renewed by the session alone, also while the program gives its assignment back."""
    await bench.coordinator.find()
    gate = bench.coordinator.new_gate(GenerationToken(5, "m1"), 0.0)
    assert gate.is_open(104.0)
    assert not gate.is_open(106.0)
    assert bench.coordinator.beats_while_draining


# The end


async def test_a_member_leaves_by_closing_its_session(bench: Bench) -> None:
    """The member znode is deleted with the session; a later close does nothing more."""
    number = await bench.coordinator.find()
    await bench.coordinator.leave(number, "m1")
    assert bench.session.calls[:2] == ["leave", "close"]
    bench.coordinator.stop()
    await bench.coordinator.closed(CloseLimit())
    assert "abandon: closed" not in bench.session.calls
    with pytest.raises(BrokerError, match="the ZooKeeper session is over"):
        await bench.coordinator.leave(number, "m1")


async def test_a_stop_closes_the_session_by_threads(bench: Bench) -> None:
    """A member whose event loop may not run any more leaves through the threads of its session."""
    bench.coordinator.stop()
    bench.coordinator.wait_ended(1.0)
    await bench.follow()
    bench.coordinator.leave_at_once(0, "m1")
    assert bench.session.calls == []
    bench.coordinator.leave_at_once(1, "m1")
    assert bench.session.calls == ["abandon: the member leaves at once"]
    bench.coordinator.stop()
    assert bench.session.calls[1:] == ["abandon: closed"]
    await bench.coordinator.closed(CloseLimit())
    assert bench.reports == []


@pytest.mark.parametrize(("limit_s", "lines"), [(2.0, 0), (0.5, 1)])
async def test_a_session_that_is_not_closed_in_time_is_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture, limit_s: float, lines: int
) -> None:
    """Operators read that the member's znode stays until the session expires."""
    await bench.coordinator.find()
    bench.coordinator.wait_ended(limit_s)
    assert caplog.text.count("ZooKeeper does not answer; the session will expire") == lines
