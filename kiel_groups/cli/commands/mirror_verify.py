"""``kiel-groups mirror verify``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

import click

from kiel_groups.cli.parameters.mirror_clusters import MirrorClusters, mirror_options
from kiel_groups.cli.parameters.options import SERVER_WAIT_S, json_option, quiet_option
from kiel_groups.cli.terminal.messages import DONE, EPILOG, FAILED, Lines
from kiel_groups.wording import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kiel_groups.mirror.comparison import Difference, PartitionComparison
    from kiel_groups.model import TopicPartition

#: How many ranges of a topic are printed; the document has all of them.
_MOST_RANGES = 20


@click.command(epilog=EPILOG)
@mirror_options(needs_target=True)
@click.option(
    "--topics",
    default="*",
    metavar="NAMES",
    help="Topics of the source, as for 'mirror start'.  [default: all that are mirrored]",
)
@quiet_option
@json_option
@click.pass_obj
def verify(lines: Lines, /, *, clusters: MirrorClusters, topics: str, quiet: bool, as_json: bool) -> int:
    """
    Check that a mirror has each record once, in order.

    The command reads both clusters, and compares keys and values by checksums, and record by record where these differ.
    It prints each range of offsets that differs: missing, doubled, changed, out of order, or not of the source. The
    mirror may be running: records that it has not mirrored yet are counted apart.

    The exit status is 1 if nothing explains a difference. Dead letters explain missing records, and a restart explains
    doubled ones unless the mirror writes exactly once. What one side has deleted, by its retention, is not compared.
    """
    from kiel_groups.cli.terminal.rendering import progress, show_result
    from kiel_groups.mirror.mirror_view import read_mirror

    target = clusters.open_target()
    from kiel_groups.mirror.mirror_verification import MirrorVerification

    view = read_mirror(clusters.source, clusters.group, clusters.name, timeout_s=SERVER_WAIT_S)
    config: Mapping[str, str] = {} if view.connector is None else view.connector.config
    began_s = time.monotonic()
    with progress(lines, 1.0, quiet=quiet) as update:

        def show(partition: TopicPartition, done: int, total: int) -> None:
            rate = done / max(time.monotonic() - began_s, 1e-3)
            left = f", {(total - done) / rate:,.0f} s left" if rate else ""
            text = f"{partition}: {done:,} of {total:,} records, {rate:,.0f} records/s{left}"
            update(text, done / max(total, 1))

        verification = MirrorVerification(
            clusters.source_brokers(),
            target,
            clusters.name,
            topics=[name.strip() for name in topics.split(",")],
            dead_letter_topic=config.get("dead.letter.topic", ""),
            progress=show,
        )
        found = list(verification.run())
    if view.connector is None and not quiet:
        lines.say(
            "info",
            f"the worker group {clusters.group!r} has no connector {clusters.name!r} any more: doubled records count as"
            " explained",
        )
    report = _Report(clusters.name, found, is_exactly_once=view.is_exactly_once)
    if as_json or not quiet or not report.is_complete:
        show_result(report.document(), *report.texts(), as_json=as_json)
    return DONE if report.is_complete else FAILED


class _Report:
    """
    The report about a verified mirror.

    Args:
        name: The name of the mirror.
        found: The results of its partitions.
        is_exactly_once: Whether the mirror writes each record once, so that nothing explains a doubled one.
    """

    def __init__(self, name: str, found: Sequence[PartitionComparison], *, is_exactly_once: bool) -> None:
        self._name = name
        self._found = found
        self._is_exactly_once = is_exactly_once
        self.is_complete = not any(map(self._unexplained, found))

    def texts(self) -> list[RenderableType]:
        """Return the lines of the report: the verdict, then each topic with its ranges."""
        from rich.padding import Padding
        from rich.text import Text

        found = ((line.lstrip(), len(line) - len(line.lstrip())) for line in self._lines())
        return [Padding(Text(line), (0, 0, 0, indent), expand=False) for line, indent in found]

    def _lines(self) -> Iterator[str]:
        equal, records = sum(each.equal for each in self._found), sum(each.records[0] for each in self._found)
        verdict = "complete" if self.is_complete else "not complete"
        yield f"mirror {self._name}: {verdict}; {equal:,} of {counted(records, 'record')} of the source are equal"
        for (topic, target), found in groupby(self._found, lambda each: (each.partition.topic, each.target_topic)):
            yield from self._topic_lines(f"{topic} → {target}", list(found))

    def _topic_lines(self, name: str, found: Sequence[PartitionComparison]) -> Iterator[str]:
        counts: dict[str, int] = {}
        for each in found:
            for kind, count in each.counts.items():
                counts[kind] = counts.get(kind, 0) + count
        state = ", ".join(f"{count:,} {kind}" for kind, count in counts.items()) or "no difference"
        equal = sum(each.equal for each in found)
        partitions = "all partitions together" if found[0].partition.partition < 0 else counted(len(found), "partition")
        yield f"  {name}: {partitions}, {equal:,} equal; {state}"
        for each in found:
            if each.refusal:
                yield f"    {each.partition} is not compared: {each.refusal}"
        # What needs action comes first.
        ranges = [(each, difference) for each in found for difference in each.differences]
        ranges.sort(key=lambda pair: self._is_explained(pair[1]))
        for each, difference in islice(ranges, _MOST_RANGES):
            yield f"    {_range_text(each, difference)}"
        if (more := len(ranges) - _MOST_RANGES) > 0:
            yield f"    and {counted(more, 'more range')}, which --json lists"
        for each in found:
            if each.is_cut:
                yield f"    {each.partition} differs at too many places: the comparison ended early"

    def _unexplained(self, each: PartitionComparison) -> int:
        return each.unexplained(is_exactly_once=self._is_exactly_once)

    def _is_explained(self, difference: Difference) -> bool:
        from kiel_groups.mirror.comparison import DOUBLED, EXPLAINED

        return difference.kind in EXPLAINED or (difference.kind == DOUBLED and not self._is_exactly_once)

    def document(self) -> dict[str, Any]:
        """Return the report as a JSON document. In ranges, ``to`` is exclusive."""
        return {
            "mirror": self._name,
            "complete": self.is_complete,
            "exactly_once": self._is_exactly_once,
            "partitions": [self._partition_document(each) for each in self._found],
        }

    def _partition_document(self, each: PartitionComparison) -> dict[str, Any]:
        return {
            "topic": each.partition.topic,
            "partition": each.partition.partition if each.partition.partition >= 0 else None,
            "target_topic": each.target_topic,
            "complete": not self._unexplained(each),
            "not_compared": each.refusal or None,
            "source_records": each.records[0],
            "target_records": each.records[1],
            "equal": each.equal,
            "counts": dict(each.counts),
            "ended_early": each.is_cut,
            "differences": [
                {
                    "kind": difference.kind,
                    "explained": self._is_explained(difference),
                    "records": difference.records,
                    "source": _range_document(difference.source),
                    "target": _range_document(difference.target),
                }
                for difference in each.differences
            ],
            "ranges": [{"source": source._asdict(), "target": target._asdict()} for source, target in each.sums],
        }


def _range_document(offsets: tuple[int, int] | None) -> dict[str, int] | None:
    return None if offsets is None else {"from": offsets[0], "to": offsets[1]}


def _range_text(each: PartitionComparison, difference: Difference) -> str:
    from kiel_groups.mirror.comparison import ALL

    if each.partition.partition == ALL:
        counts = f"{counted(each.records[0], 'record')} on the source, {each.records[1]:,} on the target"
        return f"its keys are hashed anew, and the records of all partitions together differ: {counts}"
    sides = (("source", difference.source), ("target", difference.target))
    places = [f"{name} {_offsets(offsets)}" for name, offsets in sides if offsets is not None]
    return f"{each.partition} {difference.kind}: {counted(difference.records, 'record')}, {', '.join(places)}"


def _offsets(offsets: tuple[int, int]) -> str:
    start, end = offsets
    return f"offset {start}" if end - start == 1 else f"offsets {start} to {end - 1}"
