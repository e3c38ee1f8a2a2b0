"""The pages about worker groups: their commands, options, routes and metrics exist, and none is missing."""

from __future__ import annotations

import io
import re
import shlex

import click
import pytest
from docutils import nodes
from docutils.core import publish_doctree

from kiel_groups.cli.app import app
from kiel_groups.cli.commands.workers import run
from kiel_groups.workers.rest.operations import RestOperations
from tests.helpers.commands import REPOSITORY

pytestmark = pytest.mark.unit

#: The pages about workers.
TREES = [
    publish_doctree(
        (REPOSITORY / "docs" / name).read_text(encoding="utf-8"),
        settings_overrides={"report_level": 2, "warning_stream": io.StringIO()},
    )
    for name in ("workers.rst", "workers-rest.rst")
]


def rows(heading: str) -> list[list[str]]:
    """Return the rows of the table whose first column has this heading, without the headings."""
    tables = [
        [[cell.astext() for cell in row] for row in table.findall(nodes.row)]
        for tree in TREES
        for table in tree.findall(nodes.table)
    ]
    (found,) = [table for table in tables if table[0][0] == heading]
    return found[1:]


def commands() -> list[str]:
    blocks = [block.astext() for tree in TREES for block in tree.findall(nodes.literal_block)]
    return [line for block in blocks for line in block.splitlines() if line.startswith("kiel-groups ")]


@pytest.mark.parametrize("line", commands())
def test_each_command_line_parses(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its options exist and accept their arguments."""
    monkeypatch.setenv("KIEL_GROUPS_ZOOKEEPER", "127.0.0.1:2181")
    words = shlex.split(line)[1:]
    context, command = click.Context(app), app
    while isinstance(command, click.Group):
        found = command.get_command(context, name := words.pop(0))
        assert found is not None
        if not isinstance(found, click.Group):
            found.make_context(name, words, parent=context).close()
            return
        command = found


def test_the_options_of_a_worker_are_explained() -> None:
    """The table has every option of ``workers run`` but those that all commands have."""
    shared = {"--quiet", "--verbose"}
    options = {option for parameter in run.params for option in parameter.opts if option.startswith("--")}
    assert {row[0] for row in rows("option")} == options - shared


def test_the_routes_are_those_of_the_interface() -> None:
    """The table has every path with its methods, and no other one."""
    listed = {row[0].replace("\n", ""): set(re.split(r",\s", row[1])) for row in rows("path")}
    routes = RestOperations(None, "", None, "").routes()  # type: ignore[arg-type]
    served = {_path(route.pattern): set(route.operations) for route in routes} | {"/metrics": {"GET"}}
    assert listed == served


def _path(pattern: str) -> str:
    return pattern.replace("([^/]+)", "N").replace("([0-9]{1,9})", "I") or "/"
