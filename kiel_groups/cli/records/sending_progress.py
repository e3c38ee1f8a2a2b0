"""The progress of sending lines: a bar with the rate on a terminal, and a summary at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kiel_groups.cli.records.line_input import LineInput
from kiel_groups.cli.records.line_sender import LineSender
from kiel_groups.cli.terminal.messages import Lines
from kiel_groups.cli.terminal.progress_bar import bar, has_bar
from kiel_groups.wording import counted

__all__ = ["progress", "summarize"]


@contextmanager
def progress(source: LineInput, sending: LineSender, *, quiet: bool) -> Iterator[None]:
    """Show a bar within the block, unless ``quiet`` is set, there is no terminal, or the user types the lines."""
    if quiet or source.is_terminal or not has_bar():
        yield
        return
    with bar(source.size_bytes, _rate(sending)) as update:

        def show() -> None:
            update(_rate(sending), source.read_bytes * sending.share_done)

        sending.show = show
        yield
        show()


def summarize(lines: Lines, sending: LineSender, *, acks: str, quiet: bool) -> None:
    """
    Print the numbers of the lines that failed or have an unknown outcome.

    Unless ``quiet`` is set, first print the count and rate of the stored records (with ``acks`` "0", the sent records).
    """
    done = "sent" if acks == "0" else "stored"
    if not quiet:
        lines.say("info", f"{done} {counted(sending.stored, 'record')} in {sending.took_s:.1f} s, {_rate(sending)}")
    if sending.failed:
        lines.say("error", f"not {done}: {counted(sending.failed, 'line')}, {sending.failed_lines}")
    if sending.unknown:
        lines.say("error", f"may or may not be stored: {counted(sending.unknown, 'line')}, {sending.unknown_lines}")


def _rate(sending: LineSender) -> str:
    return f"{sending.stored / max(sending.took_s, 1e-3):,.0f} records/s"
