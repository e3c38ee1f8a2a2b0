"""
Mirror records while workers and brokers of both clusters are killed, frozen and restarted, and check the copy.

    python -m tests.mirror_chaos --exactly-once --records 2000000 --faults 80 --seed 1 [--target 4.1.0] [--json FILE]

A source of Kafka 0.8.2.2 with two brokers, and a target with two brokers and a controller, whose topics have two
replicas. Three workers run a mirror with four tasks. Each fault comes with its share of the records: it begins while
these are mirrored, and sometimes overlaps the next one. Workers and brokers are frozen for longer than their session
timeouts of 4 s and 3 s. At the end all run, and each partition of the copy is read and compared: each record is there,
and the first copies are in the order of the source. Duplicates are counted; with ``--exactly-once``, each one is a
finding. A consumer that starts at a checkpoint has to find each record after it, if need be as a duplicate.

The source gets no records while one of its brokers is down, so it has each record once. A task that stays failed is
restarted, and counted with its error. The exit status is 0 without a finding, and 1 with one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, closing
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import click
from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as TargetPartition
from tornado.httpclient import AsyncHTTPClient

from kiel_groups import Producer
from kiel_groups.embedded import Cluster
from kiel_groups.embedded.processes import Server
from kiel_groups.mirror.target import TargetCluster
from kiel_groups.mirror.values import checkpoints_topic
from tests.helpers.commands import Running
from tests.helpers.worker_groups import WorkerPrograms

TOPIC, COPY, NAME, PARTITIONS, SETS = "events", "copy.events", "chaos", 8, 8
#: Session timeouts: of workers, and as the embedded brokers have it.
WORKER_S, BROKER_S = 4.0, 3.0
#: How long the mirror may take after the last fault, in seconds.
RECOVERY_S = 300.0
#: After so many looks, one each second, a failed task is restarted: what a frozen worker has reported is soon replaced.
_FAILED_LOOKS = 5
#: Of how many faults one overlaps the next one.
OVERLAPPING = 0.3


class Fault(NamedTuple):
    """A fault: its name, the number of its target, how long it lasts, and whether the next one overlaps it."""

    kind: str
    target: int
    lasts_s: float
    overlaps: bool


#: The faults, and their shortest and longest time in seconds.
KINDS = {
    "worker killed": (0.0, 2.0),
    "worker frozen": (WORKER_S + 1, WORKER_S + 6),
    "worker frozen for a moment": (0.5, 2.0),
    "source broker killed": (0.0, 4.0),
    "source broker frozen": (BROKER_S + 1, BROKER_S + 5),
    "target broker killed": (0.0, 4.0),
    "target broker frozen": (BROKER_S + 1, BROKER_S + 5),
    "target broker restarted": (0.0, 0.0),
}


def make_schedule(seed: int, count: int) -> list[Fault]:
    """Return the faults of a seed. Each kind occurs once before any occurs again."""
    random, faults, deck = Random(seed), list[Fault](), list[str]()
    for _ in range(count):
        if not deck:
            deck = random.sample(list(KINDS), len(KINDS))
        kind = deck.pop()
        lasts_s = round(random.uniform(*KINDS[kind]), 2)
        # The source must be whole before it gets the next records.
        overlaps = random.random() < OVERLAPPING and not kind.startswith("source")
        faults.append(Fault(kind, random.randrange(6), lasts_s, overlaps))
    return faults


class Copied(NamedTuple):
    """What is found in one partition of the copy: duplicates, and findings."""

    records: int
    duplicates: int
    findings: list[str]


def compare(partition: int, count: int, found: Sequence[tuple[int, int]], checkpoints: Sequence[Any]) -> Copied:
    """
    Compare a partition of the copy with its source, which has the numbers from 0 to ``count``.

    Args:
        partition: The number of the partition.
        count: The number of records on the source.
        found: The offset of each record of the target, and its number, which is its offset on the source.
        checkpoints: The checkpoints of the partition.
    """
    firsts: list[int] = []
    lasts: dict[int, int] = {}
    findings: list[str] = []
    duplicates = 0
    for offset, number in found:
        lasts[number] = offset
        if number == len(firsts):
            firsts.append(offset)
        elif number > len(firsts):
            findings.append(f"{partition}: at offset {offset}, {number} follows {len(firsts) - 1}: records are missing")
            firsts += [offset] * (number - len(firsts) + 1)
        else:
            duplicates += 1
    if len(firsts) != count:
        findings.append(f"{partition}: {count - len(firsts)} records are missing at the end")
    # For each number, the least of the last offsets from it on: a consumer that starts there misses none of them.
    least = list(accumulate((lasts.get(number, sys.maxsize) for number in reversed(range(count))), min))[::-1]
    for each in checkpoints:
        source, target = each["source"], each["target"]
        if any(offset < target for offset in least[source : source + 1]):
            findings.append(f"{partition}: the checkpoint {each} skips records")
        if any(offset >= target for offset in firsts[max(0, source - 1) : source]):
            findings.append(f"{partition}: the checkpoint {each} repeats records")
    return Copied(len(found), duplicates, findings)


class System:
    """Both clusters, and the workers."""

    def __init__(self, source: Cluster, target: Cluster, workers: WorkerPrograms) -> None:
        self.source, self.target, self.workers = source, target, workers
        self.failures: Counter[str] = Counter()
        self._frozen: set[Running] = set()
        #: Faults of workers, of which two may overlap, and of each cluster.
        self._turns = {
            "work": asyncio.Semaphore(2),
            "source brok": asyncio.Semaphore(),
            "target brok": asyncio.Semaphore(),
        }

    async def inflict(self, fault: Fault) -> None:
        """Inflict a fault, and return when its target runs again."""
        of, _, what = fault.kind.rpartition("er ")
        async with self._turns[of]:
            if of == "work":
                await self._inflict_worker(fault, what)
            else:
                brokers = (self.source if of.startswith("source") else self.target).kafka
                await self._inflict_broker(brokers[fault.target % len(brokers)], fault, what)

    async def _inflict_worker(self, fault: Fault, what: str) -> None:
        running = [each for each in self.workers.running if each not in self._frozen]
        worker = running[fault.target % len(running)]
        if what == "killed":
            self.workers.running.remove(worker)
            worker.process.kill()
            await asyncio.sleep(fault.lasts_s)
            await self.workers.add()
        else:
            self._frozen.add(worker)
            worker.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(fault.lasts_s)
            worker.process.send_signal(signal.SIGCONT)
            self._frozen.remove(worker)

    async def _inflict_broker(self, broker: Server, fault: Fault, what: str) -> None:
        if what == "restarted":
            await broker.restart()
        elif what == "killed":
            await broker.kill()
            await asyncio.sleep(fault.lasts_s)
            await broker.start()
        else:
            broker.pause()
            await asyncio.sleep(fault.lasts_s)
            broker.resume()

    async def request(self, method: str, path: str, body: object = None) -> Any:
        """Send a request to a worker that answers, and return the answer, or None if none does."""
        for worker in self.workers.running:
            if worker in self._frozen:
                continue
            url = f"{self.workers.url_of(worker)}/connectors{path}"
            data = None if body is None else json.dumps(body)
            headers = {"Content-Type": "application/json"}
            try:
                answer = await AsyncHTTPClient().fetch(
                    url, method=method, body=data, headers=headers, request_timeout=5, allow_nonstandard_methods=True
                )
                return json.loads(answer.body or b"null")
            except Exception as error:
                logging.getLogger(__name__).info("%s: %s", url, error)
        return None

    async def watch(self) -> None:
        """Restart what stays failed for some seconds, and count the errors."""
        looks: Counter[tuple[object, str]] = Counter()
        while True:
            await asyncio.sleep(1)
            if (status := await self.request("GET", f"/{NAME}/status")) is None:
                continue
            failed = {
                (each.get("id"), each.get("trace", "").strip().splitlines()[-1][:300])
                for each in (status["connector"], *status["tasks"])
                if each["state"] == "FAILED"
            }
            looks = Counter({each: looks[each] + 1 for each in failed})
            if lasting := [each for each in failed if looks[each] == _FAILED_LOOKS]:
                self.failures.update(text for _, text in lasting)
                await self.request("POST", f"/{NAME}/restart?includeTasks=true&onlyFailed=true")


async def fill(producer: Producer, first: int, last: int) -> None:
    """Write numbered records to each partition of the source."""
    for partition in range(PARTITIONS):
        numbers = range(first, last)
        values = [None if number % 50 == 49 else b"%d %d " % (partition, number) + b"x" * 80 for number in numbers]
        await producer.produce_many(TOPIC, values, [b"%d" % number for number in numbers], partition)


def read_copy(target: Cluster, count: int, *, is_patient: bool) -> dict[int, list[tuple[int, int]]]:
    """
    Return the offset and the number of each committed record of the copy, by partition.

    Raises:
        ValueError: A record is not one of the source's partition.
    """
    found: dict[int, list[tuple[int, int]]] = {number: [] for number in range(PARTITIONS)}
    last = dict.fromkeys(found, -1)
    ended: set[int] = set()
    config = {"bootstrap.servers": ",".join(target.brokers), "group.id": "reader", "enable.partition.eof": True}
    deadline_s = time.monotonic() + RECOVERY_S
    with closing(Consumer(config)) as consumer:
        consumer.assign([TargetPartition(COPY, number, 0) for number in found])
        while len(ended) < PARTITIONS and time.monotonic() < deadline_s:
            for message in consumer.consume(10_000, 0.5):
                number = message.partition() or 0
                if (error := message.error()) is not None:
                    if error.code() == KafkaError._PARTITION_EOF and (not is_patient or last[number] == count - 1):
                        ended.add(number)
                    continue
                key = int(message.key() or b"")
                expected = None if key % 50 == 49 else b"%d %d " % (number, key) + b"x" * 80
                if message.value() != expected:
                    raise ValueError(f"{number}: the record {key} has the value {message.value()!r}")
                found[number].append((message.offset() or 0, key))
                last[number] = max(last[number], key)
                ended.discard(number)
    return found


async def run(options: dict[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
    """Play the faults, and return the report."""
    faults, began_s = make_schedule(options["seed"], options["faults"]), time.monotonic()
    each = max(1, options["records"] // PARTITIONS // len(faults))
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(Cluster(2))
        target = await stack.enter_async_context(Cluster(2, zookeeper=None, kafka=options["target"]))
        await source.create_topic(TOPIC, PARTITIONS)
        workers = stack.enter_context(WorkerPrograms(source, "workers", int(WORKER_S * 1000)))
        await workers.add(3)
        system = System(source, target, workers)
        config = {
            "connector.class": "Mirror",
            "source.bootstrap.servers": ",".join(source.brokers),
            "source.zookeeper": source.zk_hosts,
            "target.bootstrap.servers": ",".join(target.brokers),
            "target.topic.format": "copy.${topic}",
            "target.replication.factor": "2",
            "topics": TOPIC,
            "tasks.max": "4",
            "batch.records": "2000",
            "exactly.once": str(options["exactly_once"]).lower(),
        }
        await system.request("POST", "", {"name": NAME, "config": config})
        watching = asyncio.create_task(system.watch())
        producer = await stack.enter_async_context(Producer(source.brokers, required_acks=-1))
        pending: set[asyncio.Task[None]] = set()
        for number, fault in enumerate(faults, start=1):
            is_source = fault.kind.startswith("source")
            if is_source and pending:
                await asyncio.wait(pending)
            filling = fill(producer, (number - 1) * each, number * each)
            if is_source:
                await filling
            inflicting = asyncio.create_task(system.inflict(fault))
            pending.add(inflicting)
            inflicting.add_done_callback(pending.discard)
            if not is_source:
                await filling
            say(f"{time.monotonic() - began_s:6.0f} s  {number} of {len(faults)}: {fault.kind} for {fault.lasts_s} s")
            if not fault.overlaps:
                await inflicting
        if pending:
            await asyncio.wait(pending)
        say("all servers run; waiting for the last records")
        count = len(faults) * each
        ended_s = time.monotonic()
        found = await asyncio.to_thread(read_copy, target, count, is_patient=True)
        recovery_s = time.monotonic() - ended_s
        watching.cancel()
        # Late duplicates of workers that were frozen have to be there, too.
        found = await asyncio.to_thread(read_copy, target, count, is_patient=False)
        cluster = TargetCluster({"bootstrap.servers": ",".join(target.brokers)})
        records = await asyncio.to_thread(cluster.read, checkpoints_topic(NAME), *range(SETS))
        checkpoints: dict[int, list[Any]] = {number: [] for number in range(PARTITIONS)}
        for key, value in records:
            if value:
                checkpoints[json.loads(key)[1]].append(json.loads(value))
        copies = [compare(number, count, found[number], checkpoints[number]) for number in range(PARTITIONS)]
    duplicates = sum(copy.duplicates for copy in copies)
    findings = [finding for copy in copies for finding in copy.findings]
    if duplicates and options["exactly_once"]:
        findings.append(f"{duplicates} duplicates")
    return {
        **options,
        "records": count * PARTITIONS,
        "copied": sum(copy.records for copy in copies),
        "duplicates": duplicates,
        "checkpoints": len(records),
        "kinds": dict(Counter(fault.kind for fault in faults)),
        "failed_tasks": dict(system.failures),
        "recovery_s": round(recovery_s, 1),
        "wall_s": round(time.monotonic() - began_s),
        "findings": findings,
    }


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--exactly-once", is_flag=True, help="Each record once; at least once by default.")
@click.option("--records", type=click.IntRange(1), default=200_000, show_default=True)
@click.option("--faults", type=click.IntRange(1), default=20, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--target", default="3.9.1", show_default=True, help="The release of the target.")
@click.option("--json", "output", type=click.Path(dir_okay=False, path_type=Path), help="Write the report there, too.")
def main(output: Path | None, **options: Any) -> None:
    report = asyncio.run(run(options, lambda text: click.echo(text, err=True)))
    text = json.dumps(report, indent=1)
    click.echo(text)
    if output:
        output.write_text(f"{text}\n", encoding="utf-8")
    sys.exit(1 if report["findings"] else 0)


if __name__ == "__main__":
    main()
