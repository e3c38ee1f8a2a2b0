"""``kiel-groups acl``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from kiel_groups.cli.parameters.options import SERVER_WAIT_S, group_argument, in_zookeeper_only, json_option
from kiel_groups.cli.terminal.changes import ChangeOptions, change_options
from kiel_groups.cli.terminal.messages import DONE, EPILOG, Lines
from kiel_groups.wording import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kiel_groups.ops.acls import ZnodeAcl

_in_zookeeper = in_zookeeper_only("brokers have ACLs of their own, for kafka-acls")


@click.group(epilog=EPILOG)
def acl() -> None:
    """
    Show and set the ACLs of a group's znodes.

    The file of --security says which ACLs they are to have, with its key 'acl'. Without that key, they are
    open for everyone.
    """


@acl.command(epilog=EPILOG)
@group_argument
@_in_zookeeper
@json_option
def show(*, group: str, zookeeper: str, as_json: bool) -> int:
    """Show the ACLs of a group's znodes, and those that the file asks for, with the number of znodes of each."""
    from kiel_groups.cli.terminal.rendering import show_result
    from kiel_groups.ops.acls import group_paths, read_acls
    from kiel_groups.ops.zookeeper_reader import group_session

    with group_session(zookeeper, group, timeout_s=SERVER_WAIT_S) as client:
        acls = read_acls(client, group_paths(client, group))
    show_result(_document(group, acls), _table(acls), as_json=as_json)
    return DONE


@acl.command(epilog=EPILOG)
@group_argument
@_in_zookeeper
@change_options
@click.pass_obj
def apply(lines: Lines, /, *, group: str, zookeeper: str, how: ChangeOptions) -> int:
    """
    Give a group's znodes the ACLs that the file asks for.

    The group may have live members. Members that lack the rights stop with an error, so give all of them credentials
    before.
    """
    from kiel_groups.ops.acls import apply_acls, group_paths, read_acls
    from kiel_groups.ops.zookeeper_reader import group_session

    with group_session(zookeeper, group, timeout_s=SERVER_WAIT_S) as client:
        wrong = [each for each in read_acls(client, group_paths(client, group)) if each.differs]
        how.show(_document(group, wrong), *([_table(wrong)] if wrong else []))
        if wrong and how.is_confirmed(f"Set the ACLs of {counted(wrong, 'znode')}?"):
            # Members may have created znodes while the user was asked.
            count = apply_acls(client, read_acls(client, group_paths(client, group)))
            lines.say("info", f"group {group}: set the ACLs of {counted(count, 'znode')}")
        elif not wrong:
            lines.say("info", f"group {group}: all ACLs are as the file asks for")
    return DONE


def _kinds(acls: Sequence[ZnodeAcl]) -> list[tuple[int, ZnodeAcl]]:
    """Return the number of znodes of each pair of ACLs, with the first of these znodes."""
    counts = Counter(each[1:] for each in acls)
    first = {each[1:]: each for each in reversed(acls)}
    return [(count, first[kind]) for kind, count in counts.items()]


def _document(group: str, acls: Sequence[ZnodeAcl]) -> dict[str, Any]:
    kinds = [
        {
            "znodes": count,
            "acl": each.present or None,
            "expected": each.wanted,
            "differs": each.differs,
            "example": each.path,
        }
        for count, each in _kinds(acls)
    ]
    return {"group": group, "acls": kinds}


def _table(acls: Sequence[ZnodeAcl]) -> RenderableType:
    from kiel_groups.cli.terminal.rendering import plain_table

    rows = [
        (str(count), each.present or "unknown", each.wanted if each.differs else "the same", each.path)
        for count, each in _kinds(acls)
    ]
    return plain_table(("znodes", "ACL", "the file asks for", "for example"), rows, right=("znodes",))
