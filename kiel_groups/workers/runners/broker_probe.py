"""Ask a worker's brokers: for the members of its group, and for topics, so that wrong addresses are noticed early."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from kiel_groups.broker_admin.broker_session import BrokerSession
from kiel_groups.broker_admin.group_answers import members_type
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.config import KAFKA_PORT, BrokerConfig, parse_hosts
from kiel_groups.errors import GroupConfigError, KielGroupsError, NoBrokersError
from kiel_groups.metrics import Metrics
from kiel_groups.model import CONNECT_TYPE

__all__ = ["all_topics", "check_members", "probe_brokers"]

log = logging.getLogger(__name__)

#: The time for all addresses together, in seconds.
_LIMIT_S = 10.0

#: How long a broker may take to say which members a group has: as long as a member looks for its coordinator.
_FIND_TIMEOUT_S = 15.0


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


async def check_members(group: str, brokers: str) -> None:
    """
    Check that brokers know no other members of a worker's group, before the worker writes anything to ZooKeeper.

    Args:
        group: The name of the worker group, which these brokers coordinate.
        brokers: As in ``probe_brokers``.

    Raises:
        GroupConfigError: The members are of another type than workers.
        KielGroupsError: The brokers do not say.
    """
    async with BrokerSession(brokers, timeout_s=_FIND_TIMEOUT_S) as session:
        found = await members_type(session, group)
    if found not in ("", CONNECT_TYPE):
        raise GroupConfigError(
            f"group {group}: its members at the brokers are of the type {found!r}, and this one is a worker; choose"
            " another group"
        )
