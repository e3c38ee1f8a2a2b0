"""The README: its programs run as printed, and its paths, commands and options exist."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from kiel_groups.cli.app import app
from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.layout import GroupLayout
from tests.helpers.cluster_data import owners, zookeeper
from tests.helpers.commands import REPOSITORY, Running, environment
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

README = (REPOSITORY / "README.rst").read_text(encoding="utf-8")

GROUP, TOPIC, PARTITIONS = "first-group", "page-views", 4


def program(number: int) -> str:
    """Return a program of the README by its number, from 0, as a reader copies it."""
    blocks = re.findall(r"^\.\. code-block:: python\n\n((?:(?:    .*)?\n)+)", README, re.MULTILINE)
    return textwrap.dedent(blocks[number]).strip() + "\n"


def send(cluster: Cluster, topic: str) -> tuple[int, int]:
    """
    Run the README's producer with the lines that the README leaves out, and return the printed partition and offset.
    """
    text = program(1).replace("127.0.0.1:9092", cluster.brokers[0]).replace(TOPIC, topic)
    whole = f"import asyncio\nfrom kiel_groups import Producer\nasync def main():\n{textwrap.indent(text, '    ')}"
    command = [sys.executable, "-c", f"{whole}\nasyncio.run(main())"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    partition, offset = map(int, done.stdout.split())
    return partition, offset


async def test_the_first_consumer_runs_as_printed(
    cluster_39: Cluster, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """
    Two processes share a topic. Ctrl-C stops one process, which leaves at once. The other process then gets all
    partitions.

    The names of topic and group are not the README's, because other tests share the servers.
    """
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, PARTITIONS)
    text = program(0)
    assert TOPIC in text
    assert GROUP in text
    (tmp_path / "consumer.py").write_text(text.replace(TOPIC, topic).replace(GROUP, group))
    arguments = ["consumer.py", cluster_39.brokers[0], cluster_39.zk_hosts]

    def shares() -> list[int]:
        names = [owner for owner, _ in owners(client, group, topic).values()]
        return sorted(names.count(owner) for owner in set(names))

    with (
        zookeeper(cluster_39) as client,
        Running(arguments, tmp_path) as first,
        Running(arguments, tmp_path) as second,
    ):
        await eventually(lambda: shares() == [PARTITIONS // 2] * 2, "two members share the topic")
        partition, offset = send(cluster_39, topic)
        received = f"{partition} {offset} /index.html"
        await eventually(lambda: received in first.lines + second.lines, "one member prints the record")
        stays, leaves = (first, second) if received in first.lines else (second, first)
        assert leaves.end(signal.SIGINT) == 0
        assert leaves.errors == ["left the group"]
        assert len(client.get_children(GroupLayout(group).members)) == 1
        await eventually(lambda: shares() == [PARTITIONS], "the other member owns all partitions")
        received = "{} {} /index.html".format(*send(cluster_39, topic))
        await eventually(lambda: stays.lines[-1] == received, "the other member prints the record")
        assert stays.lines.count(received) == 1
        assert stays.end(signal.SIGINT) == 0


def test_every_path_in_the_readme_exists() -> None:
    """All paths of the repository that the README names exist."""
    named = set(re.findall(r"(?<![\w/.-])(?:scripts|tests|docs|examples|kiel_groups)(?:/[\w.-]*\w)+", README))
    assert {"scripts/demo", "scripts/test"} <= named
    assert {path for path in named if not (REPOSITORY / path).exists()} == set()


def test_every_command_and_option_in_the_readme_exists() -> None:
    """``kiel-groups`` has the named commands, and ``scripts/demo`` the named options."""
    commands = set(re.findall(r"(?:``|^    (?:\.venv/bin/)?)kiel-groups (\w+)", README, re.MULTILINE))
    context = app.make_context("kiel-groups", ["demo"])
    assert {"consume"} <= commands <= set(app.list_commands(context))
    demo = app.get_command(context, "demo")
    assert demo is not None
    known = {option for parameter in demo.params for option in parameter.opts}
    lines = re.findall(r"(?:scripts/demo|kiel-groups demo)((?: --?[\w-]+(?: \d+)?)+)", README)
    assert {option for line in lines for option in re.findall(r"--[\w-]+", line)} <= known


def test_the_commands_that_join_are_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every option of the commands exists, and no required option is missing: ``cluster env`` has given the others."""
    commands = re.findall(r"^    \.venv/bin/kiel-groups (consume .*)$", README, re.MULTILINE)
    assert len(commands) == 2
    monkeypatch.setenv("KIEL_GROUPS_COORDINATION", "brokers")
    monkeypatch.setenv("KIEL_GROUPS_BROKERS", "127.0.0.1:1")
    for command in commands:
        context = app.make_context("kiel-groups", command.split())
        consume = app.get_command(context, "consume")
        assert consume is not None
        assert consume.make_context("consume", command.split()[1:], parent=context).params["topics"] == ("page-views",)


def test_the_addresses_in_the_readme_agree() -> None:
    """The cluster that the README starts listens at the addresses of its examples."""
    (started,) = re.findall(r"cluster up .*--zookeeper-port (\d+) --broker-port (\d+)", README)
    assert set(re.findall(r"127\.0\.0\.1:(\d+)", README)) == set(started)
    assert "pip install kiel-groups" not in README
