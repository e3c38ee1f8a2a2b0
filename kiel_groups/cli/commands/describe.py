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

    from kiel_groups.ops.checks import Finding
    from kiel_groups.ops.report import Listed
    from kiel_groups.service.group_loader import Look

__all__ = ["describe"]

_INTERVAL_S = 2.0
_PLANS = 10

#: A little longer than ``WATCHED_MS``, for it is counted from when the first look was over.
_WATCHED_S = 16.0


class _Seconds(click.FloatRange):
    """An option whose value may be left out takes the next word for it: the group, where that stands behind."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(
                f"{value!r} is no number of seconds from {self.min:g} on; the group stands before it.", param, ctx
            )


class _Plans(click.IntRange):
    """Its value may be left out, too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} is no number of plans from {self.min} on; the group stands before it.", param, ctx)


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
    help=f"Look again and again, every {_INTERVAL_S:g} seconds unless told, until Ctrl-C.",
)
@click.option(
    "--partitions",
    "listed",
    type=click.Choice(["all", "wrong", "none"]),
    help="Which to list; all unless told, with --watch as many as fit the terminal.",
)
@click.option("--check", is_flag=True, help="Exit with 1 where something is wrong that will not pass by itself.")
@click.option(
    "--history",
    "generations",
    type=_Plans(min=1),
    is_flag=False,
    flag_value=_PLANS,
    metavar="[N]",
    help=f"Tell of the last plans, too; {_PLANS} unless told.",
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
    Show a group: what is wrong, who is in it, what each owns, how far behind it is.

    Offsets and owners come from ZooKeeper, ends of logs from the brokers that are registered there.
    """
    from kiel_groups.cli.terminal.watch import watch
    from kiel_groups.service.group_loader import look_at_group, looks_at_group

    if as_json and listed:
        raise click.UsageError("--partitions is for tables; --json has all of them.")
    if check and interval_s is not None:
        raise click.UsageError("--check says how one look went; it does not go with --watch.")
    picture = _Picture(zookeeper, as_json=as_json, listed=cast("Listed | None", listed), generations=generations or 0)
    if interval_s is not None:
        with closing(looks_at_group(zookeeper, group, timeout_s=ZOOKEEPER_WAIT_S)) as looks:
            watch(lines, looks, picture.show_next, interval_s)
    look = look_at_group(zookeeper, group, timeout_s=ZOOKEEPER_WAIT_S)
    if check and picture.needs_time(look):
        lines.say("info", f"partitions are behind that had no commit for long; looking again in {_WATCHED_S:g} s")
        time.sleep(_WATCHED_S)
        look = look_at_group(zookeeper, group, timeout_s=ZOOKEEPER_WAIT_S)
    well = picture.show(look)
    return FAILED if check and not well else DONE


class _Picture:
    """
    How looks at a group are shown, and what is wrong by all of them so far.

    ``listed`` partitions, None unless told, or JSON; so many ``generations`` of the past.
    """

    def __init__(self, zookeeper: str, *, as_json: bool, listed: Listed | None, generations: int) -> None:
        from kiel_groups.ops.partition_progress import Progress

        self._zookeeper = zookeeper
        self._as_json = as_json
        self._listed = listed
        self._generations = generations
        self._progress = Progress()

    def needs_time(self, look: Look) -> bool:
        """Whether a second look, ``_WATCHED_S`` later, may find something that this one cannot."""
        self._progress.take(look.groups[0], look.seen_ms)
        return self._progress.suspects(look.seen_ms)

    def show(self, look: Look) -> bool:
        """The only one; whether all is well, or will be in a moment."""
        from kiel_groups.cli.terminal.rendering import show, show_json

        findings = self._findings(look)
        if self._as_json:
            show_json(self._document(look, findings))
        else:
            show(*self._report(look, findings, self._listed or "all"))
        return all(finding.passing for finding in findings)

    def show_next(self, look: Look, first: bool) -> None:
        """One of many."""
        from kiel_groups.cli.terminal.rendering import show_json
        from kiel_groups.cli.terminal.watch import clock, show_next

        findings = self._findings(look)
        if self._as_json:
            show_json(self._document(look, findings), on_one_line=True)
            return
        now = clock()
        show_next(lambda listed: self._report(look, findings, listed, now), self._listed, first=first)

    def _findings(self, look: Look) -> Sequence[Finding]:
        from kiel_groups.ops.checks import check_group

        view = look.groups[0]
        return (*self._progress.take(view, look.seen_ms), *check_group(view, look.seen_ms))

    def _report(
        self, look: Look, findings: Sequence[Finding], listed: Listed, clock: str = ""
    ) -> Sequence[RenderableType]:
        from kiel_groups.ops.report import group_report

        return group_report(
            look.groups[0],
            findings,
            place=self._zookeeper,
            lag_problem=look.lag_problem,
            now_ms=look.seen_ms,
            clock=clock,
            listed=listed,
            generations=self._generations,
        )

    def _document(self, look: Look, findings: Sequence[Finding]) -> dict[str, Any]:
        from kiel_groups.ops.json_documents import group_document

        document = group_document(look.groups[0], findings, lag_problem=look.lag_problem, generations=self._generations)
        return {**document, "looked_at": look.seen_ms}
