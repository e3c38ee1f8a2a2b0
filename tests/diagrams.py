"""
Draw the diagrams of the pages: who sends what to whom, in the order of time.

    python -m tests.diagrams

writes them into ``docs``; a test compares.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from xml.sax.saxutils import escape

from tests.helpers.commands import REPOSITORY

__all__ = ["DIAGRAMS", "drawn"]

_LANE, _ROW, _TOP, _MARGIN = 240, 40, 60, 110


class Arrow(NamedTuple):
    """A message from one lane to another, by their numbers."""

    start: int
    end: int
    text: str


class Note(NamedTuple):
    """What happens within a lane."""

    lane: int
    text: str


class Diagram(NamedTuple):
    """The lanes, from left to right, and the steps, from top to bottom; a step that is only a text is a heading."""

    title: str
    lanes: tuple[str, ...]
    steps: tuple[Arrow | Note | str, ...]


DIAGRAMS = {
    "handover.svg": Diagram(
        "A partition moves from member a to member c",
        ("member a, the owner", "leader", "ZooKeeper", "member c, new"),
        (
            Arrow(3, 2, "creates its member znode"),
            Arrow(2, 1, "watch: the members have changed"),
            Arrow(1, 2, "publishes a's and c's assignment"),
            Arrow(2, 0, "watch: the assignment of a has changed"),
            Arrow(2, 3, "watch: c has an assignment"),
            Note(0, "finishes records in flight"),
            Arrow(0, 2, "one transaction: commits the offset, deletes the owner znode"),
            Arrow(2, 3, "watch: the owner znode is gone"),
            Arrow(3, 2, "creates the owner znode: c owns"),
            Note(3, "delivers from the offset on"),
        ),
    ),
    "leaving.svg": Diagram(
        "Topics, groups and producers move from Kafka 0.8 to a new cluster",
        ("producers", "Kafka 0.8", "new cluster", "groups"),
        (
            "Steps 1 and 2: the mirror runs, and its copy is verified",
            Arrow(0, 1, "records"),
            Arrow(1, 2, "mirror"),
            Arrow(1, 3, "records"),
            "Step 3: groups move, one after the other",
            Arrow(0, 1, "records"),
            Arrow(1, 2, "mirror, and the group's offsets"),
            Arrow(2, 3, "records, to groups that have moved"),
            "Step 4: producers move, a topic at a time",
            Arrow(0, 2, "records"),
            Arrow(2, 1, "mirror, turned round"),
            Arrow(1, 3, "records, to groups that have stayed"),
            "Step 5: Kafka 0.8 stops",
            Arrow(0, 2, "records"),
            Arrow(2, 3, "records"),
        ),
    ),
}


def drawn(diagram: Diagram) -> str:
    """Return a diagram as SVG."""
    width = 2 * _MARGIN + _LANE * (len(diagram.lanes) - 1)
    height = _TOP + _ROW * len(diagram.steps) + 20
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            ' font-family="sans-serif" font-size="13" role="img">',
            f"<title>{escape(diagram.title)}</title>",
            '<defs><marker id="head" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto">'
            '<path d="M0 0L9 4L0 8z" fill="#1f77b4"/></marker></defs>',
            '<rect width="100%" height="100%" fill="white"/>',
            *_lanes(diagram, height),
            *(line for row, step in enumerate(diagram.steps) for line in _step(step, _TOP + _ROW * row + 24, width)),
            "</svg>\n",
        )
    )


def _x(lane: int) -> int:
    return _MARGIN + _LANE * lane


def _text(x: float, y: int, text: str, more: str = "") -> str:
    """Return a centred text with a white edge, because it may cross the line of a lane."""
    halo = 'stroke="white" stroke-width="4" paint-order="stroke"'
    return f'<text x="{x:g}" y="{y}" text-anchor="middle" {halo}{more}>{escape(text)}</text>'


def _lanes(diagram: Diagram, height: int) -> Iterator[str]:
    for number, name in enumerate(diagram.lanes):
        yield f'<path d="M{_x(number)} 44V{height - 8}" stroke="#bbb" stroke-dasharray="4 3"/>'
        yield f'<rect x="{_x(number) - 95}" y="12" width="190" height="30" rx="4" fill="#eef3f8" stroke="#888"/>'
        yield f'<text x="{_x(number)}" y="32" text-anchor="middle" font-weight="bold">{escape(name)}</text>'


def _step(step: Arrow | Note | str, y: int, width: int) -> Iterator[str]:
    if isinstance(step, Arrow):
        inset = 4 if step.end > step.start else -4
        line = f"M{_x(step.start) + inset} {y}H{_x(step.end) - inset}"
        yield f'<path d="{line}" stroke="#1f77b4" stroke-width="1.5" marker-end="url(#head)"/>'
        yield _text((_x(step.start) + _x(step.end)) / 2, y - 9, step.text)
    elif isinstance(step, Note):
        yield f'<rect x="{_x(step.lane) - 95}" y="{y - 20}" width="190" height="28" fill="#fdf6e3" stroke="#bba"/>'
        yield f'<text x="{_x(step.lane)}" y="{y - 1}" text-anchor="middle">{escape(step.text)}</text>'
    else:
        yield f'<rect y="{y - 18}" width="{width}" height="26" fill="#eee"/>'
        yield f'<text x="12" y="{y}" font-weight="bold">{escape(step)}</text>'


if __name__ == "__main__":
    for name, diagram in DIAGRAMS.items():
        (REPOSITORY / "docs" / name).write_text(drawn(diagram), encoding="utf-8")
