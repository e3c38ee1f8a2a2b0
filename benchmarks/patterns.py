"""
Subscribe by pattern while topics come and go, judged from outside.

    python -m benchmarks.patterns [--quick] [--json FILE] [--kafka 0.8.2.2] [--coordination zookeeper|brokers]

The members are processes of ``kiel-groups consume --pattern``, or of ``MEMBER`` if brokers coordinate the group: the
command looks for new topics every five minutes only. The judge knows only what they print, and ZooKeeper. It
creates topics that match and topics that do not, produces a record into each, and deletes every third topic after the
record was printed. It reports how long a new topic waits for its first record, and fails if

- a record of a matching topic is not printed within a minute,
- a record of another topic is printed,
- an existing matching topic has no owner at the end, or a deleted one still has an owner,
- the group in ZooKeeper registers a member again, because patterns need no rejoin.

Records that were printed twice are counted. A clean hand-over repeats none.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections import Counter
from statistics import median
from typing import Any, TextIO

import click
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from kiel_groups import Producer
from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.contents import GroupState
from kiel_groups.group.znodes.layout import GroupLayout

GROUP, PATTERN = "patterns", r"page-\d+$"
MEMBERS, LIMIT_S = 3, 60.0
MEMBER = """
import asyncio, json, sys
from kiel_groups import GroupedConsumer

async def main(broker, group, pattern):
    settings = {"coordination": "brokers", "metadata_max_age_ms": 1_000}
    async with GroupedConsumer(broker, group, **settings) as consumer:
        await consumer.subscribe(pattern=pattern)
        async for record in consumer:
            print(json.dumps({"topic": record.topic}), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""
#: How many topics are created at the same time, and every how many topics one is deleted, or does not match.
LANES, DELETED_OF, OTHER_OF = 4, 3, 10


class Judge:
    """Creates and deletes topics, and compares what members print with what was produced."""

    def __init__(self, cluster: Cluster, producer: Producer) -> None:
        self._cluster = cluster
        self._producer = producer
        #: When the record of each topic was printed first, and how often, by topic.
        self.printed_s: dict[str, float] = {}
        self.printed: Counter[str] = Counter()
        self.produced_s: dict[str, float] = {}
        self.existing: set[str] = set()
        self.deleted: set[str] = set()

    async def read(self, output: asyncio.StreamReader) -> None:
        """Note the records that one member prints."""
        while line := await output.readline():
            topic = json.loads(line)["topic"]
            self.printed_s.setdefault(topic, time.monotonic())
            self.printed[topic] += 1

    async def play(self, number: int) -> None:
        """Create a topic that matches, perhaps another one, and delete it once its record was printed."""
        topic = f"page-{number}"
        await self._create(topic)
        if number % OTHER_OF == 0:
            await self._create(f"other-{topic}")
        await self._printed(topic)
        if number % DELETED_OF == 0:
            await self._cluster.delete_topic(topic)
            self.existing.discard(topic)
            self.deleted.add(topic)

    async def _create(self, topic: str) -> None:
        await self._cluster.create_topic(topic, 1)
        self.existing.add(topic)
        await self._producer.produce(topic, b"1")
        self.produced_s[topic] = time.monotonic()

    async def _printed(self, topic: str) -> None:
        end_s = time.monotonic() + LIMIT_S
        while topic not in self.printed_s:
            if time.monotonic() > end_s:
                raise click.ClickException(f"the record of {topic} was not printed within {LIMIT_S:g} s")
            await asyncio.sleep(0.02)


def owners(client: KazooClient, topics: set[str]) -> dict[str, int]:
    """Return the number of owner znodes of each topic."""
    layout, found = GroupLayout(GROUP), dict[str, int]()
    for topic in topics:
        with contextlib.suppress(NoNodeError):
            found[topic] = len(client.get_children(layout.topic_owners(topic)))
    return found


def registrations(client: KazooClient) -> dict[str, int]:
    """Return the czxid of each member znode."""
    layout = GroupLayout(GROUP)
    return {name: client.get(layout.member(name))[1].czxid for name in client.get_children(layout.members)}


async def judge_owners(client: KazooClient, judge: Judge) -> float:
    """Wait until exactly the existing matching topics have an owner. Return how long that took, in seconds."""
    wanted = {topic for topic in judge.existing if topic.startswith("page-")}
    started_s = time.monotonic()
    while True:
        found = {topic for topic, count in owners(client, judge.existing | judge.deleted).items() if count}
        if found == wanted:
            return time.monotonic() - started_s
        if time.monotonic() > started_s + LIMIT_S:
            without, with_one = sorted(wanted - found)[:5], sorted(found - wanted)[:5]
            raise click.ClickException(f"without an owner: {without}; with one that is not wanted: {with_one}")
        await asyncio.sleep(0.1)


async def run(topics: int, kafka: str, coordination: str) -> dict[str, Any]:
    async with Cluster(kafka=kafka) as cluster, Producer(cluster.brokers) as producer:
        judge = Judge(cluster, producer)
        words = ["-c", MEMBER, cluster.brokers[0], GROUP, PATTERN]
        if coordination == "zookeeper":
            where = ["--brokers", cluster.brokers[0], "--zookeeper", cluster.zk_hosts]
            words = ["-m", "kiel_groups", "consume", "--pattern", PATTERN, "--group", GROUP, "--json", "-q", *where]
        processes = [
            await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE)
            for _ in range(MEMBERS)
        ]
        reading = [asyncio.ensure_future(judge.read(process.stdout)) for process in processes if process.stdout]
        client = KazooClient(cluster.zk_hosts) if coordination == "zookeeper" else None
        try:
            if client is not None:
                client.start()
            await judge.play(0)
            before = {} if client is None else registrations(client)
            lanes = asyncio.Semaphore(LANES)

            async def play(number: int) -> None:
                async with lanes:
                    await judge.play(number)

            started_s = time.monotonic()
            await asyncio.gather(*(play(number) for number in range(1, topics)))
            took_s = time.monotonic() - started_s
            result: dict[str, Any] = {"kafka": kafka, "coordination": coordination, "members": MEMBERS}
            if client is not None:
                result["owners_exact_after_s"] = round(await judge_owners(client, judge), 2)
                if len(before) < MEMBERS or registrations(client) != before:
                    raise click.ClickException(f"members have registered again: {before}, {registrations(client)}")
                data, _ = client.get(GroupLayout(GROUP).group_state)
                result["generations"] = GroupState.parse(data, "").generation
        finally:
            for process in processes:
                process.terminate()
            await asyncio.gather(*(process.wait() for process in processes), *reading)
            if client is not None:
                client.stop()
                client.close()
    others = sorted(topic for topic in judge.printed if not topic.startswith("page-"))
    if others:
        raise click.ClickException(f"records of topics that do not match were printed: {others[:5]}")
    waits_s = sorted(judge.printed_s[topic] - judge.produced_s[topic] for topic in judge.printed_s)
    return result | {
        "topics": topics,
        "deleted": len(judge.deleted),
        "took_s": round(took_s, 1),
        "first_record_s_median": round(median(waits_s), 2),
        "first_record_s_max": round(waits_s[-1], 2),
        "printed_twice": sum(count - 1 for count in judge.printed.values()),
    }


@click.command(help=__doc__)
@click.option("--quick", is_flag=True, help="20 topics instead of 500.")
@click.option("--json", "file", type=click.File("w"), help="Write the figures to this file, too.")
@click.option("--kafka", default="0.8.2.2", show_default=True)
@click.option("--coordination", type=click.Choice(["zookeeper", "brokers"]), default="zookeeper", show_default=True)
def main(quick: bool, file: TextIO | None, kafka: str, coordination: str) -> None:
    figures = json.dumps(asyncio.run(run(20 if quick else 500, kafka, coordination)), indent=2)
    click.echo(figures)
    if file is not None:
        file.write(figures)


if __name__ == "__main__":
    main()
