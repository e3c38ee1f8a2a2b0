"""The plan and the summary of an archive, as text for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from kiel_groups.wording import counted

if TYPE_CHECKING:
    from kiel_groups.spark import ArchivePlan, ArchiveSummary
    from kiel_groups.spark.checkpoint.query_offsets import OffsetRange

__all__ = ["plan_document", "plan_lines", "summary_document", "summary_lines"]

_MOST_PARTITIONS = 4
_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def plan_lines(plan: ArchivePlan) -> Iterator[str]:
    """Yield lines that describe the offsets to read and the folders to write."""
    yield f"would read {counted(plan.records, 'record')} at most"
    yield from _topic_lines(plan.ranges)
    yield f"into {plan.output}, {'a new' if plan.is_new else 'an existing'} archive; checkpoint {plan.checkpoint}"


def plan_document(plan: ArchivePlan) -> dict[str, Any]:
    """Return the plan as a JSON document."""
    return {
        "records": plan.records,
        "topics": _topics(plan.ranges),
        "output": plan.output,
        "checkpoint": plan.checkpoint,
        "new": plan.is_new,
    }


def summary_lines(summary: ArchiveSummary) -> Iterator[str]:
    """Yield lines that describe the archived records, the new files and the commit."""
    if not summary.records:
        yield f"archived nothing new in {summary.took_s:.1f} s"
        yield from _topic_lines(summary.ranges)
        yield f"into {summary.output}: no new files"
    else:
        rate = summary.records / max(summary.took_s, 1e-3)
        yield f"archived {counted(summary.records, 'record')} in {summary.took_s:.1f} s, {rate:,.0f} records/s"
        yield from _topic_lines(summary.ranges)
        yield f"into {summary.output}: {counted(summary.files, 'new file')}, {_size(summary.size_bytes)}"
    if summary.group is not None:
        yield f"committed for the group {summary.group}"


def summary_document(summary: ArchiveSummary) -> dict[str, Any]:
    """Return the summary as a JSON document; ``took_s`` is in seconds."""
    return {
        "records": summary.records,
        "topics": _topics(summary.ranges),
        "output": summary.output,
        "files": summary.files,
        "bytes": summary.size_bytes,
        "took_s": round(summary.took_s, 3),
        "group": summary.group,
    }


def _topic_lines(ranges: Iterable[OffsetRange]) -> Iterator[str]:
    for topic, found in groupby(ranges, lambda each: each.topic_partition.topic):
        parts = list(found)
        offsets = sum(each.size for each in parts)
        shown = [f"{each.topic_partition.partition}: {each.start}–{each.end}" for each in parts[:_MOST_PARTITIONS]]
        more = ", …" if len(parts) > _MOST_PARTITIONS else ""
        counts = f"{counted(offsets, 'offset')} in {counted(len(parts), 'partition')}"
        yield f"  {topic}: {counts} ({', '.join(shown)}{more})"


def _topics(ranges: Iterable[OffsetRange]) -> dict[str, dict[str, dict[str, int]]]:
    """Return the ranges by topic and partition; ``to`` is exclusive."""
    return {
        topic: {str(each.topic_partition.partition): {"from": each.start, "to": each.end} for each in found}
        for topic, found in groupby(ranges, lambda each: each.topic_partition.topic)
    }


def _size(size: float) -> str:
    """Format a size with one decimal and a unit: ``52.1 MB``."""
    power = 0
    while size >= 1000 and power < len(_UNITS) - 1:
        size, power = size / 1000, power + 1
    return f"{size:.1f} {_UNITS[power]}" if power else f"{size:.0f} {_UNITS[0]}"
