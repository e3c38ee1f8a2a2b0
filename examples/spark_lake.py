"""
Archive six topics hour by hour while everything crashes, and account for every record. ::

    python examples/spark_lake.py lake --records 5000000

The program runs ZooKeeper and two brokers of Kafka 0.8.2.2, produces the records of six hours, and after each hour runs
``kiel-groups spark archive`` with two executors, into the folder ``lake``. In each hour something else breaks: an
executor, the program that drives Spark, Java, a broker, the disk. In the last hour, a message on the brokers' disks is
damaged, and a topic is deleted with records that were not archived, created again, and grows past the stored offsets.
Then ``kiel-groups spark verify`` says what there is, what was lost, and why. Independently of that, the program
compares each record in the lake with what it has produced, and what is not there with what it has destroyed. It exits
with 1 if there is a difference. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow.dataset
from kiel_groups import Producer
from kiel_groups.embedded import Cluster
from kiel_groups.errors import UnknownTopicError
from kiel_groups.spark import Verification, verify_archive

#: The share of the records and the number of partitions of each topic. ``devices`` gets few records in all, and
#: ``clicks`` the remainder.
TOPICS = {
    "clicks": (0.0, 8),
    "views": (0.25, 16),
    "orders": (0.1, 4),
    "users": (0.1, 3),
    "errors": (0.05, 1),
    "devices": (0.0001, 200),
}
#: The topic with a damaged message, and the topic that is created again.
DAMAGED, RECREATED = "orders", "users"
HOURS = 6
BEGAN_MS = 1_795_867_200_000  # 2026-11-28 12:00 UTC
HOUR_MS = 3_600_000


class Log(NamedTuple):
    """One partition of a topic; ``generation`` counts how often the topic was created again."""

    topic: str
    generation: int
    partition: int


def value_of(log: Log, offset: int, hour: int) -> bytes:
    """Return the value of a record, which says where the record belongs."""
    place = {"at": BEGAN_MS + hour * HOUR_MS + offset % HOUR_MS, "log": list(log), "offset": offset}
    return json.dumps({**place, "text": "x" * 24}).encode()


# ---------------------------------------------------------------------- the account


class Ledger:
    """What was produced, what was destroyed on purpose, and what the lake has."""

    def __init__(self) -> None:
        self.produced: dict[Log, int] = defaultdict(int)
        #: The offsets that were destroyed: those of damaged messages, and those deleted before they were archived.
        self.damaged: dict[Log, set[int]] = defaultdict(set)
        self.deleted: dict[Log, set[int]] = defaultdict(set)
        self._rows: dict[Log, bytearray] = {}
        self._wrong: list[str] = []

    def found(self, log: Log, offset: int, value: bytes | None) -> None:
        """Count a row of the lake, which must have the value that was produced there."""
        rows = self._rows.setdefault(log, bytearray(self.produced[log]))
        document = json.loads(value or b"{}")
        if offset >= len(rows) or document.get("log") != list(log) or document.get("offset") != offset:
            self._wrong.append(f"{log} has at offset {offset} a record that was not produced there")
        else:
            rows[offset] = min(rows[offset] + 1, 2)

    def differences(self, verified: dict[Log, Iterable[tuple[str, int, int]]]) -> Iterator[str]:
        """
        Yield what does not agree.

        Args:
            verified: What ``spark verify`` says of each log that is not just complete: the kind of difference, and the
                range of offsets, without its end. A range without offsets means: from there on.
        """
        yield from self._wrong
        for log, count in sorted(self.produced.items()):
            rows = self._rows.get(log, bytearray(count))
            kinds: dict[str, set[int]] = defaultdict(set)
            for kind, start, end in verified.get(log, ()):
                kinds[kind].update(range(start, end if end > start else count))
            kinds.pop("out of order", None)
            pairs = (
                ("twice in the lake", {each for each in range(count) if rows[each] > 1}, set()),
                ("not in the lake", {each for each in range(count) if not rows[each]}, self._destroyed(log)),
                ("quarantined, says verify", kinds.pop("quarantined", set()), self.damaged[log]),
                ("lost, says verify", kinds.pop("lost", set()), self.deleted[log]),
                *((f"{kind}, says verify", offsets, set()) for kind, offsets in kinds.items()),
            )
            for what, have, expected in pairs:
                if have != expected:
                    first = min(have ^ expected)
                    yield f"{log}: {len(have):,} offsets are {what}, {len(expected):,} expected; see offset {first}"
        told = {log for log, ranges in verified.items() if ranges}
        yield from (f"{log} was never produced" for log in sorted(told - set(self.produced)))

    def _destroyed(self, log: Log) -> set[int]:
        return self.damaged[log] | self.deleted[log]


def generations(incarnations: dict[str, set[int]]) -> dict[tuple[str, int], int]:
    """Number the incarnations of each topic, which are numbers of transactions of ZooKeeper, so in order of time."""
    return {(topic, each): number for topic, found in incarnations.items() for number, each in enumerate(sorted(found))}


def compare(ledger: Ledger, lake: Path, verified: Verification) -> list[str]:
    """Return what does not agree among the ledger, the files of the lake and the result of ``spark verify``."""
    incarnations: dict[str, set[int]] = defaultdict(set)
    for each in verified.logs:
        incarnations[each.topic_partition.topic].add(each.incarnation or 0)
    numbers = generations(incarnations)
    columns = ["topic", "incarnation", "partition", "offset", "value"]
    for batch in pyarrow.dataset.dataset(lake, partitioning="hive").to_batches(columns=columns):
        for topic, incarnation, *rest in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
            partition, offset, value = rest
            ledger.found(Log(topic, numbers.get((topic, incarnation), -1), partition), offset, value)
    told = {}
    for each in verified.logs:
        topic, partition = each.topic_partition
        log = Log(topic, numbers[topic, each.incarnation or 0], partition)
        told[log] = [(difference.kind, difference.start, difference.end) for difference in each.differences]
    return list(ledger.differences(told))


# ---------------------------------------------------------------------- what breaks


def descendants(pid: int, command: str) -> list[int]:
    """Return the processes below a process whose command line contains ``command``."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], check=True, capture_output=True, text=True).stdout
    parents, named = {}, []
    for line in listed.splitlines():
        number, parent, words = line.split(maxsplit=2)
        parents[int(number)] = int(parent)
        if command in words:
            named.append(int(number))

    def is_below(each: int) -> bool:
        return each in parents and (parents[each] == pid or is_below(parents[each]))

    return [each for each in named if is_below(each)]


def kill_executor(driver: int, cluster: Cluster) -> None:
    os.kill(descendants(driver, "CoarseGrainedExecutorBackend")[0], signal.SIGKILL)


def kill_driver(driver: int, cluster: Cluster) -> None:
    os.kill(driver, signal.SIGKILL)


def kill_java(driver: int, cluster: Cluster) -> None:
    os.kill(descendants(driver, "org.apache.spark.deploy.SparkSubmit")[0], signal.SIGKILL)


def freeze_broker(driver: int, cluster: Cluster) -> None:
    """Freeze a broker for longer than its session, so that the other one becomes the leader of its partitions."""
    cluster.kafka[1].pause()
    time.sleep(15)
    cluster.kafka[1].resume()


def fill_disk(driver: int, cluster: Cluster) -> None:
    """Let no file of the executors grow beyond 4 KiB, which is to them as a full disk."""
    for executor in descendants(driver, "CoarseGrainedExecutorBackend"):
        resource.prlimit(executor, resource.RLIMIT_FSIZE, (4096, 4096))


Fault = Callable[[int, Cluster], None]
FAULTS: list[tuple[str, Fault]] = [
    ("an executor is killed", kill_executor),
    ("the driver is killed", kill_driver),
    ("Java is killed", kill_java),
    ("a broker is frozen", freeze_broker),
    ("the disk is full", fill_disk),
    ("the driver is killed", kill_driver),
]


def damage(ledger: Ledger, cluster: Cluster, log: Log, offset: int) -> None:
    """Overwrite the value of a message in the files of all brokers, so that its checksum is wrong."""
    ledger.damaged[log].add(offset)
    value = value_of(log, offset, HOURS - 1)
    for broker in cluster.kafka:
        for file in sorted((broker.folder / "data" / f"{log.topic}-{log.partition}").glob("*.log")):
            if (position := file.read_bytes().find(value)) >= 0:
                with file.open("r+b") as opened:
                    opened.seek(position)
                    opened.write(value.upper())


# ---------------------------------------------------------------------- the hours


def shares(records: int, hour: int, generation: int) -> Iterator[tuple[Log, int]]:
    """Yield how many records each partition gets in an hour, or those of the topic that was created again."""
    counts = {topic: int(records * share) for topic, (share, _) in TOPICS.items()}
    counts["clicks"] = records - sum(counts.values())
    for topic, (_, partitions) in TOPICS.items():
        count = counts[topic] * (hour + 1) // HOURS - counts[topic] * hour // HOURS
        if topic == RECREATED:
            # The new topic gets more at once than the earlier one in all hours before.
            first = counts[topic] // (HOURS * 3)
            count = counts[topic] - first * HOURS if generation else first
        elif generation:
            continue
        each, further = divmod(count, partitions)
        for partition in range(partitions):
            # Those partitions that get one more record differ from hour to hour.
            more = (partition - hour * further) % partitions < further
            if each + more:
                yield Log(topic, generation, partition), each + more


async def produce(ledger: Ledger, cluster: Cluster, hour: int, wanted: Iterable[tuple[Log, int]]) -> None:
    """Produce so many records to each partition, and check that they are stored at the offsets in their values."""
    async with Producer(cluster.brokers, batch_size=5_000, linger_ms=5, ack_timeout=10_000) as producer:
        for log, count in wanted:
            first = ledger.produced[log]
            await store_first(producer, log, value_of(log, first, hour))
            stored = None
            for offset in range(first + 1, first + count):
                stored = producer.produce(log.topic, value_of(log, offset, hour), partition=log.partition)
                await producer.drain()
            if stored is not None and (await stored).offset != first + count - 1:
                sys.exit(f"{log}: the last record is not at offset {first + count - 1}")
            ledger.produced[log] += count


async def store_first(producer: Producer, log: Log, value: bytes) -> None:
    """Produce one record. A broker knows a new topic only after a moment."""
    for _ in range(60):
        with suppress(UnknownTopicError):
            await producer.produce(log.topic, value, partition=log.partition)
            return
        await asyncio.sleep(1)
    sys.exit(f"no broker knows {log.topic}")


async def break_topics(ledger: Ledger, cluster: Cluster, unarchived: Iterable[tuple[Log, int]]) -> None:
    """Damage a message of the last hour, and delete a topic with the records of that hour, and create it again."""
    damage(ledger, cluster, (log := Log(DAMAGED, 0, 1)), ledger.produced[log] - 1)
    for log, count in unarchived:
        if log.topic == RECREATED:
            ledger.deleted[log].update(range(ledger.produced[log] - count, ledger.produced[log]))
    await cluster.delete_topic(RECREATED)
    await cluster.create_topic(RECREATED, TOPICS[RECREATED][1], replication=2)


def archive(cluster: Cluster, lake: Path, batch_records: int, fault: Fault | None) -> int:
    """Run the archive once, cause the fault after its first batch, and return its exit status."""
    command = [sys.executable, "-m", "kiel_groups", "spark", "archive", *TOPICS, "--output", str(lake)]
    command += ["--brokers", ",".join(cluster.brokers), "--zookeeper", cluster.zk_hosts, "--group", "lake"]
    command += ["--roll", "hour", "--time-field", "at:ms", "--batch-records", str(batch_records)]
    command += ["--allow-loss", "--bad-records", "quarantine", "--master", "local-cluster[2,1,1024]"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith(("error: ", "warning: ")):
                print(f"    {line.rstrip()}", flush=True)
            if fault is not None and line.startswith("info: ") and " records/s" in line:
                fault(process.pid, cluster)
                fault = None
    return process.returncode


def archive_hour(cluster: Cluster, lake: Path, batch_records: int, hour: int) -> None:
    """Run the archive until a run has ended well: a run that a fault has ended is simply run again."""
    what, fault = FAULTS[hour]
    began_s, runs, left = time.monotonic(), 0, 5
    # 3 is the status of a run that has recorded losses.
    while (status := archive(cluster, lake, batch_records, None if runs else fault)) not in (0, 3):
        runs += 1
        left -= 1
        if not left:
            sys.exit(f"the archive ended with {status} again and again")
        time.sleep(2)  # Java ends a moment after a driver that was killed.
    took_s = time.monotonic() - began_s
    print(f"hour {hour + 1}: {what}: complete after {runs + 1} runs, {took_s:.0f} s, status {status}", flush=True)


def verify(cluster: Cluster, lake: Path) -> tuple[int, Verification]:
    """Show what ``spark verify`` says; return its exit status, and the same result as the library returns it."""
    brokers, zookeeper = ",".join(cluster.brokers), cluster.zk_hosts
    command = [sys.executable, "-m", "kiel_groups", "spark", "verify", "--output", str(lake)]
    print("kiel-groups spark verify:", flush=True)
    done = subprocess.run([*command, "--brokers", brokers, "--zookeeper", zookeeper], check=False)
    return done.returncode, verify_archive(str(lake), brokers=brokers, zookeeper=zookeeper)


async def play(lake: Path, records: int) -> int:
    """Play all hours, and return the exit status."""
    ledger, began_s = Ledger(), time.monotonic()
    async with Cluster(brokers=2) as cluster:
        for topic, (_, partitions) in TOPICS.items():
            await cluster.create_topic(topic, partitions, replication=2)
        for hour in range(HOURS):
            wanted = list(shares(records, hour, generation=0))
            await produce(ledger, cluster, hour, wanted)
            if hour == HOURS - 1:
                await break_topics(ledger, cluster, wanted)
                await produce(ledger, cluster, hour, shares(records, hour, generation=1))
            # Some batches an hour, so that a fault comes in the middle.
            await asyncio.to_thread(archive_hour, cluster, lake, max(1, records // HOURS // 4), hour)
        status, verified = await asyncio.to_thread(verify, cluster, lake)
    differences = compare(ledger, lake, verified)
    for each in differences:
        print(f"difference: {each}")
    produced, lost = sum(ledger.produced.values()), sum(map(len, ledger.deleted.values()))
    bad = sum(map(len, ledger.damaged.values()))
    print(
        f"produced {produced:,}: {produced - lost - bad:,} to archive, {bad} damaged, {lost:,} deleted before;"
        f" {len(differences)} differences, {time.monotonic() - began_s:.0f} s"
    )
    return 1 if status or differences else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Archive six topics while everything crashes.")
    parser.add_argument("folder", type=Path, help="the lake; it must not exist yet, or be empty")
    parser.add_argument("--records", type=int, default=5_000_000)
    given = parser.parse_args()
    sys.exit(asyncio.run(play(given.folder.resolve(), max(given.records, 10_000))))
