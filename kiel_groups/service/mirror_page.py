"""
Compute what the console shows of mirrors, from the statuses of their connectors and tasks. This module does no I/O.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kiel_groups.ops.views.report import ago
from kiel_groups.service.connectors import Work
from kiel_groups.wording import counted, own_command, some

#: What an operator does about a problem of a running task, by a part of the problem's text.
_REMEDIES = (
    (
        "the source does not answer",
        "the task continues when a broker of the source answers; records that the source deletes until then are lost to"
        " the mirror",
    ),
    ("by a connector of another name", "the task copies other topics, and nothing of this one"),
    ("the source ", "the task waits for the source, and skips no record"),
    ("has refused a transaction", "the task writes the same records again; look at the target if that recurs"),
    (
        "",
        "the task waits for the target, and skips no record; with exactly.once, it fails if that takes 15 minutes, and"
        " a restart continues from its checkpoints",
    ),
)

#: What an operator does before the restart of a failed task, by a part of the error.
_CAUSES = (
    (
        "and the record has no key",
        "name a topic for such records in dead.letter.topic, or let cleanup.policy of the target's topic be delete",
    ),
    (
        "refuses to store the record",
        "raise max.message.bytes of the target's topic, or name a topic for such records in dead.letter.topic",
    ),
    ("has fenced this task", "no other mirror may have the same name"),
    ("", "remove the cause"),
)


class MirroredTopic(NamedTuple):
    """
    A topic of the source and its copy on the target.

    ``target`` ends with "(back)" if the topic is copied back. ``lag`` is the number of records that are not copied yet,
    or None before a task knows it, ``rate`` the records a second, and ``checkpoint`` the age of the last checkpoint as
    text, which has none on the way back.
    """

    source: str
    target: str
    partitions: int
    lag: int | None
    rate: int
    checkpoint: str


class Mirror(NamedTuple):
    """A mirror: its name, a sentence about its progress, its topics, and its problems, each with a remedy."""

    name: str
    progress: str
    topics: Sequence[MirroredTopic]
    problems: Sequence[tuple[str, str]]


def mirrors(works: Iterable[Work], group: str, url: str, now_ms: int) -> Iterator[Mirror]:
    """
    Yield the mirrors among the connectors of a worker group.

    Args:
        works: The connectors, each followed by its tasks.
        group: The group.
        url: The URL of a worker, for commands.
        now_ms: The present time in epoch milliseconds.
    """
    by_connector: defaultdict[str, list[Work]] = defaultdict(list)
    for work in works:
        by_connector[work.connector].append(work)
    for name, (connector, *tasks) in by_connector.items():
        plugin = connector.config.get("connector.class", "").replace(":", ".").rpartition(".")[2]
        if plugin.removesuffix("Connector") != "Mirror":
            continue
        topics = list(_topics(tasks, connector.config.get("target.topic.format", "${topic}"), now_ms))
        problems: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for work in (connector, *tasks):
            if (problem := _problem(work, group, url, connector.config)) is not None:
                problems[problem].append(work.name)
        shown = [(f"{some(names)}: {text}", remedy) for (text, remedy), names in problems.items()]
        yield Mirror(name, _progress(connector, tasks, topics, now_ms), topics, shown)


def _topics(tasks: Iterable[Work], target: str, now_ms: int) -> Iterator[MirroredTopic]:
    """Yield the topics of a mirror in alphabetical order. Each task has some partitions of each topic."""
    found: defaultdict[str, list[dict[str, float]]] = defaultdict(list)
    for task in tasks:
        of_task: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for name, labels, value in task.metrics:
            if topic := dict(labels).get("topic"):
                of_task[topic][name.removeprefix("mirror_")] = value
        for topic, values in of_task.items():
            # A task that waits for the target measures no rate.
            found[topic].append(values | ({"records_per_second": 0.0} if task.problem else {}))
    for topic, parts in sorted(found.items()):
        times_s = [(part.get("lag_records", 0) > 0, part.get("checkpoint_timestamp_seconds", 0.0)) for part in parts]
        behind = [at_s for is_behind, at_s in times_s if is_behind]
        checkpoint_s = min(behind, default=max(at_s for _, at_s in times_s))
        is_back = any("records_copied_back" in part for part in parts)
        yield MirroredTopic(
            topic,
            target.replace("${topic}", topic) + " (back)" * is_back if not topic.startswith("(") else "",
            round(sum(part.get("partitions", 0) for part in parts)),
            round(sum(part["lag_records"] for part in parts)) if all("lag_records" in part for part in parts) else None,
            round(sum(part.get("records_per_second", 0) for part in parts)),
            ago(round(checkpoint_s * 1000), now_ms),
        )


def _progress(connector: Work, tasks: Sequence[Work], topics: Sequence[MirroredTopic], now_ms: int) -> str:
    if not topics:
        return "Nothing is known of its topics while none of its tasks runs."
    totals: defaultdict[str, float] = defaultdict(float)
    for name, _, value in (sample for task in tasks for sample in task.metrics):
        totals[name] += value
    lags, rate = [topic.lag for topic in topics if topic.lag is not None], sum(topic.rate for topic in topics)
    lag, is_waiting = sum(lags), any(task.problem for task in tasks)
    left = f"{counted(lag, 'record is', 'records are')} left" if lag else "all records are mirrored"
    if len(lags) < len(topics):
        left = f"{'waiting; ' * is_waiting}how many records are left is not known yet"
    elif is_waiting:
        left = f"waiting; {counted(lag, 'record was', 'records were')} left when the lag was measured last"
    elif lag and rate:
        left += f", at {rate:,} a second for about {ago(now_ms - 1000 * lag // rate, now_ms).removesuffix(' ago')}"
    # A task that leaves a topic out begins again with the others, and counts anew.
    count = round(totals["mirror_records"])
    parts = [f"{connector.state.capitalize()}: {left}", f"{count:,} since its tasks last began to copy"]
    for name, one, many in (
        ("records_copied_back", "record copied back", "records copied back"),
        ("dead_letters", "dead letter", ""),
        ("transactions_aborted", "aborted transaction", ""),
    ):
        if count := round(totals[f"mirror_{name}"]):
            parts.append(counted(count, one, many))
    return "; ".join(parts) + "."


def _problem(work: Work, group: str, url: str, config: Mapping[str, str]) -> tuple[str, str] | None:
    """
    Return the problem of a connector or a task with its remedy, or None if it has no problem.

    ``config`` has the settings of the connector.
    """
    if work.state == "FAILED":
        cause = next(remedy for part, remedy in _CAUSES if part in work.problem)
        restart = own_command("connectors", "restart", work.connector, "--with-tasks", "--only-failed", "--url", url)
        return work.problem, f"{cause}; {restart} starts it again"
    if work.problem and work.task is None:
        return work.problem, "other topics are copied; the mirror looks again every refresh.interval.ms"
    if work.problem:
        return work.problem, next(remedy for part, remedy in _REMEDIES if part in work.problem)
    if work.state == "UNASSIGNED":
        # The brokers of the source are those of the workers.
        brokers = config.get("source.bootstrap.servers", "")
        start = own_command("workers", "run", "--group", group, "--brokers", brokers)
        return "no worker runs it", f"a worker takes it within seconds; if none is alive, {start} starts one"
    return None
