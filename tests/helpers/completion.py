"""The words that a shell's completion suggests."""

from __future__ import annotations

import subprocess
import sys

from tests.helpers.commands import environment

__all__ = ["completed"]


def completed(line: str, **variables: str) -> list[str]:
    """Return the words that bash suggests after this line, by its completion script."""
    words = line.split(" ")
    asking = {"_KIEL_GROUPS_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [sys.executable, "-m", "kiel_groups"],
        env=environment() | asking | variables,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stderr == ""
    return [offered.partition(",")[2] for offered in done.stdout.splitlines() if offered]
