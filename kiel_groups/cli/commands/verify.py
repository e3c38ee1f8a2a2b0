"""``kiel-groups verify``."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import click

from kiel_groups.cli.parameters.options import (
    NumbersCommand,
    cluster_options,
    group_argument,
    json_option,
    seconds_option,
)
from kiel_groups.cli.terminal.messages import DONE, EPILOG, FAILED, Lines
from kiel_groups.errors import KielGroupsError
from kiel_groups.ops.actions.cluster_address import ClusterAddress
from kiel_groups.wording import counted, own_command

if TYPE_CHECKING:
    from kiel_groups.ops.views.group_view import GroupView
    from kiel_groups.ops.views.progress import Verification


_WINDOW_S = 10
_TIMEOUT_S = 60
#: The pause between two looks at the group, in seconds.
_PAUSE_S = 1.0


@click.command(cls=NumbersCommand, epilog=EPILOG)
@group_argument
@cluster_options
@json_option
@seconds_option(
    "--window",
    "How long an offset may stay while there is lag; more than the interval of commits. 0 does not check it.",
    _WINDOW_S,
)
@seconds_option("--timeout", "How long to wait for the end of a rebalance.", _TIMEOUT_S)
@click.pass_obj
def verify(
    lines: Lines, /, *, group: str, cluster: ClusterAddress, as_json: bool, window_s: float, timeout_s: float
) -> int:
    """
    Check that a group works.

    A group works if a live member owns each partition once, as planned, and if offsets move where there is lag. If all
    is well, the command prints one line. Otherwise, it prints each problem with its kind, its cause and a remedy, and
    exits with 1. It changes nothing. While the group rebalances, it waits.

    The command ends before the window does if no partition has lag, or if all partitions with lag commit.
    """
    from rich.text import Text

    from kiel_groups.cli.terminal.rendering import show, show_json
    from kiel_groups.ops.views.documents import finding_document
    from kiel_groups.ops.views.progress import Verification
    from kiel_groups.ops.views.report import Sentences, finding_rows

    verification = Verification(round(window_s * 1000))
    view = _look(lines, cluster, group, verification, window_s=window_s, timeout_s=timeout_s)
    findings = verification.findings
    if as_json:
        show_json(
            {
                "group": group,
                "well": not findings,
                "state": view.state,
                "members": view.size,
                "partitions": len(view.partitions),
                "owned": view.owned,
                "wrong": [finding_document(finding) for finding in findings],
            }
        )
    elif findings:
        show(Sentences(finding_rows(findings, lambda each: Text(each.kind, "bold red"))))
    else:
        facts = [f"{view.state}, with {counted(view.size, 'live member')}"]
        if view.is_of_consumers:
            facts.append(f"{view.owned:,} of {counted(view.partitions, 'partition is', 'partitions are')} owned")
            facts += ["no offset is stuck"] if window_s > 0 and view.members else []
        elif view.are_workers:
            facts.append(f"{own_command('workers', 'describe', view.group, '--check')} checks what they run")
        show(f"group {view.group} is well: {'; '.join(facts)}")
    return FAILED if findings else DONE


def _look(
    lines: Lines, cluster: ClusterAddress, group: str, verification: Verification, *, window_s: float, timeout_s: float
) -> GroupView:
    """
    Load the group repeatedly until the findings are final, and return the last view.

    If the group still rebalances after ``timeout_s``, stop then.

    Raises:
        KielGroupsError: The group cannot be loaded.
    """
    from kiel_groups.cli.terminal.rendering import waiting

    with closing(cluster.groups().follow(group)) as loads, ExitStack() as stack:
        wait = None
        while True:
            loaded = next(loads)
            if isinstance(loaded, KielGroupsError):
                raise loaded
            (view,) = loaded.groups
            if verification.take(view, loaded.seen_ms, loaded.lag_problem):
                return view
            if wait is None:
                wait = stack.enter_context(waiting(lines, f"watching group {group}", timeout_s + window_s))
            passed_s = wait(0)
            if passed_s >= timeout_s and not verification.is_settled:
                return view
            wait(passed_s + min(_PAUSE_S, max(window_s, timeout_s) / 4))
