"""
Supervise one assigned connector or task (the work): claim it, run, pause and restart its plugin, and release it.

The supervisor is one coroutine. The supervisor's spec has the settings and the target state of the work. The supervisor
reads the spec between two runs of the plugin, and each change of the spec wakes the supervisor.

A plugin that does not stop within ``task.stop.timeout.ms`` is abandoned: the plugin may deliver and commit nothing
more, its work is FAILED, and a rebalance does not wait for the plugin. The claim stays until the plugin's call returns,
so no other worker starts the work while the plugin may still write to its system. The end of the session also ends the
claim, so a worker that closes waits for abandoned plugins before it closes its session.

The supervisor ends if the work has to stop, or if the session is over. An unexpected error fails this work only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from kiel_groups.backoff import Backoff
from kiel_groups.errors import AuthorizationError, ClaimLostError, CoordinationError, SessionLostError
from kiel_groups.group.znodes.worker_contents import Sample, TargetState, WorkState, WorkStatus
from kiel_groups.metrics import Latency, Metrics
from kiel_groups.secret_texts import ErrorTexts
from kiel_groups.wording import counted
from kiel_groups.workers.execution.work_plan import WorkSpec
from kiel_groups.workers.execution.worker_plugins import WorkerPlugins, class_name
from kiel_groups.workers.membership import WorkerContext
from kiel_groups.workers.plugins.config_definition import Settings
from kiel_groups.workers.plugins.connector_checks import RunSettings
from kiel_groups.workers.plugins.interfaces import SinkConnector
from kiel_groups.workers.runners.plugin_calls import WorkFence
from kiel_groups.workers.runners.runner_interface import KafkaClients, Runner, RunnerContext, first_of, retrieve
from kiel_groups.workers.runners.sink_task_runner import SinkTaskRunner
from kiel_groups.workers.runners.source_task_runner import ConnectorRunner, SourceTaskRunner
from kiel_groups.workers.session import WorkerRole
from kiel_groups.workers.stores.source_offset_store import SourceOffsets
from kiel_groups.workers.values import ConnectorId, TaskId, Work

log = logging.getLogger(__name__)


class RestartPolicy:
    """
    Decides whether and when failed work is started again, by the settings and the number of failures.

    Args:
        jitter: Returns a factor for each delay, so that tasks that failed together do not all restart at once.
    """

    def __init__(self, jitter: Callable[[], float]) -> None:
        self._jitter = jitter
        self._restarts = 0

    def reset(self) -> None:
        """Forget all failures, because a user has restarted the work or changed its settings."""
        self._restarts = 0

    def delay_s(self, settings: Settings | None, ran_s: float) -> float | None:
        """
        Count a failure, and return how long to wait before the work is started again.

        Args:
            settings: The checked settings, or None if the settings are not legal. Without legal settings, a restart is
                useless.
            ran_s: How long the work ran before it failed, in seconds. After a run longer than the longest delay, the
                count of failures begins anew.

        Returns:
            The delay in seconds, or None if the work stays FAILED.
        """
        if settings is None or settings["restart.policy"] != "backoff":
            return None
        first_s, longest_s = settings["restart.backoff.ms"] / 1000, settings["restart.backoff.max.ms"] / 1000
        if ran_s > longest_s:
            self._restarts = 0
        if self._restarts >= settings["restart.max"]:
            return None
        self._restarts += 1
        return Backoff(first_s, longest_s, self._jitter).delay_s(self._restarts)


#: How long an abandoned coroutine may take to end after its cancellation, in seconds. After that, the work counts as
#: abandoned, and keeps its claim.
_CANCELLED_S = 0.2

#: The pause before a claim that ZooKeeper has refused is tried again, in seconds.
_REFUSED_PAUSE_S = 5.0

#: How often the status of a running task gets the task's metrics, in seconds. Each time is a write to ZooKeeper.
_METRICS_S = 5.0

#: How long work may take to stop if its settings are not legal, in seconds.
_DEFAULT_STOP_S = 5.0


class WorkSupervisor:
    """
    Runs one connector or task, as soon as it is created.

    Args:
        worker: The worker that runs the work.
        role: The stores and the claims of the worker's session.
        plugins: The connectors of the worker.
        clients: Creates the clients of tasks.
        work: The connector or the task.
        spec: The settings and the target state of the work.
        generation: The generation of the assignment.
        former: This worker's previous supervisor of the same work. The new supervisor first waits until the previous
            supervisor has ended.
    """

    def __init__(
        self,
        worker: WorkerContext,
        role: WorkerRole,
        plugins: WorkerPlugins,
        clients: KafkaClients,
        work: Work,
        spec: WorkSpec,
        generation: int,
        former: WorkSupervisor | None = None,
    ) -> None:
        self.work = work
        self._worker = worker
        self._role = role
        self._plugins = plugins
        self._clients = clients
        #: The settings and the target state of the work.
        self.spec = spec
        self._former = former
        self._policy = RestartPolicy(lambda: worker.runtime.uniform(0.8, 1.2))
        #: Set when the supervisor has to read its spec again.
        self._changed = asyncio.Event()
        self._is_stopping = False
        #: Set while a plugin runs that has not stopped in time.
        self._abandoned = asyncio.Event()
        #: Set when a rebalance does not have to wait: the work is released, lost or abandoned.
        self.given_back = asyncio.Event()
        self._fence: WorkFence | None = None
        self._running: asyncio.Task[None] | None = None
        self._claiming: asyncio.Task[int] | None = None
        #: The source offsets that the release has to store.
        self._unstored: SourceOffsets = ()
        #: The status that was reported last; None before the claim.
        self.status: WorkStatus | None = None
        #: Whether the plugin's ``start`` has returned in the present run, and the reason why the run makes no progress.
        self._has_started, self._problem = False, ""
        #: The secrets of the newest run, which texts of errors and problems must not have.
        self._secrets: frozenset[str] = frozenset()
        #: The metrics of the present run, as its status shows them.
        self._samples: tuple[Sample, ...] = ()
        #: The newest problem that a run has reported, and the task that shows it.
        self._reported: tuple[WorkFence, WorkSpec, str] | None = None
        self._showing: asyncio.Task[None] | None = None
        self._generation = generation
        #: Whether the next run is a restart: it is the first one after a failure.
        self._has_failed = False
        #: Whether a status is written although it equals the last one: it may have been deleted.
        self._reports_again = False
        self._main = asyncio.get_running_loop().create_task(self._supervise())

    # ------------------------------------------------------------------ the worker's side

    def update(self, spec: WorkSpec, generation: int) -> None:
        """Adapt the work to a changed configuration, or to a later assignment that leaves the work with this worker."""
        if generation != self._generation:
            self._generation = generation
            if self.status is not None and self._role.claims.owns(self.work):
                self.status = replace(self.status, generation=generation)
                self._role.statuses.confirm(self.work, self.status)
        if spec != self.spec:
            self.spec = spec
            self.restart()

    def restart(self) -> None:
        """Request that the work stops and starts again, or starts if it has failed. Forget the work's failures."""
        self._reports_again = True
        self._policy.reset()
        self._changed.set()

    def begin_stop(self) -> None:
        """
        Request an orderly stop of the work, and the release of its claim.

        ``given_back`` is set when the claim is released, or when the work is abandoned.
        """
        if not self._is_stopping:
            self._is_stopping = True
            self._changed.set()
            if self._claiming is not None:
                self._claiming.cancel()
            if self._abandoned.is_set():
                self.given_back.set()

    def lose(self, reason: str) -> None:
        """
        Stop the work at once. The work delivers and commits nothing more, and a rebalance need not wait for the work.
        """
        self._is_stopping = True
        if self._former is not None:
            self._former.lose(reason)
        self._end_run(reason)
        if self._claiming is not None:
            self._claiming.cancel()
        self._changed.set()
        self.given_back.set()

    def claim_gone(self) -> None:
        """Stop the work at once because its owner znode was deleted, and request another claim of the work."""
        self._role.statuses.drop(self.work)
        self._end_run("the owner znode was deleted")
        self._changed.set()

    def _end_run(self, reason: str) -> None:
        """End the present run, and let it deliver and commit nothing more."""
        if self._fence is not None:
            self._fence.shut(reason)
        if self._running is not None:
            self._running.cancel()

    @property
    def has_ended(self) -> bool:
        """
        Whether this supervisor, and every former supervisor of the work, has ended.

        Then no code of the plugin runs any more, and the claim is released or lost.
        """
        return self._main.done() and (self._former is None or self._former.has_ended)

    async def ended(self) -> None:
        """Wait until this supervisor, and every former supervisor of the work, has ended."""
        await asyncio.wait({self._main})
        if self._former is not None:
            await self._former.ended()

    @property
    def is_abandoned(self) -> bool:
        """Whether a plugin of this or a former supervisor still runs after its time to stop."""
        return self._abandoned.is_set() or (self._former is not None and self._former.is_abandoned)

    async def stopped(self) -> None:
        """After ``begin_stop`` or ``lose``, wait until no code of the plugin runs any more."""
        if self._former is not None:
            await self._former.stopped()
        if self._running is not None:
            await asyncio.wait({self._running})

    async def stopped_or_abandoned(self) -> None:
        """Wait until no plugin of the work runs any more, or a plugin's time to stop is over."""
        if self._former is not None:
            await self._former.stopped_or_abandoned()
        await first_of(self.stopped(), self._abandoned.wait())

    # ------------------------------------------------------------------ the supervisor's side

    async def _supervise(self) -> None:
        try:
            await self._wait_for_former()
            while not self._is_stopping:
                try:
                    await self._claim_and_run()
                except Exception as error:
                    if self._ends_with_session(error):
                        raise
                    await self._fault(error)
        except Exception as error:
            log.debug("%s ended with the session: %s", self.work, type(error).__name__)
        finally:
            self.given_back.set()

    def _ends_with_session(self, error: Exception) -> bool:
        # A write that finds the worker's znode deleted raises this before the session ends for that reason.
        return self._role.is_over or isinstance(error, SessionLostError)

    async def _fault(self, error: Exception) -> None:
        """Report an unexpected error, and wait until a user or a changed configuration starts the work again."""
        texts = await self._error_texts(error, self.spec)
        log.error("%s: its supervisor failed: %s", self.work, texts.trace)
        self._worker.metrics.count("work_supervisors_failed")
        if not self._is_stopping:
            self._report(WorkState.FAILED, texts.trace)
            await self._wait_changed()

    async def _wait_for_former(self) -> None:
        """Wait until the former supervisor has ended, or until the work has to stop."""
        if self._former is None:
            return
        while not self._former.has_ended and not self._is_stopping:
            self._changed.clear()
            await first_of(self._former.ended(), self._changed.wait())
        if self._former.has_ended:
            self._former = None

    async def _claim_and_run(self) -> None:
        """Claim the work, and run it until it has to stop or its claim is gone; then release the claim."""
        token = await self._claim()
        if token is None:
            return
        self._unstored = ()
        while not self._is_stopping and self._role.claims.owns(self.work):
            self._changed.clear()
            try:
                await self._follow_spec(token)
            except Exception as error:
                if self._ends_with_session(error):
                    raise
                await self._fault(error)
        await self._release()

    async def _claim(self) -> int | None:
        """
        Claim the work, and return the fencing token, or None if the work has to stop or the claim is refused.

        After a refusal, pause before the return.
        """
        # Changes until now are handled after the claim.
        self._changed.clear()
        self._claiming = asyncio.ensure_future(self._role.claims.claim(self.work))
        try:
            await asyncio.wait({self._claiming})
            return None if self._claiming.cancelled() else self._claiming.result()
        except CoordinationError as error:
            if isinstance(error, SessionLostError):
                raise
            await self._wait_changed(_REFUSED_PAUSE_S)
            return None
        finally:
            self._claiming = None

    async def _release(self) -> None:
        """
        Store the last source offsets and release the claim. Retry a refused release.

        If the offsets cannot be stored, report the failure, and release the claim without them. The next owner of the
        task then continues at the offsets that were stored before, and delivers the records since then again.
        """
        role, offsets = self._role, self._unstored
        self._unstored = ()
        while role.claims.owns(self.work):
            try:
                await role.release_claim(self.work, offsets)
                return
            except Exception as error:
                if offsets:
                    await self._offsets_unstored(offsets, error)
                    offsets = ()
                elif isinstance(error, AuthorizationError):
                    return  # It ends the session, which logs it, and the claim ends with the session.
                elif self._ends_with_session(error):
                    raise
                else:
                    texts = await self._error_texts(error, self.spec)
                    log.error("%s: its claim is not released yet: %s", self.work, texts.summary)
                    # Neither a rebalance nor a close waits for the next try.
                    self.given_back.set()
                    await asyncio.sleep(_REFUSED_PAUSE_S)
        if offsets:
            await self._offsets_unstored(offsets, ClaimLostError("its claim is gone"))

    async def _offsets_unstored(self, offsets: SourceOffsets, error: Exception) -> None:
        """Report that the last source offsets of a task are not stored; in its status only while it has its claim."""
        self._worker.metrics.count("source_offsets_unstored", len(offsets))
        texts = await self._error_texts(error, self.spec)
        log.error(
            "%s: its last source offsets (of %s) are not stored, so its last records will be delivered again: %s",
            self.work,
            counted(offsets, "source partition"),
            texts.summary if self._worker.refusals.is_news(error) else "a right is missing",
        )
        if isinstance(error, ClaimLostError) or self._ends_with_session(error):
            return
        self._worker.metrics.count("work_failed")
        self.status = self._status(WorkState.FAILED, texts.trace)
        try:
            await self._role.statuses.put(self.work, self.status)
        except Exception as unwritten:
            if self._ends_with_session(unwritten):
                raise
            log.error("%s: its status is not written: %s", self.work, unwritten)

    async def _follow_spec(self, token: int) -> None:
        """
        Run or pause the work as its spec says, or report the work as FAILED. Return when the spec must be read again.
        """
        spec = self.spec
        if spec.problem:
            self._report(WorkState.FAILED, spec.problem)
            await self._wait_changed()
        elif spec.target is TargetState.PAUSED:
            self._report(WorkState.PAUSED)
            await self._wait_changed()
        else:
            settings, began_s = None, self._worker.runtime.boot_time_s()
            try:
                found = await self._settings(spec)
                if found is not None:
                    settings, self._secrets = found.settings, found.secrets
                    await self._run(spec, found, token)
                return
            except ClaimLostError as error:
                # Check the claim, and claim the work again if it is gone.
                log.error("%s: %s", self.work, error)
                self._role.claims.check(self.work)
                await self._wait_changed(_CANCELLED_S)
            except Exception as error:
                # A consumer of a sink has a session of its own.
                if self._role.is_over:
                    raise
                ran_s = self._worker.runtime.boot_time_s() - began_s
                await self._failed(await self._error_texts(error, spec), settings, ran_s)

    async def _error_texts(self, error: Exception, spec: WorkSpec) -> ErrorTexts:
        """Return the texts of an error, without the secrets of the settings and of the newest run."""
        return await self._plugins.error_texts(error, spec, self._secrets)

    async def _settings(self, spec: WorkSpec) -> RunSettings | None:
        """
        Return the checked settings, or None if the work has to stop or its spec changes during the check.

        Raises:
            ConfigError: The settings are not legal, or the check takes too long.
        """
        checking = asyncio.ensure_future(self._plugins.settings(spec))
        checking.add_done_callback(retrieve)
        await first_of(checking, self._changed.wait())
        return None if self._changed.is_set() else checking.result()

    async def _failed(self, texts: ErrorTexts, settings: Settings | None, ran_s: float) -> None:
        """Report a failure, and wait until the policy, a user or a changed configuration starts the work again."""
        self._worker.metrics.count("work_failed")
        delay_s = self._policy.delay_s(settings, ran_s)
        again = "" if delay_s is None else f"; starting it again in {delay_s:.1f} s"
        log.error("%s failed: %s%s", self.work, texts.summary, again)
        if not self._is_stopping:
            self._report(WorkState.FAILED, texts.trace)
            self._has_failed = True
            await self._wait_changed(delay_s)

    async def _wait_changed(self, limit_s: float | None = None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._changed.wait()

    async def _run(self, spec: WorkSpec, found: RunSettings, token: int) -> None:
        """
        Run the plugin once, until it has to stop or has failed.

        Raises:
            Exception: Any error of the plugin, the clients or the stores.
        """
        role = self._role
        fence = self._fence = WorkFence(role.session)
        self._has_started, self._problem, self._samples = False, "", ()
        labels = {"task": str(self.work.task)} if isinstance(self.work, TaskId) else {}
        metrics = self._worker.metrics.part(connector=self.work.connector, **labels)
        runner = self._new_runner(spec, found, token, fence, metrics)
        running = self._running = asyncio.get_running_loop().create_task(runner.run())
        if self._has_failed:
            self._has_failed = False
            self._worker.metrics.count("work_restarts")
        changed = asyncio.ensure_future(self._changed.wait())
        showing = asyncio.ensure_future(self._show_metrics(metrics))
        try:
            await asyncio.wait({running, changed}, return_when=asyncio.FIRST_COMPLETED)
            # The status of a plugin that does not stop is FAILED, without metrics.
            showing.cancel()
            self._samples = ()
            if not running.done():
                await self._end(runner, running, found.settings)
        finally:
            changed.cancel()
            showing.cancel()
            self._worker.metrics.remove(metrics)
            self._running = self._fence = None
            self._problem = ""
        if running.cancelled():
            return
        running.result()
        if self._is_stopping or not role.claims.owns(self.work):
            self._unstored = runner.delivered
        elif runner.delivered:
            await role.write_offsets(self.work, runner.delivered)  # type: ignore[arg-type]

    def _new_runner(self, spec: WorkSpec, found: RunSettings, token: int, fence: WorkFence, metrics: Metrics) -> Runner:
        connector_class = self._plugins.found(class_name(spec.config))
        context = RunnerContext(
            work=self.work,
            token=token,
            connector_class=connector_class,
            config=spec.config,
            checked=found,
            fence=fence,
            stores=self._role,
            clients=self._clients,
            runtime=self._worker.runtime,
            started=self._started,
            problem=partial(self._show_problem, fence, spec),
            metrics=metrics,
        )
        if isinstance(self.work, ConnectorId):
            return ConnectorRunner(context)
        return (SinkTaskRunner if issubclass(connector_class, SinkConnector) else SourceTaskRunner)(context)

    def _started(self) -> None:
        self._has_started = True
        self._report(WorkState.RUNNING)

    def _show_problem(self, fence: WorkFence, spec: WorkSpec, problem: str) -> None:
        """Show in the status why a run makes no progress; "" removes the reason. Ignore reports of former runs."""
        self._reported = fence, spec, problem
        if self._showing is None or self._showing.done():
            self._showing = asyncio.ensure_future(self._show_problems())

    async def _show_problems(self) -> None:
        """
        Show the newest reported problem, without secrets.

        While a thread hides the secrets of a problem, the plugin may report the next problem.
        """
        shown = None
        while (reported := self._reported) is not None and reported is not shown:
            shown = fence, spec, problem = reported
            text = await self._plugins.problem_text(problem, spec, self._secrets) if problem else ""
            if self._fence is not fence or self._is_stopping or not self._role.claims.owns(self.work):
                continue
            self._problem = text
            self._confirm()

    async def _show_metrics(self, metrics: Metrics) -> None:
        """Show the metrics of a run in its status, again and again."""
        while True:
            await asyncio.sleep(_METRICS_S)
            samples = (
                (name, labels, value) for name, labels, value in metrics.read() if not isinstance(value, Latency)
            )
            self._samples = tuple(sorted(samples))
            if self._has_started and not self._is_stopping and self._role.claims.owns(self.work):
                self._confirm()

    def _confirm(self) -> None:
        """Queue the status of the present run, to be written a second later, unless it equals the last status."""
        status = self._status(WorkState.RUNNING if self._has_started else WorkState.UNASSIGNED, "")
        if status != self.status:
            self.status = status
            self._role.statuses.confirm(self.work, status)

    async def _end(self, runner: Runner, running: asyncio.Task[None], settings: Settings) -> None:
        """
        Ask a run to end. If the run does not end in time, let it deliver nothing more, cancel it, and wait without a
        limit.
        """
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
            self._abandoned.clear()
            log.warning("%s has stopped at last", self.work)

    def _abandon(self, limit_s: float) -> None:
        """Report that the plugin does not stop, and let a rebalance continue without waiting for the plugin."""
        self._abandoned.set()
        self._worker.metrics.count("work_abandoned")
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
        """
        Queue a status to write, unless the status equals the last status, or the claim is gone.

        Once the claim is gone, another worker may have the work, and reports its own status.
        """
        status = self._status(state, trace)
        if not self._role.claims.owns(self.work):
            return
        # Repeated reports of the same start would only cost writes.
        if status != self.status or self._reports_again:
            self.status, self._reports_again = status, False
            self._role.statuses.report(self.work, status)

    def _status(self, state: WorkState, trace: str) -> WorkStatus:
        return WorkStatus(
            state, self._worker.address, trace, self._generation, problem=self._problem, metrics=self._samples
        )
