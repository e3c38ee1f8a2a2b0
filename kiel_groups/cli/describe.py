"""``kiel-groups describe``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NoReturn

import click

from kiel_groups.cli.lines import Lines
from kiel_groups.cli.options import ZOOKEEPER_WAIT_S, json_option, zookeeper_option
from kiel_groups.cli.statuses import DONE, EPILOG, FAILED

__all__ = ["describe"]

_INTERVAL_S = 2.0


class _Seconds(click.FloatRange):
    """An option whose value may be left out takes the next word for it: the group, where that stands behind."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(
                f"{value!r} is no number of seconds from {self.min:g} on; the group stands before it.", param, ctx
            )


@click.command(epilog=EPILOG)
@click.argument("group")
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
@click.option("--check", is_flag=True, help="Exit with 1 where something is wrong that will not pass by itself.")
@click.pass_obj
def describe(lines: Lines, *, group: str, zookeeper: str, as_json: bool, interval_s: float | None, check: bool) -> int:
    """
    Show a group: what is wrong, who is in it, what each owns, how far behind it is.

    Offsets and owners come from ZooKeeper, ends of logs from the brokers that are registered there.
    """

    def look() -> bool:
        return _show(lines, group, zookeeper, as_json=as_json, again=interval_s is not None)

    if interval_s is not None:
        if check:
            raise click.UsageError("--check says how one look went; it does not go with --watch.")
        _repeat(lines, look, interval_s)
    return FAILED if not look() and check else DONE


def _show(lines: Lines, group: str, zookeeper: str, *, as_json: bool, again: bool) -> bool:
    """Look once; whether all is well, or will be in a moment."""
    from kiel_groups.cli.rendering import show, show_json
    from kiel_groups.ops.checks import check_group
    from kiel_groups.ops.documents import group_document
    from kiel_groups.ops.report import group_report
    from kiel_groups.service.looking import look_at_group

    look = look_at_group(zookeeper, group, timeout_s=ZOOKEEPER_WAIT_S)
    view, now_ms = look.groups[0], time.time_ns() // 1_000_000
    findings = check_group(view, now_ms)
    if as_json:
        show_json(group_document(view, findings, lag_problem=look.lag_problem), on_one_line=again)
    else:
        if again:
            click.clear()
        show(*group_report(view, findings, place=zookeeper, lag_problem=look.lag_problem, now_ms=now_ms))
    return all(finding.passing for finding in findings)


def _repeat(lines: Lines, look: Callable[[], bool], interval_s: float) -> NoReturn:
    """Until Ctrl-C; what goes wrong after the first look is said, and looked at again."""
    from kiel_groups.errors import ConfigError, KielGroupsError

    look()
    while True:
        time.sleep(interval_s)
        try:
            look()
        except ConfigError:
            raise
        except KielGroupsError as error:
            lines.say("error", f"{error}; looking again")
