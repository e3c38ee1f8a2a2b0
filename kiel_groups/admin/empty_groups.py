"""Taking away what a group leaves in ZooKeeper in which there is nothing."""

from __future__ import annotations

import logging

from kiel_groups.admin.cluster_admin import Client
from kiel_groups.group.znodes.layout import CONSUMERS, ROOT, GroupLayout
from kiel_groups.wording import counted

__all__ = ["clear_empty_group"]

log = logging.getLogger(__name__)


def clear_empty_group(client: Client, group: str) -> bool:
    """
    Delete the folders of a group that has no member, no candidate, no plan and no settings; what it has stays.

    One transaction, so that nobody who joins meanwhile loses the ground under its feet. Offsets, owners and consumer
    ids of whatever kind keep the folders under ``/consumers``.

    Returns:
        Whether anything was deleted.
    """
    layout = GroupLayout(group)
    folders = [path for path in reversed(layout.parents) if path not in (ROOT, CONSUMERS)]
    ours = [path for path in folders if path.startswith(f"{ROOT}/")]
    for these in (folders, ours):
        transaction = client.transaction()
        for path in these:
            transaction.delete(path)
        if not any(isinstance(outcome, Exception) for outcome in transaction.commit()):
            log.debug("group %s: it was empty; %s deleted", group, counted(these, "folder"))
            return True
    return False
