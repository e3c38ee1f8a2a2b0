"""Connections between clients and servers, as TCP has them: in order, late, stalled, half closed, or reset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

from kazoo.protocol.serialization import Transaction

from kiel_groups.testing.timeline import Timeline

__all__ = ["Link", "Loss", "Reply", "Event", "Granted", "End"]

Loss = Literal["request", "reply"]


class Granted(NamedTuple):
    """A server's answer to Connect: the fields of kazoo's; a timeout of 0 means that the session is over."""

    protocol_version: int
    time_out: int
    session_id: int
    passwd: bytes
    read_only: bool = False


class Reply(NamedTuple):
    """The answer to one request: ``error`` is an exception of kazoo's, or None."""

    xid: int
    zxid: int
    error: Exception | None
    value: Any


class Event(NamedTuple):
    """A watch fired; ``kind`` is ZooKeeper's number: 1 created, 2 deleted, 3 changed, 4 children."""

    kind: int
    path: str


class End(Protocol):
    """What stands at one end of a link."""

    def receive(self, link: Link, message: Any) -> None: ...
    def closed(self, link: Link) -> None: ...


class _Direction:
    """One way of a link; what was sent arrives in that order, or never."""

    __slots__ = ("_delay_s", "_deliver", "_due_s", "_link", "_packet", "_timeline", "_waiting", "broken")

    def __init__(
        self, timeline: Timeline, link: Link, deliver: Callable[[Any], None], delay_s: Callable[[], float]
    ) -> None:
        self._timeline = timeline
        self._delay_s = delay_s
        self._link = link
        self._deliver = deliver
        #: What arrives last of what is under way, and when.
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

    def flow(self) -> None:
        """Deliver what was held up."""
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            if not self.broken:
                self._deliver(message)


#: The last thing that is sent in one direction.
_FIN = object()


class Link:
    """
    One connection.

    Whoever closes its end hears nothing more from it, but what it had sent still arrives at the other end, and then the
    close. A reset loses all that is under way.
    """

    def __init__(self, timeline: Timeline, client: End, server: End, delay_s: Callable[[], float]) -> None:
        self.stalled = False
        #: Break it when the next transaction arrives at the server ("request"), or its answer at the client ("reply").
        self.loses: Loss | None = None
        #: The session that this connection serves, 0 before it does.
        self.session_id = 0
        self._client = client
        self._server = server
        self._upwards = _Direction(timeline, self, self._at_server, delay_s)
        self._downwards = _Direction(timeline, self, self._at_client, delay_s)
        #: Send something.
        self.to_server: Callable[[Any], None] = self._upwards.send

    @property
    def is_open(self) -> bool:
        """Whether neither end has closed it."""
        return not (self._upwards.broken or self._downwards.broken)

    def to_client(self, message: Any) -> None:
        if not self._downwards.broken:
            self._downwards.send(message)

    def close_by_client(self) -> None:
        """The client hears no more; the server gets what was sent, then the close."""
        if not self._downwards.broken:
            self._downwards.broken = True
            self._upwards.send(_FIN)

    def close_by_server(self) -> None:
        """The server hears no more; the client gets what was sent, then the close."""
        if not self._upwards.broken:
            self._upwards.broken = True
            self._downwards.send(_FIN)

    def reset(self) -> None:
        """Break it: whatever is under way is lost, and each end that had not closed it knows."""
        ends = ((self._server, self._upwards.broken), (self._client, self._downwards.broken))
        self._upwards.broken = self._downwards.broken = True
        for end, knows in ends:
            if not knows:
                end.closed(self)

    def resume(self) -> None:
        """What a stall has held up arrives now."""
        self.stalled = False
        self._upwards.flow()
        self._downwards.flow()

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
