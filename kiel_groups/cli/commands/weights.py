"""``kiel-groups weights show|set|remove``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any

import click

from kiel_groups.cli.parameters.cluster_address import complete_topics
from kiel_groups.cli.parameters.options import SERVER_WAIT_S, group_argument, in_zookeeper_only, json_option
from kiel_groups.cli.terminal.changes import ChangeOptions, change_options
from kiel_groups.cli.terminal.messages import DONE, EPILOG, Lines, warn_of_hidden
from kiel_groups.errors import ConfigError, ConflictError, ProtocolError
from kiel_groups.wording import counted

if TYPE_CHECKING:
    from kiel_groups.group.znodes.group_settings import Weights
    from kiel_groups.model import TopicPartition
    from kiel_groups.ops.views.load_view import PlanView
    from kiel_groups.ops.zookeeper_client import Client


_coordination_option = in_zookeeper_only("weights are kept there, and the groups of brokers have none")
#: The most changed weights that a table shows.
_MOST_SHOWN = 20


@click.group(epilog=EPILOG)
def weights() -> None:
    """Show, set and remove the weights of the partitions of a group."""


@weights.command(epilog=EPILOG)
@group_argument
@_coordination_option
@json_option
@click.pass_obj
def show(lines: Lines, *, group: str, zookeeper: str, as_json: bool) -> int:
    """
    Show the weights, and the load of each member.

    'weights set GROUP --file' accepts what --json prints.
    """
    from kiel_groups.cli.terminal import rendering
    from kiel_groups.group.znodes.group_settings import printed_weights
    from kiel_groups.ops.actions.weights import read_weights
    from kiel_groups.ops.views.load_view import weights_report
    from kiel_groups.ops.zookeeper_reader import group_session

    with group_session(zookeeper, group, timeout_s=SERVER_WAIT_S) as client:
        found = read_weights(client, group)
        plan = _plan(lines, client, group)
    if as_json:
        rendering.show_json(printed_weights(found))
    elif found:
        rendering.show(*weights_report(found, plan))
    else:
        lines.say("info", f"group {group} has no weights; 'kiel-groups weights set' sets them")
    if found and plan.hint:
        lines.say("warning", plan.hint)
    return DONE


@weights.command("set", epilog=EPILOG)
@group_argument
@click.argument("changes", nargs=-1, metavar="[TOPIC:PARTITION=LOAD...]", shell_complete=complete_topics)
@click.option(
    "--file",
    type=click.File("rb"),
    metavar="FILE",
    help='Replace all weights, in JSON: {"page-views:0": 12.5}; - is standard input.',
)
@_coordination_option
@change_options
@click.pass_context
def set_weights(
    context: click.Context, /, *, group: str, changes: tuple[str, ...], file: IO[bytes] | None, **options: Any
) -> int:
    """
    Set the weights of partitions.

    LOAD is a number, 0 or more, such as records a second or bytes a day. Partitions that are not named keep their
    weights. --file replaces all weights: a partition that is not in the file counts as the median of the others.
    """
    if bool(changes) == (file is not None):
        raise click.UsageError("give either partitions with their loads, or --file.", context)
    if file is not None:
        given = weights_of_file(file)
        return _change(context.obj, group, lambda _: given, given, replaces=True, **options)
    given = _from_arguments(changes)
    return _change(context.obj, group, lambda before: before | given, given, **options)


@weights.command(epilog=EPILOG)
@group_argument
@click.argument("partitions", nargs=-1, metavar="[TOPIC:PARTITION...]", shell_complete=complete_topics)
@_coordination_option
@change_options
@click.pass_obj
def remove(lines: Lines, /, *, group: str, partitions: tuple[str, ...], **options: Any) -> int:
    """Remove the weights of some partitions, or of all."""
    from kiel_groups.group.znodes.group_settings import checked_weights

    removed = checked_weights(dict.fromkeys(partitions, 0)).keys()

    def without(before: dict[TopicPartition, float]) -> dict[TopicPartition, float]:
        if missing := sorted(removed - before.keys()):
            raise ConfigError(
                f"{missing[0]} has no weight in group {group}; 'kiel-groups weights show' lists those that have one"
            )
        return {partition: load for partition, load in before.items() if partitions and partition not in removed}

    return _change(lines, group, without, replaces=not partitions, **options)


def _change(
    lines: Lines,
    group: str,
    change: Callable[[dict[TopicPartition, float]], Weights],
    given: Weights = MappingProxyType({}),
    *,
    zookeeper: str,
    how: ChangeOptions,
    replaces: bool = False,
) -> int:
    """
    Show a change of weights, and make it after a confirmation. Return the exit status.

    Before that, check that the partitions in ``given`` exist.

    Raises:
        ConflictError: Another client has changed the weights meanwhile.
        CoordinationError: ZooKeeper did not answer.
    """
    from kiel_groups.ops.actions.weights import check_partitions, plan_weights
    from kiel_groups.ops.views.config_view import SettingChange, changes_table
    from kiel_groups.ops.zookeeper_reader import group_session, refuse_programs

    with group_session(zookeeper, group, timeout_s=SERVER_WAIT_S) as client:
        refuse_programs(client, group)
        check_partitions(client, given)
        planned = plan_weights(client, group, change, replaces=replaces)
        changes = [
            SettingChange(str(each), before, after)
            for each in sorted(planned.before.keys() | planned.after.keys())
            if (before := planned.before.get(each)) != (after := planned.after.get(each))
        ]
        rows = [{"partition": each.name, "before": each.before, "after": each.after} for each in changes]
        report = [changes_table(changes[:_MOST_SHOWN], "partition")] if changes else []
        more = [f"and {len(changes) - _MOST_SHOWN:,} more; --json shows all"] if len(changes) > _MOST_SHOWN else []
        how.show({"group": group, "weights": rows}, *report, *more)
        if planned.changes_nothing:
            lines.say("info", f"group {group} has these weights already")
            return DONE
        if not how.is_confirmed(f"Change the weights of group {group}?"):
            return DONE
        if not planned.apply(client):
            raise ConflictError(f"another client has changed the weights of group {group} meanwhile; try again")
        hint = _plan(lines, client, group).hint
    lines.say("info", f"group {group} has weights for {counted(planned.after, 'partition', 'partitions')} now")
    if hint and planned.after:
        lines.say("warning", hint)
    return DONE


def _plan(lines: Lines, client: Client, group: str) -> PlanView:
    from kiel_groups.group.znodes.layout import GroupLayout
    from kiel_groups.ops.views.load_view import view_plan
    from kiel_groups.ops.zookeeper_reader import list_members, read_tree

    znodes = read_tree(client, GroupLayout(group).group_state)
    warn_of_hidden(lines, group, [path for path, znode in znodes.items() if znode.closed])
    return view_plan(group, znodes, list_members(client, group))


def _from_arguments(changes: Sequence[str]) -> dict[TopicPartition, float]:
    from kiel_groups.group.znodes.group_settings import checked_weights

    loads = {}
    for change in changes:
        name, equals, load = change.rpartition("=")
        try:
            loads[name] = float(load)
        except ValueError:
            equals = ""
        if not equals:
            raise ConfigError(f"weights: {change!r} given; expected TOPIC:PARTITION=LOAD, such as page-views:3=12.5")
    return checked_weights(loads)


def weights_of_file(file: IO[bytes]) -> dict[TopicPartition, float]:
    """Return the weights of partitions from a JSON file. Raise ConfigError if the file has another content."""
    from kiel_groups.group.znodes.contents import parse_object
    from kiel_groups.group.znodes.group_settings import checked_weights

    name = "standard input" if file.name == "<stdin>" else file.name
    try:
        return checked_weights(parse_object(file.read(), name))
    except ProtocolError as error:
        raise ConfigError(f'{error}; expected {{"page-views:0": 12.5}}') from error
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}") from error
