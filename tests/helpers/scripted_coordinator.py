"""A coordinator that answers as a test says, the hooks of a member that record their calls, and such a member."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar, cast

from kiel_groups.config import CoordinatorConfig, GroupConfig
from kiel_groups.errors import KielGroupsError
from kiel_groups.group.member_state import GroupRequest
from kiel_groups.members.brokers.coordinator import BrokerCoordinator
from kiel_groups.members.brokers.gate import GenerationGate
from kiel_groups.members.brokers.hooks import CoordinatedContext, JoinedGroup
from kiel_groups.members.brokers.member import CoordinatedMember
from kiel_groups.members.brokers.transport import BeatAnswer, FindError
from kiel_groups.members.brokers.versions import GroupVersions
from kiel_groups.metrics import Metrics
from kiel_groups.model import OffsetAndMetadata, TopicPartition
from kiel_groups.wire.error_codes import MEMBER_ID_REQUIRED, NO_ERROR, ErrorCode, error_code
from kiel_groups.wire.framing import Request
from kiel_groups.wire.group_requests import (
    DescribedGroup,
    DescribeGroupsRequest,
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestV1,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kiel_groups.wire.offsets import FetchedOffset, OffsetCommitRequestV2, OffsetFetchRequestV1
from tests.helpers.manual_runtime import ManualRuntime
from tests.helpers.waiting import eventually, run_ready_tasks

T = TypeVar("T")

__all__ = ["FIND", "MemberBench", "QuietRuntime", "RecordedHooks", "ScriptedTransport", "scripted_context"]

FIND = "find"

#: What happens to a request: an error code, an error, an answer, or an event after which the coordinator answers.
Script = int | Exception | asyncio.Event | Mapping[Any, Any]


class ScriptedTransport:
    """
    A transport to one coordinator, which knows one member. ``script[kind]`` has what happens to the next requests.

    ``trace`` has the requests, with the member id of a join. ``sent`` has the requests themselves.
    """

    def __init__(self, trace: list[str]) -> None:
        self.trace = trace
        self.sent: list[Any] = []
        self.script: defaultdict[object, deque[Script]] = defaultdict(deque)
        self.generation = 0
        self.leader = "m-1"
        #: What a sync brings; None: what the leader has assigned.
        self.assignment: bytes | None = b"assignment"
        self.offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        self.is_beat_closed = False

    async def find(self, doubted: int | None = None) -> int:
        self.trace.append("find")
        code = await self._next(FIND)
        if code:
            raise FindError("no coordinator", code=code)
        return 1

    async def send(self, coordinator: int, request: Request[Any], timeout_s: float, *, aside: bool = False) -> Any:
        self.sent.append(request)
        self.trace.append(_named(request))
        try:
            async with asyncio.timeout(timeout_s):
                code = await self._next(_kind(request))
        except TimeoutError:
            raise KielGroupsError("no answer in time") from None
        return self._answer(request, code)

    def beat(
        self, coordinator: int, request: Request[object], timeout_s: float, answered: Callable[[BeatAnswer], None]
    ) -> None:
        self.sent.append(request)
        self.trace.append(_named(request))
        script = self.script[type(request)]
        if isinstance(request, SyncGroupRequest) and not script:
            # What the next heartbeat would get, which a sync that is refused is followed by.
            script = deque([self.script[HeartbeatRequest][0]]) if self.script[HeartbeatRequest] else script
            if script and (script[0] == 0 or isinstance(script[0], Exception)):
                self.script[HeartbeatRequest].popleft()
        given = script.popleft() if script else 0
        if isinstance(given, Exception):
            answered(BeatAnswer(None, str(given)))
        else:
            answered(BeatAnswer(cast(int, given)))

    def close_beats(self) -> None:
        self.is_beat_closed = True

    async def _next(self, kind: object) -> Any:
        """Return the code, or the codes of partitions, that the script has for the next request of a kind."""
        given: Script = self.script[kind].popleft() if self.script[kind] else 0
        if isinstance(given, asyncio.Event):
            await given.wait()
            return 0
        if isinstance(given, Exception):
            raise given
        return given

    def _answer(self, request: Request[Any], code: Any) -> Any:
        match request:
            case JoinGroupRequest():
                return self._joined(request, code)
            case SyncGroupRequest():
                own = request.assignments.get(request.member_id, b"")
                return SyncGroupResponse(
                    error_code(code), b"" if code else own if self.assignment is None else self.assignment
                )
            case OffsetCommitRequestV2():
                codes = _by_partition(request.offsets, code)
                self.offsets |= {p: request.offsets[p] for p, each in codes.items() if each == NO_ERROR}
                return codes
            case OffsetFetchRequestV1():
                codes = _by_partition(request.partitions, code)
                none = OffsetAndMetadata(-1, "")
                stored = {p: self.offsets.get(p, none) if each == NO_ERROR else none for p, each in codes.items()}
                return {p: FetchedOffset(each.offset, each.metadata, codes[p]) for p, each in stored.items()}
            case DescribeGroupsRequest():
                return tuple(DescribedGroup(NO_ERROR, group, "Stable", "", "", ()) for group in request.groups)
        return error_code(code)

    def _joined(self, request: JoinGroupRequest, code: int) -> JoinGroupResponse:
        if code:
            named = "m-named" if code == MEMBER_ID_REQUIRED.number else ""
            return JoinGroupResponse(error_code(code), -1, "", "", named, {})
        self.generation += 1
        id_ = request.member_id or f"m-{self.generation}"
        chosen = request.protocols[0]
        leader = id_ if self.leader == "m-1" else self.leader
        members = {id_: chosen.metadata} if leader == id_ else {}
        return JoinGroupResponse(NO_ERROR, self.generation, chosen.name, leader, id_, members)


def _kind(request: Request[Any]) -> type[Any]:
    return JoinGroupRequest if isinstance(request, JoinGroupRequestV1) else type(request)


def _named(request: Request[Any]) -> str:
    match request:
        case JoinGroupRequest(member_id=id_):
            return f"join {id_ or 'anew'}"
        case SyncGroupRequest():
            return "sync"
        case HeartbeatRequest():
            return "beat"
        case LeaveGroupRequest(member_id=id_):
            return f"leave {id_}"
        case OffsetCommitRequestV2():
            return "commit"
    return "read offsets"


def _by_partition(partitions: Any, code: Any) -> dict[TopicPartition, ErrorCode]:
    """Return the codes of partitions: one code for all, or those that a mapping has; others have no answer."""
    codes = code if isinstance(code, Mapping) else dict.fromkeys(partitions, code)
    return {partition: error_code(codes[partition]) for partition in partitions if partition in codes}


class RecordedHooks:
    """The hooks of a member, which add their calls to a trace; each may be made to wait or to fail."""

    def __init__(self, trace: list[str], protocol_type: str = "consumer") -> None:
        self.protocol_type = protocol_type
        self.trace = trace
        self.offers = [GroupProtocol("range", b"topics")]
        self.completing: asyncio.Event | Exception | None = None
        self.preparing: asyncio.Event | Exception | None = None
        self.assigning: asyncio.Event | Exception | None = None
        self.completed: list[tuple[GenerationGate, JoinedGroup, bytes]] = []

    async def protocols(self) -> Sequence[GroupProtocol]:
        return self.offers

    async def perform_assignment(self, joined: JoinedGroup) -> Mapping[str, bytes]:
        self.trace.append("assign")
        await _passed(self.assigning)
        return {member: b"assignment of " + metadata for member, metadata in joined.members.items()}

    async def complete(self, gate: GenerationGate, joined: JoinedGroup, assignment: bytes) -> None:
        self.trace.append("complete")
        self.completed.append((gate, joined, assignment))
        try:
            await _passed(self.completing)
        except asyncio.CancelledError:
            self.trace.append("complete cancelled")
            raise

    async def prepare(self, gate: GenerationGate) -> None:
        self.trace.append("prepare")
        try:
            await _passed(self.preparing)
        except asyncio.CancelledError:
            self.trace.append("prepare cancelled")
            raise

    def lost(self, gate: GenerationGate) -> None:
        self.trace.append("lost")


async def _passed(gate: asyncio.Event | Exception | None) -> None:
    if isinstance(gate, Exception):
        raise gate
    if gate is not None:
        await gate.wait()


class QuietRuntime(ManualRuntime):
    """A manual runtime without randomness."""

    def uniform(self, low: float, high: float) -> float:
        return low


def scripted_context(
    transport: ScriptedTransport,
    runtime: ManualRuntime,
    *,
    group: Mapping[str, Any] = MappingProxyType({}),
    rebalance_timeout: bool = True,
    **timing: int,
) -> CoordinatedContext:
    """Return the context of a member of group g, with a session of 6 s and a heartbeat each second."""
    return CoordinatedContext(
        group=GroupConfig(group="g", **{"retry_backoff_ms": 1, **group}),
        timing=CoordinatorConfig(**{"session_timeout_ms": 6_000, "heartbeat_interval_ms": 1_000, **timing}),
        transport=transport,
        versions=GroupVersions((0, 10, 1) if rebalance_timeout else (0, 9)),
        metrics=Metrics(),
        runtime=runtime,
    )


class MemberBench:
    """A member with a scripted coordinator. Its pauses last a millisecond; heartbeats are sent as the clock passes."""

    def __init__(self, *, rebalance_timeout: bool = True, protocol_type: str = "consumer", **timing: int) -> None:
        self.trace: list[str] = []
        self.transport = ScriptedTransport(self.trace)
        self.hooks = RecordedHooks(self.trace, protocol_type)
        self.runtime = QuietRuntime()
        self.failures: list[KielGroupsError] = []
        self.context = scripted_context(self.transport, self.runtime, rebalance_timeout=rebalance_timeout, **timing)
        self.metrics = self.context.metrics
        self.member = CoordinatedMember(
            self.context.group,
            self.context.timing.find_timeout_ms,
            self.metrics,
            self.runtime,
            partial(BrokerCoordinator, self.context, self.hooks),
            self.hooks,
            self._failed,
        )

    def _failed(self, error: KielGroupsError) -> None:
        self.failures.append(error)
        self.trace.append(f"failed {type(error).__name__}")

    async def send(self, kind: GroupRequest, request: Request[T], timeout_s: float) -> T:
        """Have the member send a request about offsets."""
        return await self.member.send(kind, self.context.aside(request, timeout_s))

    async def joined(self) -> MemberBench:
        """Have the member join, and forget the trace of that."""
        await self.member.start()
        await self.traced("complete")
        self.trace.clear()
        return self

    async def traced(self, what: str) -> None:
        """Wait until the trace has this entry."""
        await eventually(lambda: what in self.trace, f"{what} in {self.trace}", 5)

    async def settled(self, expected: Sequence[str]) -> tuple[str, ...]:
        """Wait until the trace has as many entries as expected, and what follows at once; return it."""
        await eventually(lambda: len(self.trace) >= len(expected), f"{expected}, not {self.trace}", 5)
        await run_ready_tasks()
        return tuple(self.trace)

    async def beat(self, *answers: Script) -> None:
        """Send heartbeats that are answered so, and have the member hear of the answers."""
        self.transport.script[HeartbeatRequest].extend(answers)
        for _ in answers or (0,):
            self.runtime.pass_s(self.context.timing.heartbeat_interval_ms / 1000)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
