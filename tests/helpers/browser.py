"""The console of a service in real Chromium."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

from kiel_groups.embedded import Cluster
from kiel_groups.ops.actions.cluster_address import ZOOKEEPER, ClusterAddress
from kiel_groups.rest.settings import RestSettings
from kiel_groups.service.service import Service

__all__ = ["NEEDS_CHROMIUM", "TOKEN", "browsing", "console", "new_page", "served"]

#: Debian's package is called so, and its program.
CHROMIUM = shutil.which("chromium")

NEEDS_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium (Debian: apt install chromium)")

TOKEN = "t0ken-of-the-service"

#: How long the page may take on a busy machine, in milliseconds.
_PATIENCE_MS = 30_000
# By default, each expectation fails after 5 s.
expect.set_options(timeout=_PATIENCE_MS)


@asynccontextmanager
async def served(cluster: Cluster, port: int = 0, *, interval_s: float = 2) -> AsyncIterator[str]:
    """Run a service of one cluster, and yield its URL."""
    address = ClusterAddress(ZOOKEEPER, cluster.zk_hosts, 10.0)
    service = Service(RestSettings(port=port, token=TOKEN, open_reads=True), {"main": address}, interval_s=interval_s)
    service.start()
    try:
        yield service.url
    finally:
        await service.close()


@asynccontextmanager
async def browsing() -> AsyncIterator[Browser]:
    """Run a browser."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def console(cluster: Cluster) -> AsyncIterator[tuple[str, Browser]]:
    """Run a service and a browser, and yield the URL of the service and the browser."""
    async with served(cluster) as url, browsing() as browser:
        yield url, browser


async def new_page(
    browser: Browser, url: str, *, width: int = 1200, height: int = 800, scheme: str = "light"
) -> tuple[Page, list[str]]:
    """Open a page in a context of its own, and return it with the errors that it will have reported."""
    context = await browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,  # type: ignore[arg-type]
    )
    context.set_default_timeout(_PATIENCE_MS)
    page, errors = await context.new_page(), list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    await page.goto(url)
    return page, errors
