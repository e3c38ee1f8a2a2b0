"""
Run the command line ``kiel-groups``.

The console script and ``python -m kiel_groups`` call ``main``.
What a command needs is imported when it is called, so that help and completion stay fast.
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """
    Entry point of ``kiel-groups``.

    Exits with 0 done, 1 failed, 2 wrong usage or setting, 130 after Ctrl-C, 143 after SIGTERM, 141 when nobody reads
    its output any more.
    """
    import sys

    try:
        import signal

        # Until a command says what SIGTERM means to it.
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        from kiel_groups.cli.app import run

        status = run(sys.argv[1:])
    except KeyboardInterrupt:
        # Before a command could say what Ctrl-C means to it.
        status = 130
    sys.exit(status)
