"""The programs of examples/kiel_style, written in kiel's style, and their counterparts in examples."""

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
    """Run the producing program to its end."""
    kiels = ["--count", str(count), "--batch_size", "50", "--compression", "gzip"]
    with start(folder, "maker.py", cluster.brokers[0], topic, *(kiels if "kiel" in folder else [str(count)])) as maker:
        assert maker.wait(60) == 0, maker.errors
        assert maker.lines[-1].startswith(f"{count} messages")
        assert maker.errors == []


def counters(*workers: Running) -> Counter[int]:
    """Return how often workers printed each counter. Incomplete lines of a killed worker are left out."""
    whole = (line for worker in workers for line in worker.lines if line.endswith("}"))
    return Counter(json.loads(line)["counter"] for line in whole)


@pytest.mark.parametrize("folder", [pytest.param("examples/kiel_style", marks=pytest.mark.slow), "examples"])
async def test_workers_share_a_topic_and_take_over_from_others(
    cluster_39: Cluster, unique: Unique, folder: str
) -> None:
    """One worker is killed and one is stopped. No message is lost, and in the end all offsets are committed."""
    topic, group = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, PARTITIONS)
    options = ["--group", group] if "kiel" in folder else [group]
    arguments = (cluster_39.brokers[0], cluster_39.zk_hosts, topic, *options)

    def shares() -> list[int]:
        names = [owner for owner, _ in owners(client, group, topic).values()]
        return sorted(Counter(names).values())

    with (
        zookeeper(cluster_39) as client,
        start(folder, "worker.py", *arguments) as killed,
        start(folder, "worker.py", *arguments) as stopped,
        start(folder, "worker.py", *arguments) as stays,
    ):
        await eventually(lambda: shares() == [2, 2, 2], "three workers share the topic")
        make(cluster_39, folder, topic, MESSAGES)
        await eventually(lambda: counters(killed) and counters(stopped) and counters(stays), "each worker consumes")
        killed.end(signal.SIGKILL)
        started_s = time.monotonic()
        assert stopped.end(signal.SIGINT) == 0
        assert time.monotonic() - started_s < SESSION_S, "it did not wait for its session's end"
        assert stopped.errors == ([] if "kiel" in folder else ["left the group"])
        left = client.get_children(f"/kiel-groups/{group}/members")
        assert len(left) <= 2, "the stopped worker has left the group, although its loop had ended"
        make(cluster_39, folder, topic, MESSAGES)
        await eventually(lambda: shares() == [PARTITIONS], "the remaining worker owns all partitions", 60)

        def missing() -> list[int]:
            """
            Return the counters that were consumed less than twice. A sum would not show them, because the kill repeats
            others.
            """
            times = counters(killed, stopped, stays)
            return [counter for counter in range(MESSAGES) if times[counter] < 2]

        await eventually(lambda: not missing(), "every message is consumed as often as it was produced", 60)
        assert set(counters(killed, stopped, stays)) == set(range(MESSAGES))
        await eventually(
            lambda: sum(stored_offsets(client, group, topic).values()) == 2 * MESSAGES, "all of it is committed", 30
        )
        assert stays.end(signal.SIGINT) == 0
        assert client.get_children(f"/kiel-groups/{group}/members") == []
        assert sum(stored_offsets(client, group, topic).values()) == 2 * MESSAGES


@STYLES
async def test_the_counter_counts_all_messages(cluster_39: Cluster, unique: Unique, folder: str) -> None:
    """The counter counts all messages. Ctrl-C ends it without an error."""
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


async def test_a_stopped_maker_sends_buffered_records(cluster_39: Cluster, unique: Unique) -> None:
    """Ctrl-C between two batches ends the loop of a maker. The buffered records are still stored."""
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
