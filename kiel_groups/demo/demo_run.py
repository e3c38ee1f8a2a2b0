"""Run the demo from setup to result. However the demo ends, none of its processes and files remain."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from kiel_groups.admin.group_inspection import group_reader
from kiel_groups.demo.display import Display, make_display
from kiel_groups.demo.fleet import Fleet, FleetSettings
from kiel_groups.demo.input_records import Input, lines_of, shipped
from kiel_groups.demo.receipts import Proof
from kiel_groups.demo.walkthrough import GROUP, PARTITIONS, TOPIC, Walkthrough, send_records
from kiel_groups.embedded.clusters.embedded_cluster import Cluster
from kiel_groups.embedded.jars.classpaths import zookeeper_class_path
from kiel_groups.embedded.jars.download_progress import fetch_servers
from kiel_groups.embedded.jars.jar_cache import java_class_path
from kiel_groups.embedded.processes.run_folder import server_folder
from kiel_groups.ops.group_view import GroupView
from kiel_groups.ops.tables import offset_table
from kiel_groups.wording import some

__all__ = ["run_demo"]

#: Records per second of each consumer, for 100,000 records: people can watch every step, and the demo takes less than
#: two minutes.
_RATE = 900.0
_SESSION_TIMEOUT_MS = 6_000
_KAFKA = "0.8.2.2"
_TERMINATED = 143


def run_demo(
    console: Console, *, keep: bool, records: Path | None = None, zookeeper_port: int = 0, broker_port: int = 0
) -> int:
    """
    Run the demo.

    Args:
        console: Shows the events and the group.
        keep: Keep the cluster and two consumers running afterwards, until Ctrl-C.
        records: A file whose lines are sent, or None for the records that come with the package.
        zookeeper_port: ZooKeeper's port on 127.0.0.1; 0 lets the system choose one.
        broker_port: The broker's port on 127.0.0.1; 0 lets the system choose one.

    Returns:
        0 if every record was delivered at least once and all offsets are committed, 143 after SIGTERM, or 1.

    Raises:
        ConfigError: The file of records cannot be used.
        ServerError: The cluster could not be started.
        DemoError: The demo could not be completed.
        KeyboardInterrupt: Ctrl-C was pressed; all processes and files of the demo are gone.
    """
    sent = shipped() if records is None else lines_of(records)
    zookeeper = fetch_servers(console, _KAFKA)
    try:
        return asyncio.run(_run(console, zookeeper, sent, keep=keep, ports=(zookeeper_port, broker_port)))
    except asyncio.CancelledError:
        return _TERMINATED


async def _run(
    console: Console, zookeeper: str, records: Input | None = None, *, keep: bool, ports: tuple[int, int] = (0, 0)
) -> int:
    """Run the demo with the shipped records by default; ``ports`` are ZooKeeper's port and the broker's port."""
    records = records or shipped()
    task = asyncio.current_task()
    assert task is not None
    # SIGTERM ends the demo as Ctrl-C does. After SIGKILL, the kernel kills the children (see ChildProcess).
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with make_display(console) as display:
        display.event(f"starting ZooKeeper {zookeeper} and Kafka {_KAFKA}")
        async with Cluster(zookeeper=zookeeper, kafka=_KAFKA, zookeeper_port=ports[0], broker_port=ports[1]) as cluster:
            display.event(f"running: ZooKeeper at {cluster.zk_hosts}, Kafka at {cluster.brokers[0]}")
            await cluster.create_topic(TOPIC, PARTITIONS)
            began_s = time.monotonic()
            sent = await send_records(cluster, records)
            took_s = time.monotonic() - began_s
            display.event(
                f"sent {len(sent.places):,} records to {PARTITIONS} partitions of {TOPIC!r} in {took_s:.1f} s"
            )
            with ExitStack() as stack:
                fleet = Fleet(server_folder("demo"), _fleet_settings(cluster, records))
                stack.callback(fleet.kill_all)
                reader = stack.enter_context(group_reader(cluster.zk_hosts, GROUP))
                walkthrough = Walkthrough(fleet, display, sent, reader)
                proof = await walkthrough.run()
                display.end_table()
                _print_result(console, await walkthrough.view(), proof)
                if keep:
                    await _keep_running(console, display, walkthrough, cluster)
    return 0 if proof.holds else 1


def _fleet_settings(cluster: Cluster, records: Input) -> FleetSettings:
    return FleetSettings(
        brokers=",".join(cluster.brokers),
        zookeeper=cluster.zk_hosts,
        group=GROUP,
        topic=TOPIC,
        rate=_RATE * max(1.0, len(records.values) / 100_000),
        session_timeout_ms=_SESSION_TIMEOUT_MS,
        number_in_key=records.number_in_key,
    )


def _print_result(console: Console, view: GroupView, proof: Proof) -> None:
    console.print(offset_table(view))
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
    console.print("\n".join(lines), highlight=False, markup=False)
    if proof.holds:
        console.print("proved: no record was lost", style="bold green")
    else:
        console.print("NOT proved: see above", style="bold red")


async def _keep_running(console: Console, display: Display, walkthrough: Walkthrough, cluster: Cluster) -> None:
    """Keep two consumers in the group until Ctrl-C, so that people can inspect a live group."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stopped.set)
    await walkthrough.start_consumers(2)
    display.end_table()
    _print_commands(console, cluster)
    await walkthrough.watch(stopped)


def _zk_cli(cluster: Cluster) -> Path:
    """Write a script that starts zkCli on the demo's ZooKeeper; the class path alone would fill several lines."""
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
