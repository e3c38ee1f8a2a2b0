"""A run of less than a minute: a fixed schedule of seven faults, without a finding."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.schedule import make_schedule
from tests.helpers.commands import environment

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("chaos")]

#: The seed of a schedule whose seven faults hit members, brokers and ZooKeeper, and kill one of each.
SEED = 1148
FAULTS = 7


def start_run(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.chaos", *arguments]
    return subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_seven_faults_without_a_finding(tmp_path: Path) -> None:
    """No record is lost, no deliveries overlap, no offset decreases, and no partition is unowned for long."""
    folder = tmp_path / "run"
    # The limits are larger than by default, because other tests use the same processors.
    options = ["--faults", str(FAULTS), "--seed", str(SEED), "--keep", str(folder), "--tolerance", "8"]
    with start_run(*options) as run:
        output, _ = run.communicate()
    assert run.returncode == 0, f"{output}\nlogs: {folder}"
    report = json.loads((folder / "report.json").read_text())
    assert report["faults_inflicted"] == FAULTS
    assert report["records_delivered"] >= report["records_acknowledged"] > 500
    assert report["hand_overs"] > 0
    assert report["commits"] > 50
    assert (folder / "schedule.json").read_text() == make_schedule(SEED, FAULTS).to_json()
