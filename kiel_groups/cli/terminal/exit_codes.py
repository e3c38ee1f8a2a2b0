"""The exit codes of the commands; ``docs/cli.rst`` documents them for users."""

from __future__ import annotations

from typing import Final

__all__ = ["DONE", "FAILED", "WRONG", "INTERRUPTED", "READER_GONE", "TERMINATED", "EPILOG"]

DONE: Final = 0
FAILED: Final = 1
#: A wrong option, setting, name or file; the caller can fix it.
WRONG: Final = 2
#: 128 plus the number of the signal: SIGINT (Ctrl-C), SIGPIPE (the reader of the output is gone), SIGTERM.
INTERRUPTED: Final = 130
READER_GONE: Final = 141
TERMINATED: Final = 143

#: The text below the help of every command.
EPILOG: Final = (
    "Exit status: 0 done, 1 failed, 2 a wrong option, setting, name or file, 130 after Ctrl-C, 141 when the"
    " reader of the output is gone, 143 after SIGTERM."
)
