"""Coordinate one member of a group of programs through ZooKeeper sessions, and rounds that the leader makes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from kiel_groups.config import GroupConfig
from kiel_groups.errors import (
    AuthorizationError,
    BrokerError,
    ConfigError,
    CoordinationError,
    CredentialsError,
    GroupConfigError,
    KielGroupsError,
    NoZooKeeperError,
)
from kiel_groups.group.member_state import CoordinatorCode, GroupRequest
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.group.znodes.round_contents import Offer, OfferedProtocol, RoundLayout
from kiel_groups.members.brokers.coordinator import BeatReport, BeatTarget, CoordinatorWords, JoinAnswer, SyncAnswer
from kiel_groups.members.brokers.gate import GenerationGate
from kiel_groups.members.brokers.hooks import JoinedGroup, MemberHooks
from kiel_groups.members.brokers.transport import BeatAnswer, FindError
from kiel_groups.members.programs.rounds import RoundMembership, RoundPlanner
from kiel_groups.members.zookeeper.group_session import GroupSession, RoleKind, SessionRole, is_fatal
from kiel_groups.members.zookeeper.leader import Candidacy
from kiel_groups.members.zookeeper.registration import admit_program
from kiel_groups.model import GenerationToken
from kiel_groups.wire.error_codes import NO_ERROR, error_code
from kiel_groups.zookeeper.delivery_gate import DeliveryGate
from kiel_groups.zookeeper.session import Session
from kiel_groups.zookeeper.tasks import CloseLimit, ProcessContext, SessionContext, TaskSet

log = logging.getLogger(__name__)


class RoundRole(SessionRole):
    """A member of a group of programs on one session; see ``SessionRole``."""

    def __init__(
        self, context: SessionContext, offer: Callable[[], Awaitable[Offer]], rebalance_timeout_s: float
    ) -> None:
        self.proof = context.layout.member(context.member_id)
        self.membership = membership = RoundMembership(context, offer)
        planner = partial(RoundPlanner, context, membership.exchange, rebalance_timeout_s)
        self.candidacy = Candidacy(context, planner, self.proof)

    async def register(self) -> None:
        """Register the member. The errors are those of ``RoundMembership.register``."""
        await self.membership.register()

    async def joined(self) -> None:
        """Read the newest round. A watch then reports later rounds."""
        self.membership.recheck()

    def recheck(self) -> None:
        """Read the newest round again."""
        self.membership.recheck()

    async def restore(self) -> None:
        """Restore the member znode. Read the newest round again, in case its watch was lost."""
        self.membership.recheck()
        await self.membership.restore()


class SessionGate(GenerationGate):
    """
    The gate of one member in one generation. The gate's lease is the lease of the ZooKeeper session.

    Args:
        token: The generation and the member id.
        session: The gate of the session.
        sent_s: The boot time at which the member asked for its assignment, in seconds.
    """

    def __init__(self, token: GenerationToken, session: DeliveryGate, sent_s: float) -> None:
        super().__init__(token, session.timeout_ms, sent_s)
        self._session = session

    @property
    def deadline_s(self) -> float:
        """The end of the session's lease, in seconds of boot time. The session's heartbeat renews the lease."""
        return self._session.deadline_s

    def is_open(self, now_s: float) -> bool:
        """Return whether the assignment may be used at the boot time ``now_s``."""
        return not self.is_shut and self._session.is_open(now_s)


T = TypeVar("T")

_NO_TOKEN = GenerationToken(-1, "")
_NOTHING = JoinedGroup("", "", {})


class ZooKeeperCoordinator:
    """
    The coordinator of a group on ZooKeeper; see ``GroupCoordinator``. Each session is a coordinator of its own.

    If the member has no session, ``find`` opens a session. Answers have the codes of a broker: "unknown member" after
    the end of a session, "rebalance in progress" after the beginning of another round.

    Args:
        process: The process that the member runs in.
        hooks: The hooks of the program that the member belongs to.
        rebalance_timeout_s: How long a round waits for members while this process leads, in seconds.
        report: Called when the member must join again, or has lost its membership.
    """

    words = CoordinatorWords(confirmer="ZooKeeper", find="open a ZooKeeper session")

    def __init__(
        self, process: ProcessContext, hooks: MemberHooks, rebalance_timeout_s: float, report: BeatReport
    ) -> None:
        self._process = process
        self._hooks = hooks
        self._group = process.config.group
        self._rebalance_timeout_s = rebalance_timeout_s
        self._kind = RoleKind("this member is paused", RoundLayout, self._admit, self._new_role)
        self._report = report
        self._tasks = TaskSet(self._failed)
        self._number = 0
        self._session: GroupSession[RoundRole] | None = None
        self._target: BeatTarget | None = None
        self._request: asyncio.Task[Any] | None = None
        #: The right that was missing on the last session.
        self._denied: AuthorizationError | None = None
        #: The error that prevents the membership, as soon as it is known.
        self._refusal: KielGroupsError | None = None

    @property
    def beats_while_draining(self) -> bool:
        """Always true: a session lasts even if the member has not joined again."""
        return True

    async def _admit(self, session: Session, layout: GroupLayout, _config: GroupConfig) -> None:
        await admit_program(session, layout, self._hooks.protocol_type)

    def _new_role(self, context: SessionContext) -> RoundRole:
        return RoundRole(context, self._offer, self._rebalance_timeout_s)

    async def _offer(self) -> Offer:
        protocols = await self._hooks.protocols()
        return Offer(self._hooks.protocol_type, tuple(OfferedProtocol(each.name, each.metadata) for each in protocols))

    # ------------------------------------------------------------------ sessions

    async def find(self) -> int:
        """
        Return the number of the present session. If there is none, open a session.

        Raises:
            FindError: No session could be opened.
        """
        if self._session is None or self._session.ended:
            is_first = self._number == 0
            session = GroupSession(self._process, self._kind, first=is_first, denied=self._denied)
            by_s = asyncio.get_running_loop().time() + self._process.zookeeper.connect_timeout_ms / 1000
            try:
                await session.join(by_s)
            except KielGroupsError as error:
                # A first join raises the errors that only a user can fix, too.
                if not is_fatal(error) and not (is_first and isinstance(error, (AuthorizationError, CredentialsError))):
                    is_logged = not self._process.refusals.is_news(error)
                    raise FindError(str(error), is_logged=is_logged) from error
                self._refusal = error
                raise FindError(str(error), code=CoordinatorCode.INVALID_GROUP) from error
            self._number += 1
            self._session = session
            session.role.membership.on_round = self._round_read
            self._tasks.start(self._supervise(session, self._number))
        return self._number

    async def _supervise(self, session: GroupSession[RoundRole], number: int) -> None:
        error = await asyncio.shield(session.over)
        why = "its ZooKeeper session is over"
        self._denied = error if isinstance(error, AuthorizationError) else None
        if not isinstance(error, (AuthorizationError, CredentialsError)):  # The session has logged these.
            why = f"{why}: {error or session.session.ended}"
        target = self._target
        if target is not None and target.coordinator == number:
            # The member looks for the next coordinator before it is notified that its assignment is lost.
            self._report(target, BeatAnswer(None, why))
            self._report(target, BeatAnswer(CoordinatorCode.UNKNOWN_MEMBER, why))
        await session.close()

    def _failed(self, error: BaseException) -> None:
        log.error("group %s: the coordination of this member failed: %s", self._group, error, exc_info=error)

    def _current(self, coordinator: int) -> GroupSession[RoundRole]:
        """
        Return the session with this number.

        Raises:
            BrokerError: The session is over.
        """
        session = self._session
        if coordinator != self._number or session is None or session.ended:
            raise BrokerError(f"group {self._group}: the ZooKeeper session is over")
        return session

    async def _while_it_lasts(self, session: GroupSession[RoundRole], request: Awaitable[T]) -> T:
        """
        Await a request until it ends, or the session ends. Return the result of the request.

        Raises:
            BrokerError: The session has ended, or the request has failed.
            ConfigError: The request has failed with this error.
        """
        self._request = asking = asyncio.ensure_future(request)
        try:
            either: set[asyncio.Future[Any]] = {asking, session.over}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                reason = session.session.ended or "this member leaves"
                raise BrokerError(f"group {self._group}: the ZooKeeper session is over: {reason}")
            return asking.result()
        except ConfigError:
            raise
        except KielGroupsError as error:
            text = str(error)
            if isinstance(error, AuthorizationError):
                # Rounds would wait for this member as long as its znode exists. The session logs the error.
                session.fail(error)
                text = f"group {self._group}: the ZooKeeper session is over"
            raise BrokerError(text) from error
        finally:
            asking.cancel()

    # ------------------------------------------------------------------ requests

    async def join(self, coordinator: int, member_id: str) -> JoinAnswer:
        """Join the next round; see ``RoundMembership.join``."""
        session = self._current(coordinator)
        try:
            joined = await self._while_it_lasts(session, session.role.membership.join())
        except ConfigError as error:
            self._refuse(session, error)
            return JoinAnswer(error_code(CoordinatorCode.INVALID_GROUP), _NO_TOKEN, _NOTHING)
        if joined.refused:
            self._refuse(session, self._leader_refuses(joined.refused))
            return JoinAnswer(error_code(CoordinatorCode.INCONSISTENT_PROTOCOL), _NO_TOKEN, _NOTHING)
        token = GenerationToken(joined.generation, session.member_id)
        return JoinAnswer(NO_ERROR, token, JoinedGroup(joined.protocol, joined.leader, joined.members))

    def _leader_refuses(self, why: str) -> KielGroupsError:
        return GroupConfigError(
            f"group {self._group}: its leader refuses this member: {why}. Give all members a protocol in common, or"
            " choose another group"
        )

    def _refuse(self, session: GroupSession[RoundRole], error: KielGroupsError) -> None:
        """
        Close the session of a member that stops because of this error.

        Otherwise, later rounds would wait for the member as long as its znode exists.
        """
        self._refusal = error
        # ``_supervise`` waits for the end of the close.
        session.close()

    async def sync(self, coordinator: int, token: GenerationToken, assignments: Mapping[str, bytes]) -> SyncAnswer:
        """Wait for the assignment of a generation; see ``RoundMembership.sync``."""
        session = self._current(coordinator)
        found = await self._while_it_lasts(session, session.role.membership.sync(token.generation, assignments))
        if why := session.role.membership.refusal(token.generation):
            # The round had begun, so the join was answered before the leader knew the members' protocols.
            self._refuse(session, self._leader_refuses(why))
            return SyncAnswer(error_code(CoordinatorCode.INVALID_GROUP), b"")
        if found is None:
            return SyncAnswer(error_code(CoordinatorCode.REBALANCE_IN_PROGRESS), b"")
        return SyncAnswer(NO_ERROR, found)

    async def leave(self, coordinator: int, member_id: str) -> None:
        """Close the session. ZooKeeper then deletes the member znode, so that the next round begins."""
        await self._current(coordinator).leave()

    def abandon(self) -> None:
        """Cancel the join or the sync in flight."""
        if self._request is not None:
            self._request.cancel()

    def unreachable(self, error: KielGroupsError) -> KielGroupsError:
        """Return the ZooKeeper error that caused ``error``, or else a NoZooKeeperError with its text."""
        return error.__cause__ if isinstance(error.__cause__, CoordinationError) else NoZooKeeperError(str(error))

    def refusal(self, request: GroupRequest, code: int) -> KielGroupsError:
        """Return the error of a member that its group, or ZooKeeper, refuses."""
        return self._refusal or error_code(code).exception(f"group {self._group}: {request.value}")

    # ------------------------------------------------------------------ the membership

    def new_gate(self, token: GenerationToken, sent_s: float) -> GenerationGate:
        """Return a gate that is open while the session is trusted."""
        assert self._session is not None, "a member syncs on a session only"
        return SessionGate(token, self._session.session.gate, sent_s)

    def follow(self, target: BeatTarget | None) -> None:
        """Report the next round, and the end of the session, as answers to this membership from now on."""
        if target == self._target:
            return
        self._target = target
        if target is not None:
            # A round may have begun since the assignment was read. The member's own step must end before that.
            asyncio.get_running_loop().call_soon(self._round_read)

    def _round_read(self) -> None:
        target, session = self._target, self._session
        if target is None or session is None or target.coordinator != self._number:
            return
        state = session.role.membership.state
        if state is not None and state.generation != target.gate.token.generation:
            self._report(target, BeatAnswer(CoordinatorCode.REBALANCE_IN_PROGRESS))

    def leave_at_once(self, coordinator: int, member_id: str) -> None:
        """Tell the session's threads to close the session."""
        if self._session is not None and coordinator == self._number:
            self._session.session.abandon("the member leaves at once")

    def stop(self) -> None:
        """Tell the session's threads to close the session, unless it is closed already."""
        self._target = None
        if self._session is not None and not self._session.ended:
            self._session.session.abandon("closed")

    async def closed(self, limit: CloseLimit) -> None:
        """Wait until the session is closed, or until ``limit``: the session's threads close it later then."""
        if self._session is not None:
            await self._session.close_within(limit)
        await self._tasks.cancel()

    def wait_ended(self, timeout_s: float) -> None:
        """Block until the session is closed, for at most ``timeout_s``."""
        if self._session is not None and not self._session.session.abandoned_within("closed", timeout_s):
            log.warning("group %s: ZooKeeper does not answer; the session will expire", self._group)
