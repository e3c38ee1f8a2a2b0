"""The words that a shell's completion suggests."""

from __future__ import annotations

import pytest

from kiel_groups.cli.parameters import cluster_address
from tests.helpers.commands import kiel_groups_here

__all__ = ["completed"]


def completed(line: str, *, patience_s: float = 20.0, **variables: str) -> list[str]:
    """
    Return the words that bash suggests after this line, by its completion script.

    A completion waits for a server for one second. On a busy computer that may be too short, so it waits for
    ``patience_s`` here.
    """
    words = line.split(" ")
    asking = {"_KIEL_GROUPS_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    with pytest.MonkeyPatch.context() as patched:
        for name, value in (asking | variables).items():
            patched.setenv(name, value)
        patched.setattr(cluster_address, "_TIMEOUT_S", patience_s)
        done = kiel_groups_here()
    assert (done.returncode, done.stderr) == (0, "")
    return [offered.partition(",")[2] for offered in done.stdout.splitlines() if offered]
