"""``kiel-groups groups``."""

from __future__ import annotations

import click

from kiel_groups.cli.parameters.cluster_address import ClusterAddress
from kiel_groups.cli.parameters.options import cluster_options, json_option
from kiel_groups.cli.terminal.messages import DONE, EPILOG, FAILED, Lines

__all__ = ["groups"]


@click.command(epilog=EPILOG)
@cluster_options
@click.option("--lag", "with_lag", is_flag=True, help="Show the lag of each group; reads all offsets.")
@json_option
@click.pass_obj
def groups(lines: Lines, /, *, cluster: ClusterAddress, with_lag: bool, as_json: bool) -> int:
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
