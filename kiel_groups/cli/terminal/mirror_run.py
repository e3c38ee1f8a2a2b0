"""Run a mirror in this process until it has caught up or a signal arrives, and show its progress."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlsplit

import click

from kiel_groups.cli.parameters.mirror_clusters import MirrorClusters
from kiel_groups.cli.parameters.options import SERVER_WAIT_S
from kiel_groups.cli.terminal import rendering
from kiel_groups.cli.terminal.messages import DONE, Lines
from kiel_groups.cli.terminal.mirror_report import MirrorProgress
from kiel_groups.cli.terminal.termination import Termination, end_stuck_worker
from kiel_groups.errors import ConfigError, ConnectorExistsError, KielGroupsError, UnknownConnectorError
from kiel_groups.group.znodes.worker_contents import cause_of
from kiel_groups.mirror.mirror_view import MirrorView, follow_mirror, read_mirror
from kiel_groups.ops.loaded_groups import Logs
from kiel_groups.rest.metrics_text import serving_metrics
from kiel_groups.wording import own_command, some
from kiel_groups.workers.execution.worker import Worker
from kiel_groups.workers.execution.worker_requests import WorkerRequests
from kiel_groups.workers.execution.worker_settings import WorkerSettings
from kiel_groups.workers.values import ConnectorId, Work

#: How often the progress is measured, in seconds, and the pause as a multiple of the time that a measurement takes.
#: Each measurement asks ZooKeeper and the brokers, so a run without an end measures less often.
_INTERVAL_S, _ENDLESS_INTERVAL_S, _PAUSE_FACTOR = 0.5, 2.0, 4.0
#: How long a run that waits for all topics may make no progress, in seconds, before it looks for the cause. A task
#: takes half of that to notice that a topic of the target is gone, and to continue with its other topics.
_STILL_S = 30.0
#: The type of an error at the beginning of its text.
_TYPE = re.compile(r"^\w*Error: ")

#: The mirror as it was read, or the error of the read.
_Found: TypeAlias = MirrorView | KielGroupsError


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorRun:
    """
    Runs a worker with a mirror in this process.

    Args:
        clusters: The clusters and the name of the mirror.
        config: The settings of its connector. They are stored if they differ from those in ``first``.
        worker: The settings of the worker.
        first: The mirror as it was before the run.
        logs: The logs of the source, at whose ends the run ends, or None for a run without an end.
        check: Checks both clusters, as before the run, and returns the topics that are copied to the target. With
            ``awaited``, problems of other topics do not count.
        lines: Prints the progress if no bar can be shown.
        quiet: Whether to show neither progress nor summary.
        metrics_port: The port for Prometheus, or None.
    """

    clusters: MirrorClusters
    config: Mapping[str, str]
    worker: WorkerSettings
    first: MirrorView
    logs: Logs | None
    check: Callable[..., Collection[str]]
    lines: Lines
    quiet: bool
    metrics_port: int | None

    def run(self) -> int:
        """
        Run the mirror, show its progress, and print a summary as the last line.

        Returns:
            The exit status: 0, 130 after Ctrl-C, or 143 after SIGTERM.

        Raises:
            KielGroupsError: The worker, the connector, or a task of this process has failed. Or the run waits for a
                task that has failed, or for a topic that is stopped or deleted; or the target has lost copies.
        """
        began_s, progress = time.monotonic(), MirrorProgress(self.first, self.logs)
        try:
            total = progress.left
            # Only a run without an end counts what waits: one with an end also asks whether all has a task.
            views = follow_mirror(*self._place, timeout_s=SERVER_WAIT_S, with_new=self.logs is None)
            with (
                closing(views),
                rendering.progress(self.lines, total, quiet=self.quiet, timed=self.logs is None) as update,
            ):

                def show(text: str) -> None:
                    update(text, None if total is None else total - (progress.left or 0))

                return asyncio.run(self._run(progress, show, views))
        finally:
            took_s, is_known = time.monotonic() - began_s, False
            try:
                has_followed = progress.last is not self.first
                # Only now, the tasks have stored their last positions. What waits has no task, and is behind as well.
                progress.add(last := read_mirror(*self._place, timeout_s=SERVER_WAIT_S, with_new=True))
                # A run that was interrupted at its start has not stored its settings, which may name other topics. One
                # that has followed the mirror knows what is stored, also if another process has changed it.
                stored = None if last.connector is None else last.connector.config
                is_known = stored is not None and (has_followed or not changed_settings(stored, self.config))
            except KielGroupsError as error:
                self.lines.say("warning", f"the last positions of the mirror are not known: {error}")
            if progress.last.partitions and not self.quiet:
                click.echo(progress.summary(took_s, is_lag_known=is_known))

    async def _run(self, progress: MirrorProgress, show: Callable[[str], None], views: Iterator[_Found]) -> int:
        ending = Termination()
        worker = Worker(self.worker, on_stuck=end_stuck_worker, prepare=self._configure)
        try:
            async with serving_metrics(worker.metrics, self.metrics_port), worker:
                following = asyncio.ensure_future(self._follow(worker, progress, show, views))
                works = [following, asyncio.ensure_future(worker.failed())]
                try:
                    done, _ = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
                    for each in done:
                        each.result()
                finally:
                    for each in works:
                        each.cancel()
                ending.settle()
        except asyncio.CancelledError:
            if ending.status is None:
                raise
        return ending.status or DONE

    async def _configure(self, requests: WorkerRequests) -> None:
        """
        Store the settings of the connector, unless other processes run it with these settings, and resume it.

        Raises:
            ConfigError: Another process has stored other settings meanwhile.
        """
        name, stored, is_running = self.clusters.name, self.first.connector, bool(self.first.group.workers)
        is_changed = stored is not None and bool(changed_settings(stored.config, self.config))
        if is_changed and not is_running:
            # The tasks with the former settings must not start, and may fail. The source offsets stay.
            # Another process that starts now may have deleted it.
            with suppress(UnknownConnectorError):
                await requests.delete(name)  # nosec B113 # a method of WorkerRequests, not of the library requests
        if stored is None or is_changed:
            try:
                await requests.create(name, self.config)
            except ConnectorExistsError:
                check_same(name, await requests.config(name), self.config)
        elif not is_running:
            await requests.put_config(name, self.config)
        await requests.resume(name)

    async def _follow(
        self, worker: Worker, progress: MirrorProgress, show: Callable[[str], None], views: Iterator[_Found]
    ) -> None:
        """Show the progress until the mirror has reached the ends. Raise KielGroupsError if that cannot be."""
        warned: set[Work] = set()
        known, is_paused = self.config, False
        left, changed_s = progress.left, time.monotonic()
        while True:
            began_s = time.monotonic()
            view = await asyncio.to_thread(next, views)
            if isinstance(view, KielGroupsError):
                # The worker logs that ZooKeeper does not answer.
                await asyncio.sleep(_INTERVAL_S)
                continue
            show(progress.add(view))
            if view.connector is not None and (changed := changed_settings(known, view.connector.config)):
                known = view.connector.config
                self.lines.say(
                    "warning",
                    f"another process has changed the settings of the mirror ({', '.join(changed)}), which this one"
                    " follows",
                )
            if view.is_paused != is_paused:
                is_paused = view.is_paused
                resume = own_command("connectors", "resume", view.name, "--url", worker.url)
                paused = "warning", f"the mirror is paused, and copies nothing; {resume} continues it"
                self.lines.say(*(paused if is_paused else ("info", "the mirror continues")))
            self._check(view, urlsplit(worker.url).netloc, warned)
            if progress.is_caught_up and await asyncio.to_thread(self._has_copies, view):
                return
            if progress.left != left:
                left, changed_s = progress.left, time.monotonic()
            elif self.logs is not None and time.monotonic() - changed_s > _STILL_S:
                await asyncio.to_thread(self._check_topics, self.logs, view, progress.behind)
                changed_s = time.monotonic()
            interval_s = _ENDLESS_INTERVAL_S if self.logs is None else _INTERVAL_S
            await asyncio.sleep(max(interval_s, _PAUSE_FACTOR * (time.monotonic() - began_s)))

    def _check_topics(self, logs: Logs, view: MirrorView, behind: Sequence[str]) -> None:
        """Raise KielGroupsError if a topic that the run waits for is not copied any more. Else it may still come."""
        problem = ""
        try:
            topics = self.check(awaited=behind)
        except KielGroupsError as error:
            if error.retriable:
                return
            problem = str(error)
        else:
            back = {each.partition.topic for each in view.partitions if each.is_back}
            status = view.group.statuses.get(ConnectorId(view.name))
            if gone := sorted(set(behind) - set(topics) - back):
                problem = f"the source has no topic {some(gone)}"
            elif status is not None and logs.ends.keys() - {each.partition for each in view.partitions}:
                # Of a topic whose partitions all have tasks, the connector has no problem.
                problem = status.problem
        if problem:
            raise KielGroupsError(f"the mirror cannot catch up any more with {some(behind)}: {problem}")

    def _has_copies(self, view: MirrorView) -> bool:
        """
        Check that the target still has what was copied. Return False if it does not answer.

        Raises:
            KielGroupsError: A topic was deleted there meanwhile, perhaps created again, or has lost records.
        """
        names = {each.partition.topic: each.target for each in view.partitions if not each.is_back}
        try:
            target = self.clusters.open_target()
            # Read first. From then on, the target is asked again if a broker that has just started shows no topic.
            claims = target.claims()
            lost = target.lost_topics(names, target.last_ends(view.name), claims)
        except KielGroupsError as error:
            if error.retriable:
                return False
            raise
        if lost:
            raise KielGroupsError(f"the mirror is not complete: {'; '.join(lost.values())}")
        return True

    def _check(self, view: MirrorView, address: str, warned: set[Work]) -> None:
        """
        Raise KielGroupsError if work of this process has failed, or any work for which the run waits.

        Print a warning if work of another process has failed. Ignore failures that the worker retries by itself.
        """
        if self.config.get("restart.policy") == "backoff":
            return
        for work, status in view.failed.items():
            # The log line of the worker has no type either, so it is not repeated.
            cause = _TYPE.sub("", cause_of(status.trace), 1)
            if self.logs is not None or status.worker == address:
                raise KielGroupsError(f"{work} failed: {cause}")
            if work not in warned:
                warned.add(work)
                self.lines.say("warning", f"{work} failed in the process at {status.worker}: {cause}")

    @property
    def _place(self) -> tuple[str, str, str]:
        """ZooKeeper of the source, the group of workers, and the name of the mirror."""
        return self.clusters.source, self.clusters.group, self.clusters.name


def check_same(name: str, stored: Mapping[str, str], given: Mapping[str, str]) -> None:
    """
    Check that processes which run a mirror have the settings of this one.

    Raises:
        ConfigError: They have other settings.
    """
    if changed := changed_settings(stored, given):
        raise ConfigError(
            f"the mirror {name!r} runs in another process with other settings ({', '.join(changed)}): give the same"
            " ones, or stop all its processes first; the session of a process that was killed ends after"
            " --session-timeout-ms"
        )


def changed_settings(stored: Mapping[str, str], given: Mapping[str, str]) -> list[str]:
    """
    Return the names of the settings that differ.

    The brokers of the source do not count: a start finds those that are registered at the moment.
    """
    names = (stored.keys() | given.keys()) - {"source.bootstrap.servers"}
    return sorted(name for name in names if stored.get(name) != given.get(name))
