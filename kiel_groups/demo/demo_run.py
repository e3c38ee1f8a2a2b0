"""The demo from its set-up to its verdict; whatever happens, neither a process nor a file of it stays."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from kiel_groups.admin.group_inspection import group_reader
from kiel_groups.demo.fleet import Fleet, FleetSettings
from kiel_groups.demo.input_records import Input, lines_of, shipped
from kiel_groups.demo.play import GROUP, PARTITIONS, TOPIC, Play, send_records
from kiel_groups.demo.receipts import Proof
from kiel_groups.demo.show import Show, make_show
from kiel_groups.embedded.clusters.embedded_cluster import Cluster
from kiel_groups.embedded.jars.classpaths import zookeeper_class_path
from kiel_groups.embedded.jars.download_progress import fetch_servers
from kiel_groups.embedded.jars.jar_cache import java_class_path
from kiel_groups.embedded.processes.run_folder import server_folder
from kiel_groups.ops.group_view import GroupView
from kiel_groups.ops.tables import offset_table
from kiel_groups.wording import some

__all__ = ["run_demo"]

#: Per consumer and 100,000 records, so that the whole lasts well under two minutes and every act can be watched.
_RATE = 900.0
_SESSION_TIMEOUT_MS = 6_000
_KAFKA = "0.8.2.2"
_TERMINATED = 143


def run_demo(
    console: Console, *, keep: bool, records: Path | None = None, zookeeper_port: int = 0, broker_port: int = 0
) -> int:
    """
    Play the demo.

    Args:
        console: Where it appears.
        keep: Leave the cluster and two consumers up afterwards, until Ctrl-C.
        records: A file whose lines are sent; None for the records that come with the package.
        zookeeper_port: ZooKeeper's port on 127.0.0.1; 0 has the system choose one.
        broker_port: The broker's port, likewise.

    Returns:
        0 when every record was delivered at least once and all offsets are committed, 1 otherwise; 143 after SIGTERM.

    Raises:
        ConfigError: The file of records cannot be used.
        ServerError: The cluster could not be started.
        DemoError: The plot did not come to its end.
        KeyboardInterrupt: Ctrl-C, after everything was cleared away.
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
    """Play it; with the shipped records, unless others are given. ``ports`` are ZooKeeper's and the broker's."""
    records = records or shipped()
    task = asyncio.current_task()
    assert task is not None
    # A polite kill ends the demo as Ctrl-C does; an impolite one leaves it to the kernel to end the children.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with make_show(console) as show:
        show.event(f"start ZooKeeper {zookeeper} and Kafka {_KAFKA}")
        async with Cluster(zookeeper=zookeeper, kafka=_KAFKA, zookeeper_port=ports[0], broker_port=ports[1]) as cluster:
            show.event(f"they serve: ZooKeeper at {cluster.zk_hosts}, Kafka at {cluster.brokers[0]}")
            await cluster.create_topic(TOPIC, PARTITIONS)
            began_s = time.monotonic()
            sent = await send_records(cluster, records)
            took_s = time.monotonic() - began_s
            show.event(f"{len(sent.places):,} records sent to {PARTITIONS} partitions of {TOPIC!r} in {took_s:.1f} s")
            with ExitStack() as stack:
                fleet = Fleet(server_folder("demo"), _fleet_settings(cluster, records))
                stack.callback(fleet.kill_all)
                play = Play(fleet, show, sent, stack.enter_context(group_reader(cluster.zk_hosts, GROUP)))
                proof = await play.perform()
                show.end_table()
                _print_verdict(console, await play.view(), proof)
                if keep:
                    await _hold(console, show, play, cluster)
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


def _print_verdict(console: Console, view: GroupView, proof: Proof) -> None:
    console.print(offset_table(view))
    said = [
        f"sent                      {proof.sent:>9,}",
        f"received at least once    {proof.sent - len(proof.missing):>9,}",
        f"received more than once   {proof.repeated:>9,}   (at most {proof.most_often} times)",
    ]
    if proof.missing:
        said.append(f"never received: {some(proof.missing)}")
    if proof.misplaced:
        said.append(f"received from another place than sent to: {some(proof.misplaced)}")
    for partition, (committed, end) in sorted(proof.uncommitted.items()):
        said.append(f"partition {partition}: committed {committed}, but its log ends at {end}")
    console.print("\n".join(said), highlight=False, markup=False)
    if proof.holds:
        console.print("proved: no record was lost", style="bold green")
    else:
        console.print("NOT proved: see above", style="bold red")


async def _hold(console: Console, show: Show, play: Play, cluster: Cluster) -> None:
    """Wait for Ctrl-C, with two consumers in the group, so that there is something to look at."""
    enough = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, enough.set)
    await play.gather(2)
    show.end_table()
    _print_farewell(console, cluster)
    await play.watch(enough)


def _zk_cli(cluster: Cluster) -> Path:
    """A script that starts zkCli on the demo's ZooKeeper: its class path fills several lines."""
    classes = java_class_path(zookeeper_class_path(cluster.zookeeper.version))
    script = server_folder("zkcli") / "zkCli"
    main = f"org.apache.zookeeper.ZooKeeperMain -server {cluster.zk_hosts}"
    script.write_text(f"#!/bin/sh\nexec java -cp '{classes}' {main} \"$@\"\n", encoding="utf-8")
    script.chmod(0o755)
    return script


def _print_farewell(console: Console, cluster: Cluster) -> None:
    command = ".venv/bin/kiel-groups" if Path(".venv").resolve() == Path(sys.prefix) else "kiel-groups"
    console.print(
        f"""
The cluster stays up, with two consumers in the group; Ctrl-C ends it.
ZooKeeper is at {cluster.zk_hosts}, the broker at {cluster.brokers[0]}.

Look at the group:

  {command} describe {GROUP} --zookeeper {cluster.zk_hosts}

Send it a record; a consumer says here that it got it:

  echo /a | {command} produce {TOPIC} --brokers {cluster.brokers[0]}

Or look at it with nothing but ZooKeeper's own zkCli:

  {_zk_cli(cluster)}

  ls /kiel-groups/{GROUP}/members               its members
  get /kiel-groups/{GROUP}/allocation           the plan in force
  ls /consumers/{GROUP}/owners/{TOPIC}       the partitions that are claimed
  get /consumers/{GROUP}/offsets/{TOPIC}/0   the next offset of partition 0
""",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
