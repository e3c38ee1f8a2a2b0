"""The parts that reports on groups share: findings, facts, ages, lags and tables of partitions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Literal, TypeAlias

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from kiel_groups.model import TopicPartition
from kiel_groups.ops.findings import Finding
from kiel_groups.ops.partition_view import PartitionView, lag_of
from kiel_groups.wording import counted

__all__ = [
    "Column",
    "Listed",
    "Listing",
    "ago",
    "facts_grid",
    "findings_grid",
    "lag_text",
    "listed_partitions",
    "number_text",
    "report_table",
    "topic_parts",
    "whole_lag",
]

#: Which partitions a report lists: all, only those with a problem, none, or at most this number (problems first).
Listed: TypeAlias = Literal["all", "wrong", "none"] | int

#: A column of a table of partitions: its heading, and what it shows of a partition.
Column: TypeAlias = tuple[str, Callable[[PartitionView], str]]

#: The columns of lists of groups that have numbers.
_NUMBERS = frozenset({"members", "foreign", "generation", "lag"})

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def ago(then_ms: int | None, now_ms: int) -> str:
    """
    Return a text such as ``14 s ago``; "" if the time is unknown.

    A time in the future counts as now, because the clocks of two machines may differ.
    """
    if not then_ms:
        return ""
    seconds = max(0, now_ms - then_ms) // 1000
    for size, unit in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def findings_grid(findings: Iterable[Finding]) -> Table:
    """Return the problems of a group, each with its remedy."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for finding in findings:
        word, style = ("settling", "yellow") if finding.passing else ("wrong", "bold red")
        grid.add_row(Text(word, style=style), Text(finding.text, overflow="fold"))
        if finding.remedy and not finding.passing:
            grid.add_row("", Text(f"→ {finding.remedy}", overflow="fold"))
    return grid


def facts_grid(facts: Iterable[tuple[str, str]]) -> Table:
    """Return a table of names and texts."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for name, text in facts:
        grid.add_row(name, Text(text, overflow="fold"))
    return grid


def whole_lag(lag: str, partitions: Iterable[PartitionView], problem: str) -> str:
    """
    Return the lag of a group, why it is not fully known, how many partitions have no committed offset, and of how many
    two stores have different offsets.
    """
    disputed = [each for each in partitions if each.is_disputed]
    uncommitted = [each for each in partitions if each.committed is None]
    why = f" (not fully known: {problem})" if problem else ""
    aside = f"; without a committed offset: {counted(uncommitted, 'partition', 'partitions')}" if uncommitted else ""
    if disputed:
        aside += (
            f"; ZooKeeper and Kafka have different offsets of {counted(disputed, 'partition')}, and nothing shows yet"
            " which the group commits to"
        )
    return lag + why + aside


def lag_text(partitions: Collection[PartitionView]) -> str:
    """Format the lag: ``?`` if none is known, ``≥ 12`` if only some are known, ``0 to 12`` if two stores differ."""
    whole = all(each.lag is not None for each in partitions)
    lag = lag_of(partitions)
    text = number_text(lag) if whole or lag is None else f"≥ {lag:,}"
    least = sum(each.least_lag or 0 for each in partitions)
    return text if lag is None or least == lag else f"{least:,} to {text.removeprefix('≥ ')}"


def listed_partitions(
    partitions: Sequence[PartitionView], findings: Sequence[Finding], listed: Listed
) -> Collection[TopicPartition]:
    """Return the partitions to list, those with a finding or an unknown lag first."""
    named = {partition for finding in findings for partition in finding.partitions}
    # A dict keeps the order of the partitions, and has each partition once.
    wrong = {each.topic_partition: None for each in partitions if each.lag is None or each.topic_partition in named}
    wrong_first = wrong | {each.topic_partition: None for each in partitions}
    match listed:
        case "all":
            return wrong_first
        case "wrong":
            return wrong
        case "none":
            return set()
        case count:
            return set(islice(wrong_first, count))


def topic_parts(
    partitions: Iterable[PartitionView], listed: Collection[TopicPartition], *columns: Column
) -> Iterator[RenderableType]:
    """
    Yield a heading for each topic, and a table of its listed partitions.

    Args:
        partitions: The partitions of all topics, by topic.
        listed: The partitions to list; the others are counted.
        columns: The columns beside partition, committed offset, log end and lag. If it is not the group's ``config``
            that names the store of the offsets, a column of the stores precedes them.
    """
    partitions = list(partitions)
    if any(each.stores for each in partitions):
        columns = (("store", _stores), *columns)
    for topic, group in groupby(partitions, key=lambda each: each.topic_partition.topic):
        of_topic = list(group)
        shown = [each for each in of_topic if each.topic_partition in listed]
        hidden = len(of_topic) - len(shown)
        aside = f": {hidden:,} of {len(of_topic):,} partitions are not listed; lag of all: {lag_text(of_topic)}"
        yield Text.assemble((f"topic {topic}", "bold"), aside if hidden else "", overflow="fold")
        if shown:
            yield _partitions(shown, columns)


#: Stores, as people read them.
_NAMES = {"zookeeper": "ZooKeeper", "kafka": "Kafka"}


def _stores(partition: PartitionView) -> str:
    """Return where the committed offset is, or the offsets of both stores if they differ."""
    if partition.is_disputed:
        return ", ".join(f"{_NAMES[store]} {offset:,}" for store, offset in partition.stores.items())
    return " and ".join(_NAMES[store] for store in partition.stores)


def _partitions(partitions: Iterable[PartitionView], columns: Sequence[Column]) -> Table:
    table = report_table()
    for heading in ("partition", "committed", "log end", "lag"):
        table.add_column(heading, justify="right", overflow="fold")
    for heading, _ in columns:
        table.add_column(heading, overflow="fold")
    for each in partitions:
        table.add_row(
            str(each.topic_partition.partition),
            number_text(each.committed),
            number_text(each.log_end),
            number_text(each.lag),
            *(text_of(each) for _, text_of in columns),
        )
    return table


def number_text(number: int | None) -> str:
    """Format a number; ``?`` if it is unknown."""
    return "?" if number is None else f"{number:,}"


def report_table() -> Table:
    """Return an empty table in the style of reports."""
    # Rich would wrap a title to the width of the table, so a heading is a text above the table.
    return Table(box=box.SIMPLE_HEAD, pad_edge=False)


class Listing:
    """A table of these columns; where it is too wide, columns without a text are left out before others are folded."""

    def __init__(self, columns: Sequence[tuple[str, Sequence[str]]]) -> None:
        self._columns = columns

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        columns = self._columns
        if _width(columns) > options.max_width:
            columns = [each for each in columns if any(each[1])]
        yield _lines(columns) if _width(columns) <= options.max_width else _folded(columns)


#: What a ``report_table`` has between two columns.
_GAP = 3


def _width(columns: Sequence[tuple[str, Sequence[str]]]) -> int:
    return 1 + sum(_widest(each) for each in columns) + _GAP * (len(columns) - 1)


def _widest(column: tuple[str, Sequence[str]]) -> int:
    name, texts = column
    return max(map(cell_len, (name, *texts)))


def _lines(columns: Sequence[tuple[str, Sequence[str]]]) -> Text:
    """Return what ``_folded`` shows of columns that fit, for which that takes a second in lists of 3,000 groups."""
    padded = []
    for name, texts in columns:
        widest = _widest((name, texts))
        if name in _NUMBERS:
            padded.append([" " * (widest - cell_len(text)) + text for text in (name, *texts)])
        else:
            padded.append([text + " " * (widest - cell_len(text)) for text in (name, *texts)])
    heading, *rows = (" " + (" " * _GAP).join(row) for row in zip(*padded, strict=True))
    rule = " " + "─" * (_width(columns) - 1)
    return Text.assemble("\n", (heading, "bold"), "\n", "\n".join([rule, *rows]), "\n", no_wrap=True)


def _folded(columns: Sequence[tuple[str, Sequence[str]]]) -> Table:
    table = report_table()
    for name, _ in columns:
        table.add_column(name, justify="right" if name in _NUMBERS else "left", overflow="fold")
    for row in zip(*(texts for _, texts in columns), strict=True):
        table.add_row(*row)
    return table
