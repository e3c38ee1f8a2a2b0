"""Print the records of a consumer to an output, one line each."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable

from kiel_groups.cli.records.record_lines import RecordLine
from kiel_groups.cli.records.record_output import Output
from kiel_groups.cli.terminal.exit_codes import DONE, READER_GONE
from kiel_groups.cli.terminal.termination import Termination
from kiel_groups.clients import GroupedConsumer, SingleConsumer

__all__ = ["RecordPrinter"]


class RecordPrinter:
    """
    Prints a consumer's records; used once.

    Args:
        consumer: A consumer that is not connected yet; ``run`` connects and closes it.
        output: The output of the lines. A record is finished when its whole line is written.
        line: Formats a record as a line.
        most: The number of records after which printing ends, or None for no limit.
        timeout_s: The number of seconds without a record after which printing ends, or None for no limit.
    """

    def __init__(
        self,
        consumer: GroupedConsumer | SingleConsumer,
        output: Output,
        line: RecordLine,
        *,
        most: int | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self._consumer = consumer
        self._output = output
        self._line = line
        self._most = most
        self._timeout_s = timeout_s
        self._began_s = self._first_s = self._last_s = time.monotonic()
        self.printed = 0

    @property
    def took_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began_s

    @property
    def rate(self) -> float | None:
        """Records per second from the first to the last record: waits before and after say nothing about the speed."""
        return (self.printed - 1) / max(self._last_s - self._first_s, 1e-3) if self.printed > 1 else None

    async def run(self, subscribe: Callable[[], Awaitable[None]]) -> int:
        """
        Subscribe, print records, and close the consumer.

        Returns:
            The exit status: 0, or 128 plus the number of the signal that ended the run: 130 (Ctrl-C), 143 (SIGTERM),
            141 (the reader of the output is gone). A second signal ends the process before the consumer is closed.

        Raises:
            KielGroupsError: Connecting, reading or writing the output failed.
        """
        ending = Termination()
        self._output.when_reader_goes(lambda: ending.end(signal.SIGPIPE))
        try:
            await subscribe()
            async with self._consumer:
                await self._print()
                ending.settle()
        except BrokenPipeError:
            return READER_GONE
        except asyncio.CancelledError:
            if ending.status is None:
                raise
        finally:
            await self._consumer.close()
        return ending.status or DONE

    async def _print(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                async for record in self._consumer:
                    # A slow reader of the output must not count as a lack of records.
                    limit.reschedule(None)
                    await self._output.write(self._line(record))
                    self.printed += 1
                    self._last_s = time.monotonic()
                    if self.printed == 1:
                        self._first_s = self._last_s
                    if self.printed == self._most:
                        break
                    limit.reschedule(self._deadline_s())
        except TimeoutError:
            # The timeout only runs while waiting for a record, so all delivered records are finished.
            return

    def _deadline_s(self) -> float | None:
        return None if self._timeout_s is None else asyncio.get_running_loop().time() + self._timeout_s
