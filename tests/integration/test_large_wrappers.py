"""A compressed message of tens of MiB on a real broker does not block the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from benchmarks.delivery.set_writer import SetWriter
from kiel_groups.clients import SingleConsumer
from kiel_groups.embedded import Cluster
from kiel_groups.model import TopicPartition
from kiel_groups.wire.message_sets import decoder
from kiel_groups.wire.message_sets.encoder import encode_message_set
from tests.helpers.message_sets import decode_message_set

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not decoder.COMPILED, reason="the package was installed without a C compiler"),
]

MESSAGES = 30 << 10


class LongestStep:
    """Measures the longest step of the event loop, in seconds."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._task = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            before_s = time.perf_counter()
            await asyncio.sleep(0)
            self.longest_s = max(self.longest_s, time.perf_counter() - before_s)

    def stop(self) -> None:
        self._task.cancel()


async def test_a_wrapper_of_30_mib_does_not_block_the_event_loop(
    cluster_39: Cluster, unique: Callable[[str], str]
) -> None:
    """
    The longest step of the event loop is shorter than half of the time that unpacking takes. It was longer than all of
    it when the event loop did the unpacking.
    """
    topic = unique("large-wrapper")
    await cluster_39.create_topic(topic, 1)
    partition = TopicPartition(topic, 0)
    wrapper = encode_message_set([None] * MESSAGES, [b"%06d" % n + b"abcdefgh" * 127 for n in range(MESSAGES)], "gzip")
    writer = SetWriter(cluster_39.brokers[0])
    writer.append({partition: wrapper})
    writer.close()
    began_s = time.perf_counter()
    decode_message_set(wrapper, partition, MESSAGES - 1, max_decompressed_bytes=64 << 20)
    unpacking_s = time.perf_counter() - began_s

    longest_s = []
    async with SingleConsumer(cluster_39.brokers) as consumer:
        consumer.assign([partition])
        # Another process may take the processor in the middle of a step, but hardly in each of ten readings.
        for _ in range(10):
            consumer.seek(partition, 0)
            steps = LongestStep()
            offsets: list[int] = []
            while len(offsets) < MESSAGES:
                found = await consumer.getmany(timeout_ms=10_000, max_records=500)
                offsets += [record.offset for records in found.values() for record in records]
            steps.stop()
            longest_s.append(steps.longest_s)
            assert offsets == list(range(MESSAGES))
    assert min(longest_s) < unpacking_s / 2
