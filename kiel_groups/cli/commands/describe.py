"""``kiel-groups describe``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

import click

from kiel_groups.cli.parameters.name_completion import complete_groups
from kiel_groups.cli.parameters.shared_options import ZOOKEEPER_WAIT_S, json_option, zookeeper_option
from kiel_groups.cli.terminal.exit_codes import DONE, EPILOG, FAILED
from kiel_groups.cli.terminal.messages import Lines

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kiel_groups.ops.findings import Finding
    from kiel_groups.ops.report_parts import Listed
    from kiel_groups.service.group_loader import LoadedGroups

__all__ = ["describe"]

_INTERVAL_S = 2.0
_PLANS = 10

#: A little longer than ``WATCHED_MS``, so that the second load is certainly at least that much later.
_WATCHED_S = 16.0


class _Seconds(click.FloatRange):
    """An optional number of seconds. If GROUP follows the option, click takes it as the value; the error says so."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(
                f"{value!r} is not a number of seconds ≥ {self.min:g}; GROUP goes before this option.", param, ctx
            )


class _Plans(click.IntRange):
    """An optional number of plans, with the same error as ``_Seconds``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} is not a number of plans ≥ {self.min}; GROUP goes before this option.", param, ctx)


@click.command(epilog=EPILOG)
@click.argument("group", shell_complete=complete_groups)
@zookeeper_option
@json_option
@click.option(
    "--watch",
    "interval_s",
    type=_Seconds(min=0.1),
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
    type=_Plans(min=1),
    is_flag=False,
    flag_value=_PLANS,
    metavar="[N]",
    help=f"Also show the last N plans ({_PLANS} if omitted).",
)
@click.pass_obj
def describe(
    lines: Lines,
    *,
    group: str,
    zookeeper: str,
    as_json: bool,
    interval_s: float | None,
    listed: str | None,
    check: bool,
    generations: int | None,
) -> int:
    """
    Show a group: what is wrong with it, its members, their partitions and the lag.

    Offsets and owners come from ZooKeeper, the ends of logs from the brokers that are registered there.
    """
    from kiel_groups.cli.terminal.watch import watch
    from kiel_groups.service.group_loader import follow_group, load_group

    if as_json and listed:
        raise click.UsageError("--partitions does not go with --json, which has all partitions.")
    if check and interval_s is not None:
        raise click.UsageError("--check does not go with --watch.")
    wanted = cast("Listed | None", listed)
    presenter = _Presenter(zookeeper, as_json=as_json, listed=wanted, generations=generations or 0)
    if interval_s is not None:
        with closing(follow_group(zookeeper, group, timeout_s=ZOOKEEPER_WAIT_S)) as loads:
            watch(lines, loads, presenter.show_next, interval_s)
    loaded = load_group(zookeeper, group, timeout_s=ZOOKEEPER_WAIT_S)
    if check and presenter.needs_time(loaded):
        lines.say("info", f"some partitions are behind without a recent commit; looking again in {_WATCHED_S:g} s")
        time.sleep(_WATCHED_S)
        loaded = load_group(zookeeper, group, timeout_s=ZOOKEEPER_WAIT_S)
    is_well = presenter.show(loaded)
    return FAILED if check and not is_well else DONE


class _Presenter:
    """
    Shows successive loads of a group, each with the problems that all loads so far have revealed.

    ``listed`` selects the partitions to list; None means the default. ``generations`` is the number of plans to show.
    """

    def __init__(self, zookeeper: str, *, as_json: bool, listed: Listed | None, generations: int) -> None:
        from kiel_groups.ops.partition_progress import ProgressTracker

        self._zookeeper = zookeeper
        self._as_json = as_json
        self._listed = listed
        self._generations = generations
        self._progress = ProgressTracker()

    def needs_time(self, loaded: LoadedGroups) -> bool:
        """Return whether a second load, ``_WATCHED_S`` later, may reveal a problem that a single load cannot."""
        self._progress.take(loaded.groups[0], loaded.seen_ms)
        return self._progress.suspects(loaded.seen_ms)

    def show(self, loaded: LoadedGroups) -> bool:
        """Show a single load. Return True if there is no problem that needs an operator."""
        from kiel_groups.cli.terminal.rendering import show, show_json

        findings = self._findings(loaded)
        if self._as_json:
            show_json(self._document(loaded, findings))
        else:
            show(*self._report(loaded, findings, self._listed or "all"))
        return all(finding.passing for finding in findings)

    def show_next(self, loaded: LoadedGroups, first: bool) -> None:
        """Show one of the loads of ``--watch``."""
        from kiel_groups.cli.terminal.rendering import show_json
        from kiel_groups.cli.terminal.watch import clock, show_next

        findings = self._findings(loaded)
        if self._as_json:
            show_json(self._document(loaded, findings), on_one_line=True)
            return
        now = clock()
        show_next(lambda listed: self._report(loaded, findings, listed, now), self._listed, first=first)

    def _findings(self, loaded: LoadedGroups) -> Sequence[Finding]:
        from kiel_groups.ops.checks import check_group

        view = loaded.groups[0]
        return (*self._progress.take(view, loaded.seen_ms), *check_group(view, loaded.seen_ms))

    def _report(
        self, loaded: LoadedGroups, findings: Sequence[Finding], listed: Listed, clock: str = ""
    ) -> Sequence[RenderableType]:
        from kiel_groups.ops.report import group_report

        return group_report(
            loaded.groups[0],
            findings,
            place=self._zookeeper,
            lag_problem=loaded.lag_problem,
            now_ms=loaded.seen_ms,
            clock=clock,
            listed=listed,
            generations=self._generations,
        )

    def _document(self, loaded: LoadedGroups, findings: Sequence[Finding]) -> dict[str, Any]:
        from kiel_groups.ops.json_documents import group_document

        document = group_document(
            loaded.groups[0], findings, lag_problem=loaded.lag_problem, generations=self._generations
        )
        return {**document, "looked_at": loaded.seen_ms}
