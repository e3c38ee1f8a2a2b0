"""A producer that runs until SIGTERM and logs acknowledgements: ``python -m tests.chaos.producer``."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

from kiel_groups import Producer
from kiel_groups.clients.produce.outcomes import RecordMetadata
from kiel_groups.errors import BufferFullError, KielGroupsError
from tests.chaos.clock import boot_s

log = logging.getLogger(__name__)

#: Seconds between two batches of records.
INTERVAL_S = 0.05
#: How long the acknowledgements of the last records may take, in milliseconds.
LAST_MS = 30_000


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Produce numbered records until SIGTERM and note the acknowledged.")
    parser.add_argument("--brokers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", required=True, type=int)
    parser.add_argument("--receipts", required=True, type=Path)
    parser.add_argument("--rate", required=True, type=float, help="records per second")
    return parser.parse_args(arguments)


async def produce(options: argparse.Namespace) -> None:
    """
    Produce to all partitions in turn until SIGTERM, and log acknowledgements. Records that failed are not produced
    again.
    """
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    producer = Producer(
        options.brokers,
        required_acks=-1,
        ack_timeout=1_000,
        retries=1_000,
        linger_ms=20,
        batch_size=100,
        request_timeout_ms=5_000,
        max_backoff_ms=1_000,
        metadata_max_age_ms=10_000,
    )
    number = 0
    with options.receipts.open("a", buffering=1, encoding="ascii") as receipts:

        def log_acknowledgement(number: int, sent: asyncio.Future[RecordMetadata]) -> None:
            if not sent.cancelled() and sent.exception() is None:
                stored = sent.result()
                receipts.write(f"{boot_s():.6f} {number} {stored.partition} {stored.offset}\n")

        started_s = asyncio.get_running_loop().time()
        while not stop.is_set():
            while number < (asyncio.get_running_loop().time() - started_s) * options.rate:
                sent = producer.produce(options.topic, b"%d" % number, partition=number % options.partitions)
                sent.add_done_callback(partial(log_acknowledgement, number))
                number += 1
            with suppress(BufferFullError):
                await producer.drain()
            with suppress(TimeoutError):
                async with asyncio.timeout(INTERVAL_S):
                    await stop.wait()
        with suppress(KielGroupsError):
            await producer.close(LAST_MS)
        # Let the callbacks of the last futures run.
        await asyncio.sleep(0)
    log.info("%d records were produced", number)


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(produce(parse(sys.argv[1:])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
