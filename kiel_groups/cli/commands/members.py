"""``kiel-groups members``."""

from __future__ import annotations

import click

from kiel_groups.cli.parameters.options import cluster_options, group_argument, json_option
from kiel_groups.cli.terminal.messages import DONE, EPILOG, Lines, warn_of_hidden
from kiel_groups.ops.actions.cluster_address import ClusterAddress


@click.command(epilog=EPILOG)
@group_argument
@cluster_options
@json_option
@click.pass_obj
def members(lines: Lines, *, group: str, cluster: ClusterAddress, as_json: bool) -> int:
    """
    List the live members of a group, one line each.

    Members are shown by the ends of their ids. The client is 'ours', 'Java', 'kiel' or another 'foreign' one; foreign
    members do not take part in the protocol of kiel-groups. 'owns' counts partitions; '2 → 3': it owns two and gets
    three. Columns of what no member has are left out: instance ids, capacities other than 1, racks, drained members.

    With --coordination brokers, the coordinator tells client ids, the version of the consumers' protocol, hosts and
    assignments only.
    """
    from kiel_groups.cli.terminal.rendering import show_result
    from kiel_groups.ops.views.members import members_document, members_report

    loaded = cluster.groups().load(group)
    (view,) = loaded.groups
    warn_of_hidden(lines, group, view.closed)
    for each in view.unreadable:
        lines.say("warning", each.text)
    document = members_document(view)
    show_result(document, *members_report(document, cluster.place, loaded.seen_ms), as_json=as_json)
    return DONE
