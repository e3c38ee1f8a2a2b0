"""Run one consumer of the demo in its own process: ``python -m kiel_groups.demo.consumer``."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path

from kiel_groups.clients.grouped import GroupedConsumer
from kiel_groups.demo.records import GROUP, TOPIC, Receipt, received_number
from kiel_groups.errors import KielGroupsError

#: The duration of a batch, in seconds, after which the consumer sleeps to keep its rate: too short to be visible in the
#: table, and long enough that the sleeps cost little.
_BATCH_S = 0.02


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Consume the demo's topic as a member of its group, and write a receipt for each record."
    )
    parser.add_argument("--brokers", required=True)
    parser.add_argument("--zookeeper", required=True)
    parser.add_argument("--receipts", required=True, type=Path)
    parser.add_argument("--rate", required=True, type=float, help="most records per second, so that people can watch")
    parser.add_argument("--number-in-key", action="store_true", help="the key of a record is its number")
    return parser.parse_args(arguments)


async def consume(options: argparse.Namespace) -> None:
    """Consume records, and write a receipt for each, until SIGTERM. Then commit, and leave the group."""
    consumer = GroupedConsumer(
        options.brokers,
        GROUP,
        options.zookeeper,
        session_timeout_ms=6_000,
        auto_commit_interval_ms=1_000,
        max_bytes=256 << 10,
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, consumer.close)
    batch = max(1, round(options.rate * _BATCH_S))
    # Line buffering passes each receipt to the operating system before the next record is requested. A kill -9 of this
    # process therefore loses no receipt of a finished record.
    with options.receipts.open("a", buffering=1, encoding="ascii") as receipts:
        async with consumer:
            await consumer.subscribe(TOPIC)
            written = 0
            async for record in consumer:
                number = received_number(record, number_in_key=options.number_in_key)
                receipts.write(Receipt(record.partition, record.offset, number).line())
                written += 1
                if written % batch == 0:
                    await asyncio.sleep(batch / options.rate)


def main() -> int:
    """
    Run the consumer. Return 0 when the consumer has left the group cleanly. After a KielGroupsError, log the error and
    return 1.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(consume(parse(sys.argv[1:])))
    except KielGroupsError as error:
        logging.getLogger(__name__).error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
