"""
Measure what an allocator costs when a group changes: CPU time, and partitions that move.

    python -m benchmarks.allocators [--size MEMBERSxPARTITIONS]... [--only NAME]... [--rounds N] [--patience SECONDS]
                                    [--without-peer] [--quick] [--json FILE]

No servers run. A group of members with one subscription has topics of 100 partitions. It is allocated for the first
time, then a member joins, and then another one leaves. Each time is that of ``run_allocator``, as the leader calls it,
so it includes the checks of the result, and not the reading and writing of znodes. Times are CPU seconds, medians of
the rounds. ``moves`` counts partitions that change from one live member to another; ``least`` is the least number with
which members can differ by one partition at most.

kafka-python's sticky assignor gets the same groups, in rounds that alternate with ours. It has an environment of its
own in the cache folder, created at the first run. Its ``s`` is the time of its ``assign`` with the assignments of the
former round as user data. Once it needs longer than ``--patience`` for a group, larger groups are left out.
"""

from __future__ import annotations

import json
import platform
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import IO, NamedTuple

import click

from benchmarks.peers import available_peer
from benchmarks.rebalance import Size
from kiel_groups.allocators import ALLOCATORS, GroupSpec, run_allocator
from kiel_groups.model import Allocation, TopicPartition

SIZES = ((10, 100), (100, 1_000), (1_000, 10_000), (1_000, 100_000))
PEER = "kafka-python sticky"

#: Answers each line, an object with the members, the number of topics, and what members own, with CPU seconds and what
#: each member gets, as lists of [topic, partition].
PEER_PROGRAM = """
import json, sys, time
from types import SimpleNamespace
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.coordinator.assignors.sticky.user_data import StickyAssignorUserData
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

for line in sys.stdin:
    group = json.loads(line)
    topics = ["topic-%d" % number for number in range(group["topics"])]
    cluster = SimpleNamespace(topics=lambda: set(topics), partitions_for_topic=lambda _: set(range(100)))
    members = []
    for name in group["members"]:
        owned = {}
        for topic, partition in group["owned"].get(name, ()):
            owned.setdefault(topic, []).append(partition)
        data = StickyAssignorUserData(list(owned.items()), 1).encode() if owned else b""
        members.append(SimpleNamespace(member_id=name, metadata=ConsumerProtocolSubscription(0, topics, data)))
    start = time.process_time()
    assigned = StickyPartitionAssignor().assign(cluster, members)
    took = time.process_time() - start
    answer = {name: [(t, p) for t, ps in one.assigned_partitions for p in ps] for name, one in assigned.items()}
    print(json.dumps([took, answer]), flush=True)
"""


class Step(NamedTuple):
    """One allocation: its CPU seconds, and the moves that it makes and that are necessary."""

    took_s: float
    moves: int
    least: int


class PeerAllocator:
    """A process that runs kafka-python's sticky assignor."""

    def __init__(self, python: Path) -> None:
        self._process = subprocess.Popen(
            [python, "-c", PEER_PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def allocate(self, members: Sequence[str], topics: int, owned: Allocation) -> tuple[float, Allocation]:
        given = {name: sorted(partitions) for name, partitions in owned.items()}
        _pipe(self._process.stdin).write(json.dumps({"members": members, "topics": topics, "owned": given}) + "\n")
        _pipe(self._process.stdin).flush()
        took_s, found = json.loads(_pipe(self._process.stdout).readline())
        return took_s, {name: frozenset(TopicPartition(*each) for each in some) for name, some in found.items()}


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def allocate(name: str, members: Sequence[str], topics: int, owned: Allocation) -> tuple[float, Allocation]:
    """Run one of our allocators. Return its CPU seconds and the allocation."""
    names = [f"topic-{number}" for number in range(topics)]
    partitions = [TopicPartition(topic, number) for topic in names for number in range(100)]
    weights = {each: 1.0 + each.partition % 7 for each in partitions} if name == "weighted" else {}
    group = GroupSpec.of(dict.fromkeys(members, names), partitions, owned, weights)
    start_s = time.process_time()
    outcome = run_allocator(ALLOCATORS[name], group)
    return time.process_time() - start_s, outcome.allocation


def play(name: str, peer: PeerAllocator | None, members: int, partitions: int) -> Iterator[tuple[str, Step]]:
    """Allocate a group, then with one more member, then with another one gone. Yield each event with its figures."""
    names, topics = [f"member-{number:04}" for number in range(members)], partitions // 100
    after = [*names, "member-new"]
    owned: Allocation = {}
    for event, present in (("first", names), ("join", after), ("leave", after[1:])):
        run = (name, present, topics, owned)
        took_s, found = allocate(*run) if peer is None else peer.allocate(*run[1:])
        before = {each: owner for owner, some in owned.items() for each in some}
        moved = sum(
            before.get(each, owner) != owner and before[each] in present
            for owner, some in found.items()
            for each in some
        )
        yield event, Step(took_s, moved, partitions // len(after) if event == "join" else 0)
        owned = found


def measured(
    names: Sequence[str], peer: PeerAllocator | None, sizes: Sequence[tuple[int, int]], rounds: int, patience_s: float
) -> Iterator[dict[str, object]]:
    """Yield a row for each size, allocator and event."""
    for members, partitions in sizes:
        contenders: list[tuple[str, PeerAllocator | None]] = [(name, None) for name in names]
        if peer is not None:
            contenders.append((PEER, peer))
        found: dict[tuple[str, str], list[Step]] = {}
        for number in range(rounds):
            for name, process in contenders:
                if number and process is not None and max(step.took_s for step in found[PEER, "join"]) > patience_s:
                    continue
                for event, step in play(name, process, members, partitions):
                    found.setdefault((name, event), []).append(step)
        for (name, event), steps in found.items():
            took_s = median(step.took_s for step in steps)
            figures = {"s": round(took_s, 4), "moves": steps[0].moves, "least": steps[0].least, "rounds": len(steps)}
            yield {"members": members, "partitions": partitions, "allocator": name, "event": event} | figures
            if name == PEER and took_s > patience_s:
                peer = None


@click.command()
@click.option("--size", "sizes", type=Size(), multiple=True, help="MEMBERSxPARTITIONS, partitions in hundreds.")
@click.option("--only", type=click.Choice(list(ALLOCATORS)), multiple=True, help="Measure these allocators of ours.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--patience", "patience_s", type=click.FloatRange(min=0), default=10.0, show_default=True)
@click.option("--without-peer", is_flag=True, help="Leave out kafka-python.")
@click.option("--quick", is_flag=True, help="One round of the two smallest sizes.")
@click.option("--json", "path", type=click.Path(dir_okay=False, writable=True, path_type=Path))
def main(
    sizes: tuple[tuple[int, int], ...],
    only: tuple[str, ...],
    rounds: int,
    patience_s: float,
    without_peer: bool,
    quick: bool,
    path: Path | None,
) -> None:
    if quick:
        sizes, rounds = sizes or SIZES[:2], 1
    python = None if without_peer else available_peer("kafka-python")
    rows: list[dict[str, object]] = []
    click.echo(f"{'size':>12}  {'allocator':<20} {'event':<6} {'s':>9} {'moves':>8} {'least':>8}")
    peer = None if python is None else PeerAllocator(python)
    try:
        for row in measured(only or list(ALLOCATORS), peer, sizes or SIZES, rounds, patience_s):
            rows.append(row)
            size = f"{row['members']}×{row['partitions']}"
            texts = f"{row['allocator']:<20} {row['event']:<6} {row['s']:>9.3f} {row['moves']:>8} {row['least']:>8}"
            click.echo(f"{size:>12}  {texts}")
    finally:
        if peer is not None:
            peer.close()
    if path is not None:
        path.write_text(json.dumps({"python": platform.python_version(), "rows": rows}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
