"""``kiel-groups groups list|delete``."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import click

from kiel_groups.cli.parameters.cluster_address import ClusterAddress, complete_groups
from kiel_groups.cli.parameters.options import cluster_options, json_option
from kiel_groups.cli.terminal.changes import ChangeOptions, change_options, restore_file_option, write_restore_file
from kiel_groups.cli.terminal.messages import DONE, EPILOG, FAILED, Lines
from kiel_groups.wording import counted, own_command

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
    Delete groups without members, with their offsets and settings.

    A group with a live member of any client is not deleted: stop its members first. If one of several groups is alive,
    none is deleted. A member that joins meanwhile stops the deletion. A file that 'offsets import' reads gets the
    offsets and settings before they are deleted.

    In ZooKeeper, all znodes of the group are deleted, those of other clients, too. Offsets in Kafka stay there. Brokers
    delete groups from Kafka 1.1 on.
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
