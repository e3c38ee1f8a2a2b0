"""
Run members of kiel-groups in one process, until its standard input ends; then they leave.

Arguments: ZooKeeper, broker, group, topics with commas between them, the number of members, session timeout in ms,
settings of the consumer as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from kiel_groups import GroupedConsumer


async def main(
    zookeeper: str, broker: str, group: str, topics: str, count: int, session_timeout_ms: int, settings: dict[str, Any]
) -> None:
    consumers = [
        GroupedConsumer([broker], group, [zookeeper], session_timeout_ms=session_timeout_ms, **settings)
        for _ in range(count)
    ]
    for consumer in consumers:
        await consumer.subscribe(topics.split(","))
        await consumer.connect()
    await asyncio.to_thread(sys.stdin.read)
    await asyncio.gather(*(consumer.close() for consumer in consumers))


if __name__ == "__main__":
    given = sys.argv[1:]
    asyncio.run(main(*given[:4], int(given[4]), int(given[5]), json.loads(given[6])))
