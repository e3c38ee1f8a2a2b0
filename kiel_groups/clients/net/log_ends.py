"""Look up log ends for the tools: ask each leader once, and report why an end is missing instead of retrying."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field

from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.clients.net.offset_lookup import ask_leaders
from kiel_groups.config import BrokerConfig, HostPort
from kiel_groups.errors import KielGroupsError
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wire.api.list_offsets_v0 import LATEST
from kiel_groups.wording import some

__all__ = ["LogEnds", "find_log_ends"]

_CONNECT_MS = 2_000


@dataclass(frozen=True, slots=True)
class LogEnds:
    """
    The next offset of each partition whose leader answered.

    ``problem`` is the reason why offsets are missing, or "" if none is missing.
    """

    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    problem: str = ""


async def find_log_ends(
    brokers: Collection[HostPort],
    partitions: Collection[TopicPartition],
    *,
    at: int = LATEST,
    timeout_s: float = 5.0,
) -> LogEnds:
    """
    Ask the leaders of partitions where the logs end, or begin. Errors are returned as the ``problem``.

    Args:
        brokers: Addresses of brokers, to ask for the leaders.
        partitions: Partitions of existing topics: a broker may be set to create a topic that it is asked about.
        at: LATEST, or EARLIEST for where the logs begin.
        timeout_s: Time for the whole look-up, in seconds; offsets that are not known by then are left out.
    """
    if not partitions:
        return LogEnds()
    if not brokers:
        return LogEnds(problem="no broker is registered in ZooKeeper")
    config = BrokerConfig(hosts=tuple(brokers), connect_timeout_ms=_CONNECT_MS)
    cluster = ClusterMetadata(config, Metrics())
    found: dict[TopicPartition, int] = {}
    try:
        async with asyncio.timeout(timeout_s):
            await cluster.refresh({partition.topic for partition in partitions}, "asked")
            failures = await ask_leaders(cluster, partitions, at, found)
            return LogEnds(found, str(failures[min(failures)].error) if failures else "")
    except TimeoutError:
        late = {cluster.leader_of(partition) for partition in partitions if partition not in found}
        who = some(f"broker {number} at {place}" for number, place in cluster.brokers.items() if number in late)
        return LogEnds(found, f"{who or 'the brokers'} did not answer within {timeout_s:g} s")
    except KielGroupsError as error:
        return LogEnds(found, str(error))
    finally:
        cluster.close()
