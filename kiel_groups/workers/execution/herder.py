"""
Start and stop connectors and tasks (work) when a worker's assignment, configuration or ZooKeeper session changes.

Kafka Connect calls this part the herder. At each of these changes, the herder compares the work that has to run with
the work that runs. The herder starts work only while it has a session, an assignment, and a configuration that is not
older than the configuration by which the work was assigned.

If connectors or tasks are added or removed, or the settings of a task change, the group has to assign again. All other
changes concern only the owner of the work. The owner restarts, pauses or resumes the work.

Work continues to run under its claims while the group rebalances. Work that the worker does not get again is stopped
after the rebalance, and its next owner waits for the claim. Only work that the newest configuration no longer has is
stopped before the worker joins again. All work is stopped before the worker leaves the group.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from kiel_groups.errors import AuthorizationError, KielGroupsError, SessionLostError
from kiel_groups.workers.execution.work_plan import needs_rejoin, outdated, planned, still_valid
from kiel_groups.workers.execution.work_supervisor import WorkSupervisor
from kiel_groups.workers.execution.worker_plugins import WorkerPlugins
from kiel_groups.workers.membership import WorkerContext, WorkerHooks
from kiel_groups.workers.runners.runner_interface import KafkaClients
from kiel_groups.workers.session import WorkerRole
from kiel_groups.workers.values import ConfigSnapshot, Work, WorkerAssignment

log = logging.getLogger(__name__)

#: How long the configuration may be read before a join, in seconds; after that, all work is given back.
_READ_LIMIT_S = 3.0

#: The time between two warnings of plugins that keep a worker from ending, in seconds.
_STUCK_WARNING_S = 10.0

#: The snapshots that a worker keeps, to compare them with the snapshot by which its work was assigned.
_MOST_SEEN = 16


class Herder:
    """
    Runs the assigned work of a worker, and reads the configuration. The herder is the ``WorkerListener`` of the
    worker's hooks.

    The caller passes ``hooks`` to a group member, sets this member as ``hooks.member``, and passes ``opened`` and
    ``lost`` to a ``WorkerSession``. The caller starts the session before the member.

    Args:
        context: The group, the URL of the worker's REST interface, metrics and the runtime.
        plugins: The connectors of the worker.
        clients: Creates the clients of tasks.
        allocator: The name of the preferred allocator.

    Raises:
        ConfigError: There is no such allocator.
    """

    def __init__(
        self, context: WorkerContext, plugins: WorkerPlugins, clients: KafkaClients, allocator: str = "round_robin"
    ) -> None:
        self.context = context
        self._group = context.group
        self._plugins = plugins
        self._clients = clients
        self.hooks = WorkerHooks(context, self, allocator)
        self._role: WorkerRole | None = None
        #: The newest configuration that this worker has read; None if it has not read any.
        self.config: ConfigSnapshot | None = None
        self._seen: dict[int, ConfigSnapshot] = {}
        #: The problems of the newest configuration, which were logged, by connectors.
        self._problems: dict[str, str] = {}
        self._assignment: WorkerAssignment | None = None
        self._generation = 0
        self._running: dict[Work, WorkSupervisor] = {}
        #: Supervisors that are stopping, or that still wait for a plugin that does not stop.
        self._ending: dict[Work, WorkSupervisor] = {}
        #: Gives back the work that runs without an assignment.
        self._patience: asyncio.TimerHandle | None = None
        #: Whether the group may have removed this worker, because its membership was not confirmed for some time.
        self._is_doubtful = False
        self._is_closing = False

    # ------------------------------------------------------------------ sessions

    def opened(self, role: WorkerRole) -> None:
        """Begin to use a new session: follow the configuration, and claim the work of the present assignment."""
        log.info("group %s: this worker is %s", self._group, role.worker_id)
        self._role = role
        role.begin(self._claim_gone)
        role.tasks.start(self._follow())
        role.tasks.start(self._watch_membership())
        self._reconcile()

    async def _watch_membership(self) -> None:
        """
        Stop all work half a session timeout after the lease of the membership has ended.

        The lease ends, for example, if the worker reaches no broker. After this time, the coordinator may have removed
        the worker, and other workers may wait for the worker's claims. When the membership is confirmed again, start
        the work again.
        """
        limit_s = self.role.session.timeout_ms / 2000
        while True:
            await asyncio.sleep(limit_s / 4)
            is_doubtful = self.hooks.unconfirmed_s >= limit_s
            if is_doubtful and not self._is_doubtful:
                log.warning("group %s: all work stops: nothing has confirmed the membership for long", self._group)
                self._begin_stop(list(self._running))
            is_confirmed = self._is_doubtful and not is_doubtful
            self._is_doubtful = is_doubtful
            if is_confirmed:
                self._reconcile()

    def lost(self, role: WorkerRole) -> None:
        """Stop all work at once, because its claims ended with this session. Ignore a session that was replaced."""
        if self._role is not role:
            return
        self._role = None
        for work, supervisor in list(self._running.items()):
            self._ending[work] = supervisor
        self._running.clear()
        for supervisor in self._ending.values():
            supervisor.lose("the ZooKeeper session is over")
        # Brokers that coordinate the group do not notice the end of a ZooKeeper session.
        self.hooks.check_reads()

    @property
    def role(self) -> WorkerRole:
        """
        The stores and claims of the worker on its present session.

        Raises:
            SessionLostError: There is no session at the moment.
        """
        if self._role is None or self._role.is_over:
            raise SessionLostError(f"group {self._group}: this worker has no ZooKeeper session at the moment")
        return self._role

    # ------------------------------------------------------------------ the configuration

    async def snapshot(self, *, current: bool = False) -> ConfigSnapshot:
        """
        Read the configuration. If the configuration is newer, apply it to the running work.

        With ``current``, the snapshot has all changes that any worker has completed before this call, at the cost of
        one write.

        Raises:
            SessionLostError: There is no session at the moment.
            ProtocolError: The znode of the configuration offset has garbage.
        """
        snapshot = await self.role.config.snapshot(current=current)
        self._take_config(snapshot)
        return snapshot

    async def _follow(self) -> None:
        config = self.role.config
        await config.prepare()
        await config.follow(self._take_config)

    def _take_config(self, snapshot: ConfigSnapshot) -> None:
        """
        Apply a snapshot. Ignore a snapshot that is older than the known snapshot. A server that lags behind may return
        such a snapshot.
        """
        if self.config is not None and snapshot.offset < self.config.offset:
            return
        self.config = snapshot
        self._log_problems(snapshot)
        self._seen.pop(snapshot.offset, None)
        self._seen[snapshot.offset] = snapshot
        while len(self._seen) > _MOST_SEEN:
            del self._seen[next(iter(self._seen))]
        self._rejoin_if_outdated()
        self._reconcile()

    def _log_problems(self, snapshot: ConfigSnapshot) -> None:
        """Log the problem of each connector with an unusable configuration, once for each new problem."""
        problems = {name: entry.problem for name, entry in snapshot.connectors.items() if entry.problem}
        for name, problem in problems.items():
            if self._problems.get(name) != problem:
                log.warning("group %s: connector %s and its tasks do not run: %s", self._group, name, problem)
        self._problems = problems

    def _rejoin_if_outdated(self) -> None:
        """
        Request a new assignment of the group if the assigned work differs from the work of the newest configuration.
        """
        assignment, config = self._assignment, self.config
        # During a rebalance, the worker waits for the next assignment, and compares that.
        if assignment is None or config is None or self.hooks.is_rebalancing:
            return
        if config.offset <= assignment.offset:
            return
        assigned = self._seen.get(assignment.offset)
        # Without the snapshot by which the work was assigned, later changes are unknown.
        if assigned is None or needs_rejoin(assigned, config):
            log.info("group %s: the work has changed at offset %d; joining again", self._group, config.offset)
            self.hooks.member.request_rejoin()

    # ------------------------------------------------------------------ the assignment

    async def on_assigned(self, assignment: WorkerAssignment, generation: int) -> None:
        if assignment.is_failed:
            return
        self._end_patience()
        self._is_doubtful = False
        self._assignment, self._generation = assignment, generation
        self._rejoin_if_outdated()
        self._reconcile()
        if self.hooks.member.leads and self._role is not None:
            # The work of deleted connectors was given back before this assignment.
            self._role.tasks.start(self._clean_up())

    async def _clean_up(self) -> None:
        """
        Delete the statuses and the folders of owner znodes that deleted connectors have left.

        No work depends on that, so a missing right does not end the session. It is logged once.
        """
        try:
            await self.role.config.clean_up()
        except SessionLostError:
            log.debug("group %s: what deleted connectors have left is deleted later", self._group)
        except AuthorizationError as error:
            self.context.metrics.count("clean_ups_denied")
            if self.context.refusals.is_news(error):
                log.warning("group %s: what deleted connectors have left stays: %s", self._group, error)

    async def on_revoked(self) -> None:
        self._assignment = None
        if self._is_closing:
            await self._give_back()
            return
        self._begin_patience()
        self._begin_stop(await self._outdated())
        await self._stopped()

    async def _outdated(self) -> list[Work]:
        """Return the running work that must stop before the rebalance; all work if the configuration cannot be read."""
        if not self._running:
            return []
        try:
            async with asyncio.timeout(_READ_LIMIT_S):
                config = await self.snapshot(current=True)
        except (KielGroupsError, TimeoutError) as error:
            why = str(error) or f"no answer within {_READ_LIMIT_S:g} s"
            log.warning("group %s: all work stops: the configuration could not be read: %s", self._group, why)
            return list(self._running)
        return outdated(config, {work: supervisor.spec for work, supervisor in self._running.items()})

    def _begin_patience(self) -> None:
        """
        Start the session timeout as the time limit of the next assignment. After the limit, the worker stops and
        releases all work.

        After this time, the group may have removed the worker. Other workers would wait for the worker's claims until
        the worker joins again.
        """
        self._end_patience()
        if self._role is not None:
            limit_s = self._role.session.timeout_ms / 1000
            self._patience = asyncio.get_running_loop().call_later(limit_s, self._lose_patience, limit_s)

    def _lose_patience(self, limit_s: float) -> None:
        if self._running:
            log.warning("group %s: all work stops: no assignment has followed within %g s", self._group, limit_s)
            self._begin_stop(list(self._running))

    def _end_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def on_lost(self) -> None:
        # The claims keep the work from other workers until it has stopped in order.
        self._assignment = None
        self._end_patience()
        self._begin_stop(list(self._running))

    async def close(self, on_stuck: Callable[[Sequence[Work]], None] = lambda works: None) -> None:
        """
        Leave the group, stop all work and release its claims. The caller closes the session after this call.

        The call returns when no plugin runs any more. If the session ended before, other workers would start the work
        of a plugin that still runs.

        Args:
            on_stuck: Called once, with the work of plugins that do not stop, if the call waits only for these plugins.
        """
        self._is_closing = True
        self._end_patience()
        await self.hooks.member.close()
        await self.hooks.close()
        self._assignment = None
        await self._give_back()
        await self._plugins_stopped(on_stuck)
        role, self._role = self._role, None
        if role is not None:
            role.end()
        for supervisor in self._ending.values():
            supervisor.lose("the worker has ended")

    async def _plugins_stopped(self, on_stuck: Callable[[Sequence[Work]], None]) -> None:
        """Wait until no plugin runs any more, and log warnings about plugins that do not stop; see ``close``."""
        await asyncio.gather(*(each.stopped_or_abandoned() for each in self._ending.values()))
        if stuck := self._stuck():
            on_stuck(stuck)
        while stuck := self._stuck():
            log.warning(
                "group %s: this worker does not end before %s, which did not stop: other workers would start this work"
                " beside calls that still run",
                self._group,
                ", ".join(map(str, stuck)),
            )
            stopping = [asyncio.ensure_future(self._ending[work].stopped()) for work in stuck]
            await asyncio.wait(stopping, timeout=_STUCK_WARNING_S)

    def _stuck(self) -> list[Work]:
        """Return the work whose plugins still run after their time to stop."""
        return [work for work, supervisor in self._ending.items() if supervisor.is_abandoned]

    async def _give_back(self) -> None:
        """Stop all work, and wait until its claims are released. Do not wait for plugins that do not stop."""
        self._begin_stop(list(self._running))
        await self._stopped()

    async def _stopped(self) -> None:
        """Wait until the claims of stopped work are released. Do not wait for plugins that do not stop."""
        await asyncio.gather(*(supervisor.given_back.wait() for supervisor in self._ending.values()))

    def _begin_stop(self, works: Iterable[Work]) -> None:
        for work in works:
            supervisor = self._ending[work] = self._running.pop(work)
            supervisor.begin_stop()

    # ------------------------------------------------------------------ the work

    def running(self, work: Work) -> WorkSupervisor | None:
        """Return the supervisor of running work, or None if the work does not run here or is stopping."""
        return self._running.get(work)

    def _claim_gone(self, work: Work) -> None:
        self.context.metrics.count("claims_lost")
        supervisor = self._running.get(work) or self._ending.get(work)
        if supervisor is not None:
            supervisor.claim_gone()

    def _reconcile(self) -> None:
        """Compare the work that has to run with the work that runs; start, stop and update work."""
        assignment, config = self._assignment, self.config
        role = self._role
        if role is None or role.is_over or assignment is None or config is None:
            return
        if config.offset < assignment.offset or self._is_doubtful:
            return
        self._ending = {work: each for work, each in self._ending.items() if not each.has_ended}
        wanted = planned(config, assignment.works)
        if config.offset > assignment.offset:
            # The group has to assign the other work again.
            wanted = still_valid(self._seen.get(assignment.offset), wanted)
        self._begin_stop([work for work in self._running if work not in wanted])
        for work, supervisor in self._running.items():
            supervisor.update(wanted[work], self._generation)
        for work, spec in wanted.items():
            if work not in self._running:
                clients, former = self._clients, self._ending.get(work)
                self._running[work] = WorkSupervisor(
                    self.context, role, self._plugins, clients, work, spec, self._generation, former
                )
