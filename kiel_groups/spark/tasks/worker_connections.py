"""
The connections to brokers that a Spark worker keeps from one task to the next, by process.

Spark forks workers and reuses them for many tasks, and a new connection costs as much as reading a few thousand
messages.
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

__all__ = ["borrowed", "freeze_collector", "find_leaders"]

_CONNECT_S = 5.0
_MAX_ANSWER_BYTES = 64 << 20

#: Unused connections, by the process that opened them, broker and client id.
_idle: dict[tuple[int, HostPort, str], BrokerSocket] = {}
#: The processes that have frozen their collector; by id, because a forked worker inherits this set.
_frozen: set[int] = set()


@contextmanager
def borrowed(address: HostPort, client_id: str) -> Iterator[BrokerSocket]:
    """
    Yield a kept or new connection to the block, and keep it for later blocks. Close it if the block raises.

    Raises:
        BrokerConnectionError: The connection could not be opened.
    """
    key = (os.getpid(), address, client_id)
    broker = _idle.pop(key, None) or BrokerSocket(address, client_id, connect_timeout_s=_CONNECT_S)
    try:
        yield broker
    except BaseException:
        # This includes GeneratorExit, when Spark needs no more rows: unread answers are still in flight.
        broker.close()
        raise
    _idle[key] = broker


def find_leaders(
    brokers: Sequence[HostPort], client_id: str, topics: Collection[str]
) -> dict[TopicPartition, HostPort | None]:
    """
    Return the leader of each partition of the topics (None if it has no leader), from the first broker that answers.

    Raises:
        NoBrokersError: No broker answers; the message has the reasons.
    """
    reasons = []
    for address in brokers:
        try:
            with borrowed(address, client_id) as broker:
                # For all topics: if a request names a deleted topic, brokers may create it again.
                answer = broker.ask(MetadataRequest(()), most_bytes=_MAX_ANSWER_BYTES, timeout_s=_CONNECT_S)
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


def freeze_collector() -> None:
    """
    Exclude all present objects from Python's garbage collection, once in each process.

    Spark's daemon has some hundred thousand objects in memory when it forks a worker. A full collection in the worker
    writes to all these objects and so copies their memory pages, which takes longer than a small task.
    """
    if os.getpid() not in _frozen:
        _frozen.add(os.getpid())
        # Do not collect first: that would be the full collection that freezing avoids.
        gc.freeze()
