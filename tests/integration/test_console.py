"""The console in a browser: it follows the groups of a real cluster, and operators act in it."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, async_playwright, expect

from kiel_groups.embedded import Cluster
from kiel_groups.model import TopicPartition
from kiel_groups.ops.actions.cluster_address import ZOOKEEPER, ClusterAddress
from kiel_groups.ops.loaded_groups import LoadedGroups
from kiel_groups.ops.views.group_view import GroupView
from kiel_groups.ops.views.znodes import view_group
from kiel_groups.rest.settings import RestSettings
from kiel_groups.service.cluster_state import ClusterHistory
from kiel_groups.service.observer import Observer
from kiel_groups.service.service import Service
from tests.helpers.cluster_data import committed, produce, zookeeper
from tests.helpers.group_snapshots import HEALTHY, LATER_MS, LOG_ENDS
from tests.helpers.members import end_session, group_of

#: Debian's package is called so, and its program.
CHROMIUM = shutil.which("chromium")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium (Debian: apt install chromium)"),
]

Unique = Callable[[str], str]

TOKEN = "t0ken-of-the-service"

#: How long the page may take on a busy machine, in milliseconds.
PATIENCE_MS = 30_000


@asynccontextmanager
async def console(cluster: Cluster) -> AsyncIterator[tuple[str, Browser]]:
    """Run a service and a browser, and yield the URL of the service and the browser."""
    async with browsed(service_of(cluster.zk_hosts)) as (service, browser):
        yield service.url, browser


def service_of(zk_hosts: str) -> Service:
    address = ClusterAddress(ZOOKEEPER, zk_hosts, 10.0)
    return Service(RestSettings(port=0, token=TOKEN, open_reads=True), {"main": address}, interval_s=2)


@asynccontextmanager
async def browsed(service: Service) -> AsyncIterator[tuple[Service, Browser]]:
    """Run this service and a browser, and yield both."""
    service.start()
    try:
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            try:
                yield service, browser
            finally:
                await browser.close()
    finally:
        await service.close()


async def new_page(browser: Browser, url: str, *, width: int = 1200, scheme: str = "light") -> tuple[Page, list[str]]:
    """Open a page, and return it with the errors that it will have reported."""
    context = await browser.new_context(
        viewport={"width": width, "height": 800},
        color_scheme=scheme,  # type: ignore[arg-type]
    )
    context.set_default_timeout(PATIENCE_MS)
    page, errors = await context.new_page(), list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    await page.goto(url)
    return page, errors


async def test_a_member_that_dies_is_seen_without_a_reload(cluster_39: Cluster, unique: Unique) -> None:
    """The page of a group follows a death and a drain, and the page of all groups leads to it."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 4)
    async with group_of(cluster_39, name, [topic]) as group, console(cluster_39) as (url, browser):
        members = [await group.join(), await group.join(), await group.join()]
        await group.balanced(topic, 4)
        page, errors = await new_page(browser, url)
        await page.get_by_role("link", name=name, exact=True).click()
        rows = page.locator("section[aria-labelledby=members] tbody tr")
        await expect(rows).to_have_count(3, timeout=PATIENCE_MS)
        chart = page.locator("#chart")
        drawn = await chart.get_attribute("data-lags")
        assert drawn is not None
        await expect(chart).not_to_have_attribute("data-lags", drawn, timeout=PATIENCE_MS)
        await expect(chart.locator("canvas")).to_be_visible(timeout=PATIENCE_MS)
        end_session(cluster_39, members[2])
        await members[2].stop()
        await expect(rows).to_have_count(2, timeout=PATIENCE_MS)
        cells = page.locator("ol.grid li")
        await expect(cells.get_by_text("–")).to_have_count(0, timeout=PATIENCE_MS)
        await preview_and_colour(page)
        drained = members[1].consumer.member_id
        await rows.filter(has_text=str(drained)).get_by_role("button", name="Drain…").click()
        await page.get_by_label("Token").fill(TOKEN)
        await page.get_by_role("button", name="Show what changes").click()
        await expect(page.locator("#outcome")).to_contain_text(f"{drained} owns 2 partitions", timeout=PATIENCE_MS)
        await page.get_by_role("button", name="Make the change").click()
        await expect(page.locator("#outcome")).to_contain_text("Done.", timeout=PATIENCE_MS)
        await page.get_by_role("button", name="Close").click()
        await expect(rows.filter(has_text=str(drained))).to_contain_text("drained", timeout=PATIENCE_MS)
        await drain_the_host(page)
        await rows.filter(has_text=str(drained)).get_by_role("button", name="Undrain…").click()
        await page.get_by_role("button", name="Show what changes").click()
        await expect(page.locator("#outcome")).to_contain_text(f"{drained} owns 0 partitions", timeout=PATIENCE_MS)
        assert [error for error in errors if "400" not in error] == []


async def preview_and_colour(page: Page) -> None:
    """Preview the plan with another member, and see the lag of each partition, by keyboard."""
    await page.locator("#a-plan").press("Enter")
    await page.get_by_label("How many members join").fill("1")
    await page.keyboard.press("Enter")
    outcome = page.locator("#outcome")
    await expect(outcome).to_contain_text("would go to new-1: ", timeout=PATIENCE_MS)
    await expect(outcome).to_contain_text("new-1 would own 1 partition (0 now)")
    await page.keyboard.press("Escape")
    await expect(page.locator("#a-plan")).to_be_focused()
    await page.locator("#by-lag").press("Enter")
    await expect(page.locator("ol.grid li.l0")).to_have_count(4, timeout=PATIENCE_MS)
    await expect(page.locator("#by-lag")).to_have_attribute("aria-current", "true")
    drawn = await page.locator("#chart").get_attribute("data-lags")
    assert drawn is not None
    await expect(page.locator("#chart")).not_to_have_attribute("data-lags", drawn, timeout=PATIENCE_MS)
    await expect(page.locator("ol.grid li").get_by_text("0")).to_have_count(4)


async def drain_the_host(page: Page) -> None:
    """Draining the only host is refused, and the box below permits it; nothing is changed."""
    await page.locator("#a-drain-host").click()
    await page.get_by_label("Host whose members").fill(str(await page.locator("#hosts option").get_attribute("value")))
    await page.get_by_label("Token").fill(TOKEN)
    await page.get_by_role("button", name="Show what changes").click()
    outcome = page.locator("#outcome")
    await expect(outcome).to_contain_text("no member that is not drained would be left", timeout=PATIENCE_MS)
    await page.get_by_label("Even if partitions are left").check()
    await page.get_by_role("button", name="Show what changes").click()
    await expect(outcome).to_contain_text("drained:", timeout=PATIENCE_MS)
    await page.keyboard.press("Escape")


def large_view(lag: int) -> GroupView:
    """Return a group of 10,000 partitions, of which ten have offsets beyond the ends of their logs."""
    view = view_group("g", HEALTHY, LOG_ENDS)
    first = view.partitions[0]
    partitions = tuple(
        replace(first, topic_partition=TopicPartition("t", each), committed=10, log_end=5 if each < 10 else 10 + lag)
        for each in range(10_000)
    )
    return replace(view, partitions=partitions)


async def test_a_refresh_keeps_what_the_reader_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 10,000 partitions, a change keeps the focus, scroll positions, open details, and a dialog with its text."""
    monkeypatch.setattr(Observer, "start", lambda observer: None)
    history = ClusterHistory()
    async with browsed(service_of("127.0.0.1:1")) as (service, browser):

        def publish(lag: int) -> None:
            loaded = LoadedGroups((large_view(lag),), 2, seen_ms=LATER_MS + lag)
            service._clusters["main"]._take(history.take(loaded, 0.1), None)

        publish(1)
        page, errors = await new_page(browser, f"{service.url}/clusters/main/groups/g?colour=lag")
        await page.get_by_text("All 10 partitions").press("Enter")
        await page.locator("#partitions-area").evaluate("area => { area.scrollTop = 2000; }")
        lag = page.locator(".facts strong")
        for at in (2, 3):
            publish(at)
            await expect(lag).to_have_text(f"{at * 9_990:,}", timeout=PATIENCE_MS)
        assert await page.locator("#partitions-area").evaluate("area => area.scrollTop") == 2000
        await expect(page.locator("details")).to_have_attribute("open", "")
        await expect(page.get_by_text("All 10 partitions")).to_be_focused()
        await page.locator("#a-reset").click()
        await page.get_by_label("Topics, such as").fill("t:17")
        publish(4)
        await expect(lag).to_have_text(f"{4 * 9_990:,}", timeout=PATIENCE_MS)
        await expect(page.get_by_label("Topics, such as")).to_be_focused()
        await expect(page.get_by_label("Topics, such as")).to_have_value("t:17")
        await page.keyboard.press("Escape")
        await expect(page.locator("#a-reset")).to_be_focused()
        assert not errors


async def test_offsets_are_reset_and_a_group_is_deleted_by_keyboard(cluster_39: Cluster, unique: Unique) -> None:
    """Every action can be reached and confirmed by keyboard; a wrong token changes nothing, and the reason is shown."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, 2)
    async with group_of(cluster_39, name, [topic]) as group:
        await group.join()
        await group.delivered(await produce(cluster_39, topic, 20))
    assert committed(cluster_39, name, topic) == 20
    async with console(cluster_39) as (url, browser):
        page, errors = await new_page(browser, f"{url}/")
        await expect(page.get_by_role("link", name=name, exact=True)).to_be_visible(timeout=PATIENCE_MS)
        await page.goto(f"{url}/clusters/main/groups/{name}")
        await page.locator("#a-reset").focus()
        await page.keyboard.press("Enter")
        await page.get_by_label("Token").fill("a-wrong-token-this-is")
        await page.keyboard.press("Enter")
        outcome = page.locator("#outcome")
        await expect(outcome).to_contain_text("the token is missing or wrong", timeout=PATIENCE_MS)
        await page.get_by_label("Token").fill(TOKEN)
        await page.get_by_label("Token").press("Enter")
        await expect(outcome).to_contain_text(" → 0", timeout=PATIENCE_MS)
        assert committed(cluster_39, name, topic) == 20
        await page.keyboard.press("Enter")  # The button that makes the change has the focus.
        await expect(outcome).to_contain_text("Done.", timeout=PATIENCE_MS)
        assert committed(cluster_39, name, topic) == 0
        await page.keyboard.press("Escape")
        await page.locator("#a-delete").focus()
        await page.keyboard.press("Enter")
        await page.get_by_role("button", name="Show what changes").press("Enter")
        await expect(outcome).to_contain_text("offset", timeout=PATIENCE_MS)
        await page.keyboard.press("Enter")
        await expect(outcome).to_contain_text("Done.", timeout=PATIENCE_MS)
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("heading", level=1)).to_contain_text("not there", timeout=PATIENCE_MS)
        await page.goto(f"{url}/")
        await expect(page.get_by_role("link", name=name, exact=True)).to_have_count(0, timeout=PATIENCE_MS)
        assert [error for error in errors if "401" not in error] == []


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (360, "dark")])
async def test_pages_are_accessible_at_every_width(
    cluster_39: Cluster, unique: Unique, width: int, scheme: str
) -> None:
    """axe-core finds nothing serious, and no page is wider than a phone; a hostile name is shown as it is."""
    topic, hostile = unique("topic"), f"<b id=hostile>&'\" {width}"
    await cluster_39.create_topic(topic, 3)
    async with group_of(cluster_39, unique("group"), [topic]) as group, console(cluster_39) as (url, browser):
        await group.join()
        await group.balanced(topic, 3)
        with zookeeper(cluster_39) as client:
            client.ensure_path(f"/consumers/{hostile}/ids")
        page, errors = await new_page(browser, f"{url}/", width=width, scheme=scheme)
        await expect(page.get_by_role("link", name=group.name, exact=True)).to_be_visible(timeout=PATIENCE_MS)
        of_group = f"/clusters/main/groups/{group.name}"
        for path, opener in (("/", ""), (of_group, ""), (f"{of_group}?colour=lag", ""), (of_group, "#a-plan")):
            await page.goto(f"{url}{path}")
            if opener:
                await page.locator(opener).click()
            found = await Axe().run(page)
            serious = [each for each in found.response["violations"] if each["impact"] in ("serious", "critical")]
            assert not serious, [(each["id"], each["nodes"][0]["html"]) for each in serious]
            assert await page.evaluate("document.documentElement.scrollWidth") <= width
        await page.goto(f"{url}/")
        await page.get_by_role("link", name=hostile, exact=True).click()
        await expect(page.get_by_role("heading", level=1)).to_contain_text(hostile, timeout=PATIENCE_MS)
        await expect(page.locator("#hostile")).to_have_count(0)
        assert not errors
        with zookeeper(cluster_39) as client:
            client.delete(f"/consumers/{hostile}", recursive=True)
