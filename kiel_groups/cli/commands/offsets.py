"""``kiel-groups offsets show|reset|export|import|copy|delete``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kiel_groups.cli.parameters.cluster_address import complete_topics
from kiel_groups.cli.parameters.options import cluster_options, group_argument, json_option, seconds_option
from kiel_groups.cli.terminal.changes import ChangeOptions, change_options, restore_file_option, write_restore_file
from kiel_groups.cli.terminal.messages import DONE, EPILOG, FAILED, INTERRUPTED, Lines
from kiel_groups.errors import ConfigError, UnknownGroupError
from kiel_groups.ops.actions.cluster_address import ClusterAddress
from kiel_groups.wording import counted, own_command, some

if TYPE_CHECKING:
    from kiel_groups.model import TopicPartition
    from kiel_groups.ops.actions.offsets import OffsetsPlan
    from kiel_groups.ops.views.offset_changes import Selection, Target


_path = click.Path(dir_okay=False, path_type=Path)


def _parsed(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> Selection | None:
    """Return the partitions that ``--topic`` names, or None if the option is not given."""
    from kiel_groups.ops.views.offset_changes import parse_selection

    return parse_selection(names) if names and not context.resilient_parsing else None


topics_option = click.option(
    "--topic",
    "selection",
    multiple=True,
    callback=_parsed,
    metavar="TOPIC[:0,1]",
    shell_complete=complete_topics,
    help="A topic, or some of its partitions; may be repeated.",
)
all_topics_option = click.option("--all-topics", is_flag=True, help="All topics of the group.")
store_option = click.option(
    "--store",
    type=click.Choice(["zookeeper", "broker-v0", "broker-v1"]),
    help="Where a group of other clients, such as Java's, has its offsets.  [default: where some are found]",
)
new_option = click.option("--new", "is_new", is_flag=True, help="Begin the group if it does not exist.")


class _Change(NamedTuple):
    """The options that ``reset``, ``import``, ``copy`` and ``delete`` share."""

    cluster: ClusterAddress
    store: str | None
    how: ChangeOptions
    restore_file: Path | None
    timeout_s: float = 0.0


def _cluster_options(command: Callable[..., int]) -> Callable[..., int]:
    """
    Add the options of the cluster and ``--store`` to a command. Its function gets them as ``cluster`` and ``store``.

    The command raises UsageError for ``--store`` if brokers coordinate the group.
    """

    @store_option
    @cluster_options
    @wraps(command)
    def with_store(*, cluster: ClusterAddress, store: str | None, **options: Any) -> int:
        if cluster.is_of_brokers and store is not None:
            raise click.UsageError(
                "'--store' does not go with '--coordination brokers', whose groups have their offsets in Kafka.",
                click.get_current_context(),
            )
        return command(cluster=cluster, store=store, **options)

    return with_store


def _changes_offsets(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options in ``_Change`` to a command that changes offsets. Its function gets them as ``asked``."""

    @_cluster_options
    @change_options
    @restore_file_option("Where to write the former offsets.")
    @wraps(command)
    def with_change(**options: Any) -> int:
        asked = _Change(**{name: options.pop(name) for name in _Change._fields if name in options})
        return command(asked=asked, **options)

    return with_change


_timeout_option = seconds_option(
    "--timeout",
    "How long to wait for live members. Offsets that they have not set by then stay, and the exit status is 1.",
    300,
)


@click.group(epilog=EPILOG)
def offsets() -> None:
    """Show, reset, export, import, copy and delete the offsets of a group."""


@offsets.command(epilog=EPILOG)
@group_argument
@topics_option
@_cluster_options
@json_option
@click.pass_obj
def show(
    lines: Lines,
    /,
    *,
    group: str,
    selection: Selection | None,
    store: str | None,
    cluster: ClusterAddress,
    as_json: bool,
) -> int:
    """
    Show the offsets of a group, and where its logs start and end.

    The last column says what is wrong with an offset: the log no longer has it, or does not have it yet, or its topic
    was deleted.
    """
    from kiel_groups.cli.terminal.rendering import show_result
    from kiel_groups.ops.views.offset_changes import check_selected, offsets_document, offsets_table, select

    found = cluster.offsets().read(group, selection or (), store=store)
    partitions = sorted({*select(found, selection, stored=True), *select(found, selection, stored=False)})
    check_selected(found, selection, partitions)
    if as_json or partitions:
        show_result(offsets_document(found, partitions), offsets_table(found, partitions), as_json=as_json)
    else:
        lines.say("info", f"group {group} has no offsets")
    if found.problem:
        lines.say("warning", f"the logs are not fully known: {found.problem}")
    return DONE


def _kinds(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options for the target of a reset to a command. The user gives one of these options."""
    for option in reversed(
        (
            click.option("--to-earliest", is_flag=True, help="To the start of the log."),
            click.option("--to-latest", is_flag=True, help="To the end of the log."),
            click.option(
                "--to-current",
                is_flag=True,
                help="To the present offset; if the log lacks it, to the nearer end of the log.",
            ),
            click.option("--to-offset", type=click.IntRange(0), metavar="OFFSET", help="To this offset."),
            click.option("--shift-by", type=int, metavar="N", help="By N records; back if N is negative."),
            click.option("--to-datetime", metavar="TIME", help="To a time, such as 2026-11-28T13:05:00Z."),
            click.option("--by-duration", metavar="TIME", help="To this long ago, such as 2h or PT2H."),
            click.option(
                "--from-file", type=_path, metavar="FILE", help="To the offsets in a file of 'offsets export'."
            ),
        )
    ):
        command = option(command)
    return command


@offsets.command(epilog=EPILOG)
@group_argument
@topics_option
@all_topics_option
@_kinds
@new_option
@_timeout_option
@_changes_offsets
@click.pass_context
def reset(
    context: click.Context,
    /,
    *,
    group: str,
    selection: Selection | None,
    all_topics: bool,
    from_file: Path | None,
    is_new: bool,
    asked: _Change,
    **kinds: Any,
) -> int:
    """
    Set the offsets of a group to another place in the logs.

    If ZooKeeper coordinates the group, it may have live members: they continue at the new offsets, and the command
    waits until they do. Ctrl-C takes back what they have not done. If brokers coordinate the group, stop its members
    first.

    The options that name the place are those of kafka-consumer-groups. An offset outside the log becomes the start or
    the end of the log. A time finds the first record of that time or later. Records of Kafka before 0.10 have no times:
    there, a time finds the start of the last segment that was written before it, and some records are repeated.
    """
    from kiel_groups.ops.actions.offsets import plan_import, plan_reset
    from kiel_groups.ops.actions.offsets_file import read_offsets_file

    given = [name for name, value in kinds.items() if value is not None and value is not False]
    if len(given) + (from_file is not None) != 1:
        raise click.UsageError("give one of the options --to-…, --shift-by, --by-duration and --from-file.", context)
    if selection is not None or from_file is None:
        _check_selection(context, selection, all_topics)
    source = asked.cluster.offsets()
    with _naming_new():
        if from_file is not None:
            file = read_offsets_file(from_file, group)
            plan = plan_import(source, group, file, selection, store=asked.store, is_new=is_new)
        else:
            target = _target(given[0], kinds[given[0]])
            plan = plan_reset(source, group, selection, target, store=asked.store, is_new=is_new)
    return _carry_out(context.obj, plan, asked)


@contextmanager
def _naming_new() -> Iterator[None]:
    """Add to the error about a group that does not exist which option begins the group."""
    try:
        yield
    except UnknownGroupError as error:
        raise UnknownGroupError(f"{str(error).removesuffix('?')}; '--new' begins a new group") from None


def _target(kind: str, value: Any) -> Target:
    import time

    from kiel_groups.ops.views.offset_changes import Target, duration_ms, parse_time

    if kind == "to_datetime":
        return Target("time", parse_time(value))
    if kind == "by_duration":
        return Target("time", round(time.time() * 1000) - duration_ms(value))
    return Target(kind.removeprefix("to_").removesuffix("_by"), 0 if value is True else value)


@offsets.command(epilog=EPILOG)
@group_argument
@click.argument("file", type=_path, required=False)
@topics_option
@click.option(
    "--format",
    "layout",
    type=click.Choice(["json", "kafka"]),
    default="json",
    show_default=True,
    help="'json' is for 'offsets import', 'kafka' for ImportZkOffsets of Kafka 0.8.",
)
@_cluster_options
@click.pass_obj
def export(
    lines: Lines,
    /,
    *,
    group: str,
    file: Path | None,
    selection: Selection | None,
    layout: str,
    store: str | None,
    cluster: ClusterAddress,
) -> int:
    """Write the offsets of a group to a new FILE, or to standard output."""
    from kiel_groups.cli.terminal.rendering import show_lines
    from kiel_groups.ops.actions.offsets_file import kafka_lines, new_file, write_offsets_file
    from kiel_groups.ops.views.offset_changes import check_selected, select

    found = cluster.offsets().read(group, selection or (), store=store, with_logs=False)
    check_selected(found, selection, select(found, selection, stored=True))
    selected = {p: found.offsets[p] for p in select(found, selection, stored=True) if p in found.offsets}
    if not selected:
        raise ConfigError(f"group {group} has no offsets to export")
    text = kafka_lines(group, selected) if layout == "kafka" else new_file(group, selected).encode()
    if file is None or str(file) == "-":
        show_lines(text.splitlines())
    else:
        write_offsets_file(file, text)
        lines.say("info", f"{file} has the offsets of {counted(selected, 'partition')} of group {group}")
    if unreadable := sorted(found.versions.keys() - found.offsets.keys()):
        lines.say("warning", f"left out, because they are no numbers: the offsets of {some(unreadable)}")
    return DONE


@offsets.command("import", epilog=EPILOG)
@group_argument
@click.argument("file", type=_path)
@new_option
@_timeout_option
@_changes_offsets
@click.pass_obj
def import_offsets(lines: Lines, /, *, group: str, file: Path, is_new: bool, asked: _Change) -> int:
    """
    Set the offsets of a group as they are in FILE.

    FILE is an export, a restore file, or a file of Kafka's ExportZkOffsets or kafka-consumer-groups. The restore file
    of a deleted group brings the group back. Partitions that are not in FILE keep their offsets. Live members are
    treated as by 'offsets reset'.
    """
    from kiel_groups.ops.actions.offsets import plan_import
    from kiel_groups.ops.actions.offsets_file import read_offsets_file

    read = read_offsets_file(file, group)
    if read.group not in ("", group):
        lines.say("info", f"{file} has the offsets of group {read.group}")
    with _naming_new():
        plan = plan_import(asked.cluster.offsets(), group, read, store=asked.store, is_new=is_new)
    return _carry_out(lines, plan, asked)


@offsets.command(epilog=EPILOG)
@group_argument
@click.argument("new_group")
@click.option("--overwrite", is_flag=True, help="Replace offsets that NEW_GROUP has.")
@_timeout_option
@_changes_offsets
@click.pass_obj
def copy(lines: Lines, /, *, group: str, new_group: str, overwrite: bool, asked: _Change) -> int:
    """
    Begin NEW_GROUP at the offsets of GROUP, which may have live members.

    The members of NEW_GROUP need the same offset store.
    """
    from kiel_groups.ops.actions.offsets import plan_copy

    plan = plan_copy(asked.cluster.offsets(), group, new_group, overwrite=overwrite, store=asked.store)
    return _carry_out(lines, plan, asked)


@offsets.command(epilog=EPILOG)
@group_argument
@topics_option
@all_topics_option
@_changes_offsets
@click.pass_context
def delete(
    context: click.Context, /, *, group: str, selection: Selection | None, all_topics: bool, asked: _Change
) -> int:
    """
    Delete the offsets of topics that no live member reads.

    Topics that the group has given up, or that were deleted, then no longer count in its lag.
    """
    from kiel_groups.ops.actions.offsets import plan_delete

    _check_selection(context, selection, all_topics)
    plan = plan_delete(asked.cluster.offsets(), group, selection, store=asked.store)
    return _carry_out(context.obj, plan, asked)


def _check_selection(context: click.Context, selection: Selection | None, all_topics: bool) -> None:
    if (selection is None) != all_topics:
        raise click.UsageError("give either --topic, once or several times, or --all-topics.", context)


def _carry_out(lines: Lines, plan: OffsetsPlan, asked: _Change) -> int:
    """
    Show a plan, ask for confirmation, write the former offsets to the restore file, and apply the plan.

    Return the exit status.
    """
    from kiel_groups.ops.actions.offsets_file import restore_path
    from kiel_groups.ops.views.offset_changes import changes_document, changes_table, time_remark

    how = asked.how
    if not how.dry_run:
        plan.check()
    file = (asked.restore_file or restore_path(plan.group)) if plan.lost else None
    document = {
        "group": plan.group,
        "store": plan.found.store,
        "by_members": plan.is_order,
        "changes": changes_document(plan.changes),
        "left_out": list(map(str, plan.left_out)),
        "restore_file": None if file is None or how.dry_run else str(file),
    }
    how.show(document, changes_table(plan.changes))
    if remark := time_remark(plan.changes):
        lines.say("info", remark)
    if plan.left_out:
        lines.say("warning", f"left out, because they do not exist: {some(plan.left_out)}")
    if how.dry_run:
        plan.check()
    changing = counted(plan.changing, "offset")
    if not plan.changing and not plan.znodes:
        lines.say("info", f"group {plan.group}: the offsets are as wanted; nothing to change")
        return DONE
    verb = "Delete" if plan.is_deletion else "Set"
    how_made = ", by its live members" if plan.is_order else "" if plan.found.exists else ", which begins with them"
    how_made += f", and create {counted(plan.znodes, 'znode')} of the file" if plan.znodes else ""
    if not how.is_confirmed(f"{verb} {changing} of group {plan.group}{how_made}?"):
        lines.say("info", f"group {plan.group}: {changing} to {verb.lower()}; --dry-run changes nothing")
        return DONE
    if file is not None:
        write_restore_file(file, plan.group, plan.lost)
        back = own_command("offsets", "import", plan.group, str(file))
        lines.say("info", f"the former offsets are in {file}; {back} sets them again")
    if plan.is_order:
        return _order(lines, plan, asked)
    if remark := plan.apply(asked.cluster.offsets()):
        lines.say("info", remark)
    created = f"; {counted(plan.znodes, 'znode')} of the file created" if plan.znodes else ""
    lines.say("info", f"group {plan.group}: {changing} {'deleted' if plan.is_deletion else 'set'}{created}")
    return DONE


def _order(lines: Lines, plan: OffsetsPlan, asked: _Change) -> int:
    """
    Order live members to set offsets, wait until all offsets are set, and return the exit status.

    After a timeout or Ctrl-C, withdraw the order for the offsets that are not set yet.
    """
    from kiel_groups.ops.zookeeper_client import zookeeper

    def waiting(owners: Mapping[TopicPartition, str | None]) -> None:
        lines.say("info", f"waiting for {_named(owners)}; Ctrl-C takes back what is not set yet")

    with zookeeper(asked.cluster.hosts, timeout_s=asked.cluster.timeout_s) as client:
        order = plan.order(client)
        is_interrupted = False
        try:
            left = order.wait(client, report=waiting, timeout_s=asked.timeout_s)
        except KeyboardInterrupt:
            is_interrupted, left = True, order.withdraw(client)
        owners = order.owners(client, left)
    count = counted(order.offsets.keys() - left, "offset")
    if not left:
        lines.say("info", f"group {plan.group}: {count} set, and delivery continues there")
    else:
        note = (
            "; one that was being set at that moment may be set all the same" if plan.found.store == "broker-v1" else ""
        )
        lines.say(
            "info" if is_interrupted else "error",
            f"group {plan.group}: {count} set, {len(left)} taken back: {_named(owners)}{note}",
        )
    if is_interrupted:
        return INTERRUPTED
    return FAILED if left else DONE


def _named(owners: Mapping[TopicPartition, str | None]) -> str:
    """Return a text with the partitions and their owners."""
    return some(f"{partition} ({owner or 'no member owns it'})" for partition, owner in owners.items())
