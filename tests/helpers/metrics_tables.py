"""
Write the tables of ``docs/metrics.rst`` and ``docs/metrics-clients.rst`` from the meanings in the code.

Run ``python -m tests.helpers.metrics_tables`` after a change of a meaning.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping

from kiel_groups.rest.metric_meanings import METRICS, MetricMeaning
from tests.helpers.commands import REPOSITORY
from tests.helpers.metrics_page import PAGES

__all__ = ["with_tables"]

_WIDTH = 120
_HEADINGS = ("metric", "kind", "unit", "meaning")


def with_tables(page: str) -> str:
    """Return a page with the table of each section that the code has."""
    lines = page.splitlines()
    for title, metrics in METRICS.items():
        if title in lines:
            rules = [at for at, line in enumerate(lines) if at > lines.index(title) and re.fullmatch("=+( =+)+", line)]
            lines[rules[0] : rules[2] + 1] = _table(metrics)
    return "\n".join([*lines, ""])


def _table(metrics: Mapping[str, MetricMeaning]) -> list[str]:
    rows = [(f"``{name}``", each.kind, each.unit) for name, each in metrics.items()]
    widths = [max(map(len, column)) for column in zip(_HEADINGS[:3], *rows, strict=True)]
    left = sum(widths) + len(widths)
    rule = " ".join("=" * width for width in (*widths, _WIDTH - left))
    lines = [rule, _row(_HEADINGS[:3], widths) + _HEADINGS[3], rule]
    for row, each in zip(rows, metrics.values(), strict=True):
        first, *rest = textwrap.wrap(each.text, _WIDTH - left, break_on_hyphens=False)
        lines += [_row(row, widths) + first, *(" " * left + line for line in rest)]
    return [*lines, rule]


def _row(cells: tuple[str, ...], widths: list[int]) -> str:
    return "".join(f"{cell:<{width}} " for cell, width in zip(cells, widths, strict=True))


if __name__ == "__main__":
    for name in PAGES:
        path = REPOSITORY / "docs" / name
        path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
