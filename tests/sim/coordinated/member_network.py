"""The network between one simulated member and the brokers, with its faults: the transport of simulated members."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from kiel_groups.errors import BrokerConnectionError, RequestTimeoutError
from kiel_groups.members.brokers.transport import BeatAnswer, FindError, code_of
from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wire.framing import Request
from kiel_groups.wire.group_requests import FindCoordinatorRequest

if TYPE_CHECKING:
    from tests.sim.coordinated.broker_world import BrokerWorld
    from tests.sim.coordinated.member_process import MemberProcess

__all__ = ["LANES", "LOSABLE", "Call", "MemberNetwork"]

T = TypeVar("T")

#: The connections of a member: joins and syncs, offsets and leaves, heartbeats, and the search for the coordinator.
LANES = ("membership", "aside", "beats", "search")

#: The requests that may be lost, by the names of their classes without a version.
LOSABLE = (
    "FindCoordinatorRequest",
    "JoinGroupRequest",
    "SyncGroupRequest",
    "HeartbeatRequest",
    "OffsetCommitRequest",
    "OffsetFetchRequest",
    "LeaveGroupRequest",
)

#: The time limit of a search for the coordinator, in seconds.
_FIND_S = 8.0
#: The longest time until a client notices a broken connection, in seconds.
_NOTICE_S = 0.5


@dataclass(eq=False, slots=True)
class Call:
    """
    A request of a member. ``given_up``: the client waits no more, so the request may be executed late.

    ``settle`` is called at most once, with the answer or an error.
    """

    lane: str
    broker: int
    request: Any
    settle: Callable[[object], object]
    given_up: bool = False
    is_settled: bool = False
    #: The newest incarnation of each topic that the member knew when it sent the request.
    knew: dict[str, int] = field(default_factory=dict)
    fault: str | None = None


@dataclass(slots=True)
class _Lane:
    """A connection, which keeps the order of requests and of answers."""

    calls: list[Call] = field(default_factory=list)
    #: The request that the broker works on, and those that have arrived after it: a broker works on one at a time.
    present: Call | None = None
    waiting: deque[Call] = field(default_factory=deque)
    #: When the last request, and the last answer, arrives.
    there_s: float = 0.0
    back_s: float = 0.0
    cut_until_s: float = 0.0


class MemberNetwork:
    """
    The requests of one member; see ``GroupTransport``.

    A lost connection fails all of its requests. A connection that is cut delays them: the client may give a request up,
    which the broker executes all the same when the cut ends. No cut is longer than a join is waited for.
    """

    def __init__(self, world: BrokerWorld, process: MemberProcess) -> None:
        self._world = world
        self._process = process
        self._lanes: dict[tuple[str, int], _Lane] = {}
        #: The faults of next requests by the class of the request: it is lost, or its answer is.
        self.losing: dict[str, Literal["request", "answer"]] = {}
        world.coordinator.on_crash.append(self._crashed)

    # ------------------------------------------------------------------ faults

    def cut(self, lanes: Collection[str], duration_s: float) -> None:
        """Delay all messages on these connections until then; neither end is notified."""
        until_s = self._world.timeline.now_s + duration_s
        for broker in self._world.coordinator.brokers:
            for name in lanes:
                lane = self._lane(name, broker)
                lane.cut_until_s = max(lane.cut_until_s, until_s)

    def heal(self) -> None:
        """End all faults; messages under way arrive when they would have."""
        self.losing.clear()
        for lane in self._lanes.values():
            lane.cut_until_s = 0.0

    def _crashed(self, broker: int) -> None:
        for name in LANES:
            self._break(name, broker)

    def _break(self, name: str, broker: int, fault: str = "broken") -> None:
        """
        Break a connection, so that its calls fail. Those that the broker has not read are lost, unless the client has
        ``closed`` the connection: its host still sends them.
        """
        lane = self._lanes.pop((name, broker), None)
        if lane is not None:
            self._lane(name, broker).cut_until_s = lane.cut_until_s
            for call in lane.calls:
                call.fault = call.fault or fault
                self._settle_later(call, BrokerConnectionError(f"broker {broker}: the connection is lost"))

    # ------------------------------------------------------------------ GroupTransport

    async def find(self, doubted: int | None = None) -> int:
        """Ask a random broker for the coordinator, but not a doubted one."""
        brokers = [broker for broker in self._world.coordinator.brokers if broker != doubted]
        broker = brokers[self._world.timeline.random.randrange(len(brokers))]
        try:
            found = await self._ask("search", broker, FindCoordinatorRequest(self._world.group), _FIND_S)
        except (BrokerConnectionError, RequestTimeoutError) as error:
            raise FindError(f"no broker has named the coordinator: {error}") from error
        if found.error != NO_ERROR:
            raise FindError(f"no broker has named the coordinator: {found.error}", code=found.error.number)
        return found.broker.node_id

    async def send(self, coordinator: int, request: Request[T], timeout_s: float, *, aside: bool = False) -> T:
        """Send a request, and wait for its answer."""
        return await self._ask("aside" if aside else "membership", coordinator, request, timeout_s)

    async def _ask(self, lane: str, broker: int, request: Request[T], timeout_s: float) -> T:
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def settle(outcome: object) -> None:
            self._process.run_on_loop(self._process.call, _resolve, answered, outcome)

        call = self._send(lane, broker, request, settle)
        try:
            async with asyncio.timeout(timeout_s):
                return await answered  # type: ignore[no-any-return]
        except TimeoutError:
            self._break(lane, broker, fault="closed")
            raise RequestTimeoutError(f"broker {broker}: no answer within {timeout_s:g} s") from None
        except asyncio.CancelledError:
            if lane == "membership":
                self._break(lane, broker, fault="closed")
            raise
        finally:
            # A call beside one that was not answered in time is still sent, by the connection that was closed.
            call.given_up = not answered.done() or answered.cancelled() or call.fault == "closed"

    def beat(
        self, coordinator: int, request: Request[object], timeout_s: float, answered: Callable[[BeatAnswer], None]
    ) -> None:
        """Send a heartbeat; the simulated thread does not block, and gets the answer later."""
        process, timeline = self._process, self._world.timeline

        def settle(outcome: object) -> None:
            failed = isinstance(outcome, Exception)
            answer = BeatAnswer(None, str(outcome)) if failed else BeatAnswer(code_of(outcome))
            process.run_on_thread(once, answer)

        def once(answer: BeatAnswer) -> None:
            if not call.given_up:
                call.given_up = True
                answered(answer)

        def time_is_up() -> None:
            if not call.given_up:
                self._break("beats", coordinator, fault="closed")
                once(BeatAnswer(None, "no answer in time"))

        call = self._send("beats", coordinator, request, settle)
        timeline.after(timeout_s, process.run_on_thread, time_is_up)

    def close_beats(self) -> None:
        """Do nothing: a connection without requests is as good as a closed one."""

    # ------------------------------------------------------------------ messages

    def pending(self, lane: str) -> list[Call]:
        """Return the calls of a kind of connection that the member waits for."""
        lanes = (each for (name, _), each in self._lanes.items() if name == lane)
        return [call for each in lanes for call in each.calls if not (call.given_up or call.is_settled)]

    def _lane(self, name: str, broker: int) -> _Lane:
        return self._lanes.setdefault((name, broker), _Lane())

    def _send(self, name: str, broker: int, request: Any, settle: Callable[[object], object]) -> Call:
        call = Call(name, broker, request, settle, knew=self._process.consumer.newest_topics())
        self._world.checker.sent(self._process.consumer, call)
        lane, timeline = self._lane(name, broker), self._world.timeline
        lane.calls.append(call)
        call.fault = self.losing.pop(type(request).__name__.rstrip("V124"), None)
        lane.there_s = max(lane.there_s, timeline.now_s, lane.cut_until_s) + self._world.way_s()
        timeline.at(lane.there_s, self._arrive, lane, call)
        return call

    def _arrive(self, lane: _Lane, call: Call) -> None:
        """Have the broker execute a request, unless it is lost."""
        coordinator = self._world.coordinator
        if call.fault == "broken":
            return
        if call.broker in coordinator.down:
            self._settle_later(call, BrokerConnectionError(f"broker {call.broker}: no connection"))
            return
        if call.fault == "request":
            self._break(call.lane, call.broker)
            return
        lane.waiting.append(call)
        self._execute(lane)

    def _execute(self, lane: _Lane) -> None:
        while lane.waiting and lane.present is None:
            call = lane.present = lane.waiting.popleft()
            self._world.checker.executing(call)
            answer = partial(self._answer, lane, call)
            self._world.coordinator.request(call.broker, call.request, answer, self._process.name)

    def _answer(self, lane: _Lane, call: Call, answer: object) -> None:
        """Send an answer back, unless it is lost."""
        if lane.present is call:
            lane.present = None
            self._world.timeline.after(0.0, self._execute, lane)
        if call.fault == "answer":
            self._break(call.lane, call.broker)
        if call.fault is not None:
            return
        lane.back_s = max(lane.back_s, self._world.timeline.now_s, lane.cut_until_s) + self._world.way_s()
        self._world.timeline.at(lane.back_s, self._settle, lane, call, answer)

    def _settle_later(self, call: Call, error: Exception) -> None:
        self._world.timeline.after(self._world.timeline.random.uniform(0.0, _NOTICE_S), self._settle, None, call, error)

    def _settle(self, lane: _Lane | None, call: Call, outcome: object) -> None:
        if call.is_settled or (call.fault is not None and not isinstance(outcome, Exception)):
            return
        call.is_settled = True
        if lane is not None and call in lane.calls:
            lane.calls.remove(call)
        call.settle(outcome)


def _resolve(future: asyncio.Future[Any], outcome: object) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
