"""The demo with a file, ports and a picture that the user chooses."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kiel_groups.embedded.processes import ReservedPort
from tests.helpers.commands import kiel_groups

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_the_demo_accepts_a_file_and_ports(tmp_path: Path) -> None:
    """
    All lines of the file are delivered, also repeated and empty lines. The servers listen at the given ports. The
    picture has the steps and the result, and loads nothing.
    """
    (tmp_path / "lines.txt").write_text("a line\n" * 40 + "\n" * 3 + "the last one, without an end")
    reserved = ReservedPort(), ReservedPort()
    zookeeper, broker = (port.number for port in reserved)
    done = kiel_groups(
        *("demo", "--records=lines.txt", "--svg=demo.svg"),
        *(f"--zookeeper-port={zookeeper}", f"--broker-port={broker}"),
        folder=tmp_path,
        timeout_s=120,
    )
    for port in reserved:
        port.release()
    assert (done.returncode, done.stderr) == (0, "")
    assert f"ZooKeeper at 127.0.0.1:{zookeeper}, Kafka at 127.0.0.1:{broker}" in done.stdout
    assert re.search(r"sent +44\nreceived at least once +44\n", done.stdout)
    assert "proved: no record was lost" in done.stdout
    picture = "".join(ElementTree.parse(tmp_path / "demo.svg").getroot().itertext()).replace("\N{NO-BREAK SPACE}", " ")
    steps = ("$ kiel-groups demo", "3 members share", "kill -9 consumer-", "a new leader", "proved: no record was lost")
    assert [step for step in steps if step not in picture] == []
    assert picture.count("group demo · generation") == 2
    assert "url(http" not in (tmp_path / "demo.svg").read_text(encoding="utf-8")
