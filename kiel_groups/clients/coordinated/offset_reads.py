"""Read the offsets of a group from its coordinator, and repeat that while the coordinator moves or loads them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeAlias

from kiel_groups.backoff import Backoff
from kiel_groups.errors import BrokerError, KielGroupsError, NoOffsetsError
from kiel_groups.group.coordinated.coordinator_codes import CoordinatorCode
from kiel_groups.model import TopicPartition
from kiel_groups.wire.api.offsets_v0 import FetchedOffset
from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wire.groups.coordinator_offsets import OffsetFetchRequestV1

__all__ = ["FIRST_READ_PAUSE_S", "LONGEST_READ_PAUSE_S", "REPEATED", "read_offsets"]

log = logging.getLogger(__name__)

#: The first and the longest pause before an offset request is repeated, in seconds.
FIRST_READ_PAUSE_S, LONGEST_READ_PAUSE_S = 0.05, 1.0

#: Tries of a read: about six seconds, as long as a broker takes to load the offsets of a usual cluster.
_TRIES = 10

#: After these codes, the same request may succeed later, perhaps at another broker.
REPEATED: frozenset[int] = frozenset(
    {
        CoordinatorCode.UNKNOWN,
        CoordinatorCode.REQUEST_TIMED_OUT,
        CoordinatorCode.LOADING,
        CoordinatorCode.NOT_AVAILABLE,
        CoordinatorCode.NOT_COORDINATOR,
    }
)

#: Sends a read to the present coordinator.
Send: TypeAlias = Callable[[OffsetFetchRequestV1], Awaitable[Mapping[TopicPartition, FetchedOffset]]]


async def read_offsets(
    group: str, partitions: Iterable[TopicPartition], send: Send, refused: Callable[[int], object] = lambda _: None
) -> dict[TopicPartition, int]:
    """
    Read the offsets that a group has committed.

    Args:
        group: The group's name.
        partitions: The partitions.
        send: Sends a request; asked again for each try.
        refused: Called with each error code of an answer.

    Returns:
        The offset of each partition that has one.

    Raises:
        NoOffsetsError: The coordinator refuses for good.
        BrokerError: The coordinator has not answered in several tries, or not for all partitions.
        KielGroupsError: As ``send``, which has failed in several tries.
    """
    waiting, backoff = tuple(sorted(partitions)), Backoff(FIRST_READ_PAUSE_S, LONGEST_READ_PAUSE_S)
    found: dict[TopicPartition, int] = {}
    failure: KielGroupsError = BrokerError(f"group {group}: the coordinator's answers lack partitions")
    for attempt in range(_TRIES):
        if not waiting:
            return found
        await asyncio.sleep(backoff.delay_s(attempt))
        try:
            answers = await send(OffsetFetchRequestV1(group, waiting))
        except KielGroupsError as error:
            log.info("group %s: no answer to a read of offsets: %s", group, error)
            failure = error
            continue
        found |= {p: answer.offset for p, answer in answers.items() if answer.error == NO_ERROR and answer.offset >= 0}
        failed = {p: answer.error for p, answer in answers.items() if answer.error != NO_ERROR}
        for code in {answer.number: answer for answer in failed.values()}.values():
            refused(code.number)
        for partition, code in sorted(failed.items()):
            failure = code.exception(f"group {group}: the offset of {partition} cannot be read")
            if code.number not in REPEATED:
                raise NoOffsetsError(str(failure), code=code.number)
        if failed:
            log.info("%s", failure)
        waiting = tuple(p for p in waiting if p in failed or p not in answers)
    if not waiting:
        return found
    raise failure
