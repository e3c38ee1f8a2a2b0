"""
Measure the service: how soon a page shows a change, how long pages take, and what many groups cost.

    python -m benchmarks.console [--quick] [--json FILE]

A real ZooKeeper has 200 groups of 5 members and 20 partitions, and one of 1,000 members and 10,000 partitions, all
planted by one session; one real broker has their topics' names only, so lags are unknown. The service is a process of
its own, and reads all groups every 10 seconds.

``event``: from the answer of ZooKeeper to the write of a member's znode until the page of its group, open in a headless
Chromium, has its row. ``page``: from the request until the browser has shown the page of the group (``small``: of 20
partitions, ``large``: of 10,000). ``cpu`` is the share of a core that the service uses while nothing happens, ``mib``
its resident memory.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import click
from kazoo.client import KazooClient
from playwright.async_api import Page, async_playwright

from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.contents import GroupSettings, GroupState, MemberAssignment, MemberInfo
from kiel_groups.group.znodes.layout import GroupLayout, topic_path
from kiel_groups.model import TopicPartition

__all__ = ["main"]

GROUPS, MEMBERS, PARTITIONS = 200, 5, 20
LARGE_MEMBERS, LARGE_PARTITIONS = 1_000, 10_000
EVENTS, PAGES, REST_S = 20, 9, 60.0
INTERVAL_S = 10


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
            writes.append(client.create_async(f"/consumers/{group}/offsets/{topic}/{number}", b"1"))
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
    await asyncio.to_thread(client.create, path, info.encode(), ephemeral=True)
    began_s = time.perf_counter()
    await page.get_by_role("row", name=name).wait_for(timeout=30_000)
    took_ms = (time.perf_counter() - began_s) * 1000
    await asyncio.to_thread(client.delete, path)
    await page.get_by_role("row", name=name).wait_for(state="detached", timeout=30_000)
    # The group has to be read to its end: an unsettled one is read again anyway.
    await asyncio.sleep(2)
    return took_ms


async def run(*, quick: bool) -> dict[str, Any]:
    """Measure everything once."""
    row: dict[str, Any] = {}
    with Cluster() as cluster:
        client = KazooClient(cluster.zk_hosts, timeout=60)
        client.start()
        for at in range(10 if quick else GROUPS):
            await asyncio.to_thread(plant, client, f"g{at:03}", MEMBERS, PARTITIONS)
        with service(cluster.zk_hosts) as (url, pid):
            await asyncio.sleep(2 * INTERVAL_S)
            began_s = cpu_s(pid)
            await asyncio.sleep(10 if quick else REST_S)
            row["cpu, %"] = (cpu_s(pid) - began_s) / (10 if quick else REST_S) * 100
            row["mib"] = resident_mib(pid)
            async with async_playwright() as playwright:
                browser = await playwright.chromium.launch(
                    executable_path=shutil.which("chromium"), args=["--no-sandbox"]
                )
                page = await browser.new_page()
                small = f"{url}/clusters/default/groups/g001"
                row["page small, ms"] = median([await load_ms(page, small) for _ in range(PAGES)])
                row["event, ms"] = median([await event_ms(page, client, "g001", at) for at in range(EVENTS)])
                if not quick:
                    await asyncio.to_thread(plant, client, "large", LARGE_MEMBERS, LARGE_PARTITIONS)
                    await asyncio.sleep(6 * INTERVAL_S)
                    large = f"{url}/clusters/default/groups/large"
                    row["page large, ms"] = median([await load_ms(page, large) for _ in range(PAGES)])
                    row["mib with large"] = resident_mib(pid)
                await browser.close()
        client.stop()
    return row


@click.command()
@click.option("--quick", is_flag=True, help="10 groups only, to try the benchmark.")
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Also write the figures there.")
def main(quick: bool, file: Path | None) -> None:
    """Measure the service and its console."""
    row = asyncio.run(run(quick=quick))
    for name, value in row.items():
        click.echo(f"{name:<20} {value:>10.1f}")
    if file is not None:
        file.write_text(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
