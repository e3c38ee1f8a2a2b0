"""What the exit status of a command says; ``docs/cli.rst`` has it for readers."""

from __future__ import annotations

from typing import Final

__all__ = ["DONE", "FAILED", "WRONG", "INTERRUPTED", "READER_GONE", "TERMINATED", "EPILOG"]

DONE: Final = 0
FAILED: Final = 1
#: An option, a setting, a name or a file that cannot be; the caller can mend it.
WRONG: Final = 2
#: 128 and the number of the signal: Ctrl-C, a reader of the output that has gone, SIGTERM.
INTERRUPTED: Final = 130
READER_GONE: Final = 141
TERMINATED: Final = 143

#: Stands below the help of every command.
EPILOG: Final = (
    "Exit status: 0 done, 1 failed, 2 a wrong option, setting, name or file, 130 after Ctrl-C, 141 when nobody reads"
    " the output any more, 143 after SIGTERM."
)
