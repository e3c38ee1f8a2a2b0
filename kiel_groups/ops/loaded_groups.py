"""The results of the readers of groups, and the look-up of log offsets at the brokers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import NamedTuple

from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.offset_lookup import ask_leaders, segment_starts
from kiel_groups.config import BrokerConfig, HostPort
from kiel_groups.errors import KielGroupsError, UnknownGroupError
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.ops.views.group_view import GroupView
from kiel_groups.wire.list_offsets import EARLIEST, LATEST
from kiel_groups.wording import some


@dataclass(frozen=True, slots=True)
class LoadedGroups:
    """
    The views of groups at one moment.

    ``brokers`` is the number of live brokers. ``lag_problem`` is the first reason why offsets or log ends are unknown,
    or "" if all are known. ``problems`` are the reasons why groups may be missing. ``lists_empty`` is False if groups
    without members are missing, because brokers of Kafka 0.9 do not list them. ``seen_ms`` is the time at which the
    groups were read, in epoch milliseconds.
    """

    groups: tuple[GroupView, ...]
    brokers: int
    lag_problem: str = ""
    problems: tuple[str, ...] = ()
    lists_empty: bool = True
    seen_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)


class FoundGroup(NamedTuple):
    """
    The result of the look-up of a group.

    ``view`` is None if the group does not exist. Then ``similar`` is the name of an existing group that is similar to
    the requested name, or "".
    """

    view: GroupView | None
    similar: str = ""

    @classmethod
    def similar_to(cls, group: str, names: Sequence[str]) -> FoundGroup:
        """Return the result for a group that does not exist, with the most similar of the existing ``names``."""
        return cls(None, next(iter(get_close_matches(group, names, 1)), ""))


def unknown_group(group: str, place: str, names: Sequence[str], aside: str = "") -> UnknownGroupError:
    """
    Return the error about a group that does not exist.

    Args:
        group: The group.
        place: The place of the search, such as "in ZooKeeper at zk-1:2181".
        names: The groups that exist. The text suggests the name of a similar group, if any.
        aside: The words that the text adds if no group exists.
    """
    text = f"group {group!r} does not exist {place}"
    if near := get_close_matches(group, names, 1):
        return UnknownGroupError(f"{text}; did you mean {near[0]!r}?")
    if names:
        return UnknownGroupError(f"{text}; 'kiel-groups groups' lists the {len(names)} that do")
    return UnknownGroupError(f"{text}, nor does any other{aside}")


class Logs(NamedTuple):
    """
    The offsets at which logs start and end, for the partitions whose leaders answered.

    ``problem`` is the first reason why offsets are missing, or "".
    """

    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    problem: str


@dataclass(frozen=True, slots=True)
class LogEnds:
    """
    The log ends, the log starts or the offsets at a time, for the partitions whose leaders answered.

    ``problem`` is the reason why offsets are missing, or "" if no offset is missing. After a look-up by time,
    ``times_ms`` has the times of the messages that were found. If a partition's messages have no times, ``segments``
    has the first offset of each segment of its log, ascending, and then the end of the log.
    """

    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    problem: str = ""
    times_ms: dict[TopicPartition, int] = field(default_factory=dict)
    segments: dict[TopicPartition, tuple[int, ...]] = field(default_factory=dict)


async def find_log_ends(
    brokers: Collection[HostPort],
    partitions: Collection[TopicPartition],
    *,
    at: int = LATEST,
    timeout_s: float = 5.0,
) -> LogEnds:
    """
    Ask the leaders of partitions for the ends or the starts of their logs, or for the offsets at a time.

    Errors are returned as the ``problem``.

    Args:
        brokers: Addresses of brokers, to ask for the leaders.
        partitions: Partitions of existing topics. A broker may create a missing topic when a request names the topic.
        at: LATEST for the ends of the logs, EARLIEST for their starts, or a time in epoch milliseconds. See
            ``wire.list_offsets``.
        timeout_s: The longest time for the whole look-up, in seconds. Offsets that are not known after this time are
            left out.
    """
    if not partitions:
        return LogEnds()
    if not brokers:
        return LogEnds(problem="no broker is registered in ZooKeeper")
    cluster = ClusterMetadata(BrokerConfig.of_tool(brokers, timeout_s), Metrics())
    found: dict[TopicPartition, int] = {}
    try:
        async with asyncio.timeout(timeout_s):
            await cluster.refresh({partition.topic for partition in partitions}, "asked")
            times_ms: dict[TopicPartition, int] = {}
            failures = await ask_leaders(cluster, partitions, at, found, times_ms=times_ms)
            problem = str(failures[min(failures)]) if failures else ""
            undated = found.keys() - times_ms.keys() if at >= 0 else ()
            return LogEnds(found, problem, times_ms, await segment_starts(cluster, undated))
    except TimeoutError:
        late = {cluster.leader_of(partition) for partition in partitions if partition not in found}
        who = some(f"broker {number} at {place}" for number, place in cluster.brokers.items() if number in late)
        return LogEnds(found, f"{who or 'the brokers'} did not answer within {timeout_s:g} s")
    except KielGroupsError as error:
        return LogEnds(found, str(error))
    finally:
        cluster.close()


async def find_logs(
    brokers: Collection[HostPort], partitions: Collection[TopicPartition], *, timeout_s: float = 5.0
) -> Logs:
    """Ask the leaders for the starts and the ends of logs. The arguments are as for ``find_log_ends``."""
    starts, ends = await asyncio.gather(
        *(find_log_ends(brokers, partitions, at=at, timeout_s=timeout_s) for at in (EARLIEST, LATEST))
    )
    return Logs(starts.offsets, ends.offsets, starts.problem or ends.problem)
