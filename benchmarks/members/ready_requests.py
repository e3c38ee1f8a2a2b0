"""
Send produce requests that were encoded beforehand, from a socket: what the broker and the kernel take without a client.

Arguments: broker, topic, the number of records, the bytes of a value, the codec. The leader alone acknowledges. Two
requests are in flight, each with sets of ``AT_ONCE`` records for as many partitions as fit into 1 MiB.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

from benchmarks.members.produced import AT_ONCE, chunks, report
from kiel_groups.clients.calls.arguments import broker_config
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.errors import UnknownTopicError
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wire.framing import SIZE_BYTES, encode_request, split_response
from kiel_groups.wire.message_sets.encoder import encode_message_set
from kiel_groups.wire.produce import ProduceRequest

REQUEST_BYTES = 1 << 20
IN_FLIGHT = 2


async def partitions_of(broker: str, topic: str) -> tuple[int, ...]:
    """Return the partitions of a topic that was just created, once the broker knows it."""
    cluster = ClusterMetadata(broker_config(broker), Metrics())
    try:
        while True:
            with suppress(UnknownTopicError):
                return await cluster.partitions_of(topic)
            await asyncio.sleep(0.1)
    finally:
        cluster.close()


def requests(topic: str, partitions: tuple[int, ...], size: int, codec: str) -> list[tuple[bytes, int]]:
    """Return requests that together reach each partition, and how many records each has."""
    at_once = max(1, REQUEST_BYTES // (AT_ONCE * size))
    (values,) = chunks(AT_ONCE, size)
    messages = encode_message_set([None] * AT_ONCE, list(values), None if codec == "none" else codec)
    found = []
    for start in range(0, len(partitions), at_once):
        sets = {TopicPartition(topic, number): messages for number in partitions[start : start + at_once]}
        found.append((encode_request(ProduceRequest(1, 500, sets), start, "ready"), AT_ONCE * len(sets)))
    return found


def answers(connection: socket.socket) -> Iterator[None]:
    """Receive one answer after the other. Each must say that all its sets are stored."""
    with connection.makefile("rb") as received:
        while True:
            size = int.from_bytes(received.read(SIZE_BYTES), "big")
            answer = received.read(size)
            if not size or len(answer) < size:
                sys.exit("the broker has ended the connection")
            _, payload = split_response(answer)
            for place, stored in ProduceRequest.decode_response(payload).items():
                if stored.error != NO_ERROR:
                    sys.exit(f"{place} was not stored: {stored.error}")
            yield


def main(broker: str, topic: str, count: int, size: int, codec: str) -> None:
    ready = deque(requests(topic, asyncio.run(partitions_of(broker, topic)), size, codec))
    host, port = broker.split(":")
    with socket.create_connection((host, int(port))) as connection:
        received = answers(connection)
        connection.sendall(ready[0][0])
        next(received)
        report(0, size)
        sent = in_flight = 0
        while sent < count:
            connection.sendall(ready[0][0])
            sent, in_flight = sent + ready[0][1], in_flight + 1
            ready.rotate(-1)
            if in_flight == IN_FLIGHT:
                next(received)
                in_flight -= 1
        for _ in range(in_flight):
            next(received)
        report(sent, size)


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:5]), sys.argv[5])
