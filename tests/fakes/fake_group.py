"""
One group as its coordinator sees it: its members, its state, its generation, and the timers of both.

Real coordinators differ by release. With ``early``, a group behaves as in 0.9: it vanishes when its last member leaves,
so its generations start at 1 again, and heartbeats do not keep a member in a rebalance. Otherwise it behaves as in 3.9,
which the releases from 0.10.1 on resemble.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias

from kiel_groups.wire.error_codes import (
    ILLEGAL_GENERATION,
    INCONSISTENT_GROUP_PROTOCOL,
    MEMBER_ID_REQUIRED,
    NO_ERROR,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
    ErrorCode,
)
from kiel_groups.wire.group_requests import (
    GroupProtocol,
    JoinGroupRequest,
    JoinGroupRequestV1,
    JoinGroupRequestV4,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tests.fakes.timeline import Timeline

__all__ = ["FakeGroup", "FakeGroupMember", "GroupState", "JoinCall", "StoredGroup", "SyncCall", "join_error"]

JoinCall: TypeAlias = Callable[[JoinGroupResponse], object]
SyncCall: TypeAlias = Callable[[SyncGroupResponse], object]


class GroupState(Enum):
    """The state of a group; the values are the names that coordinators of 0.9 use."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    AWAITING_SYNC = "AwaitingSync"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True)
class FakeGroupMember:
    """A member as its coordinator knows it. A member without a deadline waits for an answer, and cannot expire."""

    member_id: str
    client_id: str
    session_s: float
    rebalance_s: float
    protocols: tuple[GroupProtocol, ...]
    assignment: bytes = b""
    answer_join: JoinCall | None = None
    answer_sync: SyncCall | None = None
    deadline_s: float = 0.0
    has_timer: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(protocol.name for protocol in self.protocols)

    def metadata(self, protocol: str) -> bytes:
        return next((each.metadata for each in self.protocols if each.name == protocol), b"")


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """What the log of the coordinator has of a group: its last completed generation."""

    generation: int
    protocol_type: str
    protocol: str
    leader_id: str
    members: tuple[FakeGroupMember, ...]


@dataclass(eq=False)
class FakeGroup:
    """
    A group. Its coordinator has checked that it coordinates the group, and has loaded it.

    Args:
        timeline: The clock and the source of member ids.
        early: Whether the group behaves as in 0.9.
        initial_delay_s: How long the first join to an empty group waits for more members.
        store: Called with what is written to the coordinator's log; None removes the group from it.
    """

    timeline: Timeline
    early: bool
    initial_delay_s: float
    store: Callable[[StoredGroup | None], object]
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str = ""
    leader_id: str = ""
    members: dict[str, FakeGroupMember] = field(default_factory=dict)
    #: The ids that were given to new members which have not joined with them yet; a rebalance waits for these, too.
    pending: set[str] = field(default_factory=set)
    #: The number of the rebalance; timers of earlier ones have no effect.
    _round: int = 0
    _delays: bool = False
    _has_new_member: bool = False

    @classmethod
    def load(cls, group: FakeGroup, stored: StoredGroup) -> FakeGroup:
        """Make ``group``, which is empty, what the log has: the sessions of its members start again."""
        group.generation, group.protocol_type = stored.generation, stored.protocol_type
        group.protocol, group.leader_id = stored.protocol, stored.leader_id
        group.members = {each.member_id: replace(each) for each in stored.members}
        group.state = GroupState.STABLE if group.members else GroupState.EMPTY
        for member in group.members.values():
            member.has_timer = False
            group.touch(member)
        return group

    def end(self) -> list[FakeGroupMember]:
        """Stop all timers, because the coordinator has lost the group; return the members that wait for an answer."""
        waiting = [each for each in self.members.values() if each.answer_join or each.answer_sync]
        self.state, self._round = GroupState.DEAD, self._round + 1
        self.members, self.pending = {}, set()
        return waiting

    # ------------------------------------------------------------------ sessions

    def touch(self, member: FakeGroupMember) -> None:
        """Start a member's session again."""
        member.deadline_s = self.timeline.now_s + member.session_s
        if not member.has_timer:
            member.has_timer = True
            self.timeline.at(member.deadline_s, self._check_session, member)

    def _check_session(self, member: FakeGroupMember) -> None:
        member.has_timer = False
        if self.members.get(member.member_id) is not member or member.answer_join or member.answer_sync:
            return
        if self.timeline.now_s < member.deadline_s:
            member.has_timer = True
            self.timeline.at(member.deadline_s, self._check_session, member)
        else:
            self.remove(member.member_id)

    def remove(self, member_id: str) -> None:
        """Remove a member that has left, or whose session is over; 0.9 does not answer its join any more."""
        member = self.members.pop(member_id)
        if member.answer_join is not None and not self.early:
            member.answer_join(join_error(UNKNOWN_MEMBER_ID, ""))
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), "")
        if self.state in (GroupState.STABLE, GroupState.AWAITING_SYNC):
            self._prepare()
        elif self.state is GroupState.PREPARING:
            self._complete_if_joined()

    # ------------------------------------------------------------------ joins

    def join(self, request: JoinGroupRequest, client_id: str, answer: JoinCall) -> None:
        """Join, or join again; the answer may take as long as the rebalance."""
        member = self.members.get(request.member_id)
        if not self._supports(request):
            answer(join_error(INCONSISTENT_GROUP_PROTOCOL, request.member_id))
        elif request.member_id in self.pending:
            self.pending.remove(request.member_id)
            self._add(request, request.member_id, client_id, answer)
        elif request.member_id and member is None:
            answer(join_error(UNKNOWN_MEMBER_ID, request.member_id))
        elif member is None:
            member_id = f"{client_id}-{self.timeline.random.getrandbits(128):032x}"
            if isinstance(request, JoinGroupRequestV4):
                self.pending.add(member_id)
                self.timeline.after(request.session_timeout_ms / 1000, self._forget, member_id)
                answer(join_error(MEMBER_ID_REQUIRED, member_id))
            else:
                self._add(request, member_id, client_id, answer)
        elif self._keeps_generation(member, request):
            answer(self._joined(member))
        else:
            member.protocols, member.answer_join = request.protocols, answer
            member.session_s, member.rebalance_s = _timeouts_s(request)
            self._prepare_or_complete()

    def _supports(self, request: JoinGroupRequest) -> bool:
        """Return whether all members have a protocol in common with this one."""
        offered = {protocol.name for protocol in request.protocols}
        if not self.members:
            return bool(offered and request.protocol_type) or self.early
        common = set.intersection(*(set(member.names) for member in self.members.values()))
        return self.protocol_type == request.protocol_type and bool(common & offered)

    def _forget(self, member_id: str) -> None:
        """Forget an id that was given to a new member, unless the member has joined with it."""
        if member_id in self.pending:
            self.pending.remove(member_id)
            if self.state is GroupState.PREPARING:
                self._complete_if_joined()

    def _add(self, request: JoinGroupRequest, member_id: str, client_id: str, answer: JoinCall) -> None:
        session_s, rebalance_s = _timeouts_s(request)
        if not self.members:
            self.protocol_type, self.leader_id = request.protocol_type, member_id
        self.members[member_id] = FakeGroupMember(
            member_id, client_id, session_s, rebalance_s, request.protocols, answer_join=answer
        )
        self._has_new_member = True
        self._prepare_or_complete()

    def _keeps_generation(self, member: FakeGroupMember, request: JoinGroupRequest) -> bool:
        """Return whether a join changes nothing: the member repeats it, or follows in a stable group."""
        if member.protocols != request.protocols:
            return False
        follows = self.state is GroupState.STABLE and member.member_id != self.leader_id
        return follows or self.state is GroupState.AWAITING_SYNC

    def _prepare_or_complete(self) -> None:
        if self.state is GroupState.PREPARING:
            self._complete_if_joined()
        else:
            self._prepare()

    def _prepare(self) -> None:
        """Start a rebalance. Members that wait for a sync have to join again."""
        self._refuse_syncs(REBALANCE_IN_PROGRESS)
        self._delays = bool(self.state is GroupState.EMPTY and self.initial_delay_s and not self.early)
        self.state, self._round = GroupState.PREPARING, self._round + 1
        limit_s = max((member.rebalance_s for member in self.members.values()), default=0.0)
        if self._delays:
            self._has_new_member = False
            delay_s = min(self.initial_delay_s, limit_s)
            self.timeline.after(delay_s, self._delay_over, self._round, limit_s - delay_s)
        else:
            self.timeline.after(limit_s, self._time_is_up, self._round)
            self._complete_if_joined()

    def _delay_over(self, number: int, left_s: float) -> None:
        """End the initial delay, or extend it because more members have joined."""
        if number != self._round or self.state is not GroupState.PREPARING:
            return
        if self._has_new_member and left_s > 0:
            self._has_new_member = False
            delay_s = min(self.initial_delay_s, left_s)
            self.timeline.after(delay_s, self._delay_over, number, left_s - delay_s)
        else:
            self._complete()

    def _time_is_up(self, number: int) -> None:
        if number == self._round and self.state is GroupState.PREPARING:
            self._complete()

    def _complete_if_joined(self) -> None:
        if not self._delays and not self.pending and all(member.answer_join for member in self.members.values()):
            self._complete()

    def _complete(self) -> None:
        """End the joins: members that have not joined are removed, the others have a new generation."""
        self.members = {id_: member for id_, member in self.members.items() if member.answer_join}
        if self.leader_id not in self.members:
            self.leader_id = next(iter(self.members), "")
        self.generation += 1
        self._round += 1
        if not self.members:
            self._empty()
            return
        self.state, self.protocol = GroupState.AWAITING_SYNC, self._elected()
        for member in list(self.members.values()):
            answer, member.answer_join = member.answer_join, None
            assert answer is not None
            self.touch(member)
            answer(self._joined(member))

    def _empty(self) -> None:
        self.protocol = ""
        if self.early:
            self.state = GroupState.DEAD
            self.store(None)
        else:
            self.state = GroupState.EMPTY
            self.store(StoredGroup(self.generation, self.protocol_type, "", "", ()))

    def _elected(self) -> str:
        """Return the protocol with the most votes: each member votes for its first one that all others know."""
        common = set.intersection(*(set(member.names) for member in self.members.values()))
        votes = Counter(next(name for name in member.names if name in common) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def _joined(self, member: FakeGroupMember) -> JoinGroupResponse:
        leads = member.member_id == self.leader_id
        members = {each.member_id: each.metadata(self.protocol) for each in self.members.values()} if leads else {}
        return JoinGroupResponse(NO_ERROR, self.generation, self.protocol, self.leader_id, member.member_id, members)

    # ------------------------------------------------------------------ syncs

    def sync(self, request: SyncGroupRequest, answer: SyncCall) -> None:
        """Take the leader's assignments, and answer all members that wait for theirs."""
        code, member = self.check(request.member_id, request.generation), self.members.get(request.member_id)
        if code is not NO_ERROR or member is None:
            answer(SyncGroupResponse(code, b""))
        elif self.state is GroupState.PREPARING:
            answer(SyncGroupResponse(REBALANCE_IN_PROGRESS, b""))
        elif self.state is GroupState.STABLE:
            self.touch(member)
            answer(SyncGroupResponse(NO_ERROR, member.assignment))
        else:
            member.answer_sync = answer
            if member.member_id == self.leader_id:
                self._assign(request.assignments)

    def _assign(self, assignments: Mapping[str, bytes]) -> None:
        self.state = GroupState.STABLE
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        members = tuple(replace(each, answer_join=None, answer_sync=None) for each in self.members.values())
        self.store(StoredGroup(self.generation, self.protocol_type, self.protocol, self.leader_id, members))
        for member in list(self.members.values()):
            answer, member.answer_sync = member.answer_sync, None
            if answer is not None:
                self.touch(member)
                answer(SyncGroupResponse(NO_ERROR, member.assignment))

    def _refuse_syncs(self, code: ErrorCode) -> None:
        for member in list(self.members.values()):
            member.assignment = b"" if self.state is GroupState.AWAITING_SYNC else member.assignment
            answer, member.answer_sync = member.answer_sync, None
            if answer is not None:
                self.touch(member)
                answer(SyncGroupResponse(code, b""))

    # ------------------------------------------------------------------ other requests

    def heartbeat(self, member_id: str, generation: int) -> ErrorCode:
        """Renew a session; 0.9 does not while the group rebalances."""
        if self.early and self.state in (GroupState.PREPARING, GroupState.AWAITING_SYNC):
            return REBALANCE_IN_PROGRESS
        if (code := self.check(member_id, generation)) is not NO_ERROR:
            return code
        self.touch(self.members[member_id])
        return REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING else NO_ERROR

    def leave(self, member_id: str) -> ErrorCode:
        """Remove a member at its own request, also one that has an id and has not joined with it."""
        if member_id in self.pending:
            self._forget(member_id)
            return NO_ERROR
        if member_id not in self.members:
            return UNKNOWN_MEMBER_ID
        self.remove(member_id)
        return NO_ERROR

    def may_commit(self, member_id: str, generation: int) -> ErrorCode:
        """Return whether a commit is accepted; an accepted one renews the member's session, but not in 0.9."""
        if generation < 0 and self.state is GroupState.EMPTY:
            return NO_ERROR
        if self.early and self.state is GroupState.AWAITING_SYNC:
            return REBALANCE_IN_PROGRESS
        if (code := self.check(member_id, generation)) is not NO_ERROR:
            return code
        if self.state is GroupState.AWAITING_SYNC:
            return REBALANCE_IN_PROGRESS
        if not self.early:
            self.touch(self.members[member_id])
        return NO_ERROR

    def check(self, member_id: str, generation: int) -> ErrorCode:
        """Return whether the group has this member in this generation."""
        if member_id not in self.members:
            return UNKNOWN_MEMBER_ID
        return NO_ERROR if generation == self.generation else ILLEGAL_GENERATION


def join_error(code: ErrorCode, member_id: str) -> JoinGroupResponse:
    """Return the answer to a join that is refused."""
    return JoinGroupResponse(code, -1, "", "", member_id, {})


def _timeouts_s(request: JoinGroupRequest) -> tuple[float, float]:
    """Return the session timeout and the rebalance timeout, which is the session timeout in v0."""
    session_s = request.session_timeout_ms / 1000
    if isinstance(request, JoinGroupRequestV1):
        return session_s, request.rebalance_timeout_ms / 1000
    return session_s, session_s
