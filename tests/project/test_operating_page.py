"""The commands, findings and metrics on the pages for operators exist."""

from __future__ import annotations

import inspect
import io
import re
import shlex
from typing import Any

import click
import pytest
from docutils import nodes
from docutils.core import publish_doctree

from kiel_groups.cli.app import app
from kiel_groups.metrics import KAFKA_METRICS
from kiel_groups.ops.views import checks
from kiel_groups.ops.views.checks import RULES
from kiel_groups.ops.views.group_view import Sight
from kiel_groups.ops.views.progress import ProgressTracker
from tests.helpers.commands import REPOSITORY

pytestmark = pytest.mark.unit

#: The pages with commands of operators.
PAGES = ("operating", "operating-brokers", "allocators", "group-settings")


def page(name: str) -> str:
    return (REPOSITORY / "docs" / f"{name}.rst").read_text(encoding="utf-8")


def tree(name: str) -> nodes.document:
    complaints = io.StringIO()
    document = publish_doctree(page(name), settings_overrides={"report_level": 2, "warning_stream": complaints})
    assert complaints.getvalue() == ""
    return document


def commands() -> list[str]:
    blocks = [block.astext() for name in PAGES for block in tree(name).findall(nodes.literal_block)]
    return [line for block in blocks for line in block.splitlines() if line.startswith("kiel-groups ")]


@pytest.mark.parametrize("line", commands())
def test_each_command_line_parses(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command line on the pages parses: its options exist and accept their arguments."""
    monkeypatch.setenv("KIEL_GROUPS_ZOOKEEPER", "127.0.0.1:2181")
    _, name, *arguments = shlex.split(line)
    with app.make_context("kiel-groups", [name, *arguments]) as context:
        command = app.get_command(context, name)
        assert isinstance(command, click.Command)
        command.make_context(name, arguments, parent=context).close()


def test_each_kind_of_finding_is_explained() -> None:
    """The page's tables explain all kinds of findings, and no others; that of brokers, those not in the other."""
    assert len(kinds(checks)) >= 13
    watched = {"stuck", "rebalancing", "missing-offset"}
    assert kinds(ProgressTracker) == watched
    found = kinds(*(rule for rule, needs in RULES if needs != Sight.ANSWERS)) | {"stuck"}
    of_brokers = kinds(*(rule for rule, needs in RULES if Sight.ANSWERS in needs)) | watched
    assert found | of_brokers == kinds(checks) | watched
    in_zookeeper, at_brokers = page("operating").split("kind                meaning\n")[1:]
    assert explained(in_zookeeper) == found
    assert explained(at_brokers) == (of_brokers - found) | {"stuck"}


def test_the_metrics_of_a_member_are_explained() -> None:
    """The page's table has the metrics of the code's table, in its order and with its words."""
    tables = [table for table in tree("metrics-clients").findall(nodes.table) if "heartbeat-rate" in table.astext()]
    assert len(tables) == 1
    rows = [[cell.astext() for cell in row.children] for row in tables[0].findall(nodes.row)]
    found = [(name, " ".join(meaning.split())) for name, meaning in rows[1:]]
    assert found == [(metric.name, metric.meaning) for metric in KAFKA_METRICS]


def kinds(*makers: Any) -> set[str]:
    """Return the kinds of the findings that modules, classes or functions make."""
    return set(re.findall(r'Finding\(\s*"([a-z-]+)"', "".join(map(inspect.getsource, makers))))


def explained(text: str) -> set[str]:
    """Return the kinds in the table with which a text begins, below its heading."""
    return set(re.findall(r"^``([a-z-]+)``  ", text.split("=====\n\n")[0], re.MULTILINE))
