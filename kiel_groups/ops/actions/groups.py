"""Delete what a group that no member has joined leaves in ZooKeeper."""

from __future__ import annotations

import logging
from contextlib import suppress

from kazoo.exceptions import NoNodeError

from kiel_groups.group.znodes.layout import CONSUMERS, ROOT, GroupLayout
from kiel_groups.ops.zookeeper_client import Client
from kiel_groups.wording import counted

__all__ = ["remove_empty_group"]

log = logging.getLogger(__name__)


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
