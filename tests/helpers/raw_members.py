"""Members that send raw requests, on the fake coordinator and on real ones, and the group of a test."""

from __future__ import annotations

from collections.abc import Mapping

from kiel_groups.model import OffsetAndMetadata, TopicPartition
from kiel_groups.wire.error_codes import MEMBER_ID_REQUIRED
from kiel_groups.wire.group_requests import (
    DescribedGroup,
    DescribeGroupsRequest,
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestV1,
    JoinGroupRequestV4,
    JoinGroupResponse,
    LeaveGroupRequest,
    ListedGroup,
    ListGroupsRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kiel_groups.wire.offsets import OffsetCommitRequestV2, OffsetFetchRequestV1
from tests.helpers.fake_and_real_coordinators import CoordinatorBackend, Pending

__all__ = ["RawGroup", "RawMember", "SESSION_MS"]

#: The shortest session timeout that brokers accept.
SESSION_MS = 6_000


class RawMember:
    """A member of the group of a test: it sends raw requests, and remembers the answer to its last join."""

    def __init__(self, backend: CoordinatorBackend, group: str, *protocols: str, metadata: bytes = b"m") -> None:
        self._backend = backend
        self._group = group
        self._partition = TopicPartition(backend.topic, 0)
        self._connection, self._other = backend.caller(), backend.caller()
        self.protocols = tuple(GroupProtocol(name, metadata) for name in protocols or ("range",))
        #: Not "consumer": brokers read the metadata of consumers.
        self.type = "test"
        self.session_ms = SESSION_MS
        self.rebalance_ms: int | None = None
        #: Whether the coordinator names the member before it waits for the others.
        self.is_named_first = False
        self.id = ""
        self.generation = -1
        self._joining: Pending[JoinGroupResponse] | None = None
        self._syncing: Pending[SyncGroupResponse] | None = None

    def join(self) -> None:
        """Send a join: v4 if the member is named first, v1 with a rebalance timeout, otherwise v0."""
        arguments = (self._group, self.session_ms, self.id, self.type, self.protocols)
        if self.is_named_first:
            limit_ms = self.rebalance_ms or self.session_ms
            self._joining = self._connection.start(JoinGroupRequestV4(*arguments, rebalance_timeout_ms=limit_ms))
        elif self.rebalance_ms is None:
            self._joining = self._connection.start(JoinGroupRequest(*arguments))
        else:
            v1 = JoinGroupRequestV1(*arguments, rebalance_timeout_ms=self.rebalance_ms)
            self._joining = self._connection.start(v1)

    def joined(self, timeout_s: float = 30.0) -> JoinGroupResponse:
        """Wait for the answer to the join."""
        assert self._joining is not None
        answer = self._backend.wait(self._joining, timeout_s)
        if answer.error == MEMBER_ID_REQUIRED:
            self.id = answer.member_id
        if answer.error.number == 0:
            self.id, self.generation = answer.member_id, answer.generation
        return answer

    @property
    def is_joining(self) -> bool:
        return self._joining is not None and self._joining.answer is None

    def sync(self, assignments: Mapping[str, bytes] | None = None) -> None:
        """Send a sync, as the leader with assignments."""
        request = SyncGroupRequest(self._group, self.generation, self.id, assignments or {})
        self._syncing = self._connection.start(request)

    def synced(self) -> tuple[int, bytes]:
        """Wait for the answer to the sync: its code and the assignment."""
        assert self._syncing is not None
        answer = self._backend.wait(self._syncing)
        return answer.error.number, bytes(answer.assignment)

    def beat(self, generation: int | None = None) -> int:
        """Send a heartbeat, and return its code."""
        generation = self.generation if generation is None else generation
        return self._other.ask(HeartbeatRequest(self._group, generation, self.id)).number

    def commit(self, offset: int, generation: int | None = None) -> int:
        """Commit an offset of the test's partition, and return the code."""
        generation = self.generation if generation is None else generation
        offsets = {self._partition: OffsetAndMetadata(offset)}
        (code,) = self._other.ask(OffsetCommitRequestV2(self._group, generation, self.id, offsets)).values()
        return code.number

    def stored(self) -> tuple[int, int]:
        """Return the stored offset, and the code of the answer."""
        (found,) = self._other.ask(OffsetFetchRequestV1(self._group, (self._partition,))).values()
        return found.offset, found.error.number

    def leave(self) -> int:
        """Leave, and return the code."""
        return self._other.ask(LeaveGroupRequest(self._group, self.id)).number

    def described(self) -> DescribedGroup:
        """Return what the coordinator says of the group."""
        (group,) = self._other.ask(DescribeGroupsRequest((self._group,)))
        return group

    def listed(self) -> set[ListedGroup]:
        """Return the groups of the coordinator."""
        return set(self._other.ask(ListGroupsRequest()).groups)


class RawGroup:
    """The group of a test."""

    def __init__(self, backend: CoordinatorBackend, name: str) -> None:
        self.backend = backend
        self.name = name

    def member(self, *protocols: str, metadata: bytes = b"m") -> RawMember:
        return RawMember(self.backend, self.name, *protocols, metadata=metadata)

    def settle(self, *members: RawMember) -> None:
        """Have the members join and sync: the first one leads, and assigns each one the text of its number."""
        members[0].join()
        if members[0].joined().members.keys() != {members[0].id} or len(members) > 1:
            self._rejoin(*members)
        members[0].sync({member.id: b"%d" % number for number, member in enumerate(members)})
        for member in members[1:]:
            member.sync()
        assert [member.synced() for member in members] == [(0, b"%d" % number) for number in range(len(members))]

    def _rejoin(self, *members: RawMember) -> None:
        for member in members[1:]:
            member.join()
        self.backend.run_for(0.5)
        members[0].join()
        assert {member.joined().error.number for member in members} == {0}
