"""``kiel-groups plan``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, TYPE_CHECKING

import click

from kiel_groups.cli.commands.weights import weights_of_file
from kiel_groups.cli.parameters.cluster_address import complete_allocators, complete_members, complete_topics
from kiel_groups.cli.parameters.options import cluster_options, group_argument, json_option, refuse_given
from kiel_groups.cli.terminal.messages import DONE, EPILOG
from kiel_groups.errors import ConfigError
from kiel_groups.ops.actions.cluster_address import ClusterAddress

if TYPE_CHECKING:
    from kiel_groups.ops.views.plan_preview import GroupChange, PlanPreview


@click.command(epilog=EPILOG)
@group_argument
@click.option("--add-member", "added", type=click.IntRange(min=0), default=0, metavar="N", help="N members join.")
@click.option(
    "--remove-member",
    "removed",
    multiple=True,
    metavar="MEMBER",
    help="This member leaves: its id, the session at its end, or an instance id. Can be repeated.",
    shell_complete=complete_members,
)
@click.option("--host", default="", metavar="HOST", help="All members of this host leave.")
@click.option(
    "--allocator",
    metavar="NAME",
    help="Plan with this allocator, or your MODULE:FUNCTION.  [default: that of the group]",
    shell_complete=complete_allocators,
)
@click.option(
    "--weights",
    "file",
    type=click.File("rb"),
    metavar="FILE",
    help="Plan with these weights, as for 'weights set --file'; - is standard input.",
)
@click.option("--topics", metavar="TOPIC,...", help="All members subscribe to these.", shell_complete=complete_topics)
@click.option(
    "--partitions", "grown", multiple=True, metavar="TOPIC=N", help="TOPIC grows to N partitions. Repeatable."
)
@click.option("--diff", is_flag=True, help="Show only the partitions that move.")
@cluster_options
@json_option
@click.pass_context
def plan(
    context: click.Context,
    /,
    *,
    group: str,
    cluster: ClusterAddress,
    added: int,
    removed: tuple[str, ...],
    host: str,
    allocator: str | None,
    file: IO[bytes] | None,
    topics: str | None,
    grown: tuple[str, ...],
    diff: bool,
    as_json: bool,
) -> int:
    """
    Show what the leader of a group would plan after a change. Nothing is changed.

    Without a change, the command shows what the leader would plan now. Several changes are planned as one. New members
    have the default capacity, and are sorted as if they started now on the host of the newest member.
    """
    from kiel_groups.cli.terminal.rendering import show_result
    from kiel_groups.ops.views.plan_preview import GroupChange, preview_document, preview_report

    if cluster.is_of_brokers:
        refuse_given(context, ("file",), "does not go with '--coordination brokers': such groups have no weights")
    change = GroupChange(
        added=added,
        removed=removed,
        host=host,
        topics=_topics(topics),
        partitions=_partitions(grown),
        weights=None if file is None else weights_of_file(file),
    )
    preview = (_by_brokers if cluster.is_of_brokers else _by_zookeeper)(cluster, group, change, allocator)
    report = preview_report(preview, only_moves=diff)
    show_result(preview_document(preview, only_moves=diff), *report, as_json=as_json)
    return DONE


def _by_zookeeper(cluster: ClusterAddress, group: str, change: GroupChange, name: str | None) -> PlanPreview:
    from kiel_groups.cli.parameters.function_loading import load_allocator
    from kiel_groups.ops.actions.plans import preview_group
    from kiel_groups.ops.zookeeper_client import zookeeper

    allocator = load_allocator(name, "--allocator")
    with zookeeper(cluster.hosts, timeout_s=cluster.timeout_s) as client:
        return preview_group(client, group, change, allocator, timeout_s=cluster.timeout_s)


def _by_brokers(cluster: ClusterAddress, group: str, change: GroupChange, names: str | None) -> PlanPreview:
    from kiel_groups.allocators.assignors import assignors_of
    from kiel_groups.cli.parameters.function_loading import load_assignors
    from kiel_groups.ops.actions.plans import preview_group_of_brokers
    from kiel_groups.ops.broker_reader import in_session

    offered = None if names is None else assignors_of(load_assignors(names, "--allocator"), "--allocator")
    chosen = None if offered is None else offered[0]
    return in_session(
        cluster.hosts, cluster.timeout_s, lambda session: preview_group_of_brokers(session, group, change, chosen)
    )


def _topics(given: str | None) -> tuple[str, ...]:
    from kiel_groups.config import check_name

    if given is None:
        return ()
    topics = tuple(dict.fromkeys(filter(None, map(str.strip, given.split(",")))))
    if not topics:
        raise ConfigError(f"--topics: {given!r} given; expected topics, separated by commas")
    return tuple(check_name(topic, "--topics") for topic in topics)


def _partitions(given: Sequence[str]) -> dict[str, int]:
    counts = {}
    for each in given:
        topic, _, count = each.rpartition("=")
        if not topic or not count.isdecimal() or not 0 < int(count) <= _MOST_PARTITIONS:
            raise ConfigError(
                f"--partitions: {each!r:.80} given; expected TOPIC=N, such as page-views=12, with at most"
                f" {_MOST_PARTITIONS:,} partitions"
            )
        counts[topic] = int(count)
    return counts


#: More than a cluster of 0.8 has.
_MOST_PARTITIONS = 100_000
