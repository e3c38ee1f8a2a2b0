"""Delete groups that ZooKeeper coordinates, or that other clients keep there, and what an empty group leaves."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from kazoo.exceptions import NoNodeError, RolledBackError

from kiel_groups.errors import CoordinationError
from kiel_groups.group.znodes.contents import Snapshot
from kiel_groups.group.znodes.layout import CONSUMERS, ROOT, GroupLayout
from kiel_groups.group.znodes.transactions import Create, Delete
from kiel_groups.ops.views.deletion import GroupDeletion, deletion_of_znodes, deletion_transactions
from kiel_groups.ops.zookeeper_client import Client, place_of
from kiel_groups.ops.zookeeper_reader import check_group, read_group
from kiel_groups.wording import counted

__all__ = ["ZnodesDeletion", "plan_deletion", "remove_empty_group"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ZnodesDeletion:
    """What deleting a group loses, and its znodes as they were read."""

    lost: GroupDeletion
    znodes: Snapshot

    def apply(self, client: Client) -> None:
        """
        Delete all znodes of the group, on the condition that no member has joined and none has changed.

        The deletion is one transaction, or several for a group of several thousand partitions; see
        ``deletion_transactions``.

        Raises:
            CoordinationError: A member has joined meanwhile, or a znode has changed; the text says what was deleted.
        """
        group, deleted = self.lost.group, 0
        for operations in deletion_transactions(group, self.znodes):
            if failed := _failed(client, operations):
                before = f"{counted(deleted, 'znode')} were deleted before" if deleted else "nothing was deleted"
                raise CoordinationError(
                    f"group {group} has changed meanwhile, at {failed}; {before}. A member has joined, or another"
                    f" program commits its offsets: 'kiel-groups describe {group}' shows the group"
                )
            deleted += len(operations)


def plan_deletion(client: Client, group: str) -> ZnodesDeletion:
    """
    Find what deleting a group loses.

    Args:
        client: The caller's own session.
        group: The group, of any client.

    Raises:
        UnknownGroupError: There is no such group.
        ConfigError: Members are alive; the text names them.
        CoordinationError: An ACL hides some znodes, so members may be alive.
    """
    check_group(client, group, place_of(client))
    znodes = read_group(client, group)
    return ZnodesDeletion(deletion_of_znodes(group, znodes), znodes)


def _failed(client: Client, operations: Sequence[Create | Delete]) -> str:
    """Send operations as one transaction. Return the path of the one that ZooKeeper refuses, or ""."""
    transaction = client.transaction()
    for operation in operations:
        if isinstance(operation, Create):
            transaction.create(operation.path)
        else:
            transaction.delete(operation.path, operation.version)
    for operation, outcome in zip(operations, transaction.commit(), strict=True):
        # Those before the refused one are rolled back.
        if isinstance(outcome, Exception) and not isinstance(outcome, RolledBackError):
            return f"{operation.path} ({type(outcome).__name__})"
    return ""


def remove_empty_group(client: Client, group: str) -> bool:
    """
    Delete the parent znodes of a group that has no member, no candidate, no plan and no settings.

    The deletion is one transaction, so that a member that joins meanwhile does not lose the parents of its own
    znodes. If any client has offsets, owners or consumer ids, the parent znodes under ``/consumers`` stay. A group of
    workers or other programs has settings as soon as it has had a member, so it is not deleted.

    Returns:
        Whether anything was deleted. If not, the log says what the group has.
    """
    layout = GroupLayout(group)
    folders = [path for path in reversed(layout.parents) if path not in (ROOT, CONSUMERS)]
    ours = [path for path in folders if path.startswith(f"{ROOT}/")]
    for these in (folders, ours):
        transaction = client.transaction()
        for path in these:
            transaction.delete(path)
        if not any(isinstance(outcome, Exception) for outcome in transaction.commit()):
            log.debug("group %s: the group was empty; deleted %s", group, counted(these, "parent znode"))
            return True
    with suppress(NoNodeError):
        kept = set(client.get_children(layout.root)) - {path.rpartition("/")[2] for path in ours}
        kept |= {path.rpartition("/")[2] for path in ours[:-1] if client.exists(path) and client.get_children(path)}
        log.info("group %s: nothing was deleted: the group has %s", group, ", ".join(sorted(kept)) or "changed")
    return False
