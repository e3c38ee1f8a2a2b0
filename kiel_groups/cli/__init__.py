"""The command line; what a command needs is imported when it is called."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """
    Entry point of ``kiel-groups``.

    Exits with 0 done, 1 failed, 2 wrong usage or setting, 130 after Ctrl-C, 143 after SIGTERM, 141 when nobody reads
    its output any more.
    """
    import sys

    from kiel_groups.cli.app import run

    sys.exit(run(sys.argv[1:]))
