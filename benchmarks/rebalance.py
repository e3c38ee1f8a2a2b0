"""
How long a group is without owners when a member joins, leaves or dies, observed from outside.

    python -m benchmarks.rebalance [--quick] [--json FILE] [--only NAME] [--size MEMBERSxPARTITIONS]

A real ZooKeeper and a real broker, no records. In each round a member joins, leaves in order, joins again and is killed
with -9. What happened is read from ZooKeeper's own transaction log, with the server's time in milliseconds:

- ``s``: a join counts from the new member's id, a leave from the request to leave, a death from the end of its session
  (until then nobody else can know); each to the moment where every partition has an owner and all are equal to within
  one. The median of the rounds.
- ``unowned``: partition-seconds without an owner in that time.
- ``moved``: partitions with another owner than before, beyond those that had to move.
- ``writes``: transactions in ZooKeeper's log in that time, of whatever kind, heartbeats and sessions included.

1,000 partitions are those of ten topics. Each member is a process of its own. Only the resting members of the Java
consumer share one, which spares it their start. kazoo's SetPartitioner waits for its ``time_boundary`` (30 s unless
told) at every change; tuned, for 0.1 s.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import IO

import click

from benchmarks.ownership import Ownership, Paths
from benchmarks.transaction_log import TransactionLog
from kiel_groups.embedded import Cluster
from kiel_groups.embedded.classpaths import class_path
from kiel_groups.embedded.jars import java_class_path

MEMBERS = Path(__file__).parent / "members"
SESSION_TIMEOUT_MS = 4_000
POLL_S = 0.005
LIMIT_S = 180.0

#: Longer than any debounce: whatever still follows an event belongs to it, not to the next one.
REST_S = 2.0

TITLES = ("size", "group", "event", "s", "unowned", "moved", "writes")

FLOOR = {"debounce_quiet_ms": 0, "debounce_initial_delay_ms": 0}


@dataclass(frozen=True, slots=True)
class Group:
    """One group on its topic, as a contender's members are told of it."""

    zookeeper: str
    broker: str
    name: str
    topics: tuple[str, ...]
    partitions: int


@dataclass(frozen=True, slots=True)
class Contender:
    """
    One way of sharing partitions out.

    ``command`` starts a process with so many members; ``paths`` says where they stand. Where it ``balances_topics`` one
    by one, members differ by one in each of them. ``slow`` ones get one round.
    """

    name: str
    command: Callable[[Group, int], list[str]]
    paths: Callable[[Group], Paths]
    one_process: bool = False
    balances_topics: bool = False
    slow: bool = False


def kafka_paths(group: Group) -> Paths:
    folder = f"/consumers/{group.name}"
    return Paths(rf"{folder}/owners/(?P<partition>[^/]+/\d+)", rf"{folder}/ids/[^/]+")


def ours(name: str, settings: Mapping[str, object]) -> Contender:
    def command(group: Group, members: int) -> list[str]:
        where = [group.zookeeper, group.broker, group.name, ",".join(group.topics)]
        return _python("ours", *where, str(members), str(SESSION_TIMEOUT_MS), json.dumps(settings))

    return Contender(name, command, kafka_paths)


def set_partitioner(name: str, settings: Mapping[str, object], *, slow: bool) -> Contender:
    def command(group: Group, members: int) -> list[str]:
        assert members == 1
        told = [str(group.partitions), str(SESSION_TIMEOUT_MS), json.dumps(settings)]
        return _python("set_partitioner", group.zookeeper, group.name, *told)

    def paths(group: Group) -> Paths:
        lock = r"[0-9a-f]{32}__lock__(?P<place>\d+)"
        return Paths(rf"/{group.name}/locks/(?P<partition>\d+)/{lock}", rf"/{group.name}/party/[^/]+")

    return Contender(name, command, paths, slow=slow)


def java() -> Contender:
    def command(group: Group, members: int) -> list[str]:
        classes = java_class_path(class_path("kafka-0.8.2.2"))
        program = str(MEMBERS / "HighLevelConsumer.java")
        given = [group.zookeeper, group.name, ",".join(group.topics), str(members), str(SESSION_TIMEOUT_MS)]
        return ["java", "-Xmx256m", "-XX:+UseSerialGC", "-cp", classes, program, *given]

    return Contender("Java 0.8.2.2", command, kafka_paths, one_process=True, balances_topics=True)


def _python(module: str, *given: str) -> list[str]:
    return [sys.executable, "-m", f"benchmarks.members.{module}", *given]


CONTENDERS = (
    ours("ours, sticky, floor", {"partition_allocator": "sticky", **FLOOR}),
    ours("ours, round robin, defaults", {}),
    set_partitioner("SetPartitioner, tuned", {"time_boundary": 0.1, "max_reaction_time": 0.1}, slow=False),
    set_partitioner("SetPartitioner", {}, slow=True),
    java(),
)


@dataclass(frozen=True, slots=True)
class Figures:
    """What one event cost; ``moved`` counts partitions that moved without need."""

    s: float
    unowned: float
    moved: int
    writes: int


class Scene:
    """A group at work, and what is seen of it."""

    def __init__(self, contender: Contender, group: Group, log: TransactionLog) -> None:
        self._contender = contender
        self._group = group
        self._log = log
        spread = len(group.topics) if contender.balances_topics else 1
        self._seen = Ownership(contender.paths(group), group.partitions, spread)
        #: Each with what it prints.
        self._processes: dict[subprocess.Popen[str], IO[str]] = {}
        self._stack = ExitStack()

    def start(self, members: int = 1) -> subprocess.Popen[str]:
        command = self._contender.command(self._group, members)
        said = self._stack.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115 -- the stack closes it
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=said, text=True)
        self._processes[process] = said
        return process

    def gather(self, members: int) -> None:
        """The members that stay all the time."""
        if self._contender.one_process:
            self.start(members)
        else:
            for _ in range(members):
                self.start()
        self.settle(members)

    def settle(self, members: int) -> None:
        """Wait until so many members are equal, and have been for a while."""
        deadline_s = time.monotonic() + LIMIT_S
        balanced_s: float | None = None
        while balanced_s is None or time.monotonic() < balanced_s + REST_S:
            last_ms = self._seen.last_ms
            self._seen.take(self._log.read())
            if not self._seen.balanced(members):
                balanced_s = None
            elif balanced_s is None or self._seen.last_ms != last_ms:
                balanced_s = time.monotonic()
            self._check(deadline_s, members)
            time.sleep(POLL_S)

    def _check(self, deadline_s: float, members: int) -> None:
        failed = [process for process in self._processes if process.poll() not in (None, 0, -9)]
        if failed:
            said = self._processes[failed[0]]
            said.seek(0)
            raise click.ClickException(f"a member of {self._contender.name} failed: {said.read()[-2_000:]}")
        if time.monotonic() > deadline_s:
            seen = Counter(self._seen.owners().values())
            raise click.ClickException(
                f"{self._contender.name}: not settled within {LIMIT_S:g} s: {len(self._seen.members)} members for"
                f" {members}, with {sorted(seen.values())} of {self._group.partitions} partitions"
            )

    def measure(self, event: str, members: int, happen: Callable[[], object]) -> Figures:
        """Let something happen, and look until so many members are equal again."""
        self._seen.take(self._log.read())
        before, known = dict(self._seen.owners()), set(self._seen.members)
        self._seen.unowned_ms, zxid = 0, max(self._seen.writes)
        asked_ms = time.time_ns() // 1_000_000
        happen()
        self.settle(members)
        after = self._seen.owners()
        moved = sum(1 for partition, owner in before.items() if after[partition] != owner)
        if event == "join":
            (new,) = self._seen.members - known
            begun_ms = self._seen.joined_ms[new]
            needed = sum(1 for owner in after.values() if owner == new)
        else:
            (gone,) = known - self._seen.members
            begun_ms = self._seen.ended_ms[gone] if event == "kill" else asked_ms
            needed = sum(1 for owner in before.values() if owner == gone)
        writes = self._seen.between(zxid, self._seen.last_ms)
        return Figures((self._seen.last_ms - begun_ms) / 1000, self._seen.unowned_ms / 1000, moved - needed, writes)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._stack.close()


def leave(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.close()


def rounds_of(scene: Scene, members: int, rounds: int) -> dict[str, list[Figures]]:
    """Event → figures, one a round."""
    scene.gather(members - 1)
    found: dict[str, list[Figures]] = {"join": [], "leave": [], "kill": []}
    for _ in range(rounds):
        for event, end in (("leave", leave), ("kill", subprocess.Popen.kill)):
            started: list[subprocess.Popen[str]] = []
            found["join"].append(scene.measure("join", members, lambda: started.append(scene.start())))  # noqa: B023
            found[event].append(scene.measure(event, members - 1, lambda: end(started[0])))  # noqa: B023
    return found


@contextmanager
def scene_of(contender: Contender, group: Group, log: TransactionLog) -> Iterator[Scene]:
    scene = Scene(contender, group, log)
    try:
        yield scene
    finally:
        scene.close()


def run(contenders: Sequence[Contender], sizes: Sequence[tuple[int, int]], rounds: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for members, partitions in sizes:
        for number, contender in enumerate(contenders):
            click.echo(f"{members} members, {partitions} partitions: {contender.name}", err=True)
            # A cluster each: nothing that an earlier group left, or still does, is measured with a later one.
            with ExitStack() as stack:
                cluster = stack.enter_context(Cluster())
                topics = create_topics(cluster, partitions)
                group = Group(cluster.zk_hosts, cluster.brokers[0], f"group-{number}", topics, partitions)
                log = TransactionLog(cluster.zookeeper.folder / "data")
                scene = stack.enter_context(scene_of(contender, group, log))
                found = rounds_of(scene, members, 1 if contender.slow else rounds)
            for event, figures in found.items():
                rows.append(row_of(contender, members, partitions, event, figures))
                show(rows[-1])
    return rows


def create_topics(cluster: Cluster, partitions: int) -> tuple[str, ...]:
    """Topics of 100 partitions at most: a controller of 0.8 needs minutes for one with ten times as many."""
    from kiel_groups.coordination import admin

    topics = tuple(f"topic-{number}" for number in range(-(-partitions // 100)))
    for topic in topics:
        admin.create_topic(cluster.zk_hosts, topic, partitions // len(topics), timeout_s=120)
    return topics


def row_of(
    contender: Contender, members: int, partitions: int, event: str, figures: Sequence[Figures]
) -> dict[str, object]:
    medians = {name: round(median(getattr(one, name) for one in figures), 3) for name in Figures.__slots__}
    where = {"members": members, "partitions": partitions, "group": contender.name, "event": event}
    return {**where, **medians, "rounds": [asdict(one) for one in figures]}


def show(row: Mapping[str, object]) -> None:
    size = f"{row['members']}×{row['partitions']}"
    told = [row[title] for title in TITLES[1:]]
    click.echo("{:>9} {:<28} {:<6} {:>8.3f} {:>9.3f} {:>6g} {:>7g}".format(size, *told))


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--quick", is_flag=True, help="4 × 64 only, one round, without the slow one.")
@click.option("--json", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the result there, too.")
@click.option("--only", metavar="NAME", help="Groups with this in their names.")
@click.option("--size", metavar="MEMBERSxPARTITIONS", help="One size instead of 4x64 and 20x1000.")
@click.option("--without-slow", is_flag=True, help="Leave out those that wait for half a minute at every event.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
def main(quick: bool, target: Path | None, only: str | None, size: str | None, without_slow: bool, rounds: int) -> None:
    sizes = [(4, 64)] if quick else [(4, 64), (20, 1_000)]
    if size:
        members, _, partitions = size.partition("x")
        sizes = [(int(members), int(partitions))]
    wanted = [one for one in CONTENDERS if (only or "") in one.name and not ((quick or without_slow) and one.slow)]
    click.echo("{:>9} {:<28} {:<6} {:>8} {:>9} {:>6} {:>7}".format(*TITLES))
    rows = run(wanted, sizes, 1 if quick else rounds)
    if target:
        about = {"benchmark": "rebalance", "date": datetime.now(UTC).isoformat(timespec="seconds")}
        machine = {"python": platform.python_version(), "machine": platform.machine()}
        target.write_text(json.dumps({**about, **machine, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
