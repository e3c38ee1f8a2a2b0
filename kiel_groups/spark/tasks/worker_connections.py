"""
What a Spark worker keeps from one task to the next: connections to brokers, by process.

Workers are forked, and used again for many tasks: opening a connection for each would cost as much as reading a few
thousand messages.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from kiel_groups.config import HostPort
from kiel_groups.errors import KielGroupsError, NoBrokersError
from kiel_groups.model import TopicPartition
from kiel_groups.spark.tasks.broker_socket import BrokerSocket
from kiel_groups.wire.api.metadata_v0 import MetadataRequest

__all__ = ["borrowed", "calm_the_collector", "find_leaders"]

_CONNECT_S = 5.0
_ANSWER_BYTES = 64 << 20

#: Connections that nobody uses, by the process that opened them, broker and client id.
_idle: dict[tuple[int, HostPort, str], BrokerSocket] = {}
#: The processes whose collector was told what stays.
_calmed: set[int] = set()


@contextmanager
def borrowed(address: HostPort, client_id: str) -> Iterator[BrokerSocket]:
    """
    A connection for the block, kept for the next one; closed where the block ends by an error.

    Raises:
        BrokerConnectionError: It could not be opened.
    """
    key = (os.getpid(), address, client_id)
    broker = _idle.pop(key, None) or BrokerSocket(address, client_id, connect_timeout_s=_CONNECT_S)
    try:
        yield broker
    except BaseException:
        # Also where Spark wants no more rows: answers are on their way that nobody will take.
        broker.close()
        raise
    _idle[key] = broker


def find_leaders(
    brokers: Sequence[HostPort], client_id: str, topics: Collection[str]
) -> dict[TopicPartition, HostPort | None]:
    """
    Who leads the partitions of these topics, by the first broker that answers; None while there is none.

    Raises:
        NoBrokersError: None of the brokers answers; says why.
    """
    reasons = []
    for address in brokers:
        try:
            with borrowed(address, client_id) as broker:
                # For all topics: asked for one by name that was deleted, brokers would make it anew.
                answer = broker.ask(MetadataRequest(()), most_bytes=_ANSWER_BYTES, timeout_s=_CONNECT_S)
        except KielGroupsError as error:
            reasons.append(str(error))
            continue
        addresses = {each.node_id: HostPort(each.host, each.port) for each in answer.brokers}
        return {
            TopicPartition(topic.topic, each.partition): addresses.get(each.leader)
            for topic in answer.topics
            if topic.topic in topics
            for each in topic.partitions
        }
    raise NoBrokersError(f"no broker answered: {'; '.join(reasons)}")


def calm_the_collector() -> None:
    """
    Have Python's collector leave alone what was imported; once a process.

    Spark's daemon has some hundred thousand objects in memory when it forks a worker: the first full collection of each
    worker would copy all of them, which takes longer than a small task.
    """
    if os.getpid() not in _calmed:
        _calmed.add(os.getpid())
        gc.collect()
        gc.freeze()
