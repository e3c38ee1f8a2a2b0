"""
Brokers that coordinate groups, on simulated time: requests in, answers by callbacks, without sockets or threads.

One broker at a time coordinates all groups. Offsets and completed generations are in its log, which survives a crash,
and which the next coordinator loads. ``tests/integration/test_fake_coordinator.py`` plays the same requests here and on
real brokers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from kiel_groups.model import OffsetAndMetadata, TopicPartition
from kiel_groups.wire.error_codes import (
    CONSUMER_COORDINATOR_NOT_AVAILABLE,
    ILLEGAL_GENERATION,
    INVALID_GROUP_ID,
    INVALID_SESSION_TIMEOUT,
    NO_ERROR,
    NOT_COORDINATOR_FOR_CONSUMER,
    OFFSETS_LOAD_IN_PROGRESS,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode,
)
from kiel_groups.wire.framing import Request
from kiel_groups.wire.group_requests import (
    DescribedGroup,
    DescribedMember,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    FoundCoordinator,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestV1,
    JoinGroupRequestV4,
    LeaveGroupRequest,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kiel_groups.wire.metadata import BrokerAddress
from kiel_groups.wire.offsets import FetchedOffset, OffsetCommitRequestV2, OffsetFetchRequestV1
from tests.fakes.fake_group import FakeGroup, GroupState, StoredGroup, join_error
from tests.fakes.timeline import Timeline

__all__ = ["AcceptedCommit", "FakeCoordinator"]

T = TypeVar("T")

#: The bounds of session timeouts in milliseconds, in 0.9 and in 3.9.
_EARLY_BOUNDS_MS, _LATE_BOUNDS_MS = (6_000, 30_000), (6_000, 1_800_000)


class AcceptedCommit(NamedTuple):
    """A commit that the coordinator has accepted; ``group`` is None if it has no members."""

    group: FakeGroup | None
    request: OffsetCommitRequestV2


class _Call(NamedTuple):
    """A request of a client, and where its answer goes."""

    request: Any
    client_id: str
    answer: Callable[[Any], object]


class FakeCoordinator:
    """
    The brokers of a cluster, and the coordinator among them.

    Args:
        timeline: The clock and the source of randomness.
        brokers: The node ids of the brokers. The first one coordinates.
        early: Whether the brokers behave as those of 0.9; otherwise, as those of 3.9.
        initial_delay_s: How long the first join to an empty group waits for more members; not in 0.9.
        session_bounds_ms: The shortest and the longest session timeout that is accepted.
    """

    def __init__(
        self,
        timeline: Timeline,
        brokers: Collection[int] = (0,),
        *,
        early: bool = False,
        initial_delay_s: float = 0.0,
        session_bounds_ms: tuple[int, int] | None = None,
    ) -> None:
        self.timeline = timeline
        self.brokers = tuple(brokers)
        self.early = early
        self.initial_delay_s = initial_delay_s
        self._bounds_ms = session_bounds_ms or (_EARLY_BOUNDS_MS if early else _LATE_BOUNDS_MS)
        #: The broker that coordinates now, also while it loads its log; None while there is none.
        self.coordinator: int | None = self.brokers[0]
        #: The brokers that do not run.
        self.down: set[int] = set()
        self.groups: dict[str, FakeGroup] = {}
        #: The offsets of each group; they survive a crash.
        self.offsets: defaultdict[str, dict[TopicPartition, OffsetAndMetadata]] = defaultdict(dict)
        #: Topics that do not exist at the moment; commits of their offsets are refused.
        self.missing_topics: set[str] = set()
        #: Called with each accepted commit before its offsets are stored.
        self.observers: list[Callable[[AcceptedCommit], object]] = []
        #: Called with a broker whose connections break.
        self.on_crash: list[Callable[[int], object]] = []
        self._log: dict[str, StoredGroup] = {}
        self._is_loading = False
        self._load = 0
        self._handlers: Mapping[type, Callable[[int, _Call], object]] = {
            FindCoordinatorRequest: lambda broker, call: call.answer(self._find()),
            ListGroupsRequest: lambda broker, call: call.answer(self._list(broker)),
            DescribeGroupsRequest: lambda broker, call: call.answer(self._describe(broker, call.request)),
            JoinGroupRequest: self._join,
            JoinGroupRequestV1: self._join,
            JoinGroupRequestV4: self._join,
            SyncGroupRequest: self._sync,
            HeartbeatRequest: lambda broker, call: call.answer(self._heartbeat(broker, call.request)),
            LeaveGroupRequest: lambda broker, call: call.answer(self._leave(broker, call.request)),
            OffsetCommitRequestV2: lambda broker, call: call.answer(self._commit(broker, call.request)),
            OffsetFetchRequestV1: lambda broker, call: call.answer(self._fetch(broker, call.request)),
        }

    # ------------------------------------------------------------------ faults

    def crash(self, broker: int) -> None:
        """Stop a broker. Its connections break, and its answers under way are lost."""
        self.down.add(broker)
        if broker == self.coordinator:
            self._unload()
            self.coordinator = None
        for callback in self.on_crash:
            callback(broker)

    def restart(self, broker: int) -> None:
        """Start a broker again. It coordinates nothing until ``elect`` is called."""
        self.down.discard(broker)

    def elect(self, broker: int, loading_s: float = 0.0) -> None:
        """Make a broker the coordinator; it loads its log for a while. A former one answers that it is none."""
        if self.coordinator is not None:
            self._resign()
        self.coordinator, self._is_loading, self._load = broker, True, self._load + 1
        if loading_s:
            self.timeline.after(loading_s, self._loaded, self._load)
        else:
            self._loaded(self._load)

    def _resign(self) -> None:
        """Answer all members that wait for the others: another broker coordinates them now."""
        for group in list(self.groups.values()):
            for member in group.end():
                if member.answer_join is not None:
                    member.answer_join(join_error(NOT_COORDINATOR_FOR_CONSUMER, member.member_id))
                if member.answer_sync is not None:
                    member.answer_sync(SyncGroupResponse(NOT_COORDINATOR_FOR_CONSUMER, b""))
        self._unload()

    def _unload(self) -> None:
        for group in self.groups.values():
            group.end()
        self.groups, self._is_loading = {}, False
        self._load += 1

    def _loaded(self, load: int) -> None:
        if load != self._load:
            return
        self._is_loading = False
        self.groups = {name: FakeGroup.load(self._new_group(name), stored) for name, stored in self._log.items()}

    def expire_offsets(self, group: str, partitions: Collection[TopicPartition]) -> None:
        """Forget offsets, as brokers before 2.1 do a day after their commit."""
        for partition in partitions:
            self.offsets[group].pop(partition, None)

    def delete_topic(self, topic: str) -> None:
        """Refuse commits of a topic, and forget its offsets, as brokers from 0.10 on do."""
        self.missing_topics.add(topic)
        if not self.early:
            for offsets in self.offsets.values():
                for partition in [partition for partition in offsets if partition.topic == topic]:
                    del offsets[partition]

    def create_topic(self, topic: str) -> None:
        """Accept commits of a topic that was deleted."""
        self.missing_topics.discard(topic)

    # ------------------------------------------------------------------ requests

    def request(
        self, broker: int, request: Request[T], answer: Callable[[T], object], client_id: str = "client"
    ) -> None:
        """
        Have a broker that runs handle a request.

        ``answer`` is called with the response, now or later; never, if the broker crashes before.
        """
        assert broker not in self.down, "a request reaches running brokers only"
        self._handlers[type(request)](broker, _Call(request, client_id, answer))

    def _refusal(self, broker: int, group: str, *, may_be_nameless: bool = False) -> ErrorCode:
        if not group and not may_be_nameless:
            return INVALID_GROUP_ID
        if broker != self.coordinator:
            return NOT_COORDINATOR_FOR_CONSUMER
        if self._is_loading:
            # 0.9 names the broker as the coordinator before it admits to be that.
            return NOT_COORDINATOR_FOR_CONSUMER if self.early else OFFSETS_LOAD_IN_PROGRESS
        return NO_ERROR

    def _find(self) -> FoundCoordinator:
        if self.coordinator is None:
            return FoundCoordinator(CONSUMER_COORDINATOR_NOT_AVAILABLE, BrokerAddress(-1, "", -1))
        return FoundCoordinator(NO_ERROR, BrokerAddress(self.coordinator, f"broker{self.coordinator}", 9092))

    def _join(self, broker: int, call: _Call) -> None:
        request: JoinGroupRequest = call.request
        refusal = self._refusal(broker, request.group)
        least_ms, most_ms = self._bounds_ms
        if refusal is NO_ERROR and not least_ms <= request.session_timeout_ms <= most_ms:
            refusal = INVALID_SESSION_TIMEOUT
        group = self.groups.get(request.group)
        if refusal is NO_ERROR and group is None and request.member_id:
            refusal = UNKNOWN_MEMBER_ID
        if refusal is not NO_ERROR:
            call.answer(join_error(refusal, request.member_id))
            return
        if group is None:
            group = self._new_group(request.group)
            self.groups[request.group] = group
        group.join(request, call.client_id, call.answer)

    def _new_group(self, name: str) -> FakeGroup:
        def store(stored: StoredGroup | None) -> None:
            if stored is None:
                self._log.pop(name, None)
                self.groups.pop(name, None)
            else:
                self._log[name] = stored

        return FakeGroup(self.timeline, self.early, self.initial_delay_s, store)

    def _sync(self, broker: int, call: _Call) -> None:
        group, refusal = self.groups.get(call.request.group), self._refusal(broker, call.request.group)
        if refusal is OFFSETS_LOAD_IN_PROGRESS:
            # The members of a rebalance that the log does not have start again at the join.
            refusal = REBALANCE_IN_PROGRESS
        elif refusal is NO_ERROR and group is None:
            refusal = UNKNOWN_MEMBER_ID
        if refusal is not NO_ERROR or group is None:
            call.answer(SyncGroupResponse(refusal, b""))
        else:
            group.sync(call.request, call.answer)

    def _heartbeat(self, broker: int, request: HeartbeatRequest) -> ErrorCode:
        refusal = self._refusal(broker, request.group)
        if refusal is OFFSETS_LOAD_IN_PROGRESS:
            # A coordinator that does not know its groups yet accepts every heartbeat, of strangers, too.
            return NO_ERROR
        if refusal is not NO_ERROR:
            return refusal
        group = self.groups.get(request.group)
        return UNKNOWN_MEMBER_ID if group is None else group.heartbeat(request.member_id, request.generation)

    def _leave(self, broker: int, request: LeaveGroupRequest) -> ErrorCode:
        group, refusal = self.groups.get(request.group), self._refusal(broker, request.group)
        if refusal is not NO_ERROR:
            return refusal
        return UNKNOWN_MEMBER_ID if group is None else group.leave(request.member_id)

    # ------------------------------------------------------------------ offsets

    def _commit(self, broker: int, request: OffsetCommitRequestV2) -> Mapping[TopicPartition, ErrorCode]:
        code = self._refusal(broker, request.group, may_be_nameless=True)
        missing = {partition for partition in request.offsets if partition.topic in self.missing_topics}
        known = replace(request, offsets={p: each for p, each in request.offsets.items() if p not in missing})
        answer = dict.fromkeys(request.offsets, self._store(known) if code is NO_ERROR else code)
        return answer | (dict.fromkeys(missing, UNKNOWN_TOPIC_OR_PARTITION) if answer and code is NO_ERROR else {})

    def _store(self, request: OffsetCommitRequestV2) -> ErrorCode:
        group = self.groups.get(request.group)
        if group is None:
            code = NO_ERROR if request.generation < 0 else ILLEGAL_GENERATION
        else:
            code = group.may_commit(request.member_id, request.generation)
        if code is NO_ERROR:
            for observer in self.observers:
                observer(AcceptedCommit(group, request))
            self.offsets[request.group] |= request.offsets
        return code

    def _fetch(self, broker: int, request: OffsetFetchRequestV1) -> Mapping[TopicPartition, FetchedOffset]:
        refusal = self._refusal(broker, request.group, may_be_nameless=True)
        if refusal is not NO_ERROR:
            return {partition: FetchedOffset(-1, "", refusal) for partition in request.partitions}
        stored, none = self.offsets[request.group], OffsetAndMetadata(-1)
        return {partition: FetchedOffset(*stored.get(partition, none), NO_ERROR) for partition in request.partitions}

    # ------------------------------------------------------------------ inspection

    def _list(self, broker: int) -> ListGroupsResponse:
        if broker != self.coordinator or self._is_loading:
            return ListGroupsResponse(OFFSETS_LOAD_IN_PROGRESS if self._is_loading else NO_ERROR, ())
        return ListGroupsResponse(
            NO_ERROR, tuple(ListedGroup(name, group.protocol_type) for name, group in self.groups.items())
        )

    def _describe(self, broker: int, request: DescribeGroupsRequest) -> tuple[DescribedGroup, ...]:
        return tuple(self._described(name, self._refusal(broker, name)) for name in request.groups)

    def _described(self, name: str, refusal: ErrorCode) -> DescribedGroup:
        group = self.groups.get(name)
        if refusal is not NO_ERROR:
            return DescribedGroup(refusal, name, "", "", "", ())
        if group is None:
            return DescribedGroup(NO_ERROR, name, GroupState.DEAD.value, "", "", ())
        is_stable = group.state is GroupState.STABLE
        members = tuple(
            DescribedMember(
                each.member_id,
                each.client_id,
                "/127.0.0.1",
                each.metadata(group.protocol) if is_stable else b"",
                each.assignment if is_stable else b"",
            )
            for each in group.members.values()
        )
        awaits_sync = group.state is GroupState.AWAITING_SYNC and not self.early
        state = "CompletingRebalance" if awaits_sync else group.state.value
        return DescribedGroup(NO_ERROR, name, state, group.protocol_type, group.protocol if is_stable else "", members)
