"""
Run one piece of work of one assignment, from its claim to its release.

The supervisor is one coroutine, whose order is that of the guarantees: claim; run, pause, fail and restart; release.
It looks at what it has to do, its spec, between two runs of the plugin, and is woken by each change of the spec.

A plugin that does not stop within ``task.stop.timeout.ms`` is abandoned: it may deliver and commit nothing more, its
work is FAILED, and a rebalance does not wait for it. Its claim stays until its call returns, so no other worker starts
the work while the plugin may still write to its system. The end of the session also ends the claim.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kiel_groups.coordination.zookeeper.runtime import Runtime
from kiel_groups.errors import ClaimLostError, CoordinationError, SessionLostError
from kiel_groups.metrics import Metrics
from kiel_groups.workers.execution.restart_policy import RestartPolicy
from kiel_groups.workers.execution.session_parts import SessionParts
from kiel_groups.workers.execution.work_plan import WorkSpec
from kiel_groups.workers.plugins.config_definition import Settings
from kiel_groups.workers.plugins.secret_texts import without_secrets
from kiel_groups.workers.runners.runner_interface import Runner, SourceOffsets
from kiel_groups.workers.runners.work_fence import WorkFence
from kiel_groups.workers.values.config_snapshot import TargetState
from kiel_groups.workers.values.work_ids import Work
from kiel_groups.workers.values.work_status import WorkState, WorkStatus

__all__ = ["RunnerFactory", "RunnerStart", "SupervisorContext", "WorkSupervisor"]

log = logging.getLogger(__name__)

#: How long an abandoned coroutine may take to end once it is cancelled, in seconds, before its claim has to wait.
_CANCELLED_S = 0.2

#: The pause before a claim that ZooKeeper has refused is tried again, in seconds.
_REFUSED_PAUSE_S = 5.0

#: How long work may take to stop if its settings are not legal, in seconds.
_DEFAULT_STOP_S = 5.0


class RunnerStart(NamedTuple):
    """What is started: the work, its spec, its checked settings, and the fencing token of its claim."""

    work: Work
    spec: WorkSpec
    settings: Settings
    token: int


class RunnerFactory(Protocol):
    """Creates runners."""

    def settings(self, work: Work, spec: WorkSpec) -> Settings:
        """
        Return the checked settings of a connector or a task.

        Raises:
            Exception: They are not legal, or the class of the connector cannot be imported.
        """

    def runner(self, start: RunnerStart, parts: SessionParts, fence: WorkFence, started: Callable[[], None]) -> Runner:
        """
        Create a runner for one run.

        Raises:
            Exception: The plugin's class cannot be used.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorContext:
    """
    What the supervisors of one assignment on one session share.

    Args:
        parts: The stores and the claims of the session.
        factory: Creates runners.
        address: ``host:port`` of the worker's REST interface, for statuses.
        generation: The generation of the assignment that has started them.
        metrics: The worker's registry.
        runtime: Clocks and randomness.
    """

    parts: SessionParts
    factory: RunnerFactory
    address: str
    generation: int
    metrics: Metrics
    runtime: Runtime


class WorkSupervisor:
    """
    Runs one piece of work.

    Args:
        context: What all supervisors share.
        work: The connector or the task.
        spec: What to run.
        former: The supervisor that had the same work before on this worker; its end is awaited first.
    """

    def __init__(
        self, context: SupervisorContext, work: Work, spec: WorkSpec, former: WorkSupervisor | None = None
    ) -> None:
        self.work = work
        self._context = context
        #: What to run.
        self.spec = spec
        self._former = former
        self._policy = RestartPolicy(lambda: context.runtime.uniform(0.8, 1.2))
        #: Set when the supervisor has to look at what it should do.
        self._changed = asyncio.Event()
        self._is_stopping = False
        #: Whether the plugin has not stopped in time.
        self._is_abandoned = False
        #: Set when a rebalance does not have to wait: the work is released, lost or abandoned.
        self.given_back = asyncio.Event()
        self._fence: WorkFence | None = None
        self._running: asyncio.Task[None] | None = None
        self._claiming: asyncio.Task[int] | None = None
        #: The source offsets that the release has to store.
        self._unstored: SourceOffsets = ()
        #: What was reported last; None before the claim.
        self.status: WorkStatus | None = None
        self._generation = context.generation
        #: Whether a status is written although it equals the last one: it may have been deleted.
        self._reports_again = False
        self._main = asyncio.get_running_loop().create_task(self._supervise())

    # ------------------------------------------------------------------ the worker's side

    def update(self, spec: WorkSpec, generation: int) -> None:
        """Have the work follow a changed configuration, and a later assignment that leaves it with this worker."""
        if generation != self._generation:
            self._generation = generation
            if self.status is not None:
                self._report(self.status.state, self.status.trace)
        if spec != self.spec:
            self.spec = spec
            self._start_anew()

    def restart(self) -> None:
        """Stop the work and start it again, or start it if it has failed."""
        self._start_anew()

    def _start_anew(self) -> None:
        self._reports_again = True
        self._policy.reset()
        self._changed.set()

    def begin_stop(self) -> None:
        """Have the work stop in order, and its claim released; ``given_back`` is set after that."""
        if not self._is_stopping:
            self._is_stopping = True
            self._changed.set()
            if self._claiming is not None:
                self._claiming.cancel()
            if self._is_abandoned:
                self.given_back.set()

    def lose(self, reason: str) -> None:
        """Stop the work at once: nothing more is delivered or committed. Later calls do nothing."""
        self._is_stopping = True
        if self._former is not None:
            self._former.lose(reason)
        if self._fence is not None:
            self._fence.shut(reason)
        self._cancel_run()
        if self._claiming is not None:
            self._claiming.cancel()
        self._changed.set()
        self.given_back.set()

    def claim_gone(self) -> None:
        """Stop the work at once because its owner znode was deleted, then claim it again."""
        if self._fence is not None:
            self._fence.shut("the owner znode was deleted")
        self._cancel_run()
        self._changed.set()

    def _cancel_run(self) -> None:
        if self._running is not None:
            self._running.cancel()

    @property
    def has_ended(self) -> bool:
        """Whether no code of the plugin runs any more, and nothing is claimed, also by the supervisors before."""
        return self._main.done() and (self._former is None or self._former.has_ended)

    async def ended(self) -> None:
        """Wait until no code of the plugin runs any more."""
        await asyncio.wait({self._main})
        if self._former is not None:
            await self._former.ended()

    # ------------------------------------------------------------------ the supervisor's side

    async def _supervise(self) -> None:
        try:
            await self._wait_for_former()
            while not self._is_stopping:
                await self._claim_and_run()
        except Exception as error:
            # A write that finds the worker's znode deleted says so before the session ends for that reason.
            if self._context.parts.is_over or isinstance(error, SessionLostError):
                log.debug("%s ended with the session: %s", self.work, error)
            else:
                log.exception("%s: its supervisor failed", self.work)
                self._context.metrics.count("work_supervisors_failed")
        finally:
            self.given_back.set()

    async def _wait_for_former(self) -> None:
        """Wait until the supervisor before has ended, unless the work has to be given back before that."""
        if self._former is None:
            return
        ending = asyncio.ensure_future(self._former.ended())
        try:
            while not ending.done() and not self._is_stopping:
                self._changed.clear()
                changed = asyncio.ensure_future(self._changed.wait())
                await asyncio.wait({ending, changed}, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
        finally:
            ending.cancel()
        if self._former.has_ended:
            self._former = None

    async def _claim_and_run(self) -> None:
        """Claim the work, and run it until it has to be given back, or its claim is gone."""
        claims = self._context.parts.claims
        self._claiming = asyncio.ensure_future(claims.claim(self.work))
        try:
            await asyncio.wait({self._claiming})
            if self._claiming.cancelled():
                return
            token = self._claiming.result()
        except CoordinationError as error:
            if isinstance(error, SessionLostError):
                raise
            await self._wait_changed(_REFUSED_PAUSE_S)
            return
        finally:
            self._claiming = None
        self._unstored = ()
        while not self._is_stopping and claims.owns(self.work):
            await self._follow_spec(token)
        if claims.owns(self.work):
            try:
                await self._context.parts.release(self.work, self._unstored)
            except ClaimLostError as error:
                log.error("%s: %s", self.work, error)
        self._unstored = ()

    async def _follow_spec(self, token: int) -> None:
        """Do what the spec says, until it says something else."""
        spec = self.spec
        self._changed.clear()
        if spec.problem:
            self._report(WorkState.FAILED, spec.problem)
            await self._wait_changed()
        elif spec.target is TargetState.PAUSED:
            self._report(WorkState.PAUSED)
            await self._wait_changed()
        else:
            settings, began_s = None, self._context.runtime.boot_time_s()
            try:
                settings = self._context.factory.settings(self.work, spec)
                await self._run(RunnerStart(self.work, spec, settings, token))
                return
            except ClaimLostError as error:
                # The claim is looked at, and taken again if it is gone.
                log.error("%s: %s", self.work, error)
                self._context.parts.claims.check(self.work)
                await self._wait_changed(_CANCELLED_S)
            except Exception as error:
                # A consumer of a sink has a session of its own.
                if self._context.parts.is_over:
                    raise
                await self._failed(error, settings, self._context.runtime.boot_time_s() - began_s)

    async def _failed(self, error: Exception, settings: Settings | None, ran_s: float) -> None:
        """Report a failure, and wait until the policy, a user or a changed configuration starts the work again."""
        self._context.metrics.count("work_failed")
        delay_s = self._policy.delay_s(settings, ran_s)
        again = "" if delay_s is None else f"; starting it again in {delay_s:.1f} s"
        log.error("%s failed: %s%s", self.work, without_secrets(str(error)) or type(error).__name__, again)
        if not self._is_stopping:
            self._report(WorkState.FAILED, without_secrets("".join(traceback.format_exception(error))))
            await self._wait_changed(delay_s)
            self._context.metrics.count("work_restarts")

    async def _wait_changed(self, limit_s: float | None = None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._changed.wait()

    async def _run(self, start: RunnerStart) -> None:
        """Run the plugin once, until it has to stop or has failed."""
        parts = self._context.parts
        fence = self._fence = WorkFence(parts.session)
        runner = self._context.factory.runner(start, parts, fence, self._started)
        running = self._running = asyncio.get_running_loop().create_task(runner.run())
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait({running, changed}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                await self._end(runner, running, start.settings)
        finally:
            changed.cancel()
            self._running = self._fence = None
        if running.cancelled():
            return
        running.result()
        if runner.delivered and parts.claims.owns(self.work):
            if self._is_stopping:
                self._unstored = runner.delivered
            else:
                await parts.write_offsets(self.work, runner.delivered)  # type: ignore[arg-type]

    def _started(self) -> None:
        self._report(WorkState.RUNNING)

    async def _end(self, runner: Runner, running: asyncio.Task[None], settings: Settings) -> None:
        """Have a run end in order; if it does not in time, have it end without an effect, however long that takes."""
        runner.request_stop()
        limit_s = settings.get("task.stop.timeout.ms", _DEFAULT_STOP_S * 1000) / 1000
        await asyncio.wait({running}, timeout=limit_s)
        if running.done():
            return
        runner.context.fence.shut(f"it did not stop within {limit_s:g} s")
        running.cancel()
        await asyncio.wait({running}, timeout=_CANCELLED_S)
        if not running.done():
            self._abandon(limit_s)
            await asyncio.wait({running})
            self._is_abandoned = False
            log.warning("%s has stopped at last", self.work)

    def _abandon(self, limit_s: float) -> None:
        """Report that the plugin does not stop, and have a rebalance continue without it."""
        self._is_abandoned = True
        self._context.metrics.count("work_abandoned")
        log.error(
            "%s did not stop within %g s; it delivers and commits nothing more, and no worker gets it before it has"
            " stopped",
            self.work,
            limit_s,
        )
        self._report(
            WorkState.FAILED,
            f"{self.work} did not stop within {limit_s:g} s (task.stop.timeout.ms). No worker gets it before its call"
            " has returned, or this worker has ended.",
        )
        if self._is_stopping:
            self.given_back.set()

    def _report(self, state: WorkState, trace: str = "") -> None:
        """Have a status written, unless the claim is gone: another worker may have it, and report for itself."""
        context = self._context
        status = WorkStatus(state, context.address, trace, self._generation)
        if not context.parts.claims.owns(self.work):
            return
        # A start that was reported again and again would only cost writes.
        if status != self.status or self._reports_again:
            self.status, self._reports_again = status, False
            context.parts.reports.report(self.work, status)
