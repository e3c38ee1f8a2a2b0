"""``kiel-groups config show|set|unset``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kiel_groups.cli.commands.drain import change_config
from kiel_groups.cli.parameters.options import SERVER_WAIT_S, group_argument, in_zookeeper_only, json_option
from kiel_groups.cli.terminal.changes import change_options, restore_file_option
from kiel_groups.cli.terminal.messages import DONE, EPILOG, Lines, warn_of_hidden
from kiel_groups.errors import ConfigError

if TYPE_CHECKING:
    from kiel_groups.ops.actions.group_config import ConfigChange
    from kiel_groups.ops.zookeeper_client import Client


_coordination_option = in_zookeeper_only("brokers keep no settings of groups; give each member its own, and restart it")


@click.group(epilog=EPILOG)
def config() -> None:
    """Show and change the settings of a running group."""


@config.command(epilog=EPILOG)
@group_argument
@_coordination_option
@json_option
@click.pass_obj
def show(lines: Lines, *, group: str, zookeeper: str, as_json: bool) -> int:
    """
    Show the settings that a group works with.

    Each line has a setting, its value, where the value is from, and what changes it. A value from 'config' was set by
    'config set', and overrides what the leader was started with. If members have different values of a setting, each
    value has a line.
    """
    from kiel_groups.cli.terminal.rendering import show_result
    from kiel_groups.ops.views.config_view import effective_settings, settings_document, settings_tables
    from kiel_groups.ops.views.znodes import view_group
    from kiel_groups.ops.zookeeper_reader import group_session, read_group, refuse_programs

    with group_session(zookeeper, group, timeout_s=SERVER_WAIT_S) as client:
        refuse_programs(client, group)
        view = view_group(group, read_group(client, group))
    if not (view.was_joined or view.closed):
        raise ConfigError(f"group {group!r} has no settings: no member of kiel-groups was ever in it")
    settings = effective_settings(view)
    show_result(settings_document(group, settings), settings_tables(settings), as_json=as_json)
    warn_of_hidden(lines, group, view.closed)
    for each in view.unreadable:
        lines.say("warning", each.text)
    if view.dynamic_config is None:
        why = f": {view.refused}" if view.refused else ""
        lines.say("warning", f"the leader refuses the group's config, and follows the last valid one{why}")
    return DONE


@config.command("set", epilog=EPILOG)
@group_argument
@click.argument("changes", nargs=-1, required=True, metavar="SETTING=VALUE...")
@click.option("--replace", is_flag=True, help="Replace a config that members cannot read.")
@restore_file_option("Where --replace writes the unreadable config.")
@_coordination_option
@change_options
@click.pass_obj
def set_settings(
    lines: Lines, /, *, group: str, changes: tuple[str, ...], replace: bool, restore_file: Path | None, **options: Any
) -> int:
    """
    Change settings of a running group. No member restarts.

    The settings are allocator, debounce.quiet_ms, debounce.bound_ms, debounce.initial_delay_ms, static_grace_ms, and
    broker_racks.BROKER, which is the rack of a broker.

    No member can join if the group's config is unreadable. Members that are alive continue. To replace such a config,
    give --replace, and the settings that all members share: store, mode and auto_offset_reset. Drain again the members
    that were drained.
    """
    put = {}
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals or not name or not value:
            raise click.UsageError(f"{change!r} given; expected SETTING=VALUE, such as allocator=sticky.")
        put[name] = value
    return _change(lines, group, put, (), replace=replace, restore_file=restore_file, **options)


@config.command(epilog=EPILOG)
@group_argument
@click.argument("names", nargs=-1, required=True, metavar="SETTING...")
@_coordination_option
@change_options
@click.pass_obj
def unset(lines: Lines, /, *, group: str, names: tuple[str, ...], **options: Any) -> int:
    """
    Remove settings that 'config set' has set.

    After that, what the leader was started with applies. SETTING may also be a group of settings, such as debounce, or
    a word that means nothing to the leader.
    """
    return _change(lines, group, {}, names, **options)


def _change(
    lines: Lines, group: str, put: Mapping[str, str], removed: Sequence[str], *, replace: bool = False, **options: Any
) -> int:
    from kiel_groups.ops.actions.group_config import plan_settings

    def plan(client: Client) -> ConfigChange:
        return plan_settings(client, group, put, removed, replace=replace)

    return change_config(lines, plan, f"Change the config of group {group}", group=group, **options)
