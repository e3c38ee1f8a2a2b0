"""``kiel-groups mirror``: copy topics to another cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import click

from kiel_groups.cli.commands.mirror_offsets import offsets
from kiel_groups.cli.commands.mirror_reverse import reverse
from kiel_groups.cli.commands.mirror_verify import verify
from kiel_groups.cli.parameters.mirror_clusters import TARGET_WAIT_S, MirrorClusters, mirror_options
from kiel_groups.cli.parameters.options import (
    SERVER_WAIT_S,
    json_option,
    log_format_option,
    metrics_port_option,
    quiet_option,
    session_timeout_option,
    verbose_option,
)
from kiel_groups.cli.terminal.messages import DONE, EPILOG, FAILED, Lines

if TYPE_CHECKING:
    from kiel_groups.mirror.mirror_view import MirrorView
    from kiel_groups.ops.loaded_groups import Logs
    from kiel_groups.workers.plugins.secret_references import SecretReferences

#: The name of the file of ``--target-properties`` in the stored settings.
_PROPERTIES = "target.properties"

#: The options for settings of the connector, by the names with which errors begin.
_OPTIONS = {
    "target.bootstrap.servers": "--to",
    "topics": "--topics",
    "target.topic.format": "--topic-format",
    "target.compression.type": "--compression",
    "target.properties": "--target-properties",
    "timestamp.field": "--timestamp-field",
    "dead.letter.topic": "--dead-letter-topic",
}


@click.group(epilog=EPILOG)
def mirror() -> None:
    """Copy topics of any Kafka from 0.8 on to a cluster of 0.11 or later, and show how far the copies are."""


@mirror.command(epilog=EPILOG)
@mirror_options(needs_target=True)
@click.option(
    "--topics",
    required=True,
    metavar="NAMES",
    help="The topics, separated by commas. In a name, * matches any characters, and ? matches one.",
)
@click.option(
    "--exactly-once", is_flag=True, help="Write each record once, also after a crash, by transactions of the target."
)
@click.option(
    "--tasks",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    metavar="N",
    help="The most tasks of the mirror, in all its processes together.",
)
@click.option(
    "--topic-format",
    metavar="TEXT",
    help="The names of the topics on the target, as 'old.${topic}'.  [default: the same names]",
)
@click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    help="How records are compressed on the target.  [default: lz4]",
)
@click.option(
    "--timestamp-field",
    metavar="NAME",
    help="The field of JSON values that has a record's time.  [default: the time of mirroring]",
)
@click.option("--headers", is_flag=True, help="Give each record headers with its partition and offset on the source.")
@click.option(
    "--dead-letter-topic",
    metavar="NAME",
    help="A topic of the target for records that it never takes: too large, or without a key in a compacted topic. "
    " [default: such a record ends the mirror]",
)
@click.option(
    "--set", "more", multiple=True, metavar="NAME=VALUE", help="Another setting of the connector; can be repeated."
)
@click.option(
    "--until-caught-up", is_flag=True, help="End when all records are mirrored that the source had at the start."
)
@session_timeout_option("How long other processes of this mirror wait for the tasks of this one if it dies.")
@metrics_port_option
@quiet_option
@log_format_option
@verbose_option
@click.pass_obj
def start(
    lines: Lines,
    /,
    *,
    clusters: MirrorClusters,
    topics: str,
    exactly_once: bool,
    tasks: int,
    headers: bool,
    more: Sequence[str],
    until_caught_up: bool,
    session_timeout_ms: int,
    metrics_port: int | None,
    quiet: bool,
    verbose: bool,
    **texts: str | None,
) -> int:
    """
    Mirror topics in this process until Ctrl-C or SIGTERM.

    The topics are created on the target as they are on the source. A later start with the same --from and --name
    continues where the last one ended, and may have other options. Processes that run at the same time, on one machine
    or several, share the tasks of the mirror; they must have the same options.

    If a task fails, the process that runs it ends with exit status 1 and the cause, and the others try the task again.
    The target acknowledges records before their positions are stored in the source's ZooKeeper, so a crash loses none.
    Without --exactly-once, records may be written again after a crash.
    """
    from kiel_groups.cli.terminal.messages import show_logs
    from kiel_groups.cli.terminal.mirror_run import MirrorRun
    from kiel_groups.mirror.mirror_view import read_mirror
    from kiel_groups.rest.settings import RestSettings
    from kiel_groups.workers.execution.worker_settings import WorkerSettings
    from kiel_groups.workers.plugins.secret_references import SecretReferences

    show_logs(lines, verbose=verbose, timed=not until_caught_up)
    options = {
        "connector.class": "Mirror",
        "name": clusters.name,
        "tasks.max": str(tasks),
        "source.zookeeper": clusters.source,
        "target.bootstrap.servers": clusters.target,
        "topics": topics,
    }
    # The settings are secrets, so only a name for them is stored. Each process reads its own file.
    files = {} if clusters.properties_file is None else {_PROPERTIES: clusters.properties_file.absolute()}
    options |= {"target.properties": f"${{file:{_PROPERTIES}}}"} if files else {}
    options |= {"exactly.once": "true"} if exactly_once else {}
    options |= {"headers.source": "true"} if headers else {}
    names = {option.removeprefix("--").replace("-", "_"): name for name, option in _OPTIONS.items()}
    options |= {names[option]: text for option, text in texts.items() if text is not None}
    config = options | _more_settings(more, options)
    settings = WorkerSettings(
        group=clusters.group,
        zookeeper=clusters.source,
        brokers=clusters.source_brokers(),
        rest=RestSettings(port=0),
        plugin_classes=["installed"],
        secrets=SecretReferences(files=files),
        session_timeout_ms=session_timeout_ms,
    )
    config["source.bootstrap.servers"] = settings.brokers
    check = partial(_checked_topics, clusters.name, config, settings.secrets, waits=until_caught_up)
    logs = _logs(settings.brokers, check())
    first = read_mirror(clusters.source, clusters.group, clusters.name, timeout_s=SERVER_WAIT_S)
    _check_stored(lines, first, config, quiet=quiet)
    run = MirrorRun(
        clusters=clusters,
        config=config,
        worker=settings,
        first=first,
        logs=logs if until_caught_up else None,
        check=check,
        lines=lines,
        quiet=quiet,
        metrics_port=metrics_port,
    )
    return run.run()


def _more_settings(given: Sequence[str], options: Mapping[str, str]) -> dict[str, str]:
    """
    Parse settings that the user gives as ``NAME=VALUE``.

    Raises:
        ConfigError: A text has another form, or names a setting that does not exist or has an option.
    """
    from kiel_groups.errors import ConfigError
    from kiel_groups.mirror.connector import MirrorConnector
    from kiel_groups.workers.plugins.standard_keys import definition_of

    definition, found = definition_of(MirrorConnector), {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ConfigError(f"--set: {name!r} given; expected NAME=VALUE, such as batch.records=5000")
        if name in options or name in _OPTIONS:
            raise ConfigError(f"--set: {name} has an option of its own, {_OPTIONS.get(name, 'which has set it')}")
        if name not in definition:
            near = definition.nearest(name)
            raise ConfigError(f"--set: there is no setting {name!r}" + (f"; did you mean {near!r}?" if near else ""))
        found[name] = value
    return found


def _checked_topics(
    name: str,
    config: Mapping[str, str],
    secrets: SecretReferences,
    *,
    waits: bool,
    awaited: Collection[str] | None = None,
) -> Mapping[str, int]:
    """
    Check the settings and both clusters, without a change. Return the number of partitions of each topic.

    If the command ``waits`` for all topics, none may be stopped. Only problems of ``awaited`` topics count, if given.

    Raises:
        KielGroupsError: There is a mistake, or a cluster does not answer.
    """
    from kiel_groups.errors import ConfigError
    from kiel_groups.mirror.connector import MirrorConnector
    from kiel_groups.workers.plugins.connector_checks import checked_config

    try:
        settings = checked_config(MirrorConnector, config, secrets).settings
        return MirrorConnector().checked_topics(
            name, settings, timeout_s=TARGET_WAIT_S, must_move=waits, awaited=awaited
        )
    except ConfigError as error:
        setting, colon, rest = str(error).partition(": ")
        raise ConfigError(f"{_OPTIONS.get(setting, setting)}{colon}{rest}") from error


def _logs(brokers: str, topics: Mapping[str, int]) -> Logs:
    """Return the logs of the topics. Raise KielGroupsError if the source does not answer."""
    import asyncio

    from kiel_groups.config import KAFKA_PORT, parse_hosts
    from kiel_groups.errors import KielGroupsError
    from kiel_groups.model import TopicPartition
    from kiel_groups.ops.loaded_groups import find_logs

    partitions = [TopicPartition(topic, number) for topic, count in topics.items() for number in range(count)]
    logs = asyncio.run(find_logs(parse_hosts(brokers, KAFKA_PORT, "brokers"), partitions))
    if logs.problem:
        raise KielGroupsError(f"the ends of the source's logs are not known: {logs.problem}")
    return logs


def _check_stored(lines: Lines, found: MirrorView, config: Mapping[str, str], *, quiet: bool) -> None:
    """
    Check that the stored connector, if there is one, is this mirror. Unless ``quiet``, print which settings change.

    Raises:
        ConfigError: The name belongs to another connector, or processes run the mirror with other settings.
    """
    from kiel_groups.cli.terminal.mirror_run import changed_settings, check_same
    from kiel_groups.errors import ConfigError

    if (stored := found.connector) is None:
        return
    if stored.problem:
        raise ConfigError(f"--name: the connector {found.name!r} cannot be used: {stored.problem}")
    kind = stored.config.get("connector.class", "")
    if kind.replace(":", ".").rpartition(".")[2].removesuffix("Connector") != "Mirror":
        raise ConfigError(f"--name: {found.name!r} is the name of a connector of the class {kind}; choose another name")
    if found.group.workers:
        check_same(found.name, stored.config, config)
    changed = changed_settings(stored.config, config)
    if changed and not quiet:
        lines.say("info", f"the settings of the mirror {found.name!r} change: {', '.join(changed)}")
    if stored.config.get("exactly.once", "").lower() == "true" and "exactly.once" in changed:
        lines.say(
            "warning", f"the mirror {found.name!r} has written exactly once, and no longer does: give --exactly-once"
        )


@mirror.command(epilog=EPILOG)
@mirror_options(needs_target=False)
@json_option
@click.pass_obj
def status(lines: Lines, /, *, clusters: MirrorClusters, as_json: bool) -> int:
    """
    Show how far a mirror is: its positions, its lag, its checkpoints, and its tasks.

    The positions are those in the source's ZooKeeper. The target is asked for topics that were turned round, and how
    much of them is left to copy back. --json also has the last checkpoints on the target, and a checkpoint before its
    position is a problem. The exit status is 1 if there is a problem, such as a failed task, or a
    cluster that does not answer. A mirror that no process runs is none.
    """
    from kiel_groups.cli.terminal.mirror_report import mirror_document, mirror_problems, mirror_report
    from kiel_groups.cli.terminal.rendering import show_result
    from kiel_groups.mirror.mirror_view import with_checkpoints

    given = clusters.target_config if clusters.target else clusters.properties
    found = with_checkpoints(clusters.read_mirror(), given, timeout_s=SERVER_WAIT_S)
    show_result(mirror_document(found), *mirror_report(found), as_json=as_json)
    return FAILED if any(mirror_problems(found)) else DONE


for command in (offsets, reverse, verify):
    mirror.add_command(command)
