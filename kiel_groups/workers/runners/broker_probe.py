"""Ask the brokers of a worker's tasks for their topics, so that a wrong address or a missing topic is noticed early."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.config import KAFKA_PORT, BrokerConfig, parse_hosts
from kiel_groups.errors import KielGroupsError, NoBrokersError
from kiel_groups.metrics import Metrics

__all__ = ["all_topics", "probe_brokers"]

log = logging.getLogger(__name__)

#: The time for all addresses together, in seconds.
_LIMIT_S = 10.0


async def probe_brokers(group: str, brokers: str) -> None:
    """
    Ask for metadata once, and log a warning if no broker answers: tasks would wait without a word to users.

    Args:
        group: The name of the worker group, for the warning.
        brokers: ``host`` or ``host:port`` (9092) of some brokers.
    """
    try:
        await all_topics(brokers)
    except KielGroupsError as error:
        log.warning("group %s: %s; tasks wait until one answers", group, error)


async def all_topics(brokers: str | Iterable[str]) -> frozenset[str]:
    """
    Ask for the names of all topics. No topic is named to a broker, which may create a topic that it is asked for.

    Raises:
        NoBrokersError: No broker answers.
    """
    cluster = ClusterMetadata(BrokerConfig(hosts=parse_hosts(brokers, KAFKA_PORT, "brokers")), Metrics())
    try:
        async with asyncio.timeout(_LIMIT_S):
            return await cluster.all_topics()
    except TimeoutError:
        raise NoBrokersError(f"no broker at {brokers} answered within {_LIMIT_S:g} s") from None
    finally:
        cluster.close()
