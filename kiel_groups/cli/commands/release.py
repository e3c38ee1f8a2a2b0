"""``kiel-groups release``."""

from __future__ import annotations

import click

from kiel_groups.cli.parameters.cluster_address import complete_groups, complete_members
from kiel_groups.cli.parameters.options import (
    SERVER_WAIT_S,
    confirm,
    in_zookeeper_only,
    json_option,
    yes_option,
    zookeeper_option,
)
from kiel_groups.cli.terminal.messages import DONE, EPILOG, Lines
from kiel_groups.wording import counted

__all__ = ["release"]


@click.command(epilog=EPILOG)
@click.argument("group", shell_complete=complete_groups)
@click.argument("member", shell_complete=complete_members)
@in_zookeeper_only("a coordinator removes a dead member when its session times out, and no other on request")
@zookeeper_option
@json_option
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="How long to wait for claims of a member that is gone, whose session timeout is unknown. If this is less than"
    " that timeout, two owners are possible. A live member always gets its session timeout at least.  [default: 40]",
)
@yes_option
@click.pass_obj
def release(
    lines: Lines, *, group: str, member: str, zookeeper: str, as_json: bool, wait_s: float | None, yes: bool
) -> int:
    """
    Take the partitions from a member that does not release them.

    MEMBER is a member id, the session at its end, as 'describe' shows it, or an instance id.

    This tells a live member to stop, after a confirmation, waits for at most its session timeout, and then deletes its
    claims. Its record in flight may be processed twice. If its process still works, it joins again as another member.
    """
    from kiel_groups.cli.terminal.rendering import show_json
    from kiel_groups.ops.actions.release import find_member_id, plan_release
    from kiel_groups.ops.zookeeper_reader import group_session, refuse_programs

    wait_ms = None if wait_s is None else round(wait_s * 1000)
    with group_session(zookeeper, group, timeout_s=SERVER_WAIT_S) as client:
        refuse_programs(client, group)
        member = find_member_id(client, group, member)
        plan = plan_release(client, group, member, wait_ms=wait_ms)
        if plan.is_alive and not yes:
            confirm(f"{member} is alive. Take its partitions, and have it join again?")
            plan = plan_release(client, group, member, wait_ms=wait_ms)
        released = plan.apply(client, report=lambda text: lines.say("info", text))
    if as_json:
        owned, taken = (list(map(str, partitions)) for partitions in (released.owned, released.taken))
        show_json({"member": member, "owned": owned, "waited_ms": released.waited_ms, "taken": taken})
    else:
        by_itself = len(released.owned) - len(released.taken)
        summary = f"{member} owned {counted(released.owned, 'partition', 'partitions')}"
        by_force = len(released.taken)
        lines.say("info", f"{summary}: released by itself or with its session: {by_itself}, taken: {by_force}")
    return DONE
