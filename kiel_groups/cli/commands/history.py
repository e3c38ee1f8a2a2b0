"""``kiel-groups history``."""

from __future__ import annotations

import click

from kiel_groups.cli.parameters.options import SERVER_WAIT_S, group_argument, in_zookeeper_only, json_option
from kiel_groups.cli.terminal.messages import DONE, EPILOG, Lines, warn_of_hidden


@click.command(epilog=EPILOG)
@group_argument
@in_zookeeper_only("brokers keep no plans; the logs of the coordinator and of the members have the rebalances")
@json_option
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="The last N plans only.  [default: all]")
@click.pass_obj
def history(lines: Lines, *, group: str, zookeeper: str, as_json: bool, limit: int | None) -> int:
    """
    Show the plans of a group: when, why, by which leader, and how much moved.

    The newest plan is first. A group keeps its last 100 plans. In a file or a pipe, long causes are cut; --json has
    them whole.
    """
    from kiel_groups.cli.terminal import rendering
    from kiel_groups.group.znodes.layout import GroupLayout
    from kiel_groups.ops.views.documents import history_document
    from kiel_groups.ops.views.report import history_table
    from kiel_groups.ops.views.znodes import view_group
    from kiel_groups.ops.zookeeper_reader import group_session, read_tree, refuse_programs

    with group_session(zookeeper, group, timeout_s=SERVER_WAIT_S) as client:
        refuse_programs(client, group)
        view = view_group(group, read_tree(client, GroupLayout(group).history))
    entries = view.history[:limit]
    warn_of_hidden(lines, group, view.closed)
    for each in view.unreadable:
        lines.say("warning", each.text)
    if as_json or entries:
        # A terminal wraps a long cause. In a file or a pipe, each plan is one line, of at most 160 characters.
        table = history_table(entries) if rendering.console().is_terminal else history_table(entries, 80)
        rendering.show_result(history_document(group, entries), table, as_json=as_json)
    elif not view.closed:
        lines.say("info", f"group {group} has no plans")
    return DONE
