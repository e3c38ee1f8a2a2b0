"""Delete groups of any client in ZooKeeper, groups that brokers coordinate, and the parent znodes of empty groups."""

from __future__ import annotations

import logging
from contextlib import suppress

from kazoo.exceptions import NoAuthError, NoNodeError

from kiel_groups.errors import BrokerError, ConfigError, ConflictError, CoordinationError
from kiel_groups.group.znodes.layout import CONSUMERS, ROOT, GroupLayout
from kiel_groups.group.znodes.transactions import Delete
from kiel_groups.ops.broker_reader import BrokerSession, ask_coordinator, find_group
from kiel_groups.ops.views.deletion import GroupDeletion, deletion_of_answers, deletion_of_znodes, deletion_transactions
from kiel_groups.ops.zookeeper_client import Client, commit, place_of, refusal_text
from kiel_groups.ops.zookeeper_reader import check_group, read_group
from kiel_groups.wire.error_codes import GROUP_ID_NOT_FOUND, NO_ERROR
from kiel_groups.wire.group_requests import DeleteGroupsRequest
from kiel_groups.wording import counted, own_command

log = logging.getLogger(__name__)


def plan_deletion(client: Client, group: str) -> GroupDeletion:
    """
    Read a group in ZooKeeper, and return the losses of its deletion. Nothing is deleted yet.

    Args:
        client: The caller's own session.
        group: The group's name. The members may use any client.

    Raises:
        UnknownGroupError: There is no such group.
        ConfigError: Members are alive. The text names the members.
        CoordinationError: An ACL hides some znodes, so members may be alive.
    """
    check_group(client, group, place_of(client))
    return deletion_of_znodes(group, read_group(client, group))


def delete_znodes(client: Client, deletion: GroupDeletion) -> None:
    """
    Delete all znodes of a group, unless a member has joined or a znode has changed.

    The deletion is one transaction, or several transactions for a group of several thousand partitions; see
    ``deletion_transactions``.

    Raises:
        ConflictError: A member has joined meanwhile, or a znode has changed. The text has the number of znodes that
            were deleted before.
        CoordinationError: An ACL denies the deletion. The text has that number, too.
    """
    group, deleted = deletion.group, 0
    for operations in deletion_transactions(group, deletion.snapshot):
        if failed := commit(client, operations):
            before = f"{counted(deleted, 'znode')} were deleted before" if deleted else "nothing was deleted"
            if isinstance(failed[1], NoAuthError):
                raise CoordinationError(f"group {group}: {refusal_text(failed[1])}; {before}")
            raise ConflictError(
                f"group {group} has changed meanwhile, at {failed[0].path} ({type(failed[1]).__name__}); {before}. A"
                f" member has joined, or another program commits its offsets: {own_command('describe', group)} shows"
                " the group"
            )
        deleted += len(operations)


async def plan_deletion_at_brokers(session: BrokerSession, group: str) -> GroupDeletion:
    """
    Read a group that brokers coordinate, and return the losses of its deletion. Nothing is deleted yet.

    Brokers delete groups on request from Kafka 1.1 on.

    Raises:
        UnknownGroupError: There is no such group.
        ConfigError: Members are alive; the text names the members. Or the brokers are too old for such requests.
        BrokerError: The group has no coordinator now, the coordinator does not answer, or some offsets are unknown.
    """
    found, offsets = await find_group(session, group)
    deletion = deletion_of_answers(found.described, offsets.offsets)
    if DeleteGroupsRequest.API_KEY not in session.ranges:
        raise ConfigError(
            f"group {group!r} is not deleted: brokers delete groups on request from Kafka 1.1 on, and these are older."
            " They forget a group without members when its offsets have expired, offsets.retention.minutes (a setting"
            " of the brokers, by default a day) after its last commit"
        )
    if offsets.problem:
        raise BrokerError(f"group {group!r} is not deleted: the restore file would be incomplete: {offsets.problem}")
    return deletion


async def delete_at_brokers(session: BrokerSession, group: str) -> None:
    """
    Delete a group and its offsets at its coordinator, unless a member has joined.

    Raises:
        BrokerError: A member has joined meanwhile, or the coordinator does not answer or refuses.
    """
    _, answer = await ask_coordinator(session, group, DeleteGroupsRequest((group,)), lambda found: found.values())
    error = answer.get(group, NO_ERROR)
    # An earlier request whose answer was lost may have deleted the group.
    if error not in (NO_ERROR, GROUP_ID_NOT_FOUND):
        raise error.exception(f"group {group!r} is not deleted")


def remove_empty_group(client: Client, group: str) -> bool:
    """
    Delete the parent znodes of a group that has no member, no candidate, no plan and no settings.

    The deletion is one transaction, so that a member that joins meanwhile does not lose the parents of its own
    znodes. If any client has offsets, owners or consumer ids, the parent znodes under ``/consumers`` stay. A group of
    workers or other programs has settings after its first member has joined. Such a group is not deleted.

    Returns:
        Whether znodes were deleted. If no znode was deleted and the group's root exists, the log has the reason.
    """
    layout = GroupLayout(group)
    folders = [path for path in reversed(layout.parents) if path not in (ROOT, CONSUMERS)]
    ours = [path for path in folders if path.startswith(f"{ROOT}/")]
    for these in (folders, ours):
        if commit(client, [Delete(path) for path in these]) is None:
            log.debug("group %s: the group was empty; deleted %s", group, counted(these, "parent znode"))
            return True
    with suppress(NoNodeError):
        kept = set(client.get_children(layout.root)) - {path.rpartition("/")[2] for path in ours}
        kept |= {path.rpartition("/")[2] for path in ours[:-1] if client.exists(path) and client.get_children(path)}
        log.info("group %s: nothing was deleted: the group has %s", group, ", ".join(sorted(kept)) or "changed")
    return False
