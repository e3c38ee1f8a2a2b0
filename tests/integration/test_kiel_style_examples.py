"""The programs of examples/kiel_style, written in kiel's style, and the same in ours."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Callable

import pytest

from kiel_groups.embedded import Cluster
from tests.helpers.cluster_data import owners, stored_offsets, zookeeper
from tests.helpers.commands import REPOSITORY, Running
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

PARTITIONS, MESSAGES = 6, 2_000
SESSION_S = 10

STYLES = pytest.mark.parametrize("folder", ["examples/kiel_style", "examples"])


def start(folder: str, program: str, *arguments: str) -> Running:
    return Running([str(REPOSITORY / folder / program), *arguments])


def make(cluster: Cluster, folder: str, topic: str, count: int) -> None:
    """Run the maker to its end."""
    kiels = ["--count", str(count), "--batch_size", "50", "--compression", "gzip"]
    with start(folder, "maker.py", cluster.brokers[0], topic, *(kiels if "kiel" in folder else [str(count)])) as maker:
        assert maker.wait(60) == 0, maker.errors
        assert maker.lines[-1].startswith(f"{count} messages")
        assert maker.errors == []


def counters(*workers: Running) -> Counter[int]:
    """What workers printed; one that was killed may have left half a line."""
    whole = (line for worker in workers for line in worker.lines if line.endswith("}"))
    return Counter(json.loads(line)["counter"] for line in whole)


@STYLES
async def test_workers_share_and_one_is_killed_and_one_is_stopped(
    cluster_39: Cluster, unique: Unique, folder: str
) -> None:
    """Nothing is lost, the others take over, and in the end what is committed is what there is."""
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, PARTITIONS)
    options = ["--group", group] if "kiel" in folder else [group]
    arguments = (cluster_39.brokers[0], cluster_39.zk_hosts, topic, *options)

    def shares() -> list[int]:
        held = [owner for owner, _ in owners(client, group, topic).values()]
        return sorted(held.count(owner) for owner in set(held))

    with (
        zookeeper(cluster_39) as client,
        start(folder, "worker.py", *arguments) as killed,
        start(folder, "worker.py", *arguments) as stopped,
        start(folder, "worker.py", *arguments) as stays,
    ):
        await eventually(lambda: shares() == [2, 2, 2], "three workers share the topic")
        make(cluster_39, folder, topic, MESSAGES)
        await eventually(lambda: counters(killed) and counters(stopped) and counters(stays), "each works")
        killed.end(signal.SIGKILL)
        started_s = time.monotonic()
        assert stopped.end(signal.SIGINT) == 0
        assert time.monotonic() - started_s < SESSION_S, "it did not wait for its session's end"
        assert stopped.errors == ([] if "kiel" in folder else ["left the group"])
        left = client.get_children(f"/kiel-groups/{group}/members")
        assert len(left) <= 2, "whoever stopped has left the group, although its loop did not run any more"
        make(cluster_39, folder, topic, MESSAGES)
        await eventually(lambda: shares() == [PARTITIONS], "one is left, and has everything", 60)

        def seldom() -> list[int]:
            """What has not come twice. A sum would not tell: what the killed one had not committed comes more often."""
            times = counters(killed, stopped, stays)
            return [counter for counter in range(MESSAGES) if times[counter] < 2]

        await eventually(lambda: not seldom(), "every message comes, as often as it was made", 60)
        assert set(counters(killed, stopped, stays)) == set(range(MESSAGES))
        await eventually(
            lambda: sum(stored_offsets(client, group, topic).values()) == 2 * MESSAGES, "all of it is committed", 30
        )
        assert stays.end(signal.SIGINT) == 0
        assert client.get_children(f"/kiel-groups/{group}/members") == []
        assert sum(stored_offsets(client, group, topic).values()) == 2 * MESSAGES


@STYLES
async def test_a_counter_counts(cluster_39: Cluster, unique: Unique, folder: str) -> None:
    """All colours that the maker has sent; Ctrl-C ends it at once, and quietly."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 2)
    make(cluster_39, folder, topic, 500)
    often = ["--interval", "0.1"] if "kiel" in folder else []

    def counted(line: str) -> int:
        return sum(int(part.partition(": ")[2]) for part in line.split(", "))

    with start(folder, "counter.py", cluster_39.brokers[0], topic, *often) as counter:
        await eventually(lambda: [line for line in counter.lines if line and counted(line) == 500], "all are counted")
        assert counter.end(signal.SIGINT) == 0
        assert counter.errors == ([] if "kiel" in folder else ["stopped"])


async def test_a_maker_that_is_stopped_sends_what_waits(cluster_39: Cluster, unique: Unique) -> None:
    """Ctrl-C between two batches: what was produced is stored, although the loop does not run any more."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    options = ("--batch_size", "1000000", "--pause", "0.01", "--interval", "0.1")
    with (
        start("examples/kiel_style", "maker.py", cluster_39.brokers[0], topic, *options) as maker,
        start("examples/kiel_style", "counter.py", cluster_39.brokers[0], topic, "--interval", "0.1") as counter,
    ):
        counter.wait_for_lines(1)
        await eventually(lambda: any(not line.startswith("0 ") for line in maker.lines), "it produces")
        assert maker.process.poll() is None
        assert maker.end(signal.SIGINT) == 0
        assert maker.errors == []
        sent = int(maker.lines[-1].split()[0])

        def counted() -> bool:
            parts = counter.lines[-1].split(", ") if counter.lines[-1] else []
            return sum(int(part.partition(": ")[2]) for part in parts) in (sent, sent + 1)

        await eventually(counted, f"{sent} messages are stored", 30)
