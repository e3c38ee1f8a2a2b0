"""The page about the service lists its requests, and the files for monitoring are valid."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import reduce
from pathlib import Path

import pytest

from kiel_groups.service.api import Api
from tests.helpers.commands import REPOSITORY
from tests.helpers.metrics_page import tables

pytestmark = pytest.mark.unit

PAGE = REPOSITORY / "docs" / "service.rst"
MONITORING = REPOSITORY / "monitoring"


def test_the_requests_are_those_of_the_interface() -> None:
    """The table has every path with its methods, and no other one."""
    listed = {row[0]: row[1] for table in tables(PAGE) if table[0][0] == "path" for row in table[1:]}
    served = {
        reduce(lambda path, part: path.replace("([^/]+)", part, 1), "CGN", route.pattern): ", ".join(
            sorted(route.operations)
        )
        for route in Api({}).routes()
    }
    assert listed == served


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
def test_the_unit_is_valid(tmp_path: Path) -> None:
    """systemd finds nothing to say about it, once its path is that of the installed program."""
    text = (MONITORING / "kiel-groups-serve.service").read_text(encoding="utf-8")
    unit = tmp_path / "kiel-groups-serve.service"
    unit.write_text(text.replace("/opt/kiel-groups/bin/kiel-groups ", f"{sys.executable} "))
    words = ["systemd-analyze", "verify", str(unit)]
    outcome = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (outcome.returncode, outcome.stdout + outcome.stderr) == (0, "")
