"""Send a member's requests to the coordinator of its group, and heartbeats over a connection of their own."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol, TypeVar

from kiel_groups.clients.net.broker_access import connection_problem, left_s, open_socket, receive
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.config import BrokerConfig, HostPort
from kiel_groups.errors import BrokerError, KielGroupsError, ProtocolError
from kiel_groups.wire.error_codes import CONSUMER_COORDINATOR_NOT_AVAILABLE, NO_ERROR, ErrorCode
from kiel_groups.wire.framing import SIZE_BYTES, Request, decode_size, encode_request, split_response
from kiel_groups.wire.group_requests import FindCoordinatorRequest, SyncGroupResponse
from kiel_groups.wire.offsets import OFFSETS_TOPIC
from kiel_groups.wording import counted

T = TypeVar("T")


class FindError(BrokerError):
    """
    No broker has named the coordinator, or no session could be opened.

    ``code`` is the error code of a broker, or None if no broker answered. ``is_logged`` says whether the log has the
    reason already.
    """

    def __init__(self, message: str, *, code: int | None = None, is_logged: bool = False) -> None:
        super().__init__(message, code=code)
        self.is_logged = is_logged


class BeatAnswer(NamedTuple):
    """
    The answer to a heartbeat: its error code, or None if no answer came.

    ``failure`` says why no answer came or, if the coordinator is no broker, why the membership is over.
    """

    code: int | None
    failure: str = ""


def code_of(answer: object) -> int:
    """Return the error code of the answer to a heartbeat, a leave request or a sync."""
    code = answer.error if isinstance(answer, SyncGroupResponse) else answer
    assert isinstance(code, ErrorCode), answer
    return code.number


class GroupTransport(Protocol):
    """Sends one member's group requests to real or simulated brokers."""

    async def find(self, doubted: int | None = None) -> int:
        """
        Ask any broker for the coordinator, once, and return its node id.

        A ``doubted`` coordinator is asked itself only if no other broker is known.

        Raises:
            FindError: No broker has named the coordinator.
        """

    async def send(self, coordinator: int, request: Request[T], timeout_s: float, *, aside: bool = False) -> T:
        """
        Send a request to the coordinator once, and return its answer.

        A join and a sync occupy their connection until the group is ready. With ``aside``, use another connection.

        Raises:
            KielGroupsError: No answer came in time, or the answer cannot be read.
        """

    def beat(
        self, coordinator: int, request: Request[object], timeout_s: float, answered: Callable[[BeatAnswer], None]
    ) -> None:
        """
        Send a heartbeat, wait for its answer for at most ``timeout_s``, and call ``answered`` once.

        The heartbeat's thread calls this method, so the event loop may be blocked. This method can also send a leave
        request, or the sync of a member that has an assignment.
        """

    def close_beats(self) -> None:
        """Close the connection for heartbeats. The heartbeat's thread calls this method."""


# Send single requests to a broker over a blocking socket: heartbeats, whose thread needs no event loop.
#
# A heartbeat must not wait for the application, which may block the event loop, nor for a join on another connection.


#: The largest answer that is accepted, in bytes: a sync brings the member's assignment, of thousands of partitions.
_MOST_BYTES = 1 << 24


class HeartbeatConnection:
    """
    A connection for one request at a time, on one thread. After a failure, the next request connects again.

    Args:
        config: The settings of connections to the brokers. The times of the requests replace those of the settings.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._address: HostPort | None = None
        self._socket: socket.socket | None = None
        self._next_id = 0

    def request(self, address: HostPort, request: Request[T], timeout_s: float) -> T:
        """
        Send a request to a broker, and wait for its answer.

        Raises:
            OSError: The broker cannot be reached, or has not answered in time.
            ConfigError: The file with the credentials, or a certificate, cannot be read or has a mistake.
            ProtocolError: The answer cannot be read.
        """
        by_s = time.monotonic() + timeout_s
        try:
            if self._socket is None or self._address != address:
                self.close()
                self._socket, self._address = open_socket(address, self._config, timeout_s), address
            self._next_id = (self._next_id + 1) & 0x7FFFFFFF
            self._socket.settimeout(left_s(by_s))
            self._socket.sendall(encode_request(request, self._next_id, self._config.client_id))
            size = decode_size(receive(self._socket, SIZE_BYTES, by_s), _MOST_BYTES)
            found, payload = split_response(receive(self._socket, size, by_s))
            if found != self._next_id:
                raise ProtocolError(f"{address}: an answer to another request: {found}")
            return request.decode_response(payload)
        except BaseException:
            # Otherwise the rest of a late answer would be read as the answer to the next request.
            self.close()
            raise

    def close(self) -> None:
        """Close the connection, if it is open."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


#: The purposes of the connections to the coordinator: joins and syncs, which wait for other members, and all others.
_MEMBERSHIP, _ASIDE = "group", "group-offsets"


class ClusterTransport:
    """
    Sends one member's group requests to real brokers; see ``GroupTransport``.

    Args:
        cluster: The brokers. This object also closes the connections that the event loop uses.
        group: The group's name.
    """

    def __init__(self, cluster: ClusterMetadata, group: str) -> None:
        self._cluster = cluster
        self._group = group
        #: Where the coordinators are, by node id, as brokers have named them.
        self._addresses: dict[int, HostPort] = {}
        #: Opened by the heartbeat's thread, if there is one: clients without a membership send no heartbeats.
        self._beats: HeartbeatConnection | None = None
        #: The coordinator that a broker has named last.
        self._named: int | None = None

    async def find(self, doubted: int | None = None) -> int:
        """
        Ask a broker without a recent failure for the coordinator. The errors are those of ``GroupTransport.find``.

        The coordinator that was named last counts as doubted, too: a coordinator that is cut off from its cluster would
        name itself. Only the search after a failed search may ask this broker. After a failure, read the brokers'
        addresses again, because the client may send no other request that would read them.
        """
        what = f"group {self._group}: no broker has named the group's coordinator"
        if doubted is None:
            doubted, self._named = self._named, None
        try:
            connection = self._cluster.some_connection(without=doubted)
        except KielGroupsError as error:
            raise FindError(f"{what}: {error}") from error
        try:
            # Brokers answer from memory. If one takes longer than a handshake, it is stuck, and another one may answer.
            answer = await connection.request(
                FindCoordinatorRequest(self._group), self._cluster.config.connect_timeout_ms
            )
        except KielGroupsError as error:
            self._cluster.note_failure(connection)
            with suppress(KielGroupsError):
                await self._cluster.refresh((), "coordinator")
            raise FindError(f"{what}: {error}") from error
        assert answer is not None, "the request has an answer"
        if answer.error != NO_ERROR:
            raise FindError(
                f"{what}: {answer.error}: {answer.error.hint}{self._aside(answer.error)}", code=answer.error.number
            )
        self._named = answer.broker.node_id
        self._addresses[self._named] = HostPort(answer.broker.host, answer.broker.port)
        return self._named

    def _aside(self, error: ErrorCode) -> str:
        """Return a hint if the error may mean too few brokers for the offsets topic, else an empty string."""
        if error != CONSUMER_COORDINATOR_NOT_AVAILABLE:
            return ""
        alive = counted(self._cluster.brokers, "broker is", "brokers are")
        return (
            f"; {alive} alive; if there is no topic {OFFSETS_TOPIC} yet, as many must be as the brokers'"
            " offsets.topic.replication.factor says, by default 3"
        )

    async def send(self, coordinator: int, request: Request[T], timeout_s: float, *, aside: bool = False) -> T:
        """Send a request to the coordinator. The errors are those of ``GroupTransport.send``."""
        connection = self._cluster.connection_to(self._addresses[coordinator], _ASIDE if aside else _MEMBERSHIP)
        try:
            answer = await connection.request(request, max(1, round(timeout_s * 1000)))
        except asyncio.CancelledError:
            if not aside:
                # The broker handles one request of a connection at a time, so an abandoned join would delay the next
                # one.
                connection.close()
            raise
        assert answer is not None, "requests about groups have answers"
        return answer

    def beat(
        self, coordinator: int, request: Request[object], timeout_s: float, answered: Callable[[BeatAnswer], None]
    ) -> None:
        """Send a heartbeat over a blocking socket, on the calling thread, and wait for its answer."""
        try:
            if self._beats is None:
                self._beats = HeartbeatConnection(self._cluster.config)
            answer = self._beats.request(self._addresses[coordinator], request, timeout_s)
        except Exception as error:
            # Garbage may fail a decoder in any way, and a broker may advertise an invalid name or port. In any case the
            # membership is not proved, and the member searches for its coordinator.
            is_known = isinstance(error, (OSError, KielGroupsError))
            why = connection_problem(error) if is_known else repr(error)
            answered(BeatAnswer(None, f"{self._addresses[coordinator]}: {why}"))
            return
        answered(BeatAnswer(code_of(answer)))

    def close_beats(self) -> None:
        """Close the connection for heartbeats, if it is open."""
        if self._beats is not None:
            self._beats.close()
