"""
What members of groups that brokers coordinate do on each release: the second table of ``docs/matrix.rst``.

``python -m tests.integration.coordinated_matrix`` tries all releases on real servers and writes the table into that
page.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kiel_groups.embedded import Cluster
from kiel_groups.errors import KielGroupsError
from kiel_groups.model import TopicPartition
from tests.helpers.cluster_data import produce
from tests.helpers.commands import Running
from tests.helpers.group_backends import GroupBackend
from tests.helpers.members import Group, group_of
from tests.helpers.servers import COORDINATING_KAFKAS
from tests.helpers.waiting import eventually

__all__ = ["STEPS", "settings_of_brokers", "steps_in_docs", "try_release"]

PAGE = Path(__file__).parents[2] / "docs" / "matrix.rst"
TOPIC, GROUP, PARTITIONS, RECORDS = "t", "g", 4, 40
NOTHING = "–"

#: The session timeout of the members, in milliseconds. The brokers' least one is lowered for it.
SESSION_MS = 3_000

STEPS = ("join", "commit", "lag", "hand-over", "leave", "kill -9", "coordinator restart")
_WIDTHS = (8, *(max(7, len(step)) for step in STEPS))

_MEMBER = """
import json
import sys
from kiel_groups.sync import GroupedConsumer

broker, group, topic, settings = sys.argv[1:]
with GroupedConsumer(broker, group, **json.loads(settings)) as consumer:
    consumer.subscribe(topic)
    for record in consumer:
        print(record.value.decode(), flush=True)
"""


def settings_of_brokers() -> dict[str, object]:
    """Return what the brokers of the matrix have in addition to their usual settings."""
    return {"group.min.session.timeout.ms": 1_000}


@dataclass
class _Run:
    """A group on one release while the steps are played, and the seconds that each step took."""

    backend: GroupBackend
    group: Group
    values: list[bytes] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    async def step(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """Play a step. A step that fails, or lasts more than half a minute, has no time."""
        began_s = time.monotonic()
        try:
            await work()
        except (AssertionError, KielGroupsError, TimeoutError) as error:
            print(f"{name} failed: {error!r}")  # noqa: T201 -- the reason is needed beside the table
        else:
            self.seconds[name] = time.monotonic() - began_s

    async def produce(self) -> list[bytes]:
        fresh = await produce(self.backend.cluster, TOPIC, RECORDS, first=len(self.values))
        self.values += fresh
        return fresh

    async def each_once(self, values: list[bytes]) -> None:
        """Wait until each value is delivered, and check that none was delivered twice."""
        found = await self.group.delivered(values)
        assert all(found[value] == 1 for value in values), "values are delivered twice"

    async def balanced(self) -> None:
        await self.group.balanced(TOPIC, PARTITIONS)

    # ------------------------------------------------------------------ the steps

    async def join(self) -> None:
        """A second member joins, and shares the partitions."""
        await self.group.join()
        await self.balanced()

    async def commit(self) -> None:
        """The members commit what they have finished, until the coordinator has the ends of all partitions."""

        async def commits_all() -> bool:
            await asyncio.gather(*(member.consumer.commit() for member in self.group.open_members))
            return self.backend.committed(GROUP, TOPIC) == len(self.values)

        # The last record of a member may still be in flight.
        await eventually(commits_all, "the group's offsets are the ends")

    async def lag(self) -> None:
        """Nothing is left to read: by the members' own figures, and by the group's offsets and the logs' ends."""
        members = self.group.open_members
        await eventually(lambda: not any(sum(each.consumer.lag().values()) for each in members), "the lag is 0")
        partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        ends = await members[0].consumer.end_offsets(partitions)
        assert await members[0].consumer.committed(partitions) == ends, "the group's offsets are not the ends"

    async def hand_over(self) -> None:
        """A third member joins under load. Each record is delivered once, whichever member had its partition before."""
        for member in self.group.open_members:
            member.pace_s = 0.005
        fresh = await self.produce()
        await self.group.join()
        await self.balanced()
        await self.each_once(fresh + await self.produce())

    async def leave(self) -> None:
        """A member leaves, and the others take its partitions at once."""
        await self.group.leave(self.group.open_members[-1])
        await self.balanced()

    async def kill(self) -> None:
        """A member is killed. The others take its partitions when its session is over, and lose no record."""
        settings = {**self.backend.settings, "session_timeout_ms": SESSION_MS}
        arguments = [self.backend.cluster.brokers[0], GROUP, TOPIC, json.dumps(settings)]
        with Running(["-c", _MEMBER, *arguments]) as program:
            await eventually(lambda: self._owned() < PARTITIONS, "the process owns a partition")
            fresh = await self.produce()
            await asyncio.to_thread(program.wait_for_lines, 1)
            program.end(signal.SIGKILL)
            began_s = time.monotonic()
            await self.balanced()
            self.seconds["kill -9"] = time.monotonic() - began_s
            printed = {line.encode() for line in program.lines}
        await self.group.delivered(set(fresh) - printed)

    def _owned(self) -> int:
        return sum(len(member.partitions(TOPIC)) for member in self.group.open_members)

    async def restart(self) -> None:
        """The coordinator is killed and starts again. The members deliver and commit again, and lose no record."""
        broker = self.backend.cluster.kafka[0]
        await broker.kill()
        await broker.start()
        began_s = time.monotonic()
        await self.group.delivered(await self.produce(), 60)
        await self.balanced()
        await self.commit()
        self.seconds["coordinator restart"] = time.monotonic() - began_s


@asynccontextmanager
async def _started(cluster: Cluster) -> AsyncIterator[_Run]:
    """Provide a group whose first member has read all records so far."""
    backend = GroupBackend(cluster, "brokers")
    await cluster.create_topic(TOPIC, PARTITIONS)
    settings = {**backend.settings, "session_timeout_ms": SESSION_MS, "auto_commit_interval_ms": 500}
    async with group_of(cluster, GROUP, [TOPIC], **settings) as group:
        run = _Run(backend, group)
        await group.join()
        await run.each_once(await run.produce())
        yield run


async def try_release(cluster: Cluster) -> dict[str, float]:
    """Play all steps with one group, and return the seconds of each step that has succeeded."""
    async with _started(cluster) as run:
        await run.step("join", run.join)
        await run.step("commit", run.commit)
        await run.step("lag", run.lag)
        await run.step("hand-over", run.hand_over)
        await run.step("leave", run.leave)
        for name, work in (("kill -9", run.kill), ("coordinator restart", run.restart)):
            await run.step(f"{name} in all", work)
        return {step: run.seconds[step] for step in STEPS if run.seconds.get(step) is not None}


# ------------------------------------------------------------------ the page


def table(found: Mapping[str, Mapping[str, float]]) -> str:
    """Return the table in reStructuredText."""
    rule = "  ".join("=" * width for width in _WIDTHS)
    rows = [(release, *(_cell(seconds.get(step)) for step in STEPS)) for release, seconds in found.items()]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, _WIDTHS, strict=True)).rstrip()
        for row in (("Kafka", *STEPS), *rows)
    ]
    return "\n".join([rule, lines[0], rule, *lines[1:], rule])


def _cell(seconds: float | None) -> str:
    if seconds is None:
        return NOTHING
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def steps_in_docs() -> dict[str, tuple[str, ...]]:
    """Return the table of the page: the steps that have succeeded, by release."""
    rows = (re.split(r" {2,}", line) for line in _table_text().splitlines()[3:-1])
    return {
        release: tuple(step for step, cell in zip(STEPS, cells, strict=True) if cell != NOTHING)
        for release, *cells in rows
    }


def _table_text() -> str:
    found = re.search(
        r"(?<=\.\. coordinated matrix: begin\n\n).*?(?=\n\n\.\. coordinated matrix: end)", PAGE.read_text("utf-8"), re.S
    )
    assert found is not None, "the page has no markers for the table"
    return found[0]


async def try_all() -> dict[str, dict[str, float]]:
    """Try each release."""
    found: dict[str, dict[str, float]] = {}
    for release in COORDINATING_KAFKAS:
        async with Cluster(kafka=release, broker_overrides=settings_of_brokers()) as cluster:
            found[release] = await try_release(cluster)
            print(release, found[release])  # noqa: T201 -- this is a command
    return found


if __name__ == "__main__":
    written = PAGE.read_text("utf-8").replace(_table_text(), table(asyncio.run(try_all())))
    PAGE.write_text(written, encoding="utf-8")
