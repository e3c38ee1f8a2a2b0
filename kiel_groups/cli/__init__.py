"""
Run the command line ``kiel-groups``.

The console script and ``python -m kiel_groups`` call ``main``. A command and its libraries are imported only when the
command is called, so that help stays fast.
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """
    Run ``kiel-groups`` with the arguments of the process, and exit.

    The exit status is 0 if the command is done, 1 if it failed, 2 for wrong usage or a wrong setting, 130 after Ctrl-C,
    143 after SIGTERM, and 141 if the reader of the output has closed the pipe. ``spark archive`` also exits with 3, if
    records were lost before they were read.
    """
    import sys

    try:
        import signal

        # The default, until a command installs its own handler.
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        from kiel_groups.cli.app import run

        status = run(sys.argv[1:])
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            # The command is done: a Ctrl-C while the interpreter ends would print a traceback of its last steps.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    except KeyboardInterrupt:
        # Ctrl-C before a command installed its own handler.
        status = 130
    sys.exit(status)
