"""
The targets of the fuzzer. A target takes any bytes, and fails if the tested code breaks its promise for these bytes.

Each target has seeds: inputs with which the fuzzer begins, and which ``test_targets`` runs as well.
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

from kiel_groups.clients.net.connection import AnswerStream, Connection, ReceiveBuffers
from kiel_groups.errors import ConfigError, ProtocolError
from kiel_groups.group.commit_note import CommitNote, NotedText
from kiel_groups.group.znodes import contents, group_settings, round_contents, worker_contents
from kiel_groups.model import Record, TopicPartition
from kiel_groups.wire import connect_protocol, consumer_protocol
from kiel_groups.wire.codecs import codec_by_number
from kiel_groups.wire.framing import SIZE_BYTES, decode_size, split_response
from kiel_groups.wire.message_sets import decoder
from kiel_groups.wire.message_sets.decoder import decode_columns, message_steps
from kiel_groups.wire.message_sets.encoder import _encode_uncompiled, encode_message_set
from kiel_groups.wire.message_sets.message_layout import NoRecords, PartialMessage
from kiel_groups.wire.message_sets.record_columns import RecordColumns
from tests.fuzz.answers import ANSWERS, REQUESTS
from tests.helpers.message_sets import (
    PLAIN,
    REFUSED,
    WAYS,
    WRAPPED,
    assert_decoders_agree,
    decode_message_set,
    filler,
    reading,
    with_valid_crcs,
)
from tests.helpers.reference_codec import Message, decode, encode, message, raw_message, wrapper
from tests.helpers.reference_compression import NUMBERS, RefusedError, lz4_frame, packed, raw_snappy, unpacked

SOURCE = TopicPartition("t", 0)
#: What wrappers may unpack to, in bytes.
LIMIT = 1 << 16
NAMES = list(NUMBERS)


@dataclass(frozen=True)
class Target:
    """
    A target of the fuzzer.

    ``share`` is the part of all inputs that the target gets. Targets that take little time get the larger parts.
    """

    run: Callable[[bytes], None]
    seeds: Sequence[bytes]
    share: float


# ------------------------------------------------------------------ message sets


class _Shape(NamedTuple):
    """How the first bytes of an input shape the message set that is made of the other bytes."""

    flags: int
    position: int
    run_bytes: int

    def set_of(self, data: bytes) -> bytes:
        """Return the message set: CRCs are corrected if bit 2 is set; the bits 0 and 1 name the codec of a wrapper."""
        found = with_valid_crcs(data) if self.flags & 4 else data
        if not (codec := self.flags & 3):
            return found
        # The offset of a valid wrapper is that of its last message.
        messages: list[Message] = []
        with contextlib.suppress(RefusedError):
            decode(found, messages)
        last = messages[-1][0] if messages else 5
        return wrapper(found, last, codec=NAMES[codec - 1]) + (found if self.flags & 8 else b"")


_SHAPE = struct.Struct(">BHB")


def _in_rows(way: str, data: bytes, shape: _Shape) -> list[object]:
    """Return the records of a set as the two functions of a decoder return them, or the classes of their errors."""

    def runs() -> list[Any]:
        steps = message_steps(
            data,
            SOURCE,
            shape.position,
            max_decompressed_bytes=LIMIT,
            announced_bytes=64,
        )
        found = [run for run in steps if run is not None]
        assert [each for run in found for each in run.values().records] == [x for run in found for x in run.records()]
        return [record for run in found for record in run.records()]

    def columns() -> list[Any]:
        found = decode_columns(data, SOURCE, shape.position, max_decompressed_bytes=LIMIT)
        rows = RecordColumns(SOURCE, None, found, range(len(found.offsets) // 8))
        keys, values = (
            [None if each is None else bytes(each) for each in column] for column in (rows.keys, rows.values)
        )
        return [Record(*SOURCE, *row) for row in zip(rows.offsets, keys, values, strict=True)]

    found: list[object] = []
    with reading(way, shape.run_bytes + 1):
        for decode in (runs, columns):
            try:
                found.append(decode())
            except (PartialMessage, NoRecords, ProtocolError) as error:
                found.append(type(error))
    return found


def decode_sets(data: bytes) -> None:
    """All decoders return the same records, runs and columns as the reference decoder, or refuse the set as it does."""
    if len(data) < _SHAPE.size:
        return
    shape = _Shape(*_SHAPE.unpack_from(data))
    message_set = shape.set_of(data[_SHAPE.size :])
    # From any other position, the decoders skip wrappers, which the reference refuses if they are damaged.
    assert_decoders_agree(message_set, limit=LIMIT)
    outcomes = [outcome for way in WAYS for outcome in _in_rows(way, message_set, shape)]
    assert all(outcome == outcomes[0] for outcome in outcomes), outcomes


def read_unchecked(data: bytes) -> None:
    """The compiled readers return rows for any bytes and bounds, or raise a ValueError, all of them alike."""
    if not decoder.COMPILED or len(data) < 8:
        return
    from kiel_groups.wire import _messages

    start, stop, first, last = struct.unpack_from(">bbbb", data)
    content = data[4:]
    runs = ((content, start, start + stop), (content, 0, len(content)))
    answers: list[object] = []
    for read in (
        lambda: len(_messages.records(runs, first, last, Record, *SOURCE)),
        lambda: len(_messages.values(runs, first, last)[0]),
        lambda: len(_messages.columns(runs, first, last)[0]) // 8,
        lambda: _messages.span(runs, first, last)[0],
    ):
        try:
            answers.append(read())
        except ValueError:
            answers.append(ValueError)
    assert answers == answers[:1] * 4, answers
    with contextlib.suppress(ValueError):
        _messages.check(content, start, start + stop, first, last)
    with contextlib.suppress(ValueError):
        _messages.wrapper(content, start, first)
    _messages.crc_matches(content)


def _blobs(data: bytes) -> Iterator[bytes | None]:
    """Divide bytes into keys and values. The length 255 means null."""
    at = 0
    while at < len(data):
        size = data[at]
        yield None if size == 255 else data[at + 1 : at + 1 + size]
        at += 1 + (0 if size == 255 else size)


def encode_sets(data: bytes) -> None:
    """The encoders write the same bytes as the reference, and the decoders return what was encoded, with each codec."""
    blobs = list(_blobs(data[1:]))
    keys, values = blobs[0::2], blobs[1::2]
    keys = keys[: len(values)]
    numbered = [(number, *pair) for number, pair in enumerate(zip(keys, values, strict=True))]
    plain = encode_message_set(keys, values)
    assert plain == _encode_uncompiled(keys, values) == encode(numbered)
    name = [None, *NAMES][data[0] & 3] if data else None
    message_set = encode_message_set(keys, values, name)
    for way in WAYS:
        with reading(way):
            found = decode_message_set(message_set, SOURCE, 0, max_decompressed_bytes=len(plain))
            assert [record[2:] for record in found] == numbered, way


def decompress(data: bytes) -> None:
    """A codec returns what the reference returns, at most up to the limit, or raises a ProtocolError."""
    if not data:
        return
    number = data[0] % 3 + 1
    try:
        content = codec_by_number(number).decompress(data[1:], LIMIT)
    except ProtocolError:
        return
    assert len(content) <= LIMIT
    try:
        assert content == unpacked(number, data[1:])
    except RefusedError:
        # liblz4 accepts a copy from distance 0, and leaves the checksum of the content to its callers.
        assert number == 3


# ------------------------------------------------------------------ answers and frames


def decode_answers(data: bytes) -> None:
    """
    An answer is refused with a ProtocolError, or decoded into a value with no more than the bytes that were read.
    """
    if not data:
        return
    request = type(REQUESTS[data[0] % len(REQUESTS)])
    payload = data[1:]
    try:
        found = request.decode_response(payload)
    except ProtocolError:
        return
    if request in _WRITABLE:
        again = request.ANSWER.encode(found)
        assert len(again) <= len(payload)
        assert request.decode_response(again) == found


_WRITABLE = {request for request, _ in ANSWERS}


class _Frames:
    """The owner of a stream: keeps the payloads, and refuses a size that is not between 4 and 4,096."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.broken = False

    def announced(self, header: memoryview) -> memoryview | None:
        try:
            size = decode_size(header[:SIZE_BYTES], 4096)
        except ProtocolError:
            self.broken = True
            return None
        split_response(header[SIZE_BYTES:])
        return memoryview(bytearray(size - SIZE_BYTES))

    def received(self, payload: memoryview) -> None:
        self.payloads.append(bytes(payload))


def receive_frames(data: bytes) -> None:
    """A connection passes on the same answers, however the network divides their bytes."""
    if len(data) < 2:
        return
    step, content = data[0] + 1, data[1:]
    owner, stream = _Frames(), AnswerStream(ReceiveBuffers())
    stream._owner = cast(Connection, owner)
    at = 0
    while at < len(content) and not owner.broken:
        room = stream.get_buffer(-1)
        part = content[at : at + min(step, len(room))]
        room[: len(part)] = part
        stream.buffer_updated(len(part))
        at += len(part)
    wanted, at = [], 0
    while len(content) - at >= 8 and 4 <= (size := int.from_bytes(content[at : at + 4], "big", signed=True)) <= 4096:
        if at + 4 + size <= len(content):
            wanted.append(content[at + 8 : at + 4 + size])
        at += 4 + size
    assert owner.payloads == wanted


# ------------------------------------------------------------------ data of members and znodes

_PATH = f"/path/{'0' * 40}"
#: The parsers of the data that other members, or other programs, may have written. All take a name for errors.
PARSERS: Mapping[str, Callable[[bytes, str], object]] = {
    "ConsumerSubscription": consumer_protocol.ConsumerSubscription.parse,
    "ConsumerAssignment": consumer_protocol.ConsumerAssignment.parse,
    "ConnectMetadata": connect_protocol.ConnectMetadata.parse,
    "StickyMetadata": connect_protocol.StickyMetadata.parse,
    "ConnectAssignment": connect_protocol.ConnectAssignment.parse,
    "MemberInfo": partial(contents.MemberInfo.parse, "m"),
    "GroupState": contents.GroupState.parse,
    "MemberAssignment": contents.MemberAssignment.parse,
    "GroupSettings": contents.GroupSettings.parse,
    "owner": contents.parse_owner,
    "offset": contents.parse_offset,
    "JavaSubscription": contents.JavaSubscription.parse,
    "topic": contents.parse_topic,
    "replicas": contents.parse_replicas,
    "preferred leaders": contents.parse_preferred_leaders,
    "broker": contents.parse_broker,
    "endpoints": contents.parse_endpoints,
    "listeners": contents.parse_listeners,
    "rack": contents.parse_broker_rack,
    "version": contents.parse_broker_version,
    "leader": contents.parse_leader,
    "FirstOffsets": contents.FirstOffsets.parse,
    "OrderNotice": contents.OrderNotice.parse,
    "OrderedOffset": contents.OrderedOffset.parse,
    "config offset": worker_contents.parse_config_offset,
    "StoredConnector": partial(worker_contents.StoredConnector.parse, "c"),
    "WorkStatus": worker_contents.WorkStatus.parse,
    "ConfigChange": worker_contents.ConfigChange.parse,
    "SourceOffset": worker_contents.SourceOffset.parse,
    "WorkerInfo": worker_contents.WorkerInfo.parse,
    "DynamicConfig": group_settings.DynamicConfig.parse,
    "weights": group_settings.parse_weights,
    "HistoryEntry": group_settings.HistoryEntry.parse,
    "RoundMember": partial(round_contents.RoundMember.parse, "m"),
    "RoundState": round_contents.RoundState.parse,
    "RoundAssignment": round_contents.RoundAssignment.parse,
    "RoundSettings": round_contents.RoundSettings.parse,
}
_NAMED = list(PARSERS)


def parse_members_data(data: bytes) -> None:
    """
    Data of other members is parsed or refused with a ProtocolError that names its place. What is parsed can be written.
    """
    if not data:
        return
    try:
        found: Any = PARSERS[_NAMED[data[0] % len(_NAMED)]](data[1:], _PATH)
    except ProtocolError as error:
        if not str(error).startswith(_PATH):
            raise AssertionError(f"{error!r} does not name its path") from error
        return
    if hasattr(found, "encode") and not isinstance(found, str):
        # Versions after 0 are read, and never written.
        with contextlib.suppress(ConfigError):
            found.encode()


def parse_notes(data: bytes) -> None:
    """The metadata of an offset is divided into text and note, and joined again."""
    with contextlib.suppress(UnicodeDecodeError):
        text, note = NotedText.parse(data.decode())
        if note is not None:
            assert NotedText.parse(note.after(text)) == (text, note)


# ------------------------------------------------------------------ seeds


def _shaped(message_set: bytes, flags: int = 0, position: int = 0) -> bytes:
    return _SHAPE.pack(flags, position, 40) + message_set


def _set_seeds() -> list[bytes]:
    mixed = encode(PLAIN[:2]) + wrapper(encode(PLAIN[2:]), 12) + message(20, None, b"x" * 40)
    whole = [WRAPPED, mixed, mixed + filler(30), mixed[:-5], *(data for data, _, _ in REFUSED.values())]
    wrapped = [_shaped(WRAPPED, flags, 8) for flags in range(8)]
    hostile = raw_message(5, struct.pack(">bbii", 0, 0, 2**31 - 1, -(2**31)) + b"x")
    return [*map(_shaped, whole), *wrapped, _shaped(hostile), _shaped(wrapper(mixed, 20, codec="lz4"), 4)]


def _codec_seeds() -> list[bytes]:
    content = b"kiel" * 40 + b"\0" * 300
    streams = {number: [packed(name, content)] for name, number in NUMBERS.items()}
    streams[2].append(raw_snappy(content))
    streams[3] += [lz4_frame(content, flags=0x7C), lz4_frame(content, kafka=False)]
    return [bytes([number - 1]) + stream for number, found in streams.items() for stream in found]


def _answer_seeds() -> list[bytes]:
    numbers = {type(request): number for number, request in enumerate(REQUESTS)}
    return [bytes([numbers[request]]) + request.ANSWER.encode(answer) for request, answer in ANSWERS]


#: Fields that the parsers of JSON read. The fuzzer puts them together.
_FIELDS: Mapping[str, object] = {
    "version": 1,
    "generation": 1,
    "state": "done",
    "leader": "m",
    "for": "m",
    "partitions": {"0": [0]},
    "t": [0],
    "subscription": {"t": 1},
    "session_timeout_ms": 1,
    "host": "h",
    "port": 1,
    "endpoints": ["PLAINTEXT://h:1"],
    "name": "c",
    "config": {"a": "b"},
    "target": "STARTED",
    "tasks": None,
    "offset": {},
    "partition": {},
    "worker_id": "h:1",
    "trace": "",
    "what": "",
    "connector": "c",
    "worker": "w",
    "when": 1,
    "keys": [],
    "uid": "",
    "joined": 1,
    "protocol_type": "p",
    "protocols": [["a", ""]],
    "members": {},
    "refused": {},
    "rack": "r",
    "store": "zookeeper",
    "weights": {"t:0": 1.5},
    "capacity": 1.5,
    "deep": [[[[{}]]]],
    "huge": 1e308,
}


def _data_seeds() -> list[bytes]:
    documents = [json.dumps(_FIELDS).encode(), b"17", b"m-1", b'{"a":' * 20, b"[" * 2_000, b"9" * 5_000, b"1e999"]
    members = [
        consumer_protocol.ConsumerSubscription(("t", "u"), b"data").encode(),
        consumer_protocol.ConsumerAssignment({"t": (0, 1)}, None).encode(),
        connect_protocol.ConnectMetadata("http://h:1/", 3).encode(),
        connect_protocol.StickyMetadata("http://h:1/", 3, 2, {"c": (-1, 0)}).encode(),
        connect_protocol.ConnectAssignment(0, "m", "http://h:1/", 3, {"c": (-1, 0)}).encode(),
    ]
    of_members = [bytes([number]) + data for number, data in enumerate(members)]
    return of_members + [bytes([number]) + data for number in range(5, len(_NAMED)) for data in documents]


#: The targets by name.
TARGETS: Mapping[str, Target] = {
    "sets": Target(decode_sets, _set_seeds(), 0.1),
    "unchecked": Target(read_unchecked, [bytes([0, 127, 0, 127]) + WRAPPED], 0.15),
    "encoder": Target(encode_sets, [b"\0\1k\5value\xff\0", b"\1\xff\3abc", b"\2", b"\3\1k\xff"], 0.15),
    "codecs": Target(decompress, _codec_seeds(), 0.15),
    "answers": Target(decode_answers, _answer_seeds(), 0.2),
    "frames": Target(
        receive_frames, [b"\0" + struct.pack(">ii4sii", 8, 1, b"body", 4, 2), b"\x09HTTP/1.1 400 Bad Request"], 0.1
    ),
    "members": Target(parse_members_data, _data_seeds(), 0.1),
    "notes": Target(parse_notes, [CommitNote(1, 2, 3).after("text").encode(), b'{"kiel-groups":{"at":1}}'], 0.05),
}
