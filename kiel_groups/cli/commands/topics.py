"""``kiel-groups topics list|brokers|create|describe|config|grow|delete``."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from kiel_groups.cli.parameters.cluster_address import complete_topics
from kiel_groups.cli.parameters.options import cluster_options, json_option, quiet_option, seconds_option
from kiel_groups.cli.terminal.changes import ChangeOptions, change_options
from kiel_groups.cli.terminal.messages import DONE, EPILOG, Lines
from kiel_groups.ops.actions.cluster_address import ClusterAddress
from kiel_groups.wording import counted, some

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from kiel_groups.ops.actions.topic_config import TopicConfigChange
    from kiel_groups.ops.actions.topics import TopicState
    from kiel_groups.ops.loaded_groups import Logs


_AT_LEAST_ONE = click.IntRange(min=1)
_MOST_NUMBERS = 10


@click.group(epilog=EPILOG)
def topics() -> None:
    """List, create, describe, configure, grow and delete topics; list brokers."""


@topics.command("list", epilog=EPILOG)
@cluster_options
@json_option
def list_topics(*, cluster: ClusterAddress, as_json: bool) -> int:
    """List all topics, by name."""
    from kiel_groups.cli.terminal.rendering import plain_table, show_result

    found = cluster.topics().sizes()
    rows = [(topic, f"{size.partitions:,}", str(size.replication)) for topic, size in found.items()]
    table = plain_table(("topic", "partitions", "replication"), rows, right=("partitions", "replication"))
    document = [{"topic": topic, **size._asdict()} for topic, size in found.items()]
    none = "there is no topic; 'kiel-groups topics create' creates one"
    show_result(document, table if found else none, as_json=as_json)
    return DONE


@topics.command(epilog=EPILOG)
@cluster_options
@json_option
def brokers(*, cluster: ClusterAddress, as_json: bool) -> int:
    """
    List the live brokers.

    Each line has the id and the address of a broker, and whether it is the controller, as far as that is known.
    """
    from kiel_groups.cli.terminal.rendering import plain_table, show_result

    found, controllers = cluster.topics().brokers(), {None: "?", False: "", True: "yes"}
    rows = [(str(each.broker), each.address or "none for this client", controllers[each.controller]) for each in found]
    table = plain_table(("broker", "address", "controller"), rows, right=("broker",))
    none = f"no broker is registered {cluster.place}"
    show_result([each._asdict() for each in found], table if found else none, as_json=as_json)
    return DONE


@topics.command(epilog=EPILOG)
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...")
@cluster_options
@click.option(
    "--partitions",
    type=_AT_LEAST_ONE,
    default=1,
    show_default=True,
    metavar="N",
    help="Number of partitions of each topic.",
)
@click.option(
    "--replication",
    type=_AT_LEAST_ONE,
    default=1,
    show_default=True,
    metavar="N",
    help="Number of replicas of each partition.",
)
@click.option(
    "--config",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of each topic, as retention.ms=3600000; can be repeated.",
)
@click.option("--if-missing", is_flag=True, help="Leave existing topics unchanged.")
@seconds_option("--wait", "How long to wait until enough brokers are registered.  [default: do not wait]")
@json_option
@quiet_option
@click.pass_obj
def create(
    lines: Lines,
    /,
    *,
    names: tuple[str, ...],
    cluster: ClusterAddress,
    partitions: int,
    replication: int,
    settings: tuple[str, ...],
    if_missing: bool,
    wait_s: float | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Create topics, and wait until every partition has a leader."""
    from kiel_groups.cli.terminal.rendering import show_json
    from kiel_groups.ops.actions.topic_config import check_settings
    from kiel_groups.ops.actions.topics import TopicSize, check_absent, check_topic

    config = _settings(settings, ())
    if not cluster.is_of_brokers:
        # Brokers check the settings of a request, and none in ZooKeeper.
        check_settings(config)
    wanted, found = list(dict.fromkeys(names)), cluster.topics()
    for name in wanted:
        check_topic(name, partitions)
    if wait_s is not None:
        found.await_brokers(replication, wait_s)
    existing: dict[str, TopicSize] = {}
    if if_missing:
        existing = {name: size for name, size in found.sizes().items() if name in wanted}
    else:
        check_absent(wanted, found.names())
    source = click.get_current_context().get_parameter_source("partitions")
    asked = None if source is click.core.ParameterSource.DEFAULT else partitions
    for name in wanted:
        if name in existing:
            _say_existing(lines, name, existing[name].partitions, asked, quiet=quiet)
            continue
        found.create(name, partitions, replication, config)
        if not quiet:
            lines.say("info", f"topic {name} created with {_partitions(partitions)}")
    if as_json:
        made = TopicSize(partitions, replication)
        sizes = {name: existing.get(name, made)._asdict() for name in wanted}
        show_json([{"topic": name, **size, "created": name not in existing} for name, size in sizes.items()])
    return DONE


def _say_existing(lines: Lines, name: str, partitions: int, wanted: int | None, *, quiet: bool) -> None:
    if wanted in (None, partitions):
        if not quiet:
            lines.say("info", f"topic {name} exists already")
        return
    assert wanted is not None
    grow = f"; 'kiel-groups topics grow {name} --partitions {wanted}' adds the rest" if wanted > partitions else ""
    lines.say("warning", f"topic {name} exists already, with {_partitions(partitions)} and not {wanted:,}{grow}")


def _partitions(count: int) -> str:
    return counted(count, "partition", "partitions")


@topics.command(epilog=EPILOG)
@click.argument("name", metavar="TOPIC", shell_complete=complete_topics)
@cluster_options
@click.option(
    "--partitions", type=_AT_LEAST_ONE, required=True, metavar="N", help="The new number of partitions in all."
)
@change_options
@quiet_option
@click.pass_obj
def grow(
    lines: Lines,
    /,
    *,
    name: str,
    cluster: ClusterAddress,
    partitions: int,
    how: ChangeOptions,
    quiet: bool,
) -> int:
    """
    Add partitions to a topic, which cannot be undone.

    Keys may map to other partitions from then on.
    """
    from kiel_groups.ops.actions.topics import check_growth, check_present

    found = cluster.topics()
    sizes = found.sizes()
    check_present([name], sizes, cluster.place)
    before = sizes[name].partitions
    check_growth(name, range(before), partitions)
    report = (
        f"{name}: {_partitions(before)} now, {partitions:,} after the change",
        "Keys may map to other partitions then, so records of one key are not in order",
        "across the change. Groups that read the topic rebalance. It cannot be undone.",
    )
    how.show({"topic": name, "before": before, "after": partitions}, *(() if quiet else report))
    if how.is_confirmed(f"Add {_partitions(partitions - before)} to {name}?"):
        found.grow(name, partitions)
        if not quiet:
            lines.say("info", f"topic {name} has {_partitions(partitions)} now")
    return DONE


@topics.command(epilog=EPILOG)
@click.argument("name", metavar="TOPIC", shell_complete=complete_topics)
@click.argument("settings", nargs=-1, metavar="[NAME=VALUE]...")
@click.option("--unset", multiple=True, metavar="NAME", help="Remove this setting of the topic; can be repeated.")
@cluster_options
@change_options
@click.pass_obj
def config(
    lines: Lines,
    /,
    *,
    name: str,
    settings: tuple[str, ...],
    unset: tuple[str, ...],
    cluster: ClusterAddress,
    how: ChangeOptions,
) -> int:
    """
    Show or change the settings of a topic.

    NAME=VALUE changes a setting, such as retention.ms=3600000. ZooKeeper has only the settings that the topic has
    itself; each broker has the others. With --coordination brokers, all settings are shown, with their sources, from
    Kafka 1.1 on.
    """
    from kiel_groups.ops.actions import topic_config as actions
    from kiel_groups.ops.views.config_view import SettingChange, changes_table

    values = _settings(settings, unset)
    wanted: dict[str, Any] = {"topic": name, "values": values, "unset": tuple(dict.fromkeys(unset))}
    change = cluster.ask(partial(actions.plan_in_zookeeper, **wanted), partial(actions.plan_by_brokers, **wanted))
    if not values and not unset:
        _show_config(change, by_brokers=cluster.is_of_brokers, as_json=how.as_json)
        return DONE
    names = sorted({**change.before, **change.after})
    table = changes_table(SettingChange(each, change.before.get(each), change.after.get(each)) for each in names)
    how.show({"topic": name, "before": change.before, "after": change.after}, f"{name}: settings of its own", table)
    if change.before == change.after:
        lines.say("info", f"topic {name} has these settings already")
    elif how.is_confirmed(f"Change the settings of {name}?"):
        cluster.ask(
            partial(actions.apply_in_zookeeper, change=change), partial(actions.apply_by_brokers, change=change)
        )
        lines.say("info", f"the settings of topic {name} are changed")
    return DONE


def _settings(given: Sequence[str], unset: Container[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise click.UsageError(f"{text!r} given; expected NAME=VALUE, such as retention.ms=3600000.")
        if name in values or name in unset:
            raise click.UsageError(f"{name!r} is given twice.")
        values[name] = value
    return values


def _show_config(change: TopicConfigChange, *, by_brokers: bool, as_json: bool) -> None:
    """Show the known settings of a topic. ZooKeeper has only the topic's own settings, and a line says so."""
    from kiel_groups.cli.terminal.rendering import plain_table, show_result

    settings = dict(sorted(change.settings.items()))
    rows = [(key, each.value, each.source) for key, each in settings.items()]
    report: list[RenderableType] = [plain_table(("setting", "value", "source"), rows)] if settings else []
    if not by_brokers:
        other = "other " if settings else ""
        report.append(f"{change.topic} has no {other}settings of its own; those of each broker apply")
    document = {"topic": change.topic, "settings": {key: each._asdict() for key, each in settings.items()}}
    show_result(document, *report, as_json=as_json)


@topics.command(epilog=EPILOG)
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics)
@cluster_options
@change_options
@quiet_option
@click.pass_obj
def delete(
    lines: Lines,
    /,
    *,
    names: tuple[str, ...],
    cluster: ClusterAddress,
    how: ChangeOptions,
    quiet: bool,
) -> int:
    """Delete topics with all their records."""
    from kiel_groups.ops.actions.topics import check_present

    wanted, found = list(dict.fromkeys(names)), cluster.topics()
    sizes = found.sizes()
    check_present(wanted, sizes, cluster.place)
    counts = {name: sizes[name].partitions for name in wanted}
    how.show({"topics": [{"topic": name, "partitions": count} for name, count in counts.items()]})
    if how.dry_run and not how.as_json:
        listed = ", ".join(f"{name} ({_partitions(count)})" for name, count in counts.items())
        lines.say("info", f"would delete {listed}")
    if not how.is_confirmed(f"Delete {', '.join(wanted)} with all records?"):
        return DONE
    for name in wanted:
        found.delete(name)
        if not quiet:
            lines.say("info", f"topic {name} deleted")
    return DONE


@topics.command(epilog=EPILOG)
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics)
@cluster_options
@json_option
@click.pass_obj
def describe(lines: Lines, /, *, names: tuple[str, ...], cluster: ClusterAddress, as_json: bool) -> int:
    """
    Show the partitions of topics.

    Each line has the leader of a partition, its replicas, those in sync (isr), and where its log starts and ends.
    """
    import asyncio

    from kiel_groups.cli.terminal.rendering import show_result
    from kiel_groups.ops.loaded_groups import find_logs

    states, brokers, alive = cluster.topics().describe(names)
    led = [each.topic_partition for state in states for each in state.partitions if each.leader is not None]
    logs = asyncio.run(find_logs(brokers, led))
    if logs.problem:
        lines.say("warning", f"where the logs start and end is not fully known: {logs.problem}")
    documents = [_as_json(state, logs, alive) for state in states]
    report: list[RenderableType] = []
    for state, document in zip(states, documents, strict=True):
        report += [*_title(state, alive), _table(document["partitions"])]
    show_result(documents, *report, as_json=as_json)
    return DONE


def _title(state: TopicState, alive: Container[int]) -> Iterator[str]:
    """Yield a line that describes a topic, and a line for each problem of the topic."""
    replication = max((len(each.replicas) for each in state.partitions), default=0)
    config = "".join(f", {key}={value}" for key, value in sorted((state.config or {}).items()))
    yield f"{state.topic}: {_partitions(len(state.partitions))}, replication {replication}{config}"
    if state.is_being_deleted:
        yield "  it is being deleted"
    if state.leaderless:
        yield f"  without a leader: {some(state.leaderless, _MOST_NUMBERS)}"
    if dead := [each.topic_partition.partition for each in state.partitions if _is_dead(each.leader, alive)]:
        yield f"  led by a dead broker (not registered): {some(dead, _MOST_NUMBERS)}"
    if state.under_replicated:
        yield f"  with replicas not in sync: {some(state.under_replicated, _MOST_NUMBERS)}"


def _is_dead(leader: int | None, alive: Container[int]) -> bool:
    """
    Return whether the leader of a partition is a broker that is not registered.

    If no replica is alive, ZooKeeper still names the last live replica as the leader.
    """
    return leader is not None and leader not in alive


def _table(partitions: Iterable[Mapping[str, Any]]) -> Table:
    """Return a table of a topic's partitions. ``partitions`` are those of the topic's JSON document."""
    from kiel_groups.cli.terminal.rendering import plain_table

    numbers = ("partition", "leader", "start", "end", "offsets")
    rows = [
        (
            str(each["partition"]),
            "none" if each["leader"] is None else f"{each['leader']}{' dead' if each['leader_is_dead'] else ''}",
            ",".join(map(str, each["replicas"])),
            ",".join(map(str, each["isr"])),
            "?" if (start := each["log_start"]) is None else str(start),
            "?" if (end := each["log_end"]) is None else str(end),
            "?" if start is None or end is None else f"{end - start:,}",
        )
        for each in partitions
    ]
    return plain_table(("partition", "leader", "replicas", "isr", "start", "end", "offsets"), rows, right=numbers)


def _as_json(state: TopicState, logs: Logs, alive: Container[int]) -> dict[str, Any]:
    return {
        "topic": state.topic,
        "config": None if state.config is None else dict(state.config),
        "being_deleted": state.is_being_deleted,
        "partitions": [
            {
                "partition": each.topic_partition.partition,
                "leader": each.leader,
                "leader_is_dead": _is_dead(each.leader, alive),
                "replicas": each.replicas,
                "isr": each.isr,
                "log_start": logs.starts.get(each.topic_partition),
                "log_end": logs.ends.get(each.topic_partition),
            }
            for each in state.partitions
        ],
    }
