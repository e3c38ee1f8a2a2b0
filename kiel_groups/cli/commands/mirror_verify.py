"""``kiel-groups mirror verify``."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from kiel_groups.cli.parameters.mirror_clusters import MirrorClusters, mirror_options
from kiel_groups.cli.parameters.options import SERVER_WAIT_S, json_option, quiet_option
from kiel_groups.cli.terminal.messages import DONE, EPILOG, FAILED, Lines
from kiel_groups.wording import counted, some

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kiel_groups.mirror.comparison import Difference, PartitionComparison
    from kiel_groups.model import TopicPartition

#: How many ranges of a topic are printed; the document has all of them.
_MOST_RANGES = 20


def _names(context: click.Context, parameter: click.Parameter, text: str) -> list[str]:
    """Return the names in the value of ``--topics``, or raise BadParameter."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise click.BadParameter(f"{text!r} given; expected names of topics, separated by commas", context, parameter)
    return names


@click.command(epilog=EPILOG)
@mirror_options(needs_target=True)
@click.option(
    "--topics",
    default="*",
    callback=_names,
    metavar="NAMES",
    help="Topics of the source, as for 'mirror start'.  [default: all that are mirrored]",
)
@quiet_option
@json_option
@click.pass_obj
def verify(lines: Lines, /, *, clusters: MirrorClusters, topics: Sequence[str], quiet: bool, as_json: bool) -> int:
    """
    Check that a mirror has each record once, in order.

    The command reads both clusters, and compares keys and values by checksums, and record by record where these differ.
    It prints each range of offsets that differs: missing, doubled, changed, out of order, or not of the source. The
    mirror may be running: records that it has not mirrored yet are counted apart. Of a topic that 'mirror reverse' has
    turned, one line says from which offset on it is compared, and which records are those that are copied back.

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
            topics=topics,
            dead_letter_topic=config.get("dead.letter.topic", ""),
            copied_back=lambda partition: view.position("target", partition) or 0,
            progress=show,
        )
        found = list(verification.run())
    if view.connector is None and not quiet:
        lines.say(
            "info",
            f"the worker group {clusters.group!r} has no connector {clusters.name!r} any more: doubled records count as"
            " explained",
        )
    once = view.is_exactly_once
    is_complete = not any(each.unexplained(is_exactly_once=once) for each in found)
    if as_json or not quiet or not is_complete:
        document = {
            "mirror": clusters.name,
            "complete": is_complete,
            "exactly_once": once,
            "partitions": [_document(each, once=once and not each.is_back) for each in found],
        }
        show_result(document, *_texts(clusters.name, found, once=once), as_json=as_json)
    return DONE if is_complete else FAILED


def _texts(name: str, found: Sequence[PartitionComparison], *, once: bool) -> Iterator[RenderableType]:
    """Yield the lines of the report: the verdict, then each topic with its ranges."""
    from rich.padding import Padding
    from rich.text import Text

    verdict = "not complete" if any(each.unexplained(is_exactly_once=once) for each in found) else "complete"
    forward, back = ([each for each in found if each.is_back is is_back] for is_back in (False, True))
    equal, records = sum(each.equal for each in forward), sum(each.records[0] for each in forward)
    text = f"mirror {name}: {verdict}"
    if any(not each.refusal for each in forward):
        text += f"; {equal:,} of {counted(records, 'record')} of the source are equal"
    if back:
        text += f"; copied back: {sum(each.equal for each in back):,} of {sum(each.records[1] for each in back):,}"
    yield Text(text)
    for (topic, target, is_back), own in groupby(
        found, lambda each: (each.partition.topic, each.target_topic, each.is_back)
    ):
        name = f"{topic} {'←' if is_back else '→'} {target}"
        heading, *lines = _topic_lines(name, list(own), once=once and not is_back)
        yield Padding(Text(heading), (0, 0, 0, 2), expand=False)
        yield from (Padding(Text(line), (0, 0, 0, 4), expand=False) for line in lines)


def _topic_lines(name: str, found: Sequence[PartitionComparison], *, once: bool) -> Iterator[str]:
    from kiel_groups.mirror.comparison import is_explained

    counts = sum((each.counts for each in found), Counter[str]())
    nothing = "not compared" if all(each.refusal for each in found) else "no difference"
    state = ", ".join(f"{count:,} {kind}" for kind, count in counts.items()) or nothing
    partitions = "all partitions together" if found[0].partition.partition < 0 else counted(found, "partition")
    yield f"{name}: {partitions}, {sum(each.equal for each in found):,} equal; {state}"
    if part := found[0].part:
        places = [f"{each.partition} ({_places(*each.compared)})" for each in found if each.compared]
        yield f"{part}: {some(places) or 'none'}"
    yield from (f"{each.partition} is not compared: {each.refusal}" for each in found if each.refusal)
    # What needs action comes first.
    ranges = [(each, difference) for each in found for difference in each.differences]
    ranges.sort(key=lambda pair: is_explained(pair[1].kind, is_exactly_once=once))
    yield from (_range_text(*pair) for pair in ranges[:_MOST_RANGES])
    if (more := len(ranges) - _MOST_RANGES) > 0:
        yield f"and {counted(more, 'more range')}, which --json lists"
    yield from (
        f"{each.partition} differs at too many places: the comparison ended early" for each in found if each.is_cut
    )


def _document(each: PartitionComparison, *, once: bool) -> dict[str, Any]:
    """Return the result for a partition as a JSON document. In ranges, ``to`` is exclusive."""
    from kiel_groups.mirror.comparison import is_explained

    return {
        "topic": each.partition.topic,
        "partition": each.partition.partition if each.partition.partition >= 0 else None,
        "target_topic": each.target_topic,
        "direction": "back" if each.is_back else "forward",
        "complete": not each.unexplained(is_exactly_once=once),
        "not_compared": each.refusal or None,
        "part": each.part or None,
        "compared": None
        if each.compared is None
        else dict(zip(("source", "target"), map(_range_document, each.compared), strict=True)),
        "source_records": each.records[0],
        "target_records": each.records[1],
        "equal": each.equal,
        "counts": dict(each.counts),
        "ended_early": each.is_cut,
        "differences": [
            {
                "kind": difference.kind,
                "explained": is_explained(difference.kind, is_exactly_once=once),
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
    from kiel_groups.mirror.comparison import ALL, WAITING

    if each.partition.partition == ALL:
        mirrored = each.records[0] - each.counts[WAITING]
        counts = f"{counted(mirrored, 'record')} on the source, {each.records[1]:,} on the target"
        return f"its keys are hashed anew, and the records of all partitions together differ: {counts}"
    places = _places(difference.source, difference.target)
    return f"{each.partition} {difference.kind}: {counted(difference.records, 'record')}, {places}"


def _places(source: tuple[int, int] | None, target: tuple[int, int] | None) -> str:
    """Return a text about the offsets of a range on both sides, or on one."""
    sides = (("source", source), ("target", target))
    ranges = [(name, offsets[0], offsets[1] - 1) for name, offsets in sides if offsets is not None]
    return ", ".join(
        f"no {name} offset from {start} on"
        if last < start
        else f"{name} offset{f' {start}' if start == last else f's {start} to {last}'}"
        for name, start, last in ranges
    )
