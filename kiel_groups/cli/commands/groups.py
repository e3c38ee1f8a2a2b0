"""``kiel-groups groups list|delete``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kiel_groups.cli.parameters.cluster_address import ClusterAddress, complete_groups
from kiel_groups.cli.parameters.options import change_options, cluster_options, is_confirmed, json_option
from kiel_groups.cli.terminal.messages import DONE, EPILOG, FAILED, Lines
from kiel_groups.wording import counted

if TYPE_CHECKING:
    from kiel_groups.ops.actions.broker_groups import CoordinatedDeletion
    from kiel_groups.ops.actions.groups import ZnodesDeletion

__all__ = ["groups"]


class _ListingByDefault(click.Group):
    """A command group that lists when no command is named, also with options of ``list``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_asking = args[:1] in (["-h"], ["--help"]) or (ctx.resilient_parsing and not args)
        if not is_asking and (not args or args[0].startswith("-")):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ListingByDefault, epilog=EPILOG)
def groups() -> None:
    """
    List and delete the groups of a cluster.

    Without a command, 'groups' lists, with the options of 'groups list'.
    """


@groups.command("list", epilog=EPILOG)
@cluster_options
@click.option("--lag", "with_lag", is_flag=True, help="Show the lag of each group; reads all offsets.")
@json_option
@click.pass_obj
def list_groups(lines: Lines, /, *, cluster: ClusterAddress, with_lag: bool, as_json: bool) -> int:
    """
    List the groups of a cluster.

    In ZooKeeper, groups of other clients are listed, too. The column 'foreign' counts live members that do not take
    part in the protocol, such as Java consumers or members of kiel. State 'empty': the group has no members now; its
    offsets stay. 'memberless': no member has ever joined; another program commits its offsets. 'unreadable': an ACL
    denies reading; a warning names the znodes. 'by brokers': brokers coordinate these workers. A last column has
    the types of groups that are not of consumers, such as 'connect' for workers.

    With --coordination brokers, every broker is asked for the groups that it coordinates, of all types: 'consumer', or
    for instance 'connect'. A broker that does not answer is named in a warning, and the exit status is 1. Brokers of
    Kafka 0.9 do not list groups without members.
    """
    from kiel_groups.cli.terminal.rendering import show, show_json
    from kiel_groups.ops.views.documents import outline_document
    from kiel_groups.ops.views.report import groups_table
    from kiel_groups.wording import some

    loaded = cluster.groups().load_all(with_lag=with_lag)
    for view in loaded.groups:
        if view.closed:
            lines.say("warning", f"an ACL denies reading parts of group {view.group}: {some(view.closed)}")
    for problem in loaded.problems:
        lines.say("warning", problem)
    if loaded.lag_problem:
        lines.say("warning", f"the lag is not fully known: {loaded.lag_problem}")
    if as_json:
        show_json([outline_document(view, with_lag=with_lag) for view in loaded.groups])
    elif loaded.groups:
        show(groups_table(loaded.groups, with_lag=with_lag))
    elif not loaded.problems:
        aside = "" if loaded.lists_empty else "; brokers of Kafka 0.9 list only those that have members"
        if not cluster.is_of_brokers and not loaded.brokers:
            aside = ", and no broker: is the chroot right?"
        lines.say("info", f"there are no groups {cluster.place}{aside}")
    return FAILED if loaded.problems else DONE


@groups.command(epilog=EPILOG)
@click.argument("names", nargs=-1, required=True, metavar="GROUP...", shell_complete=complete_groups)
@cluster_options
@click.option(
    "--restore-file",
    "restore_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where to write what 'offsets import' restores.  [default: kiel-groups-GROUP-TIME.json, here]",
)
@json_option
@change_options
@click.pass_obj
def delete(
    lines: Lines,
    *,
    names: tuple[str, ...],
    cluster: ClusterAddress,
    restore_file: Path | None,
    as_json: bool,
    dry_run: bool,
    yes: bool,
) -> int:
    """
    Delete groups without members, with their offsets and settings.

    A group with a live member of any client is not deleted: stop its members first. If one of several groups is alive,
    none is deleted. A member that joins meanwhile stops the deletion. A file that 'offsets import' reads gets the
    offsets and settings before they are deleted.

    In ZooKeeper, all znodes of the group are deleted, those of other clients, too. Offsets in Kafka stay there. Brokers
    delete groups from Kafka 1.1 on.
    """
    from kiel_groups.cli.terminal.rendering import show, show_json
    from kiel_groups.ops.actions.offsets_file import new_file, restore_path, write_offsets_file
    from kiel_groups.ops.views.documents import deletion_document
    from kiel_groups.ops.views.report import deletion_report

    wanted = list(dict.fromkeys(names))
    if restore_file is not None and len(wanted) > 1:
        raise click.UsageError("--restore-file goes with one group; without it, each group has a file of its own.")
    plans = _plan(cluster, wanted)
    found = {
        plan.lost.group: (restore_file or restore_path(plan.lost.group))
        for plan in plans
        if plan.lost.offsets or plan.lost.znodes
    }
    files = {group: str(path) for group, path in found.items()}
    if as_json:
        documents = [deletion_document(plan.lost, files.get(plan.lost.group, "")) for plan in plans]
        show_json({"dry_run": dry_run, "groups": documents})
    else:
        now_ms = time.time_ns() // 1_000_000
        for plan in plans:
            show(*deletion_report(plan.lost, cluster.place, files.get(plan.lost.group, ""), now_ms))
    if not is_confirmed(f"Delete {counted(plans, 'group')}?", dry_run=dry_run, yes=yes):
        return DONE
    for plan in plans:
        lost = plan.lost
        if path := found.get(lost.group):
            text = new_file(lost.group, lost.offsets, znodes=lost.znodes).encode()
            # The settings of connectors may have passwords.
            write_offsets_file(path, text, is_secret=any(name.startswith("connect/") for name in lost.znodes))
    for plan in plans:
        _apply(cluster, plan)
        group = plan.lost.group
        back = f"; 'kiel-groups offsets import {group} {files[group]}' restores it" if group in files else ""
        lines.say("info", f"group {group} is deleted{back}")
    return DONE


def _plan(cluster: ClusterAddress, names: Sequence[str]) -> list[ZnodesDeletion] | list[CoordinatedDeletion]:
    if cluster.is_of_brokers:
        from kiel_groups.ops.actions import broker_groups
        from kiel_groups.ops.broker_reader import BrokerSession, in_session

        async def plan(session: BrokerSession) -> list[CoordinatedDeletion]:
            return [await broker_groups.plan_deletion(session, group) for group in names]

        return in_session(cluster.hosts, cluster.timeout_s, plan)
    from kiel_groups.ops.actions import groups as znodes
    from kiel_groups.ops.zookeeper_client import zookeeper

    with zookeeper(cluster.hosts, timeout_s=cluster.timeout_s) as client:
        return [znodes.plan_deletion(client, group) for group in names]


def _apply(cluster: ClusterAddress, plan: ZnodesDeletion | CoordinatedDeletion) -> None:
    from kiel_groups.ops.actions.groups import ZnodesDeletion
    from kiel_groups.ops.broker_reader import in_session
    from kiel_groups.ops.zookeeper_client import zookeeper

    if isinstance(plan, ZnodesDeletion):
        with zookeeper(cluster.hosts, timeout_s=cluster.timeout_s) as client:
            plan.apply(client)
    else:
        in_session(cluster.hosts, cluster.timeout_s, plan.apply)
