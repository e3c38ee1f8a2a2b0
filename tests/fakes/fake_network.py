"""Simulated TCP connections between clients and servers: ordered, delayed, stalled, half closed, or reset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

from kazoo.protocol.serialization import Transaction

from tests.fakes.timeline import Timeline

__all__ = ["Link", "Loss", "Reply", "Event", "Granted", "End"]

Loss = Literal["request", "reply"]


class Granted(NamedTuple):
    """A server's answer to Connect, with kazoo's fields. A ``time_out`` of 0 means that the session has ended."""

    protocol_version: int
    time_out: int
    session_id: int
    passwd: bytes
    read_only: bool = False


class Reply(NamedTuple):
    """The answer to a request. ``error`` is an exception of kazoo, or None."""

    xid: int
    zxid: int
    error: Exception | None
    value: Any


class Event(NamedTuple):
    """A fired watch. ``kind`` is ZooKeeper's number: 1 created, 2 deleted, 3 changed, 4 children."""

    kind: int
    path: str


class End(Protocol):
    """One end of a link: a client or a server."""

    def receive(self, link: Link, message: Any) -> None: ...
    def closed(self, link: Link) -> None: ...


class _Direction:
    """One direction of a link. Messages arrive in the order in which they were sent, or never."""

    __slots__ = ("_delay_s", "_deliver", "_due_s", "_link", "_packet", "_timeline", "_waiting", "broken")

    def __init__(
        self, timeline: Timeline, link: Link, deliver: Callable[[Any], None], delay_s: Callable[[], float]
    ) -> None:
        self._timeline = timeline
        self._delay_s = delay_s
        self._link = link
        self._deliver = deliver
        #: The newest messages in flight, which arrive together at ``_due_s``.
        self._packet: list[Any] = []
        self._due_s = 0.0
        self._waiting: list[Any] = []
        self.broken = False

    def send(self, message: Any) -> None:
        due_s = self._timeline.now_s + self._delay_s()
        if due_s > self._due_s:
            self._due_s, self._packet = due_s, [message]
            self._timeline.at(due_s, self._arrive, self._packet)
        else:
            self._packet.append(message)

    def _arrive(self, packet: list[Any]) -> None:
        link, deliver = self._link, self._deliver
        for message in packet:
            if self.broken:
                return
            if link.stalled or self._waiting:
                self._waiting.append(message)
            else:
                deliver(message)

    def deliver_waiting(self) -> None:
        """Deliver the messages that a stall has delayed."""
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            if not self.broken:
                self._deliver(message)


#: The last message in a direction: its sender has closed.
_FIN = object()


class Link:
    """
    One connection.

    An end that closes receives nothing more. Its messages in flight still arrive at the other end, and then the
    close. A reset loses all messages in flight.
    """

    def __init__(self, timeline: Timeline, client: End, server: End, delay_s: Callable[[], float]) -> None:
        self.stalled = False
        #: Reset the link when a transaction arrives at the server ("request"), or an answer at the client ("reply").
        self.loses: Loss | None = None
        #: The session of this connection, or 0 before the server has confirmed one.
        self.session_id = 0
        self._client = client
        self._server = server
        self._upwards = _Direction(timeline, self, self._at_server, delay_s)
        self._downwards = _Direction(timeline, self, self._at_client, delay_s)
        #: Send a message to the server.
        self.to_server: Callable[[Any], None] = self._upwards.send

    @property
    def is_open(self) -> bool:
        """Whether neither end has closed the connection."""
        return not (self._upwards.broken or self._downwards.broken)

    def to_client(self, message: Any) -> None:
        if not self._downwards.broken:
            self._downwards.send(message)

    def close_by_client(self) -> None:
        """
        Close the client's end, which receives nothing more. The server gets the client's messages in flight and the
        close.
        """
        if not self._downwards.broken:
            self._downwards.broken = True
            self._upwards.send(_FIN)

    def close_by_server(self) -> None:
        """
        Close the server's end, which receives nothing more. The client gets the server's messages in flight and the
        close.
        """
        if not self._upwards.broken:
            self._upwards.broken = True
            self._downwards.send(_FIN)

    def reset(self) -> None:
        """Break the connection. Messages in flight are lost, and each end that had not closed is notified."""
        ends = ((self._server, self._upwards.broken), (self._client, self._downwards.broken))
        self._upwards.broken = self._downwards.broken = True
        for end, had_closed in ends:
            if not had_closed:
                end.closed(self)

    def resume(self) -> None:
        """End a stall, and deliver the messages that it has delayed."""
        self.stalled = False
        self._upwards.deliver_waiting()
        self._downwards.deliver_waiting()

    def _at_server(self, message: Any) -> None:
        if self.loses == "request" and isinstance(message, tuple) and isinstance(message[1], Transaction):
            self.reset()
        elif message is _FIN:
            self._upwards.broken = True
            self._server.closed(self)
        else:
            self._server.receive(self, message)

    def _at_client(self, message: Any) -> None:
        if self.loses == "reply" and isinstance(message, Reply) and isinstance(message.value, list):
            self.reset()
        elif message is _FIN:
            self._downwards.broken = True
            self._client.closed(self)
        else:
            self._client.receive(self, message)
