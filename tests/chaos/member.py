"""A member of the group in a process of its own, which logs every delivery: ``python -m tests.chaos.member``."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from kiel_groups import GroupedConsumer
from kiel_groups.errors import ClosedError, KielGroupsError
from tests.chaos.clock import boot_s

log = logging.getLogger(__name__)

#: The processing time of a record in seconds, a longer one for every record number ``ONE_OF``, and that number. So some
#: records are always in flight, and the checker finds a commit that counts them as finished.
WORK_S, LONG_WORK_S, ONE_OF = 0.003, 0.15, 40
#: Seconds between two attempts to join.
JOIN_PAUSE_S = 0.5


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Consume a topic in a group and note every delivery.")
    parser.add_argument("--brokers", required=True)
    parser.add_argument("--zookeeper", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--history", required=True, type=Path)
    parser.add_argument("--session-timeout-ms", required=True, type=int)
    return parser.parse_args(arguments)


class MemberProgram:
    """Joins the group, consumes until SIGTERM, and leaves."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._consumer: GroupedConsumer | None = None
        self._leaving = asyncio.Event()

    async def run(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._leave)
        # Line buffered: each line has reached the operating system before the next step, and is safe from a kill.
        with self._options.history.open("a", buffering=1, encoding="ascii") as history:
            while not self._leaving.is_set():
                try:
                    if await self._join():
                        await self._consume(history)
                        return
                except ClosedError:
                    return
                with suppress(TimeoutError):
                    async with asyncio.timeout(JOIN_PAUSE_S):
                        await self._leaving.wait()

    async def _join(self) -> bool:
        """Join and subscribe. Return False if this failed with an error that can be retried."""
        options = self._options
        self._consumer = GroupedConsumer(
            options.brokers,
            options.group,
            options.zookeeper,
            session_timeout_ms=options.session_timeout_ms,
            auto_commit_interval_ms=250,
            max_wait_time=500,
            max_bytes=256 << 10,
            request_timeout_ms=5_000,
        )
        try:
            await self._consumer.connect()
            await self._consumer.subscribe(options.topic)
        except ClosedError:
            raise
        except KielGroupsError as error:
            if not error.retriable:
                raise
            log.warning("cannot join yet: %s", error)
            await self._consumer.close()
            return False
        return True

    async def _consume(self, history: TextIO) -> None:
        assert self._consumer is not None
        async for record in self._consumer:
            start_s = boot_s()
            token = self._consumer.fencing_token(record)
            if token is None:
                continue  # The partition is lost already, and so is this delivery.
            history.write(f"s {start_s:.6f} {record.partition} {record.offset} {token} {record.value.decode()}\n")
            await asyncio.sleep(WORK_S if record.offset % ONE_OF else LONG_WORK_S)
            history.write(f"e {boot_s():.6f}\n")
        log.info("left the group")

    def _leave(self) -> None:
        self._leaving.set()
        if self._consumer is not None:
            self._consumer.close()


def main() -> int:
    """Return 0 after SIGTERM, or 1 if the consumer failed with an error that cannot be retried."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(MemberProgram(parse(sys.argv[1:])).run())
    except KielGroupsError:
        log.exception("the member stops")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
