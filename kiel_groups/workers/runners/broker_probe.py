"""Ask the brokers of a worker's tasks for metadata when the worker starts, so that a wrong address is noticed early."""

from __future__ import annotations

import asyncio
import logging

from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.config import KAFKA_PORT, BrokerConfig, parse_hosts
from kiel_groups.errors import KielGroupsError
from kiel_groups.metrics import Metrics

__all__ = ["probe_brokers"]

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
    cluster = ClusterMetadata(BrokerConfig(hosts=parse_hosts(brokers, KAFKA_PORT, "brokers")), Metrics())
    try:
        async with asyncio.timeout(_LIMIT_S):
            await cluster.all_metadata()
    except TimeoutError:
        log.warning(
            "group %s: no broker at %s answered within %g s; tasks wait until one does", group, brokers, _LIMIT_S
        )
    except KielGroupsError as error:
        log.warning("group %s: %s; tasks wait until one answers", group, error)
    finally:
        cluster.close()
