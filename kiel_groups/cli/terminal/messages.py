"""Messages on standard error, one line each."""

from __future__ import annotations

import re
import sys
from typing import Final

import click

__all__ = ["VISIBLE", "Lines"]


#: The options of commands by the names that programs give the same settings, as errors of the package have them.
_OPTIONS: Final = {
    "zk_hosts": "--zookeeper",
    "partition_allocator": "--allocator",
    "session_timeout_ms": "--session-timeout-ms",
    "instance_id": "--instance-id",
}
#: One of these names, unless it is quoted or a part of another word.
_SETTING: Final = re.compile(rf"""(?<![\w'"-])(?:{"|".join(_OPTIONS)})(?![\w'"-])""")


#: Replaces control characters, with which a text from outside could change the terminal, hide a line or forge one.
VISIBLE = {code: "?" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}


class Lines:
    """Prints lines ``level: text``, without repetition: the error that ends a command is often logged just before."""

    def __init__(self) -> None:
        self._last = ("", "")
        self._reported: set[tuple[str, str]] = set()

    def say(self, level: str, text: str, *, stamp: str = "", reports: object = None) -> None:
        """
        Print a line, unless the previous line of the same level ends with this text, or an earlier line has reported
        the same error.

        Args:
            level: The level, such as ``error``, with which the line begins.
            text: The message.
            stamp: The time, for commands that run long.
            reports: The error that the line reports in other words; this error may end the command later.
        """
        line = _line(text)
        last_level, last = self._last
        # The text of a warning is printed again when it ends the command as an error.
        is_repeated = (level == last_level and last.endswith(line)) or (level, line) in self._reported
        if reports is not None:
            self._reported.add((level, _line(str(reports))))
        if not is_repeated:
            # Pass the present sys.stderr: rich replaces it while a bar is shown, and click would use the original one.
            click.echo(f"{stamp}{' ' if stamp else ''}{level}: {line}", file=sys.stderr, err=True)
        self._last = (level, line)


def _line(text: str) -> str:
    """Return a message as one line, with the names of options in place of those of a program's settings."""
    line = " ".join(line.strip() for line in text.splitlines()).translate(VISIBLE)
    return _SETTING.sub(lambda found: _OPTIONS[found[0]], line)
