"""The page about the service, and the files for monitoring: their requests and metrics exist, and none is missing."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
from functools import reduce

import pytest
from docutils import nodes
from docutils.core import publish_doctree

from kiel_groups.service.api import Api
from kiel_groups.service.group_metrics import families
from tests.helpers.commands import REPOSITORY

pytestmark = pytest.mark.unit

PAGE = (REPOSITORY / "docs" / "service.rst").read_text(encoding="utf-8")
TREE = publish_doctree(PAGE, settings_overrides={"report_level": 2, "warning_stream": io.StringIO()})
MONITORING = REPOSITORY / "monitoring"


def rows(heading: str) -> list[list[str]]:
    """Return the rows of the tables whose first column has this heading, without the headings."""
    tables = [
        [[" ".join(cell.astext().split()) for cell in row] for row in table.findall(nodes.row)]
        for table in TREE.findall(nodes.table)
    ]
    return [row for table in tables if table[0][0] == heading for row in table[1:]]


def test_the_requests_are_those_of_the_interface() -> None:
    """The table has every path with its methods, and no other one."""
    listed = {row[0]: row[1] for row in rows("path")}
    served = {
        reduce(lambda path, part: path.replace("([^/]+)", part, 1), "CGN", route.pattern): ", ".join(
            sorted(route.operations)
        )
        for route in Api({}).routes()
    }
    assert listed == served


def test_the_metrics_are_those_of_the_page() -> None:
    """The table has the kind, the labels and the meaning of each metric, and no other metric."""
    listed = {row[0]: (row[1], row[3]) for row in rows("metric")}
    assert listed == {family.name: (family.type, family.documentation) for family in families([], 0)}


@pytest.mark.parametrize("name", ["rules.yml", "rules-test.yml", "grafana-dashboard.json"])
def test_files_for_monitoring_use_metrics_that_exist(name: str) -> None:
    """Each metric in them is exposed; counters end in _total there."""
    exposed = {f"{each.name}_total" if each.type == "counter" else each.name for each in families([], 0)}
    used = set(re.findall(r"\bkiel_\w+", (MONITORING / name).read_text(encoding="utf-8")))
    assert used
    assert used <= exposed


def test_the_dashboard_is_json() -> None:
    """Each panel has a query and a title."""
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text(encoding="utf-8"))
    assert all(panel["title"] and panel["targets"][0]["expr"] for panel in dashboard["panels"])


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool (Debian: apt install prometheus)")
@pytest.mark.parametrize("words", [("check", "rules", "rules.yml"), ("test", "rules", "rules-test.yml")])
def test_the_rules_are_valid_and_fire(words: tuple[str, ...]) -> None:
    """Each alarm fires when it should, and not before."""
    outcome = subprocess.run(["promtool", *words], cwd=MONITORING, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_the_unit_is_valid() -> None:
    """systemd finds nothing to say about it."""
    words = ["systemd-analyze", "verify", str(MONITORING / "kiel-groups-serve.service")]
    outcome = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (outcome.returncode, outcome.stdout + outcome.stderr) == (0, "")
