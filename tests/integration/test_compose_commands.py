"""The commands of the compose file's containers, run as processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pytest

from kiel_groups.embedded import Cluster
from tests.helpers.cluster_data import produce
from tests.helpers.commands import Running, kiel_groups
from tests.helpers.compose_file import services
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration


async def test_the_commands_run_a_group_that_an_allocator_leads(cluster_39: Cluster, tmp_path: Path) -> None:
    """
    One command creates the topic, two consumers share it and print its records, and an allocator process leads. The
    stop signal ends all commands.
    """
    found = services()
    addresses = {
        "KIEL_GROUPS_ZOOKEEPER": cluster_39.zk_hosts,
        "KIEL_GROUPS_BROKERS": ",".join(cluster_39.brokers),
    }
    assert addresses.keys() == found["cli"]["environment"].keys()
    with patch.dict(os.environ, addresses), ExitStack() as stack:
        topic = await asyncio.to_thread(kiel_groups, *found["topic"]["command"])
        assert topic.returncode == 0, topic.stderr

        (tmp_path / "token").write_text("a-token-of-the-service")
        (tmp_path / "token").chmod(0o600)
        here = {"0.0.0.0": "127.0.0.1", "/run/secrets/token": str(tmp_path / "token")}

        def run(service: str, *options: str) -> Running:
            words = [here.get(word, word) for word in found[service]["command"]]
            return stack.enter_context(Running(["-m", "kiel_groups", *words, *options]))

        allocator = run("allocator", "--port", "0")
        await eventually(lambda: any(line.endswith(" leads") for line in allocator.errors), "the allocator leads")
        consumers = [run("consumer-1"), run("consumer-2")]

        async def described() -> dict[str, object]:
            outcome = await asyncio.to_thread(kiel_groups, "describe", "example", "--json")
            document: dict[str, object] = json.loads(outcome.stdout or "{}")
            return document

        async with asyncio.timeout(90):
            while (document := await described()).get("state") != "settled" or len(document["members"]) < 2:  # type: ignore[arg-type]
                assert all(consumer.process.poll() is None for consumer in consumers), consumers[0].errors
        members = {member["id"] for member in document["members"]}  # type: ignore[attr-defined]
        assert document["leader"] not in members
        assert document["wrong"] == []
        values = await produce(cluster_39, found["topic"]["command"][2], 50)
        await eventually(lambda: sum(len(consumer.lines) for consumer in consumers) == len(values), "all are printed")
        stop = getattr(signal, found["consumer-1"]["stop_signal"])
        assert [await asyncio.to_thread(each.end, stop) for each in (*consumers, allocator)] == [130] * 3


def test_zookeeper_is_healthy_when_it_serves(cluster_39: Cluster) -> None:
    """
    The health check succeeds only for a ZooKeeper server, not for another server's port or a port without a server.
    """
    kind, *command = services()["zookeeper"]["healthcheck"]["test"]
    assert kind == "CMD"

    def status(address: str) -> int:
        host, port = address.split(":")
        words = [word.replace("/127.0.0.1/2181", f"/{host}/{port}") for word in command]
        assert words != command
        return subprocess.run(words, capture_output=True, timeout=10, check=False).returncode

    assert status(cluster_39.zk_hosts.partition("/")[0]) == 0
    assert status(cluster_39.brokers[0]) != 0
    assert status("127.0.0.1:1") != 0
