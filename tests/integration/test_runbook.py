"""
The runbook and the drill: their commands run in the real zkCli, those of kiel-groups as processes.

They print what the pages show, and have the documented effect.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from docutils import nodes
from docutils.core import publish_doctree
from kazoo.client import KazooClient

from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.zookeeper.runtime import Runtime
from tests.helpers.cluster_data import produce, zookeeper
from tests.helpers.commands import REPOSITORY, kiel_groups_here
from tests.helpers.java_tools import zk_cli
from tests.helpers.members import Group, group_of
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

PAGE = (REPOSITORY / "zookeeper" / "runbook.rst").read_text(encoding="utf-8")
MAP = (REPOSITORY / "zookeeper" / "README.rst").read_text(encoding="utf-8")
DRILL = (REPOSITORY / "docs" / "drill.rst").read_text(encoding="utf-8")
PROMPT = "zk> "
SHELL = "$ kiel-groups "


@dataclass
class Step:
    """
    A command of a page with the output that the page shows. A line with only ``…`` matches any lines.

    ``tool`` is the prompt before the command.
    """

    section: str
    command: str
    shown: list[str] = field(default_factory=list)
    tool: str = PROMPT

    @property
    def pattern(self) -> re.Pattern[str]:
        lines = [".*" if line == "…" else re.escape(line).replace("…", ".*?") for line in self.shown]
        # The columns of a table are as wide as its names.
        return re.compile(r"\s*\n".join(re.sub(r"(?:\\ )+", r"\\s*", line) for line in lines), re.DOTALL)


def steps(page: str = PAGE) -> list[Step]:
    """Return all commands of a page, in order. Where a text quotes a title of the runbook, its commands follow."""
    found: list[Step] = []
    for part in publish_doctree(page).findall(nodes.section):
        title = part[0].astext()
        for block in part.findall(nodes.TextElement):
            if isinstance(block, nodes.paragraph) and page is not PAGE:
                quoted = re.findall('"([^"]+)"', " ".join(block.astext().split()))
                found += [replace(step, section=title) for name in quoted for step in section(name)]
            if not isinstance(block, nodes.literal_block):
                continue
            for line in filter(None, block.astext().splitlines()):
                if tool := next((tool for tool in (PROMPT, SHELL) if line.startswith(tool)), None):
                    found.append(Step(title, line.removeprefix(tool), tool=tool))
                elif found and not line.startswith("java "):
                    found[-1].shown.append(line)
    return found


def section(title: str) -> list[Step]:
    return [step for step in steps() if step.section == title]


class Operator:
    """An operator who types the commands of a page with the names of a real group."""

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
        if "OFFSET" in text:
            names["OFFSET"] = self._client.get(f"{self._layout.topic_offsets(self._topic)}/0")[0].decode()
        return re.sub("|".join(names), lambda found: names[found[0]], text)

    def _typed(self, steps: Iterable[Step]) -> list[Step]:
        return [
            replace(step, command=self.substitute(step.command), shown=[self.substitute(line) for line in step.shown])
            for step in steps
        ]

    async def run(self, folder: Path, *followed: Step) -> None:
        """Run commands of kiel-groups in a folder, and assert that each prints the output of the page."""
        for step in self._typed(followed):
            at = ("--zookeeper", self._cluster.zk_hosts)
            done = await asyncio.to_thread(kiel_groups_here, *shlex.split(step.command), *at, folder=folder)
            assert done.returncode == 0, (step.command, done)
            assert step.pattern.search(done.stdout + done.stderr), (step.command, step.pattern, done)

    async def follow(self, *followed: Step) -> None:
        """Type commands in one zkCli session, and assert that each prints the output of the page."""
        typed = self._typed(followed)
        commands = [step.command for step in typed]
        output = await asyncio.to_thread(zk_cli, self._cluster.zookeeper.version, self._cluster.zk_hosts, *commands)
        for step in typed:
            assert step.pattern.search(output), (step.command, step.pattern, output)


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


@pytest.mark.parametrize(
    "tool", [pytest.param(SHELL, id="kiel-groups"), pytest.param(PROMPT, id="zkcli", marks=pytest.mark.slow)]
)
async def test_the_drill_works_with_either_tool(
    cluster_39: Cluster, unique: Unique, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tool: str
) -> None:
    """Each task of the drill prints what the page shows, and has its effect, with the commands and with zkCli."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, PARTITIONS)
    values = await produce(cluster_39, topic, 40)
    settings = {"reconcile_interval_ms": 500, "auto_commit_interval_ms": 200}
    async with group_of(cluster_39, name, [topic], **settings) as group:

        async def join() -> None:
            for host in ("app-1", "app-2"):
                monkeypatch.setattr(Runtime, "host", lambda _, host=host: host)
                await group.join()
            await await_published_plan(group, topic)

        async def leave() -> None:
            for member in group.open_members:
                await group.leave(member)

        await join()
        first, second = group.members
        await group.delivered(values)
        with zookeeper(cluster_39) as client:
            operator = Operator(cluster_39, client, name, topic)

            async def do(title: str) -> None:
                tasks = [step for step in steps(DRILL) if step.section == title and step.tool == tool]
                assert tasks, title
                await (operator.follow(*tasks) if tool == PROMPT else operator.run(tmp_path, *tasks))

            await do("Look at a group")
            await do("Find the owner of a partition")
            before = client.get(GroupLayout(name).config)[0]
            await do("Drain a host")
            if tool == PROMPT:
                await eventually(
                    lambda: PARTITIONS in {len(member.partitions(topic)) for member in (first, second)},
                    "the other host has all",
                )
                client.set(GroupLayout(name).config, before)
            await await_published_plan(group, topic)

            of_first = sum(record.partition == 0 for record in first.records + second.records)
            repeated = 5 if tool == SHELL else of_first
            await do("Roll an offset back")
            await eventually(lambda: len(group.values) == len(values) + repeated, "the offset is rolled back")

            await leave()
            offsets = {
                str(number): client.get(f"{GroupLayout(name).topic_offsets(topic)}/{number}")[0]
                for number in range(PARTITIONS)
            }
            await do("Bring a deleted group back")
            if tool == PROMPT:
                for number in ("1", "2", "3"):
                    client.create(f"{GroupLayout(name).topic_offsets(topic)}/{number}", offsets[number])
            more = await produce(cluster_39, topic, 40, first=40)
            await join()
            await group.delivered(more)
            assert len(group.values) == len(values) + repeated + len(more)

            await do("Plan a growth")
            await group.balanced(topic, 6)


def test_every_section_of_the_drill_has_both_columns() -> None:
    """Each of the six tasks has commands of both tools, and the runbook has the sections that it quotes."""
    found = steps(DRILL)
    titles = {step.section for step in found}
    assert len(titles) == 6
    assert {(step.section, step.tool) for step in found} == {
        (title, tool) for title in titles for tool in (SHELL, PROMPT)
    }
    sections = {step.section for step in steps()}
    quoted = re.findall('"([^"{}]{2,})"', " ".join(DRILL.replace("::", "").split()))
    assert {each for each in quoted if each[0].isupper()} <= sections


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
