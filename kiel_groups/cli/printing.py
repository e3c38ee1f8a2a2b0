"""A member of a group whose records go to an output, until somebody ends it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence

from kiel_groups.cli.output import Output
from kiel_groups.clients import GroupedConsumer

__all__ = ["Printing"]

#: A process that a signal ended is told by its status: this, and the signal's number.
_SIGNALLED = 128


class Printing:
    """
    Prints the values of a consumer's records, a line each; used once.

    Args:
        consumer: Not connected yet; it is closed at the end.
        output: A record counts as finished when all of its line is written here.
        most: After so many records it ends; never, where that is None.
        timeout_s: When no record has come for so long it ends; never, where that is None.
    """

    def __init__(
        self, consumer: GroupedConsumer, output: Output, *, most: int | None = None, timeout_s: float | None = None
    ) -> None:
        self._consumer = consumer
        self._output = output
        self._most = most
        self._timeout_s = timeout_s
        self._status: int | None = None
        self._task: asyncio.Task[object] | None = None

    async def run(self, topics: Sequence[str]) -> int:
        """
        Join the group, print, and leave the group.

        Returns:
            The exit status: 0, or 128 and the number of the signal that ended it: 130 (Ctrl-C), 143 (SIGTERM), 141
            (nobody reads the output any more). A second signal does not wait until the group is left.

        Raises:
            KielGroupsError: What the consumer raises when it connects or reads, or the output when it is written.
        """
        self._task = asyncio.current_task()
        self._heed_signals()
        self._output.when_reader_goes(self._reader_went)
        try:
            await self._consumer.subscribe(topics)
            async with self._consumer:
                await self._print()
                # From here on there is nothing to cut short: an end would only disturb the leaving.
                self._status = 0
        except BrokenPipeError:
            return _SIGNALLED + signal.SIGPIPE
        except asyncio.CancelledError:
            if self._status is None:
                raise
        return self._status or 0

    async def _print(self) -> None:
        printed = 0
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                async for record in self._consumer:
                    # A reader that is behind is no lack of records.
                    limit.reschedule(None)
                    await self._output.write((record.value or b"") + b"\n")
                    printed += 1
                    if printed == self._most:
                        break
                    limit.reschedule(self._deadline_s())
        except TimeoutError:
            # It came while a record was waited for: all that were handed out are finished.
            return

    def _deadline_s(self) -> float | None:
        return None if self._timeout_s is None else asyncio.get_running_loop().time() + self._timeout_s

    def _end(self, number: int) -> None:
        """Give up what is waited for, and leave the group."""
        if self._status is None and self._task is not None:
            self._status = _SIGNALLED + number
            self._task.cancel()

    def _heed_signals(self) -> None:
        loop = asyncio.get_running_loop()

        def heed(number: int) -> None:
            for each in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(each)
            self._end(number)

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, heed, number)

    def _reader_went(self) -> None:
        self._end(signal.SIGPIPE)
