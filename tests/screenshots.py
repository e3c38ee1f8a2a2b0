"""
Take the pictures of the console that ``docs/service.rst`` shows.

    python -m tests.screenshots [FOLDER]

A real cluster has a few groups, some with problems; a real Chromium opens the console of a service. It takes
half a minute. The pictures differ from run to run in times, ids and lags, and nowhere else.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import b64decode
from contextlib import AsyncExitStack
from pathlib import Path
from unittest.mock import patch

import click
from playwright.async_api import expect

from kiel_groups.clients import Producer
from kiel_groups.embedded import Cluster
from tests.helpers.browser import browsing, new_page, served
from tests.helpers.cluster_data import zookeeper
from tests.helpers.members import Group, group_of
from tests.helpers.waiting import eventually

FOLDER = Path(__file__).parents[1] / "docs" / "screenshots"

#: The largest picture, in bytes: each one is in the history of the repository for ever.
_LARGEST = 150_000


async def join(group: Group, host: str, pace_s: float = 0.0) -> None:
    """Let a member of this host join, and wait until it has its share."""
    with patch("socket.gethostname", lambda: host):
        member = await group.join()
    member.pace_s = pace_s
    await eventually(lambda: member.rebalances, f"{host} owns partitions")


async def take(cluster: Cluster, folder: Path) -> None:
    """Run the groups and the service, and take the pictures."""
    for topic, partitions in {"orders": 24, "payments": 12, "clicks": 48, "mails": 6}.items():
        await cluster.create_topic(topic, partitions)
    async with AsyncExitStack() as stack:
        producer = await stack.enter_async_context(Producer(cluster.brokers))
        billing = await stack.enter_async_context(group_of(cluster, "billing", ["orders", "payments"]))
        search = await stack.enter_async_context(group_of(cluster, "search-index", ["clicks"]))
        mailer = await stack.enter_async_context(group_of(cluster, "mailer", ["mails"]))
        client = stack.enter_context(zookeeper(cluster))

        async def produce(topic: str, count: int) -> None:
            await asyncio.gather(*(producer.produce(topic, b"%d" % at) for at in range(count)))

        async with group_of(cluster, "archive", ["orders"]) as archive:
            await join(archive, "app-1.example")
        await join(mailer, "app-2.example")
        url = await stack.enter_async_context(served(cluster, interval_s=1))
        for at in range(1, 5):
            await join(billing, f"app-{at}.example", 0.004)
            await join(search, f"app-{at}.example", 0.02)
            await produce("orders", 300)
            await produce("clicks", 600)
        # A consumer of Java in the same group, which would take partitions of others.
        client.create("/consumers/billing/ids/billing_old-host.example-1418000000000-5f3a2b1c", b"{}", ephemeral=True)
        for count in (2_000, 300, 300, 1_500):
            await produce("orders", count)
            await produce("payments", count // 4)
            await asyncio.sleep(2.5)
        await produce("orders", 4_000)
        await produce("payments", 2_000)
        browser = await stack.enter_async_context(browsing())
        group = f"{url}/clusters/main/groups/billing"
        for name, address, width, height, scheme in (
            ("groups", url, 1200, 400, "light"),
            ("group", group, 1200, 1460, "light"),
            ("phone", f"{group}#partitions", 360, 760, "dark"),
        ):
            page, _ = await new_page(browser, address, width=width, height=height, scheme=scheme)
            await expect(page.locator("#live")).to_have_text("live")
            file = folder / f"console-{name}.webp"
            # Playwright's own function writes no WebP, which is a third of a PNG.
            session = await page.context.new_cdp_session(page)
            picture = await session.send("Page.captureScreenshot", {"format": "webp", "quality": 60})
            file.write_bytes(b64decode(picture["data"]))
            click.echo(f"{file}: {file.stat().st_size:,} bytes")
            if file.stat().st_size > _LARGEST:
                raise click.ClickException(f"{file} is larger than {_LARGEST:,} bytes")


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=FOLDER)
def main(folder: Path) -> None:
    """Take the pictures of the console, and write them into FOLDER, which is that of the documentation by default."""
    logging.disable()
    folder.mkdir(parents=True, exist_ok=True)
    with Cluster() as cluster:
        asyncio.run(take(cluster, folder))


if __name__ == "__main__":
    main()
