"""Read the tables of the pages about metrics, and compare what a process exposes with them."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from docutils import nodes
from docutils.core import publish_doctree
from prometheus_client.parser import text_string_to_metric_families
from tornado.httpclient import AsyncHTTPClient

from tests.helpers.commands import REPOSITORY
from tests.helpers.waiting import eventually

__all__ = ["FILES", "Described", "check_exposed", "described", "exposed", "names_in_files", "tables"]

#: The pages about metrics.
PAGES = ("metrics.rst", "metrics-clients.rst")

#: The files for Prometheus and Grafana that have names of metrics.
FILES = ("rules.yml", "rules-test.yml", "grafana-dashboard.json")

#: The labels of the service's metrics and of its leaders', which the text above its table names.
_SERVICE_LABELS = frozenset({"cluster", "group"})

#: The labels of the metrics of tasks, which the text above their table names.
_TASK_LABELS = frozenset({"connector", "task"})


class Described(NamedTuple):
    """A metric on a page: its section, kind, unit, meaning, and labels."""

    section: str
    kind: str
    unit: str
    meaning: str
    labels: frozenset[str]


def tables(page: Path) -> list[list[list[str]]]:
    """Return the rows of each table of a page, with the headings."""
    return [table for _, table in _tables(page)]


def _tables(page: Path) -> list[tuple[str, list[list[str]]]]:
    settings = {"report_level": 2, "warning_stream": io.StringIO()}
    tree = publish_doctree(page.read_text(encoding="utf-8"), settings_overrides=settings)
    return [
        (
            table.parent.next_node(nodes.title).astext(),
            [[" ".join(cell.astext().split()) for cell in row] for row in table.findall(nodes.row)],
        )
        for table in tree.findall(nodes.table)
    ]


@cache
def described() -> dict[str, Described]:
    """Return all metrics of the pages by name, without the suffix of counters. A label is named after "By"."""
    found = {}
    sections = [each for page in PAGES for each in _tables(REPOSITORY / "docs" / page)]
    for section, (headings, *rows) in sections:
        # Another table has the names of Kafka's clients.
        for name, kind, unit, meaning in rows if len(headings) == 4 else []:
            assert name not in found
            labels = re.findall(r"[a-z]+", meaning.partition(" By ")[2].partition(":")[0].replace(" of the answer", ""))
            found[name] = Described(section, kind, unit, meaning, frozenset(labels) - {"and"})
    return found


def check_exposed(text: str) -> set[str]:
    """Check that the page has each metric in Prometheus' text, with its kind and labels, and return their names."""
    families = list(text_string_to_metric_families(text))
    for family in families:
        on_page = described()[family.name]
        assert on_page.kind == family.type, family
        for sample in family.samples:
            own = _TASK_LABELS if on_page.section == "Tasks of workers" else frozenset[str]()
            assert sample.labels.keys() <= on_page.labels | _SERVICE_LABELS | own, sample
    return {family.name for family in families}


async def exposed(url: str, *needed: str) -> set[str]:
    """Wait until a process exposes these metrics, check all metrics that it exposes, and return their names."""

    async def names() -> set[str]:
        try:
            answer = await AsyncHTTPClient().fetch(f"{url}/metrics")
        except OSError:
            return set()
        found = check_exposed(answer.body.decode())
        return found if found.issuperset(needed) else set()

    return await eventually(names, f"{url} exposes {needed}")


def names_in_files(exposed: Iterable[str], *, of_mirrors: bool = False) -> None:
    """Check that alarms and dashboard use only these metrics, of mirrors or else of groups."""
    names = {f"{name}_total" if described()[name].kind == "counter" else name for name in exposed}
    for file in FILES:
        used = set(re.findall(r"\bkiel_\w+", (REPOSITORY / "monitoring" / file).read_text(encoding="utf-8")))
        used = {name for name in used if name.startswith("kiel_mirror_") == of_mirrors}
        assert used
        assert used <= names, file
