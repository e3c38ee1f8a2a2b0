"""``kiel-groups doctor``."""

from __future__ import annotations

import click

from kiel_groups.cli.parameters.cluster_address import complete_groups
from kiel_groups.cli.parameters.options import (
    SERVER_WAIT_S,
    json_option,
    optional_brokers_option,
    optional_zookeeper_option,
)
from kiel_groups.cli.terminal.messages import DONE, EPILOG, FAILED, Lines
from kiel_groups.ops.actions.cluster_address import BROKERS, ZOOKEEPER
from kiel_groups.wording import counted


@click.command(epilog=EPILOG)
@click.argument("groups", nargs=-1, metavar="[GROUP]...", shell_complete=complete_groups)
@click.option(
    "--coordination",
    type=click.Choice([ZOOKEEPER, BROKERS]),
    help="Whose groups to check; with 'brokers', '--zookeeper' is ignored.  [default: ZooKeeper's, if it is given]",
)
@optional_zookeeper_option
@optional_brokers_option
@json_option
@click.pass_obj
def doctor(
    lines: Lines,
    /,
    *,
    groups: tuple[str, ...],
    coordination: str | None,
    zookeeper: str | None,
    brokers: str | None,
    as_json: bool,
) -> int:
    """
    Check that servers and groups are reachable, sound, and of one cluster.

    With --zookeeper, the command checks ZooKeeper's servers, the registered brokers, those of --brokers, and the znodes
    of all groups. With --brokers alone, it checks these brokers and the groups that they coordinate. If groups are
    named, it checks no others.

    The command changes nothing, and exits with 1 if it finds a problem. 'describe' shows how far a group has come.
    """
    from kiel_groups.cli.terminal.rendering import show, show_json
    from kiel_groups.ops.doctor import examine
    from kiel_groups.ops.views.cluster_checks import check_lines
    from kiel_groups.ops.views.documents import finding_document

    if coordination == BROKERS:
        zookeeper = None
    if zookeeper is None and (brokers is None or coordination == ZOOKEEPER):
        needed = "give '--zookeeper', '--brokers' or both"
        if coordination is not None:
            needed = f"'--coordination {coordination}' needs '--{coordination}'"
        raise click.UsageError(f"{needed}.", click.get_current_context())
    checks = []
    for check in examine(zookeeper, brokers, groups, timeout_s=SERVER_WAIT_S):
        checks.append(check)
        if not as_json:
            show(check_lines(check))
    problems = [finding for check in checks for finding in check.findings]
    if as_json:
        documents = [
            {"subject": check.subject, "text": check.text, "wrong": list(map(finding_document, check.findings))}
            for check in checks
        ]
        show_json({"wrong": list(map(finding_document, problems)), "checks": documents})
    elif problems:
        lines.say("error", f"{counted(problems, 'problem')} in {counted(checks, 'check')}")
    else:
        lines.say("info", f"nothing is wrong: {counted(checks, 'check')}")
    return FAILED if problems else DONE
