"""
Measure the cost of a rebalance for partitions that do not move, and the cost of commits and heartbeats.

    python -m benchmarks.handover [--quick] [--json FILE] [--only flow|commit|heartbeat]

The benchmark runs a real ZooKeeper and a real broker. The figures are medians of the rounds.

- ``flow``: two members, in separate processes, read a topic that is fed at a steady rate. In each round the second
  member joins and leaves cleanly. ``ratio`` is the delivery rate of the partitions that do not move while others move
  (from the new member's znode, or the request to leave, to the last change of an owner znode, by the times of
  ZooKeeper's transaction log), divided by their rate in the two quiet seconds before. ``pause`` is the longest time
  without any record of the partitions that do not move. ``duplicates`` and ``lost`` count records of all partitions in
  all rounds.
- ``commit``: one member owns a number of partitions, in topics of 100, and has read one new record of each. The figure
  is how long ``await consumer.commit()`` takes, for either store.
- ``heartbeat``: a number of sessions, a hundred in each process, send heartbeats at the default timeout of ten seconds.
  The figures are transactions a second in ZooKeeper's log, and the mean time from a heartbeat to its answer.
"""

from __future__ import annotations

import asyncio
import json
import platform
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks.contenders import Group, kafka_paths
from benchmarks.ownership import Ownership
from benchmarks.rebalance import create_topics
from benchmarks.transaction_log import TransactionLog
from kiel_groups import GroupedConsumer, Producer, TopicPartition
from kiel_groups.embedded import Cluster

PARTITIONS = 16
RECORDS_PER_S = 2_000
QUIET_MS = 2_000
#: Longer than any debounce.
REST_S = 1.0
POLL_S = 0.005
LIMIT_S = 60.0
SESSIONS_A_PROCESS = 100

#: Milliseconds since 1970, partition and offset.
Delivery = tuple[int, int, int]


class Reader:
    """A member in a separate process; see ``benchmarks.members.reader``."""

    def __init__(self, cluster: Cluster, group: str, topic: str) -> None:
        given = [cluster.zk_hosts, cluster.brokers[0], group, topic]
        command = [sys.executable, "-m", "benchmarks.members.reader", *given]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.seen: list[Delivery] = []

    def report(self) -> None:
        """Request and read the member's deliveries so far."""
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self._read()

    def ask_to_leave(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()

    def end(self) -> None:
        """Read the remaining deliveries, and wait until the member has left."""
        self._read()
        if self._process.wait(LIMIT_S):
            raise click.ClickException("a member failed; its traceback is above")

    def _read(self) -> None:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise click.ClickException("a member failed; its traceback is above")
        self.seen += [tuple(delivery) for delivery in json.loads(line)]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@dataclass(frozen=True, slots=True)
class Flow:
    """One join or leave, as measured on the partitions that did not move. Times are in milliseconds."""

    event: str
    ms: int
    ratio: float
    pause: int
    quiet_pause: int


class FlowGroup:
    """A steady feed, a member that stays, and a member that joins and leaves."""

    def __init__(self, cluster: Cluster, stack: ExitStack) -> None:
        self._cluster = cluster
        self._stack = stack
        asyncio.run(cluster.create_topic("fed", PARTITIONS))
        group = Group(cluster.zk_hosts, cluster.brokers[0], "flow", ("fed",), PARTITIONS)
        self._log = TransactionLog(cluster.zookeeper.folder / "data")
        self._seen = Ownership(kafka_paths(group), PARTITIONS)
        given = [cluster.brokers[0], "fed", str(PARTITIONS), str(RECORDS_PER_S)]
        feeder = subprocess.Popen([sys.executable, "-m", "benchmarks.members.feeder", *given])
        stack.callback(feeder.wait)
        stack.callback(feeder.kill)
        self._stays = self._reader()
        self.readers = [self._stays]
        self._settle(1)

    def _reader(self) -> Reader:
        reader = Reader(self._cluster, "flow", "fed")
        self._stack.callback(reader.kill)
        return reader

    def _settle(self, members: int) -> None:
        """Wait until this number of members has shared all partitions equally for a while."""
        deadline_s, since_s = time.monotonic() + LIMIT_S, None
        while since_s is None or time.monotonic() < since_s + REST_S:
            last_ms = self._seen.last_ms
            self._seen.take(self._log.read())
            if not self._seen.balanced(members):
                since_s = None
            elif since_s is None or last_ms != self._seen.last_ms:
                since_s = time.monotonic()
            if time.monotonic() > deadline_s:
                raise click.ClickException(f"the group of {members} did not settle within {LIMIT_S:g} s")
            time.sleep(POLL_S)

    def round(self) -> list[Flow]:
        known = set(self._seen.members)
        time.sleep(QUIET_MS / 1000)
        before = dict(self._seen.owners())
        joining = self._reader()
        self.readers.append(joining)
        self._settle(2)
        (new,) = self._seen.members - known
        flows = [self._flow("join", self._seen.joined_ms[new], before)]
        time.sleep(QUIET_MS / 1000)
        before, asked_ms = dict(self._seen.owners()), time.time_ns() // 1_000_000
        joining.ask_to_leave()
        self._settle(1)
        joining.end()
        return [*flows, self._flow("leave", asked_ms, before)]

    def _flow(self, event: str, began_ms: int, before: Mapping[str, int]) -> Flow:
        self._stays.report()
        ended_ms = self._seen.last_ms
        unmoved = {int(name.rpartition("/")[2]) for name, owner in self._seen.owners().items() if before[name] == owner}
        times = [at_ms for at_ms, partition, _ in self._stays.seen if partition in unmoved]
        during = [at_ms for at_ms in times if began_ms <= at_ms < ended_ms]
        quiet = [at_ms for at_ms in times if began_ms - QUIET_MS <= at_ms < began_ms]
        ratio = (len(during) / (ended_ms - began_ms)) / (len(quiet) / QUIET_MS)
        pause, quiet_pause = longest_pause([began_ms, *during, ended_ms]), longest_pause(quiet)
        return Flow(event, ended_ms - began_ms, round(ratio, 3), pause, quiet_pause)


def longest_pause(times: Sequence[int]) -> int:
    return max(later - earlier for earlier, later in pairwise(times))


def flow(rounds: int) -> list[dict[str, Any]]:
    with ExitStack() as stack:
        flow_group = FlowGroup(stack.enter_context(Cluster()), stack)
        found = [figures for _ in range(rounds) for figures in flow_group.round()]
        seen = [(partition, offset) for reader in flow_group.readers for _, partition, offset in reader.seen]
    totals = {"hand_overs": 2 * rounds, "duplicates": len(seen) - len(set(seen)), "lost": gaps(set(seen))}
    rows = []
    for event in ("join", "leave"):
        ones = [asdict(one) for one in found if one.event == event]
        medians = {name: median(one[name] for one in ones) for name in ("ms", "ratio", "pause", "quiet_pause")}
        rows.append({"what": f"flow, {event}", **medians, **totals, "rounds": ones})
    return rows


def gaps(seen: Iterable[tuple[int, int]]) -> int:
    """Count the offsets that are missing between the first and the last of each partition."""
    by_partition: dict[int, list[int]] = defaultdict(list)
    for partition, offset in seen:
        by_partition[partition].append(offset)
    return sum(max(offsets) - min(offsets) + 1 - len(offsets) for offsets in by_partition.values())


async def commits(cluster: Cluster, topics: Sequence[str], partitions: int, store: str, rounds: int) -> list[float]:
    """Measure commits of one new record in every partition, in milliseconds. An additional first commit warms up."""
    listed = [TopicPartition(topic, number) for topic in topics for number in range(partitions // len(topics))]
    found = []
    # Start at the ends of the logs, so that records that were read with the previous store are not read again.
    settings: dict[str, Any] = {
        "store": store,
        "autocommit": False,
        "max_wait_time": 100,
        "auto_offset_reset": "latest",
    }
    async with (
        Producer(cluster.brokers, batch_size=100, linger_ms=1) as producer,
        GroupedConsumer(cluster.brokers, f"commits-{store}-{partitions}", cluster.zk_hosts, **settings) as consumer,
    ):
        await consumer.subscribe(list(topics))
        while sum(map(len, consumer.allocation.values())) < partitions:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        records = aiter(consumer)
        for _ in range(rounds + 1):
            await asyncio.gather(*(producer.produce(each.topic, b"x", partition=each.partition) for each in listed))
            read = Counter([(await anext(records)).topic_partition for _ in listed])
            assert len(read) == partitions
            began_s = time.perf_counter()
            stored = await consumer.commit()
            found.append(1000 * (time.perf_counter() - began_s))
            assert len(stored) == partitions
    return found[1:]


def commit(sizes: Sequence[int], rounds: int) -> Iterator[dict[str, Any]]:
    for size in sizes:
        with Cluster() as cluster:
            topics = create_topics(cluster, size)
            for store in ("zookeeper", "broker-v0"):
                found = asyncio.run(commits(cluster, topics, size, store, rounds))
                yield {"what": f"commit, {store}", "partitions": size, "ms": round(median(found), 2)}


class SessionProcess:
    """Sessions in a separate process; see ``benchmarks.members.sessions``."""

    def __init__(self, zookeeper: str, name: str, sessions: int) -> None:
        command = [sys.executable, "-m", "benchmarks.members.sessions", zookeeper, name, str(sessions)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def answered(self) -> tuple[int, float]:
        """Read the next report: the number of answered heartbeats, and their total waiting time in seconds."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise click.ClickException("sessions failed; their traceback is above")
        count, total_s = json.loads(line)
        return count, total_s

    def ask(self) -> None:
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def heartbeat(sizes: Sequence[int], seconds: float) -> Iterator[dict[str, Any]]:
    for size in sizes:
        with ExitStack() as stack:
            cluster = stack.enter_context(Cluster(brokers=0))
            log = TransactionLog(cluster.zookeeper.folder / "data")
            processes = []
            for number in range(0, size, SESSIONS_A_PROCESS):
                # One after another: a hundred interpreters that start at once would disturb the measurement.
                process = SessionProcess(cluster.zk_hosts, f"member-{number}", min(size, SESSIONS_A_PROCESS))
                stack.callback(process.kill)
                process.answered()
                processes.append(process)
            for _ in log.read():
                pass
            before = answered_heartbeats(processes)
            time.sleep(seconds)
            after = answered_heartbeats(processes)
            writes = len({change.zxid for change in log.read()})
            mean_s = (after[1] - before[1]) / (after[0] - before[0])
            figures = {"writes_per_s": round(writes / seconds, 1), "answer_ms": round(1000 * mean_s, 1)}
            yield {"what": "heartbeat", "sessions": size, **figures}


def answered_heartbeats(processes: Sequence[SessionProcess]) -> tuple[int, float]:
    for process in processes:
        process.ask()
    answered = [process.answered() for process in processes]
    return sum(count for count, _ in answered), sum(total_s for _, total_s in answered)


def run(only: str | None, *, quick: bool) -> Iterator[dict[str, Any]]:
    if only in (None, "flow"):
        yield from flow(2 if quick else 7)
    if only in (None, "commit"):
        yield from commit((1, 100) if quick else (1, 100, 1_000), 5 if quick else 21)
    if only in (None, "heartbeat"):
        yield from heartbeat((10,) if quick else (10, 100, 1_000), 5.0 if quick else 20.0)


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--quick", is_flag=True, help="Few rounds, without 1,000 partitions and without 100 and more sessions.")
@click.option("--json", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the result there, too.")
@click.option("--only", type=click.Choice(["flow", "commit", "heartbeat"]), help="Measure only one of the three.")
def main(quick: bool, target: Path | None, only: str | None) -> None:
    rows = []
    for row in run(only, quick=quick):
        figures = ", ".join(f"{name} {figure}" for name, figure in row.items() if name not in ("what", "rounds"))
        click.echo(f"{row['what']:<18} {figures}")
        rows.append(row)
    if target:
        about = {"benchmark": "handover", "date": datetime.now(UTC).isoformat(timespec="seconds")}
        machine = {"python": platform.python_version(), "machine": platform.machine()}
        target.write_text(json.dumps({**about, **machine, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
