"""Reach the coordinator of a group through a client's cluster: the transport of real members."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from kiel_groups.clients.coordinator.group_transport import BeatAnswer, FindError, code_of
from kiel_groups.clients.coordinator.heartbeat_connection import HeartbeatConnection
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.config import HostPort
from kiel_groups.errors import KielGroupsError, ProtocolError
from kiel_groups.wire.error_codes import CONSUMER_COORDINATOR_NOT_AVAILABLE, NO_ERROR, ErrorCode
from kiel_groups.wire.framing import Request
from kiel_groups.wire.groups.coordinator_offsets import OFFSETS_TOPIC
from kiel_groups.wire.groups.find_coordinator_v0 import FindCoordinatorRequest
from kiel_groups.wording import counted

__all__ = ["CoordinatorBrokers"]

T = TypeVar("T")

#: The purposes of the connections to the coordinator: joins and syncs, which wait for other members, and the rest.
_MEMBERSHIP, _ASIDE = "group", "group-offsets"


class CoordinatorBrokers:
    """
    The requests of one member about its group, sent to real brokers; see ``GroupTransport``.

    Args:
        cluster: The brokers; it closes the connections of the event loop.
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
        Ask a broker without a recent failure for the coordinator; raises as ``GroupTransport.find``.

        The coordinator that was named last is doubted, too, because one that is cut off from its cluster would name
        itself; the search after a failed one may ask it. After a failure the brokers' addresses are read again, because
        this may be the client's only request.
        """
        what = f"group {self._group}: no broker has named the group's coordinator"
        if doubted is None:
            doubted, self._named = self._named, None
        try:
            connection = self._cluster.some_connection(without=doubted)
        except KielGroupsError as error:
            raise FindError(f"{what}: {error}") from error
        try:
            # Brokers answer from memory: one that takes longer than a handshake is stuck, and another one may answer.
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
        """Return what may keep a new cluster from ever having a coordinator. From 0.11 on, brokers insist on it."""
        if error != CONSUMER_COORDINATOR_NOT_AVAILABLE:
            return ""
        alive = counted(self._cluster.brokers, "broker is", "brokers are")
        return (
            f"; {alive} alive; if there is no topic {OFFSETS_TOPIC} yet, as many must be as the brokers'"
            " offsets.topic.replication.factor says, by default 3"
        )

    async def send(self, coordinator: int, request: Request[T], timeout_s: float, *, aside: bool = False) -> T:
        """Send a request to the coordinator; raises as ``GroupTransport.send``."""
        connection = self._cluster.connection_to(self._addresses[coordinator], _ASIDE if aside else _MEMBERSHIP)
        try:
            answer = await connection.request(request, max(1, round(timeout_s * 1000)))
        except asyncio.CancelledError:
            if not aside:
                # The broker works on one request of a connection at a time, so a join that is given up would delay the
                # next one.
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
                self._beats = HeartbeatConnection(self._cluster.config.client_id)
            answer = self._beats.request(self._addresses[coordinator], request, timeout_s)
        except Exception as error:
            # Garbage may fail a decoder in any way, and a broker may advertise a name or a port that is none. In any
            # case the membership is not proved, and the member asks for its coordinator.
            why = str(error) if isinstance(error, (OSError, ProtocolError)) else repr(error)
            answered(BeatAnswer(None, f"{self._addresses[coordinator]}: {why}"))
            return
        answered(BeatAnswer(code_of(answer)))

    def close_beats(self) -> None:
        """Close the connection of heartbeats."""
        if self._beats is not None:
            self._beats.close()
