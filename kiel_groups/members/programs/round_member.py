"""One member of a group of programs on one session: it registers, follows the rounds, and reads its assignments."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from kiel_groups.errors import ConfigError, CoordinationError, ProtocolError, SessionLostError
from kiel_groups.group.rounds import Choice
from kiel_groups.group.znodes.contents import DONE
from kiel_groups.group.znodes.round_contents import JOINING, Offer, RoundAssignment, RoundMember, RoundState
from kiel_groups.group.znodes.transactions import (
    LARGEST_BYTES,
    Check,
    Create,
    Done,
    Failure,
    Operation,
    Put,
    Unknown,
    size_of,
)
from kiel_groups.model import MemberId
from kiel_groups.zookeeper.tasks import SessionContext

__all__ = [
    "RoundExchange",
    "JoinedRound",
    "RoundMembership",
]

log = logging.getLogger(__name__)


class RoundExchange:
    """The round that this process leads at the moment; ``changed`` is called when the leader has gathered it."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        #: The newest generation that the member has read.
        self.newest = 0
        self._generation = 0
        self._choice: Choice | None = None
        self._assignments: asyncio.Future[Mapping[MemberId, bytes]] | None = None

    def choice_of(self, generation: int) -> Choice | None:
        """Return the members of a generation that this process leads; None until they have joined."""
        return self._choice if generation == self._generation else None

    async def assignments_of(self, generation: int, choice: Choice) -> Mapping[MemberId, bytes]:
        """As the leader, wait until the member of this process has brought the assignments of a round."""
        self._assignments = asyncio.get_running_loop().create_future()
        self._generation, self._choice = generation, choice
        self._changed()
        try:
            return await self._assignments
        finally:
            self._choice = self._assignments = None

    def assign(self, generation: int, assignments: Mapping[MemberId, bytes]) -> None:
        """As the member, bring the assignments, if this process still leads that round."""
        if generation == self._generation and self._assignments is not None and not self._assignments.done():
            self._assignments.set_result(assignments)


class JoinedRound(NamedTuple):
    """
    The generation that a member has joined.

    ``protocol`` and ``members``, with the metadata of each, are known to the leader only. ``refused`` says why the
    leader refuses this member, or is "".
    """

    generation: int
    leader: MemberId
    protocol: str = ""
    members: Mapping[MemberId, bytes] = {}
    refused: str = ""


class RoundMembership:
    """
    The member znode and the rounds of one member.

    Args:
        context: The process on its session.
        offer: Returns what the member joins with now.
    """

    def __init__(self, context: SessionContext, offer: Callable[[], Awaitable[Offer]]) -> None:
        self._context = context
        self._session = context.session
        self._layout = context.layout
        self._group = context.group
        self._tasks = context.tasks
        self._member_id = context.member_id
        self._path = context.layout.member(context.member_id)
        self._offer = offer
        self._changed = asyncio.Event()
        self._is_reading = self._again = False
        #: Whether the member znode was written by the registration, which counts as the first join.
        self._is_fresh = False
        #: The generation in the member znode, and the data of that znode.
        self._joined = 0
        self._written = b""
        #: The newest round that was read; None if there is none, or none that can be read.
        self.state: RoundState | None = None
        #: Called when another round was read.
        self.on_round: Callable[[], None] = lambda: None
        self.exchange = RoundExchange(self._changed.set)

    # ------------------------------------------------------------------ the newest round

    def recheck(self) -> None:
        """Read the newest round again: its watch has fired, or may be lost."""
        self._again = True
        if not self._is_reading:
            self._tasks.start(self._read())

    async def _read(self) -> None:
        self._is_reading = True
        try:
            while self._again:
                self._again = False
                self._follow(await self._read_state())
        finally:
            self._is_reading = False

    async def _read_state(self) -> RoundState | None:
        path = self._layout.group_state
        node = await self._session.get(path, self.recheck)
        if node is None and await self._session.exists(path, self.recheck) is not None:
            node = await self._session.get(path, self.recheck)
        if node is None:
            return None
        try:
            state = RoundState.parse(node.data, path)
        except ProtocolError as error:
            log.error("group %s: %s; keeping the current assignment", self._group, error)
            self._context.metrics.count("znodes_unreadable")
            return None
        self.exchange.newest = max(self.exchange.newest, state.generation)
        return state

    def _follow(self, state: RoundState | None) -> None:
        if state != self.state:
            self.state = state
            self._changed.set()
            self.on_round()

    # ------------------------------------------------------------------ registration

    async def register(self) -> None:
        """
        Create the member znode, which joins the next round, or the one that waits for members.

        Raises:
            CoordinationError: ZooKeeper refuses the member znode.
            ConfigError: What the member offers is too large for a znode.
        """
        self.state = await self._read_state()
        self._joined = self._next_generation
        self._written = await self._info(self._joined)
        operations: list[Operation] = [Create(self._path, self._written, ephemeral=True)]
        unanswered = False
        while not isinstance(answer := await self._session.transact(operations), Done):
            if isinstance(answer, Unknown):
                unanswered = True
            elif answer.failure is Failure.NO_NODE:
                await self._session.ensure(self._layout.parents)
            elif unanswered and answer.failure is Failure.NODE_EXISTS:
                break
            else:
                raise CoordinationError(
                    f"group {self._group}: ZooKeeper refused to register {self._path}: {answer.failure.name}"
                )
        self._is_fresh = True
        log.info(
            "group %s: registered as %s, session timeout %d ms",
            self._group,
            self._member_id,
            self._session.timeout_ms,
        )

    @property
    def _next_generation(self) -> int:
        """The generation that a member which has nothing of an earlier one waits for; see ``RoundMember``."""
        if self.state is None:
            return self._joined
        return self.state.generation + (self.state.state == DONE)

    async def _info(self, joined: int) -> bytes:
        offer, runtime = await self._offer(), self._context.runtime
        info = RoundMember(
            member_id=self._member_id,
            joined=joined,
            offer=offer,
            session_timeout_ms=self._session.timeout_ms,
            host=runtime.host(),
            pid=runtime.pid(),
            client=self._context.config.client,
            started_at_ms=self._context.started_ms,
        ).encode()
        if (size := size_of(Create(self._path, info))) > LARGEST_BYTES:
            names = ", ".join(each.name for each in offer.protocols)
            raise ConfigError(
                f"group {self._group}: what this member offers ({names}) takes {size >> 10} KiB in ZooKeeper; expected"
                f" at most {LARGEST_BYTES >> 10}"
            )
        return info

    async def _write(self, joined: int) -> None:
        """Write the generation that the member has joined into its znode, with what it offers now."""
        info = await self._info(joined)
        self._joined, self._written = joined, info
        await self._put()

    async def restore(self) -> None:
        """Write the member znode again if an operator has overwritten it, so that the leader knows this member."""
        node = await self._session.get(self._path)
        if node is not None and node.data != self._written:
            log.warning("group %s: the data of %s was overwritten; writing it again", self._group, self._path)
            await self._put()

    async def _put(self) -> None:
        write: list[Operation] = [Check(self._path), Put(self._path, self._written)]
        while not isinstance(answer := await self._session.transact(write), Done):
            if not isinstance(answer, Unknown):
                self._session.end("the member znode is gone")
                raise SessionLostError(f"the member znode {self._path} is gone")

    # ------------------------------------------------------------------ rounds

    async def join(self) -> JoinedRound:
        """
        Join the next round, and wait until it begins; the leader waits until all members have joined.

        Raises:
            SessionLostError: The session is over.
            CoordinationError: ZooKeeper refuses the write.
            ConfigError: What the member offers is too large for a znode.
        """
        while True:
            if not self._is_fresh:
                self._follow(await self._read_state())
                await self._write(self._next_generation)
            # The round that the registration has joined may be complete by now.
            self._is_fresh = False
            found = await self._begun(self._joined)
            if found is not None:
                return found

    async def _begun(self, joined: int) -> JoinedRound | None:
        """Wait for the round of a generation; return None if the group has gone on without this member."""
        while True:
            self._changed.clear()
            state = self.state
            if state is not None and state.generation == joined:
                if why := self.refusal(joined):
                    return JoinedRound(joined, state.leader, refused=why)
                if state.leader != self._member_id and (state.state == JOINING or self._member_id in state.members):
                    return JoinedRound(joined, state.leader)
                choice = self.exchange.choice_of(joined)
                if choice is not None and state.state == JOINING:
                    return JoinedRound(joined, state.leader, choice.protocol, choice.members)
                if state.state == DONE:
                    return None
            elif state is not None and state.generation > joined:
                return None
            await self._changed.wait()

    def refusal(self, generation: int) -> str:
        """Return why the leader of a generation has refused this member, or "" if it has not."""
        state = self.state
        return "" if state is None or state.generation != generation else state.refused.get(self._member_id, "")

    async def sync(self, generation: int, assignments: Mapping[MemberId, bytes]) -> bytes | None:
        """
        Wait for the assignment of a generation, and return it.

        Return None if another round has begun instead, or if the round is complete without this member; ``refusal``
        says whether the leader has refused it.

        Raises:
            SessionLostError: The session is over.
        """
        self.exchange.assign(generation, assignments)
        while True:
            self._changed.clear()
            state = self.state
            if state is not None and state.generation != generation:
                return None
            if state is not None and state.state == DONE:
                return await self._assignment(generation) if self._member_id in state.members else None
            await self._changed.wait()

    async def _assignment(self, generation: int) -> bytes | None:
        path = self._layout.assignment(self._member_id)
        node = await self._session.get(path)
        if node is None:
            return None
        try:
            found = RoundAssignment.parse(node.data, path)
        except ProtocolError as error:
            log.error("group %s: %s; joining again", self._group, error)
            self._context.metrics.count("znodes_unreadable")
            return None
        return found.assignment if (found.generation, found.member_id) == (generation, self._member_id) else None
