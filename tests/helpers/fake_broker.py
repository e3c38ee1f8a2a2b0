"""
A scripted Kafka broker on loopback, for what a real one does not do on command.

It keeps message sets in memory and answers Metadata, Produce, Fetch and ListOffsets v0. ``script`` may take a request
over: it gets each one and returns the bytes of the answer, None to let the broker answer itself, or a ``Fault``.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from kiel_groups.config import BrokerConfig, HostPort
from kiel_groups.model import TopicPartition
from kiel_groups.wire.primitives import Reader, Writer

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3


class Fault(Enum):
    """How to misbehave instead of answering."""

    SILENT = auto()
    CLOSE = auto()
    HALF = auto()
    WRONG_CORRELATION_ID = auto()
    HUGE = auto()


class Asked(NamedTuple):
    """One request as the broker got it."""

    api_key: int
    connection: int
    body: bytes


@dataclass
class Log:
    """One partition: its messages as (offset, bytes of the message set entry)."""

    entries: list[tuple[int, bytes]] = field(default_factory=list)
    start: int = 0
    end: int = 0

    def append(self, message_set: bytes) -> int:
        """Store a message set, numbering its messages; the first one's offset."""
        base, at = self.end, 0
        while at < len(message_set):
            (size,) = struct.unpack_from(">i", message_set, at + 8)
            entry = struct.pack(">q", self.end) + message_set[at + 8 : at + 12 + size]
            self.entries.append((self.end, entry))
            self.end += 1
            at += 12 + size
        return base

    def read(self, offset: int, max_bytes: int) -> bytes:
        """From an offset on, cut off after ``max_bytes`` as a broker does."""
        found = bytearray()
        for number, entry in self.entries[max(0, offset - (self.entries[0][0] if self.entries else 0)) :]:
            if number >= offset:
                found += entry
            if len(found) >= max_bytes:
                break
        return bytes(found[:max_bytes])


Script = Callable[[Asked], "bytes | Fault | None"]


class FakeBroker:
    """One broker; ``async with FakeBroker({"t": 2}) as broker``. ``leaders`` may send clients elsewhere."""

    def __init__(self, topics: dict[str, int] | None = None, node_id: int = 0, script: Script | None = None) -> None:
        self.node_id = node_id
        self.logs = {TopicPartition(t, p): Log() for t, count in (topics or {}).items() for p in range(count)}
        self.leaders: dict[TopicPartition, int] = {}
        self.peers: list[FakeBroker] = [self]
        self.script = script
        self.asked: list[Asked] = []
        self.errors: dict[tuple[int, TopicPartition], list[int]] = {}
        #: Answers to a kind of request wait until its event is set.
        self.gates: dict[int, asyncio.Event] = {}
        #: Answers go out in groups of so many, the last one of a group first.
        self.reversed_by = 1
        self._held: list[bytes] = []
        self.port = 0
        self.connections = 0
        self._grown = asyncio.Event()
        self._news = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> FakeBroker:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Go away: no new connections, the open ones closed."""
        if self._server is not None:
            self._server.close()
            self.drop_connections()
            self._server = None

    def drop_connections(self) -> None:
        """Close what is open; new connections are welcome."""
        for writer in list(self._writers):
            writer.transport.abort()

    @property
    def address(self) -> HostPort:
        return HostPort("127.0.0.1", self.port)

    def config(self, **settings: int) -> BrokerConfig:
        """Settings for a client of this broker: quick to back off, quick to give up."""
        quick = {"backoff_ms": 2, "max_backoff_ms": 20, "request_timeout_ms": 2_000, "connect_timeout_ms": 1_000}
        return BrokerConfig(hosts=(self.address,), **(quick | settings))

    def append(self, tp: TopicPartition, message_set: bytes) -> int:
        """As if somebody had produced it."""
        base = self.logs[tp].append(message_set)
        self._grown.set()
        return base

    def fail_next(self, api_key: int, tp: TopicPartition, *codes: int) -> None:
        """Answer the next requests of this kind for the partition with these error codes, one a request."""
        self.errors.setdefault((api_key, tp), []).extend(codes)

    def count(self, api_key: int) -> int:
        """How many requests of a kind came."""
        return sum(asked.api_key == api_key for asked in self.asked)

    async def until_asked(self, api_key: int, count: int) -> None:
        """Wait until so many requests of a kind have come."""
        async with asyncio.timeout(5):
            while self.count(api_key) < count:
                self._news.clear()
                await self._news.wait()

    # ------------------------------------------------------------------ serving

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
        asked = Asked(api_key, number, body)
        self.asked.append(asked)
        self._news.set()
        answer = self.script(asked) if self.script else None
        if api_key in self.gates:
            await self.gates[api_key].wait()
        if answer is None:
            answer = await self._answer(api_key, Reader(body, "a request"))
        if isinstance(answer, Fault):
            writer.write(_misbehave(answer, correlation_id))
            if answer in (Fault.CLOSE, Fault.HALF):
                await writer.drain()
                raise EOFError
            return
        if answer is not None:
            self._held.insert(0, struct.pack(">ii", len(answer) + 4, correlation_id) + answer)
            if len(self._held) >= self.reversed_by:
                writer.write(b"".join(self._held))
                self._held.clear()

    async def _answer(self, api_key: int, body: Reader) -> bytes | None:
        if api_key == METADATA:
            return self.metadata([body.string() for _ in body.array(2)])
        if api_key == PRODUCE:
            return self._produce(body)
        if api_key == LIST_OFFSETS:
            return self._list_offsets(body)
        return await self._fetch(body)

    def metadata(self, topics: Iterable[str]) -> bytes:
        """The answer to a metadata request."""
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
        asked: list[tuple[TopicPartition, int, int]] = []
        _each_partition(body, lambda tp, _: asked.append((tp, body.int64(), body.int32())))
        deadline = asyncio.get_running_loop().time() + wait_ms / 1000
        while True:
            self._grown.clear()
            found = {tp: self._read(tp, offset, max_bytes) for tp, offset, max_bytes in asked}
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0 or any(e for e, _ in found.values()) or sum(len(s) for _, s in found.values()) >= min_bytes:
                return self._fetched(found)
            try:
                async with asyncio.timeout(left_s):
                    await self._grown.wait()
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
    if fault is Fault.HALF:
        return struct.pack(">ii", 100, correlation_id) + b"half"
    if fault is Fault.WRONG_CORRELATION_ID:
        return struct.pack(">ii", 4, correlation_id + 7)
    if fault is Fault.HUGE:
        return b"HTTP/1.1 400 Bad Request\r\n\r\n"
    return b""
