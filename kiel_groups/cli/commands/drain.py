"""
``kiel-groups drain``, ``undrain`` and ``rebalance``: ask the leader to make a plan, and wait until members follow it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kiel_groups.cli.parameters.cluster_address import complete_members
from kiel_groups.cli.parameters.options import SERVER_WAIT_S, group_argument, in_zookeeper_only, seconds_option
from kiel_groups.cli.terminal.changes import ChangeOptions, change_options, write_restore_file
from kiel_groups.cli.terminal.messages import DONE, EPILOG, INTERRUPTED, Lines
from kiel_groups.errors import CoordinationError
from kiel_groups.wording import counted, own_command, some

if TYPE_CHECKING:
    from kiel_groups.ops.actions.group_config import ConfigChange
    from kiel_groups.ops.zookeeper_client import Client


_member = click.argument("member", required=False, shell_complete=complete_members)
_host = click.option("--host", metavar="HOST", help="All members of this host, as 'describe' shows it.")
_drain_only = in_zookeeper_only(
    "a coordinator gives every member its share; stop the member, and its partitions go to the others"
)


def _waiting(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that ``drain``, ``undrain`` and ``rebalance`` share to a command."""
    for option in (
        seconds_option(
            "--timeout", "How long to wait until the group has settled; after that, the exit status is 1.", 300
        ),
        click.option("--no-wait", is_flag=True, help="Do not wait until the group has settled."),
        change_options,
    ):
        command = option(command)
    return command


@click.command(epilog=EPILOG)
@group_argument
@_member
@_host
@click.option("--leave-unowned", is_flag=True, help="Drain even if no member is left for the partitions of a topic.")
@_drain_only
@_waiting
@click.pass_context
def drain(
    context: click.Context, /, *, group: str, member: str | None, host: str | None, leave_unowned: bool, **options: Any
) -> int:
    """
    Give the partitions of a member, or of all members of a host, to other members.

    MEMBER is a member id as 'describe' shows it, the session id at the end of a member id, or an instance id.

    A drained member finishes its records in flight, commits, and stays in the group without partitions until 'undrain'.
    When a member without an instance id leaves, its drain ends. The drain of a static member remains: a member that
    starts with the same instance id gets no partitions either.
    """
    from kiel_groups.ops.actions.group_config import plan_drain

    name = _target(context, member, host)
    return change_config(
        context.obj,
        lambda client: plan_drain(client, group, member, host=host, leave_unowned=leave_unowned),
        f"Drain {name}",
        f"the drain stays: {own_command('undrain', group, *_words(member, host))} takes it back",
        group=group,
        **options,
    )


@click.command(epilog=EPILOG)
@group_argument
@_member
@_host
@_drain_only
@_waiting
@click.pass_context
def undrain(context: click.Context, /, *, group: str, member: str | None, host: str | None, **options: Any) -> int:
    """
    Let drained members own partitions again.

    MEMBER is as for 'drain'; it may have left the group.
    """
    from kiel_groups.ops.actions.group_config import plan_undrain

    name = _target(context, member, host)
    return change_config(
        context.obj,
        lambda client: plan_undrain(client, group, member, host=host),
        f"Undrain {name}",
        f"the undrain stays: {own_command('drain', group, *_words(member, host))} takes it back",
        group=group,
        **options,
    )


@click.command(epilog=EPILOG)
@group_argument
@click.option("--reason", default="rebalance", metavar="TEXT", help="The cause of the plan in 'history'.")
@in_zookeeper_only("a coordinator rebalances when a member joins or leaves; restart one member")
@_waiting
@click.pass_obj
def rebalance(lines: Lines, /, *, group: str, reason: str, **options: Any) -> int:
    """
    Ask the leader of a group to make a new plan now.

    A leader plans by itself when members, topics, settings or weights change. A further plan helps if the allocator
    depends on something else, such as lag. Nothing moves if the allocation is right as it is.
    """
    from kiel_groups.ops.actions.group_config import plan_rebalance

    return change_config(
        lines,
        lambda client: plan_rebalance(client, group, reason=reason),
        "Make a new plan",
        "the leader makes the plan all the same",
        group=group,
        **options,
    )


def _target(context: click.Context, member: str | None, host: str | None) -> str:
    """
    Return the words for the member or for the members of a host in messages.

    Raises:
        click.UsageError: Both a member and a host are given, or neither is given.
    """
    if (member is None) == (host is None):
        raise click.UsageError("give either MEMBER or --host.", context)
    return member if member is not None else f"every member of host {host}"


def _words(member: str | None, host: str | None) -> list[str]:
    return [member] if member is not None else ["--host", str(host)]


def change_config(
    lines: Lines,
    plan: Callable[[Client], ConfigChange],
    what: str,
    stays: str = "",
    *,
    group: str,
    zookeeper: str,
    how: ChangeOptions,
    no_wait: bool = True,
    timeout_s: float = 0,
    restore_file: Path | None = None,
) -> int:
    """
    Show a change of a group's config, make it after a confirmation, and wait until the group has settled.

    Return the exit status.

    Args:
        lines: Prints messages.
        plan: Plans the change.
        what: The question for the confirmation, without the question mark.
        stays: A text about what remains in force after Ctrl-C or a timeout.
        group: The group's name.
        zookeeper: ZooKeeper's servers.
        how: How to make the change.
        no_wait: Whether to return without waiting.
        timeout_s: How long to wait, in seconds.
        restore_file: The file for unreadable data that the change replaces. None chooses the default.

    Raises:
        CoordinationError: ZooKeeper did not answer, or the group has not settled in time.
    """
    from kiel_groups.ops.actions.group_config import await_settled
    from kiel_groups.ops.views.config_view import change_document, changes_table, outcome
    from kiel_groups.ops.zookeeper_reader import group_session

    with group_session(zookeeper, group, timeout_s=SERVER_WAIT_S) as client:
        change = plan(client)
        report = [changes_table(change.changes)] if change.changes else []
        how.show(change_document(group, change.changes, change.owned), *report)
        if change.after is None:
            drained = change.owned and f"{some(change.owned)} is drained already"
            lines.say("info", f"nothing to change: {drained or f'the config of group {group} has these values'}")
        elif not change.changes:
            cause = change.after["rebalance"]["reason"]
            lines.say("info", f"the leader is asked for a plan; its cause in the history: operator: {cause}")
        whose = f", which owns {counted(sum(change.owned.values()), 'partition')}" if change.owned else ""
        if how.dry_run or (change.after is not None and not how.is_confirmed(f"{what}{whose}?")):
            return DONE
        if change.lost and change.after is not None:
            file = write_restore_file(restore_file, group, {}, znodes={"config": change.lost.decode("latin-1")})
            lines.say("info", f"the unreadable config is in {file}")
        change.apply(client)
        if no_wait:
            if change.after is not None:
                when = "at once" if change.is_live else "when the group has a leader, because no member is alive now"
                lines.say("info", f"the leader follows the new config {when}")
            return DONE
        try:
            view = await_settled(
                client,
                group,
                change.request_ms,
                timeout_s=timeout_s,
                report=lambda text: lines.say("info", f"waiting: {text}"),
            )
        except KeyboardInterrupt:
            lines.say("info", stays)
            return INTERRUPTED
        except CoordinationError as error:
            raise CoordinationError(f"{error}; {stays}") from error
    lines.say("info", outcome(view, change.owned))
    return DONE
