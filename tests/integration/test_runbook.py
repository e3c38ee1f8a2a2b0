"""The runbook: its commands run in the real zkCli, and have the documented effect."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from docutils import nodes
from docutils.core import publish_doctree
from kazoo.client import KazooClient

from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.layout import GroupLayout
from tests.helpers.cluster_data import produce, zookeeper
from tests.helpers.commands import REPOSITORY
from tests.helpers.java_tools import zk_cli
from tests.helpers.members import Group, group_of
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

PAGE = (REPOSITORY / "zookeeper" / "runbook.rst").read_text(encoding="utf-8")
MAP = (REPOSITORY / "zookeeper" / "README.rst").read_text(encoding="utf-8")
PROMPT = "zk> "


@dataclass
class Step:
    """A command of the page with the output that the page shows. A line with only ``…`` matches any lines."""

    section: str
    command: str
    shown: list[str] = field(default_factory=list)

    @property
    def pattern(self) -> re.Pattern[str]:
        lines = [".*" if line == "…" else re.escape(line).replace("…", ".*?") for line in self.shown]
        return re.compile("\n".join(lines), re.DOTALL)


def steps() -> list[Step]:
    """Return all commands of the page, in order."""
    found: list[Step] = []
    for section in publish_doctree(PAGE).findall(nodes.section):
        for block in section.findall(nodes.literal_block):
            for line in filter(None, block.astext().splitlines()):
                if line.startswith(PROMPT):
                    found.append(Step(section[0].astext(), line.removeprefix(PROMPT)))
                elif found and not line.startswith("java "):
                    found[-1].shown.append(line)
    return found


def section(title: str) -> list[Step]:
    return [step for step in steps() if step.section == title]


class Operator:
    """An operator who types the page's commands with the names of a real group."""

    def __init__(self, cluster: Cluster, client: KazooClient, group: str, topic: str) -> None:
        self._cluster, self._client, self._group, self._topic = cluster, client, group, topic
        self._layout = GroupLayout(group)

    def substitute(self, text: str) -> str:
        """
        Replace the page's names in a text by the names of the group, its topic, its leader and the leader's election
        znode.
        """
        candidates = self._client.get_children(self._layout.election)
        leader_node = min(candidates, key=lambda name: name[-10:], default="none")
        member = self._client.get(f"{self._layout.election}/{leader_node}")[0].decode() if candidates else "none"
        names = {"first-group": self._group, "page-views": self._topic, "CANDIDATE": leader_node, "MEMBER": member}
        return re.sub("|".join(names), lambda found: names[found[0]], text)

    async def follow(self, *followed: Step) -> None:
        """Type commands in one zkCli session, and assert that each prints the output of the page."""
        commands = [self.substitute(step.command) for step in followed]
        output = await asyncio.to_thread(zk_cli, self._cluster.zookeeper.version, self._cluster.zk_hosts, *commands)
        for step in followed:
            wanted = Step(step.section, step.command, [self.substitute(line) for line in step.shown]).pattern
            assert wanted.search(output), (step.command, wanted.pattern, output)


#: Sections whose commands change nothing.
READING = [
    "Who is in the group?",
    "Who leads?",
    "What was decided, when and why?",
    "What is a member to own, and what does it own?",
    "Which member keeps a partition too long?",
    "Are there foreign members?",
    "How far is it, and how far behind?",
]
PARTITIONS = 4


async def await_published_plan(group: Group, topic: str) -> None:
    await group.balanced(topic, PARTITIONS)
    with zookeeper(group.cluster) as client:
        group_state = GroupLayout(group.name).group_state
        await eventually(lambda: json.loads(client.get(group_state)[0])["state"] == "done", "the plan is published")


async def test_zkcli_prints_what_the_page_shows(cluster: Cluster, unique: Unique) -> None:
    """
    Every command of the page runs. Reading commands print the documented output; writing commands have their effect.
    """
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, PARTITIONS)
    values = await produce(cluster, topic, 40)
    layout = GroupLayout(name)
    async with group_of(cluster, name, [topic], reconcile_interval_ms=500, auto_commit_interval_ms=200) as group:
        first, second = await group.join(), await group.join()
        await await_published_plan(group, topic)
        await group.delivered(values)
        with zookeeper(cluster) as client:
            operator = Operator(cluster, client, name, topic)
            await operator.follow(*(step for title in READING for step in section(title)))

            await eventually(lambda: client.get(f"{layout.topic_offsets(topic)}/0")[0] != b"0", "it is committed")
            delivered = len(group.values)
            of_first = sum(record.partition == 0 for member in group.members for record in member.records)
            await operator.follow(*section("Set an offset"))
            await eventually(lambda: len(group.values) == delivered + of_first, "partition 0 is delivered again")

            await operator.follow(*section("Make the leader plan again"))
            await eventually(lambda: second.consumer.is_leader, "the next candidate is the leader")
            await eventually(
                lambda: len(client.get_children(layout.election)) == 2, "the previous leader is a candidate again"
            )
            await await_published_plan(group, topic)

            before = client.get(layout.config)[0]
            await operator.follow(*section("Take the partitions from one member"))
            await eventually(lambda: len(first.partitions(topic)) == PARTITIONS, "the other member owns all partitions")
            client.set(layout.config, before)
            await await_published_plan(group, topic)
    with zookeeper(cluster) as client:
        removal = section("Remove a group")
        if cluster.zookeeper.version == "3.4.6":
            removal = [Step(step.section, step.command.replace("deleteall", "rmr")) for step in removal]
        await Operator(cluster, client, name, topic).follow(*removal)
        assert client.exists(layout.root) is client.exists(f"/consumers/{name}") is None


def test_every_section_of_the_page_is_run() -> None:
    """A section that is added to the page must be added to the test."""
    changing = ["Set an offset", "Make the leader plan again", "Take the partitions from one member", "Remove a group"]
    assert {step.section for step in steps()} == {*READING, *changing}
    assert len(steps()) >= 15


async def test_the_map_has_every_znode_of_a_group(cluster_39: Cluster, unique: Unique) -> None:
    """The path and the kind of each znode of a running group match a line of the map."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 2)
    table = MAP.split(".. map: begin")[1].split(".. map: end")[0]
    rows = dict(re.findall(r"^``(\S+)``\s+(ephemeral|sequential|persistent)", table, re.MULTILINE))
    patterns = {re.sub("<[a-z]+>", "[^/]+", path.replace("<group>", name)): kind for path, kind in rows.items()}

    def kind_of(path: str) -> str | None:
        return next((kind for pattern, kind in patterns.items() if re.fullmatch(pattern, path)), None)

    async with group_of(cluster_39, name, [topic]) as group:
        await group.join()
        await group.balanced(topic, 2)
        with zookeeper(cluster_39) as client:
            level, seen = [f"/kiel-groups/{name}", f"/consumers/{name}"], set()
            while level:
                path = level.pop()
                children = client.get_children(path)
                level += [f"{path}/{child}" for child in children]
                if (kind := kind_of(path)) is not None:
                    ephemeral = client.exists(path).ephemeralOwner != 0
                    assert ephemeral == (kind != "persistent"), path
                    seen.add(kind)
                else:
                    assert not client.get(path)[0], f"{path} has data and is not on the map"
            assert seen == {"ephemeral", "sequential", "persistent"}
