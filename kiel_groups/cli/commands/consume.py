"""``kiel-groups consume``."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import click

from kiel_groups.allocators import ALLOCATORS
from kiel_groups.cli.parameters.cluster_address import complete_allocators, complete_groups, complete_topics
from kiel_groups.cli.parameters.options import (
    SERVER_WAIT_S,
    Seconds,
    brokers_option,
    coordination_option,
    json_lines_option,
    key_separator_option,
    log_format_option,
    metrics_port_option,
    optional_zookeeper_option,
    quiet_option,
    refuse_given,
    refuse_zookeeper,
    separator_bytes,
    source_of,
    verbose_option,
)
from kiel_groups.cli.terminal.messages import EPILOG, READER_GONE, Lines
from kiel_groups.errors import ConfigError, NoOffsetsError
from kiel_groups.ops.actions.cluster_address import BROKERS, ClusterAddress
from kiel_groups.wording import counted

if TYPE_CHECKING:
    from kiel_groups.cli.terminal.record_printer import RecordLine
    from kiel_groups.clients import GroupedConsumer, SingleConsumer
    from kiel_groups.model import TopicPartition

    Subscribe = Callable[[], Awaitable[None]]


#: The options that need --group, and those that --group excludes.
_OF_A_GROUP = ("pattern", "allocator", "session_timeout_ms", "instance_id", "capacity", "rack", "store")
_WITHOUT_A_GROUP = ("partitions",)
#: The options that need a group in ZooKeeper.
_IN_ZOOKEEPER = {
    "store": "brokers store the offsets of their groups",
    "instance_id": "groups of brokers have no static members yet",
    "rack": "leaders of groups of brokers do not know the racks of partitions",
}

_ZOOKEEPER_SESSION_MS, _BROKERS_SESSION_MS = 10_000, 30_000
#: After how long a member of a group of brokers looks for new topics of its pattern. The default of consumers is five
#: minutes, which is long for a user who watches the output.
_PATTERN_AGE_MS = 30_000


@click.command(epilog=EPILOG)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...", shell_complete=complete_topics)
@brokers_option
@coordination_option("What coordinates the group: ZooKeeper, or the brokers (Kafka 0.9 or later).")
@optional_zookeeper_option
@click.option(
    "--group",
    metavar="NAME",
    help="The group to join; without one, all partitions are read and no offsets are committed.",
    shell_complete=complete_groups,
)
@click.option("--no-group", is_flag=True, help="Ignore a group that the environment or the file names.")
@click.option(
    "--pattern",
    metavar="REGEX",
    help="Instead of topics: all topics whose names match this regular expression from their beginning, also those that"
    " are created later. In a group only.",
)
@click.option(
    "--from",
    "start",
    metavar="WHERE",
    help="Where to start: earliest, latest, an offset, -N for the last N of each partition, a time (UTC), or how long"
    " ago: 10m, 2h. In a group earliest or latest, for partitions without an offset.  [default: latest; in a group,"
    " earliest]",
)
@click.option(
    "--partition",
    "partitions",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="N",
    help="Read this partition only; can be repeated. Not in a group.",
)
@json_lines_option
@key_separator_option
@click.option(
    "-f",
    "--format",
    "template",
    metavar="TEXT",
    help=r"Print records in this format, as kcat -f does: %t topic, %p partition, %o offset, %k key, %s value, %K %S"
    r" their lengths (-1 for null), %R the value's length as 4 bytes, %% a percent sign, \n \r \t \\ \xNN; %T is -1 and"
    " %h empty, as Kafka 0.8 has no timestamps and headers. No newline is added.",
)
@click.option(
    "--max",
    # The name of this option in Kafka's console consumer.
    "--max-messages",
    "most",
    type=click.IntRange(min=1),
    metavar="N",
    help="End after this many records. With '| head' instead, more records are committed than are shown.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=Seconds(least=0.001, is_optional=False),
    metavar="SECONDS",
    help="End when no record has arrived for this long, since the start or the last record.",
)
@click.option(
    "--allocator",
    metavar="NAME",
    help=f"Used if this member leads: {', '.join(ALLOCATORS)}, an installed one,"
    " or your MODULE:FUNCTION. With brokers also Java's roundrobin, and several by commas, of which the group takes the"
    " first that all members offer.  [default: round_robin; with brokers range,roundrobin]",
    shell_complete=complete_allocators,
)
@click.option(
    "--session-timeout-ms",
    type=int,
    metavar="MS",
    help=f"How long a dead member keeps its partitions.  [default: {_ZOOKEEPER_SESSION_MS}; with brokers,"
    f" {_BROKERS_SESSION_MS}]",
)
@click.option(
    "--instance-id",
    metavar="NAME",
    help="Make this a static member of a group in ZooKeeper: if it restarts under this name within a minute, it gets"
    " the same partitions.",
)
@click.option(
    "--capacity",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    metavar="NUMBER",
    help="This member's share in relation to others', for the allocators sticky, weighted and lag_aware.",
)
@click.option("--rack", metavar="NAME", help="Where this member runs, for the allocator rack_aware.")
@click.option(
    "--store",
    type=click.Choice(["zookeeper", "broker-v0", "broker-v1"]),
    default="zookeeper",
    show_default=True,
    help="Where offsets of groups in ZooKeeper are committed; all members of a group must agree.",
)
@click.option(
    "--on-bad-record",
    type=click.Choice(["raise", "skip"]),
    default="raise",
    show_default=True,
    help="What to do at a damaged record: end with an error before it, or skip it.",
)
@metrics_port_option
@quiet_option
@log_format_option
@verbose_option
@click.pass_context
def consume(
    context: click.Context,
    /,
    *,
    topics: tuple[str, ...],
    as_json: bool,
    key_separator: str | None,
    template: str | None,
    most: int | None,
    timeout_s: float | None,
    metrics_port: int | None,
    quiet: bool,
    verbose: bool,
    **options: Any,
) -> int:
    """
    Print the values of records, one per line, as a member of a group or without a group.

    Members of the same group share the partitions of the topics, and commit the offsets of the records that they have
    printed. Without a group, no offsets are committed. After Ctrl-C, a member leaves the group at once.
    """
    import asyncio

    from kiel_groups.cli.terminal.messages import show_logs
    from kiel_groups.cli.terminal.record_printer import RecordPrinter, standard_output
    from kiel_groups.config import check_name
    from kiel_groups.rest.metrics_text import serving_metrics

    lines = context.ensure_object(Lines)
    show_logs(lines, verbose=verbose, timed=True)
    if bool(topics) == (options["pattern"] is not None):
        raise click.UsageError("Name topics, or give --pattern, and not both.", context)
    for topic in topics:
        check_name(topic, "topic")
    line = _line(context, template, separator_bytes(key_separator), as_json=as_json)
    if options.pop("no_group"):
        refuse_given(context, ("group",), "does not go with '--no-group'")
        options["group"] = None
    reader = (_alone if options["group"] is None else _in_group)(context, topics, options)
    printing = RecordPrinter(reader.consumer, standard_output(), line, most=most, timeout_s=timeout_s)

    async def run() -> int:
        async with serving_metrics(reader.consumer.metrics, metrics_port):
            return await printing.run(reader.subscribe)

    status = asyncio.run(run())
    if not quiet and status != READER_GONE:
        printed = counted(printing.printed, "record", "records")
        rate = "" if printing.rate is None else f", {printing.rate:,.0f} records/s from the first to the last"
        lines.say("info", f"printed {printed} in {printing.took_s:.1f} s{rate}")
    return status


def _line(context: click.Context, template: str | None, key_separator: bytes | None, *, as_json: bool) -> RecordLine:
    """
    Return the function that formats records, as the options choose.

    Raises:
        ConfigError: The template is not valid.
        click.UsageError: The command line has another option for the format besides ``--format``.
    """
    from kiel_groups.cli.terminal.record_printer import json_line, parse_format, plain_line

    if template is None:
        return json_line if as_json else plain_line(key_separator)
    refuse_given(context, ("as_json", "key_separator"), "does not go with '--format'")
    return parse_format(template)


class _Reader(NamedTuple):
    """A consumer that is not connected yet, and the function that connects and subscribes it."""

    consumer: GroupedConsumer | SingleConsumer
    subscribe: Subscribe


def _in_group(context: click.Context, topics: Sequence[str], options: dict[str, Any]) -> _Reader:
    """
    Check the options, the topics and the group, and return a reader that joins the group.

    Raises:
        click.UsageError: An option is missing, has no effect in a group, or has an invalid value.
        KielGroupsError: A topic does not exist, ZooKeeper does not answer, or a setting is not valid.
    """
    from kiel_groups.clients import GroupedConsumer
    from kiel_groups.group.topic_patterns import compiled_pattern

    aside = _named_elsewhere(context)
    refuse_given(context, _WITHOUT_A_GROUP, f"does not go with '--group'; a group shares all partitions{aside}")
    start = options["start"]
    by_brokers = options["coordination"] == BROKERS
    coordination = _by_brokers(context, options) if by_brokers else _by_zookeeper(context, options)
    if start not in (None, "earliest", "latest"):
        why = f"{start!r} given; a group resumes at its offsets; without any it starts 'earliest' or 'latest'{aside}."
        raise click.BadParameter(why, context, param_hint="'--from'")
    if options["pattern"] is not None:
        compiled_pattern(options["pattern"])
    consumer = GroupedConsumer(
        options["brokers"],
        options["group"],
        session_timeout_ms=options["session_timeout_ms"],
        on_bad_record=options["on_bad_record"],
        auto_offset_reset="latest" if start == "latest" else "earliest",
        **coordination,
    )
    hosts = options["brokers" if by_brokers else "zookeeper"]
    cluster = ClusterAddress(options["coordination"], hosts, SERVER_WAIT_S)
    notices = _checked_names(cluster, topics, options["pattern"], options["group"])

    async def join() -> None:
        await consumer.subscribe(topics, options["pattern"])
        for notice in () if context.params["quiet"] else notices:
            context.ensure_object(Lines).say("info", notice)

    return _Reader(consumer, join)


def _by_zookeeper(context: click.Context, options: dict[str, Any]) -> dict[str, Any]:
    """Return the consumer's arguments for a group in ZooKeeper. Raise an error for a missing or wrong option."""
    from kiel_groups.cli.parameters.function_loading import load_allocator

    if options["zookeeper"] is None:
        parameter = next(each for each in context.command.params if each.name == "zookeeper")
        why = "A group needs it. If brokers coordinate the group, give '--coordination brokers'."
        raise click.MissingParameter(why, context, parameter)
    return {
        "zk_hosts": options["zookeeper"],
        "partition_allocator": load_allocator(options["allocator"], "--allocator"),
        "instance_id": options["instance_id"],
        "capacity": options["capacity"],
        "rack": options["rack"],
        "store": options["store"],
        "zk_timeout_ms": round(SERVER_WAIT_S * 1000),
    }


def _by_brokers(context: click.Context, options: dict[str, Any]) -> dict[str, Any]:
    """Return the consumer's arguments for a group of brokers. Raise UsageError or ConfigError for a wrong option."""
    from kiel_groups.cli.parameters.function_loading import load_assignors

    refuse_zookeeper(context)
    for name, why in _IN_ZOOKEEPER.items():
        refuse_given(context, (name,), f"does not go with '--coordination brokers': {why}")
    return {
        "coordination": BROKERS,
        "partition_allocator": load_assignors(options["allocator"], "--allocator"),
        "capacity": options["capacity"],
        **({"metadata_max_age_ms": _PATTERN_AGE_MS} if options["pattern"] is not None else {}),
    }


def _named_elsewhere(context: click.Context) -> str:
    """Return a hint that names the variable or file that sets the group, or "" if the command line sets it."""
    group = next(each for each in context.command.params if each.name == "group")
    source = source_of(context, group)
    return f"; the group is named in {source}, and '--no-group' ignores it" if source else ""


_DURATION = re.compile(r"(\d+)([smhd])")
_TAIL = re.compile(r"-0*([1-9][0-9]*)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Offset(int):
    """An offset to start at. A plain int in a ``Position`` is BEGINNING or END instead."""


class Tail(int):
    """A number of offsets, 1 or more. Reading starts this number of offsets before the end of each partition."""


#: BEGINNING, END, an offset, a number of offsets before the end, a time, or how long ago.
Position: TypeAlias = int | Offset | Tail | datetime | timedelta


def parse_position(text: str) -> Position:
    """
    Parse the start position of a consumer without a group.

    The text is ``earliest``, ``latest``, an offset, a time in ISO 8601, or the time that has passed since then, such as
    ``90s``, ``10m``, ``2h`` or ``7d``. Or it is ``-N``, for N offsets before the end of each partition.

    Raises:
        ConfigError: The text has another form.
    """
    if text in ("earliest", "latest"):
        from kiel_groups.clients import BEGINNING, END

        return {"earliest": BEGINNING, "latest": END}[text]
    try:
        if text.isascii() and text.isdigit():
            return Offset(text)
        if tail := _TAIL.fullmatch(text):
            return Tail(tail[1])
        if duration := _DURATION.fullmatch(text):
            return timedelta(**{_UNITS[duration[2]]: int(duration[1])})
        return datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"--from: {text!r:.80} given; expected 'earliest', 'latest', an offset, '-N' for the last N (1 or more) of"
            " each partition, a time such as '2026-11-21T17:45', or how long ago: '90s', '10m', '2h', '7d'"
        ) from None


def _alone(context: click.Context, topics: Sequence[str], options: dict[str, Any]) -> _Reader:
    """
    Check the options, and return a reader without a group.

    Raises:
        click.UsageError: An option needs a group.
        ConfigError: A setting is not valid.
    """
    from kiel_groups.clients import SingleConsumer

    refuse_given(context, _OF_A_GROUP, "goes with '--group' only")
    start = parse_position(options["start"] or "latest")
    consumer = SingleConsumer(options["brokers"], on_bad_record=options["on_bad_record"], auto_offset_reset="none")
    return _Reader(consumer, lambda: _start(consumer, options["brokers"], topics, start, options["partitions"] or None))


async def _start(
    consumer: SingleConsumer, brokers: str, topics: Sequence[str], start: Position, partitions: Sequence[int] | None
) -> None:
    from kiel_groups.clients import BEGINNING

    await consumer.connect()
    if not isinstance(start, Offset | Tail):
        await consumer.subscribe(topics, start, partitions)
        return
    await consumer.subscribe(topics, BEGINNING, partitions)
    ranges = await _log_ranges(consumer, brokers)
    for partition, (first, end) in sorted(ranges.items()):
        if isinstance(start, Offset) and not first <= start <= end:
            raise ConfigError(f"--from: {start} given; the log of {partition} has {first} to {end}")
    for partition, (first, end) in ranges.items():
        consumer.seek(partition, max(first, end - start) if isinstance(start, Tail) else start)


async def _log_ranges(consumer: SingleConsumer, brokers: str) -> dict[TopicPartition, tuple[int, int]]:
    """
    Return the first and the next offset of the log of each partition that is assigned to a consumer.

    The consumer must be positioned at the beginning of each log.

    Raises:
        NoOffsetsError: A leader did not answer.
    """
    from kiel_groups.config import KAFKA_PORT, parse_hosts
    from kiel_groups.ops.loaded_groups import find_log_ends

    ends = await find_log_ends(parse_hosts(brokers, KAFKA_PORT, "brokers"), consumer.assignment())
    if ends.problem:
        raise NoOffsetsError(f"--from: where the logs end is unknown: {ends.problem}")
    return {partition: (await consumer.position(partition), end) for partition, end in ends.offsets.items()}


def _checked_names(cluster: ClusterAddress, topics: Sequence[str], pattern: str | None, group: str) -> list[str]:
    """
    Check that the topics exist, and return notices about what is often a misspelt name.

    Brokers are asked for all topics, because a broker may create a topic that a request names.

    Returns:
        A notice if the group does not exist yet, or if it has offsets but no member has ever joined. And one if no
        topic matches the pattern.

    Raises:
        UnknownTopicError: A topic does not exist.
        GroupConfigError: Brokers coordinate the group, and its members are programs, such as workers.
    """
    from kiel_groups.group.znodes.round_contents import refusal_by_programs
    from kiel_groups.ops.actions.topics import check_present

    names = cluster.topics().names()
    check_present(topics, names, cluster.place)
    unmatched = [] if pattern is None else _unmatched(pattern, names)
    view, similar = cluster.groups().look_up(group)
    if view is None:
        return [f"group {group!r} is new{f'; did you mean {similar!r}?' if similar else ''}", *unmatched]
    if cluster.is_of_brokers and not view.is_of_consumers:
        raise refusal_by_programs(group, view.protocol_type)
    is_new = view.state == "memberless" and view.partitions
    new = [f"group {group!r} has had no member so far; it starts at the offsets that it has"] if is_new else []
    return [*new, *unmatched]


def _unmatched(pattern: str, topics: Iterable[str]) -> list[str]:
    """Return a notice if a pattern matches none of the topics. The log of the member says why a pattern is refused."""
    from kiel_groups.model import INTERNAL_TOPICS
    from kiel_groups.pattern_process import compare

    with suppress(OSError, RuntimeError):
        found = compare({pattern: sorted(set(topics) - INTERNAL_TOPICS)}).get(pattern)
        if isinstance(found, list) and not any(found):
            return [f"no topic matches --pattern {pattern!r} so far; it is matched from the beginning of a name"]
    return []
