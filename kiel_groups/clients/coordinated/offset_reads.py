"""Read the offsets of a group from its coordinator, and repeat that while the coordinator moves or loads them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from kiel_groups.backoff import Backoff
from kiel_groups.errors import BrokerError, KielGroupsError, NoOffsetsError
from kiel_groups.group.coordinated.coordinator_codes import CoordinatorCode
from kiel_groups.model import TopicPartition
from kiel_groups.wire.api.offsets_v0 import FetchedOffset
from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wire.groups.coordinator_offsets import OffsetFetchRequestV1

__all__ = ["FIRST_READ_PAUSE_S", "LONGEST_READ_PAUSE_S", "REPEATED", "Fetched", "fetch_stored", "read_offsets"]

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


class Fetched(NamedTuple):
    """
    The offsets that a coordinator has ``found``, and the error of each partition that it has not answered for.

    A partition without an offset is in neither. The error is a NoOffsetsError if the coordinator refuses for good.
    """

    found: dict[TopicPartition, FetchedOffset]
    failures: dict[TopicPartition, KielGroupsError]


async def fetch_stored(
    group: str,
    partitions: Iterable[TopicPartition],
    send: Send,
    refused: Callable[[int], object] = lambda _: None,
    repeated: frozenset[int] = REPEATED,
) -> Fetched:
    """
    Read the offsets that a group has committed, with their texts.

    Args:
        group: The group's name.
        partitions: The partitions.
        send: Sends a request; asked again for each try.
        refused: Called with each error code of an answer.
        repeated: The codes after which a partition is asked for again, in several tries. After any other code, the read
            ends.
    """
    waiting, backoff = tuple(sorted(partitions)), Backoff(FIRST_READ_PAUSE_S, LONGEST_READ_PAUSE_S)
    fetched = Fetched({}, {})
    for attempt in range(_TRIES):
        if not waiting:
            break
        await asyncio.sleep(backoff.delay_s(attempt))
        try:
            answers = await send(OffsetFetchRequestV1(group, waiting))
        except KielGroupsError as error:
            log.info("group %s: no answer to a read of offsets: %s", group, error)
            fetched.failures.update(dict.fromkeys(waiting, error))
            continue
        fetched.found.update((p, each) for p, each in answers.items() if each.error == NO_ERROR and each.offset >= 0)
        fetched.failures.clear()
        fetched.failures.update({p: _failure(group, p, answers.get(p)) for p in waiting if _failed(answers.get(p))})
        codes = {each.error.number for each in answers.values() if each.error != NO_ERROR}
        for code in sorted(codes):
            refused(code)
        if codes - repeated:
            break
        waiting = tuple(fetched.failures)
        if waiting:
            log.info("%s", fetched.failures[waiting[0]])
    return fetched


def _failed(answer: FetchedOffset | None) -> bool:
    return answer is None or answer.error != NO_ERROR


def _failure(group: str, partition: TopicPartition, answer: FetchedOffset | None) -> KielGroupsError:
    if answer is None:
        return BrokerError(f"group {group}: the coordinator's answers lack {partition}")
    failure = answer.error.exception(f"group {group}: the offset of {partition} cannot be read")
    if answer.error.number in REPEATED:
        return failure
    return NoOffsetsError(str(failure), code=answer.error.number)


async def read_offsets(
    group: str, partitions: Iterable[TopicPartition], send: Send, refused: Callable[[int], object] = lambda _: None
) -> dict[TopicPartition, int]:
    """
    Read the offsets that a group has committed; the arguments are those of ``fetch_stored``.

    Returns:
        The offset of each partition that has one.

    Raises:
        NoOffsetsError: The coordinator refuses for good.
        BrokerError: The coordinator has not answered in several tries, or not for all partitions.
        KielGroupsError: As ``send``, which has failed in several tries.
    """
    found, failures = await fetch_stored(group, partitions, send, refused)
    if failures:
        final = [partition for partition, failure in failures.items() if isinstance(failure, NoOffsetsError)]
        raise failures[min(final or failures)]
    return {partition: each.offset for partition, each in found.items()}
