"""
Programs that produce under load until Ctrl-C ends them. The rounds of a program run in turn, each with a seed. ::

    python -m tests.helpers.interrupted_producers STYLE BROKER TOPIC FIRST_SEED ROUNDS

Each round prints a line of JSON: the numbers of records that were accepted, stored and failed, and of those with an
unknown outcome, the errors of ``close()``, and its duration.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from tornado import gen, ioloop

import kiel_groups.sync
from kiel_groups.clients import Producer
from kiel_groups.errors import KielGroupsError
from tests.helpers.running_time import running_s

#: In seconds: the longest time from the first record to the Ctrl-C, and the time after which a Ctrl-C without an effect
#: counts as swallowed.
LATEST_S, SWALLOWED_S = 0.06, 5.0


class Maker:
    """One round: provides values to produce, interrupts the program, and reports."""

    def __init__(self, broker: str, topic: str, seed: int) -> None:
        self.broker, self.topic, self.seed = broker, topic, seed
        self.random = random.Random(seed)
        self.accepted = 0
        self.swallowed = False
        self.closing_s = 0.0
        self.errors: list[str] = []
        self._over = threading.Event()

    def next(self) -> dict[str, int]:
        """Return the next value. The first call starts the timer of the Ctrl-C."""
        if not self.accepted:
            threading.Thread(target=self._interrupt, daemon=True).start()
        self.accepted += 1
        if self.swallowed:
            raise SystemExit("the Ctrl-C was swallowed")
        return {"seed": self.seed, "n": self.accepted - 1}

    def _interrupt(self) -> None:
        time.sleep(self.random.uniform(0, LATEST_S))
        assert threading.main_thread().ident is not None
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        self.swallowed = not self._over.wait(SWALLOWED_S)

    def interrupted(self) -> None:
        """Record that the interrupt has reached the program, which closes its producer now."""
        self._over.set()
        self.closing_s = running_s()

    def report(self, producer: Any) -> dict[str, Any]:
        """Return the content of the line of JSON."""
        counted = producer.metrics.counter
        return {
            "seed": self.seed,
            "accepted": self.accepted,
            "stored": counted("records_produced"),
            "failed": counted("produce_failures"),
            "unknown": counted("produce_unknown"),
            "retries": counted("produce_retries"),
            "closed_ms": round((running_s() - self.closing_s) * 1000, 1),
            "errors": self.errors,
        }


def kiel(maker: Maker, batch_size: int = 50) -> dict[str, Any]:
    """Run a program as written for kiel: a Tornado coroutine, a loop that the Ctrl-C ends, and then ``close()``."""
    producer = Producer([maker.broker], batch_size=batch_size)
    loop = ioloop.IOLoop(make_current=True)

    @gen.coroutine
    def run() -> Any:
        yield producer.connect()
        while not producer.closing:
            yield producer.produce(maker.topic, maker.next())

    try:
        loop.add_callback(run)
        loop.start()
    except KeyboardInterrupt:
        maker.interrupted()
        closing = producer.close()
        if error := closing.exception() if closing.done() else "not done":
            maker.errors.append(repr(error))
    report = maker.report(producer)
    loop.close(all_fds=True)
    return report


def one_by_one(maker: Maker) -> dict[str, Any]:
    """Run the program of ``kiel`` with the default batch size 1, so that it awaits each record."""
    return kiel(maker, 1)


async def flood(maker: Maker, producer: Producer) -> None:
    """Produce without awaiting each record."""
    while not producer.closing:
        for _ in range(20):
            producer.produce(maker.topic, maker.next())
        await producer.drain()
        await asyncio.sleep(0)


def run_sync(maker: Maker) -> dict[str, Any]:
    """Run a program with ``IOLoop.run_sync`` that produces many records in lingering batches."""
    producer = Producer([maker.broker], batch_size=100, linger_ms=5, max_buffered_bytes=20_000)
    loop = ioloop.IOLoop(make_current=True)

    async def run() -> None:
        await producer.connect()
        await flood(maker, producer)

    try:
        loop.run_sync(run)
    except KeyboardInterrupt:
        maker.interrupted()
        if error := producer.close().exception():
            maker.errors.append(repr(error))
    report = maker.report(producer)
    loop.close(all_fds=True)
    return report


def asyncio_run(maker: Maker) -> dict[str, Any]:
    """Run a program with ``asyncio.run`` and ``async with``."""
    producer = Producer([maker.broker], batch_size=100, linger_ms=5, max_buffered_bytes=20_000)

    async def run() -> None:
        async with producer:
            try:
                await flood(maker, producer)
            finally:
                maker.interrupted()

    try:
        asyncio.run(run())
    except KeyboardInterrupt:
        return maker.report(producer)
    raise AssertionError("the interrupt was swallowed")


def blocking(maker: Maker) -> dict[str, Any]:
    """Run a program with the blocking producer."""
    producer = kiel_groups.sync.Producer([maker.broker], batch_size=100, linger_ms=5)
    try:
        with producer:
            try:
                while True:
                    producer.produce(maker.topic, maker.next())
            finally:
                maker.interrupted()
    except KeyboardInterrupt:
        return maker.report(producer)
    except KielGroupsError as error:
        maker.errors.append(repr(error))
    raise AssertionError("the interrupt was swallowed")


STYLES: dict[str, Callable[[Maker], dict[str, Any]]] = {
    "kiel": kiel,
    "one_by_one": one_by_one,
    "run_sync": run_sync,
    "asyncio_run": asyncio_run,
    "blocking": blocking,
}


def main(style: str, broker: str, topic: str, first: str, rounds: str) -> None:
    for seed in range(int(first), int(first) + int(rounds)):
        maker = Maker(broker, topic, seed)
        sys.stdout.write(json.dumps(STYLES[style](maker)) + "\n")
        sys.stdout.flush()
        # The tasks of this round are in cycles. Python drops exceptions in the callbacks of weak references: a Ctrl-C
        # that comes while Python collects the tasks in the next round would be lost.
        gc.collect()


if __name__ == "__main__":
    main(*sys.argv[1:])
