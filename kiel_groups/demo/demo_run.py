"""
Run the demo from the start of its cluster to its result. At the end, all processes and files of the demo are removed.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kiel_groups.clients.produce.partitioners import hash_partitioner
from kiel_groups.clients.producer import Producer
from kiel_groups.demo.records import (
    GROUP,
    TOPIC,
    Input,
    Places,
    Proof,
    Receipt,
    ReceiptFile,
    foreign_lines,
    lines_of,
    log_ends,
    prove,
    shipped,
)
from kiel_groups.embedded.cluster import Cluster
from kiel_groups.embedded.download_display import fetch_servers
from kiel_groups.embedded.jars import java_class_path
from kiel_groups.embedded.processes import ChildProcess, in_thread, log_tail, server_folder
from kiel_groups.embedded.releases import zookeeper_class_path
from kiel_groups.errors import ConfigError, KielGroupsError
from kiel_groups.group.znodes.contents import Snapshot
from kiel_groups.model import MemberId, TopicPartition
from kiel_groups.ops.views.group_view import GroupView, PartitionView
from kiel_groups.ops.views.znodes import view_group
from kiel_groups.ops.zookeeper_client import zookeeper as session
from kiel_groups.ops.zookeeper_reader import read_group
from kiel_groups.wording import counted, some

_COMMAND = "kiel-groups demo"
#: How often the state is printed where there is no terminal, in seconds.
_LINE_INTERVAL_S = 2.0


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """
    The group and the number of sent and received records at one moment.

    ``names`` are shown in place of member ids. ``rates`` has the records per second of each member that is a process of
    the demo.
    """

    view: GroupView
    names: Mapping[MemberId, str]
    rates: Mapping[MemberId, float]
    received: int = 0
    sent: int = 0


class Display:
    """
    Shows events and the state of the group: a live table below the events on a terminal, plain lines elsewhere.

    The display is a context manager, and removes the table at its end.

    Args:
        console: Shows the events and the table.
        picture: The SVG file that ``save_picture`` writes, or None for no picture. It shows the events, the members at
            two moments, and the result.
    """

    def __init__(self, console: Console, picture: Path | None = None) -> None:
        self._console = console
        self._picture_file = picture
        self._picture: Console | None = None
        if picture is not None:
            self._picture = Console(
                record=True, file=io.StringIO(), width=80, force_terminal=True, color_system="truecolor"
            )
            self._picture.print(f"$ {_COMMAND}", style="bold", highlight=False)
        self._shown: GroupProgress | None = None
        self._start_s = time.monotonic()
        self._next_line_s = 0.0
        self._live: Live | None = None

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.end_table()

    def event(self, text: str) -> None:
        """Print a line about a step of the demo, or about an event in the group, with the time since the start."""
        line = self._timed(text)
        self._console.print(line, soft_wrap=not self._console.is_terminal)
        if self._picture is not None:
            self._picture.print(line)

    def result(self, text: str, style: str = "") -> None:
        """Print lines of the result."""
        for console in filter(None, (self._console, self._picture)):
            console.print(text, style=style, highlight=False, markup=False)

    def update(self, progress: GroupProgress) -> None:
        """Show the present state of the group. Without a terminal, print at most one line every two seconds."""
        self._shown = progress
        if not self._console.is_terminal:
            if (now_s := time.monotonic()) >= self._next_line_s:
                self._next_line_s = now_s + _LINE_INTERVAL_S
                line = self._timed(f"  {status_line(progress)}, {progress.received:,} received")
                self._console.print(line, soft_wrap=True)
            return
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(Group(member_table(progress), _progress_line(progress)), refresh=True)

    def _timed(self, text: str) -> Text:
        return Text.assemble((f"{time.monotonic() - self._start_s:6.1f} s", "dim"), "  ", text)

    def picture_table(self) -> None:
        """Add the members, as they were last shown, to the picture."""
        if self._picture is not None and self._shown is not None:
            self._picture.print(member_table(self._shown))

    def save_picture(self) -> None:
        """Write the picture, if there is one, to its file."""
        if self._picture is None or self._picture_file is None:
            return
        document = self._picture.export_svg(title=_COMMAND)
        # rich names fonts on a server, which each reader's browser would ask for.
        document = re.sub(r"\s*@font-face \{.*?\}", "", document, flags=re.DOTALL)
        self._picture_file.write_text(document, encoding="utf-8")

    def end_table(self) -> None:
        """Remove the live table, so that other output can be printed. The next update shows the table again."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def _progress_line(progress: GroupProgress) -> Table:
    line = Table.grid(padding=(0, 1))
    line.add_row(
        ProgressBar(total=progress.sent, completed=min(progress.received, progress.sent), width=40),
        f"{progress.received:,} received, {progress.sent:,} sent",
    )
    return line


_OFFSET_COLUMNS = 4
_STYLE: Final[dict[str, Any]] = {"title_justify": "left", "title_style": "bold", "width": 78}


def member_table(progress: GroupProgress) -> Table:
    """Return a table of the members with their partitions, lag and records per second."""
    view, names, rates = progress.view, progress.names, progress.rates
    title = f"group {view.group} · generation {_generation(view)} · leader {_name(view.leader, names)}"
    table = Table(title=title, box=box.SIMPLE, show_footer=True, **_STYLE)
    table.add_column("member", "all", ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column("pid", justify="right")
    table.add_column("role")
    table.add_column("partitions", f"{view.owned} of {len(view.partitions)}", justify="right")
    table.add_column("lag", f"{view.lag:,}", justify="right")
    table.add_column("records/s", f"{sum(rates.values()):,.0f}", justify="right")
    for member in view.members:
        table.add_row(
            names.get(member.member_id, member.member_id),
            str(member.pid),
            "leader" if member.leads else "",
            member.share,
            "?" if member.lag is None else f"{member.lag:,}",
            f"{rates[member.member_id]:,.0f}" if member.member_id in rates else "",
        )
    return table


def offset_table(view: GroupView) -> Table:
    """Return a table of each partition's committed offset and lag."""
    table = Table(title="offsets in ZooKeeper (partition: next offset, lag)", box=box.SIMPLE, **_STYLE)
    for _ in range(_OFFSET_COLUMNS):
        table.add_column(ratio=1, no_wrap=True)
    table.show_header = False
    cells = [_offset_cell(partition) for partition in view.partitions]
    rows = -(-len(cells) // _OFFSET_COLUMNS)
    for row in range(rows):
        table.add_row(*cells[row::rows])
    return table


def status_line(progress: GroupProgress) -> str:
    """Return a one-line summary of the group, for a log or a narrow terminal."""
    view = progress.view
    leader = _name(view.leader, progress.names)
    return (
        f"generation {_generation(view)}, {counted(view.members, 'member', 'members')}, leader {leader}, "
        f"{view.owned} of {len(view.partitions)} partitions owned, lag {view.lag:,}, "
        f"{sum(progress.rates.values()):,.0f} records/s"
    )


def _generation(view: GroupView) -> str:
    if view.group_state is None:
        return "none yet"
    publishing = " (publishing)" if view.group_state.state == "publishing" else ""
    return f"{view.group_state.generation}{publishing}"


def _name(member_id: MemberId | None, names: Mapping[MemberId, str]) -> str:
    return "none" if member_id is None else names.get(member_id, member_id)


def _offset_cell(partition: PartitionView) -> str:
    committed = "-" if partition.committed is None else str(partition.committed)
    lag = "?" if partition.lag is None else str(partition.lag)
    return f"{partition.topic_partition.partition:>3}: {committed:>5}, {lag}"


#: A consumer's rate is its average over this time, in seconds.
_RATE_WINDOW_S = 2.0
_LEAVE_LIMIT_S = 20.0


class DemoError(KielGroupsError):
    """The demo could not be completed."""


@dataclass(slots=True)
class Worker:
    """A consumer process of the demo. ``leaving`` is why the process should end, or "" while it should run."""

    name: str
    process: ChildProcess
    log: Path
    receipts: ReceiptFile
    leaving: str = ""
    counts: deque[tuple[float, int]] = field(default_factory=deque)
    _shown: int = 0

    def rate(self) -> float:
        """Return how many records per second the worker has received over the last two seconds."""
        if len(self.counts) < 2:
            return 0.0
        (start_s, first), (end_s, last) = self.counts[0], self.counts[-1]
        return (last - first) / (end_s - start_s) if end_s > start_s else 0.0

    def new_foreign_receipts(self) -> list[Receipt]:
        """Return the receipts read since the last call whose records the demo did not send."""
        new, self._shown = self.receipts.receipts[self._shown :], len(self.receipts.receipts)
        return [receipt for receipt in new if receipt.number is None]

    def read_receipts(self) -> None:
        """
        Read the receipts that the process has written since the last call.

        Raises:
            DemoError: The process ended although it should run.
        """
        now_s = time.monotonic()
        self.counts.append((now_s, self.receipts.read_new()))
        while now_s - self.counts[0][0] > _RATE_WINDOW_S:
            self.counts.popleft()
        if self.process.status is not None and not self.leaving:
            raise DemoError(f"{self.name} ended with status {self.process.status}; its log ends:\n{log_tail(self.log)}")


class Fleet:
    """
    Starts, kills and stops the consumer processes, all with the same options.

    The receipts and the logs of the consumers are in ``folder``.
    """

    def __init__(self, folder: Path, options: Sequence[str]) -> None:
        self._folder = folder
        self._options = options
        self.workers: list[Worker] = []

    def start(self) -> Worker:
        """Start a further consumer process, and return it without waiting until it is a member."""
        name = f"consumer-{len(self.workers) + 1}"
        path, log = self._folder / f"{name}.receipts", self._folder / f"{name}.log"
        command = [sys.executable, "-m", "kiel_groups.demo.consumer", "--receipts", str(path)]
        process = ChildProcess([*command, *self._options], log=log, folder=self._folder)
        worker = Worker(name, process, log, ReceiptFile(path))
        self.workers.append(worker)
        return worker

    async def kill(self, worker: Worker) -> None:
        """Kill a consumer with SIGKILL, and return when its process has ended."""
        worker.leaving = "killed"
        await in_thread(worker.process.kill)

    async def stop(self, worker: Worker) -> None:
        """
        Stop a consumer with SIGTERM, so that it leaves the group cleanly. Wait until the consumer has ended, and read
        its receipts.

        Raises:
            DemoError: The consumer did not end within 20 s and was killed, or its exit status is not 0.
        """
        worker.leaving = "leaving"
        await in_thread(worker.process.terminate, _LEAVE_LIMIT_S)
        if worker.process.status != 0:
            raise DemoError(
                f"{worker.name} left with status {worker.process.status} instead of 0; its log ends:\n"
                f"{log_tail(worker.log)}"
            )
        worker.read_receipts()

    def kill_all(self) -> None:
        """Kill all consumers that still run."""
        for worker in self.workers:
            worker.leaving = worker.leaving or "ended with the demo"
            worker.process.kill()

    def read_receipts(self) -> int:
        """
        Read the new receipts of all consumers. Return the total number of receipts.

        Raises:
            DemoError: A consumer ended although it should run.
        """
        for worker in self.workers:
            worker.read_receipts()
        return sum(len(worker.receipts.receipts) for worker in self.workers)

    def by_pid(self, pid: int | None) -> Worker | None:
        """Return the consumer with this process id, or None."""
        return next((worker for worker in self.workers if worker.process.pid == pid), None)

    @property
    def live(self) -> list[Worker]:
        """The consumers that run and should not end yet."""
        return [worker for worker in self.workers if worker.process.status is None and not worker.leaving]


# The steps of the demo: a group forms, grows, loses its leader to kill -9, loses a member that leaves, and has no lag.
#
# Each step waits for a state of the group in ZooKeeper or for the consumers' receipts, never for a fixed time.


PARTITIONS = 32

#: A step starts when this share of all records has been received.
_ADD_AT, _KILL_AT, _STOP_AT = 0.20, 0.40, 0.65
_POLL_INTERVAL_S = 0.2
_WATCH_INTERVAL_S = 0.5
_STEP_LIMIT_S = 60.0


async def _send(cluster: Cluster, records: Input) -> Places:
    """Produce all records. Return the partition and offset of each record when the broker has acknowledged them all."""
    async with Producer(cluster.brokers, partitioner=hash_partitioner, batch_size=1_000, linger_ms=5) as producer:
        stored = await asyncio.gather(
            *(producer.produce(TOPIC, value, key=key) for value, key in zip(records.values, records.keys, strict=True))
        )
    return {number: (place.partition, place.offset) for number, place in enumerate(stored)}


class Walkthrough:
    """Runs the steps of the demo on a cluster that has the records. ``read`` reads the znodes of the group."""

    def __init__(self, fleet: Fleet, display: Display, sent: Places, read: Callable[[], Snapshot]) -> None:
        self._fleet = fleet
        self._display = display
        self._sent = sent
        self._read = read
        ends = log_ends(sent)
        self._log_ends = {TopicPartition(TOPIC, number): ends.get(number, 0) for number in range(PARTITIONS)}

    async def run(self) -> Proof:
        """
        Run all steps. Return the proof, made from the consumers' receipts and the committed offsets.

        Raises:
            DemoError: A consumer ended unexpectedly or not cleanly, the group had no leader, or the group did not reach
                an expected state within a minute.
        """
        await self.start_consumers(3)
        await self._until_received(_ADD_AT)
        self._display.picture_table()
        await self._join()
        await self._until_received(_KILL_AT)
        await self._kill_leader()
        self._display.picture_table()
        await self._until_received(_STOP_AT)
        await self._stop_one()
        await self._until(lambda progress: progress.view.lag == 0, "the group has no lag")
        self._display.event("all records are consumed and committed; stopping the other two")
        for worker in self._fleet.live:
            await self._fleet.stop(worker)
        view = await self.view()
        committed = {partition.topic_partition.partition: partition.committed for partition in view.partitions}
        receipts = (receipt for worker in self._fleet.workers for receipt in worker.receipts.receipts)
        return prove(self._sent, receipts, committed)

    async def start_consumers(self, members: int) -> None:
        """Start consumers, and wait until the group has exactly this number of members, which share all partitions."""
        self._display.event(f"starting {members} consumer processes")
        for _ in range(members):
            self._fleet.start()
        took_s = await self._until_balanced(members)
        self._display.event(f"{members} members share {PARTITIONS} partitions, {took_s:.1f} s after they were started")

    async def watch(self, stopped: asyncio.Event) -> None:
        """Until ``stopped`` is set, show each consumer that ends, and each record that the demo did not send."""
        for worker in self._fleet.workers:
            worker.new_foreign_receipts()
        while not stopped.is_set():
            for worker in (worker for worker in self._fleet.workers if not worker.leaving):
                try:
                    await in_thread(worker.read_receipts)
                except DemoError as error:
                    worker.leaving = "ended"
                    self._display.event(str(error))
                for line in foreign_lines(worker.new_foreign_receipts()):
                    self._display.event(f"{worker.name} received {line}")
            with suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_INTERVAL_S):
                    await stopped.wait()

    async def _join(self) -> None:
        worker = self._fleet.start()
        self._display.event(f"starting {worker.name}, a fourth member")
        took_s = await self._until_balanced(4)
        self._display.event(f"{worker.name} owns its share of partitions, {took_s:.1f} s after it was started")

    async def _kill_leader(self) -> None:
        leader = await self._leader()
        await self._fleet.kill(leader)
        self._display.event(f"kill -9 {leader.name}, the leader; its session lasts until it times out")
        took_s = await self._until_balanced(3)
        self._display.event(f"a new leader has reassigned its partitions, {took_s:.1f} s after the kill")

    async def _stop_one(self) -> None:
        worker = self._fleet.live[-1]
        self._display.event(f"stopping {worker.name} with SIGTERM; it leaves the group cleanly")
        began_s = time.monotonic()
        await self._fleet.stop(worker)
        await self._until_balanced(2)
        self._display.event(f"the other two members own its partitions, {time.monotonic() - began_s:.1f} s later")

    async def _leader(self) -> Worker:
        view = await self.view()
        for member in view.members:
            worker = self._fleet.by_pid(member.pid)
            if member.leads and worker is not None:
                return worker
        raise DemoError("the group has no leader; that is a bug, please report it with the line above")

    async def _until_received(self, share: float) -> None:
        wanted = int(share * len(self._sent))
        await self._until(lambda progress: progress.received >= wanted, f"{wanted:,} records are received")

    async def _until_balanced(self, members: int) -> float:
        """Wait until all partitions are owned as planned by this number of members. Return the seconds that passed."""
        began_s = time.monotonic()
        await self._until(lambda progress: _balanced(progress.view, members), f"{members} members share all partitions")
        return time.monotonic() - began_s

    async def _until(self, reached: Callable[[GroupProgress], bool], state: str) -> None:
        deadline_s = time.monotonic() + _STEP_LIMIT_S
        while not reached(progress := await self._update_display()):
            if time.monotonic() > deadline_s:
                last = status_line(progress)
                raise DemoError(f"gave up after {_STEP_LIMIT_S:g} s, waiting until {state}; last state: {last}")
            await asyncio.sleep(_POLL_INTERVAL_S)

    async def _update_display(self) -> GroupProgress:
        received = await in_thread(self._fleet.read_receipts)
        view = await self.view()
        names, rates = {}, {}
        for member in view.members:
            if (worker := self._fleet.by_pid(member.pid)) is not None:
                names[member.member_id] = f"{worker.name} ({worker.leaving})" if worker.leaving else worker.name
                rates[member.member_id] = worker.rate()
        progress = GroupProgress(view, names, rates, received, len(self._sent))
        self._display.update(progress)
        return progress

    async def view(self) -> GroupView:
        """Read the group from ZooKeeper, and return a view of it with the lags."""
        return view_group(GROUP, await in_thread(self._read), self._log_ends)


def _balanced(view: GroupView, members: int) -> bool:
    return (
        len(view.members) == members
        and all(member.is_settled for member in view.members)
        and sum(len(member.owned) for member in view.members) == len(view.partitions)
    )


#: Records per second of each consumer, for 100,000 records: people can watch every step, and the demo takes less than
#: two minutes.
_RATE = 900.0
_KAFKA = "0.8.2.2"
_TERMINATED = 143


def run_demo(
    console: Console,
    *,
    keep: bool,
    records: Path | None = None,
    picture: Path | None = None,
    zookeeper_port: int = 0,
    broker_port: int = 0,
) -> int:
    """
    Fetch the servers' jars if necessary, and run the demo.

    Args:
        console: Shows the events and the group.
        keep: Whether to start two consumers after the result, and keep them and the cluster running until Ctrl-C.
        records: A file whose lines are sent, or None for the records that come with the package.
        picture: The file to write a picture of the demo to, as SVG, or None.
        zookeeper_port: ZooKeeper's port on 127.0.0.1; 0 lets the system choose one.
        broker_port: The broker's port on 127.0.0.1; 0 lets the system choose one.

    Returns:
        0 if every record was delivered at least once and all offsets are committed, 143 after SIGTERM, or 1.

    Raises:
        ConfigError: The file of records or of the picture cannot be used.
        ServerError: The cluster could not be started.
        DemoError: The demo could not be completed.
        KeyboardInterrupt: Ctrl-C was pressed before the result. All processes and files of the demo are removed.
    """
    sent = shipped() if records is None else lines_of(records)
    if picture is not None and (picture.is_dir() or not os.access(picture.parent, os.W_OK)):
        raise ConfigError(f"--svg: {picture} cannot be written; expected a file in a folder that exists")
    zookeeper = fetch_servers(console, _KAFKA)
    ports = (zookeeper_port, broker_port)
    try:
        return asyncio.run(_run(console, zookeeper, sent, keep=keep, picture=picture, ports=ports))
    except asyncio.CancelledError:
        return _TERMINATED


async def _run(
    console: Console,
    zookeeper: str,
    records: Input | None = None,
    *,
    keep: bool,
    picture: Path | None = None,
    ports: tuple[int, int] = (0, 0),
) -> int:
    """
    Run the demo with these records, or with the shipped records for None. Return 0 if the proof succeeded, else 1.

    ``picture`` is the file of the picture. ``ports`` are ZooKeeper's port and the broker's port.
    """
    records = records or shipped()
    task = asyncio.current_task()
    assert task is not None
    # SIGTERM ends the demo as Ctrl-C does. After SIGKILL, the kernel kills the children (see ChildProcess).
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with Display(console, picture) as display:
        display.event(f"starting ZooKeeper {zookeeper} and Kafka {_KAFKA}")
        async with Cluster(zookeeper=zookeeper, kafka=_KAFKA, zookeeper_port=ports[0], broker_port=ports[1]) as cluster:
            display.event(f"running: ZooKeeper at {cluster.zk_hosts}, Kafka at {cluster.brokers[0]}")
            await cluster.create_topic(TOPIC, PARTITIONS)
            began_s = time.monotonic()
            sent = await _send(cluster, records)
            took_s = time.monotonic() - began_s
            display.event(f"sent {len(sent):,} records to {PARTITIONS} partitions of {TOPIC!r} in {took_s:.1f} s")
            with ExitStack() as stack:
                fleet = Fleet(server_folder("demo"), _consumer_options(cluster, records))
                stack.callback(fleet.kill_all)
                client = stack.enter_context(session(cluster.zk_hosts))
                walkthrough = Walkthrough(fleet, display, sent, partial(read_group, client, GROUP))
                proof = await walkthrough.run()
                display.end_table()
                console.print(offset_table(await walkthrough.view()))
                _print_result(display, proof)
                display.save_picture()
                if keep:
                    await _keep_running(console, display, walkthrough, cluster)
    return 0 if proof.holds else 1


def _consumer_options(cluster: Cluster, records: Input) -> list[str]:
    rate = _RATE * max(1.0, len(records.values) / 100_000)
    options = ["--brokers", ",".join(cluster.brokers), "--zookeeper", cluster.zk_hosts, "--rate", str(rate)]
    return [*options, "--number-in-key"] if records.number_in_key else options


def _print_result(display: Display, proof: Proof) -> None:
    lines = [
        f"sent                      {proof.sent:>9,}",
        f"received at least once    {proof.sent - len(proof.missing):>9,}",
        f"received more than once   {proof.repeated:>9,}   (at most {proof.most_often} times)",
    ]
    if proof.missing:
        lines.append(f"never received: {some(proof.missing)}")
    if proof.misplaced:
        lines.append(f"received with another partition or offset than sent: {some(proof.misplaced)}")
    for partition, (committed, end) in sorted(proof.uncommitted.items()):
        lines.append(f"partition {partition}: committed offset {committed}, but the log ends at {end}")
    display.result("\n".join(lines))
    if proof.holds:
        display.result("proved: no record was lost", "bold green")
    else:
        display.result("NOT proved: see above", "bold red")


async def _keep_running(console: Console, display: Display, walkthrough: Walkthrough, cluster: Cluster) -> None:
    """Start two consumers, print commands to inspect the group, and show events until Ctrl-C."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stopped.set)
    await walkthrough.start_consumers(2)
    display.end_table()
    _print_commands(console, cluster)
    await walkthrough.watch(stopped)


def _zk_cli(cluster: Cluster) -> Path:
    """
    Write a script that starts zkCli on the demo's ZooKeeper, and return its path.

    A script keeps the printed command short: the class path alone would fill several lines.
    """
    classes = java_class_path(zookeeper_class_path(cluster.zookeeper.version))
    script = server_folder("zkcli") / "zkCli"
    main = f"org.apache.zookeeper.ZooKeeperMain -server {cluster.zk_hosts}"
    script.write_text(f"#!/bin/sh\nexec java -cp '{classes}' {main} \"$@\"\n", encoding="utf-8")
    script.chmod(0o755)
    return script


def _print_commands(console: Console, cluster: Cluster) -> None:
    command = ".venv/bin/kiel-groups" if Path(".venv").resolve() == Path(sys.prefix) else "kiel-groups"
    console.print(
        f"""
The cluster keeps running, with two consumers; press Ctrl-C to stop it.
ZooKeeper is at {cluster.zk_hosts}, the broker at {cluster.brokers[0]}.

Show the group:

  {command} describe {GROUP} --zookeeper {cluster.zk_hosts}

Send a record; a line here will show which consumer received it:

  echo /a | {command} produce {TOPIC} --brokers {cluster.brokers[0]}

Or read the group's znodes with ZooKeeper's own zkCli:

  {_zk_cli(cluster)}

  ls /kiel-groups/{GROUP}/members               the members
  get /kiel-groups/{GROUP}/allocation           the state of the present plan
  ls /consumers/{GROUP}/owners/{TOPIC}       the partitions that have an owner
  get /consumers/{GROUP}/offsets/{TOPIC}/0   the committed offset of partition 0
""",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
