"""Carry out the rounds (rebalances) of a group of programs on ZooKeeper, as the leader and as a member."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from kiel_groups.errors import ConfigError, ProtocolError, SessionLostError
from kiel_groups.group.planner import Publication
from kiel_groups.group.rounds import Choice, Opening, RoundInputs, choose, latecomers, opening, publication, round_cause
from kiel_groups.group.znodes.contents import DONE
from kiel_groups.group.znodes.round_contents import JOINING, Offer, RoundAssignment, RoundMember, RoundState
from kiel_groups.group.znodes.transactions import LARGEST_BYTES, Check, Create, Done, Operation, Put, Unknown, size_of
from kiel_groups.members.zookeeper.leader import LeaderDriver, MakePlan, PlanVoid
from kiel_groups.members.zookeeper.planner import WatchedValues
from kiel_groups.members.zookeeper.registration import create_registration
from kiel_groups.model import MemberId
from kiel_groups.wording import counted, some
from kiel_groups.zookeeper.session import Node, get_watched
from kiel_groups.zookeeper.tasks import SessionContext, SlowStep

log = logging.getLogger(__name__)


class RoundExchange:
    """
    Passes the members of a round from the leader to the member of the same process, and the assignments back.

    The leader calls ``assignments_of``, and the member calls the other methods. ``assignments_of`` calls ``changed``,
    because the members of the round have joined.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        #: The newest generation that the member has read.
        self.newest = 0
        self._generation = 0
        self._choice: Choice | None = None
        self._assignments: asyncio.Future[Mapping[MemberId, bytes]] | None = None

    def choice_of(self, generation: int) -> Choice | None:
        """Return the members of a generation that this process leads, or None until the members have joined."""
        return self._choice if generation == self._generation else None

    async def assignments_of(self, generation: int, choice: Choice) -> Mapping[MemberId, bytes]:
        """
        Pass the members that have joined to this process's member, and wait for the assignments that this member makes.
        """
        self._assignments = asyncio.get_running_loop().create_future()
        self._generation, self._choice = generation, choice
        self._changed()
        try:
            return await self._assignments
        finally:
            self._choice = self._assignments = None

    def assign(self, generation: int, assignments: Mapping[MemberId, bytes]) -> None:
        """Pass the member's assignments to the waiting leader. If that round is over, do nothing."""
        if generation == self._generation and self._assignments is not None and not self._assignments.done():
            self._assignments.set_result(assignments)


class JoinedRound(NamedTuple):
    """
    The generation that a member has joined.

    Only the leader knows ``protocol`` and ``members``, the metadata of each member by its id. ``refused`` is the reason
    why the leader refuses this member, or "".
    """

    generation: int
    leader: MemberId
    protocol: str = ""
    members: Mapping[MemberId, bytes] = {}
    refused: str = ""


class RoundMembership:
    """
    Joins the rounds of a group for one member, and writes its member znode.

    Args:
        context: The process on its session.
        offer: Returns the protocols with which the member joins now.
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
        node = await get_watched(self._session, path, self.recheck)
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
        Create the member znode, and so join the next round. If the present round still waits for members, join that
        round.

        Raises:
            CoordinationError: ZooKeeper refuses the member znode.
            ConfigError: The member's offer is too large for a znode.
        """
        self.state = await self._read_state()
        self._joined = self._next_generation
        self._written = await self._info(self._joined)
        await create_registration(
            self._session,
            self._group,
            [Create(self._path, self._written, ephemeral=True)],
            lambda: self._session.ensure(self._layout.parents),
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
        """The generation that a member without an earlier assignment waits for; see ``RoundMember``."""
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
        """Write the generation that the member joins into its znode, with the protocols that it offers now."""
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
        Join the next round, and wait until it begins. If this member is the leader, wait until all members have joined.

        Raises:
            SessionLostError: The session is over.
            CoordinationError: ZooKeeper refuses the write.
            ConfigError: The member's offer is too large for a znode.
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
        """Wait until the round of a generation begins. Return None if the group has continued without this member."""
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
        """
        Return why the leader of a generation has refused this member, or "" if the leader has not refused this member.
        """
        state = self.state
        return "" if state is None or state.generation != generation else state.refused.get(self._member_id, "")

    async def sync(self, generation: int, assignments: Mapping[MemberId, bytes]) -> bytes | None:
        """
        Wait for the assignment of a generation, and return it.

        Return None if another round has begun instead, or if the round is complete without this member. ``refusal``
        then says whether the leader has refused this member.

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


class RoundPlanner:
    """
    Makes the plans of a group of programs; see ``PlanMaker``. Each plan is a round.

    Args:
        context: The process on its session.
        exchange: Passes the members to the member of this process, and the assignments back.
        rebalance_timeout_s: How long a round waits until members have released their assignments and joined, and after
            that for the new assignments, in seconds.
        requests: The leader's driver. The planner informs the driver of changed members.
    """

    def __init__(
        self, context: SessionContext, exchange: RoundExchange, rebalance_timeout_s: float, requests: LeaderDriver
    ) -> None:
        self._context = context
        self._session = context.session
        self._layout = context.layout
        self._member_id = context.member_id
        self._exchange = exchange
        self._timeout_s = rebalance_timeout_s
        self._requests = requests
        self._values = WatchedValues(context, self._on_change)
        self._changed = asyncio.Event()
        #: Set if another process may have written the state of the round under way.
        self._disturbed = asyncio.Event()
        #: The live members of the newest plan.
        self._live: frozenset[MemberId] = frozenset()
        #: The members that the round under way waits for.
        self._late: Sequence[MemberId] = ()
        #: The plan under way.
        self._planning: asyncio.Task[Publication | None] | None = None
        self._cause = ""

    @property
    def alone(self) -> bool:
        """Whether the newest plan has no other member than this process."""
        return self._live <= {self._member_id}

    def begin(self) -> None:
        """Forget the members of an earlier term."""
        self._live = frozenset()

    def forget(self) -> None:
        """Read all members again for the next plan."""
        self._values.forget()
        self._changed.set()
        self._disturbed.set()

    def stop(self) -> None:
        """Stop the present round: another process leads, or the session is over."""
        if self._planning is not None:
            self._planning.cancel()

    def published(self, generation: int, moved: int, took_ms: int) -> None:
        """Log that the round is complete."""
        group, cause = self._layout.group, self._cause
        fields = {"group": group, "generation": generation, "cause": cause, "took_ms": took_ms}
        text = "group %s: round %d is complete after %d ms: %s"
        log.info(text, group, generation, took_ms, cause, extra={"fields": fields})

    def _on_change(self, what: str) -> None:
        self._changed.set()
        self._requests.changed(what)

    async def read(self) -> MakePlan:
        """Read the members and the newest round, and return the function that makes the next round."""
        members, state, slots = await asyncio.gather(
            self._members(),
            self._session.get(self._layout.group_state),
            self._session.children(self._layout.group_state),
        )
        nodes = await self._session.get_many([self._layout.assignment(slot) for slot in slots or ()])
        inputs = RoundInputs(
            members=members,
            state=None if state is None else self._values.parsed(RoundState.parse, state, self._layout.group_state),
            state_version=None if state is None else state.version,
            assignments={
                slot: self._generation(slot, node)
                for slot, node in zip(slots or (), nodes, strict=True)
                if node is not None
            },
            known=self._exchange.newest,
        )
        self._live = frozenset(member.member_id for member in members)
        return partial(self._cancellable, inputs)

    def _generation(self, slot: MemberId, node: Node) -> int:
        found = self._values.parsed(RoundAssignment.parse, node, self._layout.assignment(slot))
        return 0 if found is None else found.generation

    async def _members(self) -> Sequence[RoundMember]:
        """Read the live members in the order of their registration, without members whose znode cannot be read."""
        found = await self._values.members(self._layout, RoundMember.parse)
        return [member for _, member in sorted(found.values(), key=lambda each: each[0])]

    async def _cancellable(self, inputs: RoundInputs, candidate: str, cause: str, since_s: float) -> Publication | None:
        """Make a plan in a task that ``stop`` cancels. Raise PlanVoid if ``stop`` has cancelled the task."""
        self._planning = asyncio.ensure_future(self._plan(inputs, candidate))
        try:
            return await self._planning
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            raise PlanVoid("the leader has stopped") from None
        finally:
            self._planning.cancel()

    async def _plan(self, inputs: RoundInputs, candidate: str) -> Publication | None:
        self._cause = round_cause(inputs)
        if not self._cause:
            return None
        now_ms = self._context.runtime.wall_ms()
        begun = opening(
            self._layout, inputs, leader=self._member_id, candidate=candidate, cause=self._cause, now_ms=now_ms
        )
        answer = await self._session.transact(begun.write)
        if not self._requests.check(answer, "a round could not begin"):
            raise PlanVoid("the round was refused")
        log.info("group %s: beginning round %d: %s", self._layout.group, begun.state.generation, self._cause)
        choice, assignments = await self._undisturbed(begun)
        return publication(
            self._layout, begun, choice, assignments, stored=list(inputs.assignments), candidate=candidate
        )

    async def _undisturbed(self, begun: Opening) -> tuple[Choice, Mapping[MemberId, bytes]]:
        """
        Return the members of a round and their assignments.

        Raises:
            PlanVoid: An operator has deleted or overwritten the state of the round, so members wait for the next round.
        """
        assigned = asyncio.ensure_future(self._assigned(begun.state.generation))
        disturbed = asyncio.ensure_future(self._state_changed(begun))
        try:
            either: set[asyncio.Future[Any]] = {assigned, disturbed}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not assigned.done():
                disturbed.result()
                raise PlanVoid("the state of the round was deleted or overwritten")
            return assigned.result()
        finally:
            assigned.cancel()
            disturbed.cancel()

    async def _state_changed(self, begun: Opening) -> None:
        """Wait until the group's state is not the one that was written at the beginning of the round."""
        while True:
            self._disturbed.clear()
            node = await self._session.get(self._layout.group_state, self._disturbed.set)
            if node is None or node.version != begun.version:
                return
            await self._disturbed.wait()

    async def _assigned(self, generation: int) -> tuple[Choice, Mapping[MemberId, bytes]]:
        choice = await self._gather(generation)
        self._context.metrics.count("rounds_gathered")
        try:
            async with asyncio.timeout(self._timeout_s):
                return choice, await self._exchange.assignments_of(generation, choice)
        except TimeoutError:
            self._session.end("its program has not made the assignments in time, so it cannot lead")
            raise PlanVoid("the leader's program has not assigned") from None

    async def _gather(self, generation: int) -> Choice:
        """
        Wait until all live members have joined, at most for the rebalance timeout.

        Return the protocol of the round, and the members that have joined and were accepted.

        Raises:
            PlanVoid: The member of this process has not joined in time, or was refused. This method has ended its
                session, so that another member can lead.
        """
        with SlowStep(lambda seconds: self._warn_of_late(generation, seconds)):
            members, late = await self._joined(generation)
        if late:
            self._context.metrics.count("rounds_incomplete")
            log.error(
                "group %s: continuing round %d without %s that have not given the last assignment back in %g s: %s;"
                " what they own stays theirs until they release it",
                self._layout.group,
                generation,
                counted(late, "member"),
                self._timeout_s,
                some(late),
            )
        choice = choose(members, generation, self._member_id)
        for member_id, why in choice.refused.items():
            log.error("group %s: member %s is refused: %s", self._layout.group, member_id, why)
        if self._member_id not in choice.members:
            # The group needs another leader, whose program can assign.
            refused = choice.refused.get(self._member_id)
            why = refused or "its program has not given its assignment back in time"
            self._session.end(f"{why}, so it cannot lead")
            raise PlanVoid("the leader's own member has not joined")
        return choice

    async def _joined(self, generation: int) -> tuple[Sequence[RoundMember], Sequence[MemberId]]:
        """
        Wait until all live members have joined, at most for the rebalance timeout.

        Return the live members, and the ids of the members that have not joined.
        """
        loop = asyncio.get_running_loop()
        by_s = loop.time() + self._timeout_s
        while True:
            self._changed.clear()
            members = await self._members()
            self._late = late = latecomers(members, generation)
            if all(member.member_id != self._member_id for member in members):
                # The leader cannot read this member's znode. The member writes it again when it joins.
                late.append(self._member_id)
            if not late or loop.time() >= by_s:
                return members, late
            try:
                async with asyncio.timeout_at(by_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _warn_of_late(self, generation: int, seconds: float) -> None:
        log.warning(
            "group %s: round %d has waited %.0f s for %s to give the last assignment back and join: %s; it continues"
            " without them after %g s",
            self._layout.group,
            generation,
            seconds,
            counted(self._late, "member"),
            some(self._late),
            self._timeout_s,
        )
