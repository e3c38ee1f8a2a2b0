"""``kiel-groups describe``."""

from __future__ import annotations

import time
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, cast

import click

from kiel_groups.cli.parameters.options import (
    NumbersCommand,
    OptionalNumber,
    Seconds,
    cluster_options,
    group_argument,
    json_option,
    optional_number,
    refuse_given,
)
from kiel_groups.cli.terminal.messages import DONE, EPILOG, FAILED, Lines
from kiel_groups.ops.actions.cluster_address import ClusterAddress

if TYPE_CHECKING:
    from kiel_groups.ops.loaded_groups import LoadedGroups
    from kiel_groups.ops.views.progress import ProgressTracker
    from kiel_groups.ops.views.report import Listed


_INTERVAL_S = 2.0
_PLANS = 10

#: A little longer than ``WATCHED_MS``, so that the second load is certainly at least that much later.
_WATCHED_S = 16.0


@click.command(cls=NumbersCommand, epilog=EPILOG)
@group_argument
@cluster_options
@json_option
@optional_number(
    "--watch",
    "interval_s",
    Seconds(least=0.1),
    _INTERVAL_S,
    f"Repeat every SECONDS ({_INTERVAL_S:g} if omitted) until Ctrl-C.",
)
@click.option(
    "--partitions",
    "listed",
    type=click.Choice(["all", "wrong", "none"]),
    help="Which partitions to list.  [default: all; with --watch, as many as fit the terminal]",
)
@click.option("--check", is_flag=True, help="Exit with 1 if something is wrong that does not pass by itself.")
@optional_number(
    "--history",
    "generations",
    OptionalNumber("plans", least=1, whole=True),
    _PLANS,
    f"Also show the last N plans ({_PLANS} if omitted), which only ZooKeeper has.",
)
@click.pass_context
def describe(
    context: click.Context,
    /,
    *,
    group: str,
    cluster: ClusterAddress,
    as_json: bool,
    interval_s: float | None,
    listed: str | None,
    check: bool,
    generations: int | None,
) -> int:
    """
    Show a group: what is wrong with it, its members, their partitions, and the lag.

    If ZooKeeper coordinates the group, its znodes have offsets and owners. If brokers do, the group's coordinator tells
    members, partitions and offsets. In both cases, brokers tell where the logs end.
    """
    from kiel_groups.cli.terminal.rendering import watch
    from kiel_groups.ops.views.progress import ProgressTracker

    if as_json and listed:
        raise click.UsageError("--partitions does not go with --json, which has all partitions.")
    if check and interval_s is not None:
        raise click.UsageError("--check does not go with --watch.")
    if cluster.is_of_brokers:
        refuse_given(context, ("generations",), "does not go with '--coordination brokers': brokers keep no plans")
    lines = context.ensure_object(Lines)
    groups, progress, chosen = cluster.groups(), ProgressTracker(), cast("Listed | None", listed)
    show = partial(
        _show, progress=progress, cluster=cluster, listed=chosen, generations=generations or 0, as_json=as_json
    )
    if interval_s is not None:
        with closing(groups.follow(group)) as loads:
            watch(lines, loads, lambda loaded, first: show(loaded, first=first), interval_s)
    loaded = groups.load(group)
    if check:
        progress.take(loaded.groups[0], loaded.seen_ms)
        if why := progress.suspicion(loaded.seen_ms):
            lines.say("info", f"{why}; looking again in {_WATCHED_S:g} s")
            time.sleep(_WATCHED_S)
            loaded = groups.load(group)
    is_well = show(loaded)
    return FAILED if check and not is_well else DONE


def _show(
    loaded: LoadedGroups,
    progress: ProgressTracker,
    cluster: ClusterAddress,
    listed: Listed | None,
    generations: int,
    *,
    as_json: bool,
    first: bool | None = None,
) -> bool:
    """
    Show a group, as it was just loaded, with its problems. Some problems show only in a comparison with earlier loads.

    Args:
        loaded: The result of the load.
        progress: Compares the loads.
        cluster: The servers of the group.
        listed: Which partitions to list.
        generations: How many plans to show of a group in ZooKeeper.
        as_json: Whether to show the JSON document.
        first: Whether this is the first load of ``--watch``; None for a single load.

    Returns:
        True if no problem needs an operator.
    """
    from kiel_groups.cli.terminal.rendering import clock, present
    from kiel_groups.ops.views.checks import check_group
    from kiel_groups.ops.views.documents import group_document
    from kiel_groups.ops.views.report import group_report

    view, now_ms, problem = loaded.groups[0], loaded.seen_ms, loaded.lag_problem
    found = (*progress.take(view, now_ms), *check_group(view, now_ms))
    findings = sorted(found, key=lambda finding: finding.passing)
    document = None
    if as_json:
        document = group_document(view, findings, lag_problem=problem, generations=generations)
        document |= {"looked_at": now_ms}
    report = partial(group_report, view, findings, place=cluster.place, lag_problem=problem, now_ms=now_ms)
    now = "" if first is None else clock()
    present(document, lambda shown: report(clock=now, listed=shown, generations=generations), listed, first=first)
    return all(finding.passing for finding in findings)
