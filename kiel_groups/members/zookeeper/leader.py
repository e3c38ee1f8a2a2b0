"""Take part in a group's election. As the leader, plan and publish assignments as ``group.leader_state`` decides."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from kiel_groups.config import DebounceConfig
from kiel_groups.errors import AuthorizationError, CoordinationError, CredentialsError, SessionLostError
from kiel_groups.group import candidate, leader_state
from kiel_groups.group.planner import Publication
from kiel_groups.group.znodes.transactions import Answer, Check, Create, Done, Operation, Refused
from kiel_groups.zookeeper.tasks import SessionContext

log = logging.getLogger(__name__)


#: Makes a plan from inputs that were read, and returns the writes, or None. Its arguments are the path of the leader's
#: election znode, which every write checks, the changes that were reported, and the time of the first change, in
#: seconds.
MakePlan: TypeAlias = Callable[[str, str, float], Awaitable[Publication | None]]


#: The errors that end the session. Another candidate may have the right that is missing, or an ACL that ZooKeeper
#: accepts.
_ENDING = (SessionLostError, AuthorizationError, CredentialsError)


class PlanVoid(Exception):  # noqa: N818 -- not an error
    """Raised while a plan is made, if the plan must be made again."""


class PlanMaker(Protocol):
    """Makes the plans of one kind of group, while this process leads it."""

    @property
    def alone(self) -> bool:
        """Whether the newest plan has no other member than this process."""

    def begin(self) -> None:
        """Forget the plans of an earlier term: this process was elected."""

    def forget(self) -> None:
        """Drop all cached inputs, so that the next ``read`` reads them again: their watches may have been lost."""

    def stop(self) -> None:
        """Stop everything that runs between plans: this process is no longer the leader, or the session is over."""

    async def read(self) -> MakePlan:
        """
        Read the inputs of the next plan, and return the function that makes the plan.

        From now on, report changes of the inputs.
        """

    def published(self, generation: int, moved: int, took_ms: int) -> None:
        """
        Log and monitor the newest plan, because it was published.

        Args:
            generation: The number of the plan.
            moved: How many partitions change their owner.
            took_ms: Milliseconds from the first change that caused the plan to its publication.
        """


class LeaderDriver:
    """
    Plans and publishes assignments while this process leads its group. The driver is idle while another process leads.

    Args:
        context: The process on its session.
        planner: Returns the maker of this group's plans.
        on_doubt: Called when ZooKeeper does not confirm that this process's election znode exists.
    """

    def __init__(
        self,
        context: SessionContext,
        planner: Callable[[LeaderDriver], PlanMaker],
        on_doubt: Callable[[], None],
    ) -> None:
        self._session = context.session
        self._layout = context.layout
        self._member_id = context.member_id
        self._tasks = context.tasks
        self._metrics = context.metrics
        self._on_doubt = on_doubt
        self._state = leader_state.LeaderState(context.config.debounce)
        self._timer: asyncio.TimerHandle | None = None
        self._planner = planner(self)
        #: When the first change was seen that caused the newest plan.
        self._since_s = 0.0
        #: The folders of plans that exist.
        self._folders: set[str] = set()

    @property
    def is_leader(self) -> bool:
        """Whether this process leads its group."""
        return self._state.phase is not leader_state.LeaderPhase.NONE

    @property
    def alone(self) -> bool:
        """Whether this process leads, and its newest plan has no other member."""
        return self.is_leader and self._planner.alone

    def lead(self, candidate: str, *, succeeds: bool) -> None:
        """
        Start to lead, or continue to lead with a fresh plan.

        ``succeeds`` is true if another candidate was ahead before.
        """
        if not self.is_leader:
            log.info("group %s: %s leads", self._layout.group, self._member_id)
            self._metrics.count("elections_won")
            self._planner.begin()
        self._planner.forget()
        self._folders.clear()
        self._feed(leader_state.Elected(candidate, _now_s(), succeeds))

    def resign(self) -> None:
        """Stop leading."""
        log.info("group %s: %s is no longer the leader", self._layout.group, self._member_id)
        self._planner.stop()
        self._feed(leader_state.Deposed())

    def changed(self, cause: str, *, urgent: bool = False) -> None:
        """Plan again because inputs of the plan may have changed. An ``urgent`` change bypasses the debounce."""
        self._feed(leader_state.Changed(cause, _now_s(), urgent))

    def set_debounce(self, debounce: DebounceConfig) -> None:
        """Use these debounce settings from now on."""
        self._feed(leader_state.DebounceChanged(debounce))

    def close(self) -> None:
        """Cancel the timer, and stop the planner, because the session is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._planner.stop()

    def _feed(self, event: leader_state.Event) -> None:
        self._state, effects = leader_state.step(self._state, event)
        for effect in effects:
            match effect:
                case leader_state.MakePlan(term, candidate, cause, since_s):
                    self._tasks.start(self._make_plan(term, candidate, cause, since_s))
                case leader_state.Prepare(term, folders):
                    self._tasks.start(self._prepare(term, folders))
                case leader_state.Write(term, operations):
                    self._tasks.start(self._write(term, operations))
                case leader_state.Published(generation, moved):
                    self._published(generation, moved)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_s = self._state.due_s
        if due_s is not None:
            delay_s = max(0.0, due_s - _now_s())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._feed(leader_state.Tick(_now_s()))

    async def _prepare(self, term: int, folders: tuple[str, ...]) -> None:
        failed = False
        missing = [folder for folder in folders if folder not in self._folders]
        try:
            if missing:
                await self._session.ensure(missing)
            self._folders.update(missing)
        except _ENDING:
            raise
        except CoordinationError as error:
            log.error("group %s: %s; retrying soon", self._layout.group, error)
            failed = True
        self._feed(leader_state.Prepared(term, _now_s(), failed))

    async def _write(self, term: int, operations: tuple[Operation, ...]) -> None:
        answer = await self._session.transact(operations)
        self.check(answer, "a publication was interrupted")
        self._feed(leader_state.Written(term, answer, _now_s()))

    def check(self, answer: Answer, what: str) -> bool:
        """
        Return whether a transaction that first checks the election znode was executed.

        If the transaction was not executed, log a warning. If the check of the election znode failed, call
        ``on_doubt``.
        """
        if isinstance(answer, Done):
            return True
        log.warning("group %s: %s (%s); planning again", self._layout.group, what, answer)
        self._metrics.count("publications_interrupted")
        # An operator may have deleted some of these folders. Without them, every publication would be refused.
        self._folders.clear()
        if isinstance(answer, Refused) and answer.index == 0:
            self._on_doubt()
        return False

    def _published(self, generation: int, moved: int) -> None:
        self._metrics.count("generations_published")
        self._metrics.gauge("generation", generation)
        self._planner.published(generation, moved, round(1000 * (_now_s() - self._since_s)))

    async def _make_plan(self, term: int, candidate: str, cause: str, since_s: float) -> None:
        """Prove leadership and read the inputs, then make the plan, and report the result to the state machine."""
        self._since_s = since_s
        try:
            # The server handles requests in order, so the reads follow the proof without waiting for its answer.
            proving = self._session.transact([Check(candidate)])
            proof, make_plan = await asyncio.gather(proving, self._planner.read())
            if not self.check(proof, "leadership could not be proved"):
                self._feed(leader_state.Planned(term, None, _now_s(), failed=True))
                return
            publication = await make_plan(candidate, cause, since_s)
        except _ENDING:
            raise
        except PlanVoid as void:
            log.info("group %s: planning again: %s", self._layout.group, void)
            self._feed(leader_state.Planned(term, None, _now_s(), failed=True))
            return
        except Exception:
            # A leader that stops planning leaves partitions without an owner, so it retries after any error.
            log.exception("group %s: no plan could be made; retrying soon", self._layout.group)
            self._metrics.count("plans_failed")
            self._feed(leader_state.Planned(term, None, _now_s(), failed=True))
            return
        self._feed(leader_state.Planned(term, publication, _now_s()))


def _now_s() -> float:
    return asyncio.get_running_loop().time()


#: The pause before a refused attempt to join the election is repeated, in seconds.
CANDIDACY_PAUSE_S = 0.2


class Candidacy:
    """
    Takes part in a group's election for one process on one session, and leads the group once elected.

    Args:
        context: The process on its session.
        planner: Returns the maker of the group's plans. The maker is idle while another process leads.
        proof: The znode that must exist for this process to be a candidate: the member znode, or the election folder
            for an allocator process.
    """

    def __init__(self, context: SessionContext, planner: Callable[[LeaderDriver], PlanMaker], proof: str) -> None:
        self._session = context.session
        self._layout = context.layout
        self._member_id = context.member_id
        self._tasks = context.tasks
        self._metrics = context.metrics
        self._proof = proof
        self._leader_driver = LeaderDriver(context, planner, self.recheck)
        self._candidate = candidate.Candidate(context.runtime.unique_name())

    @property
    def leads(self) -> bool:
        """Whether this process is the group's leader."""
        return self._candidate.leads

    @property
    def alone(self) -> bool:
        """Whether this process leads, and its newest plan has no other member."""
        return self._leader_driver.alone

    def enter(self) -> None:
        """Become a candidate. The znode ``proof`` must exist by now."""
        self._feed(candidate.EnterElection())

    def recheck(self) -> None:
        """Read the candidates again: an operator may have deleted the election znode, or a watch was lost."""
        self._feed(candidate.Resumed())

    def end(self) -> None:
        """Stop leading and taking part, because the session is over."""
        self._leader_driver.close()
        self._feed(candidate.SessionEnded())

    def _feed(self, event: candidate.Event) -> None:
        """Apply an event, and perform its effects."""
        before = self._candidate
        self._candidate, effects = candidate.step(before, event)
        if self._candidate.followed and not before.followed:
            log.info("group %s: %s is standing by, another process leads", self._layout.group, self._member_id)
        for effect in effects:
            match effect:
                case candidate.CreateCandidate():
                    self._tasks.start(self._create())
                case candidate.ReadCandidates():
                    self._tasks.start(self._read())
                case candidate.WatchPredecessor(name):
                    self._tasks.start(self._watch(name))
                case candidate.BecomeLeader(name, succeeds):
                    self._leader_driver.lead(f"{self._layout.election}/{name}", succeeds=succeeds)
                case candidate.ResignLeader():
                    self._leader_driver.resign()

    async def _create(self) -> None:
        path, data = self._layout.candidate_prefix(self._candidate.uuid), self._member_id.encode()
        answer = await self._session.transact([Check(self._proof), Create(path, data, ephemeral=True, sequence=True)])
        if isinstance(answer, Refused):
            # Either the member znode was deleted, which the heartbeat will find, or the election folder was.
            self._metrics.count("candidacies_refused")
            log.warning("group %s: could not join the election (%s); retrying", self._layout.group, answer.failure.name)
            await self._session.ensure(self._layout.parents)
            await asyncio.sleep(CANDIDACY_PAUSE_S)
        name = answer.paths[1] if isinstance(answer, Done) else None
        self._feed(candidate.Created(name.rpartition("/")[2] if name else None))

    async def _read(self) -> None:
        names = await self._session.children(self._layout.election)
        self._feed(candidate.Candidates(tuple(names or ())))

    async def _watch(self, name: str) -> None:
        path = f"{self._layout.election}/{name}"
        if await self._session.exists(path, self._changed) is None:
            self._changed()

    def _changed(self) -> None:
        self._feed(candidate.PredecessorGone())
