"""``kiel-groups groups list|delete``."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import click

from kiel_groups.cli.parameters.cluster_address import complete_groups
from kiel_groups.cli.parameters.options import cluster_options, json_option
from kiel_groups.cli.terminal.changes import ChangeOptions, change_options, restore_file_option, write_restore_file
from kiel_groups.cli.terminal.messages import DONE, EPILOG, FAILED, Lines, warn_of_hidden
from kiel_groups.ops.actions.cluster_address import ClusterAddress
from kiel_groups.wording import counted, own_command


class _ListingByDefault(click.Group):
    """A command group that runs ``list`` if no command is named. The options of ``list`` can be given then, too."""

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
    List the groups of a cluster, of all clients.

    The column 'foreign' counts live members of other clients, such as Java's consumers. Some states of groups:

    \b
    empty        the members have left; the offsets stay
    memberless   no member has ever joined; the offsets are from 'offsets copy',
                 or from a program, such as a Spark job
    unreadable   an ACL denies reading; a warning names the znodes
    by brokers   the members are workers, which brokers coordinate

    If some groups are not of consumers, a last column has the type of each, such as 'connect' for workers.

    With --coordination brokers, each broker is asked for the groups that it coordinates. If a broker does not answer, a
    warning names it, and the exit status is 1. Brokers of Kafka 0.9 list only groups with members.
    """
    from kiel_groups.cli.terminal.rendering import show, show_json
    from kiel_groups.ops.views.documents import outline_document
    from kiel_groups.ops.views.report import groups_table

    loaded = cluster.groups().load_all(with_lag=with_lag)
    for view in loaded.groups:
        warn_of_hidden(lines, view.group, view.closed)
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
@restore_file_option("Where to write what 'offsets import' restores.")
@change_options
@click.pass_obj
def delete(
    lines: Lines,
    *,
    names: tuple[str, ...],
    cluster: ClusterAddress,
    restore_file: Path | None,
    how: ChangeOptions,
) -> int:
    """
    Delete groups without live members, with their offsets and settings.

    Stop the members first, whichever client they have. If one of several groups is alive, none is deleted. If a member
    joins meanwhile, the deletion stops. Before it begins, offsets and settings are written to a restore file, from
    which 'offsets import' brings the group back.

    In ZooKeeper, all znodes of a group are deleted, also those of other clients. Offsets in Kafka stay. Brokers delete
    groups on request from Kafka 1.1 on.
    """
    from kiel_groups.ops.actions import groups as actions
    from kiel_groups.ops.actions.offsets_file import restore_path
    from kiel_groups.ops.views.documents import deletion_document
    from kiel_groups.ops.views.report import deletion_report

    wanted = list(dict.fromkeys(names))
    if restore_file is not None and len(wanted) > 1:
        raise click.UsageError("--restore-file goes with one group; without it, each group has a file of its own.")
    plans = [
        cluster.ask(partial(actions.plan_deletion, group=group), partial(actions.plan_deletion_at_brokers, group=group))
        for group in wanted
    ]
    files = {each.group: restore_file or restore_path(each.group) for each in plans if each.offsets or each.znodes}
    now_ms, documents, report = time.time_ns() // 1_000_000, [], []
    for each in plans:
        file = str(files.get(each.group, ""))
        documents.append(deletion_document(each, file))
        report += deletion_report(each, cluster.place, file, now_ms)
    how.show({"groups": documents}, *report)
    if not how.is_confirmed(f"Delete {counted(plans, 'group')}?"):
        return DONE
    for each in plans:
        if path := files.get(each.group):
            # The settings of connectors may have passwords.
            is_secret = any(name.startswith("connect/") for name in each.znodes)
            write_restore_file(path, each.group, each.offsets, znodes=each.znodes, is_secret=is_secret)
    for each in plans:
        group = each.group
        cluster.ask(partial(actions.delete_znodes, deletion=each), partial(actions.delete_at_brokers, group=group))
        back = f"; {own_command('offsets', 'import', group, str(files[group]))} restores it" if group in files else ""
        lines.say("info", f"group {group} is deleted{back}")
    return DONE
