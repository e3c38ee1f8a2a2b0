"""Print the numbers of orders; what is not JSON goes to a dead-letter topic."""

import asyncio
import json
import sys

from kiel_groups import GroupedConsumer, Producer, Record


async def main(broker: str, zookeeper: str, topic: str, group: str) -> None:
    async def to_dead_letters(record: Record, error: Exception) -> None:
        await producer.produce(f"{topic}-dead", record.value, key=record.key)
        print("dead letter:", error.__cause__, flush=True)

    producer = Producer(broker)
    consumer = GroupedConsumer(broker, group, zookeeper, deserializer=json.loads, on_bad_record=to_dead_letters)
    async with producer, consumer:
        await consumer.subscribe(topic)
        async for record in consumer:
            print("order", record.value["number"], flush=True)


if len(sys.argv) != 5:
    sys.exit("usage: dead_letters.py BROKER ZOOKEEPER TOPIC GROUP")
try:
    asyncio.run(main(*sys.argv[1:]))
except KeyboardInterrupt:
    print("left the group", file=sys.stderr)
