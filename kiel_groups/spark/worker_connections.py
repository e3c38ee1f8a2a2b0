"""
The connections to brokers that a Spark worker keeps from one task to the next.

Spark forks worker processes, and reuses a process for many tasks. A new connection costs as much time as reading a few
thousand messages.
"""

from __future__ import annotations

import gc
import os
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from kiel_groups import errors
from kiel_groups.clients.net.broker_access import connection_problem, open_socket
from kiel_groups.config import BrokerConfig, HostPort
from kiel_groups.model import TopicPartition
from kiel_groups.wire.framing import SIZE_BYTES, Request, decode_size, encode_request, split_response
from kiel_groups.wire.metadata import MetadataRequest

# A blocking connection to one broker, for Spark's workers.
#
# A worker runs one task at a time and has nothing else to do while it waits, so an event loop and a thread would only
# add overhead between the socket and the decoder. The broker answers requests in order. So a worker that sends the next
# request early decodes one answer while the next one arrives.


T = TypeVar("T")

_CORRELATION_IDS = 1 << 31
#: Four times as long as a broker may delay an answer that would be empty.
_SILENCE_S = 2.0


class BrokerSocket:
    """
    A connection to one broker. A failure closes the connection. After that, it cannot be used again.

    Args:
        address: The broker's address.
        config: The settings of the client, with its credentials.
        connect_timeout_s: How long connecting may take, in seconds.

    Raises:
        BrokerConnectionError: The connection could not be opened.
    """

    def __init__(self, address: HostPort, config: BrokerConfig, *, connect_timeout_s: float) -> None:
        self.address = address
        self._client_id = config.client_id
        self._next_id = 0
        self._in_flight: deque[tuple[int, Request[Any], int]] = deque()
        try:
            self._socket = open_socket(address, config, connect_timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, OverflowError, ValueError, errors.ProtocolError) as error:
            # A host or a port that cannot be one raises the second or the third, as does a mistake in the file with the
            # credentials.
            raise self._broken(f"cannot connect: {connection_problem(error)}") from error

    def is_readable(self, wait_s: float) -> bool:
        """
        Wait up to ``wait_s`` seconds for a part of an answer, or for the end of the connection.

        Return whether either arrived. While no request is in flight, True means that the broker has closed the
        connection. Brokers close unused connections after ten minutes.
        """
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(max(0.0, wait_s) * 1000))

    def send(self, request: Request[T], *, most_bytes: int, timeout_s: float) -> None:
        """
        Write a request. A later call of ``receive`` returns its answer.

        Args:
            request: Any request of ``kiel_groups.wire`` that has an answer.
            most_bytes: The largest size of its answer, in bytes.
            timeout_s: How long writing may take, in seconds.

        Raises:
            BrokerConnectionError: The connection broke, or writing took longer than ``timeout_s``.
        """
        number = self._next_id
        self._next_id = (number + 1) % _CORRELATION_IDS
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(encode_request(request, number, self._client_id))
        except OSError as error:
            self.close()
            raise self._broken(f"the connection broke: {connection_problem(error)}") from error
        self._in_flight.append((number, request, most_bytes))

    def receive(self, timeout_s: float, on_silence: Callable[[], None] = lambda: None) -> Any:
        """
        Read and return the decoded answer to the oldest request in flight.

        Args:
            timeout_s: How long to wait for each part of the answer, in seconds; the whole answer may take longer.
            on_silence: Called every two seconds until the answer begins. An error that it raises ends the wait.

        Raises:
            RequestTimeoutError: A part of the answer did not arrive in time.
            BrokerConnectionError: The connection broke.
            ProtocolError: The answer cannot be decoded, belongs to another request, or is larger than its
                ``most_bytes``.
        """
        number, request, most_bytes = self._in_flight.popleft()
        deadline_s = time.monotonic() + timeout_s
        try:
            while not self.is_readable(min(_SILENCE_S, deadline_s - time.monotonic())):
                if time.monotonic() >= deadline_s:
                    raise TimeoutError
                on_silence()
            self._socket.settimeout(timeout_s)
            found, payload = split_response(self._read(decode_size(self._read(SIZE_BYTES), most_bytes)))
            if found != number:
                raise errors.ProtocolError(f"answer {found} came where answer {number} was due")
            return request.decode_answer(payload)
        except TimeoutError as error:
            self.close()
            name = type(request).__name__
            raise errors.RequestTimeoutError(f"{self.address}: no answer to a {name} within {timeout_s:g} s") from error
        except OSError as error:
            self.close()
            raise self._broken(f"the connection broke: {connection_problem(error)}") from error
        except errors.ProtocolError as error:
            self.close()
            raise errors.ProtocolError(f"{self.address}: {error}") from error

    def ask(self, request: Request[T], *, most_bytes: int, timeout_s: float) -> T:
        """Send a request, and return its answer. No request may be in flight. Raises as ``send`` and ``receive``."""
        self.send(request, most_bytes=most_bytes, timeout_s=timeout_s)
        answer: T = self.receive(timeout_s)
        return answer

    def close(self) -> None:
        """Close the connection. Answers in flight are lost."""
        self._in_flight.clear()
        self._socket.close()

    def _read(self, size: int) -> bytearray:
        frame = bytearray(size)
        view = memoryview(frame)
        got = 0
        while got < size:
            count = self._socket.recv_into(view[got:])
            if not count:
                raise ConnectionResetError("closed by the other side")
            got += count
        return frame

    def _broken(self, why: str) -> errors.BrokerConnectionError:
        host, port = self.address
        return errors.BrokerConnectionError(f"{self.address}: {why}", host=host, port=port)


#: How long a broker may take to accept a connection, or to answer from memory, in seconds: what a dead computer costs.
_CONNECT_S = 3.0
_MAX_ANSWER_BYTES = 64 << 20

#: Unused connections, by the process that opened them, broker and settings.
_idle: dict[tuple[int, HostPort, BrokerConfig], BrokerSocket] = {}
#: The processes that have frozen their collector; by id, because a forked worker inherits this set.
_frozen: set[int] = set()


@contextmanager
def borrowed(address: HostPort, config: BrokerConfig) -> Iterator[BrokerSocket]:
    """
    Yield an open connection to a broker: an unused connection of this process or, without any, a new connection.

    After the block, keep the connection for later blocks. If the block raises an error, close the connection.

    Raises:
        BrokerConnectionError: The connection could not be opened.
    """
    key = (os.getpid(), address, config)
    broker = _idle.pop(key, None)
    if broker is not None and broker.is_readable(0):
        broker.close()
        broker = None
    broker = broker or BrokerSocket(address, config, connect_timeout_s=_CONNECT_S)
    try:
        yield broker
    except BaseException:
        # This includes GeneratorExit, when Spark needs no more rows: unread answers are still in flight.
        broker.close()
        raise
    _idle[key] = broker


def find_leaders(
    brokers: Sequence[HostPort], config: BrokerConfig, topics: Collection[str]
) -> dict[TopicPartition, HostPort | None]:
    """
    Ask the brokers in turn until one answers, and return the leader of each partition of the topics.

    The leader is None if the partition has no leader. Topics that the broker does not know are left out.

    Raises:
        NoBrokersError: No broker answers; the message has the reasons.
    """
    reasons = []
    for address in brokers:
        try:
            with borrowed(address, config) as broker:
                # For all topics: if a request names a deleted topic, brokers may create it again.
                answer = broker.ask(MetadataRequest(()), most_bytes=_MAX_ANSWER_BYTES, timeout_s=_CONNECT_S)
        except errors.KielGroupsError as error:
            reasons.append(str(error))
            continue
        addresses = {each.node_id: HostPort(each.host, each.port) for each in answer.brokers}
        return {
            TopicPartition(topic.topic, each.partition): addresses.get(each.leader)
            for topic in answer.topics
            if topic.topic in topics
            for each in topic.partitions
        }
    raise errors.NoBrokersError(f"no broker answered: {'; '.join(reasons)}")


def freeze_collector() -> None:
    """
    Exclude all present objects from Python's garbage collection. Do nothing after the first call in a process.

    Spark's daemon has some hundred thousand objects in memory when it forks a worker. A full collection in the worker
    writes to all these objects, and so copies their memory pages. That takes longer than a small task.
    """
    if os.getpid() not in _frozen:
        _frozen.add(os.getpid())
        # Do not collect first: that would be the full collection that freezing avoids.
        gc.freeze()
