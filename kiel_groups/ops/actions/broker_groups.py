"""Delete groups that brokers coordinate, by requests that brokers take from Kafka 1.1 on."""

from __future__ import annotations

from dataclasses import dataclass

from kiel_groups.errors import BrokerError, ConfigError
from kiel_groups.ops.broker_reader import BrokerSession, ask_coordinator, find_group
from kiel_groups.ops.views.deletion import GroupDeletion, deletion_of_answers
from kiel_groups.wire.error_codes import GROUP_ID_NOT_FOUND, NO_ERROR
from kiel_groups.wire.group_requests import DeleteGroupsRequest

__all__ = ["CoordinatedDeletion", "plan_deletion"]


@dataclass(frozen=True, slots=True)
class CoordinatedDeletion:
    """What deleting a group loses."""

    lost: GroupDeletion

    async def apply(self, session: BrokerSession) -> None:
        """
        Delete the group and its offsets, unless a member has joined.

        Raises:
            BrokerError: A member has joined meanwhile, or the coordinator does not answer or refuses.
        """
        group = self.lost.group
        _, answer = await ask_coordinator(session, group, DeleteGroupsRequest((group,)), lambda found: found.values())
        error = answer.get(group, NO_ERROR)
        # An earlier request whose answer was lost may have deleted the group.
        if error not in (NO_ERROR, GROUP_ID_NOT_FOUND):
            raise error.exception(f"group {group!r} is not deleted")


async def plan_deletion(session: BrokerSession, group: str) -> CoordinatedDeletion:
    """
    Find what deleting a group loses.

    Raises:
        UnknownGroupError: There is no such group.
        ConfigError: Members are alive, and the text names them; or the brokers are too old for such requests.
        BrokerError: The group has no coordinator now, it does not answer, or some offsets are unknown.
    """
    found, offsets = await find_group(session, group)
    deletion = CoordinatedDeletion(deletion_of_answers(found.described, offsets.offsets))
    if DeleteGroupsRequest.API_KEY not in session.ranges:
        raise ConfigError(
            f"group {group!r} is not deleted: brokers delete groups on request from Kafka 1.1 on, and these are older."
            " They forget a group without members when its offsets have expired, offsets.retention.minutes (a setting"
            " of the brokers, by default a day) after its last commit"
        )
    if offsets.problem:
        raise BrokerError(f"group {group!r} is not deleted: the restore file would be incomplete: {offsets.problem}")
    return deletion
