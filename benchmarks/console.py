"""
Measure the service: how soon a page shows a change, how long pages take, and what many groups cost.

    python -m benchmarks.console [--quick] [--json FILE]

A real ZooKeeper has 200 groups of 5 members and 20 partitions, and one of 1,000 members and 10,000 partitions, all
planted by one session. A scripted broker, in a process of its own, answers with the ends of all logs, because 14,000
logs of a real broker would use most of the machine. One partition in 50 has a lag of 1,000 records, and no progress.
The service is a process of its own, and reads all groups at its default interval of 5 seconds.

``event``: from the answer of ZooKeeper to the write of a member's znode until the page of its group, open in a headless
Chromium, has its row. ``page``: from the request until the browser has shown the page of the group. Both are of a
group of 20 partitions (``small``) and of the group of 10,000 (``large``). ``cpu`` is the share of a core that the
service uses while nothing happens, ``mib`` its resident memory, each without and with the large group.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import click
from kazoo.client import KazooClient
from playwright.async_api import Page, async_playwright

from kiel_groups.embedded import ZooKeeperEnsemble
from kiel_groups.group.znodes.contents import GroupSettings, GroupState, MemberAssignment, MemberInfo
from kiel_groups.group.znodes.layout import GroupLayout, topic_path
from kiel_groups.model import TopicPartition
from tests.helpers.fake_broker import FakeBroker

__all__ = ["main"]

GROUPS, MEMBERS, PARTITIONS = 200, 5, 20
LARGE_MEMBERS, LARGE_PARTITIONS = 1_000, 10_000
EVENTS, PAGES, REST_S = 20, 9, 60.0
#: The default interval of the service.
INTERVAL_S = 5
#: The committed offset of each partition, and the lag of one partition in ``LAGGING``.
OFFSET, LAG, LAGGING = 1_000, 1_000, 50

#: Wait until the text of the page has a name, or has it no more, and that is shown.
SHOWN = """([name, expected]) => new Promise(done => {
  const look = () => {
    if (document.getElementById("main").textContent.includes(name) !== expected) return;
    watcher.disconnect();
    requestAnimationFrame(() => setTimeout(done));
  };
  const watcher = new MutationObserver(look);
  watcher.observe(document.documentElement, { subtree: true, childList: true, characterData: true });
  look();
})"""


def answer_log_ends(topics: Mapping[str, int], ports: Connection) -> None:
    """Run a broker with these topics, and send its port. ``topics`` are the numbers of partitions by topic."""

    async def serve() -> None:
        async with FakeBroker(dict(topics)) as broker:
            for partition, log in broker.logs.items():
                log.end = OFFSET + (0 if partition.partition % LAGGING else LAG)
            ports.send(broker.port)
            await asyncio.Event().wait()

    asyncio.run(serve())


@contextmanager
def broker_of(client: KazooClient, topics: Mapping[str, int]) -> Iterator[None]:
    """Run a broker with these topics in a process of its own, and register it in ZooKeeper."""
    spawn = multiprocessing.get_context("spawn")
    ports, theirs = spawn.Pipe(duplex=False)
    process = spawn.Process(target=answer_log_ends, args=(topics, theirs), daemon=True)
    process.start()
    try:
        address = {"version": 1, "host": "127.0.0.1", "port": ports.recv(), "jmx_port": -1, "timestamp": "1"}
        client.create("/brokers/ids/0", json.dumps(address).encode(), ephemeral=True, makepath=True)
        yield
    finally:
        process.terminate()
        process.join()


def plant(client: KazooClient, group: str, members: int, partitions: int) -> None:
    """Create the znodes of a settled group."""
    layout, topic = GroupLayout(group), f"topic-{group}"
    numbers = ",".join(f'"{number}":[0]' for number in range(partitions))
    writes = [
        client.create_async(topic_path(topic), f'{{"version":1,"partitions":{{{numbers}}}}}'.encode(), makepath=True)
    ]
    names = [f"{group}_host-{1_700_000_000_000 + at}-{at:x}" for at in range(members)]
    owned = {name: range(at, partitions, members) for at, name in enumerate(names)}
    state = GroupState(
        generation=1, state="done", leader=names[0], allocator="round_robin", created_at_ms=1_700_000_000_000
    )
    settings = GroupSettings(store="zookeeper", mode="cooperative", auto_offset_reset="earliest")
    for path in (layout.members, layout.election, layout.group_state, layout.ids):
        client.ensure_path(path)
    client.set(layout.group_state, state.encode())
    client.ensure_path(f"/consumers/{group}/owners/{topic}")
    client.ensure_path(f"/consumers/{group}/offsets/{topic}")
    writes.append(client.create_async(layout.config, settings.encode()))
    for name, mine in owned.items():
        info = MemberInfo(
            member_id=name, session_timeout_ms=60_000, subscription=(topic,), host="host", pid=1, started_at_ms=1
        )
        held = frozenset(TopicPartition(topic, number) for number in mine)
        writes.append(client.create_async(layout.member(name), info.encode(), ephemeral=True))
        writes.append(client.create_async(layout.assignment(name), MemberAssignment(1, name, held).encode()))
        for number in mine:
            owner = f"/consumers/{group}/owners/{topic}/{number}"
            writes.append(client.create_async(owner, f"{name}-0".encode(), ephemeral=True))
            writes.append(client.create_async(f"/consumers/{group}/offsets/{topic}/{number}", b"%d" % OFFSET))
    for write in writes:
        write.get()


@contextmanager
def service(hosts: str) -> Iterator[tuple[str, int]]:
    """Run the service, and yield its URL and its process id."""
    words = ["serve", "--zookeeper", hosts, "--port", "0", "--interval", str(INTERVAL_S)]
    with subprocess.Popen([sys.executable, "-m", "kiel_groups", *words], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = next(line for line in process.stderr if "http://" in line)
            yield line.split()[-1], process.pid
        finally:
            process.terminate()


def cpu_s(pid: int) -> float:
    """Return the processor time that a process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / (1 << 20)


async def load_ms(page: Page, url: str) -> float:
    """Return how long a page takes, in milliseconds."""
    began_s = time.perf_counter()
    await page.goto(url, wait_until="load")
    return (time.perf_counter() - began_s) * 1000


async def event_ms(page: Page, client: KazooClient, group: str, number: int) -> float:
    """Write the znode of a further member, and return how long its row takes, in milliseconds."""
    name = f"{group}_host-1800000000000-{0xF000 + number:x}"
    info = MemberInfo(
        member_id=name, session_timeout_ms=60_000, subscription=("t",), host="host", pid=1, started_at_ms=1
    )
    path = GroupLayout(group).member(name)
    shown = asyncio.ensure_future(page.evaluate(SHOWN, [name, True]))
    await asyncio.sleep(0.1)
    await asyncio.to_thread(client.create, path, info.encode(), ephemeral=True)
    began_s = time.perf_counter()
    await asyncio.wait_for(shown, 60)
    took_ms = (time.perf_counter() - began_s) * 1000
    await asyncio.to_thread(client.delete, path)
    await asyncio.wait_for(page.evaluate(SHOWN, [name, False]), 60)
    # The group has to be read to its end: an unsettled one is read again anyway.
    await asyncio.sleep(2)
    return took_ms


async def measure(page: Page, client: KazooClient, pid: int, url: str, size: str, *, quick: bool) -> dict[str, float]:
    """Measure a service that has read all groups, and the page of one of them. Check that all its lags are known."""
    answer = await page.request.get(url.replace("/clusters/", "/v1/clusters/"))
    assert (await answer.json())["partitions_of_unknown_lag"] == 0
    rest_s = 10 if quick else REST_S
    began_s = cpu_s(pid)
    await asyncio.sleep(rest_s)
    row = {f"cpu {size}, %": (cpu_s(pid) - began_s) / rest_s * 100, f"mib {size}": resident_mib(pid)}
    group = url.rpartition("/")[2]
    row[f"page {size}, ms"] = median([await load_ms(page, url) for _ in range(PAGES)])
    # A page that has just been loaded rests before it follows the next event.
    await asyncio.sleep(2)
    events = [await event_ms(page, client, group, at) for at in range(3 if quick else EVENTS)]
    return {**row, f"event {size}, ms": median(events), f"worst event {size}, ms": max(events)}


async def run(*, quick: bool) -> dict[str, Any]:
    """Measure everything once."""
    sizes = {f"g{at:03}": (MEMBERS, PARTITIONS) for at in range(10 if quick else GROUPS)}
    large = (20, 200) if quick else (LARGE_MEMBERS, LARGE_PARTITIONS)
    topics = {f"topic-{group}": partitions for group, (_, partitions) in {**sizes, "large": large}.items()}
    with ZooKeeperEnsemble(1) as ensemble:
        client = KazooClient(ensemble.hosts, timeout=60)
        client.start()
        for group, (members, partitions) in sizes.items():
            await asyncio.to_thread(plant, client, group, members, partitions)
        with broker_of(client, topics), service(ensemble.hosts) as (url, pid):
            async with async_playwright() as playwright:
                browser = await playwright.chromium.launch(
                    executable_path=shutil.which("chromium"), args=["--no-sandbox"]
                )
                page = await browser.new_page()
                groups = f"{url}/clusters/default/groups"
                await asyncio.sleep(2 * INTERVAL_S)
                row = await measure(page, client, pid, f"{groups}/g001", "small", quick=quick)
                await page.goto("about:blank")
                await asyncio.to_thread(plant, client, "large", *large)
                await asyncio.sleep((2 if quick else 12) * INTERVAL_S)
                row |= await measure(page, client, pid, f"{groups}/large", "large", quick=quick)
                await browser.close()
        client.stop()
    return row


@click.command()
@click.option("--quick", is_flag=True, help="Few and small groups, to try the benchmark.")
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Also write the figures there.")
def main(quick: bool, file: Path | None) -> None:
    """Measure the service and its console."""
    row = asyncio.run(run(quick=quick))
    for name, value in row.items():
        click.echo(f"{name:<22} {value:>10.1f}")
    if file is not None:
        file.write_text(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
