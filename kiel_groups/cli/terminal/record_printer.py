"""Print the records of a consumer in the format that the user has chosen."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import select
import signal
import stat
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from kiel_groups.cli.terminal.messages import DONE, READER_GONE
from kiel_groups.cli.terminal.termination import Termination
from kiel_groups.clients import GroupedConsumer, SingleConsumer
from kiel_groups.errors import ConfigError, KielGroupsError
from kiel_groups.model import Record

#: Formats a record as a line, with its newline.
RecordLine: TypeAlias = Callable[[Record], bytes]


def plain_line(key_separator: bytes | None = None) -> RecordLine:
    """
    Return a function that formats a record as a line with its value, or with the key, the separator and the value.

    A null key or value becomes empty.
    """

    def line(record: Record) -> bytes:
        key = b"" if key_separator is None else (record.key or b"") + key_separator
        return key + (record.value or b"") + b"\n"

    return line


def json_line(record: Record) -> bytes:
    """
    Format a record as a JSON object: topic, partition, offset, key and value.

    If the key or the value is not UTF-8, the object has ``key_base64`` or ``value_base64`` instead.
    """
    fields: dict[str, Any] = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
    fields |= _text("key", record.key) | _text("value", record.value)
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


def _text(name: str, data: bytes | None) -> dict[str, str | None]:
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data or b"").decode()}


_Part: TypeAlias = Callable[[Record], bytes]


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


#: What each token prints. Records of Kafka 0.8 have neither a timestamp nor headers, so ``%T`` is kcat's -1 for a
#: missing timestamp, and ``%h`` is empty. A null key or value is empty, with the length -1.
TOKENS: Mapping[str, _Part] = {
    "%s": lambda record: record.value or b"",
    "%S": lambda record: b"%d" % _length(record.value),
    "%R": lambda record: _length(record.value).to_bytes(4, "big", signed=True),
    "%k": lambda record: record.key or b"",
    "%K": lambda record: b"%d" % _length(record.key),
    "%t": lambda record: record.topic.encode(),
    "%p": lambda record: b"%d" % record.partition,
    "%o": lambda record: b"%d" % record.offset,
    "%T": lambda record: b"-1",
    "%h": lambda record: b"",
    "%%": lambda record: b"%",
}

_ESCAPES = {r"\n": b"\n", r"\r": b"\r", r"\t": b"\t", "\\\\": b"\\"}

_PIECES = re.compile(r"(?P<token>%.?)|(?P<escape>\\(?:x[0-9A-Fa-f]{2}|.?))|[^%\\]+", re.DOTALL)


def parse_format(template: str) -> RecordLine:
    r"""
    Return a function that formats records by a template. The function adds no newline.

    Args:
        template: Text with tokens (the keys of ``TOKENS``) and the escapes ``\n``, ``\r``, ``\t``, ``\\`` and ``\xNN``.
            ``NN`` are the two hexadecimal digits of a byte.

    Raises:
        ConfigError: The template is empty, or has an unknown token or escape.
    """
    if not template:
        raise ConfigError(r"--format: nothing given; expected a text such as '%t:%p %o %k %s\n'")
    parts = [_part(template, piece) for piece in _PIECES.finditer(template)]
    return lambda record: b"".join([part(record) for part in parts])


def _part(template: str, piece: re.Match[str]) -> _Part:
    text = piece[0]
    if piece["token"] is not None:
        if text in TOKENS:
            return TOKENS[text]
        raise _unknown(template, piece, f"a token ({', '.join(TOKENS)})")
    if piece["escape"] is None:
        data = text.encode()
    elif text in _ESCAPES:
        data = _ESCAPES[text]
    elif len(text) == len(r"\xNN"):
        data = bytes.fromhex(text[2:])
    else:
        raise _unknown(template, piece, r"an escape (\n, \r, \t, \\, \xNN)")
    return lambda record: data


def _unknown(template: str, piece: re.Match[str], expected: str) -> ConfigError:
    return ConfigError(f"--format: {piece[0]!r} at character {piece.start() + 1} of {template!r}; expected {expected}")


class Output:
    """
    Writes bytes to an open file, pipe or terminal at once, without Python's buffers.

    Written bytes have left this process, so they are not lost if the process is killed.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    async def write(self, data: bytes) -> None:
        """
        Write all of the data. While the reader is slow, other tasks of the event loop run.

        Raises:
            BrokenPipeError: The reader has closed the pipe.
            KielGroupsError: Writing failed for another reason, such as a full disk.
        """
        rest = memoryview(data)
        try:
            while rest:
                if not self._poll.poll(0):
                    await self._wait_until_writable()
                # A writable pipe accepts at least PIPE_BUF bytes; more might block.
                rest = rest[os.write(self._descriptor, rest[: select.PIPE_BUF]) :]
        except BrokenPipeError:
            raise
        except OSError as error:
            raise KielGroupsError(f"standard output cannot be written: {error.strerror}") from error

    async def _wait_until_writable(self) -> None:
        loop, writable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_writer(self._descriptor, writable.set)
        try:
            await writable.wait()
        finally:
            loop.remove_writer(self._descriptor)

    def when_reader_goes(self, callback: Callable[[], None]) -> None:
        """
        Arrange a call of ``callback`` on the running loop when the reader closes the pipe.

        If the output is no pipe, do nothing.
        """
        if not stat.S_ISFIFO(os.fstat(self._descriptor).st_mode):
            return
        loop = asyncio.get_running_loop()

        def on_event() -> None:
            loop.remove_reader(self._descriptor)
            callback()

        # The writing end of a pipe never becomes readable; the loop calls the reader callback for its error.
        loop.add_reader(self._descriptor, on_event)


def standard_output() -> Output:
    """
    Return the standard output of this process, after flushing Python's buffer.

    Raises:
        KielGroupsError: Standard output was closed at the start of the process.
    """
    if sys.stdout is None:
        raise KielGroupsError("standard output is closed; give the command one, such as a file or a pipe")
    sys.stdout.flush()
    return Output(sys.stdout.fileno())


class RecordPrinter:
    """
    Prints a consumer's records, and counts them in ``printed``. It is used once.

    Args:
        consumer: A consumer that is not connected yet. ``run`` connects and closes it.
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
        """The seconds since this object was created."""
        return time.monotonic() - self._began_s

    @property
    def rate(self) -> float | None:
        """
        The records per second from the first to the last record, or None for fewer than two records.

        Waits before the first and after the last record do not count.
        """
        return (self.printed - 1) / max(self._last_s - self._first_s, 1e-3) if self.printed > 1 else None

    async def run(self, subscribe: Callable[[], Awaitable[None]]) -> int:
        """
        Subscribe, print records, and close the consumer.

        Returns:
            The exit status: 0, 130 after Ctrl-C, 143 after SIGTERM, or 141 if the reader of the output has closed the
            pipe. A second signal kills the process before the consumer is closed.

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
