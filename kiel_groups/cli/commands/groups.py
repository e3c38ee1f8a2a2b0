"""``kiel-groups groups``."""

from __future__ import annotations

import click

from kiel_groups.cli.parameters.shared_options import ZOOKEEPER_WAIT_S, json_option, zookeeper_option
from kiel_groups.cli.terminal.exit_codes import DONE, EPILOG
from kiel_groups.cli.terminal.messages import Lines

__all__ = ["groups"]


@click.command(epilog=EPILOG)
@zookeeper_option
@click.option("--lag", "with_lag", is_flag=True, help="Show the lag of each group; reads all offsets.")
@json_option
@click.pass_obj
def groups(lines: Lines, *, zookeeper: str, with_lag: bool, as_json: bool) -> int:
    """
    List the groups of a cluster.

    Groups of other clients are listed, too. The column 'foreign' counts live members that do not take part in the
    protocol, such as Java consumers or members of kiel. State 'empty': the group has no members now; its offsets stay.
    'memberless': no member has ever joined; another program commits its offsets. 'unreadable': an ACL denies reading;
    a warning names the znodes.
    """
    from kiel_groups.cli.terminal.rendering import show, show_json
    from kiel_groups.ops.json_documents import outline_document
    from kiel_groups.ops.report import groups_table
    from kiel_groups.service.group_loader import load_groups
    from kiel_groups.wording import some

    loaded = load_groups(zookeeper, with_lag=with_lag, timeout_s=ZOOKEEPER_WAIT_S)
    for view in loaded.groups:
        if view.closed:
            lines.say("warning", f"an ACL denies reading parts of group {view.group}: {some(view.closed)}")
    if with_lag and loaded.lag_problem:
        lines.say("warning", f"the lag is not fully known: {loaded.lag_problem}")
    if as_json:
        show_json([outline_document(view, with_lag=with_lag) for view in loaded.groups])
    elif loaded.groups:
        show(groups_table(loaded.groups, with_lag=with_lag))
    else:
        aside = "" if loaded.brokers else ", and no broker: is the chroot right?"
        lines.say("info", f"there are no groups in ZooKeeper at {zookeeper}{aside}")
    return DONE
