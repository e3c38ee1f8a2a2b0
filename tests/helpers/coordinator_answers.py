"""Answers of brokers that coordinate groups, encoded for scripted brokers, and scripts of such brokers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain, repeat

from kiel_groups.model import TopicPartition
from kiel_groups.wire.primitives import Reader, Writer
from tests.helpers.fake_broker import FETCH, FakeBroker, Fault, Request, Script

__all__ = [
    "API_VERSIONS",
    "CREATE_PARTITIONS",
    "CREATE_TOPICS",
    "DELETE_TOPICS",
    "DESCRIBE_GROUPS",
    "FIND_COORDINATOR",
    "LIST_GROUPS",
    "NO_TOPIC",
    "OFFSET_FETCH",
    "ONE_TOPIC",
    "coordinator",
    "described",
    "grown",
    "listed",
    "offsets",
    "named",
    "tool_script",
    "topic_errors",
    "versions",
]

OFFSET_FETCH, FIND_COORDINATOR, DESCRIBE_GROUPS, LIST_GROUPS, API_VERSIONS = 9, 10, 15, 16, 18
CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS = 19, 20, 37
_JOIN_GROUP = 11

#: Answers to the probe of versions: for no topic, as 0.9 reads it, and for one.
NO_TOPIC, ONE_TOPIC = bytes(8), bytes.fromhex("0000000000000001000161000000010000000000030000000000000000ffffffff")

#: What a broker does about a request of a kind: always the same, or one thing after the other, of which the last stays.
Reply = bytes | Fault | Callable[[Request], "bytes | Fault"]


def tool_script(answers: Mapping[int, Reply | Sequence[Reply]], without: Collection[int] = ()) -> Script:
    """
    Return the script of a broker of 3.9 that answers the requests of tools, by API key, so.

    ``without`` has the API keys of requests that the broker does not know, as an older one.
    """
    keys = {FETCH, _JOIN_GROUP, CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS} - set(without)
    probed: dict[int, Reply] = {FETCH: ONE_TOPIC, API_VERSIONS: versions(dict.fromkeys(keys, (0, 9)))}
    replies = {key: _in_turn(reply) for key, reply in {**probed, **answers}.items()}

    def script(request: Request) -> bytes | Fault | None:
        if request.api_key not in replies:
            return None
        reply = next(replies[request.api_key])
        return reply(request) if callable(reply) else reply

    return script


def _in_turn(reply: Reply | Sequence[Reply]) -> Iterator[Reply]:
    """Yield one reply after the other, and then the last one again and again."""
    replies = [reply] if isinstance(reply, (bytes, Fault)) or callable(reply) else reply
    return chain(replies, repeat(replies[-1]))


def versions(ranges: Mapping[int, tuple[int, int]]) -> bytes:
    """Encode an answer to ApiVersions."""
    writer = Writer()
    writer.int16(0)
    writer.int32(len(ranges))
    for key, (least, most) in ranges.items():
        writer.int16(key)
        writer.int16(least)
        writer.int16(most)
    return writer.getvalue()


def coordinator(code: int, node_id: int = -1, host: str = "", port: int = -1) -> bytes:
    """Encode an answer to FindCoordinator."""
    writer = Writer()
    writer.int16(code)
    writer.int32(node_id)
    writer.string(host)
    writer.int32(port)
    return writer.getvalue()


def named(broker: FakeBroker) -> bytes:
    """Encode an answer to FindCoordinator that names a broker."""
    return coordinator(0, broker.node_id, broker.address.host, broker.port)


def listed(code: int, *groups: str) -> bytes:
    """Encode an answer to ListGroups."""
    writer = Writer()
    writer.int16(code)
    writer.int32(len(groups))
    for group in groups:
        writer.string(group)
        writer.string("consumer")
    return writer.getvalue()


def described(codes: Mapping[str, int], state: str = "Empty") -> bytes:
    """Encode an answer to DescribeGroups for groups without members, by name, each with its error code."""
    writer = Writer()
    writer.int32(len(codes))
    for group, code in codes.items():
        writer.int16(code)
        writer.string(group)
        for text in ("" if code else state, "" if code else "consumer", ""):
            writer.string(text)
        writer.int32(0)
    return writer.getvalue()


def offsets(offset: int, codes: Mapping[TopicPartition, int] | int = 0) -> Callable[[Request], bytes]:
    """Return what encodes answers to OffsetFetch: one offset for all partitions, or error codes, or one for all."""

    def answer(request: Request) -> bytes:
        body, writer = Reader(request.body, "a request"), Writer()
        body.string()
        topics = body.array(2)
        writer.int32(len(topics))
        for _ in topics:
            topic = body.string()
            numbers = [body.int32() for _ in body.array(4)]
            writer.string(topic)
            writer.int32(len(numbers))
            for number in numbers:
                code = codes if isinstance(codes, int) else codes.get(TopicPartition(topic, number), 0)
                writer.int32(number)
                writer.int64(-1 if code else offset)
                writer.string("")
                writer.int16(code)
        return writer.getvalue()

    return answer


def topic_errors(**codes: int) -> bytes:
    """Encode an answer to CreateTopics or DeleteTopics: the error code of each topic."""
    writer = Writer()
    writer.int32(len(codes))
    for topic, code in codes.items():
        writer.string(topic)
        writer.int16(code)
    return writer.getvalue()


def grown(**codes: int) -> bytes:
    """Encode an answer to CreatePartitions."""
    writer = Writer()
    writer.int32(0)
    writer.int32(len(codes))
    for topic, code in codes.items():
        writer.string(topic)
        writer.int16(code)
        writer.int16(-1)  # no text
    return writer.getvalue()
