"""``kiel-groups lag``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kiel_groups.cli.parameters.cluster_address import ClusterAddress, complete_groups
from kiel_groups.cli.parameters.options import NumbersCommand, OptionalNumber, cluster_options, json_option
from kiel_groups.cli.terminal.messages import DONE, EPILOG, FAILED

if TYPE_CHECKING:
    from kiel_groups.ops.views.group_view import GroupView

__all__ = ["lag"]


@click.command(cls=NumbersCommand, epilog=EPILOG)
@click.argument("group", shell_complete=complete_groups)
@cluster_options
@json_option
@click.option(
    "--check",
    "most",
    type=OptionalNumber("records", least=0, whole=True),
    is_flag=False,
    flag_value=0,
    metavar="[RECORDS]",
    help="Exit with 1 if the lag is more than RECORDS (0 if omitted), or if not all of it is known.",
)
def lag(*, group: str, cluster: ClusterAddress, as_json: bool, most: int | None) -> int:
    """
    Show how far a group is behind in each partition, and in all.

    The lag of a partition is the end of its log less the committed offset; it is '?' without a committed offset.

    Of a group of other clients in ZooKeeper, the offsets in Kafka are read, too. If ZooKeeper and Kafka have different
    ones, those count that move while the command looks, for two seconds; otherwise both are shown, and --check takes
    the larger lag.
    """
    from kiel_groups.cli.terminal.rendering import show, show_json
    from kiel_groups.errors import ConfigError
    from kiel_groups.ops.views.documents import lag_document
    from kiel_groups.ops.views.report import lag_report

    loaded = cluster.groups().load(group)
    (view,) = loaded.groups
    partitions = view.partitions
    if not partitions and not view.is_of_consumers:
        raise ConfigError(_lagless(view))
    if as_json:
        show_json(lag_document(group, partitions, loaded.lag_problem))
    else:
        show(*lag_report(group, partitions, loaded.lag_problem))
    is_known = not loaded.lag_problem and all(each.lag is not None for each in partitions)
    is_well = is_known and view.lag <= (most or 0)
    return FAILED if most is not None and not is_well else DONE


def _lagless(view: GroupView) -> str:
    """Return that members of this type have no lag, and what shows them."""
    text = f"the members of group {view.group} are of the type {view.protocol_type!r}, and consume no partitions"
    if not view.are_workers:
        return f"{text}; 'kiel-groups describe {view.group}' shows them"
    return (
        f"{text}; 'kiel-groups workers describe {view.group}' shows them, and 'kiel-groups lag connect-NAME' the lag of"
        " the sink connector NAME"
    )
