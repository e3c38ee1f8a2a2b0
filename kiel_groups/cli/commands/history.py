"""``kiel-groups history``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

from kiel_groups.cli.parameters.cluster_address import complete_groups
from kiel_groups.cli.parameters.options import SERVER_WAIT_S, in_zookeeper_only, json_option, zookeeper_option
from kiel_groups.cli.terminal.messages import DONE, EPILOG, Lines

__all__ = ["history"]


@click.command(epilog=EPILOG)
@click.argument("group", shell_complete=complete_groups)
@in_zookeeper_only("brokers keep no plans; the logs of the coordinator and of the members have the rebalances")
@zookeeper_option
@json_option
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="The last N plans only.  [default: all]")
@click.option("--since", metavar="TIME", help="Since a time, such as 2026-11-28T03:00 (UTC), or 90s, 10m, 2h, 7d ago.")
@click.pass_obj
def history(lines: Lines, *, group: str, zookeeper: str, as_json: bool, limit: int | None, since: str | None) -> int:
    """
    Show the plans of a group: when, why, by which leader, and how much moved.

    The newest is first. A group keeps its last 100 plans.
    """
    from kiel_groups.cli.terminal import rendering
    from kiel_groups.ops.views.documents import history_document
    from kiel_groups.ops.views.report import history_table
    from kiel_groups.ops.views.znodes import view_group
    from kiel_groups.ops.zookeeper_client import zookeeper as session
    from kiel_groups.ops.zookeeper_reader import check_group, read_history, refuse_programs

    since_ms = _since_ms(since)
    with session(zookeeper, timeout_s=SERVER_WAIT_S) as client:
        check_group(client, group, zookeeper)
        refuse_programs(client, group)
        view = view_group(group, read_history(client, group))
    entries = [entry for entry in view.history if entry.created_at_ms >= since_ms][:limit]
    for text in view.unreadable:
        lines.say("warning", text)
    if as_json:
        rendering.show_json(history_document(group, entries))
    elif entries:
        rendering.show(history_table(entries))
    else:
        lines.say("info", f"group {group} has no plans{' since then' if view.history else ''}")
    return DONE


def _since_ms(text: str | None) -> int:
    """Return a time on the command line in milliseconds since 1970, 0 for None. Raise ConfigError if it is none."""
    from kiel_groups.cli.commands.consume import parse_position
    from kiel_groups.errors import ConfigError

    if text is None:
        return 0
    try:
        position = parse_position(text)
    except ConfigError:
        position = 0
    if isinstance(position, timedelta):
        position = datetime.now(UTC) - position
    if not isinstance(position, datetime):
        raise ConfigError(
            f"--since: {text!r:.80} given; expected a time such as '2026-11-28T03:00', or '2h' for 2 hours ago"
        )
    return round((position if position.tzinfo else position.replace(tzinfo=UTC)).timestamp() * 1000)
