"""Return texts about a mirror: its progress, the summary of a run, and its state as tables and as a JSON document."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.filesize import decimal

from kiel_groups.cli.terminal.rendering import plain_table
from kiel_groups.cli.terminal.worker_report import work_table, worker_group_problems
from kiel_groups.mirror.mirror_view import MirrorView, PartitionProgress
from kiel_groups.model import TopicPartition
from kiel_groups.ops.loaded_groups import Logs
from kiel_groups.ops.views.report import ago
from kiel_groups.wording import counted
from kiel_groups.workers.values import TaskId

#: The time over which a rate is measured, in milliseconds. Tasks store their positions once a second.
_WINDOW_MS = 20_000

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


class MirrorProgress:
    """
    Measures the progress of a mirror by successive views.

    Args:
        first: The view at the start of the run.
        logs: The logs of the source at the start of the run, without topics that were copied back then; or None if the
            run does not end at their ends.
    """

    def __init__(self, first: MirrorView, logs: Logs | None) -> None:
        self._first = self.last = first
        self._logs = logs
        self._views = deque([first])

    def add(self, view: MirrorView) -> str:
        """Add a view, and return a text about the progress: records, rates, lag, and the time that is left."""
        self.last = view
        self._views.append(view)
        while len(self._views) > 2 and (
            self._views[1].seen_ms <= view.seen_ms - _WINDOW_MS or self._views[0].forward_lag is None
        ):
            self._views.popleft()
        if not view.partitions:
            return "starting"
        before = self._views[0]
        passed_s = max(view.seen_ms - before.seen_ms, 1) / 1000
        rate, speed = (number / passed_s for number in _mirrored_since(before, view))
        text = f"{counted(self.records, 'record')}, {rate:,.0f}/s, {speed / 1e6:,.1f} MB/s"
        # How much is left to copy back, only the target knows, which is not asked each time.
        back = " without what is copied back" if any(each.is_back for each in view.partitions) else ""
        if (lag := view.forward_lag) is None:
            return f"{text}, unknown lag{back}"
        shrinks = 0.0 if before.forward_lag is None else (before.forward_lag - lag) / passed_s
        left = f", {_duration(lag / shrinks)} left" if lag and shrinks > 0 else ""
        return f"{text}, lag {lag:,}{back}{left}"

    @property
    def records(self) -> int:
        """The number of records that were mirrored in this run, by all processes."""
        return _mirrored_since(self._first, self.last)[0]

    def _left(self, logs: Logs) -> Iterator[tuple[str, int | None, bool]]:
        """Yield the topic of each partition, how much is left, or None if unknown, and whether a task has it."""
        known = {each.partition: each for each in self.last.partitions}
        for partition, end in logs.ends.items():
            if (row := known.get(partition)) is None:
                yield partition.topic, end - logs.starts.get(partition, 0), False
                continue
            if row.is_back:
                # Its topic was turned round after it was mirrored; or it was turned forward before the run, and its
                # task is that of an earlier run.
                row = row._replace(position=self.last.position(None, partition))
            yield partition.topic, row.behind(end), True

    @property
    def left(self) -> int | None:
        """How many offsets are not mirrored of those that the logs had at the start of the run, or None if unknown."""
        lags = [None] if self._logs is None else [lag for _, lag, _ in self._left(self._logs)]
        return None if None in lags else sum(lag for lag in lags if lag is not None)

    @property
    def behind(self) -> Sequence[str]:
        """The topics of the logs that are not mirrored up to these ends, or have a partition without a task."""
        rows = () if self._logs is None else self._left(self._logs)
        return sorted({topic for topic, lag, has_task in rows if lag != 0 or not has_task})

    @property
    def is_caught_up(self) -> bool:
        """Whether the mirror has tasks for all partitions of the logs, and has reached the ends of the logs."""
        return self._logs is not None and not self.behind

    def summary(self, took_s: float, *, is_lag_known: bool = True) -> str:
        """Return the last line of a run: what it has mirrored, and how far the mirror is behind."""
        last, first = self.last, self._first
        topics = counted(last.topics, "topic")
        if self.records:
            size = decimal(_mirrored_since(first, last)[1])
            rate = f", {self.records / max(took_s, 1e-3):,.0f} records/s"
            text = f"mirrored {counted(self.records, 'record')} ({size}) of {topics} in {took_s:.1f} s{rate}"
        else:
            text = f"mirrored nothing new of {topics} in {took_s:.1f} s"
        earlier = f", after {counted(first.records, 'record')} of earlier runs" if first.records else ""
        if back := {each.target for each in last.partitions if each.is_back}:
            earlier += f"; what is copied back of {counted(len(back), 'topic')} is not counted"
        if last.forward_lag is None or not is_lag_known:
            return f"{text}{earlier}; how far the mirror is behind is not known"
        rest = ", where the next start continues" if last.forward_lag else ""
        return f"{text}{earlier}; {counted(last.forward_lag, 'record')} behind{rest}"


def _mirrored_since(first: MirrorView, last: MirrorView) -> tuple[int, int]:
    """Return how many records and bytes were mirrored between two views. Partitions may have left the mirror."""
    # A topic that was stopped or left out has no task in the first view, and is not counted anew when it returns.
    before = {each.partition: (each.records, each.size_bytes) for each in first.partitions}
    for (side, topic, number), offset in first.stored.items():
        if side is None:
            before.setdefault(TopicPartition(topic, number), (offset.get("records", 0), offset.get("bytes", 0)))
    counts = [(each, before.get(each.partition, (0, 0))) for each in last.partitions]
    return sum(each.records - old for each, (old, _) in counts), sum(each.size_bytes - old for each, (_, old) in counts)


def _duration(seconds: float) -> str:
    """Return a duration as a text with one unit, such as ``14 s`` or ``3 min``."""
    for size, unit in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def mirror_problems(view: MirrorView) -> Iterator[str]:
    """Yield a line for each problem of a mirror. That no process runs the mirror is no problem."""
    if view.group.workers:
        yield from worker_group_problems(view.group)
    if view.lag_problem:
        yield f"the lag is not fully known: {view.lag_problem}"
    if view.target_problem:
        is_back = any(each.is_back for each in view.partitions)
        unknown = "the checkpoints on the target are not known"
        if is_back:
            unknown = "neither the checkpoints on the target nor how much is left to copy back is known"
        yield f"{unknown}: {view.target_problem}"
    yield from view.stopped.values()
    for each in view.partitions:
        if each.is_back and each.lag is None and not view.target_problem:
            cause = f"the target has no {each.copy}, or no claim of the mirror for it"
            if each.left is not None:
                cause = (
                    f"{each.copy} of the target ends before offset {each.position}, up to which it was copied back: the"
                    " topic was deleted and created again, or has lost records"
                )
            yield f"how much is left to copy back to {each.partition} is not known: {cause}"
        if each.has_restarted:
            yield (
                f"the lag of {each.partition} is not known: its log on the source ends at offset {each.end}, before the"
                f" position {each.position}: the topic was deleted and created again, or has lost records"
            )
        if each.checkpoint is not None and each.checkpoint < (each.position or 0) and not each.is_back:
            yield (
                f"the last checkpoint of {each.partition} on the target is at offset {each.checkpoint}, before the"
                f" stored position {each.position}: the target has lost checkpoints"
            )


def mirror_report(view: MirrorView) -> list[RenderableType]:
    """Return the report about a mirror: a summary, the problems, and tables of the partitions and the tasks."""
    connector = view.connector
    config: Mapping[str, str] = {} if connector is None else connector.config
    lag = "unknown" if view.lag is None else f"{view.lag:,}"
    delivery = "exactly once" if view.is_exactly_once else "at least once"
    processes = counted(view.group.workers, "process", "processes")
    report: list[RenderableType] = [
        f"mirror {view.name} to {config.get('target.bootstrap.servers')}, {delivery}, in {processes}",
        f"{counted(view.records, 'record')} ({decimal(view.size_bytes)}) of {counted(view.topics, 'topic')}, lag {lag}",
        *(f"problem: {problem}" for problem in mirror_problems(view)),
    ]
    if view.partitions:
        names = ("partition", "target", "position", "lag", "mirrored", "task")
        rows = [_row(each, view.seen_ms) for each in view.partitions]
        report.append(plain_table(names, rows, right=("position", "lag", "task")))
    if view.group.workers:
        report.append(work_table(view.group, with_hosts=True))
    else:
        report.append("no process runs the mirror; 'kiel-groups mirror start' continues at these positions")
    return report


def _row(each: PartitionProgress, now_ms: int) -> tuple[str, ...]:
    position, lag = ("-" if number is None else f"{number:,}" for number in (each.position, each.lag))
    target = f"{each.target} (back)" if each.is_back else each.target
    task = "-" if each.task is None else str(each.task.task)
    return str(each.partition), target, position, lag, ago(each.stored_ms, now_ms), task


def mirror_document(view: MirrorView) -> dict[str, Any]:
    """Return a mirror as a JSON document. It omits the settings except a few, because settings may be secret."""
    connector = view.connector
    config: Mapping[str, str] = {} if connector is None else connector.config
    return {
        "name": view.name,
        "target": config.get("target.bootstrap.servers"),
        "exactly_once": view.is_exactly_once,
        "processes": len(view.group.workers),
        "problems": list(mirror_problems(view)),
        "topics": view.topics,
        "records": view.records,
        "bytes": view.size_bytes,
        "lag": view.lag,
        "seen_ms": view.seen_ms,
        "partitions": [
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "target": each.target,
                "direction": "back" if each.is_back else "forward",
                "task": None if each.task is None else each.task.task,
                "position": each.position,
                "start": each.start,
                "end": each.end,
                "lag": each.lag,
                "records": each.records,
                "bytes": each.size_bytes,
                "stored_ms": each.stored_ms,
                "checkpoint": each.checkpoint,
            }
            for each in view.partitions
        ],
        "work": [
            {
                "task": work.task if isinstance(work, TaskId) else None,
                "state": str(status.state),
                "worker": status.worker,
                "trace": status.trace,
                "problem": status.problem,
            }
            for work, status in view.group.statuses.items()
        ],
    }
