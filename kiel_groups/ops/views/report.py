"""Render reports for operators: findings, facts, members and partitions; 80 columns wide, unless names are long."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby, islice
from operator import itemgetter
from typing import Generic, Literal, NamedTuple, TypeAlias, TypeVar

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from kiel_groups.group.znodes.group_settings import HistoryEntry
from kiel_groups.group.znodes.layout import SPARK_GROUPS
from kiel_groups.model import MemberId, TopicPartition
from kiel_groups.ops.views.checks import Finding, short_name
from kiel_groups.ops.views.deletion import GroupDeletion
from kiel_groups.ops.views.group_view import CoordinatorView, GroupView, MemberView, PartitionView, Sight, lag_of
from kiel_groups.ops.views.lag_trend import PROBLEMS, Trend, trend_lines, worst_verdict
from kiel_groups.wire.consumer_protocol import PROTOCOL_TYPE
from kiel_groups.wording import counted, own_command, some, wrapped

#: The partitions that a report lists: all, only partitions with a problem, none, or at most a number, problems first.
Listed: TypeAlias = Literal["all", "wrong", "none"] | int

Row = TypeVar("Row")


class Column(NamedTuple, Generic[Row]):
    """A column of a table: its heading, the function that returns a row's text, and whether texts are aligned right."""

    heading: str
    text_of: Callable[[Row], str]
    is_right: bool = False
    most_width: int | None = None


#: How many topics of a member are named, if brokers coordinate the group.
_MOST_TOPICS = 2

#: The columns of lists of groups that have numbers.
_NUMBERS = frozenset({"members", "foreign", "generation", "lag", "partitions", "owns", "capacity"})

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def ago(then_ms: int | None, now_ms: int) -> str:
    """
    Return the age of a time as text, such as ``14 s ago``, or "" if the time is unknown.

    A time in the future counts as now, because the clocks of two machines may differ.
    """
    if not then_ms:
        return ""
    seconds = max(0, now_ms - then_ms) // 1000
    for size, unit in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


class Sentences:
    """
    Renders rows of a label and a sentence. A sentence that is longer than a line continues on the next line, below its
    start.

    Args:
        rows: The labels with their styles, and the sentences.
        wraps: Whether sentences are also wrapped in a file, as on a terminal of 80 columns.
    """

    def __init__(self, rows: Iterable[tuple[Text, str]], *, wraps: bool = True) -> None:
        self._rows = list(rows)
        self.wraps = wraps

    def changed(self, change: Callable[[str], str]) -> Sentences:
        """Return rows with the same labels, and with the result of ``change`` for each sentence."""
        return Sentences([(word, change(text)) for word, text in self._rows], wraps=self.wraps)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        indent = max((word.cell_len for word, _ in self._rows), default=0) + 2
        width, is_whole = max(1, options.max_width - indent), options.overflow == "ignore"
        for word, sentence in self._rows:
            for line in wrapped(sentence, width, divides_words=not is_whole):
                yield Text.assemble(word, " " * (indent - word.cell_len), line, overflow="ignore", no_wrap=True)
                word = Text()


def _mark(finding: Finding) -> Text:
    """Return the label of a finding: ``settling`` for a passing problem, otherwise ``wrong``."""
    return Text("settling", "yellow") if finding.passing else Text("wrong", "bold red")


def finding_rows(findings: Iterable[Finding], word_of: Callable[[Finding], Text] = _mark) -> Iterator[tuple[Text, str]]:
    """Yield the rows of ``Sentences`` for findings: a label and the text, then the remedy unless the problem passes."""
    for finding in findings:
        yield word_of(finding), finding.text
        if finding.remedy and not finding.passing:
            yield Text(), f"→ {finding.remedy}"


def _facts(facts: Iterable[tuple[str, str]]) -> Sentences:
    return Sentences(((Text(name, "dim"), text) for name, text in facts), wraps=False)


def _whole_lag(lag: str, partitions: Iterable[PartitionView], problem: str) -> str:
    """
    Return the text on the lag of a group.

    The text adds the reason why the lag is not fully known, the number of partitions without a committed offset, and
    the number of partitions for which ZooKeeper and Kafka have different offsets.
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


def _lag_text(partitions: Collection[PartitionView]) -> str:
    """
    Format the total lag of partitions.

    The text is ``?`` if no lag is known, ``≥ 12`` if some lags are unknown, and ``0 to 12`` if two stores differ.
    """
    whole = all(each.lag is not None for each in partitions)
    lag = lag_of(partitions)
    text = _number(lag) if whole or lag is None else f"≥ {lag:,}"
    least = sum(each.least_lag or 0 for each in partitions)
    return text if lag is None or least == lag else f"{least:,} to {text.removeprefix('≥ ')}"


def _listed_partitions(
    partitions: Iterable[PartitionView], named: Collection[TopicPartition], listed: Listed
) -> Collection[TopicPartition]:
    """
    Return the partitions that a report lists.

    Partitions in ``named``, and partitions whose lag is unknown, count as wrong. These partitions are listed first.
    """
    partitions = list(partitions)
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


def _topic_parts(
    partitions: Iterable[PartitionView], listed: Collection[TopicPartition], *columns: Column[PartitionView]
) -> Iterator[RenderableType]:
    """
    Yield a heading for each topic, and a table of its listed partitions.

    Args:
        partitions: The partitions of all topics, in the order of topics.
        listed: The partitions to list. The heading has the number of the other partitions.
        columns: The columns after partition, committed offset, log end and lag. If a partition has ``stores``, a column
            of the stores precedes these columns.
    """
    partitions = list(partitions)
    if any(each.stores for each in partitions):
        columns = (Column("store", _stores), *columns)
    for topic, group in groupby(partitions, key=lambda each: each.topic_partition.topic):
        of_topic = list(group)
        shown = [each for each in of_topic if each.topic_partition in listed]
        hidden = len(of_topic) - len(shown)
        aside = f": {hidden:,} of {len(of_topic):,} partitions are not listed; lag of all: {_lag_text(of_topic)}"
        yield Text.assemble((f"topic {topic}", "bold"), aside if hidden else "")
        if shown:
            yield report_table((*_OF_PARTITIONS, *columns), shown)


#: The names of stores for people.
_NAMES = {"zookeeper": "ZooKeeper", "kafka": "Kafka"}


def _stores(partition: PartitionView) -> str:
    """Return the stores that have the committed offset, or each store with its offset if the offsets differ."""
    if partition.is_disputed:
        return ", ".join(f"{_NAMES[store]} {offset:,}" for store, offset in partition.stores.items())
    return " and ".join(_NAMES[store] for store in partition.stores)


def _number(number: int | None) -> str:
    """Format a number, or return ``?`` for None."""
    return "?" if number is None else f"{number:,}"


_OF_PARTITIONS: tuple[Column[PartitionView], ...] = (
    Column("partition", lambda each: str(each.topic_partition.partition), is_right=True),
    Column("committed", lambda each: _number(each.committed), is_right=True),
    Column("log end", lambda each: _number(each.log_end) if each.exists else "gone", is_right=True),
    Column("lag", lambda each: _number(each.lag), is_right=True),
)


def report_table(columns: Sequence[Column[Row]], rows: Iterable[Row]) -> Table:
    """Return a table of rows in the style of reports."""
    # Rich would wrap a title to the width of the table, so a heading is a text above the table.
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        justify: Literal["left", "right"] = "right" if column.is_right else "left"
        table.add_column(column.heading, justify=justify, overflow="fold", max_width=column.most_width)
    for row in rows:
        table.add_row(*(column.text_of(row) for column in columns))
    return table


def topic_tables(
    partitions: Iterable[TopicPartition], columns: Sequence[Column[TopicPartition]]
) -> Iterator[RenderableType]:
    """Yield a heading for each topic, and a table of its partitions: their numbers, and then ``columns``."""
    number = Column[TopicPartition]("partition", lambda each: str(each.partition), is_right=True)
    for topic, of_topic in groupby(sorted(partitions), key=lambda partition: partition.topic):
        yield Text(f"topic {topic}", style="bold")
        yield report_table((number, *columns), of_topic)


class Listing:
    """
    Renders a table of columns, each with a heading and its texts.

    If the table is too wide, columns without any text are left out. If the table is still too wide, columns are folded.
    """

    def __init__(self, columns: Sequence[tuple[str, Sequence[str]]]) -> None:
        self._columns = columns

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        columns = self._columns
        if _width(columns) > options.max_width:
            columns = [each for each in columns if any(each[1])]
        yield _lines(columns) if _width(columns) <= options.max_width else _folded(columns)


#: The width of the gap between two columns of a ``report_table``.
_GAP = 3


def _width(columns: Sequence[tuple[str, Sequence[str]]]) -> int:
    return 1 + sum(_widest(each) for each in columns) + _GAP * (len(columns) - 1)


def _widest(column: tuple[str, Sequence[str]]) -> int:
    name, texts = column
    return max(map(cell_len, (name, *texts)))


def _lines(columns: Sequence[tuple[str, Sequence[str]]]) -> Text:
    """
    Return the text of a table whose columns fit on a line. ``_folded`` would return the same text.

    This function is faster: ``_folded`` takes a second for a list of 3,000 groups.
    """
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
    rows = list(zip(*(texts for _, texts in columns), strict=True))
    return report_table([Column(name, itemgetter(at), name in _NUMBERS) for at, (name, _) in enumerate(columns)], rows)


def groups_table(views: Iterable[GroupView], *, with_lag: bool) -> RenderableType:
    """
    Return a table with a row for each group of a cluster. ``with_lag`` requires views with offsets.

    If a group in ZooKeeper is not a group of consumers, a last column has the types of such groups. On a narrow
    terminal, empty columns are left out.
    """
    shown = list(views)
    lag = [("lag", [_group_lag(view) for view in shown])] if with_lag else []
    columns = [("group", [view.group for view in shown])]
    coordinators = [view.coordinator for view in shown if view.coordinator is not None]
    if coordinators:
        columns.append(("type", [view.protocol_type for view in shown]))
        columns.append(("members", [str(len(view.members)) for view in shown]))
        columns.append(("state", [view.state for view in shown]))
        columns.append(("coordinator", [coordinator.broker for coordinator in coordinators]))
        return Listing([*columns, *lag])
    columns.append(("members", ["?" if view.closed and not view.size else str(view.size) for view in shown]))
    columns.append(("foreign", [str(len(view.foreign_members) or "") for view in shown]))
    columns.append(("generation", [_generation(view) for view in shown]))
    columns.append(("state", [view.outline for view in shown]))
    columns += lag
    if not all(view.is_of_consumers for view in shown):
        columns.append(("type", ["" if view.is_of_consumers else view.protocol_type for view in shown]))
    return Listing(columns)


def _generation(view: GroupView) -> str:
    if view.generation is None:
        return "?" if view.closed else ""
    return str(view.generation)


def group_report(
    view: GroupView,
    findings: Sequence[Finding],
    *,
    place: str,
    lag_problem: str,
    now_ms: int,
    clock: str = "",
    listed: Listed = "all",
    generations: int = 0,
) -> list[RenderableType]:
    """
    Return the report on one group.

    Args:
        view: The group.
        findings: The group's problems.
        place: The cluster, as "in ZooKeeper at z:2181/x" or "at brokers b:9092".
        lag_problem: The reason why some log ends are unknown; "" if all are known.
        now_ms: Epoch milliseconds, for ages.
        clock: The time of day to show in the heading of successive reports, or "".
        listed: Which partitions to list. ``wrong`` lists partitions that have a finding or an unknown lag.
        generations: How many of the last generations to show.
    """
    at = f", {clock}" if clock else ""
    parts: list[RenderableType] = [Text(f"group {view.group} {place}{at}", style="bold")]
    if findings:
        parts += ["", Sentences(finding_rows(findings))]
    parts += ["", _facts(_group_facts(view, lag_problem, now_ms))]
    if generations and view.is_of_consumers:
        parts += [Text("\nhistory, newest first", style="bold"), history_table(view.history[:generations])]
    if view.members:
        ends = "the session that their ids end in" if view.coordinator is None else "the end of their ids"
        parts += [Text(f"\nmembers, by {ends}", style="bold"), report_table(_of_members(view, now_ms), view.members)]
    elif view.partitions:
        parts.append("")
    named = {partition for finding in findings for partition in finding.partitions}
    shown = _listed_partitions(view.partitions, named, listed)
    columns = [Column[PartitionView]("owner", lambda each: _owner(each, view.member_ids))]
    if view.coordinator is None:
        columns.insert(0, Column("commit", lambda each: ago(each.committed_ms, now_ms)))
    parts += _topic_parts(view.partitions, shown, *columns)
    return parts


def _group_facts(view: GroupView, lag_problem: str, now_ms: int) -> Iterator[tuple[str, str]]:
    if view.coordinator is not None:
        yield from _coordinator_facts(view, view.coordinator)
        has_lag = bool(view.partitions) or view.is_of_consumers
    elif view.is_of_consumers:
        yield from _consumer_facts(view, now_ms)
        has_lag = True
    else:
        yield from _program_facts(view, now_ms)
        has_lag = bool(view.partitions)
    if has_lag:
        yield "lag", _whole_lag(_group_lag(view), view.partitions, lag_problem)


def _consumer_facts(view: GroupView, now_ms: int) -> Iterator[tuple[str, str]]:
    group_state, settings = view.group_state, view.settings
    seen = "readable partitions" if view.closed else "partitions"
    yield "state", f"{view.state}: {view.owned:,} of {len(view.partitions):,} {seen} are owned"
    if view.state == "memberless":
        yield "offsets", f"{_committer(view.group)}, which is not a member; a member that joins would take over from it"
    yield "leader", _leader(view)
    if group_state is not None:
        yield "generation", f"{group_state.generation}, {group_state.state}, {ago(group_state.created_at_ms, now_ms)}"
        yield "cause", group_state.cause
        yield "allocator", group_state.allocator
    if settings is not None:
        yield "settings", f"store {settings.store}, mode {settings.mode}, offset reset {settings.auto_offset_reset}"
    if view.foreign_members:
        yield "foreign", some(member.name for member in view.foreign_members)
    if follows := ", ".join(_follows(view)):
        yield "config", follows
    if view.weights:
        weighed = counted(view.weights, "partition", "partitions")
        yield "weights", f"of {weighed}; {own_command('weights', 'show', view.group)} shows them"


def _program_facts(view: GroupView, now_ms: int) -> Iterator[tuple[str, str]]:
    newest = view.round
    yield "state", f"{view.state}: {counted(view.size, 'member', 'members')}"
    if view.are_workers:
        yield "type", f"workers, which share connectors; {own_command('workers', 'describe', view.group)} shows them"
    else:
        yield "type", f"{view.protocol_type or '?'}: programs, which share other work than partitions"
    if view.workers and not view.members:
        yield "", f"{own_command('describe', view.group, '--coordination', 'brokers')} shows their membership"
    else:
        yield "leader", _leader(view)
    if newest is not None:
        yield "generation", f"{newest.generation}, {newest.state}, {ago(newest.created_at_ms, now_ms)}"
        yield "cause", newest.cause
        yield "protocol", newest.protocol or "not chosen yet"
    if view.foreign_members:
        yield "foreign", some(member.name for member in view.foreign_members)


def _coordinator_facts(view: GroupView, coordinator: CoordinatorView) -> Iterator[tuple[str, str]]:
    yield "state", view.state + _explained(view, coordinator)
    yield "coordinator", coordinator.broker
    if not view.is_of_consumers:
        yield "type", f"{view.protocol_type}: not a group of consumers; its members own no partitions"
    if view.are_workers:
        yield "", f"{own_command('workers', 'describe', view.group)} shows workers of kiel-groups, but not Java's"
    if coordinator.strategy:
        yield "strategy", coordinator.strategy


def _explained(view: GroupView, coordinator: CoordinatorView) -> str:
    if view.state == "memberless":
        return ": no member has ever joined; another program, or 'offsets copy', has set its offsets"
    if view.state == "rebalancing":
        return f" ({coordinator.state}): brokers do not say which member owns what meanwhile"
    if view.is_of_consumers:
        return f": {view.owned:,} of {counted(view.partitions, 'partition is', 'partitions are')} assigned"
    return ""


def _committer(group: str) -> str:
    """
    Describe the program that sets the offsets of a group without members.

    A Spark query or an archive uses a group with a known prefix, unless it is configured with a group.
    """
    if group.startswith(SPARK_GROUPS):
        return "committed by a Spark query or an archive"
    return "set by 'offsets copy', or committed by another program, such as a Spark query or an archive"


def _follows(view: GroupView) -> Iterator[str]:
    """
    Yield the settings that operators have set in the group's ``config``. These settings override the leader's options.

    If leaders refuse the ``config``, yield only a hint to the finding about it.
    """
    dynamic_config = view.dynamic_config
    if dynamic_config is None:
        yield "refused, see above"
        return
    for name, value in dynamic_config.overrides.items():
        yield f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}"
    for broker, rack in dynamic_config.broker_racks:
        yield f"broker {broker} in rack {rack}"
    unknown = dynamic_config.unknown_drained(view.slots)
    for slot in sorted(dynamic_config.drained):
        if slot in unknown:
            yield f"drained {slot} (not a member)"
        elif slot in view.slots:
            yield f"drained {slot}"


def _group_lag(view: GroupView) -> str:
    if view.sight is Sight.PROGRAMS and not view.partitions:
        return ""
    return "?" if view.known_lag is None else _lag_text(view.partitions)


def _leader(view: GroupView) -> str:
    if view.leader is None:
        return "?" if view.closed else "none"
    spare = sum(candidate not in view.member_ids for candidate in view.candidates[1:])
    aside = "" if view.leader in view.member_ids else ", an allocator process"
    spares = counted(spare, "spare allocator process", "spare allocator processes")
    return f"{view.leader}{aside}; {spares}" if spare else view.leader + aside


def history_table(entries: Iterable[HistoryEntry], most_of_cause: int = 500) -> Table:
    """
    Return the table of a group's plans, with their times in UTC, for comparison with logs.

    Args:
        entries: The plans.
        most_of_cause: The length to which a longer cause is cut, in characters.
    """

    def cause(entry: HistoryEntry) -> str:
        return entry.cause if len(entry.cause) <= most_of_cause else f"{entry.cause[: most_of_cause - 1]}…"

    columns = (
        Column[HistoryEntry]("plan", lambda entry: str(entry.generation), is_right=True),
        Column[HistoryEntry]("time (UTC)", lambda entry: _utc(entry.created_at_ms)),
        Column[HistoryEntry]("leader", lambda entry: short_name(entry.leader), most_width=16),
        Column[HistoryEntry]("members", lambda entry: f"{entry.members:,}", is_right=True),
        Column[HistoryEntry]("moved", lambda entry: f"{entry.moved:,}", is_right=True),
        Column[HistoryEntry]("cause", cause),
    )
    return report_table(columns, entries)


def _utc(at_ms: int) -> str:
    """Return a time in epoch milliseconds as ``2026-11-28 03:12:45``, or "?" if it is out of the calendar's range."""
    try:
        return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return "?"


def _of_members(view: GroupView, now_ms: int) -> Sequence[Column[MemberView]]:
    """Return the columns of the table of members."""
    name, host = Column("member", _name), Column[MemberView]("host", lambda member: member.host, most_width=20)
    if view.coordinator is not None:
        client = Column[MemberView]("client", lambda member: member.client, most_width=20)
        topics = Column("topics", _if_known(lambda member: some(member.subscription or (), _MOST_TOPICS)))
        owned = Column("partitions", _if_known(lambda member: str(len(member.owned))), is_right=True)
        lag = Column("lag", _if_known(lambda member: _lag_text(member.owned)), is_right=True)
        return name, client, host, topics, owned, lag
    pid = Column[MemberView]("pid", lambda member: str(member.pid), is_right=True)
    joined = Column[MemberView]("joined", lambda member: ago(member.started_at_ms, now_ms))
    if not view.is_of_consumers:
        return name, host, pid, joined, Column("protocols", lambda member: ", ".join(member.protocols))
    share = Column[MemberView]("partitions", lambda member: member.share, is_right=True)
    columns: list[Column[MemberView]] = [name, host, pid, joined, share]
    columns.append(Column("lag", lambda member: _lag_text(member.owned), is_right=True))
    if any(member.pattern for member in view.members):
        columns.append(Column("pattern", lambda member: member.pattern or "", most_width=30))
    if any("capacity" in member.settings for member in view.members):
        columns.append(Column("capacity", lambda member: str(member.settings.get("capacity", 1)), is_right=True))
    if any("rack" in member.settings for member in view.members):
        columns.append(Column("rack", lambda member: str(member.settings.get("rack", ""))))
    return columns


def _name(member: MemberView) -> str:
    leads = " leads" if member.leads else ""
    return f"{short_name(member.member_id)}{leads}" + (f", {member.instance_id}" if member.instance_id else "")


def _if_known(text_of: Callable[[MemberView], str]) -> Callable[[MemberView], str]:
    """Return a function that shows "?" for a member with an unknown subscription, and otherwise calls ``text_of``."""
    return lambda member: "?" if member.subscription is None else text_of(member)


def _owner(partition: PartitionView, members: frozenset[MemberId]) -> str:
    owner = "none" if partition.owner is None else partition.owner
    if partition.owner in members:
        owner = short_name(owner)
    if partition.target in (None, partition.owner):
        return owner
    return f"{owner} → {short_name(partition.target)}"


def lag_report(
    group: str,
    partitions: Collection[PartitionView],
    lag_problem: str,
    trends: Mapping[TopicPartition, Trend] | None = None,
    listed: Listed = "all",
) -> list[RenderableType]:
    """
    Return the report on the lag of one group.

    Args:
        group: The group's name.
        partitions: The group's partitions, in the order of topics.
        lag_problem: The reason why some offsets or log ends are unknown; "" if all are known.
        trends: The trend of each partition, or None if the lag was not sampled.
        listed: Which partitions to list. ``wrong`` lists partitions whose trend is a problem, or whose lag is unknown.
    """
    found = trends or {}
    named = {partition for partition, trend in found.items() if trend.verdict in PROBLEMS}
    columns = [] if trends is None else [Column[PartitionView]("trend", lambda each: _verdict(found, each))]
    shown = _listed_partitions(partitions, named, listed)
    lag = f"{_lag_text(partitions)}, in {counted(partitions, 'partition', 'partitions')}"
    parts = [
        *_topic_parts(partitions, shown, *columns),
        f"lag of group {group}: {_whole_lag(lag, partitions, lag_problem)}",
    ]
    if trends is not None:
        parts += [f"trend of group {group}: {worst_verdict(trends)}", *(f"  {line}" for line in trend_lines(trends))]
    return parts


def _verdict(trends: Mapping[TopicPartition, Trend], partition: PartitionView) -> str:
    found = trends.get(partition.topic_partition)
    return "" if found is None else found.verdict


def lags_report(
    views: Sequence[GroupView],
    lag_problem: str,
    trends: Mapping[str, Mapping[TopicPartition, Trend]] | None = None,
    listed: Listed = "all",
) -> list[RenderableType]:
    """
    Return the report on the lags of several groups, and on their sum.

    Args:
        views: The groups, in the order of the report.
        lag_problem: The reason why some offsets or log ends are unknown; "" if all are known.
        trends: The trends of each group's partitions, or None if the lags were not sampled.
        listed: Which groups to list: ``all``, or the first groups up to this number. ``wrong`` and ``none`` list no
            group.
    """
    shown = views if listed == "all" else views[: listed if isinstance(listed, int) else 0]
    columns = [
        ("group", [view.group for view in shown]),
        ("partitions", [f"{len(view.partitions):,}" for view in shown]),
        ("lag", [_group_lag(view) for view in shown]),
    ]
    parts: list[RenderableType] = []
    if trends is not None:
        columns.append(("trend", [worst_verdict(trends[view.group]) for view in shown]))
        for view in shown:
            parts += [f"{view.group}: {line}" for line in trend_lines(trends[view.group])]
    if shown:
        parts = [Listing(columns), *parts]
    aside = f", of which {len(views) - len(shown):,} are not listed" if len(shown) < len(views) else ""
    partitions = [each for view in views for each in view.partitions]
    lag = _whole_lag(_lag_text(partitions), partitions, lag_problem)
    return [*parts, f"lag of {counted(views, 'group')}{aside}: {lag}"]


def deletion_report(lost: GroupDeletion, place: str, restore_file: str, now_ms: int) -> list[RenderableType]:
    """
    Return the report on the losses of a group's deletion. ``place`` and ``now_ms`` are as for ``group_report``.

    ``restore_file`` is the path of the restore file, or "" if there is nothing to restore.
    """
    facts = [("loses", loss) for loss in lost.losses or ("nothing but its name",)]
    facts += [("note", note) for note in lost.notes]
    if lost.committed_ms:
        facts.append(("last commit", ago(lost.committed_ms, now_ms)))
    facts.append(("restore file", restore_file or "none: there is nothing to restore"))
    kind = f" of type {lost.protocol_type}" if lost.protocol_type not in ("", PROTOCOL_TYPE) else ""
    return [Text(f"delete group {lost.group}{kind} {place}", style="bold"), _facts(facts), ""]
