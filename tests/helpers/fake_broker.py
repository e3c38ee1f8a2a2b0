"""
A scripted Kafka broker on the loopback interface, for behaviour that a test cannot get from a real broker on demand.

The broker keeps message sets in memory and answers Metadata, Produce, Fetch and ListOffsets v0. A ``script`` may
replace these answers: it gets each request, and returns the bytes of an answer, a ``Fault``, or None for the broker's
own answer.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from kiel_groups.config import BrokerConfig, HostPort
from kiel_groups.model import TopicPartition
from kiel_groups.wire.message_sets.encoder import encode_message_set
from kiel_groups.wire.primitives import Reader, Writer
from tests.helpers.message_sets import decode_message_set

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3


class Fault(Enum):
    """The broker's misbehaviour in place of an answer."""

    SILENT = auto()
    CLOSE = auto()
    #: The first bytes of an answer, and then the end of the connection, or nothing more.
    HALF = auto()
    STALLED = auto()
    #: An answer of 60 MiB, whose bytes come for as long as the client waits.
    ENDLESS = auto()
    WRONG_CORRELATION_ID = auto()
    #: Sizes that are negative, smaller than the answer, and of another protocol.
    NEGATIVE = auto()
    SHORT = auto()
    HUGE = auto()


class Request(NamedTuple):
    """A received request. ``connection`` numbers the connections from 1."""

    api_key: int
    connection: int
    body: bytes


@dataclass
class Log:
    """The log of one partition: its messages as (offset, bytes of the message set entry)."""

    entries: list[tuple[int, bytes]] = field(default_factory=list)
    start: int = 0
    end: int = 0

    def append(self, message_set: bytes) -> int:
        """Store a message set, assign offsets to its messages, and return the first offset."""
        base, at = self.end, 0
        while at < len(message_set):
            (size,) = struct.unpack_from(">i", message_set, at + 8)
            entry = struct.pack(">q", self.end) + message_set[at + 8 : at + 12 + size]
            self.entries.append((self.end, entry))
            self.end += 1
            at += 12 + size
        return base

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Return the messages at and after ``offset``, cut off after ``max_bytes``, as a broker does."""
        found = bytearray()
        for number, entry in self.entries[max(0, offset - (self.entries[0][0] if self.entries else 0)) :]:
            if number >= offset:
                found += entry
            if len(found) >= max_bytes:
                break
        return bytes(found[:max_bytes])


Script = Callable[[Request], "bytes | Fault | None"]


def message_set(*values: bytes) -> bytes:
    """Encode messages with these values and no keys."""
    return encode_message_set([None] * len(values), list(values))


class FakeBroker:
    """
    One broker, which runs during ``async with FakeBroker({"t": 2}) as broker``: topic t has two partitions.

    Attributes:
        leaders: The node ids of partition leaders that are not this broker.
        peers: The brokers listed in Metadata.
        requests: All received requests.
    """

    def __init__(self, topics: dict[str, int] | None = None, node_id: int = 0, script: Script | None = None) -> None:
        self.node_id = node_id
        self.logs = {TopicPartition(t, p): Log() for t, count in (topics or {}).items() for p in range(count)}
        self.leaders: dict[TopicPartition, int] = {}
        self.peers: list[FakeBroker] = [self]
        self.script = script
        self.requests: list[Request] = []
        self.errors: dict[tuple[int, TopicPartition], list[int]] = {}
        #: The code with which produce requests to a topic are refused if a record in them has no key, by topic.
        self.compacted: dict[str, int] = {}
        #: By API key: the event that answers to such requests wait for.
        self.gates: dict[int, asyncio.Event] = {}
        #: The number of answers that are sent together, in reverse order.
        self.reversed_by = 1
        self._unsent: list[bytes] = []
        self.port = 0
        self.connections = 0
        self._appended = asyncio.Event()
        self._arrived = asyncio.Event()
        #: Bound to the port and never listening: while the broker is stopped, no other program gets its port.
        self._reservation: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> FakeBroker:
        if self._reservation is None:
            self._reservation = socket.socket()
            self._reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self._reservation.bind(("127.0.0.1", self.port))
            self.port = self._reservation.getsockname()[1]
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, reuse_port=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        if self._reservation is not None:
            self._reservation.close()
            self._reservation = None

    async def stop(self) -> None:
        """Refuse new connections, and close all open connections."""
        if self._server is not None:
            self._server.close()
            self.drop_connections()
            self._server = None

    def drop_connections(self) -> None:
        """Close the open connections. New connections are accepted."""
        for writer in list(self._writers):
            writer.transport.abort()

    @property
    def address(self) -> HostPort:
        return HostPort("127.0.0.1", self.port)

    def config(self, **settings: int) -> BrokerConfig:
        """Return a client configuration for this broker, with short delays and timeouts."""
        quick = {"backoff_ms": 2, "max_backoff_ms": 20, "request_timeout_ms": 30_000, "connect_timeout_ms": 30_000}
        return BrokerConfig(hosts=(self.address,), **(quick | settings))

    def append(self, tp: TopicPartition, message_set: bytes) -> int:
        """Append a message set as a producer would, and return the offset of its first message."""
        base = self.logs[tp].append(message_set)
        self._appended.set()
        return base

    def fail_next(self, api_key: int, tp: TopicPartition, *codes: int) -> None:
        """Answer the next requests of a kind with error codes for the partition, one code for each request."""
        self.errors.setdefault((api_key, tp), []).extend(codes)

    def received(self, api_key: int) -> list[Request]:
        """Return the received requests of a kind."""
        return [request for request in self.requests if request.api_key == api_key]

    def count(self, api_key: int) -> int:
        """Return the number of received requests of a kind."""
        return len(self.received(api_key))

    async def wait_for_requests(self, api_key: int, count: int) -> None:
        """Wait until ``count`` requests of a kind have arrived."""
        async with asyncio.timeout(5):
            while self.count(api_key) < count:
                self._arrived.clear()
                await self._arrived.wait()

    # ------------------------------------------------------------------ serving

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:
            # The connection was accepted while the broker stopped.
            writer.transport.abort()
            return
        self._writers.add(writer)
        self.connections += 1
        number = self.connections
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                await self._handle(await reader.readexactly(size), number, writer)
        except (asyncio.IncompleteReadError, ConnectionError, EOFError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _handle(self, frame: bytes, number: int, writer: asyncio.StreamWriter) -> None:
        header = Reader(frame, "a request")
        api_key, _, correlation_id, client_id = header.int16(), header.int16(), header.int32(), header.string()
        body = frame[10 + len(client_id) :]
        request = Request(api_key, number, body)
        self.requests.append(request)
        self._arrived.set()
        answer = self.script(request) if self.script else None
        if api_key in self.gates:
            await self.gates[api_key].wait()
        if answer is None:
            answer = await self._answer(api_key, Reader(body, "a request"))
        if isinstance(answer, Fault):
            writer.write(_misbehave(answer, correlation_id))
            if answer is Fault.ENDLESS:
                while not writer.transport.is_closing():
                    writer.write(bytes(1024))
                    await writer.drain()
                    await asyncio.sleep(0.002)
            if answer in (Fault.CLOSE, Fault.HALF):
                await writer.drain()
                raise EOFError
            return
        if answer is not None:
            self._unsent.insert(0, struct.pack(">ii", len(answer) + 4, correlation_id) + answer)
            if len(self._unsent) >= self.reversed_by:
                writer.write(b"".join(self._unsent))
                self._unsent.clear()

    async def _answer(self, api_key: int, body: Reader) -> bytes | None:
        if api_key == METADATA:
            return self.metadata([body.string() for _ in body.array(2)])
        if api_key == PRODUCE:
            return self._produce(body)
        if api_key == LIST_OFFSETS:
            return self._list_offsets(body)
        return await self._fetch(body)

    def metadata(self, topics: Iterable[str]) -> bytes:
        """Encode the answer to a Metadata request. If ``topics`` is empty, the answer has all topics."""
        writer = Writer()
        writer.int32(len(self.peers))
        for peer in self.peers:
            writer.int32(peer.node_id)
            writer.string("127.0.0.1")
            writer.int32(peer.port)
        names = list(topics) or sorted({tp.topic for tp in self.logs})
        writer.int32(len(names))
        for name in names:
            partitions = sorted(tp for tp in self.logs if tp.topic == name)
            writer.int16(0 if partitions else 3)
            writer.string(name)
            writer.int32(len(partitions))
            for tp in partitions:
                leader = self.leaders.get(tp, self.node_id)
                writer.int16(5 if leader < 0 else 0)
                writer.int32(tp.partition)
                writer.int32(leader)
                writer.int32(0)
                writer.int32(0)
        return writer.getvalue()

    def _error(self, api_key: int, tp: TopicPartition) -> int:
        if tp not in self.logs:
            return 3
        if self.leaders.get(tp, self.node_id) != self.node_id:
            return 6
        queued = self.errors.get((api_key, tp))
        return queued.pop(0) if queued else 0

    def _produce(self, body: Reader) -> bytes | None:
        acks, _ = body.int16(), body.int32()

        def store(tp: TopicPartition, writer: Writer) -> None:
            message_set = bytes(body.blob())
            error = self._error(PRODUCE, tp)
            if not error and tp.topic in self.compacted:
                records = decode_message_set(message_set, tp, 0, max_decompressed_bytes=1 << 20)
                error = self.compacted[tp.topic] if any(record.key is None for record in records) else 0
            writer.int16(error)
            writer.int64(-1 if error else self.append(tp, message_set))

        answer = _each_partition(body, store)
        return answer if acks else None

    def _list_offsets(self, body: Reader) -> bytes:
        body.int32()

        def look_up(tp: TopicPartition, writer: Writer) -> None:
            at, _ = body.int64(), body.int32()
            error = self._error(LIST_OFFSETS, tp)
            writer.int16(error)
            offsets = [] if error or at >= 0 else [self.logs[tp].start if at == -2 else self.logs[tp].end]
            writer.int32(len(offsets))
            for offset in offsets:
                writer.int64(offset)

        return _each_partition(body, look_up)

    async def _fetch(self, body: Reader) -> bytes:
        _, wait_ms, min_bytes = body.int32(), body.int32(), body.int32()
        wanted: list[tuple[TopicPartition, int, int]] = []
        _each_partition(body, lambda tp, _: wanted.append((tp, body.int64(), body.int32())))
        deadline = asyncio.get_running_loop().time() + wait_ms / 1000
        while True:
            self._appended.clear()
            found = {tp: self._read(tp, offset, max_bytes) for tp, offset, max_bytes in wanted}
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0 or any(e for e, _ in found.values()) or sum(len(s) for _, s in found.values()) >= min_bytes:
                return self._fetched(found)
            try:
                async with asyncio.timeout(left_s):
                    await self._appended.wait()
            except TimeoutError:
                continue

    def _read(self, tp: TopicPartition, offset: int, max_bytes: int) -> tuple[int, bytes]:
        error = self._error(FETCH, tp)
        if error:
            return error, b""
        log = self.logs[tp]
        return (1, b"") if not log.start <= offset <= log.end else (0, log.read(offset, max_bytes))

    def _fetched(self, found: dict[TopicPartition, tuple[int, bytes]]) -> bytes:
        writer = Writer()
        writer.int32(len(found))
        for tp, (error, message_set) in found.items():
            writer.string(tp.topic)
            writer.int32(1)
            writer.int32(tp.partition)
            writer.int16(error)
            writer.int64(self.logs[tp].end if tp in self.logs and not error else -1)
            writer.blob(message_set)
        return writer.getvalue()


def _each_partition(body: Reader, handle: Callable[[TopicPartition, Writer], object]) -> bytes:
    writer = Writer()
    topics = body.array(2)
    writer.int32(len(topics))
    for _ in topics:
        topic = body.string()
        writer.string(topic)
        partitions = body.array(4)
        writer.int32(len(partitions))
        for _ in partitions:
            number = body.int32()
            writer.int32(number)
            handle(TopicPartition(topic, number), writer)
    return writer.getvalue()


def _misbehave(fault: Fault, correlation_id: int) -> bytes:
    if fault in (Fault.HALF, Fault.STALLED):
        return struct.pack(">ii", 100, correlation_id) + b"half"
    if fault is Fault.ENDLESS:
        return struct.pack(">ii", 60 << 20, correlation_id)
    if fault is Fault.NEGATIVE:
        return struct.pack(">ii", -5, correlation_id)
    if fault is Fault.SHORT:
        return struct.pack(">ii", 6, correlation_id) + b"more than two bytes"
    if fault is Fault.WRONG_CORRELATION_ID:
        return struct.pack(">ii", 4, correlation_id + 7)
    if fault is Fault.HUGE:
        return b"HTTP/1.1 400 Bad Request\r\n\r\n"
    return b""
