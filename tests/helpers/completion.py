"""The words that a shell's completion suggests."""

from __future__ import annotations

import subprocess
import sys

from tests.helpers.commands import environment

__all__ = ["completed"]

#: Runs the command line as ``python -m kiel_groups`` does, with a time limit of completion, in seconds.
_PROGRAM = """
import sys
from kiel_groups.cli import main
from kiel_groups.cli.parameters import cluster_address

cluster_address._TIMEOUT_S = float(sys.argv.pop())
main()
"""


def completed(line: str, *, patience_s: float = 20.0, **variables: str) -> list[str]:
    """
    Return the words that bash suggests after this line, by its completion script.

    A completion waits for a server for one second. On a busy computer that may be too short, so it waits for
    ``patience_s`` here.
    """
    words = line.split(" ")
    asking = {"_KIEL_GROUPS_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(patience_s)],
        env=environment() | asking | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return [offered.partition(",")[2] for offered in done.stdout.splitlines() if offered]
