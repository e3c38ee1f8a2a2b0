"""Return the report and the JSON document about a verified archive, for ``kiel-groups spark verify``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from kiel_groups.wording import counted, some

if TYPE_CHECKING:
    from kiel_groups.spark import Verification
    from kiel_groups.spark.archive_coverage import Difference, LogCoverage


#: How many ranges of a topic are printed; the document has all of them.
_MOST_RANGES = 20
_MOST_CHARACTERS = 200
_ONLY_FILES = (
    "only files were compared: what compaction has removed, and what the logs have beyond the archive, needs --brokers"
)


def verification_report(found: Verification) -> list[RenderableType]:
    """Return the lines about a verification: the verdict, the topics with their ranges, and the totals."""
    lines = ((line.lstrip(), len(line) - len(line.lstrip())) for line in _lines(found))
    return [Padding(Text(line), (0, 0, 0, indent), expand=False) for line, indent in lines]


def _lines(found: Verification) -> Iterator[str]:
    unexplained = sum(len(each.unexplained) for each in found.logs)
    problems = [counted(unexplained, "range") + " unexplained"] if unexplained else []
    problems += [counted(found.unreadable, "file") + " unreadable"] if found.unreadable else []
    verdict = ", ".join(problems) or "complete"
    yield (
        f"{found.output}, up to batch {found.batch}: {verdict}"
        if found.batch is not None
        else (f"{found.output}: nothing is archived yet")
    )
    for path, reason in islice(found.unreadable.items(), _MOST_RANGES):
        yield f"  {path.rpartition('/topic=')[2]} cannot be read: {_bounded(reason)}"
    if (more := len(found.unreadable) - _MOST_RANGES) > 0:
        yield f"  and {counted(more, 'more file')} cannot be read, which --json lists"
    for topic, logs in groupby(found.logs, lambda log: log.topic_partition.topic):
        yield from _topic_lines(topic, list(logs))
    yield from _total_lines(found)
    if not found.compared_with_log:
        yield _ONLY_FILES


def _topic_lines(topic: str, logs: list[LogCoverage]) -> Iterator[str]:
    ranges = [(log, difference) for log in logs for difference in log.differences]
    # What needs action comes first.
    ranges.sort(key=lambda each: each[1].is_explained)
    unexplained = sum(not difference.is_explained for _, difference in ranges)
    state = f"{counted(unexplained, 'range')} unexplained" if unexplained else "complete"
    explained = len(ranges) - unexplained
    if explained:
        state += f", {counted(explained, 'range')} explained"
    if waiting := sum(log.waiting or 0 for log in logs):
        state += f", {counted(waiting, 'offset')} to archive"
    partitions = len({log.topic_partition for log in logs})
    rows = sum(log.rows for log in logs)
    yield f"  {topic}: {counted(partitions, 'partition')}, {counted(rows, 'record')}: {state}"
    several = len(logs) > partitions
    for log, difference in ranges[:_MOST_RANGES]:
        incarnation = f" of incarnation {log.incarnation}" if several and log.incarnation is not None else ""
        yield f"    {log.topic_partition}{incarnation} {_range_text(difference)}"
    if len(ranges) > _MOST_RANGES:
        yield f"    and {counted(len(ranges) - _MOST_RANGES, 'more range')}, which --json lists"


def _range_text(difference: Difference) -> str:
    if difference.offsets == 1:
        offsets = f"offset {difference.start}"
    elif difference.offsets:
        offsets = f"{difference.offsets:,} offsets, {difference.start} to {difference.end - 1}"
    else:
        offsets = f"from offset {difference.start} on, if there was more"
    reason = f": {_bounded(difference.reason)}" if difference.reason else ""
    return f"{difference.kind} {offsets}{reason}"


def _bounded(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]}…"


def _total_lines(found: Verification) -> Iterator[str]:
    totals = found.totals()
    rows, planned = totals.pop("rows"), totals.pop("planned")
    yield f"{counted(rows, 'record')} in {counted(found.files, 'file')}, of {counted(planned, 'planned offset')}"
    if others := [f"{count:,} {kind}" for kind, count in totals.items() if count]:
        yield f"offsets: {some(others, most=len(others))}"


def verification_document(found: Verification) -> dict[str, Any]:
    """Return a verification as a JSON document. In its ranges, ``to`` is exclusive."""
    return {
        "output": found.output,
        "checkpoint": found.checkpoint,
        "batch": found.batch,
        "complete": found.is_complete,
        "compared_with_log": found.compared_with_log,
        "files": found.files,
        "unreadable": dict(found.unreadable),
        "totals": found.totals(),
        "logs": [_log_document(each) for each in found.logs],
    }


def _log_document(log: LogCoverage) -> dict[str, Any]:
    return {
        "topic": log.topic_partition.topic,
        "partition": log.topic_partition.partition,
        "incarnation": log.incarnation,
        "rows": log.rows,
        "first": log.first,
        "last": log.last,
        "reached": log.reached,
        "planned": [{"from": start, "to": end} for start, end in log.planned],
        "log": None if log.log is None else {"first": log.log[0], "next": log.log[1]},
        "waiting": log.waiting,
        "complete": not log.unexplained,
        "ranges": [
            {
                "kind": each.kind,
                "from": each.start,
                "to": each.end,
                "explained": each.is_explained,
                "reason": each.reason or None,
            }
            for each in log.differences
        ],
    }
