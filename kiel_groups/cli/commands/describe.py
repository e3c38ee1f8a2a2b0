"""``kiel-groups describe``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

import click

from kiel_groups.cli.parameters.name_completion import complete_groups
from kiel_groups.cli.parameters.options import ClusterAddress, cluster_options, json_option, refuse_given
from kiel_groups.cli.parameters.types import NumbersCommand, OptionalNumber
from kiel_groups.cli.terminal.messages import DONE, EPILOG, FAILED, Lines

if TYPE_CHECKING:
    from kiel_groups.cli.sources.group_sources import GroupSource
    from kiel_groups.ops.group_loader import LoadedGroups
    from kiel_groups.ops.views.checks import Finding
    from kiel_groups.ops.views.report import Listed

__all__ = ["describe"]

_INTERVAL_S = 2.0
_PLANS = 10

#: A little longer than ``WATCHED_MS``, so that the second load is certainly at least that much later.
_WATCHED_S = 16.0


@click.command(cls=NumbersCommand, epilog=EPILOG)
@click.argument("group", shell_complete=complete_groups)
@cluster_options
@json_option
@click.option(
    "--watch",
    "interval_s",
    type=OptionalNumber("seconds", least=0.1),
    is_flag=False,
    flag_value=_INTERVAL_S,
    metavar="[SECONDS]",
    help=f"Repeat every SECONDS ({_INTERVAL_S:g} if omitted) until Ctrl-C.",
)
@click.option(
    "--partitions",
    "listed",
    type=click.Choice(["all", "wrong", "none"]),
    help="Which partitions to list.  [default: all; with --watch, as many as fit the terminal]",
)
@click.option("--check", is_flag=True, help="Exit with 1 if something is wrong that does not pass by itself.")
@click.option(
    "--history",
    "generations",
    type=OptionalNumber("plans", least=1, whole=True),
    is_flag=False,
    flag_value=_PLANS,
    metavar="[N]",
    help=f"Also show the last N plans ({_PLANS} if omitted), which only ZooKeeper has.",
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
    Show a group: what is wrong with it, its members, their partitions and the lag.

    If ZooKeeper coordinates the group, offsets and owners come from there; otherwise, members, partitions and offsets
    come from the group's coordinator. The ends of logs come from the brokers.
    """
    from kiel_groups.cli.sources.group_sources import group_source
    from kiel_groups.cli.terminal.rendering import watch

    if as_json and listed:
        raise click.UsageError("--partitions does not go with --json, which has all partitions.")
    if check and interval_s is not None:
        raise click.UsageError("--check does not go with --watch.")
    if cluster.is_of_brokers:
        refuse_given(context, ("generations",), "does not go with '--coordination brokers': brokers keep no plans")
    lines = context.ensure_object(Lines)
    source = group_source(cluster, group, generations=generations or 0)
    presenter = _Presenter(source, as_json=as_json, listed=cast("Listed | None", listed))
    if interval_s is not None:
        with closing(source.follow()) as loads:
            watch(lines, loads, presenter.show_next, interval_s)
    loaded = source.load()
    if check and (why := source.needs_time(loaded)):
        lines.say("info", f"{why}; looking again in {_WATCHED_S:g} s")
        time.sleep(_WATCHED_S)
        loaded = source.load()
    is_well = presenter.show(loaded)
    return FAILED if check and not is_well else DONE


class _Presenter:
    """
    Shows successive loads of a group, each with the problems that all loads so far have revealed.

    ``listed`` selects the partitions to list; None means the default.
    """

    def __init__(self, source: GroupSource[Any], *, as_json: bool, listed: Listed | None) -> None:
        self._source = source
        self._as_json = as_json
        self._listed = listed

    def show(self, loaded: LoadedGroups[Any]) -> bool:
        """Show a single load. Return True if there is no problem that needs an operator."""
        from kiel_groups.cli.terminal.rendering import show, show_json

        findings: Sequence[Finding] = self._source.findings(loaded)
        if self._as_json:
            show_json(self._source.document(loaded, findings))
        else:
            show(*self._source.report(loaded, findings, self._listed or "all"))
        return all(finding.passing for finding in findings)

    def show_next(self, loaded: LoadedGroups[Any], first: bool) -> None:
        """Show one of the loads of ``--watch``."""
        from kiel_groups.cli.terminal.rendering import clock, show_json, show_next

        findings = self._source.findings(loaded)
        if self._as_json:
            show_json(self._source.document(loaded, findings), on_one_line=True)
            return
        now = clock()
        show_next(lambda listed: self._source.report(loaded, findings, listed, now), self._listed, first=first)
