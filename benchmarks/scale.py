"""
Measure what a large group costs on a real ZooKeeper: time to settle, requests, bytes, heartbeats, memory.

    python -m benchmarks.scale [--size MEMBERSxPARTITIONS]... [--processes N] [--quick] [--json FILE]
                               [--timeout-ms N] [--quiet-ms N] [--earlier FILE]... [--plot FILE]

There are no brokers: topics of 100 partitions, their leaders and committed offsets are written to ZooKeeper as a
cluster leaves them, and members fetch nothing. Each member has a session of its own; some processes share the members,
and one more process is the candidate that leads. The allocator is ``sticky``. A group is settled when each member owns
exactly what is assigned to it, and all partitions have an owner. Then, for each size:

- ``start``: all members start at once; then the group rests, then one member joins, then it leaves.
- ``s``: until the group is settled again. A poll every 50 ms limits what can be told.
- ``requests`` and ``read MiB``: what the server received in that time, less the heartbeats that it receives at rest;
  ``written MiB`` includes the server's transaction log.
- ``at rest``: requests a second of the whole group, and cores that all of its processes, and the server, keep busy.
- ``largest``: the largest znode of the group, and its size in KiB; a server accepts 1,024.
- ``leader``: the memory of the process that leads, in MiB, and its CPU seconds during each event.
- ``sent``, with ``--json`` only: requests and KiB that members and leader have sent, by kind.

``--timeout-ms`` is the members' session timeout. ``--quiet-ms`` is their ``debounce_quiet_ms``, and ten times that
their ``debounce_bound_ms``: so long does the leader wait for members that start together.

``--plot`` draws seconds and requests of each event as an SVG. With ``--earlier``, rows that ``--json`` has written are
drawn and written again, and only the sizes that ``--size`` names are measured.

The machine's cores are shared by all members and the server, which on real machines they are not: see ``cpu_s``.
"""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import click
from kazoo.client import KazooClient

from benchmarks.cpu import cpu_time_s
from benchmarks.rebalance import Size
from kiel_groups.embedded import ZooKeeperServer
from kiel_groups.group.znodes.layout import BROKER_IDS, GroupLayout, partition_state_path, topic_path
from kiel_groups.model import TopicPartition

SIZES = ((100, 10_000), (300, 10_000), (1_000, 10_000), (1_000, 100_000))
GROUP, PREFIX, PER_TOPIC = "scale", "topic-", 100
LEADER = b'{"controller_epoch":1,"leader":0,"version":1,"leader_epoch":0,"isr":[0]}'

#: How long a group may take to settle, in seconds.
PATIENCE_S = 900.0
#: The time in which each member audits at least once, in seconds. A group is observed at rest after its first audits,
#: which read what later ones check.
REST_S = 60.0


class Totals(NamedTuple):
    """What the server has received and written so far, and CPU seconds of all processes and of the leader."""

    at_s: float
    requests: int
    read: int
    written: int
    cpu_s: float
    leader_cpu_s: float
    server_cpu_s: float


class Settings(NamedTuple):
    """How many processes share the members, their session timeout, and how long the leader waits for a quiet time."""

    processes: int
    timeout_ms: int
    quiet_ms: int


class Process:
    """A process of ``benchmarks.members.many_members``."""

    def __init__(self, hosts: str, count: int, topics: int, settings: Settings) -> None:
        given = (hosts, GROUP, count, PREFIX, topics, settings.timeout_ms, settings.quiet_ms)
        words = [sys.executable, "-m", "benchmarks.members.many_members", *map(str, given)]
        self._running = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._running.pid

    def send(self, command: str) -> None:
        _pipe(self._running.stdin).write(f"{command}\n")
        _pipe(self._running.stdin).flush()

    def answer(self) -> tuple[int, int, float]:
        """Return settled members, owned partitions and MiB of memory, once the last command is carried out."""
        line = _pipe(self._running.stdout).readline()
        if not line:
            raise click.ClickException(f"process {self.pid} has ended; see its error above")
        settled, owned, memory = json.loads(line)
        return settled, owned, memory

    def requests(self) -> dict[str, tuple[int, int]]:
        """Return the requests and bytes of each kind that the process has sent since the last call."""
        self.send("requests")
        found: dict[str, tuple[int, int]] = json.loads(_pipe(self._running.stdout).readline())
        return found

    def close(self) -> None:
        self._running.kill()
        self._running.wait()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


class LargeGroup:
    """A running group: its processes, the first of which leads, and its server."""

    def __init__(self, server: ZooKeeperServer, members: int, partitions: int) -> None:
        self._server = server
        self._members, self._partitions = members, partitions
        self.processes: list[Process] = []

    def totals(self) -> Totals:
        counters = dict(line.split("\t")[:2] for line in _ask(self._server.port, b"mntr").splitlines() if "\t" in line)
        used = dict(line.split(": ") for line in Path(f"/proc/{self._server.pid}/io").read_text("ascii").splitlines())
        cpu_s = [cpu_time_s(pid) for pid in (*(each.pid for each in self.processes), self._server.pid)]
        return Totals(
            time.monotonic(),
            int(counters["zk_packets_received"]),
            int(used["rchar"]),
            int(used["wchar"]),
            sum(cpu_s),
            cpu_s[0],
            cpu_s[-1],
        )

    def sent(self) -> dict[str, Any]:
        """Return the requests and KiB of each kind that members and leader have sent since the last call."""
        counts, sizes = Counter[str](), Counter[str]()
        for each in self.processes:
            for kind, (count, size) in each.requests().items():
                counts[kind] += count
                sizes[kind] += size
        return {"sent": {kind: (count, round(sizes[kind] / 1024)) for kind, count in counts.most_common()}}

    def is_settled(self) -> bool:
        for each in self.processes[1:]:
            each.send("look")
        found = [each.answer() for each in self.processes[1:]]
        return (sum(one[0] for one in found), sum(one[1] for one in found)) == (self._members, self._partitions)

    def settle(self, began: Totals, rest_per_s: float) -> dict[str, float]:
        """Wait until the group is settled, and return what that took."""
        while not self.is_settled():
            if time.monotonic() - began.at_s > PATIENCE_S:
                raise click.ClickException(f"the group has not settled within {PATIENCE_S:g} s")
            time.sleep(0.05)
        ended = self.totals()
        took_s = ended.at_s - began.at_s
        return {
            "s": round(took_s, 2),
            "requests": round(ended.requests - began.requests - rest_per_s * took_s),
            "read_mib": round((ended.read - began.read) / 2**20, 2),
            "written_mib": round((ended.written - began.written) / 2**20, 2),
            "cpu_s": round(ended.cpu_s - began.cpu_s, 2),
            "leader_cpu_s": round(ended.leader_cpu_s - began.leader_cpu_s, 2),
            "server_cpu_s": round(ended.server_cpu_s - began.server_cpu_s, 2),
        }

    def change(self, command: str, rest_per_s: float) -> dict[str, float]:
        """Have the last process start or close a member."""
        began = self.totals()
        self.processes[-1].send(command)
        self._members += 1 if command == "join" else -1
        self.processes[-1].answer()
        return self.settle(began, rest_per_s)

    def rest(self) -> dict[str, float]:
        """Observe the group while nothing happens, after the first audit of each member."""
        time.sleep(REST_S)
        self.sent()
        began = self.totals()
        time.sleep(REST_S)
        ended = self.totals()
        self.processes[0].send("look")
        return {
            "requests_per_s": round((ended.requests - began.requests) / REST_S, 1),
            "cores": round((ended.cpu_s - began.cpu_s) / REST_S, 3),
            "server_cores": round((ended.server_cpu_s - began.server_cpu_s) / REST_S, 3),
            "leader_mib": round(self.processes[0].answer()[2], 1),
        }


def _ask(port: int, word: bytes) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(word)
        return b"".join(iter(lambda: connection.recv(65_536), b"")).decode()


def plant(client: KazooClient, partitions: int) -> int:
    """Write topics and committed offsets, and return the number of topics."""
    layout, topics = GroupLayout(GROUP), partitions // PER_TOPIC
    broker = {"version": 1, "host": "127.0.0.1", "port": 9092, "jmx_port": -1, "timestamp": "0"}
    client.create(f"{BROKER_IDS}/0", json.dumps(broker).encode(), ephemeral=True, makepath=True)
    for number in range(topics):
        topic = f"{PREFIX}{number}"
        replicas = {str(partition): [0] for partition in range(PER_TOPIC)}
        client.create(topic_path(topic), json.dumps({"version": 1, "partitions": replicas}).encode(), makepath=True)
        client.ensure_path(layout.topic_offsets(topic))
        client.create(f"{topic_path(topic)}/partitions")
        transaction = client.transaction()
        for partition in (TopicPartition(topic, number) for number in range(PER_TOPIC)):
            transaction.create(layout.offset(partition), b"0")
            state = partition_state_path(partition)
            transaction.create(state.removesuffix("/state"))
            transaction.create(state, LEADER)
        transaction.commit()
    return topics


def largest_znode(client: KazooClient, path: str) -> tuple[int, str]:
    """Return the size in bytes and the path of the largest znode below a path."""
    stat = client.exists(path)
    own = (stat.dataLength, path) if stat is not None else (0, path)
    return max([own, *(largest_znode(client, f"{path}/{child}") for child in client.get_children(path))])


@contextmanager
def large_group(members: int, partitions: int, settings: Settings) -> Iterator[tuple[LargeGroup, KazooClient, int]]:
    """Start a server with topics, and the process that leads; then ``started`` starts the members."""
    with ExitStack() as stack:
        server = stack.enter_context(ZooKeeperServer(overrides={"maxSessionTimeout": 60_000}))
        client = KazooClient(server.hosts, timeout=60)
        client.start()
        stack.callback(client.stop)
        topics = plant(client, partitions)
        group = LargeGroup(server, members, partitions)
        stack.callback(lambda: [each.close() for each in group.processes])
        group.processes.append(Process(server.hosts, 0, topics, settings))
        group.processes[0].answer()
        yield group, client, topics


def measure(members: int, partitions: int, settings: Settings, show: Callable[[dict[str, Any]], None]) -> None:
    """Measure a group of one size, and pass each row to ``show``."""
    size = {"members": members, "partitions": partitions}
    processes = settings.processes
    with large_group(members, partitions, settings) as (group, client, topics):
        began = group.totals()
        hosts = client.hosts[0]
        address = f"{hosts[0]}:{hosts[1]}"
        for number in range(processes):
            count = members // processes + (number < members % processes)
            group.processes.append(Process(address, count, topics, settings))
        began = began._replace(cpu_s=group.totals().cpu_s)
        for each in group.processes[1:]:
            each.answer()
        show(size | {"event": "start"} | group.settle(began, 0.0) | group.sent())
        rest = group.rest()
        bytes_largest, path = largest_znode(client, GroupLayout(GROUP).root)
        show(
            size
            | {"event": "at rest", "largest_kib": round(bytes_largest / 1024, 1), "largest": path}
            | rest
            | group.sent()
        )
        for command in ("join", "leave"):
            show(size | {"event": command} | group.change(command, rest["requests_per_s"]) | group.sent())


def line_of(row: dict[str, Any]) -> str:
    figures = ", ".join(
        f"{name} {value}" for name, value in row.items() if name not in ("members", "partitions", "event", "sent")
    )
    return f"{row['members']}×{row['partitions']} {row['event']}: {figures}"


#: The width and height of a panel of the plot, and the space around it, in pixels.
WIDTH, HEIGHT, MARGIN = 360, 240, 60
COLOURS = {"start": "#1f77b4", "join": "#d62728", "leave": "#2ca02c"}


def plot(rows: Sequence[dict[str, Any]]) -> str:
    """Return an SVG with a panel for seconds and one for requests, on logarithmic scales, by size and event."""
    sizes = sorted({(row["members"], row["partitions"]) for row in rows}, key=lambda size: (size[1], size[0]))
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg"'
        f' width="{2 * (WIDTH + MARGIN) + MARGIN}" height="{HEIGHT + 2 * MARGIN}"'
        ' font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for panel, (figure, title, low, high) in enumerate((("s", "seconds", -1, 3), ("requests", "requests", 2, 7))):
        left = MARGIN + panel * (WIDTH + MARGIN)
        parts.append(f'<text x="{left}" y="{MARGIN - 20}" font-size="13">{title}</text>')
        for power in range(low, high + 1):
            y = MARGIN + HEIGHT * (high - power) / (high - low)
            parts.append(f'<path d="M{left} {y:.0f}h{WIDTH}" stroke="#ddd"/>')
            parts.append(f'<text x="{left - 6}" y="{y + 4:.0f}" text-anchor="end">{10**power:,g}</text>')
        xs = {size: left + WIDTH * (number + 0.5) / len(sizes) for number, size in enumerate(sizes)}
        for (members, partitions), x in xs.items():
            text = f"{members:,}×{partitions:,}"
            parts.append(f'<text x="{x:.0f}" y="{MARGIN + HEIGHT + 18}" text-anchor="middle">{text}</text>')
        for number, (event, colour) in enumerate(COLOURS.items()):
            found = {(row["members"], row["partitions"]): row[figure] for row in rows if row["event"] == event}
            points = [
                (xs[size], MARGIN + HEIGHT * (high - math.log10(max(found[size], 10**low))) / (high - low))
                for size in sizes
                if size in found
            ]
            line = " ".join(f"{x:.0f},{y:.1f}" for x, y in points)
            parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}"/>')
            parts += [f'<circle cx="{x:.0f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
            x = left + WIDTH - 150 + 50 * number
            parts.append(f'<text x="{x}" y="{MARGIN - 20}" fill="{colour}">{event}</text>')
    return "\n".join([*parts, "</svg>", ""])


@click.command()
@click.option("--size", "sizes", type=Size(), multiple=True, help="MEMBERSxPARTITIONS, partitions in hundreds.")
@click.option("--processes", type=click.IntRange(min=1), default=4, show_default=True)
@click.option("--timeout-ms", type=click.IntRange(4_000, 60_000), default=30_000, show_default=True)
@click.option("--quiet-ms", type=click.IntRange(min=0), default=100, show_default=True, help="debounce_quiet_ms")
@click.option("--quick", is_flag=True, help="Ten members and 1,000 partitions only.")
@click.option("--json", "path", type=click.Path(dir_okay=False, writable=True, path_type=Path))
@click.option("--earlier", type=click.File(encoding="utf-8"), multiple=True, help="Rows that --json has written.")
@click.option("--plot", "drawing", type=click.Path(dir_okay=False, writable=True, path_type=Path))
def main(
    sizes: Sequence[tuple[int, int]],
    processes: int,
    timeout_ms: int,
    quiet_ms: int,
    quick: bool,
    path: Path | None,
    earlier: Sequence[IO[str]],
    drawing: Path | None,
) -> None:
    # The embedded server's heap is small; 200,000 znodes and 1,000 sessions need more.
    os.environ["_JAVA_OPTIONS"] = "-Xmx1g"
    rows: list[dict[str, Any]] = [row for each in earlier for row in json.load(each)]

    def show(row: dict[str, Any]) -> None:
        rows.append(row)
        click.echo(line_of(row))

    for members, partitions in sizes or (() if earlier else [(10, 1_000)] if quick else SIZES):
        measure(members, partitions, Settings(processes, timeout_ms, quiet_ms), show)
    if path is not None:
        path.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    if drawing is not None:
        drawing.write_text(plot(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
