"""``kiel-groups release``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kiel_groups.cli.parameters.cluster_address import complete_members
from kiel_groups.cli.parameters.options import SERVER_WAIT_S, group_argument, in_zookeeper_only, seconds_option
from kiel_groups.cli.terminal.changes import ChangeOptions, change_options
from kiel_groups.cli.terminal.messages import DONE, EPILOG, Lines
from kiel_groups.wording import counted, some

if TYPE_CHECKING:
    from kiel_groups.ops.actions.release import Release


@click.command(epilog=EPILOG)
@group_argument
@click.argument("member", shell_complete=complete_members)
@in_zookeeper_only("a coordinator removes a dead member when its session times out, and no other on request")
@seconds_option(
    "--wait",
    "How long to wait for a member that is gone, and whose session timeout is unknown. If that timeout is longer, two"
    " members may own a partition. A live member always gets its session timeout at least.  [default: 40]",
)
@change_options
@click.pass_obj
def release(
    lines: Lines, /, *, group: str, member: str, zookeeper: str, wait_s: float | None, how: ChangeOptions
) -> int:
    """
    Take the partitions from a member that does not release them.

    MEMBER is a member id as 'describe' shows it, the session id at the end of a member id, or an instance id.

    If the member is alive, the command first asks for confirmation. It removes the member from the group, and waits
    until the member has released its partitions, at most for the session timeout or --wait. Then it deletes the
    remaining claims, so that other members can own the partitions. Records in flight may be processed twice. If the
    member's process is still running, it joins again as a new member.
    """
    from kiel_groups.ops.actions.release import find_member_id, plan_release
    from kiel_groups.ops.zookeeper_reader import group_session, refuse_programs

    wait_ms = None if wait_s is None else round(wait_s * 1000)
    with group_session(zookeeper, group, timeout_s=SERVER_WAIT_S) as client:
        refuse_programs(client, group)
        member = find_member_id(client, group, member)
        plan = plan_release(client, group, member, wait_ms=wait_ms)
        if how.dry_run:
            how.show(_document(plan))
            if not how.as_json:
                lines.say("info", _preview(plan))
            return DONE
        if plan.is_alive and not how.yes:
            how.is_confirmed(f"{member} is alive. Take its partitions, and have it join again?")
            plan = plan_release(client, group, member, wait_ms=wait_ms)
        released = plan.apply(client, report=lambda text: lines.say("info", text))
    if how.as_json:
        done = {"waited_ms": released.waited_ms, "taken": list(map(str, released.taken))}
        how.show(_document(plan) | {"owned": list(map(str, released.owned))} | done)
    else:
        by_itself = len(released.owned) - len(released.taken)
        summary = f"{member} owned {counted(released.owned, 'partition', 'partitions')}"
        by_force = len(released.taken)
        lines.say("info", f"{summary}: released by itself or with its session: {by_itself}, taken: {by_force}")
    return DONE


def _document(plan: Release) -> dict[str, Any]:
    return {
        "group": plan.group,
        "member": plan.member_id,
        "alive": plan.is_alive,
        "owned": list(map(str, sorted(plan.owned))),
        "wait_ms": plan.wait_ms,
    }


def _preview(plan: Release) -> str:
    """Return a text about the state of the member, its partitions, and what a release would take from it."""
    claims = f"; what it has not released after {plan.wait_ms / 1000:g} s would be taken" if plan.owned else ""
    state = "alive" if plan.is_alive else "gone"
    return f"{plan.member_id} is {state}, and owns {some(sorted(plan.owned)) or 'no partition'}{claims}"
