"""Records that go to an output, a line each, until somebody ends it."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable

from kiel_groups.cli.records.record_lines import RecordLine
from kiel_groups.cli.records.record_output import Output
from kiel_groups.cli.terminal.exit_codes import DONE, READER_GONE
from kiel_groups.cli.terminal.termination import Ending
from kiel_groups.clients import GroupedConsumer, SingleConsumer

__all__ = ["Printing"]


class Printing:
    """
    Prints a consumer's records; used once.

    Args:
        consumer: Not connected yet; it is closed at the end.
        output: A record counts as finished when all of its line is written here.
        line: Makes the line of a record.
        most: After so many records it ends; never, where that is None.
        timeout_s: When no record has come for so long it ends; never, where that is None.
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
        self._began_s = time.monotonic()
        self.printed = 0

    @property
    def took_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began_s

    async def run(self, subscribe: Callable[[], Awaitable[None]]) -> int:
        """
        Subscribe, print, and leave.

        Returns:
            The exit status: 0, or 128 and the number of the signal that ended it: 130 (Ctrl-C), 143 (SIGTERM), 141
            (nobody reads the output any more). A second signal does not wait until the group is left.

        Raises:
            KielGroupsError: What the consumer raises when it connects or reads, or the output when it is written.
        """
        ending = Ending()
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
                    # A reader that is behind is no lack of records.
                    limit.reschedule(None)
                    await self._output.write(self._line(record))
                    self.printed += 1
                    if self.printed == self._most:
                        break
                    limit.reschedule(self._deadline_s())
        except TimeoutError:
            # It came while a record was waited for: all that were handed out are finished.
            return

    def _deadline_s(self) -> float | None:
        return None if self._timeout_s is None else asyncio.get_running_loop().time() + self._timeout_s
