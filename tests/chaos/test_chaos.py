"""About a minute of chaos: a fixed schedule of ten faults, without a finding."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.schedule import make_schedule
from tests.helpers.commands import environment

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("chaos")]

#: Its ten faults hit members, brokers and ZooKeeper.
SEED = 170
FAULTS = 10


def chaos(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.chaos", *arguments]
    return subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.timeout(420)
def test_a_minute_of_chaos(tmp_path: Path) -> None:
    """Nothing is lost, nothing overlaps, no offset goes back, and no partition is long without an owner."""
    folder = tmp_path / "run"
    # More tolerance than at a run by itself: other tests use the same processors.
    options = ["--faults", str(FAULTS), "--seed", str(SEED), "--keep", str(folder), "--tolerance", "8"]
    with chaos(*options) as run:
        said, _ = run.communicate()
    assert run.returncode == 0, f"{said}\nlogs: {folder}"
    told = json.loads((folder / "report.json").read_text())
    assert told["faults_inflicted"] == FAULTS
    assert told["records_delivered"] >= told["records_acknowledged"] > 1_000
    assert told["hand_overs"] > 0
    assert told["commits"] > 100
    assert (folder / "schedule.json").read_text() == make_schedule(SEED, FAULTS).to_json()
