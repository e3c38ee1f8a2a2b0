"""
Produce to a topic with kiel-groups, and check the outcome of each record.

Arguments: way, broker, topic, the number of records, the bytes of a value, the codec. The producer has its defaults,
except that the leader alone acknowledges. The program imports kiel-groups from where ``PYTHONPATH`` says, which may be
another checkout. It exits with status 3 if the producer lacks the way.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from typing import Any

from benchmarks.members.produced import chunks, report
from kiel_groups import Producer, sync

LEFT_OUT = 3
#: Half of what a producer buffers by default.
MUCH_BYTES = 32 << 20

Values = list[list[bytes]]


async def one_by_one(producer: Producer, topic: str, values: Values) -> int:
    stored, waiting = 0, deque[list[Any]]()
    for chunk in values:
        waiting.append([producer.produce(topic, value) for value in chunk])
        await (producer.drain() if producer.buffered_bytes > MUCH_BYTES else asyncio.sleep(0))
        while waiting and all(future.done() for future in waiting[0]):
            stored += sum(future.result().offset >= 0 for future in waiting.popleft())
    await producer.flush()
    return stored + sum(future.result().offset >= 0 for futures in waiting for future in futures)


async def many(producer: Any, topic: str, values: Values) -> int:
    outcomes = []
    for chunk in values:
        outcomes.append(producer.produce_many(topic, chunk))
        await (producer.drain() if producer.buffered_bytes > MUCH_BYTES else asyncio.sleep(0))
    return sum(await asyncio.gather(*outcomes))


def blocking_one_by_one(producer: Any, topic: str, values: Values) -> int:
    stored, waiting = 0, deque[list[Any]]()
    for chunk in values:
        waiting.append([producer.produce(topic, value) for value in chunk])
        while waiting and all(future.done() for future in waiting[0]):
            stored += sum(future.result().offset >= 0 for future in waiting.popleft())
    return stored + sum(future.result().offset >= 0 for futures in waiting for future in futures)


def blocking_many(producer: Any, topic: str, values: Values) -> int:
    return sum(future.result() for future in [producer.produce_many(topic, chunk) for chunk in values])


ASYNCHRONOUS = {"produce": one_by_one, "produce_many": many}
BLOCKING = {"sync produce": blocking_one_by_one, "sync produce_many": blocking_many}


async def produce(way: str, topic: str, values: Values, size: int, producer: Producer) -> None:
    async with producer:
        await producer.produce(topic, values[0][0])
        report(0, size)
        report(await ASYNCHRONOUS[way](producer, topic, values), size)


def main(way: str, broker: str, topic: str, count: int, size: int, codec: str) -> None:
    if way.endswith("many") and not hasattr(Producer, "produce_many"):
        sys.exit(LEFT_OUT)
    values = chunks(count, size)
    settings: dict[str, Any] = {"required_acks": 1, "compression": None if codec == "none" else codec}
    if way in ASYNCHRONOUS:
        asyncio.run(produce(way, topic, values, size, Producer([broker], **settings)))
        return
    with sync.Producer([broker], **settings) as producer:
        producer.produce(topic, values[0][0]).result()
        report(0, size)
        report(BLOCKING[way](producer, topic, values), size)


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:6]), sys.argv[6])
