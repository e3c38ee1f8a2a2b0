"""The demo with a file and ports that the user chooses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kiel_groups.embedded.processes import ReservedPort
from tests.helpers.commands import kiel_groups

pytestmark = pytest.mark.integration


def test_the_demo_accepts_a_file_and_ports(tmp_path: Path) -> None:
    """All lines of the file are delivered, also repeated and empty lines. The servers listen at the given ports."""
    (tmp_path / "lines.txt").write_text("a line\n" * 40 + "\n" * 3 + "the last one, without an end")
    reserved = ReservedPort(), ReservedPort()
    zookeeper, broker = (port.number for port in reserved)
    done = kiel_groups(
        *("demo", "--records=lines.txt", f"--zookeeper-port={zookeeper}", f"--broker-port={broker}"),
        folder=tmp_path,
        timeout_s=120,
    )
    for port in reserved:
        port.release()
    assert (done.returncode, done.stderr) == (0, "")
    assert f"ZooKeeper at 127.0.0.1:{zookeeper}, Kafka at 127.0.0.1:{broker}" in done.stdout
    assert re.search(r"sent +44\nreceived at least once +44\n", done.stdout)
    assert "proved: no record was lost" in done.stdout
