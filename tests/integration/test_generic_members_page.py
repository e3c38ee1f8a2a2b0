"""The program of the page about groups of programs works with each of the members that the page shows."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from textwrap import dedent
from typing import Any

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.embedded.releases import kafka_release
from tests.helpers.commands import REPOSITORY
from tests.helpers.servers import played_kafkas
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

PAGE = (REPOSITORY / "docs" / "generic-members.rst").read_text(encoding="utf-8")
BLOCKS = [dedent(block) for block in re.findall(r"::\n\n((?:    .*\n|\n)+)", PAGE)]


def block_with(text: str) -> str:
    """Return the only literal block of the page that has this text."""
    (found,) = (block for block in BLOCKS if text in block)
    return found


@pytest.mark.parametrize(("coordination", "port"), [("zookeeper", 2181), ("brokers", 9092)])
async def test_the_program_of_the_page_gets_its_work(
    coordination: str,
    port: int,
    shared_clusters: Callable[..., Cluster],
    unique: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Copied from the page, with the address of a server, it exports all tenants, and stops when it is cancelled."""
    version = list(played_kafkas())[-1]
    if coordination == "zookeeper":
        cluster = shared_clusters("3.9.5")
    else:
        cluster = shared_clusters("3.9.5" if kafka_release(version).uses_zookeeper else None, version)
    address = cluster.brokers[0] if coordination == "brokers" else cluster.zk_hosts
    creation = block_with('"127.0.0.1:2181")' if coordination == "zookeeper" else 'coordination="brokers"')
    creation = creation.replace(f"127.0.0.1:{port}", str(address)).replace('"exporters"', f'"{unique("exporters")}"')
    names: dict[str, Any] = {}
    exec(block_with("class Exporter:") + creation, names)
    running = asyncio.ensure_future(names["export"](names["member"]))
    await eventually(lambda: "exporting blue green red\n" in capsys.readouterr().out, "the tenants are exported")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert capsys.readouterr().out == "stopped\n"
